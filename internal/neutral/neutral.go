// Package neutral prints text from members, objects, hosts and their errors safely. Neutral
// text cannot control a terminal, imitate lines, columns or other text, or hide a part of
// itself.
package neutral

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// longestArgument is the maximum size of an argument of Fprintf, in bytes. An argument may
	// be a cell of a table, whose width is that of all rows.
	longestArgument = 4 << 10
	// longestText is the maximum size of a text of several lines, in bytes.
	longestText = 64 << 10
)

// Characters that join or separate others. Many scripts, and emoji, use them.
const (
	nonJoiner = '\u200c'
	joiner    = '\u200d'
)

// invisible are the characters without a glyph, other than control characters. They are not
// neutral, because they could hide or reorder text.
var invisible = []*unicode.RangeTable{unicode.Cf, unicode.Zl, unicode.Zp, unicode.Other_Default_Ignorable_Code_Point}

// filter replaces the characters of a text that are not neutral, one after another. The zero value
// also replaces line breaks and tabs.
type filter struct {
	allowed  string // control characters that stay
	previous rune   // the last character that replace returned
}

// replace returns r if it is neutral after the previous character of the text, else U+FFFD. Control
// characters, except those in f.allowed, and the characters for which hostile is true are not
// neutral. replace is called for each character of a text, in order.
func (f *filter) replace(r rune) rune {
	if r < ' ' && !strings.ContainsRune(f.allowed, r) || r == unicode.MaxASCII || r > unicode.MaxASCII && f.hostile(r) {
		r = unicode.ReplacementChar
	}
	f.previous = r
	return r
}

// hostile reports whether r, a character beyond ASCII, must be replaced: it is a control character,
// changes the direction of text, or is invisible. Joiners and variation selectors are invisible,
// but stay after a character that can take them.
func (f *filter) hostile(r rune) bool {
	takes := f.previous > unicode.MaxASCII && f.previous != unicode.ReplacementChar && f.previous != joiner && f.previous != nonJoiner
	switch {
	case r == joiner, r == nonJoiner:
		return !takes
	case unicode.Is(unicode.Variation_Selector, r):
		return !takes || unicode.Is(unicode.Variation_Selector, f.previous)
	case unicode.Is(unicode.Prepended_Concatenation_Mark, r): // has a glyph
		return false
	}
	return r < 0xa0 || unicode.In(r, invisible...)
}

// Line returns text as a part of one line. Control characters, also line breaks and tabs, and
// characters that are invisible or change the direction of text become U+FFFD.
func Line(text string) string {
	if isPlain(text) {
		return text
	}
	f := filter{}
	return strings.Map(f.replace, text)
}

// isPlain reports whether text has only printable ASCII characters, as most texts do.
func isPlain(text string) bool {
	for i := range len(text) {
		if text[i] < ' ' || text[i] >= unicode.MaxASCII {
			return false
		}
	}
	return true
}

// Text returns text that may have several lines. Line breaks and tabs stay, and \r\n becomes \n.
// Other control characters, and characters that are invisible or change the direction of text,
// become U+FFFD.
func Text(text string) string {
	f := filter{allowed: "\n\t"}
	return strings.Map(f.replace, strings.ReplaceAll(text, "\r\n", "\n"))
}

// Lines returns the lines of a text, at least one. A line ends with "\n" or "\r\n"; line breaks at
// the end of the text are left out. Other control characters, and characters that are invisible or
// change the direction of text, become U+FFFD; a tab becomes a space. A text longer than 64 KiB is
// cut, and ends with "…".
func Lines(text string) []string {
	text = Text(strings.TrimRight(Cut(text, longestText), "\n"))
	return strings.Split(strings.ReplaceAll(text, "\t", " "), "\n")
}

// Indented returns the lines of a text, from Lines, as one text for Fprintf. Each line but the
// first is indented by two spaces, so that it does not look like a separate message.
func Indented(text string) Trusted { return Trusted(strings.Join(Lines(text), "\n  ")) }

// Cut returns text, or, if it has more than most bytes, its first characters with at most that many
// bytes, and "…". The "…" is not counted.
func Cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most] + "…"
}

// IsWord reports whether text can be one word of a line that a script reads. It must have 1 to 512
// ASCII letters, digits and the marks -._:@+=,~ only. It must not begin with - like a flag, and
// must not be . or .. like a directory. Names that API servers allow are words.
func IsWord(text string) bool {
	const marks, longest = "-._:@+=,~", 512
	if text == "" || len(text) > longest || text == "." || text == ".." || text[0] == '-' {
		return false
	}
	return !strings.ContainsFunc(text, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune(marks, r)
	})
}

// Trusted is a text that Fprintf prints unchanged. It is text of this program, or text that is
// neutral already and may have several lines or be long.
type Trusted string

// Fprintf formats its arguments as fmt.Fprintf does. The text of each argument becomes one line of
// at most 4 KiB, in which Line has replaced characters that could control a terminal. The format,
// and arguments of the types Trusted and int, stay as they are. Fprintf replaces the elements of
// args. It returns the error of w.
func Fprintf(w io.Writer, format string, args ...any) error {
	for i := range args {
		switch args[i].(type) {
		case Trusted, argument, int: // an int may also be a width
		default:
			args[i] = argument{args[i]}
		}
	}
	_, err := fmt.Fprintf(w, format, args...)
	return err
}

// argument wraps an argument of Fprintf: it formats the value as fmt does, and passes the text
// through Cut and Line.
type argument struct{ value any }

// Format implements fmt.Formatter: it writes the formatted value as one safe line of at most
// longestArgument bytes.
func (a argument) Format(state fmt.State, verb rune) {
	text := fmt.Sprintf(fmt.FormatString(state, verb), a.value)
	_, _ = io.WriteString(state, Line(Cut(text, longestArgument))) // the state writes to memory
}
