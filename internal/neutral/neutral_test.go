package neutral_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"orrery.dev/orrery/internal/neutral"
)

func TestLine(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"Plain":       {"web-1 is ready", "web-1 is ready"},
		"Scripts":     {"naïve 日本語 👩\u200d👩\u200d👧 ❤\ufe0f نمی\u200cخواهم", "naïve 日本語 👩\u200d👩\u200d👧 ❤\ufe0f نمی\u200cخواهم"}, //nolint:gosmopolitan // any script is
		"Lines":       {"a\tb\nc\rd\u2028e\u2029f", "a\ufffdb\ufffdc\ufffdd\ufffde\ufffdf"},
		"Escapes":     {"\x1b[2J\x07\u009b1m\x7f", "\ufffd[2J\ufffd\ufffd1m\ufffd"},
		"Bytes":       {"a\x9b31m\xff", "a\ufffd31m\ufffd"},
		"Order":       {"\u202eevil\u202c \u2066x\u2069 \u200f\u061c", "\ufffdevil\ufffd \ufffdx\ufffd \ufffd\ufffd"},
		"Hidden":      {"o\u200bak \u2060\ufeff\u00ad\u3164\U000e0041", "o\ufffdak \ufffd\ufffd\ufffd\ufffd\ufffd"},
		"Joiners":     {"oak\u200d o\u200cak", "oak\ufffd o\ufffdak"},
		"ManyJoiners": {"日\u200d\u200d\ufe0f", "日\u200d\ufffd\ufffd"},                 //nolint:gosmopolitan // as above
		"Selectors":   {"a\ufe0f 日\U000e0100\U000e0101", "a\ufffd 日\U000e0100\ufffd"}, //nolint:gosmopolitan // as above
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, neutral.Line(tc.text)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if again := neutral.Line(tc.want); again != tc.want {
				t.Errorf("a neutral text becomes %q", again)
			}
		})
	}
}

func TestLines(t *testing.T) {
	if got, want := neutral.Text("a\tb\r\nc\rd\x1b"), "a\tb\nc\ufffdd\ufffd"; got != want {
		t.Errorf("text: got %q, want %q", got, want)
	}
	if diff := cmp.Diff([]string{"a b", "c\ufffdd"}, neutral.Lines("a\tb\r\nc\rd\n\n")); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
	if got, want := neutral.Indented("first\nerror: second\n"), neutral.Trusted("first\n  error: second"); got != want {
		t.Errorf("indented: got %q, want %q", got, want)
	}
	if got := neutral.Indented(strings.Repeat("a\n", 1<<20)); len(got) > 300<<10 {
		t.Errorf("indented: %d bytes", len(got))
	}
	if got, want := neutral.Cut("日本", 4), "日…"; got != want { //nolint:gosmopolitan // several bytes
		t.Errorf("cut: got %q, want %q", got, want)
	}
}

func TestIsWord(t *testing.T) {
	for text, want := range map[string]bool{
		"web-1": true, "system:node.n1": true, "Admin@example.com": true, "deployment.apps": true, "a_b~c+d=e,f": true,
		strings.Repeat("a", 512): true, strings.Repeat("a", 513): false,
		"": false, ".": false, "..": false, "-n": false, "a b": false, "a\nb": false, "a/b": false, "a%2fb": false, "$(x)": false,
		"a\x1b": false, "a\u200b": false, "é": false, "*": false, "a'b": false, `a"b`: false, `a\b`: false, "a;b": false,
	} {
		if got := neutral.IsWord(text); got != want {
			t.Errorf("%q: got %t", text, got)
		}
	}
}

func TestFprintf(t *testing.T) {
	long := strings.Repeat("x", 100<<10)
	for name, tc := range map[string]struct {
		format string
		args   []any
		want   string
	}{
		"Arguments": {"%s\t%v\n", []any{"a\tb", errors.New("c\nd")}, "a\ufffdb\tc\ufffdd\n"},
		"Verbs":     {"%-4s|%q|%03d|%*d|%x\n", []any{"\x1b", "\x1b", int64(7), 3, 5, "\n"}, "\ufffd   |\"\\x1b\"|007|  5|0a\n"},
		"Values":    {"%v %s\n", []any{[]string{"a\n"}, []byte("b\r")}, "[a\ufffd] b\ufffd\n"},
		"Trusted":   {"%s\n", []any{neutral.Trusted("a\n\tb" + long)}, "a\n\tb" + long + "\n"},
		"Long":      {"%s %s\n", []any{long, "end"}, long[:4<<10] + "… end\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := neutral.Fprintf(&out, tc.format, tc.args...); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, out.String()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestWriter writes a text in parts of each size, so that characters are split at every byte.
func TestWriter(t *testing.T) {
	const text, want = "a\tb\n日\u200d本\x1b[1m\u202e\x9b👩", "a\tb\n日\u200d本\ufffd[1m\ufffd\ufffd👩" //nolint:gosmopolitan // several bytes
	for size := 1; size <= len(text); size++ {
		var out bytes.Buffer
		w := neutral.NewWriter(&out)
		for at := 0; at < len(text); at += size {
			part := text[at:min(at+size, len(text))]
			if n, err := io.WriteString(w, part); n != len(part) || err != nil {
				t.Fatalf("wrote %d of %q: %v", n, part, err)
			}
		}
		if out.String() != want {
			t.Errorf("in parts of %d: got %q, want %q", size, out.String(), want)
		}
	}
	if _, err := neutral.NewWriter(writeFails{}).Write([]byte("a")); !errors.Is(err, iotest.ErrTimeout) {
		t.Errorf("a failed write returns %v", err)
	}
}

type writeFails struct{}

func (writeFails) Write([]byte) (int, error) { return 0, iotest.ErrTimeout }

func TestJSON(t *testing.T) {
	value := map[string]string{"a\u202e": "b\u009b\x1b\n\u200b", "plain": "日本", "tag": "x\U000e0041"} //nolint:gosmopolitan // as it is
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	safe := neutral.JSON(text)
	if got := neutral.Text(string(safe)); got != string(safe) {
		t.Errorf("not neutral: %q", safe)
	}
	var again map[string]string
	if err := json.Unmarshal(safe, &again); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(value, again); diff != "" {
		t.Errorf("the value is another one (-want +got):\n%s", diff)
	}
	if plain := []byte(`{"a":"日本\n"}`); &neutral.JSON(plain)[0] != &plain[0] { //nolint:gosmopolitan // as above
		t.Error("a neutral text is copied")
	}
}

// TestLog: each entry is one line, which has no control character, in both formats.
func TestLog(t *testing.T) {
	const hostile = "x\nlevel=ERROR msg=forged\r\x1b[2J\x07\u0085\u009b1m\u202e\u2066\u200b\u2028\x7f"
	for name, handler := range map[string]func(io.Writer, slog.Leveler) slog.Handler{"Text": neutral.NewTextLog, "JSON": neutral.NewJSONLog} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			log := slog.New(handler(&out, slog.LevelInfo))
			log.Info(hostile, hostile, hostile, "error", errors.New(hostile), slog.Group(hostile, "a", hostile))
			log.With(hostile, hostile).WithGroup(hostile).Error("failed", "error", errors.New(strings.Repeat(hostile, 10_000)))
			log.Info("nil", "error", (*failure)(nil), "values", []string{hostile})
			log.Debug("hidden")
			lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
			if len(lines) != 3 {
				t.Fatalf("%d lines", len(lines))
			}
			for _, line := range lines {
				if neutral.Line(line) != line || !utf8.ValidString(line) {
					t.Errorf("not neutral: %.500q", line)
				}
				if len(line) > 150<<10 {
					t.Errorf("a line has %d bytes", len(line))
				}
				if name == "JSON" && !json.Valid([]byte(line)) {
					t.Errorf("no JSON: %.500s", line)
				}
			}
		})
	}
}

type failure struct{ text string }

func (f *failure) Error() string { return f.text }
