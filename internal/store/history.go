package store

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Object is the name of present or past objects in a cluster.
type Object struct {
	Cluster         string
	Resource        schema.GroupResource
	Namespace, Name string
}

// Revision is one state of an object. Times are those at which the store received the changes.
type Revision struct {
	Seq     int64     // sequence of the change that began it
	Since   time.Time // time of that change; zero: before there was a history
	Until   time.Time // time of its end; zero: it is the present state
	EndSeq  int64     // sequence of the change that ended it; 0: present state
	Deleted bool      // the object was deleted at the end
	Row     Row
}

// Revisions is a page of states of objects, with the epoch of their sequences. Next is the
// argument before of the next page; 0: none.
type Revisions struct {
	Epoch string
	Items []Revision
	Next  int64
}

// ObjectChange is one change of an object.
type ObjectChange struct {
	Seq  int64
	Time time.Time
	Verb ChangeVerb
	Row  Row // key, UID and type; no body
}

// ChangeVerb is the kind of a change.
type ChangeVerb string

// Kinds of changes.
const (
	Created ChangeVerb = "Created"
	Updated ChangeVerb = "Updated"
	Removed ChangeVerb = "Deleted"
)

// Changes is a page of changes between two moments, with the epoch of their sequences. Next is
// the argument after of the next page; 0: none.
type Changes struct {
	Epoch string
	Items []ObjectChange
	Next  int64
}

// reader reads one snapshot of the database.
type reader struct {
	*database

	ctx  context.Context //nolint:containedctx // lives as long as one transaction
	tx   *sql.Tx
	kind int64
	from int64 // earlier moments are not completely known
	life int64 // states that ended earlier are not kept
}

// reading calls f with a snapshot of the history of a type. It does not call f if no object of
// the type was ever stored.
func (d *database) reading(ctx context.Context, gr schema.GroupResource, f func(*reader) error) (err error) {
	if !d.keeping.get().of(gr) {
		return fmt.Errorf("%w: none is kept of %s", ErrNoHistory, gr)
	}
	kind := d.kind(groupResource{gr.Group, gr.Resource})
	if kind == 0 {
		return nil
	}
	tx, err := d.read.BeginTx(ctx, d.dialect.snapshot())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rollback(d.dialect, tx)) }()
	r := &reader{database: d, ctx: ctx, tx: tx, kind: kind}
	if err := tx.QueryRowContext(ctx, "SELECT kept_from FROM epoch").Scan(&r.from); err != nil {
		return err
	}
	r.life = d.keeping.now().Add(-d.keeping.get().Time).UnixMilli()
	r.from = max(r.from, r.life)
	return f(r)
}

// since returns the moment in milliseconds, or an error if it is not completely known.
func (r *reader) since(t time.Time) (int64, error) {
	if ms := t.UnixMilli(); ms >= r.from {
		return ms, nil
	}
	// Rounded up, since errors have seconds and the moment must be valid in a request.
	return 0, &TooOldError{time.UnixMilli(r.from).Add(time.Second - 1).Truncate(time.Second).UTC()}
}

// epochOf returns the epoch of the snapshot.
func (r *reader) epochOf() (epoch string, err error) {
	err = r.tx.QueryRowContext(r.ctx, "SELECT id FROM epoch").Scan(&epoch)
	return epoch, err
}

// restore decodes the record of a revision. It starts from the next revision that stands alone,
// or from the present state.
func (r *reader) restore(of *Row, object, id int64) (out []byte, err error) {
	var chain [][]byte
	whole := false
	if err := each(r.ctx, r.tx, say(r.dialect, "SELECT id, whole, body FROM revision WHERE object = ? AND id >= ? ORDER BY id LIMIT ?"), func(rows *sql.Rows) error {
		var is int
		var id int64
		var body []byte
		if err := rows.Scan(&id, &is, &body); err != nil || whole {
			return err
		}
		if sealed(body) {
			if body, err = r.unseal(body, revisionIdentity(of, object, id)...); err != nil {
				return fmt.Errorf("a revision cannot be read: %w", err)
			}
		}
		chain, whole = append(chain, body), is != 0
		return nil
	}, object, id, wholeEvery+1); err != nil {
		return nil, err
	}
	var next []byte
	if !whole {
		if err := each(r.ctx, r.tx, "SELECT "+stateColumns(r.dialect)+" FROM object o JOIN body b ON b.object = o.id WHERE o.id = "+r.dialect.parameter(1), func(rows *sql.Rows) error {
			_, s, err := r.scanState(rows, func(int64) Row { return *of })
			if err == nil {
				next = s.record
			}
			return err
		}, object); err != nil {
			return nil, err
		}
		if next == nil {
			return nil, errors.New("a revision cannot be read: what follows it is gone")
		}
	}
	for _, one := range slices.Backward(chain) {
		if next, err = decompress(one, next); err != nil {
			return nil, fmt.Errorf("a revision cannot be read: %w", err)
		}
	}
	return next, nil
}

// listAt returns the page of a query at its moment: objects that have not changed since, and
// revisions of that time.
func (d *database) listAt(ctx context.Context, q Query, after position) (page Page, err error) {
	p, err := d.plan(ctx, d.read, q, after, false)
	if err != nil {
		return page, err
	}
	var rows []found
	err = d.reading(ctx, schema.GroupResource{Group: q.Group, Resource: q.Resource}, func(r *reader) error {
		moment, err := r.since(q.At)
		if err != nil {
			return err
		}
		if p != nil {
			if q.Limit > 0 {
				p.limit = q.Limit + 1
			}
			p.where = append(p.where, sinceAtMost{moment})
			if rows, err = d.page(ctx, r.tx, q, p); err != nil {
				return err
			}
		}
		past, err := r.past(q, after, moment)
		if err != nil {
			return err
		}
		rows = append(rows, past...)
		slices.SortFunc(rows, q.Order.rows)
		return nil
	})
	if err != nil {
		return Page{}, fmt.Errorf("list %s at %s: %w", q.Resource, q.At.UTC().Format(time.RFC3339), err)
	}
	return pageOf(rows, q), nil
}

// rows compares rows in an order.
func (o Order) rows(a, b found) int { return o.compare(a.at(), b.at()) }

// past returns the rows of a query that were in another state at a moment: the first ones after a
// position, one more than the query's limit, and perhaps others. It reads in the order of the
// key.
func (r *reader) past(q Query, after position, moment int64) (out []found, err error) {
	type candidate struct {
		object, id int64
		row        Row
	}
	begin := after
	if q.Order != ByKey {
		after = position{}
	}
	var last int64
	for _, within := range r.spans(q) {
		for n := chunk; n == chunk; {
			var some []candidate
			n = 0
			if err := r.pastWithin(within, after, last, moment, func(rows *sql.Rows) error {
				c := candidate{row: Row{Group: q.Group, Resource: q.Resource}}
				if err := rows.Scan(&c.object, &c.row.Cluster, &c.row.Namespace, &c.row.Name, &c.id, &c.row.Changed); err != nil {
					return err
				}
				n++
				last, after = c.object, position{Cluster: c.row.Cluster, Namespace: c.row.Namespace, Name: c.row.Name}
				if r.shown(c.row.Cluster, r.kind) != "" && q.reaches(&c.row) {
					some = append(some, c)
				}
				return nil
			}); err != nil {
				return nil, err
			}
			for _, c := range some {
				record, err := r.restore(&c.row, c.object, c.id)
				if err == nil {
					err = unrecord(record, &c.row)
				}
				if err != nil {
					return nil, fmt.Errorf("%s/%s of cluster %s: %w", c.row.Namespace, c.row.Name, c.row.Cluster, err)
				}
				c.row.Note = ""
				one := found{Row: c.row, id: c.object}
				if !q.selects(&c.row) || q.Order != ByKey && begin.Cluster != "" && q.Order.compare(begin, one.at()) >= 0 {
					continue
				}
				out = append(out, one)
				switch {
				case q.Limit <= 0:
				case q.Order == ByKey && len(out) > q.Limit:
					return out, nil
				case len(out) > 2*q.Limit+chunk: // the rows to come may all be before these
					slices.SortFunc(out, q.Order.rows)
					out = out[:q.Limit+1]
				}
			}
		}
	}
	return out, nil
}

// pastWithin calls f with the next chunk of past states at a moment, in a span, after a position
// and the id of its object.
func (r *reader) pastWithin(within []string, after position, last, moment int64, f func(*sql.Rows) error) error {
	args := []any{r.kind, after.Cluster, after.Cluster, after.Namespace, after.Name, cmp.Or(last, 1<<62), moment, moment}
	for _, part := range within {
		args = append(args, part)
	}
	return each(r.ctx, r.tx, say(r.dialect, `SELECT p.id, p.cluster, p.namespace, p.name, r.id, r.began FROM past p JOIN revision r ON r.object = p.id
		WHERE p.type = ? AND p.cluster >= ? AND (p.cluster, p.namespace, p.name, p.id) > (?, ?, ?, ?) AND r.since <= ? AND r.until > ?`+
		[]string{"", " AND p.cluster = ?", " AND p.cluster = ? AND p.namespace = ?", " AND p.cluster = ? AND p.namespace = ? AND p.name = ?"}[len(within)]+
		` ORDER BY p.cluster, p.namespace, p.name, p.id LIMIT ?`), f, append(args, chunk)...)
}

// mostPastSpans is the maximum number of ranges of the history that are looked up one by one.
// With more, the whole history is read.
const mostPastSpans = 1000

// spans returns the ranges of keys that contain all results of a query, in order. Each is a
// cluster, a cluster and namespace, or these and a name. A single empty range means everything.
func (r *reader) spans(q Query) (out [][]string) {
	clusters := slices.Clone(q.Clusters)
	if len(clusters)+len(q.Namespaces)+len(q.Names) == 0 && q.Scopes == nil {
		return [][]string{nil}
	}
	if len(clusters) == 0 {
		clusters, _ = r.names()
	}
	namespaces, names := slices.Clone(q.Namespaces), slices.Clone(q.Names)
	for _, list := range []*[]string{&clusters, &namespaces, &names} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	for _, cluster := range clusters {
		in := namespaces
		if q.Scopes != nil {
			in = slices.Sorted(slices.Values(q.Scopes[cluster]))
			if len(namespaces) > 0 {
				in = slices.DeleteFunc(in, func(namespace string) bool { return !slices.Contains(namespaces, namespace) })
			}
		}
		switch {
		case len(in) == 0 && q.Scopes == nil:
			out = append(out, []string{cluster})
		case len(names) == 0:
			for _, namespace := range in {
				out = append(out, []string{cluster, namespace})
			}
		default:
			for _, namespace := range in {
				for _, name := range names {
					out = append(out, []string{cluster, namespace, name})
				}
			}
		}
		if len(out) > mostPastSpans {
			return [][]string{nil}
		}
	}
	return out
}

// reaches reports whether a query can select a row with this key.
func (q Query) reaches(r *Row) bool {
	in := func(list []string, s string) bool { return len(list) == 0 || slices.Contains(list, s) }
	return in(q.Clusters, r.Cluster) && in(q.Namespaces, r.Namespace) && in(q.Names, r.Name) && strings.HasPrefix(r.Name, q.NamePrefix) &&
		!slices.ContainsFunc(q.NameContains, func(text string) bool { return !strings.Contains(r.Name, text) }) &&
		(q.Scopes == nil || slices.Contains(q.Scopes[r.Cluster], r.Namespace))
}

// Selects reports whether a query selects a row. For a row without a body, unknown parts count as
// matching.
func (q Query) Selects(r *Row) bool {
	if r.Body == nil {
		q.Version, q.OwnerUID, q.Since, q.Before = "", "", time.Time{}, time.Time{}
		q.Fields = slices.DeleteFunc(slices.Clone(q.Fields), func(f FieldRequirement) bool {
			return f.Path != "metadata.name" && f.Path != "metadata.namespace"
		})
	}
	return q.selects(r)
}

// selects reports whether a query selects a complete row.
func (q Query) selects(r *Row) bool {
	if q.Version != "" && q.Version != r.Version && !slices.Contains(q.Interchangeable, r.Version) || q.OwnerUID != "" && q.OwnerUID != r.OwnerUID ||
		q.Labels != nil && !q.Labels.Matches(labels.Set(r.Labels)) || !q.reaches(r) || !q.created(r) || !q.Slim.selects(q.resource(), r) {
		return false
	}
	var body map[string]any
	for _, f := range q.Fields {
		c, err := compileField(q.resource(), f)
		if err != nil {
			return false
		}
		if is, ok := c.(interface{ holds(body any) bool }); ok {
			if body == nil && r.searched(&body) != nil || !is.holds(body) {
				return false
			}
		} else if !holds(c, r) {
			return false
		}
	}
	return true
}

// searched decodes the part of a row's body that is searched, as in the database.
func (r *Row) searched(body *map[string]any) (err error) {
	text := r.Body
	if (schema.GroupResource{Group: r.Group, Resource: r.Resource}) == secrets {
		if text, _, err = onlyMetadata(r.Body); err != nil {
			return err
		}
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return d.Decode(body)
}

// holds reports whether a condition on a column or a declared field holds for a row.
func holds(c condition, r *Row) bool {
	switch c := c.(type) {
	case columnIn:
		value := r.Name
		if c.column == "o.namespace" {
			value = r.Namespace
		}
		return slices.Contains(c.values, value) != c.not
	case termIs:
		return slices.ContainsFunc(termsOf(groupResource{r.Group, r.Resource}, r.Body), func(t pair) bool { return t.key == c.key && slices.Contains(c.values, t.value) }) != c.not
	default:
		return false
	}
}

func moment(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

// revisions returns the states of an object: the present one first, then its revisions.
func (d *database) revisions(ctx context.Context, of Object, before int64, limit int) (out Revisions, err error) {
	err = d.reading(ctx, of.Resource, func(r *reader) error {
		if out.Epoch, err = r.epochOf(); err != nil {
			return err
		}
		if before == 0 {
			before = 1 << 62
		}
		if err := each(ctx, r.tx, say(d.dialect, `SELECT CASE o.began WHEN 0 THEN o.id ELSE o.began END, o.since, o.uid, o.rv FROM object o
			WHERE o.type = ? AND o.cluster = ? AND o.namespace = ? AND o.name = ?`), func(rows *sql.Rows) error {
			one := Revision{Row: of.row()}
			var since int64
			if err := rows.Scan(&one.Seq, &since, &one.Row.UID, &one.Row.ResourceVersion); err != nil {
				return err
			}
			if one.Since = moment(since); one.Seq < before {
				out.Items = append(out.Items, one)
			}
			return nil
		}, r.kind, d.shown(of.Cluster, r.kind), of.Namespace, of.Name); err != nil {
			return err
		}
		return each(ctx, r.tx, say(d.dialect, `SELECT r.id, r.began, r.since, r.until, r.rv, p.uid, p.ended FROM past p JOIN revision r ON r.object = p.id
			WHERE p.type = ? AND p.cluster = ? AND p.namespace = ? AND p.name = ? AND r.began < ? ORDER BY r.id DESC LIMIT ?`), func(rows *sql.Rows) error {
			one, err := scanRevision(rows, of.row())
			out.Items = append(out.Items, one)
			return err
		}, r.kind, d.shown(of.Cluster, r.kind), of.Namespace, of.Name, before, limit+1)
	})
	if err != nil {
		return Revisions{}, fmt.Errorf("read the history of %s %s/%s of cluster %s: %w", of.Resource, of.Namespace, of.Name, of.Cluster, err)
	}
	if len(out.Items) > limit {
		out.Items = out.Items[:limit]
		out.Next = out.Items[limit-1].Seq
	}
	return out, nil
}

func (o Object) row() Row {
	return Row{Cluster: o.Cluster, Group: o.Resource.Group, Resource: o.Resource.Resource, Namespace: o.Namespace, Name: o.Name}
}

func scanRevision(rows *sql.Rows, row Row) (Revision, error) {
	one := Revision{Row: row}
	var since, until, ended int64
	err := rows.Scan(&one.EndSeq, &one.Seq, &since, &until, &one.Row.ResourceVersion, &one.Row.UID, &ended)
	one.Since, one.Until, one.Deleted = moment(since), moment(until), ended == one.EndSeq
	return one, err
}

// revision returns one complete state of an object.
func (d *database) revision(ctx context.Context, of Object, seq int64) (out Revision, err error) {
	found := false
	err = d.reading(ctx, of.Resource, func(r *reader) error {
		var record []byte
		var object int64
		out = Revision{Row: of.row()}
		if err := each(ctx, r.tx, say(d.dialect, "SELECT "+stateColumns(d.dialect)+` FROM object o JOIN body b ON b.object = o.id
			WHERE o.type = ? AND o.cluster = ? AND o.namespace = ? AND o.name = ?`), func(rows *sql.Rows) error {
			_, s, err := d.scanState(rows, func(int64) Row { return of.row() })
			if err == nil && s.began == seq {
				record, out.Seq, out.Since = s.record, s.began, moment(s.since)
			}
			return err
		}, r.kind, d.shown(of.Cluster, r.kind), of.Namespace, of.Name); err != nil {
			return err
		}
		if record == nil {
			if err := each(ctx, r.tx, say(d.dialect, `SELECT r.id, r.began, r.since, r.until, r.rv, p.uid, p.ended, p.id FROM past p JOIN revision r ON r.object = p.id
				WHERE p.type = ? AND p.cluster = ? AND p.namespace = ? AND p.name = ? AND r.began = ?`), func(rows *sql.Rows) error {
				var since, until, ended int64
				err := rows.Scan(&out.EndSeq, &out.Seq, &since, &until, &out.Row.ResourceVersion, &out.Row.UID, &ended, &object)
				out.Since, out.Until, out.Deleted = moment(since), moment(until), ended == out.EndSeq
				return err
			}, r.kind, d.shown(of.Cluster, r.kind), of.Namespace, of.Name, seq); err != nil || object == 0 {
				return err
			}
			if record, err = r.restore(&out.Row, object, out.EndSeq); err != nil {
				return err
			}
		}
		found = true
		err := unrecord(record, &out.Row)
		out.Row.Note = ""
		return err
	})
	if err == nil && !found {
		err = fmt.Errorf("%w: revision %d is not kept", ErrNoHistory, seq)
	}
	if err != nil {
		return Revision{}, fmt.Errorf("read a revision of %s %s/%s of cluster %s: %w", of.Resource, of.Namespace, of.Name, of.Cluster, err)
	}
	return out, nil
}

// deleted returns deleted objects, with bodies.
func (d *database) deleted(ctx context.Context, q Query, hidden func(of *Row, ended time.Time) bool, before int64, limit int) (out Revisions, err error) {
	if _, err := compile(q); err != nil { // the query is invalid
		return out, err
	}
	err = d.reading(ctx, schema.GroupResource{Group: q.Group, Resource: q.Resource}, func(r *reader) error {
		if out.Epoch, err = r.epochOf(); err != nil {
			return err
		}
		if before == 0 {
			before = 1 << 62
		}
		for n := chunk; n == chunk; {
			n = 0
			var some []Revision
			var objects []int64
			if err := each(ctx, r.tx, say(d.dialect, `SELECT r.id, r.began, r.since, r.until, r.rv, p.uid, p.ended, p.id, p.cluster, p.namespace, p.name
				FROM past p JOIN revision r ON r.id = p.ended
				WHERE p.ended > 0 AND p.ended < ? AND p.type = ? ORDER BY p.ended DESC LIMIT ?`), func(rows *sql.Rows) error {
				one := Revision{Row: Row{Group: q.Group, Resource: q.Resource}, Deleted: true}
				var since, until, ended, object int64
				if err := rows.Scan(&one.EndSeq, &one.Seq, &since, &until, &one.Row.ResourceVersion, &one.Row.UID, &ended, &object,
					&one.Row.Cluster, &one.Row.Namespace, &one.Row.Name); err != nil {
					return err
				}
				n, before = n+1, one.EndSeq
				if one.Since, one.Until = moment(since), moment(until); r.shown(one.Row.Cluster, r.kind) != "" && until >= r.life && q.reaches(&one.Row) && (hidden == nil || !hidden(&one.Row, one.Until)) {
					some, objects = append(some, one), append(objects, object)
				}
				return nil
			}, before, r.kind, chunk); err != nil {
				return err
			}
			for i := range some {
				one := &some[i]
				record, err := r.restore(&one.Row, objects[i], one.EndSeq)
				if err == nil {
					err = unrecord(record, &one.Row)
				}
				if err != nil {
					return fmt.Errorf("%s/%s of cluster %s: %w", one.Row.Namespace, one.Row.Name, one.Row.Cluster, err)
				}
				if one.Row.Note = ""; !q.selects(&one.Row) {
					continue
				}
				if len(out.Items) == limit {
					out.Next = out.Items[limit-1].EndSeq
					return nil
				}
				out.Items = append(out.Items, *one)
			}
		}
		return nil
	})
	if err != nil {
		return Revisions{}, fmt.Errorf("list deleted %s: %w", q.Resource, err)
	}
	return out, nil
}

// changed returns the changes between two moments. Ends of states are in the revisions; creations
// are where the first state of an object is.
func (d *database) changed(ctx context.Context, q Query, from, to time.Time, after int64, limit int) (out Changes, err error) {
	if q.Version != "" || q.OwnerUID != "" || q.Labels != nil && !q.Labels.Empty() || len(q.Fields) > 0 {
		return out, fmt.Errorf("%w: changes are selected by cluster, namespace and name only", ErrSelector)
	}
	err = d.reading(ctx, schema.GroupResource{Group: q.Group, Resource: q.Resource}, func(r *reader) error {
		first, err := r.since(from)
		if err != nil {
			return err
		}
		if out.Epoch, err = r.epochOf(); err != nil {
			return err
		}
		for {
			some, next, err := r.changes(q, first, to.UnixMilli(), after)
			if err != nil {
				return err
			}
			for _, c := range some {
				if !q.reaches(&c.Row) || r.shown(c.Row.Cluster, r.kind) == "" {
					continue
				}
				// A change may delete an object and create another one of its name.
				if n := len(out.Items); n >= limit && out.Items[n-1].Seq != c.Seq {
					out.Next = out.Items[n-1].Seq
					return nil
				}
				out.Items = append(out.Items, c)
			}
			if next == 0 {
				return nil
			}
			after = next
		}
	})
	if err != nil {
		return Changes{}, fmt.Errorf("list changes of %s: %w", q.Resource, err)
	}
	return out, nil
}

// changeSources are the statements that find changes of a type, in an interval of time and after
// a sequence: ends of states, and creations of objects whose first state is past or present.
var changeSources = []struct {
	verb ChangeVerb
	text string
}{
	// The sequence must not lead: for most types that would read the changes of all types. Nor
	// may the objects with a history.
	{"", `SELECT r.id, r.until, p.cluster, p.namespace, p.name, p.uid, p.ended FROM revision r CROSS JOIN past p
		WHERE p.id = r.object AND p.type = ? AND r.until > ? AND r.until <= ? AND +r.id > ? ORDER BY r.id LIMIT ?`},
	{Created, `SELECT r.began, r.since, p.cluster, p.namespace, p.name, p.uid, 0 FROM revision r CROSS JOIN past p
		WHERE p.id = r.object AND p.type = ? AND r.until > ? AND r.since <= ? AND r.began = r.object AND r.began > ? ORDER BY r.began LIMIT ?`},
	{Created, `SELECT o.began, o.made, o.cluster, o.namespace, o.name, o.uid, 0 FROM object o
		WHERE o.type = ? AND o.made > ? AND o.made <= ? AND o.began = o.id AND o.began > ? ORDER BY o.began LIMIT ?`},
}

// changes returns the next changes after a sequence, in order. next is the sequence after which
// there are more; 0: none.
func (r *reader) changes(q Query, from, to, after int64) (out []ObjectChange, next int64, err error) {
	const all = 1 << 62
	until := int64(all) // up to this sequence all sources were read
	for _, source := range changeSources {
		n, last := 0, int64(0)
		if err := each(r.ctx, r.tx, say(r.dialect, source.text), func(rows *sql.Rows) error {
			c := ObjectChange{Verb: source.verb, Row: Row{Group: q.Group, Resource: q.Resource}}
			var at, ended int64
			if err := rows.Scan(&c.Seq, &at, &c.Row.Cluster, &c.Row.Namespace, &c.Row.Name, &c.Row.UID, &ended); err != nil {
				return err
			}
			switch {
			case c.Verb != "":
			case ended == c.Seq:
				c.Verb = Removed
			default:
				c.Verb = Updated
			}
			c.Time = moment(at)
			n, last = n+1, c.Seq
			if at > from { // the first state may have begun before the interval
				out = append(out, c)
			}
			return nil
		}, r.kind, from, to, after, chunk); err != nil {
			return nil, 0, err
		}
		if n == chunk {
			until = min(until, last)
		}
	}
	out = slices.DeleteFunc(out, func(c ObjectChange) bool { return c.Seq > until })
	slices.SortFunc(out, func(a, b ObjectChange) int { return cmp.Or(cmp.Compare(a.Seq, b.Seq), -cmp.Compare(a.Verb, b.Verb)) })
	if until == all {
		until = 0
	}
	return out, until, nil
}
