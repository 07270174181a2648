package store

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Order is the order of rows in a result: one of the constants, or a result of OrderBy.
type Order int

// Orders that have an index. Orders by time compare the creation time, to the second, and then
// the time at which the store first saw the object.
const (
	ByKey  Order = iota // by cluster, namespace and name
	Newest              // created last
	Oldest              // created first
	ByName              // by name, cluster and namespace
)

// OrderColumn is one column of an order, one of OrderColumns.
type OrderColumn struct {
	Name string
	Down bool
}

// OrderColumns returns the columns that orders can have.
func OrderColumns() []string { return slices.Clone(orderColumns) }

var orderColumns = []string{"name", "namespace", "cluster", "created"}

// custom marks orders that are lists of columns. Each column has four bits, the first one the
// highest bits. The lowest bit of each means descending.
const custom = 1 << 20

// OrderBy returns an order by some columns, and then by the other columns of the key. If it is
// one of the constants, or the reverse of ByKey or ByName, there is an index. In other orders,
// rows are sorted.
func OrderBy(columns ...OrderColumn) (Order, error) {
	var o Order
	for i, c := range columns {
		n := slices.Index(orderColumns, c.Name)
		if n < 0 {
			return 0, fmt.Errorf("%w: there is no order by %q, only by %s", ErrSelector, c.Name, strings.Join(orderColumns, ", "))
		}
		if slices.ContainsFunc(columns[:i], func(before OrderColumn) bool { return before.Name == c.Name }) {
			return 0, fmt.Errorf("%w: order by %s twice", ErrSelector, c.Name)
		}
		o = o<<4 | Order(n+1)<<1
		if c.Down {
			o |= 1
		}
	}
	if len(columns) == 0 {
		return ByKey, nil
	}
	o |= custom
	if len(columns) == 1 && columns[0].Name == "created" {
		return map[bool]Order{true: Newest, false: Oldest}[columns[0].Down], nil
	}
	for _, known := range []Order{ByKey, ByName} {
		if slices.Equal(o.columns(), known.columns()) {
			return known, nil
		}
	}
	return o, nil
}

// columns returns all columns of the order. No two rows are equal in all of them.
func (o Order) columns() []OrderColumn {
	switch o {
	case ByKey:
		return []OrderColumn{{Name: "cluster"}, {Name: "namespace"}, {Name: "name"}}
	case ByName:
		return []OrderColumn{{Name: "name"}, {Name: "cluster"}, {Name: "namespace"}}
	case Newest, Oldest:
		return []OrderColumn{{"created", o == Newest}, {"id", o == Newest}}
	}
	var out []OrderColumn
	// The remaining columns are descending if all before are. Then an index can be read
	// backwards.
	down := true
	for rest := o &^ custom; rest > 0; rest >>= 4 {
		n := int(rest >> 1 & 7)
		if n == 0 || n > len(orderColumns) {
			return nil
		}
		down = down && rest&1 == 1
		out = append(out, OrderColumn{orderColumns[n-1], rest&1 == 1})
	}
	slices.Reverse(out)
	for _, name := range []string{"cluster", "namespace", "name"} {
		if !slices.ContainsFunc(out, func(c OrderColumn) bool { return c.Name == name }) {
			out = append(out, OrderColumn{name, down})
		}
	}
	return out
}

// valid reports whether o is an order.
func (o Order) valid() bool {
	return o >= ByKey && o <= ByName || o > custom && o < custom<<1 && o.columns() != nil
}

// uniform reports whether all columns have the same direction, and whether that is descending.
func uniform(columns []OrderColumn) (same, down bool) {
	down = columns[0].Down
	return !slices.ContainsFunc(columns, func(c OrderColumn) bool { return c.Down != down }), down
}

// reverse reports whether an order is the reverse of another.
func (o Order) reverse(of Order) bool {
	return slices.EqualFunc(o.columns(), of.columns(), func(a, b OrderColumn) bool { return a.Name == b.Name && a.Down != b.Down })
}

// compare compares positions in an order.
func (o Order) compare(a, b position) int {
	for _, c := range o.columns() {
		var n int
		switch c.Name {
		case "cluster":
			n = cmp.Compare(a.Cluster, b.Cluster)
		case "namespace":
			n = cmp.Compare(a.Namespace, b.Namespace)
		case "name":
			n = cmp.Compare(a.Name, b.Name)
		case "created":
			n = cmp.Compare(a.Created, b.Created)
		case "id":
			n = cmp.Compare(a.ID, b.ID)
		}
		if c.Down {
			n = -n
		}
		if n != 0 {
			return n
		}
	}
	return 0
}

// value returns the value of a column.
func (p position) value(column string) any {
	switch column {
	case "cluster":
		return p.Cluster
	case "namespace":
		return p.Namespace
	case "name":
		return p.Name
	case "created":
		return p.Created
	default:
		return p.ID
	}
}
