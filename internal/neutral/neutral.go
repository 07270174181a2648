// Package neutral prints text that others wrote: what members, objects, hosts and their errors
// say. Neutral text does not steer a terminal, imitate lines, columns or other text, or hide a
// part of itself.
package neutral

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// longestArgument bounds an argument of Fprintf, in bytes. A cell of a table is one, and
	// pads all other rows.
	longestArgument = 4 << 10
	// longestText bounds a text of several lines, in bytes.
	longestText = 64 << 10
)

// The characters that join others are part of many scripts and of emoji.
const (
	nonJoiner = '\u200c'
	joiner    = '\u200d'
)

// invisible are the characters that have no glyph, beside control characters.
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

// hostile reports whether a character beyond ASCII is a control character, changes the order
// in which text is read, or cannot be seen. Joiners and variation selectors stay behind a
// character that may take one; no name that an API server allows has such a character.
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

// Line returns a text as a part of one line: every character that is not neutral, also a line
// break or a tab, is U+FFFD.
func Line(text string) string {
	if isPlain(text) {
		return text
	}
	f := filter{}
	return strings.Map(f.replace, text)
}

// isPlain reports whether a text is printable ASCII, as most are.
func isPlain(text string) bool {
	for i := range len(text) {
		if text[i] < ' ' || text[i] >= unicode.MaxASCII {
			return false
		}
	}
	return true
}

// Text returns a text that may have lines and tabs: all other characters are as in Line.
func Text(text string) string {
	f := filter{allowed: "\n\t"}
	return strings.Map(f.replace, strings.ReplaceAll(text, "\r\n", "\n"))
}

// Lines returns the lines of a text, each of them neutral; a tab is a space. A text that is
// longer than 64 KiB is cut.
func Lines(text string) []string {
	text = Text(strings.TrimRight(Cut(text, longestText), "\n"))
	return strings.Split(strings.ReplaceAll(text, "\t", " "), "\n")
}

// Indented returns Lines as one text, in which each line but the first begins with two spaces,
// so that none of them looks like a line of its own.
func Indented(text string) Trusted { return Trusted(strings.Join(Lines(text), "\n  ")) }

// Cut shortens a text to a number of bytes, at a character.
func Cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most] + "…"
}

// IsWord reports whether a text can be one word of a line that a script reads, as names that
// API servers allow are: at most 512 ASCII letters, digits and some marks, and no flag or part
// of a path.
func IsWord(text string) bool {
	const marks, longest = "-._:@+=,~", 512
	if text == "" || len(text) > longest || text == "." || text == ".." || text[0] == '-' {
		return false
	}
	return !strings.ContainsFunc(text, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune(marks, r)
	})
}

// Trusted is an argument of Fprintf that is printed as it is: text of this program, or text
// that is neutral already and may have lines or be long.
type Trusted string

// Fprintf formats as fmt.Fprintf. The format is trusted. What a verb makes of an argument becomes
// neutral, on one line, and is cut at 4 KiB, unless the argument is Trusted. Fprintf replaces the
// elements of args.
func Fprintf(w io.Writer, format string, args ...any) error {
	for i := range args {
		switch args[i].(type) {
		case Trusted, argument, int: // of an int also a width may be taken
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
	_, _ = io.WriteString(state, Line(Cut(text, longestArgument))) // it is memory
}
