package store

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
)

// By is a property by which objects are counted.
type By struct {
	// Column is cluster or namespace; "": Label or Field is set.
	Column string
	// Label is the key of a label.
	Label string
	// Field is the path of a declared field. An object with several values counts for each of
	// them.
	Field string
}

// Group is the number of objects with certain values, in the order of the properties. A missing
// value is "".
type Group struct {
	Values  []string
	Objects int64
}

// mostGroups is the maximum number of returned groups. More would not be a summary.
const mostGroups = 10_000

// ErrGroups means that objects cannot be counted by these properties.
var ErrGroups = fmt.Errorf("%w: objects cannot be counted so", ErrSelector)

// FieldOf reports whether a path is a declared field of a type.
func FieldOf(group, resource, path string) bool {
	return slices.Contains(declaredOf(groupResource{group, resource}), path)
}

// Groups counts the objects that a query selects now, by properties. It ignores Order, Limit and
// Continue. The groups are in no order.
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
	// First those with the field. Then those without, as the difference to all.
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

// several reports whether an object may have several values of a declared field.
func several(path string) bool {
	return path == FieldImages || path == FieldReferences || path == FieldIs
}

// grouped counts by columns and labels, or also by the declared field with the key, which then
// leads. More than most groups are an error.
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
		alias = "l." // the index has all that is needed
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
