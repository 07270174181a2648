package neutral

import (
	"fmt"
	"io"
	"log/slog"
)

// longestValue bounds a value in a log entry, in bytes.
const longestValue = 16 << 10

// NewTextLog returns a handler that writes each log entry as one line of text to w. Values
// that have other than printable characters are quoted, with escapes; long ones are cut.
func NewTextLog(w io.Writer, level slog.Leveler) slog.Handler {
	return slog.NewTextHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: bounded})
}

// NewJSONLog returns a handler that writes each log entry as one line of JSON to w. Characters
// that are not neutral are escaped; long values are cut.
func NewJSONLog(w io.Writer, level slog.Leveler) slog.Handler {
	return slog.NewJSONHandler(NewJSONWriter(w), &slog.HandlerOptions{Level: level, ReplaceAttr: bounded})
}

// bounded cuts the text of a long value.
func bounded(_ []string, a slog.Attr) slog.Attr {
	var text string
	switch value := a.Value.Any().(type) {
	case string:
		text = value
	case error:
		text = fmt.Sprint(value) // fmt.Sprint survives a nil pointer
	}
	if len(text) > longestValue {
		a.Value = slog.StringValue(Cut(text, longestValue))
	}
	return a
}
