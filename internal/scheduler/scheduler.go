// Package scheduler decides which clusters an object is placed in, and why it is not placed in the
// others. It is pure: the same request and clusters always give the same result.
//
// Filters come first, in a fixed order. Every filter judges every cluster, so the verdicts list all
// reasons. An object stays in a cluster until the cluster leaves or the policy no longer selects
// the cluster. Unreachability, a kind that is not served, a new taint, missing capacity, another
// object and a fence only keep new objects out.
//
// A cluster that the fence closes to the object, and that the object is not in, decides nothing:
// the placement, the reason and the message are those of a fleet without that cluster, because
// the users of the namespace read them. Only Verdicts.All and Verdicts.Of have such clusters.
//
// Spread constraints then choose among the clusters that passed. Clusters that have the object come
// first, then those with the most capacity or weight. Last, the replicas are divided.
//
// Replicas are divided by Webster's method (Sainte-Laguë), which never takes a replica from a
// cluster because its weight grew. Between equal quotients the cluster with the greater weight
// comes first. Ties are then broken by a hash of the object's UID and the cluster's name, so that
// small workloads do not all go to one cluster.
package scheduler

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

// Request describes the object to place.
type Request struct {
	UID       types.UID // of the object
	Kind      schema.GroupVersionKind
	Namespace string // "" for a cluster-scoped object
	Placement *Placement
	// Fence of the object's namespace; nil: no restriction.
	Fence Fence
	// Replicas that the object requests. It is nil for kinds without replicas, which are placed
	// whole in every cluster. Claim is what each replica requires of a cluster.
	Replicas *int32
	Claim    *Claim
	// Components of an object whose kind has several; nil for other kinds, and if Replicas is set.
	// All components are placed together: in one cluster if Placement.Once, else in each.
	Components []Component
	// Previous is the current placement. Shared is true if its replicas are shares of the object's
	// replicas. Group is the group of clusterAffinities that the current placement is in.
	Previous []workv1alpha2.TargetCluster
	Shared   bool
	Group    string
	// Fresh makes the decision as if the object were not placed, because the policy changed or a
	// user requested it. Clusters that take nothing new keep what they have even then.
	Fresh bool
	// Together is the set of clusters that have other objects of the affinity group; empty: there
	// are none. Apart is the set of clusters that have other objects of the anti-affinity group.
	Together, Apart sets.Set[string]

	term int // index of the term that is being tried
}

// divided reports whether the object's replicas are divided among clusters.
func (r *Request) divided() bool {
	return r.Replicas != nil && (r.Placement.divided || r.Components != nil)
}

// Result is the decision for an object.
type Result struct {
	// Clusters, sorted by name.
	Clusters []workv1alpha2.TargetCluster
	// Shared is true if the replicas of Clusters are shares of the object's replicas.
	Shared bool
	// Group is the group of clusterAffinities that Clusters are in; "" if the placement has no
	// groups.
	Group    string
	Verdicts Verdicts
	// Reason is workv1alpha2.ReasonScheduled, ReasonNoClusterFits or ReasonInsufficient. With
	// NoClusterFits, Clusters is the part of the previous placement that stays. With Insufficient,
	// Clusters has fewer replicas than the object requests.
	Reason  string
	Message string
	// Unmatched is true if the policy selects no cluster that the object may be in. Then nothing
	// stays.
	Unmatched bool
}

// Schedule decides where to place an object. The clusters must be sorted by name.
func Schedule(clusters []*Cluster, r Request) Result {
	if r.Components == nil || !r.Placement.Once() {
		r.Components = nil
		return place(clusters, r)
	}
	// All components together count as one replica.
	r.Replicas, r.Shared = new(int32(1)), false
	r.Previous = slices.Clone(r.Previous)
	for i := range r.Previous {
		r.Previous[i].Replicas = r.Replicas
	}
	result := place(clusters, r)
	for i := range result.Clusters {
		result.Clusters[i].Replicas = nil
	}
	result.Shared = false
	return result
}

// place tries the terms of the placement in order and returns the result of the best one.
func place(clusters []*Cluster, r Request) Result {
	previous := r.Previous
	if !slices.IsSortedFunc(previous, byName) { // another client wrote the binding
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
		// Unknown capacity is not missing capacity: an object does not leave its group for it.
		if blind := a.blind(); t == own && blind != "" {
			if partial = anyTerm; a.shortage == "" {
				break
			}
			a.shortage += "; how many have room in " + blind + " is not known"
			return a.result(&r)
		}
		// An object that fits completely in no term is placed in part: in its current term, or else
		// in the first term with capacity for any replica.
		if a.shortage != "" && (partial == anyTerm || !some && len(a.targets) > 0) {
			partial, some = t, len(a.targets) > 0
		}
	}
	if partial != anyTerm {
		r.term = partial
		a.try(&r)
		return a.result(&r)
	}
	why := a.why // from the last term
	if r.term = anyTerm; len(r.Placement.terms) != 1 {
		a.judge(&r)
	}
	v := a.verdicts(&r)
	if !a.matched() && r.Placement.wrongAffinity == nil {
		message := "the policy selects no cluster of the fleet"
		if r.Fence != nil {
			message = "the policy selects no cluster that the namespace may use"
		}
		return Result{
			Shared: r.Shared, Verdicts: v, Reason: workv1alpha2.ReasonNoClusterFits, Unmatched: true,
			Message: message + v.details(true),
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

// order returns the indexes of the terms in the order in which they are tried. Unless the decision
// is fresh, the current term of the object comes first.
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

// attempt tries to place an object in the clusters of one term.
type attempt struct {
	clusters  []*Cluster
	selection *selection
	previous  []workv1alpha2.TargetCluster // sorted by name

	rejected []rejections
	stays    []string
	options  []option // the clusters that passed the filters, sorted by name
	unspread []bool   // clusters that the spread constraints left out; nil: no constraints
	cramped  bool     // replicas are divided by capacity

	targets  []workv1alpha2.TargetCluster // nil: nothing is placed
	shortage string                       // why fewer replicas than requested are placed
	why      string                       // why nothing is placed although clusters passed
}

// judge applies the filters to all clusters, and sets rejected, stays and options.
func (a *attempt) judge(r *Request) {
	a.options, a.stays = a.options[:0], nil
	left := a.previous // both are sorted by name
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

// matched reports whether a term selects a cluster that the object may be in. It needs rejected.
func (a *attempt) matched() bool {
	for i, rejected := range a.rejected {
		if rejected&(1<<fenced) == 0 && a.selection.selects(i) {
			return true
		}
	}
	return false
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

// result returns the result of an attempt that placed the object.
func (a *attempt) result(r *Request) Result {
	v := a.verdicts(r)
	v.chosen = make([]bool, len(a.clusters))
	for i, at := 0, 0; i < len(a.clusters) && at < len(a.targets); i++ { // both are sorted by name
		if v.chosen[i] = a.clusters[i].Name == a.targets[at].Name; v.chosen[i] {
			at++
		}
	}
	result := Result{
		Clusters: a.targets, Shared: r.divided(), Group: r.Placement.terms[r.term].name, Verdicts: v, Reason: workv1alpha2.ReasonScheduled,
	}
	candidates := len(v.absent())
	for _, rejected := range v.rejected {
		if rejected&(1<<fenced) == 0 && selected(rejected) {
			candidates++
		}
	}
	result.Message = fmt.Sprintf("%d of %d clusters", len(a.targets), candidates)
	if result.Group != "" {
		result.Message += " of " + result.Group
	}
	if a.shortage != "" {
		result.Reason, result.Message = workv1alpha2.ReasonInsufficient, a.shortage+a.lacks()
	}
	result.Message += v.details(false)
	return result
}

// lacks lists the limits on capacity other than full nodes, each with its clusters.
func (a *attempt) lacks() string {
	clusters := map[lack][]string{}
	for i := range a.options {
		if o := &a.options[i]; o.lack != nil {
			clusters[*o.lack] = append(clusters[*o.lack], o.cluster.Name)
		}
	}
	var said strings.Builder
	for _, l := range slices.SortedFunc(maps.Keys(clusters), lack.compare) {
		if l.quota != "" {
			fmt.Fprintf(&said, "; ResourceQuota %s bounds how many fit in %s", l.quota, firstOf(clusters[l]))
		} else {
			fmt.Fprintf(&said, "; nothing is left for %s in %s", l.component, firstOf(clusters[l]))
		}
	}
	return said.String()
}

// Keep returns the part of a placement that stays if no new decision is made: its clusters that are
// still in the fleet. The object's present replicas are divided among them if shared, else each
// gets all. The clusters must be sorted by name.
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
		for i := range has { // all had 0 replicas
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

// find returns the index of a cluster in a list that is sorted by name; -1 if it is missing.
func find(clusters []*Cluster, name string) int {
	i, found := slices.BinarySearchFunc(clusters, name, func(c *Cluster, name string) int { return strings.Compare(c.Name, name) })
	if !found {
		return -1
	}
	return i
}

// unknown returns the names in the affinities that no cluster has.
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

// mostNamed is the number of clusters that a message names at most.
const mostNamed = 10

// more returns the end of a list that names only the first mostNamed of count.
func more(count int, separator string) string {
	if count <= mostNamed {
		return ""
	}
	return fmt.Sprintf("%sand %d more", separator, count-mostNamed)
}

// firstOf joins the first mostNamed names, and adds the number of the others.
func firstOf(names []string) string {
	return strings.Join(names[:min(len(names), mostNamed)], ", ") + more(len(names), ", ")
}

// staying adds to the message why the clusters in which the object stays.
func staying(why string, kept []workv1alpha2.TargetCluster) string {
	if len(kept) == 0 {
		return why
	}
	var names []string
	for _, t := range kept {
		names = append(names, t.Name)
	}
	return why + "; what runs in " + firstOf(names) + " stays"
}
