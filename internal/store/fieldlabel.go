package store

import (
	"cmp"
	"slices"
)

// fieldLabel is a label of field selectors that Kubernetes' API servers compute for a type: it is
// not a field of the object, or has a value where the field is missing. Requirements on its
// existence are about the object's fields.
type fieldLabel struct {
	of     []string // paths; the first value that is not empty counts
	absent string   // the value if there is none
}

// fieldLabels has all of them, as in the registries of Kubernetes 1.36. Other labels that they
// serve are the text of the field of that name, like all fields here.
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

// Computed reports whether a requirement is on a label that API servers compute for a type.
func Computed(group, resource string, f FieldRequirement) bool {
	_, ok := labelOf(groupResource{group, resource}, f)
	return ok
}

// labelOf returns the computed label of a requirement; false: it is not on one.
func labelOf(gr groupResource, f FieldRequirement) (fieldLabel, bool) {
	label, ok := fieldLabels[gr][f.Path]
	_, _, exists, err := f.asked()
	return label, ok && err == nil && (!exists || len(label.of) > 0)
}

// compileLabelled translates a requirement on a computed label.
func compileLabelled(gr groupResource, f FieldRequirement, label fieldLabel) (condition, error) {
	if len(label.of) == 1 && label.absent == "" { // another name of a field
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

// labelIs holds if a computed label has one of the values, or one of its fields exists; with not,
// the result is negated.
type labelIs struct {
	paths  []FieldPath // none leads through a list
	absent string
	values []string
	exists bool
	not    bool
}

// write treats an empty field like a missing one.
func (c labelIs) write(s *statement) {
	if len(c.paths) == 0 { // the same for all objects
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

// holds reports whether the condition holds for a body.
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
