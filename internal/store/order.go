package store

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Order is that of the rows of an answer: one of those below, or what OrderBy returns.
type Order int

// Orders of rows that indexes have. Those of time are by when objects were created, to the second, and then by when the store heard of them.
const (
	ByKey  Order = iota // by cluster, namespace and name
	Newest              // created last
	Oldest              // created first
	ByName              // by name, cluster and namespace
)

// OrderColumn is what rows are ordered by: one of OrderColumns.
type OrderColumn struct {
	Name string
	Down bool
}

// OrderColumns are the columns that there are orders of.
func OrderColumns() []string { return slices.Clone(orderColumns) }

var orderColumns = []string{"name", "namespace", "cluster", "created"}

// custom marks the orders that are lists of columns: four bits each, the first one highest, of which the lowest says that it goes down.
const custom = 1 << 20

// OrderBy is an order by some columns, and then by those of the key that are not among them. An index has it if it is one of the orders
// above, or the reverse of ByKey or ByName; the rows of all others are sorted.
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

// columns are all that rows are ordered by, in turn; no two rows are equal in them.
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
	down := true // what is left goes down where all before does: then an index can be walked backwards
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

// valid says whether it is an order at all.
func (o Order) valid() bool {
	return o >= ByKey && o <= ByName || o > custom && o < custom<<1 && o.columns() != nil
}

// uniform says whether all columns go the same way, and whether that is down.
func uniform(columns []OrderColumn) (same, down bool) {
	down = columns[0].Down
	return !slices.ContainsFunc(columns, func(c OrderColumn) bool { return c.Down != down }), down
}

// reverse says whether an order is the reverse of another.
func (o Order) reverse(of Order) bool {
	return slices.EqualFunc(o.columns(), of.columns(), func(a, b OrderColumn) bool { return a.Name == b.Name && a.Down != b.Down })
}

// compare compares places in an order.
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

// value is that of a column.
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
