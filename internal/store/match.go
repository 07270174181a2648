package store

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Pattern is a requirement of a query on the name or the namespace of an object: it matches one of
// the globs or, with Not, none of them. There must be at least one glob.
type Pattern struct {
	Namespace bool // applies to the namespace instead of the name
	Globs     []Glob
	Not       bool
}

// Glob is a pattern for a text: the texts that it must contain, in this order, with any characters
// between them. The text must begin with the first element and end with the last one; "" as an
// element matches anything. A Glob of one element matches only that text. A Glob must not be empty.
// The pattern web-*-a is {"web-", "-a"}.
type Glob []string

// Matches reports whether the whole text matches the glob. g must not be empty.
func (g Glob) Matches(text string) bool {
	rest, ok := strings.CutPrefix(text, g[0])
	if !ok || len(g) == 1 {
		return ok && rest == ""
	}
	for _, piece := range g[1 : len(g)-1] {
		_, after, found := strings.Cut(rest, piece)
		if !found {
			return false
		}
		rest = after
	}
	return strings.HasSuffix(rest, g[len(g)-1])
}

// Slim has the requirements of a query that are evaluated without the body of an object: on names,
// creation times, words, and values of declared fields. The zero value has none.
type Slim struct {
	Patterns []Pattern
	// Mentions has lists of texts. For each list, the values of an object's declared (indexed) fields
	// must contain one of the texts. The function Mention formats a value for that. This excludes most
	// objects that lack the value, but does not prove that an object has it.
	Mentions [][]string
	// CreatedFrom and CreatedBefore limit the creation time, to the second; zero: no bound.
	CreatedFrom, CreatedBefore time.Time
	Texts                      []FullText
}

// Mention returns a text for Slim.Mentions that finds a value of a declared field. With whole, text
// is the complete value, and the result is in quotes. Otherwise text is a part of the value, and
// the result has no quotes. Characters are escaped as in JSON, in which the values are stored.
func Mention(text string, whole bool) string {
	quoted := list(text)
	if whole {
		return quoted
	}
	return quoted[1 : len(quoted)-1]
}

type (
	// globs is the condition that a column matches one of the globs; with not, that it matches none.
	globs struct {
		column string
		of     []Glob
		not    bool
	}
	// createdBetween is the condition that an object was created at from or later, and before before,
	// in Unix seconds. 0 is no bound. An object without a creation time does not satisfy it.
	createdBetween struct{ from, before int64 }
)

// conditions translates the requirements to conditions of a plan. The error is an ErrSelector for a
// text that no object can have: invalid UTF-8, or with a zero byte.
func (m Slim) conditions() (out []condition, err error) {
	add := func(column string, of []Glob, not bool) {
		for _, g := range of {
			for _, piece := range g {
				if !utf8.ValidString(piece) || strings.Contains(piece, "\x00") {
					err = fmt.Errorf("%w: nothing has %q in it", ErrSelector, piece)
				}
			}
		}
		out = append(out, globs{column, of, not})
	}
	for _, p := range m.Patterns {
		column := "o.name"
		if p.Namespace {
			column = "o.namespace"
		}
		add(column, p.Globs, p.Not)
	}
	for _, texts := range m.Mentions {
		of := make([]Glob, len(texts))
		for i, text := range texts {
			of[i] = Glob{"", text, ""}
		}
		add("o.terms", of, false)
	}
	if from, before := unix(m.CreatedFrom), unix(m.CreatedBefore); from != 0 || before != 0 {
		out = append(out, createdBetween{from, before})
	}
	for _, t := range m.Texts {
		out = append(out, hasFullText(t))
	}
	return out, err
}

// unix returns a time in Unix seconds, and 0 for the zero time.
func unix(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.Unix()
}

// selects reports whether a row satisfies the requirements. If r has no body, only the patterns are
// compared, and the others count as satisfied. A row without a creation time does not satisfy a
// bound on that time.
func (m Slim) selects(gr groupResource, r *Row) bool {
	for _, p := range m.Patterns {
		text := r.Name
		if p.Namespace {
			text = r.Namespace
		}
		if slices.ContainsFunc(p.Globs, func(g Glob) bool { return g.Matches(text) }) == p.Not {
			return false
		}
	}
	if r.Body == nil {
		return true // the row has no data for the other requirements
	}
	if len(m.Mentions) > 0 {
		terms := encodeTerms(termsOf(gr, r.Body))
		for _, texts := range m.Mentions {
			if !slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(terms, text) }) {
				return false
			}
		}
	}
	if len(m.Texts) > 0 {
		_, source := read(gr, r)
		if text := source.Text(); slices.ContainsFunc(m.Texts, func(t FullText) bool { return !t.holds(text) }) {
			return false
		}
	}
	from, before := unix(m.CreatedFrom), unix(m.CreatedBefore)
	if from == 0 && before == 0 {
		return true
	}
	created := unix(r.Created)
	return created != 0 && created >= from && (before == 0 || created < before)
}

func (c globs) write(s *statement) {
	if c.not {
		s.sql("NOT ")
	}
	s.sql("(")
	for i, g := range c.of {
		if i > 0 {
			s.sql(" OR ")
		}
		if len(g) == 1 {
			s.sql(c.column + " = ").arg(g[0])
			continue
		}
		s.dialect.like(s, c.column, g)
	}
	s.sql(")")
}

func (c createdBetween) write(s *statement) {
	s.sql("o.created <> 0 AND o.created >= ").arg(c.from)
	if c.before != 0 {
		s.sql(" AND o.created < ").arg(c.before)
	}
}

// like writes the condition that the column matches the glob. It uses GLOB, because LIKE of SQLite
// ignores case.
func (sqliteDialect) like(s *statement, column string, g Glob) {
	s.sql(column + " GLOB ").arg(joined(g, "*", strings.NewReplacer("*", "[*]", "?", "[?]", "[", "[[]")))
}

func (postgresDialect) like(s *statement, column string, g Glob) { likeEscaped(s, column, g) }

func (mysqlDialect) like(s *statement, column string, g Glob) { likeEscaped(s, column, g) }

// likeEscaped writes, with LIKE, that the column matches the glob, for PostgreSQL and MySQL.
func likeEscaped(s *statement, column string, g Glob) {
	s.sql(column + " LIKE ").arg(joined(g, "%", strings.NewReplacer("%", "!%", "_", "!_", "!", "!!"))).sql(" ESCAPE '!'")
}

func joined(g Glob, anything string, escape *strings.Replacer) string {
	pieces := make([]string, len(g))
	for i, piece := range g {
		pieces[i] = escape.Replace(piece)
	}
	return strings.Join(pieces, anything)
}
