package store

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Difference is an object that was created, changed or deleted since the moment that Compare was
// called for.
type Difference struct {
	Before, After *Row      // at the moment, and now; nil: it did not exist
	Changed       time.Time // time of its last change or deletion; zero: unknown
}

// Differences is a page of the objects that Compare found, sorted by cluster, namespace and name.
type Differences struct {
	Items    []Difference
	Continue string // for Query.Continue; "" on the last page
}

// compare does the work of Store.Compare. It reads the past and the present states in one snapshot.
// Past states come from revisions. Objects that were created since are found by the time at which
// the store first saw them.
func (d *database) compare(ctx context.Context, q Query) (out Differences, err error) {
	if q.Version != "" || q.OwnerUID != "" || q.Labels != nil && !q.Labels.Empty() || len(q.Fields) > 0 || q.OwnerName != "" || q.OwnerSteps != 0 || !q.Since.IsZero() || !q.Before.IsZero() || q.Offset != 0 || q.Order != ByKey {
		return out, fmt.Errorf("%w: differences are selected by cluster, namespace and name only", ErrSelector)
	}
	q.Labels = labels.Everything()
	after, err := parseContinue(q)
	if err != nil {
		return out, err
	}
	err = d.reading(ctx, schema.GroupResource{Group: q.Group, Resource: q.Resource}, func(r *reader) error {
		moment, err := r.since(q.At)
		if err != nil {
			return err
		}
		before, err := r.past(q, after, moment)
		if err != nil {
			return err
		}
		keys := make(map[position]*Row, len(before))
		found := make([]position, 0, len(before))
		add := func(p position, was *Row) {
			found = append(found, p)
			keys[p.key()] = was
		}
		for i := range before {
			add(before[i].at(), &before[i].Row)
		}
		made, err := r.made(q, after, moment)
		if err != nil {
			return err
		}
		for _, p := range made {
			if _, known := keys[p.key()]; !known { // if known, it replaced an object of that name
				add(p, nil)
			}
		}
		slices.SortFunc(found, ByKey.compare)
		if q.Limit > 0 && len(found) > q.Limit {
			found = found[:q.Limit]
			out.Continue = found[q.Limit-1].token(q)
		}
		for _, p := range found {
			one := Difference{Before: keys[p.key()]}
			if one.After, one.Changed, err = r.present(q, p); err != nil {
				return err
			}
			out.Items = append(out.Items, one)
		}
		return nil
	})
	if err != nil {
		return Differences{}, fmt.Errorf("compare %s with %s: %w", q.Resource, q.At.UTC().Format(time.RFC3339), err)
	}
	return out, nil
}

// key returns only the cluster, namespace and name of a position. Several objects that had the same
// name one after another have the same key.
func (p position) key() position {
	return position{Cluster: p.Cluster, Namespace: p.Namespace, Name: p.Name}
}

// made returns the positions of objects of the query that were created after a moment, in
// milliseconds. Of those after the position after, it returns the first ones, in no order: one more
// than the query's limit, and perhaps others.
func (r *reader) made(q Query, after position, moment int64) (out []position, err error) {
	err = each(r.ctx, r.tx, say(r.dialect, "SELECT o.id, o.cluster, o.namespace, o.name FROM object o WHERE o.type = ? AND o.made > ?"), func(rows *sql.Rows) error {
		row := Row{Group: q.Group, Resource: q.Resource}
		p := position{}
		if err := rows.Scan(&p.ID, &row.Cluster, &row.Namespace, &row.Name); err != nil {
			return err
		}
		p.Cluster, p.Namespace, p.Name = row.Cluster, row.Namespace, row.Name
		if r.shown(row.Cluster, r.kind) == "" || !q.reaches(&row) || after.Cluster != "" && ByKey.compare(after, p) >= 0 {
			return nil
		}
		if out = append(out, p); q.Limit > 0 && len(out) > 2*q.Limit+chunk {
			slices.SortFunc(out, ByKey.compare)
			out = out[:q.Limit+1]
		}
		return nil
	}, r.kind, moment)
	return out, err
}

// present returns the present object with the cluster, namespace and name of p, and the time at
// which its state began. If no such object exists, row is nil, and since is the time of the
// deletion, or zero if that time is unknown. q gives the type.
func (r *reader) present(q Query, p position) (row *Row, since time.Time, err error) {
	key := Row{Group: q.Group, Resource: q.Resource, Cluster: p.Cluster, Namespace: p.Namespace, Name: p.Name}
	if err := each(r.ctx, r.tx, say(r.dialect, "SELECT "+stateColumns(r.dialect)+` FROM object o JOIN body b ON b.object = o.id
		WHERE o.type = ? AND o.cluster = ? AND o.namespace = ? AND o.name = ?`), func(rows *sql.Rows) error {
		_, s, err := r.scanState(rows, func(int64) Row { return key })
		if err != nil {
			return err
		}
		row, since = &key, moment(s.since)
		err = unrecord(s.record, row)
		row.Note = ""
		return err
	}, r.kind, p.Cluster, p.Namespace, p.Name); err != nil || row != nil {
		return row, since, err
	}
	err = each(r.ctx, r.tx, say(r.dialect, `SELECT r.until FROM past p JOIN revision r ON r.id = p.ended
		WHERE p.type = ? AND p.cluster = ? AND p.namespace = ? AND p.name = ? AND p.ended > 0 ORDER BY p.ended DESC LIMIT 1`), func(rows *sql.Rows) error {
		var until int64
		err := rows.Scan(&until)
		since = moment(until)
		return err
	}, r.kind, p.Cluster, p.Namespace, p.Name)
	return nil, since, err
}
