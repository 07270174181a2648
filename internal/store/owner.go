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
	// Values of a field without an index, each of which is compared with each body.
	mostValues = 500
	// fewCandidates is the maximum number of objects for which an index leads, and which are then
	// sorted. With more, at least one object in some hundreds matches, so reading in the order of
	// the page soon fills it.
	fewCandidates = 2000
	// fewSpanned is the number of objects in namespaces up to which their names are compared one
	// by one. The indexes of names cover all namespaces.
	fewSpanned = 10_000
)

// chained reports whether the owners of a query must be searched.
func (q Query) chained() bool { return q.OwnerName != "" || q.OwnerSteps > 0 }

// check returns an error for invalid queries.
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

// owners returns the UIDs of the direct owners for a query: those of the named owner, or of the
// objects the given steps below it. It searches only in the visible namespaces and among
// cluster-scoped objects.
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

// probe asks the indexes of names, words and times, the cheapest first, whether they find few
// objects. If so, these become the candidates, or recent is set.
func (d *database) probe(ctx context.Context, db querier, p *plan) error {
	if p.owners != nil || p.name != "" {
		return nil // they lead to few objects
	}
	if namesIn(p) {
		if n, err := d.spanned(ctx, db, p); err != nil || n <= fewSpanned {
			return err // these are read sooner than an index of all namespaces
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
	// How far the index was read for the same number of objects with a word: a greater id means a
	// rarer word.
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
		d.dialect.prose(s, p.kind, of)
		if _, ok, err := lead(s, fewProse); ok || err != nil {
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

// namesIn reports whether a plan searches a part of a name in few namespaces.
func namesIn(p *plan) bool {
	return p.narrow && len(p.spans) <= fewSpans && len(p.texts) == 0 && (p.prefix != "" || len(p.contains) > 0)
}

// labelKeys returns the label keys that every object of a plan has, and whose index may lead;
// none if a label with a value leads already.
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

// spanned returns the number of objects of the type in the namespaces of a plan.
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

// few returns the ids that a statement finds, at most one more than most.
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

// seconds returns a time in the format of objects; 0: none.
func seconds(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.Unix()
}

// created reports whether an object was created in the time that a query selects.
func (q Query) created(r *Row) bool {
	return (q.Since.IsZero() || !r.Created.IsZero() && r.Created.Unix() >= q.Since.Unix()) &&
		(q.Before.IsZero() || r.Created.IsZero() || r.Created.Unix() < q.Before.Unix())
}

// Owned returns, by owner, the types of objects in a cluster that have the owner's UID as
// OwnerUID. It ignores the caller's visibility. A Query must check that.
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
