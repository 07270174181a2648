package main

import (
	"fmt"
	"strings"
)

// Marks of the tables in docs/style.md that glossary.go fills.
const (
	glossaryMark = "glossary"
	plainMark    = "plain words"
)

// withTables returns the guide with its two tables as glossary.go has them.
func withTables(guide string) (string, error) {
	text, err := withTable(guide, glossaryMark, glossaryTable())
	if err != nil {
		return "", err
	}
	return withTable(text, plainMark, plainTable())
}

// withTable replaces what is between the marks of a table. The marks must be there.
func withTable(guide, mark, table string) (string, error) {
	begin, end := "<!-- begin: "+mark+" -->\n", "<!-- end: "+mark+" -->\n"
	before, rest, ok := strings.Cut(guide, begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		return "", fmt.Errorf("%s lacks the lines %q and %q", guideFile, strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return before + begin + table + end + after, nil
}

func glossaryTable() string {
	var b strings.Builder
	b.WriteString("| concept | word | refused | notes |\n|---|---|---|---|\n")
	for _, c := range glossary {
		var notes []string
		if c.note != "" {
			notes = append(notes, c.note)
		}
		if len(c.except) > 0 {
			notes = append(notes, "fine: "+strings.Join(c.except, ", "))
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", c.meaning, c.word, refusedCell(c.rule), strings.Join(notes, "; "))
	}
	return b.String()
}

func plainTable() string {
	var b strings.Builder
	b.WriteString("| refused | write | fine |\n|---|---|---|\n")
	for _, c := range plain {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", refusedCell(c.rule), c.word, strings.Join(c.except, ", "))
	}
	return b.String()
}

// refusedCell lists what a rule refuses. Words that only names or only texts may not have are
// marked.
func refusedCell(r rule) string {
	var parts []string
	list := func(words []string, where string) {
		if len(words) > 0 {
			parts = append(parts, strings.Join(words, ", ")+where)
		}
	}
	list(r.words, "")
	list(r.names, " (names)")
	if len(r.words)+len(r.names) > 0 {
		list(r.text, " (text)")
	} else {
		list(r.text, "")
	}
	return strings.Join(parts, "; ")
}
