package store

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Pattern is a requirement on the name or the namespace of an object: that it is one of the globs or, with Not, none of them.
type Pattern struct {
	Namespace bool // of the namespace, not of the name
	Globs     []Glob
	Not       bool
}

// Glob is texts between which anything may stand: one alone is the whole text.
type Glob []string

// Matches says whether a text is of the glob.
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

// Slim are requirements on what is known of an object without its body. The zero value has none.
type Slim struct {
	Patterns []Pattern
	// Mentions are texts of each of which one must be somewhere in the values of the declared fields, which are written as
	// Mention writes them. It leaves out much that cannot have a value, and is no answer by itself to whether an object has it.
	Mentions [][]string
	// CreatedFrom and CreatedBefore are when objects were created, to the second; zero: whenever.
	CreatedFrom, CreatedBefore time.Time
	Texts                      []FullText
}

// Mention writes a part of a value, or with whole a whole one, as declared fields have it.
func Mention(text string, whole bool) string {
	quoted := list(text)
	if whole {
		return quoted
	}
	return quoted[1 : len(quoted)-1]
}

type (
	// globs holds if a column is of one of the globs; with not, of none.
	globs struct {
		column string
		of     []Glob
		not    bool
	}
	// createdBetween holds if the object was created at a second or later, and before another; 0: whenever.
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

// selects says whether the requirements hold for a row.
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

// like: GLOB compares bytes, which LIKE of SQLite does not.
func (sqliteDialect) like(s *statement, column string, g Glob) {
	s.sql(column + " GLOB ").arg(joined(g, "*", strings.NewReplacer("*", "[*]", "?", "[?]", "[", "[[]")))
}

func (postgresDialect) like(s *statement, column string, g Glob) { likeEscaped(s, column, g) }

func (mysqlDialect) like(s *statement, column string, g Glob) { likeEscaped(s, column, g) }

// likeEscaped is what PostgreSQL and MySQL have in common.
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
