package access

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/sets"
)

// label is a label of a namespace, or one that a namespaceSelector requires. If any is true, it
// stands for the key with every value. It is a key of the indexes objects.having and
// grants.requiring.
type label struct {
	key, value string
	any        bool // the key with any value
}

// required returns one list of labels for each requirement of a selector that an object without
// labels cannot satisfy. A selected object has at least one label of each list. Requirements with
// NotIn, != and DoesNotExist have no list.
func required(s labels.Selector) (all [][]label) {
	requirements, _ := s.Requirements()
	for _, r := range requirements {
		switch r.Operator() {
		case selection.In, selection.Equals, selection.DoubleEquals:
			var values []label
			for _, value := range r.ValuesUnsorted() {
				values = append(values, label{key: r.Key(), value: value})
			}
			all = append(all, values)
		case selection.Exists, selection.GreaterThan, selection.LessThan:
			all = append(all, []label{{key: r.Key(), any: true}})
		case selection.DoesNotExist, selection.NotIn, selection.NotEquals:
		}
	}
	return all
}

// least returns the list of labels with the lowest cost, the first of several; nil if of is empty.
// Callers choose with it the requirement of a selector that the fewest objects satisfy.
func least(of [][]label, cost func([]label) int) (best []label) {
	lowest := 0
	for _, alternative := range of {
		if n := cost(alternative); best == nil || n < lowest {
			best, lowest = alternative, n
		}
	}
	return best
}

// objects holds the labels of namespaces by name, with an index from each label to the namespaces
// that have it.
type objects struct {
	labels map[string]labels.Set
	having map[label]sets.Set[string]
}

// newObjects returns an empty index.
func newObjects() objects {
	return objects{labels: map[string]labels.Set{}, having: map[label]sets.Set[string]{}}
}

// set adds an object or replaces its labels. The caller must not change the map has later.
func (o *objects) set(name string, has labels.Set) {
	o.remove(name)
	o.labels[name] = has
	for key, value := range has {
		for _, l := range []label{{key: key, value: value}, {key: key, any: true}} {
			if o.having[l] == nil {
				o.having[l] = sets.New[string]()
			}
			o.having[l].Insert(name)
		}
	}
}

// remove removes an object. It does nothing for an unknown name.
func (o *objects) remove(name string) {
	for key, value := range o.labels[name] {
		for _, l := range []label{{key: key, value: value}, {key: key, any: true}} {
			if o.having[l].Delete(name); len(o.having[l]) == 0 {
				delete(o.having, l)
			}
		}
	}
	delete(o.labels, name)
}

// candidates returns the names of all objects that s can select, in no order, and possibly of more.
// The caller compares each with s. They are the objects that satisfy one requirement of s: of those
// that require a label, the one with the fewest objects. If s requires no label, they are all
// objects.
func (o *objects) candidates(s labels.Selector) []string {
	few := least(required(s), func(one []label) (n int) {
		for _, l := range one {
			n += len(o.having[l])
		}
		return n
	})
	if few == nil {
		return slices.Collect(maps.Keys(o.labels))
	}
	var names []string
	for _, l := range few { // an object has one value of a key
		names = append(names, o.having[l].UnsortedList()...)
	}
	return names
}

// grants holds the compiled ClusterAccesses by name, with an index of the labels that their
// namespaceSelectors require.
type grants struct {
	named map[string]*grant
	// requiring has each grant by the labels of one of its requirements: the requirement with
	// the fewest grants when the grant was added. loose has the grants that require no label.
	requiring map[label]sets.Set[*grant]
	loose     sets.Set[*grant]
}

func newGrants() grants {
	return grants{named: map[string]*grant{}, requiring: map[label]sets.Set[*grant]{}, loose: sets.New[*grant]()}
}

// add adds a grant, and records in g.filed under which labels the index has it. gs must not have a
// grant of the same name.
func (gs *grants) add(g *grant) {
	gs.named[g.name] = g
	g.filed = least(required(g.namespaces), func(one []label) (n int) {
		for _, l := range one {
			n = max(n, len(gs.requiring[l]))
		}
		return n
	})
	if g.filed == nil {
		gs.loose.Insert(g)
	}
	for _, l := range g.filed {
		if gs.requiring[l] == nil {
			gs.requiring[l] = sets.New[*grant]()
		}
		gs.requiring[l].Insert(g)
	}
}

// remove removes a grant that was added.
func (gs *grants) remove(g *grant) {
	delete(gs.named, g.name)
	gs.loose.Delete(g)
	for _, l := range g.filed {
		if gs.requiring[l].Delete(g); len(gs.requiring[l]) == 0 {
			delete(gs.requiring, l)
		}
	}
}

// candidates returns all grants that can select a namespace with these labels, in no order, and
// possibly more. The caller compares each with the labels.
func (gs *grants) candidates(has labels.Set) []*grant {
	found := gs.loose.UnsortedList()
	for key, value := range has {
		found = append(found, gs.requiring[label{key: key, value: value}].UnsortedList()...)
		found = append(found, gs.requiring[label{key: key, any: true}].UnsortedList()...)
	}
	return found
}
