package access

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/sets"
)

// label is a label that an object has, or that a selector requires.
type label struct {
	key, value string
	any        bool // the key with any value
}

// required returns the labels for each requirement that needs one: a selected object has one of
// them. Requirements that a label must be absent, or other than some values, are left out.
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

// least returns the alternative with the lowest cost; nil if there is none.
func least(of [][]label, cost func([]label) int) (best []label) {
	lowest := 0
	for _, alternative := range of {
		if n := cost(alternative); best == nil || n < lowest {
			best, lowest = alternative, n
		}
	}
	return best
}

// objects are labelled objects by name, with an index of their labels.
type objects struct {
	labels map[string]labels.Set
	having map[label]sets.Set[string]
}

func newObjects() objects {
	return objects{labels: map[string]labels.Set{}, having: map[label]sets.Set[string]{}}
}

// set adds an object or replaces its labels, which must not be changed later.
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

// candidates returns the names of the objects that a selector may select: those with a label that
// it requires, of the requirement that the fewest have.
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

// grants are ClusterAccesses by name, with an index of the labels that they require of a namespace.
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

func (gs *grants) remove(g *grant) {
	delete(gs.named, g.name)
	gs.loose.Delete(g)
	for _, l := range g.filed {
		if gs.requiring[l].Delete(g); len(gs.requiring[l]) == 0 {
			delete(gs.requiring, l)
		}
	}
}

// candidates returns the grants that may select a namespace with these labels.
func (gs *grants) candidates(has labels.Set) []*grant {
	found := gs.loose.UnsortedList()
	for key, value := range has {
		found = append(found, gs.requiring[label{key: key, value: value}].UnsortedList()...)
		found = append(found, gs.requiring[label{key: key, any: true}].UnsortedList()...)
	}
	return found
}
