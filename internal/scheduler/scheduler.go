// Package scheduler says which clusters an object is placed in and why not in the others.
// It is pure: the same clusters and the same request, in whatever order, give the same
// result.
//
// Filters come first, in a fixed order. Every filter looks at every cluster, so a verdict
// names all that stands in the way. What is not known (a cluster that does not answer, an
// API list that is not whole, a capacity that was not measured) and taints that appear
// later keep what is placed there and let nothing new in.
//
// Replicas are shared out by Webster's method (Sainte-Laguë), which never takes a replica
// from a cluster because its weight grew. Between clusters with equal claims the one with
// the greater weight comes first, then the one that a hash of the object's UID and the
// cluster's name picks, so that many small workloads do not all land in one cluster.
package scheduler

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"

	"orrery.dev/orrery/internal/presence"
)

// Cluster is what the scheduler knows of a cluster.
type Cluster struct {
	Name             string
	Labels           map[string]string
	Provider, Region string
	Zones            []string
	Taints           []corev1.Taint

	Leaving   bool     // it is being removed from the fleet
	Reachable bool     // it answers
	API       presence.Presence // of the object's kind
	// Available is how many more replicas fit; nil when that is not known. Only dynamic
	// weights look at it.
	Available *int64
}

// Request is what is to be placed.
type Request struct {
	UID       types.UID // of the object
	Placement policyv1alpha1.Placement
	// Replicas that the object asks for; nil for kinds without, which are placed whole in
	// every cluster.
	Replicas *int32
	// Previous is where the object is placed now, and Asked the Replicas it asked for then.
	Previous []workv1alpha2.TargetCluster
	Asked    *int32
	// Fresh shares replicas out anew although the previous placement would still do,
	// because the policy changed. Only dynamic weights have such a memory.
	Fresh bool
}

// Result is where an object is placed.
type Result struct {
	// Clusters by name.
	Clusters []workv1alpha2.TargetCluster
	// Verdicts on every cluster, by name.
	Verdicts []Verdict
	// Reason is workv1alpha2.ReasonScheduled, ReasonNoClusterFits or ReasonInsufficient.
	// With the latter two Clusters is what of the previous placement stays.
	Reason  string
	Message string
}

// Schedule places an object.
func Schedule(clusters []Cluster, r Request) Result {
	clusters = slices.SortedFunc(slices.Values(clusters), func(a, b Cluster) int { return strings.Compare(a.Name, b.Name) })
	verdicts := judge(clusters, r)
	fitting := make([]Cluster, 0, len(clusters))
	for i, c := range clusters {
		if verdicts[i].Fits() {
			fitting = append(fitting, c)
		}
	}
	verdicts = append(verdicts, unknownClusters(clusters, r.Placement.ClusterAffinity)...)
	slices.SortStableFunc(verdicts, func(a, b Verdict) int { return strings.Compare(a.Cluster, b.Cluster) })

	if len(fitting) == 0 {
		kept := Keep(clusters, r.UID, r.Previous, r.Asked, r.Replicas)
		return Result{
			Clusters: kept, Verdicts: verdicts, Reason: workv1alpha2.ReasonNoClusterFits,
			Message: staying("no cluster fits", kept) + details(verdicts, true),
		}
	}
	targets, shortage := assign(fitting, r)
	if shortage != "" {
		return Result{
			Clusters: targets, Verdicts: verdicts, Reason: workv1alpha2.ReasonInsufficient,
			Message: staying(shortage, targets) + details(verdicts, false),
		}
	}
	chosen := make(map[string]bool, len(targets))
	for _, t := range targets {
		chosen[t.Name] = true
	}
	candidates := 0
	for i := range verdicts {
		verdicts[i].Chosen = chosen[verdicts[i].Cluster]
		if verdicts[i].candidate() {
			candidates++
		}
	}
	return Result{
		Clusters: targets, Verdicts: verdicts, Reason: workv1alpha2.ReasonScheduled,
		Message: fmt.Sprintf("%d of %d clusters", len(targets), candidates) + details(verdicts, false),
	}
}

// Keep is what stays of a placement that nobody decides on any more: its clusters as long
// as they are in the fleet, with the replicas that the object asks for now, shared out or
// copied as they were. asked is what it asked for then.
func Keep(clusters []Cluster, uid types.UID, previous []workv1alpha2.TargetCluster, asked, replicas *int32) []workv1alpha2.TargetCluster {
	stays := make(map[string]bool, len(clusters))
	for _, c := range clusters {
		stays[c.Name] = !c.Leaving
	}
	kept := slices.DeleteFunc(slices.Clone(previous), func(t workv1alpha2.TargetCluster) bool { return !stays[t.Name] })
	slices.SortFunc(kept, func(a, b workv1alpha2.TargetCluster) int { return strings.Compare(a.Name, b.Name) })
	shared := replicas != nil && asked != nil && slices.ContainsFunc(previous, func(t workv1alpha2.TargetCluster) bool {
		return current(t) != int64(*asked)
	})
	switch {
	case !shared:
		return every(names(kept), replicas)
	case *replicas <= 0:
		return every(names(kept), new(int32(0)))
	default:
		return share(uid, weighted(kept), *replicas)
	}
}

func current(t workv1alpha2.TargetCluster) int64 {
	if t.Replicas == nil {
		return 0
	}
	return int64(*t.Replicas)
}

func names(targets []workv1alpha2.TargetCluster) []string {
	all := make([]string, len(targets))
	for i, t := range targets {
		all[i] = t.Name
	}
	return all
}

// every gives each cluster the same number of replicas.
func every(clusters []string, replicas *int32) []workv1alpha2.TargetCluster {
	targets := make([]workv1alpha2.TargetCluster, len(clusters))
	for i, name := range clusters {
		targets[i].Name = name
		if replicas != nil {
			targets[i].Replicas = new(*replicas)
		}
	}
	return targets
}

// staying ends the first sentence of a message about a placement that was not made.
func staying(why string, kept []workv1alpha2.TargetCluster) string {
	if len(kept) == 0 {
		return why
	}
	return why + "; what runs in " + strings.Join(first(names(kept)), ", ") + " stays"
}

// mostNamed bounds the clusters that a message names.
const mostNamed = 10

func first(list []string) []string {
	if more := len(list) - mostNamed; more > 0 {
		return append(slices.Clone(list[:mostNamed]), fmt.Sprintf("and %d more", more))
	}
	return list
}

// details says of each cluster that was not chosen why not. Those that the affinity does
// not select are none of the policy's business, so that a message does not change
// whenever some cluster joins; they are told only when nothing fits at all.
func details(verdicts []Verdict, all bool) string {
	var said []string
	for _, v := range verdicts {
		if !v.Chosen && len(v.Rejections) > 0 && (all || v.candidate()) {
			said = append(said, v.Cluster+": "+v.Rejections[0].Message)
		}
	}
	if len(said) == 0 {
		return ""
	}
	return "; " + strings.Join(first(said), "; ")
}

// unknownClusters are verdicts on the names in an affinity that no cluster has.
func unknownClusters(clusters []Cluster, affinity *policyv1alpha1.ClusterAffinity) []Verdict {
	if affinity == nil {
		return nil
	}
	var verdicts []Verdict
	for _, name := range affinity.ClusterNames {
		_, known := slices.BinarySearchFunc(clusters, name, func(c Cluster, name string) int { return cmp.Compare(c.Name, name) })
		if !known && !slices.Contains(affinity.ExcludeClusters, name) {
			verdicts = append(verdicts, Verdict{Cluster: name, Rejections: []Rejection{{
				Reason: ReasonUnknownCluster, Message: ReasonUnknownCluster + ", clusterNames names a cluster that was never joined",
			}}})
		}
	}
	return verdicts
}
