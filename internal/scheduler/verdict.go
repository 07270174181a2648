package scheduler

import (
	"fmt"
	"math/bits"
	"slices"
)

// Verdicts hold what every filter said of every cluster, and put it into words when asked.
type Verdicts struct {
	request  Request
	clusters []*Cluster
	rejected []rejections
	chosen   []bool   // nil when nothing was chosen
	unknown  []string // names in the affinity that no cluster has
	stays    []string // clusters behind the fence in which the object is, and stays
	unspread []bool   // clusters that the spread constraints left out; nil: none
	cramped  bool     // replicas were shared out by room
}

// Verdict says of some clusters why an object is not placed in them, or why it would not be any more.
type Verdict struct {
	Reason, Message string
	Clusters        []string // by name
}

const unknownMessage = "UnknownCluster, clusterNames names a cluster that was never joined"

// Of says why an object is not in a cluster: every reason, in the filters' order. None: it
// is, or there is no such cluster. That it is there behind a fence is said too.
func (v *Verdicts) Of(cluster string) []Verdict {
	if slices.Contains(v.unknown, cluster) {
		return []Verdict{{Reason: ReasonUnknownCluster, Message: unknownMessage, Clusters: []string{cluster}}}
	}
	i := find(v.clusters, cluster)
	if i < 0 {
		return nil
	}
	var all []Verdict
	for left := v.rejected[i]; left != 0; left &= left - 1 {
		f := &filters[bits.TrailingZeros16(uint16(left))]
		all = append(all, Verdict{Reason: f.reason, Message: f.message(&v.request, v.clusters[i]), Clusters: []string{cluster}})
	}
	if all == nil && v.chosen != nil && !v.chosen[i] {
		w := v.idle(i)
		all = append(all, Verdict{Reason: idleReasons[w].reason, Message: idleReasons[w].message, Clusters: []string{cluster}})
	}
	if slices.Contains(v.stays, cluster) {
		all = append(all, v.staysFenced([]string{cluster}))
	}
	return all
}

func (v *Verdicts) staysFenced(clusters []string) Verdict {
	return Verdict{Reason: ReasonStaysFenced, Message: v.request.Fence.Closed() + staysMessage, Clusters: clusters}
}

const staysMessage = "; what was placed there before stays"

const noReplicasMessage = "it fits, and no replica fell to it"

// idleReasons are why a cluster that fits was not chosen, in the order in which they are told.
var idleReasons = [...]struct{ reason, message string }{
	{ReasonSpread, "it fits, and the spread constraints let in no more clusters of its groups"},
	{ReasonNoRoom, "it fits, and has no known room for a replica"},
	{ReasonNoReplicas, noReplicasMessage},
}

// idle is why a cluster that fits was not chosen, by its place among idleReasons.
func (v *Verdicts) idle(i int) int {
	if v.cramped {
		if n, known := v.clusters[i].Fits(v.request.Claim, false); !known || n <= 0 || !v.clusters[i].Reachable {
			return 1
		}
	}
	if v.unspread != nil && v.unspread[i] {
		return 0
	}
	return 2
}

// All returns the verdicts by reason, in the filters' order, and apart by message where a
// reason has several. A cluster that several filters reject is in several verdicts.
func (v *Verdicts) All() []Verdict {
	var counts [len(filters)]int
	for _, rejected := range v.rejected {
		for left := rejected; left != 0; left &= left - 1 {
			counts[bits.TrailingZeros16(uint16(left))]++
		}
	}
	var all []Verdict
	if len(v.unknown) > 0 {
		all = append(all, Verdict{Reason: ReasonUnknownCluster, Message: unknownMessage, Clusters: v.unknown})
	}
	for f, n := range counts {
		if n == 0 {
			continue
		}
		first := len(all)   // the verdicts of this filter begin here
		var like []*Cluster // a cluster of which each of them speaks
		for i, c := range v.clusters {
			if v.rejected[i]&(1<<f) == 0 {
				continue
			}
			at := slices.IndexFunc(like, func(other *Cluster) bool {
				switch f {
				case taints:
					return v.request.alike(c, other)
				case bounded:
					return c.Bounds.Equal(other.Bounds)
				case grouped:
					return v.request.Placement.ungrouped(c) == v.request.Placement.ungrouped(other)
				}
				return true
			})
			if at < 0 {
				at = len(like)
				like = append(like, c)
				all = append(all, Verdict{Reason: filters[f].reason, Message: filters[f].message(&v.request, c), Clusters: make([]string, 0, n)})
			}
			all[first+at].Clusters = append(all[first+at].Clusters, c.Name)
		}
	}
	var idle [len(idleReasons)][]string
	for i, c := range v.clusters {
		if v.chosen != nil && !v.chosen[i] && v.rejected[i] == 0 {
			w := v.idle(i)
			idle[w] = append(idle[w], c.Name)
		}
	}
	for w, names := range idle {
		if len(names) > 0 {
			all = append(all, Verdict{Reason: idleReasons[w].reason, Message: idleReasons[w].message, Clusters: names})
		}
	}
	if len(v.stays) > 0 {
		all = append(all, v.staysFenced(v.stays))
	}
	return all
}

// selected says whether the policy means a cluster. Those that the affinity does not select
// are none of its business, so that a message does not change whenever some cluster joins; nor
// are those of other groups.
func selected(r rejections) bool { return r&(1<<affinity|1<<otherGroup) == 0 }

// details says of each cluster that was not chosen why not; of those that the affinity does
// not select only when nothing fits at all. Clusters behind the fence are counted: their names
// are told to those who name them, and where something of theirs stays.
func (v *Verdicts) details(all bool) string {
	var said []byte
	count := 0
	say := func(cluster string, message func() string) {
		if count++; count <= mostNamed {
			said = append(append(append(append(said, "; "...), cluster...), ": "...), message()...)
		}
	}
	for _, name := range v.unknown {
		say(name, func() string { return unknownMessage })
	}
	hidden := 0
	for i, rejected := range v.rejected {
		switch {
		case rejected&(1<<fenced) != 0 && !slices.Contains(v.request.Placement.named, v.clusters[i].Name):
			if selected(rejected) {
				hidden++
			}
		case rejected != 0 && (all || selected(rejected)):
			say(v.clusters[i].Name, func() string {
				return filters[bits.TrailingZeros16(uint16(rejected))].message(&v.request, v.clusters[i])
			})
		}
	}
	for _, name := range v.stays {
		say(name, func() string { return v.request.Fence.Closed() + staysMessage })
	}
	text := string(said) + more(count, "; ")
	if hidden > 0 {
		text += fmt.Sprintf("; %d clusters closed: %s", hidden, v.request.Fence.Closed())
	}
	return text
}
