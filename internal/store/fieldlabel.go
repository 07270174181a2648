package store

import (
	"cmp"
	"slices"
)

// fieldLabel describes a label of field selectors, such as spec.unschedulable, that Kubernetes' API
// servers compute for a type. Either the object has no field of that name, or the label has a value
// where the field is missing. A requirement that the label exists, or does not exist, is about the
// fields in of.
type fieldLabel struct {
	of     []string // paths of fields; the label is their first value that is not empty
	absent string   // the label if all values are empty
}

// fieldLabels has the computed labels of each type, as in the registries of Kubernetes 1.36. Any
// other label is the text of the field with the same name, for API servers and for the store.
var fieldLabels = map[groupResource]map[string]fieldLabel{
	{"", "pods"}: {
		"spec.host":        {of: []string{"spec.nodeName"}}, // from clients older than v1
		"spec.hostNetwork": {of: []string{"spec.hostNetwork"}, absent: "false"},
		"status.podIPs":    {}, // served, and empty for every pod
	},
	{"", "nodes"}:                  {"spec.unschedulable": {of: []string{"spec.unschedulable"}, absent: "false"}},
	{"", "events"}:                 {"source": {of: []string{"source.component", "reportingComponent"}}},
	{"", "replicationcontrollers"}: {"status.replicas": {of: []string{"status.replicas"}, absent: "0"}},
	{"batch", "jobs"}:              {"status.successful": {of: []string{"status.succeeded"}, absent: "0"}},
}

// Computed reports whether API servers compute the field label of the requirement (f.Path) for the
// type, so that it is not simply a field. It is false for a requirement with an invalid operator.
func Computed(group, resource string, f FieldRequirement) bool {
	_, ok := labelOf(groupResource{group, resource}, f)
	return ok
}

// labelOf returns the computed field label with the name f.Path. The result is false if API servers
// compute no such label for the type, or the requirement is invalid. It is also false for the
// existence of a label that no field has.
func labelOf(gr groupResource, f FieldRequirement) (fieldLabel, bool) {
	label, ok := fieldLabels[gr][f.Path]
	_, _, exists, err := f.asked()
	return label, ok && err == nil && (!exists || len(label.of) > 0)
}

// compileLabelled translates a requirement on the computed field label to a condition. The error is
// an ErrSelector.
func compileLabelled(gr groupResource, f FieldRequirement, label fieldLabel) (condition, error) {
	if len(label.of) == 1 && label.absent == "" { // the label is only another name of a field
		f.Path = label.of[0]
		return compileField(gr, f)
	}
	values, not, exists, err := f.asked()
	if err != nil {
		return nil, err
	}
	out := labelIs{values: values, exists: exists, not: not, absent: label.absent}
	for _, of := range label.of {
		path, err := ParseFieldPath(of)
		if err != nil {
			return nil, err
		}
		out.paths = append(out.paths, path)
	}
	return out, fewValues(f, values)
}

// labelIs is the condition that a computed field label (see fieldLabel) has one of the values. With
// exists, it is that one of the label's fields exists. With not, the result is negated.
type labelIs struct {
	paths  []FieldPath // none leads through a list
	absent string
	values []string
	exists bool
	not    bool
}

// write appends the condition, which treats an empty field like a missing one.
func (c labelIs) write(s *statement) {
	if len(c.paths) == 0 { // a label without fields is the same for all objects
		s.sql(map[bool]string{true: "1 = 1", false: "1 = 0"}[c.holds(nil)])
		return
	}
	if c.not {
		s.sql("NOT ")
	}
	s.sql("(")
	if c.exists {
		for i, path := range c.paths {
			if i > 0 {
				s.sql(" OR ")
			}
			s.dialect.there(s, 0, path)
		}
	} else {
		value := &statement{dialect: s.dialect, args: s.args}
		value.sql("coalesce(")
		for _, path := range c.paths {
			value.sql("nullif(")
			s.dialect.text(value, 0, path)
			value.sql(", ''), ")
		}
		s.args = value.arg(c.absent).sql(")").args
		s.dialect.in(s, value.text.String(), c.values)
	}
	s.sql(")")
}

// holds reports whether the condition holds for a decoded body, as the SQL of write does in the
// database.
func (c labelIs) holds(body any) bool {
	value, there := "", false
	for _, path := range c.paths {
		for _, node := range path.nodes(body) {
			text, _ := textOf(node)
			value, there = cmp.Or(value, text), true
		}
	}
	if c.exists {
		return there != c.not
	}
	return slices.Contains(c.values, cmp.Or(value, c.absent)) != c.not
}
