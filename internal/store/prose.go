package store

import (
	"cmp"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"orrery.dev/orrery/internal/words"
)

// FullText requires that an object has one of the phrases or, with Not, none of them.
type FullText struct {
	Any []words.Phrase
	Not bool
}

func (t FullText) holds(text string) bool {
	return slices.ContainsFunc(t.Any, func(p words.Phrase) bool { return p.In(text) }) != t.Not
}

// proseHas is the condition for a FullText.
type proseHas FullText

// write searches the words of the object by its id.
func (c proseHas) write(s *statement) {
	if c.Not {
		s.sql("NOT ")
	}
	s.sql("EXISTS (SELECT 1 FROM prose w WHERE w.object = o.id AND (")
	for i, p := range c.Any {
		if i > 0 {
			s.sql(" OR ")
		}
		s.dialect.has(s, "w.words", p.Piece())
	}
	s.sql("))")
}

// fewProse is the maximum number of objects for which the index of words leads. With more,
// reading in the order of the page likely finds enough of them sooner.
const fewProse = 5000

// Maximum number of words of a phrase, and of clauses, for which an index is used.
const (
	mostOfPhrase = 4
	mostClauses  = 8
)

// clauses returns words that every matching object has, one of each clause. For a phrase these
// are the words with the greatest reach, and then the longest.
func clauses(texts []FullText, reach map[string]int64) (out [][]words.Word) {
	for _, t := range texts {
		switch {
		case t.Not:
		case len(t.Any) == 1:
			of := t.Any[0].Words()
			slices.SortStableFunc(of, func(a, b words.Word) int { return cmp.Compare(reach[b.Text], reach[a.Text]) })
			for _, w := range of[:min(len(of), mostOfPhrase)] {
				out = append(out, []words.Word{w})
			}
		default:
			clause := make([]words.Word, len(t.Any))
			for i, p := range t.Any {
				clause[i] = p.Words()[0]
			}
			out = append(out, clause)
		}
	}
	return out[:min(len(out), mostClauses)]
}

// fewOfWord is the maximum number of objects, of any type, for which a word leads by itself.
// mostRare is the number of words that are tried.
const (
	fewOfWord = 1000
	mostRare  = 8
)

// rareWords returns words that every selected object has, since one of them may be rare: those of
// phrases, and complete words within parts of names, if the type indexes names. The rare ones are
// not known in advance.
func rareWords(p *plan) (out []words.Word) {
	add := func(some []words.Word) {
		for _, one := range some {
			if !one.Prefix && !slices.Contains(out, one) {
				out = append(out, one)
			}
		}
	}
	for _, t := range p.texts {
		if !t.Not && len(t.Any) == 1 {
			add(t.Any[0].Words())
		}
	}
	if p.worded {
		for _, text := range p.contains {
			add(words.Inside(text))
		}
	}
	return out[:min(len(out), mostRare)]
}

// joinClauses returns clauses as a text in the syntax of SQLite and PostgreSQL, to follow another
// condition.
func joinClauses(clauses [][]words.Word, and, or, quote, prefixed string) string {
	var out strings.Builder
	for _, clause := range clauses {
		for i, one := range clause {
			out.WriteString(map[bool]string{true: and + "(", false: or}[i == 0] + quote + one.Text + map[bool]string{true: prefixed, false: quote}[one.Prefix])
		}
		out.WriteByte(')')
	}
	return out.String()
}

// proseKind returns a word that only objects of one type have, so that the index finds only
// these.
func proseKind(kind int64) string { return "_" + strconv.FormatInt(kind, 10) }

// prose is a change of the words of an object.
type prose struct {
	kind, id int64
	text     string // "": they are deleted
	fresh    bool   // there were none before
}

// prosaic adds the change of the words of an object. Objects with an unchanged fingerprint, as in
// most changes, are skipped.
func (out *outgoing) prosaic(p place, o *object, fingerprint int64, source words.Source) {
	if fingerprint == o.prose {
		return
	}
	one := prose{kind: p.kind, id: o.id, fresh: o.prose == 0}
	if fingerprint != 0 {
		one.text = " " + proseKind(p.kind) + source.Text()
	}
	out.prose = append(out.prose, one)
}

// putProse writes the words of objects.
func (w *writer) putProse(changed []prose) error {
	var put, drop, known [][]any
	before := map[int64][]string{}
	for _, one := range changed {
		if !one.fresh {
			known = append(known, []any{one.id})
		}
		if one.text == "" {
			drop = append(drop, []any{one.id})
		} else {
			put = append(put, []any{one.id, one.text})
		}
	}
	inverts := w.dialect.inverts()
	if inverts {
		if err := w.batches.recallProse.run(w.ctx, w.tx, known, func(rows *sql.Rows) error {
			var id int64
			var text string
			err := rows.Scan(&id, &text)
			before[id] = wordsOf(text)
			return err
		}); err != nil {
			return fmt.Errorf("read words: %w", err)
		}
	}
	if err := w.batches.dropProse.run(w.ctx, w.tx, drop, nil); err != nil {
		return err
	}
	if err := w.batches.putProse.run(w.ctx, w.tx, put, nil); err != nil || !inverts {
		return err
	}
	var putWord, dropWord [][]any
	for _, one := range changed {
		had, has := before[one.id], wordsOf(one.text)
		for _, word := range had {
			if _, ok := slices.BinarySearch(has, word); !ok {
				dropWord = append(dropWord, []any{one.kind, word, one.id})
			}
		}
		for _, word := range has {
			if _, ok := slices.BinarySearch(had, word); !ok {
				putWord = append(putWord, []any{one.kind, word, one.id})
			}
		}
	}
	if err := w.batches.dropWord.run(w.ctx, w.tx, dropWord, nil); err != nil {
		return err
	}
	return w.batches.putWord.run(w.ctx, w.tx, putWord, nil)
}

// wordsOf returns the sorted, distinct words of a stored text, without that of the type. Other
// words have no underscore, or two of each.
func wordsOf(text string) []string {
	return slices.DeleteFunc(words.Distinct(text), func(word string) bool { return strings.Count(word, "_") == 1 })
}
