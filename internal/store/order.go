package store

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Order is the order of rows in the result of a query: ByKey, Newest, Oldest, ByName, or a result
// of OrderBy.
type Order int

// Orders that have an index. Orders by time compare the creation time, to the second, and then
// the time at which the store first saw the object.
const (
	ByKey  Order = iota // by cluster, namespace and name
	Newest              // created last
	Oldest              // created first
	ByName              // by name, cluster and namespace
)

// OrderColumn is one column by which an Order sorts rows. Its name is one of OrderColumns(); Down
// means descending.
type OrderColumn struct {
	Name string
	Down bool
}

// OrderColumns returns the names of the columns by which OrderBy can sort: name, namespace, cluster
// and created. The slice is a copy.
func OrderColumns() []string { return slices.Clone(orderColumns) }

var orderColumns = []string{"name", "namespace", "cluster", "created"}

// custom is the bit of an Order that is a list of columns, and not one of the constants. Each
// column has four bits below it, the first column the highest ones. The lowest bit of each column
// means descending.
const custom = 1 << 20

// OrderBy returns the order by these columns, and then by the other columns of the key: cluster,
// namespace and name. Without columns it is ByKey. The constants, and the reverse of ByKey or
// ByName, have an index. For any other order, the database sorts all selected rows. A column that
// is unknown or repeated is an ErrSelector.
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

// columns returns all columns by which the order compares rows, as a new slice. No two rows are
// equal in all of them. It returns nil for an invalid order.
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
	// The columns that are added here are descending if all given columns are. Then an index can be
	// read backwards.
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

// valid reports whether o is one of the constants, or can be a result of OrderBy.
func (o Order) valid() bool {
	return o >= ByKey && o <= ByName || o > custom && o < custom<<1 && o.columns() != nil
}

// uniform returns whether all columns have the same direction (same), and whether the first one is
// descending (down). columns must not be empty.
func uniform(columns []OrderColumn) (same, down bool) {
	down = columns[0].Down
	return !slices.ContainsFunc(columns, func(c OrderColumn) bool { return c.Down != down }), down
}

// reverse reports whether the order has the same columns as the order of, each in the opposite
// direction.
func (o Order) reverse(of Order) bool {
	return slices.EqualFunc(o.columns(), of.columns(), func(a, b OrderColumn) bool { return a.Name == b.Name && a.Down != b.Down })
}

// compare compares two positions in the order. The result is negative if a comes before b, positive
// if a comes after b, and 0 if they are equal.
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

// value returns what the position has for a column of an order: cluster, namespace, name or
// created. For any other column it returns the ID.
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
