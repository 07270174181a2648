package store

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
)

// By is a property by which objects are counted. Exactly one field is set.
type By struct {
	// Column is cluster or namespace; "": Label or Field is set.
	Column string
	// Label is the key of a label.
	Label string
	// Field is the path of a declared (indexed) field. An object with several values counts for each
	// of them.
	Field string
}

// Group is the number of objects that have the same values of the properties. Values are in the
// order of the argument by of Groups, and "" for a missing value. Objects is greater than 0.
type Group struct {
	Values  []string
	Objects int64
}

// mostGroups is the maximum number of groups that Groups returns. More would not be a summary.
const mostGroups = 10_000

// ErrGroups means that Groups cannot count by the given properties: a field is not indexed, there
// are several fields or too many groups, or the query is about the past. It is an ErrSelector.
var ErrGroups = fmt.Errorf("%w: objects cannot be counted so", ErrSelector)

// FieldOf reports whether a field of a type is declared, so that it is indexed and objects can be
// counted by it.
func FieldOf(group, resource, path string) bool {
	return slices.Contains(declaredOf(groupResource{group, resource}), path)
}

// Groups counts the objects that a query selects now, by their values of the properties. It ignores
// Order, Limit, Offset and Continue. The groups are in no order. Objects without a value of a list
// field, such as FieldImages, are left out. The error is an ErrGroups if the properties cannot be
// counted, there are more than 10,000 groups, or q.At is set. For an invalid query it is another
// ErrSelector.
func (s *Store) Groups(ctx context.Context, q Query, by []By) (out []Group, err error) {
	err = s.do(ctx, func(d *database) (err error) {
		out, err = d.groups(ctx, q, by)
		return err
	})
	return out, err
}

func (d *database) groups(ctx context.Context, q Query, by []By) ([]Group, error) {
	field := slices.IndexFunc(by, func(b By) bool { return b.Field != "" })
	switch {
	case !q.At.IsZero():
		return nil, fmt.Errorf("%w: at a moment of the past", ErrGroups)
	case len(by) == 0:
		return nil, fmt.Errorf("%w: by nothing", ErrGroups)
	}
	for i, b := range by {
		switch {
		case b.Field == "":
		case i != field:
			return nil, fmt.Errorf("%w: by %s and %s; by one field at a time", ErrGroups, by[field].Field, b.Field)
		case !FieldOf(q.Group, q.Resource, b.Field):
			return nil, fmt.Errorf("%w: %s is not a field of %s that is indexed", ErrGroups, b.Field, q.Resource)
		}
		if strings.ContainsAny(b.Label, `"\`) {
			return nil, fmt.Errorf("%w: label key %q", ErrSelector, b.Label)
		}
	}
	if field < 0 {
		return d.grouped(ctx, d.read, q, by, "", mostGroups)
	}
	// First the objects with the field are counted. The number of objects without the field is the
	// difference to the number of all.
	some, err := d.grouped(ctx, d.read, q, by, declaredPair(by[field].Field, "").key, mostGroups)
	if err != nil || several(by[field].Field) {
		return some, err
	}
	all, err := d.grouped(ctx, d.read, q, slices.Delete(slices.Clone(by), field, field+1), "", mostGroups)
	if err != nil {
		return nil, err
	}
	left := map[string]int64{}
	rest := func(values []string) string {
		return list(slices.Delete(slices.Clone(values), field, field+1))
	}
	for _, g := range some {
		left[rest(g.Values)] += g.Objects
	}
	for _, g := range all {
		values := slices.Insert(slices.Clone(g.Values), field, "")
		if n := g.Objects - left[rest(values)]; n > 0 {
			some = append(some, Group{values, n})
		}
	}
	return some, nil
}

// several reports whether an object may have several values of the declared field with this path.
func several(path string) bool {
	return path == FieldImages || path == FieldReferences || path == FieldIs
}

// grouped counts the objects of a query by columns, labels and at most one declared field. key is
// the key of that field in the index, which then leads, and objects without the field are left out;
// "": no field. If there are more than most groups, the error is an ErrGroups.
func (d *database) grouped(ctx context.Context, db querier, q Query, by []By, key string, most int) ([]Group, error) {
	q.Order, q.Limit = ByKey, 0
	var lead *pair
	if key != "" {
		lead = &pair{key: key}
	}
	p, err := d.planned(ctx, db, q, position{}, true, lead)
	if err != nil || p == nil {
		return nil, err
	}
	labelled := slices.ContainsFunc(by, func(b By) bool { return b.Label != "" })
	if p.index == byTally && labelled {
		p.index = byKey
	}
	p.spread = labelled || p.leads || p.alias() == "o"
	alias := "o."
	if !p.whole() {
		alias = "l." // the table label has all columns that are needed
	}
	s := &statement{dialect: d.dialect}
	s.sql("SELECT ")
	for i, b := range by {
		switch {
		case b.Field != "":
			s.sql("l.label_value")
		case b.Label != "":
			s.sql("coalesce(")
			d.dialect.labelValue(s, b.Label)
			s.sql(", '')")
		case b.Column == "cluster" || b.Column == "namespace":
			s.sql(alias + b.Column)
		default:
			return nil, fmt.Errorf("%w: by %q", ErrGroups, b.Column)
		}
		s.sql(fmt.Sprintf(" AS g%d, ", i))
	}
	if len(by) == 0 {
		s.sql("1, ")
	}
	if p.index == byTally {
		s.sql("sum(o.objects)")
	} else {
		s.sql("count(*)")
	}
	d.dialect.from(s, p, p.fields)
	for i := range by {
		s.sql(map[bool]string{true: " GROUP BY ", false: ", "}[i == 0] + fmt.Sprintf("g%d", i))
	}
	s.sql(" LIMIT ").arg(most + 1)
	if err := s.fits(); err != nil {
		return nil, err
	}
	var out []Group
	err = each(ctx, db, s.text.String(), func(rows *sql.Rows) error {
		g := Group{Values: make([]string, len(by))}
		to := make([]any, 0, len(by)+1)
		for i := range by {
			to = append(to, &g.Values[i])
		}
		if len(by) == 0 {
			to = append(to, new(int64))
		}
		var n sql.NullInt64
		if err := rows.Scan(append(to, &n)...); err != nil {
			return err
		}
		if g.Objects = n.Int64; g.Objects > 0 {
			out = append(out, g)
		}
		return nil
	}, s.args...)
	if err != nil {
		return nil, fmt.Errorf("count %s: %w", q.Resource, err)
	}
	if len(out) > most {
		return nil, fmt.Errorf("%w: there are more than %d groups; narrow the query, or count by less", ErrGroups, most)
	}
	return out, nil
}
