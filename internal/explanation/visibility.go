package explanation

import (
	"cmp"
	"slices"
	"strings"
	"unicode"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
)

// visibility says which clusters a caller sees. In the zero value the funcs are nil, and must not
// be called.
type visibility struct {
	// everything is true if the caller sees every cluster.
	everything bool
	// fenced is true if the namespace of the object may use exactly the clusters that the caller
	// sees. Then messages of decisions are only about these, and about clusters that have the object.
	fenced bool
	// sees reports whether the caller may know a cluster.
	sees func(cluster string) bool
	// reads reports whether the caller sees the objects in a cluster, and not only its name.
	reads func(cluster string) bool
}

// visibilityFilter removes from the facts about one object the clusters that the caller does not
// see. A cluster that has the object is counted in hidden. Any other such cluster has no influence
// on the result, so a caller who guesses its name learns nothing. Because it counts, the filter
// must not be used concurrently.
type visibilityFilter struct {
	visibility

	own    map[string]bool // clusters that have or had the object: messages may name them
	hidden map[string]bool // clusters of own that were left out of the answer
}

// newVisibilityFilter returns a filter for a caller with the visibility v. own are the clusters
// that have or had the object; duplicates are ignored.
func newVisibilityFilter(v visibility, own []string) visibilityFilter {
	s := visibilityFilter{visibility: v, own: map[string]bool{}, hidden: map[string]bool{}}
	for _, name := range own {
		s.own[name] = true
	}
	return s
}

// cluster reports whether the caller sees a cluster. If not, and the cluster has or had the object,
// it is counted in hidden.
func (s *visibilityFilter) cluster(name string) bool {
	if s.sees(name) {
		return true
	}
	if s.own[name] {
		s.hidden[name] = true
	}
	return false
}

// clusters returns the names of the clusters that the caller sees, in the given order. Other
// clusters that have or had the object are counted in hidden.
func (s *visibilityFilter) clusters(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !s.cluster(name) })
}

// unseen is the text for users in place of a message about clusters that the caller does not see.
const unseen = "the reason is in clusters that you may not see"

// message returns a message of a decision or result for the caller. Clauses, which semicolons
// separate, are left out if they name a cluster of the object that the caller does not see. It
// returns "" if no clause is left, or if the message may be about other clusters that the caller
// does not see.
func (s *visibilityFilter) message(text string) string {
	if s.everything {
		return text
	}
	if !s.fenced {
		return ""
	}
	clauses := slices.DeleteFunc(strings.Split(text, "; "), func(clause string) bool {
		return slices.ContainsFunc(strings.FieldsFunc(clause, func(r rune) bool {
			return r != '-' && r != '.' && !unicode.IsLetter(r) && !unicode.IsDigit(r)
		}), func(word string) bool { return s.secret(word) || s.secret(strings.Trim(word, ".-")) })
	})
	return strings.Join(clauses, "; ")
}

// results returns the results of all clusters, also of those that the caller does not see, with
// filtered messages. The text unseen replaces a message that may not be shown.
func (s *visibilityFilter) results(of map[string]fleetv1alpha1.PlacementResult) map[string]fleetv1alpha1.PlacementResult {
	all := make(map[string]fleetv1alpha1.PlacementResult, len(of))
	for cluster, r := range of {
		if r.Message != "" {
			r.Message = cmp.Or(s.message(r.Message), unseen)
		}
		all[cluster] = r
	}
	return all
}

// secret reports whether a word of a message is the name of a cluster that has or had the object,
// and that the caller does not see.
func (s *visibilityFilter) secret(word string) bool { return s.own[word] && !s.sees(word) }
