package explanation

import (
	"cmp"
	"slices"
	"strings"
	"unicode"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
)

// sight is what a caller may see of the clusters, and remembers what it kept from them.
type sight struct {
	sees   func(cluster string) bool
	hidden map[string]bool // clusters that would have been shown
	fleet  map[string]bool // names of clusters, which messages may have
}

func newSight(sees func(string) bool, fleet []string) sight {
	s := sight{sees: sees, hidden: map[string]bool{}, fleet: map[string]bool{}}
	for _, name := range fleet {
		s.fleet[name] = true
	}
	return s
}

// cluster says whether the caller may see a cluster.
func (s *sight) cluster(name string) bool {
	if s.sees(name) {
		return true
	}
	s.hidden[name] = true
	return false
}

// clusters are those of some that the caller may see.
func (s *sight) clusters(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !s.cluster(name) })
}

// message is a message without the clauses that name a cluster which the caller may not see.
func (s *sight) message(text string) string {
	clauses := slices.DeleteFunc(strings.Split(text, "; "), func(clause string) bool {
		return slices.ContainsFunc(strings.FieldsFunc(clause, func(r rune) bool {
			return r != '-' && r != '.' && !unicode.IsLetter(r) && !unicode.IsDigit(r)
		}), func(word string) bool { return s.secret(word) || s.secret(strings.Trim(word, ".-")) })
	})
	return strings.Join(clauses, "; ")
}

// results returns results with messages that name no cluster which the caller may not see.
func (s *sight) results(of map[string]fleetv1alpha1.PlacementResult) map[string]fleetv1alpha1.PlacementResult {
	all := make(map[string]fleetv1alpha1.PlacementResult, len(of))
	for cluster, r := range of {
		if r.Message != "" {
			r.Message = cmp.Or(s.message(r.Message), "the reason is in clusters that you may not see")
		}
		all[cluster] = r
	}
	return all
}

func (s *sight) secret(word string) bool { return (s.hidden[word] || s.fleet[word]) && !s.sees(word) }
