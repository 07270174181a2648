package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// A page far down a list is found without reading all rows before it, if the number of objects
// before it is known: for orders by cluster and namespace the number in each namespace, and for
// other orders the total. The rows are read from the nearer end.

// nearby is the offset of a page from which the rows before the page are counted. Before a nearer
// page they are read and skipped.
const nearby = 500

// mostPlaces is the maximum number of namespaces, in all clusters, whose objects are counted to
// find a page.
const mostPlaces = 200_000

// far reads the rows of a page that is far down a list (q.Offset), and one row more. It counts the
// objects before the page instead of reading them. ok is false if far is no help for this query, or
// there are too many namespaces. The caller then reads the rows as p describes.
func (d *database) far(ctx context.Context, q Query, p *plan) (rows []found, ok bool, err error) {
	if q.Limit == 0 || q.Continue != "" || q.Offset < d.nearby && !q.Order.spaced() || q.chained() || q.OwnerUID != "" {
		return nil, false, nil
	}
	plain := len(p.where) == 0
	var read func(db querier) ([]found, error)
	switch {
	case p.index == byCandidates, p.name != "", p.prefix != "":
		return nil, false, nil // few objects match, and all are read
	case q.Order.spaced() && (plain && q.Offset >= d.nearby || p.sorted && q.Order != ByKey && !q.Order.reverse(ByKey)):
		read = func(db querier) ([]found, error) { return d.byPlaces(ctx, db, q) }
	case plain && q.Offset >= d.nearby:
		read = func(db querier) ([]found, error) { return d.fromNearer(ctx, db, q) }
	default:
		return nil, false, nil
	}
	tx, err := d.read.BeginTx(ctx, d.dialect.snapshot()) // the counts and the rows must match
	if err != nil {
		return nil, false, fmt.Errorf("list %s: %w", q.Resource, err)
	}
	rows, err = read(tx)
	if errors.Is(err, ErrGroups) {
		return nil, false, rollback(d.dialect, tx)
	}
	return rows, true, errors.Join(err, rollback(d.dialect, tx))
}

// spaced reports whether the objects of a namespace are next to each other in the order: by cluster
// and namespace, or by namespace and cluster, and then by name.
func (o Order) spaced() bool {
	columns := o.columns()
	return len(columns) == 3 && columns[2].Name == "name"
}

// byPlaces reads the rows of a page, and one more, for an order that sorts by clusters and
// namespaces. It counts the objects of each namespace, and reads only the namespaces of the page. A
// cluster whose deletion is requested meanwhile is left out. db must be a snapshot. The error is an
// ErrGroups for more than mostPlaces namespaces.
func (d *database) byPlaces(ctx context.Context, db querier, q Query) (out []found, err error) {
	places, err := d.grouped(ctx, db, q, []By{{Column: "cluster"}, {Column: "namespace"}}, "", mostPlaces)
	if err != nil {
		return nil, err
	}
	columns := q.Order.columns()
	of := map[string]int{"cluster": 0, "namespace": 1}
	first, second := of[columns[0].Name], of[columns[1].Name]
	slices.SortFunc(places, func(a, b Group) int {
		return cmp.Or(columns[0].directed(strings.Compare(a.Values[first], b.Values[first])), columns[1].directed(strings.Compare(a.Values[second], b.Values[second])))
	})
	offset, wanted := int64(q.Offset), int64(q.Limit)+1
	for _, place := range places {
		if offset >= place.Objects {
			offset -= place.Objects
			continue
		}
		n := min(place.Objects-offset, wanted-int64(len(out)))
		one := q
		one.Clusters, one.Namespaces, one.Scopes, one.Order = place.Values[:1], place.Values[1:], nil, ByKey
		one.Offset, one.Limit = int(offset), int(n)
		if columns[2].Down { // from the end of the namespace
			one.Offset = int(place.Objects - offset - n)
		}
		p, err := d.plan(ctx, db, one, position{}, false)
		if err != nil {
			return nil, err
		}
		if p == nil { // the deletion of its cluster was requested after the count
			offset = 0
			continue
		}
		p.offset = one.Offset
		rows, err := d.page(ctx, db, one, p)
		if err != nil {
			return nil, err
		}
		if columns[2].Down {
			slices.Reverse(rows)
		}
		if out, offset = append(out, rows...), 0; int64(len(out)) >= wanted {
			break
		}
	}
	return out, nil
}

// directed negates the result of a comparison, such as that of cmp.Compare, if the column is
// descending.
func (c OrderColumn) directed(comparison int) int {
	if c.Down {
		return -comparison
	}
	return comparison
}

// fromNearer reads the rows of a page, and one more, for an order with an index. It counts all
// rows, and reads from the beginning or from the end of the order, which is nearer to the page. db
// must be a snapshot.
func (d *database) fromNearer(ctx context.Context, db querier, q Query) ([]found, error) {
	p, err := d.plan(ctx, db, q, position{}, true)
	if err != nil || p == nil {
		return nil, err
	}
	s := &statement{dialect: d.dialect}
	p.limit = 0
	d.dialect.count(s, p)
	var total int64
	if err := each(ctx, db, s.text.String(), func(rows *sql.Rows) error { return rows.Scan(&total) }, s.args...); err != nil {
		return nil, fmt.Errorf("count %s: %w", q.Resource, err)
	}
	n := min(int64(q.Limit)+1, total-int64(q.Offset))
	if n <= 0 {
		return nil, nil
	}
	backwards := int64(q.Offset) > total/2
	if backwards {
		q.Order, q.Offset = q.Order.back(), int(total-int64(q.Offset)-n)
	}
	q.Limit = int(n)
	if p, err = d.plan(ctx, db, q, position{}, false); err != nil || p == nil {
		return nil, err
	}
	p.offset = q.Offset
	rows, err := d.page(ctx, db, q, p)
	if backwards {
		slices.Reverse(rows)
	}
	return rows, err
}

// back returns the order with the opposite direction. o must be valid.
func (o Order) back() Order {
	if o == Newest {
		return Oldest
	}
	if o == Oldest {
		return Newest
	}
	columns := o.columns()
	for i := range columns {
		columns[i].Down = !columns[i].Down
	}
	back, _ := OrderBy(columns...) // the columns are valid
	return back
}
