package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"strconv"
	"strings"

	"golang.org/x/term"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"orrery.dev/orrery/internal/neutral"
)

// The streams of a command replace control characters, so that text of a member or host cannot
// control the terminal or imitate a line. Such text is printed with say, which makes each argument
// one line. Output of other libraries passes through the neutral.Writer of the stream. Only raw and
// exact return streams without that.

// raw returns the stream below w if w is a neutral.Writer, otherwise w. It writes bytes unchanged:
// output of a program in a container, logs, and control characters of this program itself.
func raw(w io.Writer) io.Writer {
	if n, ok := w.(*neutral.Writer); ok {
		return n.Unwrap()
	}
	return w
}

// exact returns a stream for text that programs read, such as YAML. If w goes to a terminal, where
// a person reads, it is w itself, which replaces control characters. Otherwise it writes every byte
// unchanged.
func exact(w io.Writer) io.Writer {
	to := raw(w)
	if f, ok := to.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return w
	}
	return to
}

// asJSON returns a stream for JSON that escapes control and invisible characters, also on a
// terminal. Each write must end at the end of a character.
func asJSON(w io.Writer) io.Writer { return neutral.NewJSONWriter(raw(w)) }

// sayRow prints one row of a table: the cells, separated by tabs, and a line break. Control
// characters in cells are replaced.
func sayRow(w io.Writer, cells ...string) error {
	args := make([]any, len(cells))
	for i, cell := range cells {
		args[i] = cell
	}
	return say(w, strings.TrimSuffix(strings.Repeat("%s\t", len(cells)), "\t")+"\n", args...)
}

// neutralLines returns texts as lines, joined by line breaks. Control characters, also line breaks,
// are replaced in each text.
func neutralLines(texts []string) neutral.Trusted {
	lines := make([]string, len(texts))
	for i, text := range texts {
		lines[i] = neutral.Line(text)
	}
	return neutral.Trusted(strings.Join(lines, "\n"))
}

// laidOut returns the output of kubectl describe for printing: line breaks and tabs stay, other
// control characters are replaced. It inserts a space before lines that look like the heading "==>
// cluster NAME <==" of the command itself.
func laidOut(text string) neutral.Trusted {
	return neutral.Trusted(strings.TrimPrefix(strings.ReplaceAll("\n"+neutral.Text(text), "\n==> ", "\n ==> "), "\n"))
}

// cell returns a text as a cell of a table: one line without control characters, cut to
// longestCell.
func cell(text string) string { return neutral.Line(neutral.Cut(text, longestCell)) }

// longestCell is the maximum size of a cell of a table, 4 KiB. One longer cell would make all rows
// long, because they are padded to the width of the column.
const longestCell = 4 << 10

// neutralTable replaces control characters in the headings and cells of a table, in place. Of a
// cell with several lines it keeps the first and "...", as kubectl does.
func neutralTable(table *metav1.Table) {
	for i := range table.ColumnDefinitions {
		table.ColumnDefinitions[i].Name = cell(table.ColumnDefinitions[i].Name)
	}
	for _, row := range table.Rows {
		neutralCells(row.Cells)
	}
}

// neutralCells replaces control characters in the cells of a row, in place. Of a string with
// several lines it keeps the first and "...", as kubectl does.
func neutralCells(cells []any) {
	for i, value := range cells {
		if text, ok := value.(string); ok {
			if at := strings.IndexAny(text, "\n\r\f"); at >= 0 {
				text = text[:at] + "..."
			}
			value = text
		}
		cells[i] = neutralValue(value)
	}
}

// neutralValue replaces control characters in all strings and map keys of a JSON value. Strings
// become one line of at most longestCell bytes. Maps and lists are changed in place; a string is
// returned. If two keys of a map become equal, one value is lost.
func neutralValue(value any) any {
	switch value := value.(type) {
	case string:
		return cell(value)
	case []any:
		for i := range value {
			value[i] = neutralValue(value[i])
		}
	case map[string]any:
		for key, of := range value {
			plain := cell(key)
			if plain != key {
				delete(value, key)
			}
			value[plain] = neutralValue(of)
		}
	}
	return value
}

// neutralAnswers wraps a transport so that all strings in JSON responses are without control
// characters, because kubectl prints names from responses. It is for commands that use only names:
// an object whose name changes by this is not found. It reads each JSON response as a whole.
// Watches and other media types pass unchanged.
func neutralAnswers(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		answer, err := next.RoundTrip(r)
		if query := r.URL.Query(); err != nil || query.Get("watch") == "true" || query.Get("watch") == "1" {
			return answer, err // a watch has no end; a neutral writer prints its names
		}
		if kind, _, _ := mime.ParseMediaType(answer.Header.Get("Content-Type")); kind != "application/json" {
			return answer, nil
		}
		body, err := io.ReadAll(answer.Body)
		if closed := answer.Body.Close(); err == nil {
			err = closed
		}
		if err != nil {
			return nil, fmt.Errorf("read the answer: %w", err)
		}
		var value any
		d := json.NewDecoder(bytes.NewReader(body))
		d.UseNumber()
		if d.Decode(&value) == nil {
			if body, err = json.Marshal(neutralValue(value)); err != nil {
				return nil, fmt.Errorf("read the answer: %w", err)
			}
		}
		answer.Body, answer.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		answer.Header.Set("Content-Length", strconv.Itoa(len(body)))
		return answer, nil
	})
}

// scriptLines prints lines that scripts read. A line is ambiguous if a part of it is not a word by
// neutral.IsWord, for example if a name has a space. Such a line is left out and printed as an
// error on err; problem returns an error for all of them. It is not safe for concurrent use.
type scriptLines struct {
	out, err io.Writer
	left     int
}

// mostLeftOut is the maximum number of omitted lines that are printed as errors, 20. The others are
// only counted.
const mostLeftOut = 20

// add prints a line if all parts of it are words. Otherwise it leaves the line out, as allows
// describes, and returns nil. The error is that of the output. After the last line the caller calls
// problem.
func (l *scriptLines) add(line string, parts ...string) error {
	if l.allows(line, parts...) {
		return say(l.out, "%s\n", line)
	}
	return nil
}

// allows reports whether all parts of a line are words. If not, it counts the line as left out and
// prints that to l.err, at most mostLeftOut times. It does not print the line to l.out.
func (l *scriptLines) allows(line string, parts ...string) bool {
	for _, part := range parts {
		if neutral.IsWord(part) {
			continue
		}
		if l.left++; l.left <= mostLeftOut {
			// an error of the stream can be printed nowhere
			_ = say(l.err, "error: %s is left out: a script could read the name as something else\n", strconv.QuoteToASCII(neutral.Cut(line, 256)))
		}
		return false
	}
	return true
}

// problem returns an error with the number of lines that add and allows left out, because a script
// could misread the name of an object in them; nil if there were none. The caller calls it after
// the last line.
func (l *scriptLines) problem() error {
	if l.left == 0 {
		return nil
	}
	return fmt.Errorf("%d objects have names that no line for scripts can have, and are left out; -o json shows them", l.left)
}
