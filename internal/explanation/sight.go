package explanation

import (
	"cmp"
	"slices"
	"strings"
	"unicode"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
)

// visibility is which clusters a caller sees.
type visibility struct {
	// everything is true if the caller sees every cluster.
	everything bool
	// fenced is true if decisions concern only the clusters that the caller sees and those that
	// have the object.
	fenced bool
	sees   func(cluster string) bool
	// reads reports whether the caller sees the objects in a cluster, and not only its name.
	reads func(cluster string) bool
}

// sight filters facts about one object by the visibility of the caller. Its results do not
// depend on clusters that the caller does not see and that do not have the object: neither on
// their number nor on their names. A message with a guessed name therefore reveals nothing.
type sight struct {
	visibility

	own    map[string]bool // clusters that have or had the object: messages may name them
	hidden map[string]bool // those of own that were left out
}

func newSight(v visibility, own []string) sight {
	s := sight{visibility: v, own: map[string]bool{}, hidden: map[string]bool{}}
	for _, name := range own {
		s.own[name] = true
	}
	return s
}

// cluster reports whether the caller sees a cluster.
func (s *sight) cluster(name string) bool {
	if s.sees(name) {
		return true
	}
	if s.own[name] {
		s.hidden[name] = true
	}
	return false
}

// clusters returns the names of clusters that the caller sees.
func (s *sight) clusters(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !s.cluster(name) })
}

// unseen replaces a message about clusters that the caller does not see.
const unseen = "the reason is in clusters that you may not see"

// message returns a message without the clauses that name clusters of the object which the
// caller does not see. If the message may be about other clusters, it returns "".
func (s *sight) message(text string) string {
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

// results returns results with their messages filtered.
func (s *sight) results(of map[string]fleetv1alpha1.PlacementResult) map[string]fleetv1alpha1.PlacementResult {
	all := make(map[string]fleetv1alpha1.PlacementResult, len(of))
	for cluster, r := range of {
		if r.Message != "" {
			r.Message = cmp.Or(s.message(r.Message), unseen)
		}
		all[cluster] = r
	}
	return all
}

func (s *sight) secret(word string) bool { return s.own[word] && !s.sees(word) }
