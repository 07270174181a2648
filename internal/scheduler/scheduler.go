// Package scheduler decides which clusters an object is placed in, and why it is not placed in the
// others. It is pure: the same request and clusters always give the same result.
//
// Filters come first, in a fixed order. Every filter judges every cluster, so the verdicts list all
// reasons. An object stays in a cluster until the cluster leaves, the policy no longer selects the
// cluster, or the request says that it leaves, because a taint evicts it. Unreachability, a kind
// that is not served, a new taint, missing capacity, another object and a fence only keep new
// objects out.
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
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

// Request describes an object to place, for Schedule, which does not change it.
type Request struct {
	UID       types.UID // of the object
	Kind      schema.GroupVersionKind
	Namespace string // "" for a cluster-scoped object
	Placement *Placement
	// Fence says which clusters the object's namespace may use; nil: all.
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
	// Fresh makes the decision as if the object were not placed, because the policy changed or a user
	// requested it. Clusters that take no new objects keep what they have even then.
	Fresh bool
	// Together is the set of clusters that have other objects of the affinity group; empty: there
	// are none. Apart is the set of clusters that have other objects of the anti-affinity group.
	Together, Apart sets.Set[string]
	// Leaves are clusters in which the object does not stay, because a taint evicts it.
	Leaves sets.Set[string]
	// Now is the time of the decision: a toleration with tolerationSeconds that is over then no longer
	// counts for the choice of clusters. Zero: each toleration counts.
	Now time.Time

	term int // index of the term that is being tried
}

// divided reports whether the object's replicas are divided among clusters. It is false for an
// object without replicas.
func (r *Request) divided() bool {
	return r.Replicas != nil && (r.Placement.divided || r.Components != nil)
}

// Result is the decision of Schedule on an object.
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

// Schedule decides where to place an object. The clusters must be sorted by name. The list must not
// be changed afterwards, because the placement of the request caches what it selects from it. An
// object that cannot be placed is no error: see Result.Reason. Schedule may be called concurrently.
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

// place tries the terms of the placement, which are its groups of clusterAffinities, in order. It
// returns the result of the first term in which the object fits completely. If there is none, the
// result is that of a term in which a part of the replicas fits. Otherwise it is what stays of the
// previous placement.
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
	var unmet []string
	own := r.Placement.term(r.Group)
	for _, t := range r.order() {
		r.term = t
		if a.try(&r); a.targets != nil && a.shortage == "" {
			return a.result(&r)
		}
		if a.why != "" {
			if unmet == nil {
				unmet = make([]string, len(r.Placement.terms))
			}
			unmet[t] = a.why
		}
		// Unknown capacity is not missing capacity: an object does not leave its group because of it.
		if blind := a.blind(); t == own && blind != "" {
			if partial = anyTerm; a.shortage == "" {
				break
			}
			a.shortage += "; the free capacity of " + blind + " is unknown"
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
	why := a.why // the reason of the last term that was tried
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
	v.choose(kept)
	v.unplaced, v.unmet = true, unmet // for the clusters that passed the filters
	return Result{
		Clusters: kept, Shared: r.Shared, Group: r.Group, Verdicts: v, Reason: workv1alpha2.ReasonNoClusterFits,
		Message: staying(why, kept) + v.details(true),
	}
}

// order returns the indexes of the terms in the order in which place tries them. Unless the
// decision is fresh, the term in which the object is placed now comes first. It is empty for an
// invalid affinity.
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

// attempt tries to place an object in the clusters of one term (group of clusterAffinities). One
// attempt is used for all terms, one after the other.
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

// judge applies the filters to all clusters for the term r.term. It sets rejected, stays (clusters
// that are closed to the object now and in which it stays) and options (clusters that pass).
func (a *attempt) judge(r *Request) {
	a.options, a.stays = a.options[:0], nil
	left := a.previous // a.clusters and a.previous are sorted by name
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

// matched reports whether any term selects a cluster that the object's namespace may use. judge
// must have set rejected.
func (a *attempt) matched() bool {
	for i, rejected := range a.rejected {
		if rejected&(1<<fenced) == 0 && a.selection.selects(i) {
			return true
		}
	}
	return false
}

// try judges all clusters for the term r.term, and divides the replicas among those that pass the
// filters. It sets targets, or leaves targets nil if nothing can be placed.
func (a *attempt) try(r *Request) {
	a.targets, a.shortage, a.why, a.unspread, a.cramped = nil, "", "", nil, false
	if a.judge(r); len(a.options) > 0 {
		a.assign(r)
	}
}

// verdicts returns the verdicts of the last judge, with chosen nil: no cluster was chosen.
func (a *attempt) verdicts(r *Request) Verdicts {
	return Verdicts{
		request: *r, clusters: a.clusters, rejected: a.rejected, unknown: unknown(a.clusters, r.Placement), stays: a.stays,
		unspread: a.unspread, cramped: a.cramped,
	}
}

// choose records the clusters that the object is in. The targets must be sorted by name.
func (v *Verdicts) choose(targets []workv1alpha2.TargetCluster) {
	v.chosen = make([]bool, len(v.clusters))
	for i, at := 0, 0; i < len(v.clusters) && at < len(targets); i++ {
		if v.chosen[i] = v.clusters[i].Name == targets[at].Name; v.chosen[i] {
			at++
		}
	}
}

// result returns the result for an attempt that placed the object, at least in part: a.targets is
// not nil.
func (a *attempt) result(r *Request) Result {
	v := a.verdicts(r)
	v.choose(a.targets)
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

// lacks returns the reasons for missing capacity other than full nodes, such as a quota, each with
// its clusters, as the end of a message; "" if there are none.
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
			fmt.Fprintf(&said, "; ResourceQuota %s limits how many fit in %s", l.quota, firstOf(clusters[l]))
		} else {
			fmt.Fprintf(&said, "; nothing is left for %s in %s", l.component, firstOf(clusters[l]))
		}
	}
	return said.String()
}

// Keep returns the part of a placement (previous) that stays if no new decision is made: its
// clusters that are in the fleet and not leaving, sorted by name. If shared, Keep divides the
// object's present replicas among these clusters in proportion to the replicas that they have, or
// equally if they have none. Clusters without a replica are then left out, unless the object has 0
// replicas. If not shared, each cluster gets all replicas. replicas is nil for an object without
// replicas. The clusters must be sorted by name.
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
		for i := range has { // all clusters had 0 replicas
			has[i].weight = 1
		}
	}
	return share(uid, has, *replicas)
}

// byName compares two targets by the name of the cluster, for slices.SortFunc.
func byName(a, b workv1alpha2.TargetCluster) int { return strings.Compare(a.Name, b.Name) }

// current returns the replicas of a target; 0 if the target has no number.
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

// unknown returns, sorted, the names that the affinities of p list and no cluster has. The clusters
// must be sorted by name.
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

// mostNamed is the maximum number of clusters that a message names.
const mostNamed = 10

// more returns the end of a list in a message, which names only the first mostNamed of count names:
// separator and "and N more". It is "" if the list names all.
func more(count int, separator string) string {
	if count <= mostNamed {
		return ""
	}
	return fmt.Sprintf("%sand %d more", separator, count-mostNamed)
}

// firstOf joins the first mostNamed names with commas, and adds the number of the remaining names.
func firstOf(names []string) string {
	return strings.Join(names[:min(len(names), mostNamed)], ", ") + more(len(names), ", ")
}

// staying returns the message in why, followed by the names of the clusters in kept, in which the
// object stays. If kept is empty it returns why unchanged.
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
