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

// The streams of a command neutralize text. Text from members, objects, hosts and errors passes
// through say, which neutralizes it, and output of other libraries passes through the
// neutral.Writer of the stream. Only raw and exact return streams without this.

// raw returns a stream without its neutral.Writer, for the output of a program in a container,
// for logs, and for the control characters of this program itself.
func raw(w io.Writer) io.Writer {
	if n, ok := w.(*neutral.Writer); ok {
		return n.Unwrap()
	}
	return w
}

// exact returns a stream for text that programs read, such as YAML. It passes on every byte,
// unless the stream is a terminal, where a person reads the text.
func exact(w io.Writer) io.Writer {
	to := raw(w)
	if f, ok := to.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return w
	}
	return to
}

// asJSON returns a stream for JSON. It escapes every character that is not neutral.
func asJSON(w io.Writer) io.Writer { return neutral.NewJSONWriter(raw(w)) }

// sayRow prints one row of a table; cells are foreign text.
func sayRow(w io.Writer, cells ...string) error {
	args := make([]any, len(cells))
	for i, cell := range cells {
		args[i] = cell
	}
	return say(w, strings.TrimSuffix(strings.Repeat("%s\t", len(cells)), "\t")+"\n", args...)
}

// neutralLines returns texts as lines, each on its own.
func neutralLines(texts []string) neutral.Trusted {
	lines := make([]string, len(texts))
	for i, text := range texts {
		lines[i] = neutral.Line(text)
	}
	return neutral.Trusted(strings.Join(lines, "\n"))
}

// laidOut returns text that kubectl has formatted in lines and columns. It changes lines that
// look like the heading of a cluster.
func laidOut(text string) neutral.Trusted {
	return neutral.Trusted(strings.TrimPrefix(strings.ReplaceAll("\n"+neutral.Text(text), "\n==> ", "\n ==> "), "\n"))
}

// cell returns a text as a cell of a table.
func cell(text string) string { return neutral.Line(neutral.Cut(text, longestCell)) }

// longestCell is the maximum size of a cell of a table, in bytes: all other rows are padded to
// its width.
const longestCell = 4 << 10

// neutralTable neutralizes the heads and the cells of a table.
func neutralTable(table *metav1.Table) {
	for i := range table.ColumnDefinitions {
		table.ColumnDefinitions[i].Name = cell(table.ColumnDefinitions[i].Name)
	}
	for _, row := range table.Rows {
		neutralCells(row.Cells)
	}
}

// neutralCells neutralizes the cells of a row. Of several lines only the first is shown, as in
// kubectl.
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

// neutralValue neutralizes all strings in a JSON value. It changes the maps and lists in the
// value.
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

// neutralAnswers neutralizes the JSON in responses, for commands that take only names of objects
// from it: kubectl prints some of these names. An object whose name is changed by this is not
// found.
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

// scriptLines prints lines for scripts. A line whose parts are not words would be ambiguous: it
// is left out, and problem returns an error.
type scriptLines struct {
	out, err io.Writer
	left     int
}

// mostLeftOut is the maximum number of omitted lines that are printed as errors.
const mostLeftOut = 20

// add prints a line, or an error if it is left out. All parts must be words.
func (l *scriptLines) add(line string, parts ...string) error {
	if l.allows(line, parts...) {
		return say(l.out, "%s\n", line)
	}
	return nil
}

// allows reports whether all parts of a line are words. Otherwise it prints that the line is
// left out.
func (l *scriptLines) allows(line string, parts ...string) bool {
	for _, part := range parts {
		if neutral.IsWord(part) {
			continue
		}
		if l.left++; l.left <= mostLeftOut {
			// there is no other stream for the error
			_ = say(l.err, "error: %s is left out: a script could read the name as something else\n", strconv.QuoteToASCII(neutral.Cut(line, 256)))
		}
		return false
	}
	return true
}

// problem returns an error if lines were left out.
func (l *scriptLines) problem() error {
	if l.left == 0 {
		return nil
	}
	return fmt.Errorf("%d objects have names that no line for scripts can have, and are left out; -o json shows them", l.left)
}
