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

// Object names the present or past objects with one key in a cluster: type, namespace and name.
// Several objects may have had the key one after another.
type Object struct {
	Cluster         string
	Resource        schema.GroupResource
	Namespace, Name string
}

// Revision is one past or present state of an object, from one change to the next. Times are those
// at which the store received the changes.
type Revision struct {
	Seq     int64     // sequence of the change that began it
	Since   time.Time // time of that change; zero: before there was a history
	Until   time.Time // time of its end; zero: it is the present state
	EndSeq  int64     // sequence of the change that ended it; 0: present state
	Deleted bool      // the state ended because the object was deleted
	Row     Row
}

// Revisions is a page of states of objects, with the epoch (the ID of the database) to which their
// sequences belong. Epoch is "" if no object of the type was ever stored. Next is the argument
// before for the next page; 0: this is the last page.
type Revisions struct {
	Epoch string
	Items []Revision
	Next  int64
}

// ObjectChange is one change of an object. Row has its key, UID and type, and no body.
type ObjectChange struct {
	Seq  int64
	Time time.Time
	Verb ChangeVerb
	Row  Row // key, UID and type; no body
}

// ChangeVerb is the kind of a change of an object: Created, Updated or Removed.
type ChangeVerb string

// Kinds of changes.
const (
	Created ChangeVerb = "Created"
	Updated ChangeVerb = "Updated"
	Removed ChangeVerb = "Deleted"
)

// Changes is a page of changes in an interval of time, with the epoch (the ID of the database) to
// which their sequences belong. Epoch is "" if no object of the type was ever stored. Next is the
// argument after for the next page; 0: this is the last page.
type Changes struct {
	Epoch string
	Items []ObjectChange
	Next  int64
}

// reader reads the history of one type in one snapshot of the database. The method reading creates
// it. It is valid only in that call and in one goroutine.
type reader struct {
	*database

	ctx  context.Context //nolint:containedctx // lives as long as one transaction
	tx   *sql.Tx
	kind int64 // number of the type
	from int64 // milliseconds; earlier moments are not completely known
	life int64 // milliseconds; states that ended earlier are too old to be kept
}

// reading calls f with a reader of the history of a type. The snapshot of the reader ends with the
// call. If no object of the type was ever stored, reading returns nil without a call of f. The
// error is an ErrNoHistory if no history is kept of the type, or the error of f.
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

// since returns the time t in milliseconds. It returns a TooOldError if the states at that time are
// not completely known any more.
func (r *reader) since(t time.Time) (int64, error) {
	if ms := t.UnixMilli(); ms >= r.from {
		return ms, nil
	}
	// Rounded up, since errors have seconds and the moment must be valid in a request.
	return 0, &TooOldError{time.UnixMilli(r.from).Add(time.Second - 1).Truncate(time.Second).UTC()}
}

// epochOf returns the epoch, the ID of the database, that the snapshot has.
func (r *reader) epochOf() (epoch string, err error) {
	err = r.tx.QueryRowContext(r.ctx, "SELECT id FROM epoch").Scan(&epoch)
	return epoch, err
}

// restore decodes a revision, a past state, and returns its record: header and body. Revisions are
// stored as differences to the next state. So restore begins at the next later revision that is
// stored whole, or else at the present state. of has the cluster, type, namespace and name of the
// object. object is the id of the object in the database, and id that of the revision. The error is
// that of a missing encryption key, or of a later state that is gone.
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

// listAt returns the page of a query at a moment of the past (q.At), after a position. The rows are
// objects that have not changed since, and revisions of that time. The error is an ErrNoHistory,
// which may be a TooOldError.
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

// rows compares two rows in the order. The result is negative if a comes before b, and positive if
// a comes after b.
func (o Order) rows(a, b found) int { return o.compare(a.at(), b.at()) }

// past returns the rows of a query that were in another state at a moment, in milliseconds, than
// now. Of those after the position after, it returns the first ones: one more than the query's
// limit, and perhaps others. In the order ByKey the result is sorted. In any other order it is not,
// and the caller sorts it.
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
				// The remaining rows may all come before these in the order, so only the first ones are kept.
				case len(out) > 2*q.Limit+chunk:
					slices.SortFunc(out, q.Order.rows)
					out = out[:q.Limit+1]
				}
			}
		}
	}
	return out, nil
}

// pastWithin calls f with up to chunk revisions of the type that were states of objects at the
// moment. within is a range that spans returned. The rows begin after the position after and the
// object with the id last, both from the previous call. last 0 begins after all objects of that
// position.
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

// mostPastSpans is the maximum number of ranges in the history that a query looks up one by one.
// With more, the whole history of the type is read.
const mostPastSpans = 1000

// spans returns ranges of keys that contain all results of a query, in order. A range is a cluster,
// a cluster and a namespace, or a cluster, a namespace and a name. One empty range means all keys.
// Without a range nothing is selected.
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

// reaches reports whether the query can select the object with the key of r. It compares Clusters,
// Namespaces, Names, NamePrefix, NameContains and Scopes, and no other requirement.
func (q Query) reaches(r *Row) bool {
	in := func(list []string, s string) bool { return len(list) == 0 || slices.Contains(list, s) }
	return in(q.Clusters, r.Cluster) && in(q.Namespaces, r.Namespace) && in(q.Names, r.Name) && strings.HasPrefix(r.Name, q.NamePrefix) &&
		!slices.ContainsFunc(q.NameContains, func(text string) bool { return !strings.Contains(r.Name, text) }) &&
		(q.Scopes == nil || slices.Contains(q.Scopes[r.Cluster], r.Namespace))
}

// Selects reports whether the query selects a row, as the database would. If r has no body,
// requirements on data that r lacks count as satisfied. Selects ignores OwnerName, OwnerSteps, the
// moment and the page. If a requirement on a field is invalid, or the body cannot be read, the
// result is false. Search uses it for events of watches, and for objects that it reads from a
// cluster.
func (q Query) Selects(r *Row) bool {
	if r.Body == nil {
		q.Version, q.OwnerUID, q.Since, q.Before = "", "", time.Time{}, time.Time{}
		q.Fields = slices.DeleteFunc(slices.Clone(q.Fields), func(f FieldRequirement) bool {
			return f.Path != "metadata.name" && f.Path != "metadata.namespace"
		})
	}
	return q.selects(r)
}

// selects does the work of Selects for a row with all data.
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

// searched decodes r.Body into body, as far as requirements on fields may read it. Of a Secret that
// is only the metadata. Numbers are json.Number. The error is that of invalid JSON.
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

// holds reports whether a condition that compileField returned holds for a row. It evaluates
// columnIn and termIs, and is false for other conditions.
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

// revisions returns a page of the states of the objects with a key: the present state first, then
// past ones from the latest on. It does the work of Store.Revisions.
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

// revision returns the state of an object that began with the change seq, with its body. It does
// the work of Store.Revision.
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

// deleted returns a page of deleted objects that the query selects, with their last bodies. It does
// the work of Store.Deleted.
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

// changed returns a page of the changes between two times. It does the work of Store.Changed.
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
				// A change may delete an object and create another one of the same name. Both have the same
				// sequence, and belong to one page.
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

// changeSources are the three statements that together find all changes of a type in an interval of
// time and after a sequence. The first one finds past states, whose end is an update or a deletion;
// it has no verb. The other two find the creation of objects whose first state is past, or still
// present.
var changeSources = []struct {
	verb ChangeVerb
	text string
}{
	// The index of sequences must not be read first, because that reads the changes of all types. Nor
	// may the index of objects with a history.
	{"", `SELECT r.id, r.until, p.cluster, p.namespace, p.name, p.uid, p.ended FROM revision r CROSS JOIN past p
		WHERE p.id = r.object AND p.type = ? AND r.until > ? AND r.until <= ? AND +r.id > ? ORDER BY r.id LIMIT ?`},
	{Created, `SELECT r.began, r.since, p.cluster, p.namespace, p.name, p.uid, 0 FROM revision r CROSS JOIN past p
		WHERE p.id = r.object AND p.type = ? AND r.until > ? AND r.since <= ? AND r.began = r.object AND r.began > ? ORDER BY r.began LIMIT ?`},
	{Created, `SELECT o.began, o.made, o.cluster, o.namespace, o.name, o.uid, 0 FROM object o
		WHERE o.type = ? AND o.made > ? AND o.made <= ? AND o.began = o.id AND o.began > ? ORDER BY o.began LIMIT ?`},
}

// changes returns up to chunk or more next changes of the type after the sequence after, in order.
// It does not filter them by cluster or name; the caller does. from and to limit the time, in
// milliseconds. next is the argument after of the next call; 0: there are no more changes. q gives
// the type.
func (r *reader) changes(q Query, from, to, after int64) (out []ObjectChange, next int64, err error) {
	const all = 1 << 62
	// All sources were read up to this sequence.
	until := int64(all)
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
			// The first state may have begun before the interval.
			if at > from {
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
