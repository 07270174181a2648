package scheduler

import (
	"cmp"
	"maps"
	"math/bits"
	"slices"
	"strings"
)

// Verdicts holds which filters reject which clusters in one decision, and which clusters were
// chosen. Messages are made on demand. It is not changed after Schedule, and may be used from
// several goroutines.
type Verdicts struct {
	request  Request
	clusters []*Cluster
	rejected []rejections
	chosen   []bool   // nil: none
	unknown  []string // names in the affinities that no cluster has
	stays    []string // clusters that are Fenced now, in which the object stays
	unspread []bool   // clusters that the spread constraints left out; nil: none
	cramped  bool     // replicas were divided by capacity
	unplaced bool     // nothing was chosen, although clusters may have passed the filters
	unmet    []string // by term: why no choice meets the spread constraints; "": it was not tried
}

// Verdict is one reason why an object is not placed in some clusters. A verdict with
// ReasonStaysFenced is about clusters in which the object stays, but would not be placed again.
type Verdict struct {
	Reason, Message string
	Clusters        []string // sorted by name
}

const (
	// unknownMessage is about a name in the affinities that no cluster has.
	unknownMessage = "UnknownCluster, no cluster of the fleet has this name: correct the policy, or join the cluster"
	// absentMessage is about such a name in messages for users of a namespace with a fence, who must
	// not see whether the cluster exists.
	absentMessage = "UnknownCluster, no cluster that the namespace may use has this name: correct the policy, or join the cluster"
)

// Of returns all reasons why an object is not in a cluster, in the order of the filters. It is
// empty if the object is in the cluster. For a name that no cluster has, it is empty unless the
// policy names it. An object that stays in a cluster that is closed to it now has a verdict with
// ReasonStaysFenced.
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
	if all == nil && !v.has(i) {
		all = append(all, v.idle(i).verdict([]string{cluster}))
	}
	if slices.Contains(v.stays, cluster) {
		all = append(all, v.staysFenced([]string{cluster}))
	}
	return all
}

// has reports whether the object is in cluster i.
func (v *Verdicts) has(i int) bool { return v.chosen != nil && v.chosen[i] }

// staysFenced returns the verdict with ReasonStaysFenced: the clusters are closed to the object
// now, and the object stays in them.
func (v *Verdicts) staysFenced(clusters []string) Verdict {
	return Verdict{Reason: ReasonStaysFenced, Message: v.request.Fence.Closed() + "; what was placed there before stays", Clusters: clusters}
}

// staysMessage is the message of Result about a cluster that is closed to the object now and in
// which it stays. Unlike the verdict, it does not name the ClusterAccess, because users of the
// namespace read it.
const staysMessage = "the namespace may not use it any more, and what was placed there before stays"

// noReplicasMessage is the message of the verdict ReasonNoReplicas.
const noReplicasMessage = "it matches, but got no replica"

// idleReasons are the reasons why a cluster that fits was not chosen, in the order of messages.
var idleReasons = [...]struct{ reason, message string }{
	{ReasonSpread, "it matches, but the spread constraints allow no more clusters of its groups"},
	{ReasonNoRoom, "it matches, but has no known free capacity for a replica"},
	{ReasonNoReplicas, noReplicasMessage},
	{ReasonSpreadUnmet, "it matches, but "}, // idle.unmet follows
	{ReasonOtherGroup, "it matches, but the object does not leave its group of clusterAffinities while free capacity there is unknown"},
}

// idle is why a cluster was not chosen although it passed all filters.
type idle struct {
	reason int    // index in idleReasons
	lack   lack   // what limits its capacity; zero if that is not the reason, or if its nodes are full
	unmet  string // the end of the message with ReasonSpreadUnmet
}

// compare orders values of idle by reason, then by lack and unmet.
func (d idle) compare(other idle) int {
	return cmp.Or(cmp.Compare(d.reason, other.reason), d.lack.compare(other.lack), strings.Compare(d.unmet, other.unmet))
}

// idle returns why cluster i was not chosen although it passed all filters.
func (v *Verdicts) idle(i int) idle {
	if v.cramped {
		n, why, known := v.request.fits(v.clusters[i], false)
		if !known || n <= 0 || !v.clusters[i].Reachable {
			return idle{reason: 1, lack: why}
		}
	}
	switch {
	case v.unplaced:
		if why := v.unmetFor(v.clusters[i]); why != "" {
			return idle{reason: 3, unmet: why}
		}
		return idle{reason: 4}
	case v.unspread != nil && v.unspread[i]:
		return idle{reason: 0}
	default:
		return idle{reason: 2}
	}
}

// unmetFor returns why no choice meets the spread constraints in the first term, in the order of
// the policy, that was tried and selects the cluster; "" if there is none.
func (v *Verdicts) unmetFor(c *Cluster) string {
	for t, why := range v.unmet {
		if term := &v.request.Placement.terms[t]; why != "" && term.tier(c) != noTier {
			if term.name == "" {
				return why
			}
			return "in " + term.name + ", a group of clusterAffinities, " + why
		}
	}
	return ""
}

// verdict returns the verdict for clusters that were not chosen because of d.
func (d idle) verdict(clusters []string) Verdict {
	w := Verdict{Reason: idleReasons[d.reason].reason, Message: idleReasons[d.reason].message + d.unmet, Clusters: clusters}
	switch {
	case d.lack.quota != "":
		w.Message = "it matches, but ResourceQuota " + d.lack.quota + " of the cluster allows no replica"
	case d.lack.component != "":
		w.Message = "it matches, but has no known free capacity for all components together: nothing is left for " + d.lack.component
	}
	return w
}

// All returns the verdicts on all clusters, one for each reason and message. The order is that of
// the filters; unknown names come first. A cluster that several filters reject is in several
// verdicts. The lists of clusters are read-only.
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
		var like []*Cluster // a cluster with the same message, for each verdict of the filter
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
	unchosen := map[idle][]string{}
	for i, c := range v.clusters {
		if !v.has(i) && v.rejected[i] == 0 {
			d := v.idle(i)
			unchosen[d] = append(unchosen[d], c.Name)
		}
	}
	for _, d := range slices.SortedFunc(maps.Keys(unchosen), idle.compare) {
		all = append(all, d.verdict(unchosen[d]))
	}
	if len(v.stays) > 0 {
		all = append(all, v.staysFenced(v.stays))
	}
	return all
}

// selected reports whether the policy selects a cluster with these rejections, in the group that
// was tried. Other clusters are left out of messages. Otherwise a message would change whenever any
// cluster joins.
func selected(r rejections) bool { return r&(1<<affinity|1<<otherGroup) == 0 }

// absent returns, sorted, the names in the affinities that no cluster has or whose cluster is
// closed to the object. A user of the namespace cannot distinguish the two.
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

// details returns, as the end of a message, why each cluster was not chosen: one reason each, for
// at most mostNamed clusters. Clusters that the affinity does not select are included only if all
// is true. Clusters that are closed to the object are left out. It is "" if no cluster remains.
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
