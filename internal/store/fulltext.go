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

// FullText is a requirement of a query on the words of an object: it has one of the phrases or,
// with Not, none of them. There must be at least one phrase.
type FullText struct {
	Any []words.Phrase
	Not bool
}

// holds reports whether the text of an object, from words.Source.Text, satisfies the requirement.
func (t FullText) holds(text string) bool {
	return slices.ContainsFunc(t.Any, func(p words.Phrase) bool { return p.In(text) }) != t.Not
}

// hasFullText is the condition of a plan that an object satisfies a FullText.
type hasFullText FullText

// write appends a condition that reads the stored text of the object, and searches the phrases in
// it.
func (c hasFullText) write(s *statement) {
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

// fewFullText is the maximum number of objects that the index of words may find, so that the plan
// reads exactly these. With more, reading in the order of the page likely fills the page sooner.
const fewFullText = 5000

// Maximum number of words of a phrase, and of clauses, for which an index is used.
const (
	mostOfPhrase = 4
	mostClauses  = 8
)

// clauses returns up to mostClauses clauses for the index of words. A clause is a list of words,
// one of which every matching object has. Requirements with Not have no clauses. Of a requirement
// with several phrases, the clause has the first word of each. Of a single phrase, the mostOfPhrase
// rarest words are clauses of one word; reach has their rarity, as probe measured it.
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

// fewOfWord is the maximum number of objects with a word, of any type, for which the plan reads
// only these objects. mostRare is the number of words that probe tries.
const (
	fewOfWord = 1000
	mostRare  = 8
)

// rareWords returns up to mostRare words that every object of the plan has. probe tries each of
// them, because one may be so rare that its index entry has few objects. They are words of phrases
// and, if names of the type are indexed, complete words in p.contains.
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

// joinClauses returns clauses as text of a full text query in SQLite or PostgreSQL, after another
// condition of the query. The operators are in the arguments and, or. Each word begins with quote
// and ends with quote. A word that is only a prefix ends with prefixed instead.
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

// kindWord returns a word that the text of every object of one type has, and no other object. With
// it, a search in the index of words finds only objects of the type.
func kindWord(kind int64) string { return "_" + strconv.FormatInt(kind, 10) }

// fullTextChange is a change of the stored words of one object. An empty text deletes the words.
// fresh means that no words were stored before.
type fullTextChange struct {
	kind, id int64
	text     string // "": they are deleted
	fresh    bool   // there were none before
}

// addFullText adds the new words of an object to the rows to write, if their fingerprint differs
// from the stored one. Most changes of an object leave it the same. The fingerprint 0 deletes the
// words.
func (out *outgoing) addFullText(p place, o *object, fingerprint int64, source words.Source) {
	if fingerprint == o.fingerprint {
		return
	}
	one := fullTextChange{kind: p.kind, id: o.id, fresh: o.fingerprint == 0}
	if fingerprint != 0 {
		one.text = " " + kindWord(p.kind) + source.Text()
	}
	out.fullText = append(out.fullText, one)
}

// putFullText writes the changed words of objects and, if dialect.inverts is true, the rows of the
// table word.
func (w *writer) putFullText(changed []fullTextChange) error {
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
		if err := w.batches.recallFullText.run(w.ctx, w.tx, known, func(rows *sql.Rows) error {
			var id int64
			var text string
			err := rows.Scan(&id, &text)
			before[id] = wordsOf(text)
			return err
		}); err != nil {
			return fmt.Errorf("read words: %w", err)
		}
	}
	if err := w.batches.dropFullText.run(w.ctx, w.tx, drop, nil); err != nil {
		return err
	}
	if err := w.batches.putFullText.run(w.ctx, w.tx, put, nil); err != nil || !inverts {
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

// wordsOf returns the distinct words of a stored text, sorted, for the table word. The word of the
// type (kindWord) is left out: it alone has exactly one underscore.
func wordsOf(text string) []string {
	return slices.DeleteFunc(words.Distinct(text), func(word string) bool { return strings.Count(word, "_") == 1 })
}
