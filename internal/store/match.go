package store

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Pattern requires that the name or the namespace of an object matches one of the globs or, with
// Not, none of them.
type Pattern struct {
	Namespace bool // applies to the namespace instead of the name
	Globs     []Glob
	Not       bool
}

// Glob is a list of texts with any characters between them. A single text must match completely.
type Glob []string

// Matches reports whether a text matches the glob.
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

// Slim has requirements that are evaluated without the body. The zero value has none.
type Slim struct {
	Patterns []Pattern
	// Mentions has lists of texts. Of each list, one text must occur in the values of the
	// declared fields, in the format of Mention. This excludes most objects without a value, but
	// does not prove that an object has the value.
	Mentions [][]string
	// CreatedFrom and CreatedBefore limit the creation time, to the second; zero: no bound.
	CreatedFrom, CreatedBefore time.Time
	Texts                      []FullText
}

// Mention returns the format in which declared fields store a part of a value, or with whole a
// complete value.
func Mention(text string, whole bool) string {
	quoted := list(text)
	if whole {
		return quoted
	}
	return quoted[1 : len(quoted)-1]
}

type (
	// globs holds if a column matches one of the globs; with not, if it matches none.
	globs struct {
		column string
		of     []Glob
		not    bool
	}
	// createdBetween holds if the object was created at from or later, and before before, in
	// seconds; 0: no bound.
	createdBetween struct{ from, before int64 }
)

// conditions translates the requirements.
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
		out = append(out, proseHas(t))
	}
	return out, err
}

func unix(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.Unix()
}

// selects reports whether a row satisfies the requirements.
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
		return true // no more is known
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

// like uses GLOB, which compares bytes. LIKE of SQLite does not.
func (sqliteDialect) like(s *statement, column string, g Glob) {
	s.sql(column + " GLOB ").arg(joined(g, "*", strings.NewReplacer("*", "[*]", "?", "[?]", "[", "[[]")))
}

func (postgresDialect) like(s *statement, column string, g Glob) { likeEscaped(s, column, g) }

func (mysqlDialect) like(s *statement, column string, g Glob) { likeEscaped(s, column, g) }

// likeEscaped is the implementation for PostgreSQL and MySQL.
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
