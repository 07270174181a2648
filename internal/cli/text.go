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

// The streams of a command are neutral: text that members, objects, hosts and errors have
// written passes through say, which makes it neutral, and what other libraries print passes
// through the neutral.Writer of the stream. raw and exact are the two ways around it.

// raw returns a stream without its neutral.Writer: for the bytes of a program that runs in a
// container, for the log, and for the control characters of this program itself.
func raw(w io.Writer) io.Writer {
	if n, ok := w.(*neutral.Writer); ok {
		return n.Unwrap()
	}
	return w
}

// exact returns a stream for text that programs read, such as YAML: every byte is passed on as
// it is, unless the stream is a terminal, where a person reads the text.
func exact(w io.Writer) io.Writer {
	to := raw(w)
	if f, ok := to.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return w
	}
	return to
}

// asJSON returns a stream for JSON. In it every character that is not neutral is escaped.
func asJSON(w io.Writer) io.Writer { return neutral.NewJSONWriter(raw(w)) }

// sayRow prints one row of a table, of foreign cells.
func sayRow(w io.Writer, cells ...string) error {
	args := make([]any, len(cells))
	for i, cell := range cells {
		args[i] = cell
	}
	return say(w, strings.TrimSuffix(strings.Repeat("%s\t", len(cells)), "\t")+"\n", args...)
}

// neutralLines returns texts as lines of their own.
func neutralLines(texts []string) neutral.Trusted {
	lines := make([]string, len(texts))
	for i, text := range texts {
		lines[i] = neutral.Line(text)
	}
	return neutral.Trusted(strings.Join(lines, "\n"))
}

// laidOut returns what kubectl has laid out in lines and columns. No line of it looks like the
// heading of a cluster.
func laidOut(text string) neutral.Trusted {
	return neutral.Trusted(strings.TrimPrefix(strings.ReplaceAll("\n"+neutral.Text(text), "\n==> ", "\n ==> "), "\n"))
}

// cell returns a text as a cell of a table.
func cell(text string) string { return neutral.Line(neutral.Cut(text, longestCell)) }

// longestCell bounds a cell of a table, in bytes: all other rows are padded to its width.
const longestCell = 4 << 10

// neutralTable makes the heads and the cells of a table neutral.
func neutralTable(table *metav1.Table) {
	for i := range table.ColumnDefinitions {
		table.ColumnDefinitions[i].Name = cell(table.ColumnDefinitions[i].Name)
	}
	for _, row := range table.Rows {
		neutralCells(row.Cells)
	}
}

// neutralCells makes the cells of a row neutral. Of a text of several lines the first is
// shown, as kubectl does.
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

// neutralValue makes all strings in a value of JSON neutral, also those in its maps and lists,
// which it changes.
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

// neutralAnswers makes the JSON in answers neutral, for commands that take only names of
// objects from it: kubectl prints some of these. An object with another name is then not
// found.
func neutralAnswers(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		answer, err := next.RoundTrip(r)
		if query := r.URL.Query(); err != nil || query.Get("watch") == "true" || query.Get("watch") == "1" {
			return answer, err // a watch has no end; only its names are printed, through a neutral writer
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

// scriptLines prints lines that scripts read. A line with a part that is no word could be read
// as other parts: it is left out, which is an error.
type scriptLines struct {
	out, err io.Writer
	left     int
}

// mostLeftOut bounds how many lines that are left out are printed as errors.
const mostLeftOut = 20

// add prints a line, or says that it is left out. All parts must be words.
func (l *scriptLines) add(line string, parts ...string) error {
	if l.allows(line, parts...) {
		return say(l.out, "%s\n", line)
	}
	return nil
}

// allows reports whether all parts of a line are words. It says so if the line is left out.
func (l *scriptLines) allows(line string, parts ...string) bool {
	for _, part := range parts {
		if neutral.IsWord(part) {
			continue
		}
		if l.left++; l.left <= mostLeftOut {
			_ = say(l.err, "error: %s is left out: a script could read the name as something else\n", strconv.QuoteToASCII(neutral.Cut(line, 256))) // nowhere to say so
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
