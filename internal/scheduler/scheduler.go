// Package scheduler says which clusters an object is placed in and why not in the others.
// It is pure: the same clusters and the same request, in whatever order, give the same
// result.
//
// Filters come first, in a fixed order. Every filter looks at every cluster, so the verdicts
// name all that stands in the way. What is placed in a cluster stays there until the cluster
// leaves or the policy does not mean it any more: a cluster that does not answer or does not
// serve the kind, a new taint, a lack of room and a fence let nothing new in and take nothing out.
//
// Replicas are shared out by Webster's method (Sainte-Laguë), which never takes a replica
// from a cluster because its weight grew. Between clusters with equal claims the one with
// the greater weight comes first, then the one that a hash of the object's UID and the
// cluster's name picks, so that many small workloads do not all land in one cluster.
package scheduler

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

// Request is what is to be placed.
type Request struct {
	UID       types.UID // of the object
	Kind      schema.GroupVersionKind
	Placement *Placement
	// Fence of the object's namespace; nil: there is none.
	Fence Fence
	// Replicas that the object asks for; nil for kinds without, which are placed whole in
	// every cluster. Requests is what each of them requests of a node.
	Replicas *int32
	Requests corev1.ResourceList
	// Previous is where the object is placed now; Shared is true when its replicas there are
	// shares of what it asked for.
	Previous []workv1alpha2.TargetCluster
	Shared   bool
	// Fresh shares replicas out anew although the previous placement would still do,
	// because the policy changed. Only dynamic weights have such a memory.
	Fresh bool
}

// divided is true when the object's replicas are shared out.
func (r *Request) divided() bool { return r.Replicas != nil && r.Placement.divided }

// Result is where an object is placed.
type Result struct {
	// Clusters by name.
	Clusters []workv1alpha2.TargetCluster
	// Shared is true when their replicas are shares of what the object asks for.
	Shared   bool
	Verdicts Verdicts
	// Reason is workv1alpha2.ReasonScheduled, ReasonNoClusterFits or ReasonInsufficient.
	// With the latter two Clusters is what of the previous placement stays.
	Reason  string
	Message string
}

// Schedule places an object. The clusters are ordered by name.
func Schedule(clusters []*Cluster, r Request) Result {
	previous := make(map[string]int64, len(r.Previous))
	for _, t := range r.Previous {
		previous[t.Name] = current(t)
	}
	v := Verdicts{request: r, clusters: clusters, rejected: make([]rejections, len(clusters)), unknown: unknown(clusters, r.Placement)}
	fitting, candidates := make([]*Cluster, 0, len(clusters)), len(v.unknown)
	for i, c := range clusters {
		_, placed := previous[c.Name]
		v.rejected[i] = r.judge(c, placed)
		if placed && selected(v.rejected[i]) && r.closed(c) {
			v.stays = append(v.stays, c.Name)
		}
		if v.rejected[i] == 0 {
			fitting = append(fitting, c)
		}
		if selected(v.rejected[i]) {
			candidates++
		}
	}

	if len(fitting) == 0 {
		kept := Keep(clusters, r.UID, r.Previous, r.Shared, r.Replicas)
		return Result{
			Clusters: kept, Shared: r.Shared, Verdicts: v, Reason: workv1alpha2.ReasonNoClusterFits,
			Message: staying("no cluster fits", kept) + v.details(true),
		}
	}
	targets, shortage := assign(fitting, &r, previous)
	if shortage != "" {
		return Result{
			Clusters: targets, Shared: true, Verdicts: v, Reason: workv1alpha2.ReasonInsufficient,
			Message: staying(shortage, targets) + v.details(false),
		}
	}
	v.chosen = make([]bool, len(clusters))
	for i, at := 0, 0; i < len(clusters) && at < len(targets); i++ { // both are ordered by name
		if v.chosen[i] = clusters[i].Name == targets[at].Name; v.chosen[i] {
			at++
		}
	}
	return Result{
		Clusters: targets, Shared: r.divided(), Verdicts: v, Reason: workv1alpha2.ReasonScheduled,
		Message: fmt.Sprintf("%d of %d clusters", len(targets), candidates) + v.details(false),
	}
}

// Keep is what stays of a placement that nobody decides on any more: its clusters as long
// as they are in the fleet, with the replicas that the object asks for now, shared out or
// copied as they were. The clusters are ordered by name.
func Keep(
	clusters []*Cluster, uid types.UID, previous []workv1alpha2.TargetCluster, shared bool, replicas *int32,
) []workv1alpha2.TargetCluster {
	var kept []*Cluster
	var has []candidate
	for _, t := range previous {
		if i := find(clusters, t.Name); i >= 0 && !clusters[i].Leaving {
			has = append(has, candidate{i: len(kept), name: t.Name, weight: current(t)})
			kept = append(kept, clusters[i])
		}
	}
	slices.SortFunc(kept, func(a, b *Cluster) int { return strings.Compare(a.Name, b.Name) })
	switch {
	case replicas == nil || !shared:
		return every(kept, replicas)
	case *replicas <= 0:
		return every(kept, new(int32(0)))
	}
	if !slices.ContainsFunc(has, func(c candidate) bool { return c.weight > 0 }) {
		for i := range has { // asleep until now
			has[i].weight = 1
		}
	}
	return share(uid, has, *replicas)
}

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
