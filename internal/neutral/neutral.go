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

// invisible are the characters without a glyph, other than control characters.
var invisible = []*unicode.RangeTable{unicode.Cf, unicode.Zl, unicode.Zp, unicode.Other_Default_Ignorable_Code_Point}

// filter replaces characters one by one.
type filter struct {
	allowed  string // control characters that stay
	previous rune
}

func (f *filter) replace(r rune) rune {
	if r < ' ' && !strings.ContainsRune(f.allowed, r) || r == unicode.MaxASCII || r > unicode.MaxASCII && f.hostile(r) {
		r = unicode.ReplacementChar
	}
	f.previous = r
	return r
}

// hostile reports whether a character beyond ASCII is a control character, changes the
// direction of text, or is invisible. Joiners and variation selectors are kept after a
// character that can take them. Names that an API server allows have no such characters.
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

// Line returns text as a part of one line. Every character that is not neutral becomes U+FFFD,
// also a line break or a tab.
func Line(text string) string {
	if isPlain(text) {
		return text
	}
	f := filter{}
	return strings.Map(f.replace, text)
}

// isPlain reports whether text is printable ASCII, as most texts are.
func isPlain(text string) bool {
	for i := range len(text) {
		if text[i] < ' ' || text[i] >= unicode.MaxASCII {
			return false
		}
	}
	return true
}

// Text returns text with its line breaks and tabs. All other characters are as in Line.
func Text(text string) string {
	f := filter{allowed: "\n\t"}
	return strings.Map(f.replace, strings.ReplaceAll(text, "\r\n", "\n"))
}

// Lines returns the neutral lines of a text. A tab becomes a space. A text longer than 64 KiB
// is cut.
func Lines(text string) []string {
	text = Text(strings.TrimRight(Cut(text, longestText), "\n"))
	return strings.Split(strings.ReplaceAll(text, "\t", " "), "\n")
}

// Indented returns the result of Lines as one text. Each line but the first is indented by two
// spaces, so that it does not look like a separate message.
func Indented(text string) Trusted { return Trusted(strings.Join(Lines(text), "\n  ")) }

// Cut shortens a text to at most the number of bytes, at the end of a character, and appends
// "…".
func Cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most] + "…"
}

// IsWord reports whether text can be one word of a line that a script reads: at most 512 ASCII
// letters, digits and some marks, and no flag or part of a path. Names that API servers allow
// are words.
func IsWord(text string) bool {
	const marks, longest = "-._:@+=,~", 512
	if text == "" || len(text) > longest || text == "." || text == ".." || text[0] == '-' {
		return false
	}
	return !strings.ContainsFunc(text, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune(marks, r)
	})
}

// Trusted is an argument of Fprintf that is printed unchanged: text of this program, or neutral
// text that may have several lines or be long.
type Trusted string

// Fprintf is fmt.Fprintf with neutral output. The format is trusted. The text of each argument
// becomes neutral, one line and at most 4 KiB, unless the argument is Trusted. Fprintf replaces
// the elements of args.
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

// argument formats a value as fmt does, and makes the result neutral.
type argument struct{ value any }

// Format implements fmt.Formatter.
func (a argument) Format(state fmt.State, verb rune) {
	text := fmt.Sprintf(fmt.FormatString(state, verb), a.value)
	_, _ = io.WriteString(state, Line(Cut(text, longestArgument))) // the state writes to memory
}
