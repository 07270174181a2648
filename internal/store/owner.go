package store

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Limits of a query.
const (
	MostOwnerSteps = 10
	MostOffset     = 1_000_000
	mostOwners     = 10_000 // number of objects in a step of a chain of owners
	mostNeedles    = 10     // texts in NameContains
	// mostValues is the maximum number of values of a requirement on a field without an index. Each
	// value is compared with each body.
	mostValues = 500
	// fewCandidates is the maximum number of objects that an index may find, so that the plan reads
	// exactly these and sorts them. If the index finds more, reading in the order of the page soon
	// fills the page.
	fewCandidates = 2000
	// fewSpanned is the maximum number of objects in the namespaces of a query for which their names
	// are compared one by one. With more, an index of names is tried, which covers all namespaces.
	fewSpanned = 10_000
)

// chained reports whether the owners of a query must be looked up first: the owner is given by
// name, or is an indirect owner.
func (q Query) chained() bool { return q.OwnerName != "" || q.OwnerSteps > 0 }

// check returns an ErrSelector for a query with invalid names, times, offset, order or owner. It
// does not check labels and fields. compile calls it.
func (q Query) check() error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", ErrSelector, fmt.Sprintf(format, args...))
	}
	wrong := func(text string) bool { return !utf8.ValidString(text) || strings.Contains(text, "\x00") }
	switch {
	case !q.Order.valid():
		return refuse("there is no order %d", q.Order)
	case wrong(q.NamePrefix):
		return refuse("no name begins with %q", q.NamePrefix)
	case len(q.NameContains) > mostNeedles:
		return refuse("names are to have %d texts in them, and at most %d can be looked for", len(q.NameContains), mostNeedles)
	case slices.ContainsFunc(q.NameContains, func(text string) bool { return text == "" || len(text) > 253 || wrong(text) }):
		return refuse("what is looked for in names must be text of 1 to 253 bytes")
	case !q.Since.IsZero() && q.Since.Unix() <= 0 || !q.Before.IsZero() && q.Before.Unix() <= 0:
		return refuse("nothing was created before 1970")
	case q.Offset < 0 || q.Offset > MostOffset:
		return refuse("offset %d: it must be from 0 to %d; go on with continue", q.Offset, MostOffset)
	case q.Offset > 0 && (q.Continue != "" || !q.At.IsZero()):
		return refuse("an offset goes with neither continue nor a moment: go on with continue alone")
	case q.OwnerSteps < 0 || q.OwnerSteps > MostOwnerSteps:
		return refuse("%d owners between: it must be from 0 to %d", q.OwnerSteps, MostOwnerSteps)
	case q.OwnerSteps > 0 && q.OwnerUID == "" && q.OwnerName == "":
		return refuse("owners between nobody and what they own: name the owner by UID, or by name and type")
	case q.OwnerName != "" && q.OwnerUID != "":
		return refuse("an owner by UID and by name: say one of them")
	case q.OwnerName != "" && q.OwnerResource.Resource == "":
		return refuse("owner %q has no type", q.OwnerName)
	case q.chained() && len(q.Clusters) != 1:
		return refuse("owners are looked for within one cluster: name it")
	case q.chained() && !q.At.IsZero():
		return refuse("owners of a moment are not known: ask for the owner's UID alone")
	}
	return nil
}

// owners returns the UIDs of the objects that may own the results of a query. Without OwnerSteps,
// these are the owner. With OwnerSteps, these are the objects so many steps below the owner in the
// chain of owners. If no owner exists, the result is empty. It searches only in the query's only
// cluster: in the selected namespaces, and among cluster-scoped objects. More than mostOwners in
// one step are an ErrSelector.
func (d *database) owners(ctx context.Context, db querier, q Query) (uids []string, err error) {
	within := func(s *statement) {
		s.sql(" AND o.cluster = ").arg(q.Clusters[0])
		var namespaces []string
		switch {
		case q.Scopes != nil:
			namespaces = slices.Clone(q.Scopes[q.Clusters[0]])
		case len(q.Namespaces) > 0:
			namespaces = slices.Clone(q.Namespaces)
		default:
			return
		}
		s.sql(" AND ")
		d.dialect.in(s, "o.namespace", append(namespaces, ""))
	}
	read := func(s *statement) ([]string, error) {
		var out []string
		s.sql(" LIMIT ").arg(mostOwners + 1)
		if err := s.fits(); err != nil {
			return nil, err
		}
		if err := each(ctx, db, s.text.String(), func(rows *sql.Rows) error {
			var uid string
			err := rows.Scan(&uid)
			out = append(out, uid)
			return err
		}, s.args...); err != nil {
			return nil, fmt.Errorf("look for owners: %w", err)
		}
		if len(out) > mostOwners {
			return nil, fmt.Errorf("%w: there are more than %d owners between: name one that is nearer to what it owns, or namespaces", ErrSelector, mostOwners)
		}
		return slices.DeleteFunc(out, func(uid string) bool { return uid == "" }), nil
	}
	if uids = []string{string(q.OwnerUID)}; q.OwnerUID == "" {
		s := &statement{dialect: d.dialect}
		s.sql("SELECT o.uid FROM object o WHERE o.type = ").arg(d.kind(groupResource{q.OwnerResource.Group, q.OwnerResource.Resource})).sql(" AND o.name = ").arg(q.OwnerName)
		within(s)
		if uids, err = read(s); err != nil {
			return nil, err
		}
	}
	for range q.OwnerSteps {
		if len(uids) == 0 {
			return nil, nil
		}
		s := &statement{dialect: d.dialect}
		s.sql("SELECT o.uid FROM object o WHERE o.owner <> '' AND ")
		d.dialect.in(s, "o.owner", uids)
		within(s)
		if uids, err = read(s); err != nil {
			return nil, err
		}
	}
	return uids, nil
}

// probe looks for an index that finds few objects for the plan. It queries the indexes of names,
// label keys, words and creation times, the cheapest first, until one finds few. It then sets
// p.candidates to the ids or, for creation times, only p.recent. An empty p.candidates means that
// nothing matches. nil means that no index of names, label keys or words found few objects.
func (d *database) probe(ctx context.Context, db querier, p *plan) error {
	if p.owners != nil || p.name != "" {
		return nil // an owner or a name leads to few objects
	}
	if namesIn(p) {
		if n, err := d.spanned(ctx, db, p); err != nil || n <= fewSpanned {
			return err // reading these namespaces is faster than an index of all of them
		}
	}
	lead := func(s *statement, most int) (found []int64, ok bool, err error) {
		if found, err = d.few(ctx, db, s, most); err == nil && len(found) <= most {
			slices.Sort(found)
			p.candidates = slices.Compact(found)
			return found, true, nil
		}
		return found, false, err
	}
	if p.prefix != "" && p.order != ByName && !p.order.reverse(ByName) {
		s := &statement{dialect: d.dialect}
		s.sql("SELECT o.id FROM " + d.dialect.named() + " WHERE o.type = ").arg(p.kind).sql(" AND ")
		prefixed(p.prefix).write(s)
		if _, ok, err := lead(s, fewCandidates); ok || err != nil {
			return err
		}
	}
	for _, key := range labelKeys(p) {
		if _, ok, err := lead(d.labelled(p.kind, key), fewCandidates); ok || err != nil {
			return err
		}
	}
	// For the same number of objects with a word, the greatest id shows how far the index was read. A
	// greater id means a rarer word.
	reach := map[string]int64{}
	for _, word := range rareWords(p) {
		s := &statement{dialect: d.dialect}
		if !d.dialect.word(s, p.kind, word) {
			break
		}
		found, ok, err := lead(s, fewOfWord)
		if ok || err != nil {
			return err
		}
		reach[word.Text] = found[len(found)-1]
	}
	if s := (&statement{dialect: d.dialect}); len(p.contains) > 0 && d.dialect.grams(s, p.kind, p.contains) {
		if _, ok, err := lead(s, fewCandidates); ok || err != nil {
			return err
		}
	}
	if of := clauses(p.texts, reach); len(of) > 0 {
		s := &statement{dialect: d.dialect}
		d.dialect.fullText(s, p.kind, of)
		if _, ok, err := lead(s, fewFullText); ok || err != nil {
			return err
		}
	}
	if p.pair == nil && (p.since != 0 || p.until != 0) && p.order != Newest && p.order != Oldest {
		s := &statement{dialect: d.dialect}
		s.sql("SELECT o.id FROM object o WHERE o.type = ").arg(p.kind).sql(" AND ")
		createdIn{p.since, p.until}.write(s)
		found, err := d.few(ctx, db, s, fewCandidates)
		if err != nil {
			return err
		}
		p.recent = len(found) <= fewCandidates
	}
	return nil
}

// namesIn reports whether the plan looks for a part of a name in few namespaces. Reading their
// names may then be faster than an index for all namespaces.
func namesIn(p *plan) bool {
	return p.narrow && len(p.spans) <= fewSpans && len(p.texts) == 0 && (p.prefix != "" || len(p.contains) > 0)
}

// labelKeys returns the keys of labels that every object of the plan has, with any value. Their
// index may find few objects. It returns none if the plan has a label or field with a value
// (p.pair), whose index leads.
func labelKeys(p *plan) (keys []string) {
	if p.pair != nil {
		return nil
	}
	for _, c := range p.where {
		if set, ok := c.(labelSet); ok && !set.not {
			keys = append(keys, set.key)
		}
	}
	return keys
}

// spanned returns the number of objects of the plan's type in the plan's namespaces. It reads the
// counters of the table tally, not the objects.
func (d *database) spanned(ctx context.Context, db querier, p *plan) (n int64, err error) {
	whole := make([]span, len(p.spans)) // without the positions of pages
	for i, one := range p.spans {
		whole[i] = span{cluster: one.cluster, namespace: one.namespace}
	}
	s := &statement{dialect: d.dialect}
	d.dialect.count(s, &plan{kind: p.kind, index: byTally, spans: whole, narrow: true, leads: true, counting: true, shunned: p.shunned})
	if err := s.fits(); err != nil {
		return 0, err
	}
	if err := each(ctx, db, s.text.String(), func(rows *sql.Rows) error { return rows.Scan(&n) }, s.args...); err != nil {
		return 0, fmt.Errorf("count what is in namespaces: %w", err)
	}
	return n, nil
}

// few runs a statement and returns the ids that it finds, at most one more than most. So more than
// most ids mean that there are too many. The result is not nil unless there is an error. few adds
// the LIMIT to the statement.
func (d *database) few(ctx context.Context, db querier, s *statement, most int) (ids []int64, err error) {
	s.sql(" LIMIT ").arg(most + 1)
	if err := s.fits(); err != nil {
		return nil, err
	}
	ids = []int64{}
	if err := each(ctx, db, s.text.String(), func(rows *sql.Rows) error {
		var id int64
		err := rows.Scan(&id)
		ids = append(ids, id)
		return err
	}, s.args...); err != nil {
		return nil, fmt.Errorf("look for candidates: %w", err)
	}
	return ids, nil
}

// seconds returns a time in Unix seconds, as the database stores it, and 0 for the zero time.
func seconds(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.Unix()
}

// created reports whether the creation time of r is q.Since or later, and before q.Before. The
// comparison is to the second. A row without a creation time satisfies Before, but not Since.
func (q Query) created(r *Row) bool {
	return (q.Since.IsZero() || !r.Created.IsZero() && r.Created.Unix() >= q.Since.Unix()) &&
		(q.Before.IsZero() || r.Created.IsZero() || r.Created.Unix() < q.Before.Unix())
}

// Owned returns which types of objects each of the owners has in a cluster, by the UID of the
// owner. It counts objects whose OwnerUID is that UID. Owners without objects are left out, and so
// is the empty UID. Owned ignores the visibility of the caller and pending deletions. The caller
// must use a Query, which respects them, before it shows the objects.
func (s *Store) Owned(ctx context.Context, cluster string, owners []types.UID) (out map[types.UID][]schema.GroupResource, err error) {
	err = s.do(ctx, func(d *database) error {
		out, err = d.owned(ctx, cluster, owners)
		return err
	})
	return out, err
}

func (d *database) owned(ctx context.Context, cluster string, owners []types.UID) (map[types.UID][]schema.GroupResource, error) {
	out := map[types.UID][]schema.GroupResource{}
	uids := make([]string, 0, len(owners))
	for _, uid := range owners {
		if uid != "" {
			uids = append(uids, string(uid))
		}
	}
	for some := range slices.Chunk(uids, mostValues) {
		s := &statement{dialect: d.dialect}
		s.sql("SELECT DISTINCT o.owner, o.type FROM object o WHERE o.owner <> '' AND ")
		d.dialect.in(s, "o.owner", some)
		s.sql(" AND o.cluster = ").arg(cluster)
		if err := s.fits(); err != nil {
			return nil, err
		}
		if err := each(ctx, d.read, s.text.String(), func(rows *sql.Rows) error {
			var uid string
			var kind int64
			if err := rows.Scan(&uid, &kind); err != nil {
				return err
			}
			out[types.UID(uid)] = append(out[types.UID(uid)], d.gr(kind))
			return nil
		}, s.args...); err != nil {
			return nil, fmt.Errorf("look for what is owned: %w", err)
		}
	}
	return out, nil
}
