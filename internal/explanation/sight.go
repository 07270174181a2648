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
	// fenced is true if decisions are made on no other clusters than those that the caller sees, and
	// those that have the object.
	fenced bool
	sees   func(cluster string) bool
	// reads reports whether the caller sees the objects in a cluster, and not only its name.
	reads func(cluster string) bool
}

// sight filters what is known of one object by the visibility of the caller. Nothing that it
// returns depends on a cluster that the caller does not see and that does not have the object:
// neither the number of such clusters nor their names, so that a text with a guessed name gives
// nothing away.
type sight struct {
	visibility

	own    map[string]bool // clusters that have the object, or had it: messages may name them
	hidden map[string]bool // those of them that would have been shown
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

// unseen is the message where the reason is about clusters that the caller does not see.
const unseen = "the reason is in clusters that you may not see"

// message returns a message without the clauses that name a cluster of the object which the caller
// does not see. If the message may be about other clusters, it returns "".
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

// results returns results with such messages.
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
