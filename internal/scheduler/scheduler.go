// Package scheduler says which clusters an object is placed in and why not in the others.
// It is pure: the same clusters and the same request, in whatever order, give the same
// result.
//
// Filters come first, in a fixed order. Every filter looks at every cluster, so the verdicts
// name all that stands in the way. What is placed in a cluster stays there until the cluster
// leaves or the policy does not mean it any more: a cluster that does not answer or does not
// serve the kind, a new taint, a lack of room, another object and a fence let nothing new in and
// take nothing out.
//
// Spread constraints then choose among the clusters that passed: those first in which the object
// is, then those with the most room or weight. Last, replicas are shared out.
//
// They are by Webster's method (Sainte-Laguë), which never takes a replica from a cluster
// because its weight grew. Between clusters with equal claims the one with
// the greater weight comes first, then the one that a hash of the object's UID and the
// cluster's name picks, so that many small workloads do not all land in one cluster.
package scheduler

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

// Request is what is to be placed.
type Request struct {
	UID       types.UID // of the object
	Kind      schema.GroupVersionKind
	Namespace string // of the object; empty: it has none
	Placement *Placement
	// Fence of the object's namespace; nil: there is none.
	Fence Fence
	// Replicas that the object asks for; nil for kinds without, which are placed whole in
	// every cluster. Claim is what each of them claims of a cluster.
	Replicas *int32
	Claim    *Claim
	// Previous is where the object is placed now; Shared is true when its replicas there are
	// shares of what it asked for. Group is the group of the placement's clusterAffinities that
	// they are of.
	Previous []workv1alpha2.TargetCluster
	Shared   bool
	Group    string
	// Fresh decides as if nothing were placed yet, because the policy changed or somebody asked
	// for it. Clusters that take nothing new keep what they have even so.
	Fresh bool
	// Together are the clusters in which others of the object's affinity group are; empty: there
	// are none. Apart are those in which others of its anti-affinity group are.
	Together, Apart sets.Set[string]

	term int // that is tried
}

// divided is true when the object's replicas are shared out.
func (r *Request) divided() bool { return r.Replicas != nil && r.Placement.divided }

// Result is where an object is placed.
type Result struct {
	// Clusters by name.
	Clusters []workv1alpha2.TargetCluster
	// Shared is true when their replicas are shares of what the object asks for.
	Shared bool
	// Group is the group of the placement's clusterAffinities that they are of; empty where it
	// has none.
	Group    string
	Verdicts Verdicts
	// Reason is workv1alpha2.ReasonScheduled, ReasonNoClusterFits or ReasonInsufficient. With
	// NoClusterFits Clusters is what of the previous placement stays, with Insufficient there are
	// fewer replicas in it than the object asks for.
	Reason  string
	Message string
	// Unmatched is true when the policy selects none of the clusters: nothing stays.
	Unmatched bool
}

// Schedule places an object. The clusters are ordered by name.
func Schedule(clusters []*Cluster, r Request) Result {
	previous := r.Previous
	if !slices.IsSortedFunc(previous, byName) { // somebody else wrote it
		previous = slices.SortedFunc(slices.Values(previous), byName)
	}
	selection := r.Placement.selection(clusters)
	a := attempt{
		clusters: clusters, selection: selection, previous: previous,
		rejected: make([]rejections, len(clusters)), options: make([]option, 0, min(len(clusters), len(previous)+64)),
	}
	partial, some := anyTerm, false
	own := r.Placement.term(r.Group)
	for _, t := range r.order() {
		r.term = t
		if a.try(&r); a.targets != nil && a.shortage == "" {
			return a.result(&r)
		}
		// Room that nobody knows is not missing: for that nothing leaves its group.
		if blind := a.blind(); t == own && blind != "" {
			if partial = anyTerm; a.shortage == "" {
				break
			}
			a.shortage += "; how many have room in " + blind + " is not known"
			return a.result(&r)
		}
		// What fits whole nowhere is placed in part: where it is now, or else in the first group
		// in which any of it fits.
		if a.shortage != "" && (partial == anyTerm || !some && len(a.targets) > 0) {
			partial, some = t, len(a.targets) > 0
		}
	}
	if partial != anyTerm {
		r.term = partial
		a.try(&r)
		return a.result(&r)
	}
	why := a.why // of the last group
	if r.term = anyTerm; len(r.Placement.terms) != 1 {
		a.judge(&r)
	}
	v := a.verdicts(&r)
	if !selection.matched && r.Placement.wrongAffinity == nil {
		return Result{
			Shared: r.Shared, Verdicts: v, Reason: workv1alpha2.ReasonNoClusterFits, Unmatched: true,
			Message: "the policy selects no cluster of the fleet" + v.details(true),
		}
	}
	if why == "" {
		why = "no cluster fits"
	}
	kept := Keep(clusters, r.UID, r.Previous, r.Shared, r.Replicas)
	return Result{
		Clusters: kept, Shared: r.Shared, Group: r.Group, Verdicts: v, Reason: workv1alpha2.ReasonNoClusterFits,
		Message: staying(why, kept) + v.details(true),
	}
}

// order is the order in which the terms are tried: the one first in which the object is.
func (r *Request) order() []int {
	n := len(r.Placement.terms)
	order := make([]int, 0, n)
	if !r.Fresh && n > 0 {
		order = append(order, r.Placement.term(r.Group))
	}
	for i := range n {
		if !slices.Contains(order, i) {
			order = append(order, i)
		}
	}
	return order
}

// attempt is a try to place an object in the clusters of one term.
type attempt struct {
	clusters  []*Cluster
	selection *selection
	previous  []workv1alpha2.TargetCluster // by name

	rejected []rejections
	stays    []string
	options  []option // the clusters that passed the filters, by name
	unspread []bool   // clusters that the spread constraints left out; nil: there are none
	cramped  bool     // replicas were shared out by room

	targets  []workv1alpha2.TargetCluster // nil: nothing was placed
	shortage string                       // why it is less than was asked for
	why      string                       // nothing was placed although clusters passed the filters
}

// judge lets the filters look at all clusters.
func (a *attempt) judge(r *Request) {
	a.options, a.stays = a.options[:0], nil
	left := a.previous // both are ordered by name
	for i, c := range a.clusters {
		for len(left) > 0 && left[0].Name < c.Name {
			left = left[1:]
		}
		placed, has := len(left) > 0 && left[0].Name == c.Name, int64(0)
		if placed {
			has = current(left[0])
		}
		f := a.selection.of(i, r.term, placed)
		a.rejected[i] = r.judge(c, f)
		if placed && selected(a.rejected[i]) && r.closed(c) {
			a.stays = append(a.stays, c.Name)
		}
		if a.rejected[i] == 0 {
			a.options = append(a.options, option{cluster: c, at: i, placed: placed, keep: placed && !r.Fresh, has: has, tier: f.tier, weight: f.weight})
		}
	}
}

func (a *attempt) try(r *Request) {
	a.targets, a.shortage, a.why, a.unspread, a.cramped = nil, "", "", nil, false
	if a.judge(r); len(a.options) > 0 {
		a.assign(r)
	}
}

func (a *attempt) verdicts(r *Request) Verdicts {
	return Verdicts{
		request: *r, clusters: a.clusters, rejected: a.rejected, unknown: unknown(a.clusters, r.Placement), stays: a.stays,
		unspread: a.unspread, cramped: a.cramped,
	}
}

// result is that of an attempt that placed something.
func (a *attempt) result(r *Request) Result {
	v := a.verdicts(r)
	v.chosen = make([]bool, len(a.clusters))
	for i, at := 0, 0; i < len(a.clusters) && at < len(a.targets); i++ { // both are ordered by name
		if v.chosen[i] = a.clusters[i].Name == a.targets[at].Name; v.chosen[i] {
			at++
		}
	}
	result := Result{
		Clusters: a.targets, Shared: r.divided(), Group: r.Placement.terms[r.term].name, Verdicts: v, Reason: workv1alpha2.ReasonScheduled,
	}
	candidates := len(v.unknown)
	for _, rejected := range v.rejected {
		if selected(rejected) {
			candidates++
		}
	}
	result.Message = fmt.Sprintf("%d of %d clusters", len(a.targets), candidates)
	if result.Group != "" {
		result.Message += " of " + result.Group
	}
	if a.shortage != "" {
		result.Reason, result.Message = workv1alpha2.ReasonInsufficient, a.shortage
	}
	result.Message += v.details(false)
	return result
}

// Keep is what stays of a placement that nobody decides on any more: its clusters as long
// as they are in the fleet, with the replicas that the object asks for now, shared out or
// copied as they were. The clusters are ordered by name.
func Keep(
	clusters []*Cluster, uid types.UID, previous []workv1alpha2.TargetCluster, shared bool, replicas *int32,
) []workv1alpha2.TargetCluster {
	var has []candidate
	for _, t := range previous {
		if i := find(clusters, t.Name); i >= 0 && !clusters[i].Leaving {
			has = append(has, candidate{name: t.Name, weight: current(t)})
		}
	}
	slices.SortFunc(has, func(a, b candidate) int { return strings.Compare(a.name, b.name) })
	name := func(i int) string { return has[i].name }
	switch {
	case replicas == nil || !shared:
		return every(len(has), name, replicas)
	case *replicas <= 0:
		return every(len(has), name, new(int32(0)))
	}
	if !slices.ContainsFunc(has, func(c candidate) bool { return c.weight > 0 }) {
		for i := range has { // asleep until now
			has[i].weight = 1
		}
	}
	return share(uid, has, *replicas)
}

func byName(a, b workv1alpha2.TargetCluster) int { return strings.Compare(a.Name, b.Name) }

func current(t workv1alpha2.TargetCluster) int64 {
	if t.Replicas == nil {
		return 0
	}
	return int64(*t.Replicas)
}

// find is the place of a cluster in an ordered list; -1 when it is not there.
func find(clusters []*Cluster, name string) int {
	i, found := slices.BinarySearchFunc(clusters, name, func(c *Cluster, name string) int { return strings.Compare(c.Name, name) })
	if !found {
		return -1
	}
	return i
}

// unknown are the names in an affinity that no cluster has.
func unknown(clusters []*Cluster, p *Placement) []string {
	var names []string
	for _, name := range p.named {
		if find(clusters, name) < 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// mostNamed bounds the clusters that a message names.
const mostNamed = 10

// more ends a list of which only the first are named.
func more(count int, separator string) string {
	if count <= mostNamed {
		return ""
	}
	return fmt.Sprintf("%sand %d more", separator, count-mostNamed)
}

// staying ends the first sentence of a message about a placement that was not made.
func staying(why string, kept []workv1alpha2.TargetCluster) string {
	if len(kept) == 0 {
		return why
	}
	var names []string
	for _, t := range kept[:min(len(kept), mostNamed)] {
		names = append(names, t.Name)
	}
	return why + "; what runs in " + strings.Join(names, ", ") + more(len(kept), ", ") + " stays"
}
