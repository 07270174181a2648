package scheduler

import (
	"maps"
	"math/bits"
	"slices"
)

// Verdicts holds the judgment of every filter on every cluster. Messages are made on demand.
type Verdicts struct {
	request  Request
	clusters []*Cluster
	rejected []rejections
	chosen   []bool   // nil if nothing is placed
	unknown  []string // names in the affinities that no cluster has
	stays    []string // clusters that are Fenced now, in which the object stays
	unspread []bool   // clusters that the spread constraints left out; nil: none
	cramped  bool     // replicas were divided by capacity
}

// Verdict is one reason why an object is not placed in some clusters, or would not be placed again.
type Verdict struct {
	Reason, Message string
	Clusters        []string // sorted by name
}

const (
	unknownMessage = "UnknownCluster, clusterNames names a cluster that was never joined"
	absentMessage  = "UnknownCluster, clusterNames names a cluster that was never joined, or that the namespace may not use"
)

// Of returns all reasons why an object is not in a cluster, in the filters' order. The result is
// empty if the object is in the cluster, or no such cluster exists. An object that stays in a
// cluster that is Fenced now has a verdict as well.
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
		w, why := v.idle(i)
		all = append(all, idler(w, why, []string{cluster}))
	}
	if slices.Contains(v.stays, cluster) {
		all = append(all, v.staysFenced([]string{cluster}))
	}
	return all
}

func (v *Verdicts) staysFenced(clusters []string) Verdict {
	return Verdict{Reason: ReasonStaysFenced, Message: v.request.Fence.Closed() + "; what was placed there before stays", Clusters: clusters}
}

// staysMessage does not name the ClusterAccess, unlike the verdict.
const staysMessage = "the namespace may not use it any more, and what was placed there before stays"

const noReplicasMessage = "it fits, and no replica fell to it"

// idleReasons are the reasons why a cluster that fits was not chosen, in the order of messages.
var idleReasons = [...]struct{ reason, message string }{
	{ReasonSpread, "it fits, and the spread constraints let in no more clusters of its groups"},
	{ReasonNoRoom, "it fits, and has no known room for a replica"},
	{ReasonNoReplicas, noReplicasMessage},
}

// idle returns the index in idleReasons for a cluster that fits and was not chosen, and what limits
// its capacity.
func (v *Verdicts) idle(i int) (reason int, why lack) {
	if v.cramped {
		n, why, known := v.request.fits(v.clusters[i], false)
		if !known || n <= 0 || !v.clusters[i].Reachable {
			return 1, why
		}
	}
	if v.unspread != nil && v.unspread[i] {
		return 0, lack{}
	}
	return 2, lack{}
}

// idler returns the verdict for clusters with the same result of idle.
func idler(reason int, why lack, clusters []string) Verdict {
	w := Verdict{Reason: idleReasons[reason].reason, Message: idleReasons[reason].message, Clusters: clusters}
	switch {
	case why.quota != "":
		w.Message = "it fits, and ResourceQuota " + why.quota + " of the cluster lets in no replica"
	case why.component != "":
		w.Message = "it fits, and has no known room for all components together: nothing is left for " + why.component
	}
	return w
}

// All returns the verdicts grouped by reason, in the filters' order, and by message within a
// reason. A cluster that several filters reject is in several verdicts.
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
		first := len(all)   // index of the filter's first verdict in all
		var like []*Cluster // one cluster for each verdict of the filter
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
	var idle [len(idleReasons)]map[lack][]string
	for i, c := range v.clusters {
		if v.chosen != nil && !v.chosen[i] && v.rejected[i] == 0 {
			w, why := v.idle(i)
			if idle[w] == nil {
				idle[w] = map[lack][]string{}
			}
			idle[w][why] = append(idle[w][why], c.Name)
		}
	}
	for w, names := range idle {
		for _, why := range slices.SortedFunc(maps.Keys(names), lack.compare) {
			all = append(all, idler(w, why, names[why]))
		}
	}
	if len(v.stays) > 0 {
		all = append(all, v.staysFenced(v.stays))
	}
	return all
}

// selected reports whether the policy is about the cluster. Clusters that the affinity does not
// select, and those of other groups, are left out of messages. Otherwise a message would change
// whenever any cluster joins.
func selected(r rejections) bool { return r&(1<<affinity|1<<otherGroup) == 0 }

// absent returns, sorted, the names in the affinities that belong to no cluster or to a cluster
// that is closed to the object. A user of the namespace cannot distinguish the two.
func (v *Verdicts) absent() []string {
	if v.request.Fence == nil {
		return v.unknown
	}
	var names []string
	for _, name := range v.request.Placement.named {
		if i := find(v.clusters, name); i < 0 || v.rejected[i]&(1<<fenced) != 0 {
			names = append(names, name)
		}
	}
	return names
}

// details lists why each cluster was not chosen; clusters that the affinity does not select only if
// all is set. Clusters that are closed to the object are left out.
func (v *Verdicts) details(all bool) string {
	var said []byte
	count := 0
	say := func(cluster string, message func() string) {
		if count++; count <= mostNamed {
			said = append(append(append(append(said, "; "...), cluster...), ": "...), message()...)
		}
	}
	missing := unknownMessage
	if v.request.Fence != nil {
		missing = absentMessage
	}
	for _, name := range v.absent() {
		say(name, func() string { return missing })
	}
	for i, rejected := range v.rejected {
		if rejected&(1<<fenced) == 0 && rejected != 0 && (all || selected(rejected)) {
			say(v.clusters[i].Name, func() string {
				return filters[bits.TrailingZeros16(uint16(rejected))].message(&v.request, v.clusters[i])
			})
		}
	}
	for _, name := range v.stays {
		say(name, func() string { return staysMessage })
	}
	return string(said) + more(count, "; ")
}
