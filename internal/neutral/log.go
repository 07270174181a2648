package neutral

import (
	"fmt"
	"io"
	"log/slog"
)

// longestValue is the maximum size of a text or an error in a log entry, in bytes.
const longestValue = 16 << 10

// NewTextLog returns a handler that writes each log entry of at least this level as one line of
// text to w. Values with other than printable characters are quoted, with escapes. Texts and errors
// longer than 16 KiB are cut.
func NewTextLog(w io.Writer, level slog.Leveler) slog.Handler {
	return slog.NewTextHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: bounded})
}

// NewJSONLog returns a handler that writes each log entry of at least this level as one line of
// JSON to w. Characters that could control a terminal or hide text are escaped. Texts and errors
// longer than 16 KiB are cut.
func NewJSONLog(w io.Writer, level slog.Leveler) slog.Handler {
	return slog.NewJSONHandler(NewJSONWriter(w), &slog.HandlerOptions{Level: level, ReplaceAttr: bounded})
}

// bounded cuts the value of a log attribute to longestValue bytes, if it is a text or an error.
// Other values stay as they are.
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
