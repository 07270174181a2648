package explanation

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/placement"
)

// waits returns what is not done yet, and what it waits for.
func (f *facts) waits(seen *sight) []fleetv1alpha1.PlacementWait {
	var all []fleetv1alpha1.PlacementWait
	add := func(what fleetv1alpha1.WaitReason, message string, clusters ...string) {
		all = append(all, fleetv1alpha1.PlacementWait{For: what, Message: message, Clusters: clusters})
	}
	b := f.binding
	if f.claims.NoClass != "" {
		add(fleetv1alpha1.WaitPriorityClass, fmt.Sprintf("the policy names PriorityClass %s, which the hub does not have: create it, or name another", f.claims.NoClass))
	}
	switch {
	case b == nil && f.object != nil && len(placement.DeletionWaitsFor(f.object)) > 0:
		add(fleetv1alpha1.WaitFinalizer, "the object was deleted on the hub and has no copies any more; it stays until these finalizers are removed: "+
			strings.Join(placement.DeletionWaitsFor(f.object), ", "))
	case b == nil && f.claims.NoClass == "":
		add(fleetv1alpha1.WaitDecision, "where it belongs is decided in a moment")
	case b == nil:
	case !b.DeletionTimestamp.IsZero():
		f.waitsRemoval(add, seen)
	default:
		if len(placement.DeletionWaitsFor(f.object)) > 0 {
			add(fleetv1alpha1.WaitFinalizer, placement.DeletionWaits(f.object))
		}
		if c := meta.FindStatusCondition(b.Status.Conditions, workv1alpha2.ConditionDeletionWaits); c != nil && c.Reason == workv1alpha2.ReasonDependenciesBehind {
			add(fleetv1alpha1.WaitRemoval, c.Message)
		}
		f.waitsPlaced(add, seen)
		f.waitsContested(add, seen)
	}
	return all
}

// contests returns the writers that change the copy each time after the hub restores it, by
// cluster of a binding.
func (e *Explainer) contests(b *workv1alpha2.ResourceBinding) map[string]string {
	all := map[string]string{}
	for cluster := range binding.Clusters(b) {
		if c := e.know.Applier.Contest(b.UID, cluster); c.Message != "" {
			all[cluster] = c.Message
		}
	}
	return all
}

// waitsContested adds the contests in clusters that the caller sees.
func (f *facts) waitsContested(add func(fleetv1alpha1.WaitReason, string, ...string), seen *sight) {
	for _, cluster := range slices.Sorted(maps.Keys(f.contests)) {
		if seen.cluster(cluster) {
			add(fleetv1alpha1.WaitContest, f.contests[cluster], cluster)
		}
	}
}

// propagation returns how the copies of a binding are deleted, for the end of a message; "" for
// deletion in the background.
func propagation(b *workv1alpha2.ResourceBinding) string {
	switch b.Spec.DeletionPropagation {
	case metav1.DeletePropagationForeground:
		return ": by propagation Foreground, each goes after what it owns"
	case metav1.DeletePropagationOrphan:
		return ": by propagation Orphan, each goes when its cluster has let go of what it owns, which stays"
	default:
		return ""
	}
}

// waitsPlaced adds what a placed object waits for.
func (f *facts) waitsPlaced(add func(fleetv1alpha1.WaitReason, string, ...string), seen *sight) {
	b := f.binding
	reason, message := f.scheduled()
	message = cmp.Or(seen.message(message), unseen)
	switch reason {
	case workv1alpha2.ReasonInsufficient, workv1alpha2.ReasonNoClusterFits:
		add(fleetv1alpha1.WaitRoom, message)
	case workv1alpha2.ReasonPolicyWaits:
		add(fleetv1alpha1.WaitPolicy, message)
	case workv1alpha2.ReasonSuspended:
		add(fleetv1alpha1.WaitSuspension, message)
	}
	if b.Spec.Resource.Generation != f.object.GetGeneration() {
		add(fleetv1alpha1.WaitDecision, fmt.Sprintf("the placement is about generation %d of the object, which has generation %d: it is decided on again in a moment",
			b.Spec.Resource.Generation, f.object.GetGeneration()))
	}
	if len(f.missing) > 0 {
		add(fleetv1alpha1.WaitOverride, "changes are held back until there is "+strings.Join(f.missing, ", "))
	}
	var moving []string
	for _, t := range b.Spec.GracefulEvictionTasks {
		moving = append(moving, t.FromCluster)
	}
	moving = append(moving, f.waiting...)
	slices.Sort(moving)
	if moving = seen.clusters(slices.Compact(moving)); len(moving) > 0 {
		add(fleetv1alpha1.WaitAvailability, "what moves out stays until as much is available where it moves to", moving...)
	}
	f.waitsApply(add, seen)
}

// waitsApply adds which clusters do not have the manifest yet. Clusters with the same message
// share an entry.
func (f *facts) waitsApply(add func(fleetv1alpha1.WaitReason, string, ...string), seen *sight) {
	type said struct {
		what    fleetv1alpha1.WaitReason
		message string
	}
	clusters := map[said][]string{}
	for _, t := range f.binding.Spec.Clusters {
		if !seen.cluster(t.Name) {
			continue
		}
		r, known := f.results[t.Name]
		w := said{fleetv1alpha1.WaitApply, "it has not answered yet"}
		if !known && !f.recorded {
			w.message = "whether it has it is not known: " + unreadable
		}
		switch {
		case known && r.Current && r.Applied:
			continue
		case known && r.Current:
			w = said{waitFor(r.Reason), r.Message}
		case known && r.Reason == workv1alpha2.ReasonClusterUnreachable:
			w = said{fleetv1alpha1.WaitCluster, r.Message}
		}
		if w.what == fleetv1alpha1.WaitOverride && len(f.missing) > 0 {
			continue // waitsPlaced has added it
		}
		clusters[w] = append(clusters[w], t.Name)
	}
	for _, w := range slices.SortedFunc(maps.Keys(clusters), func(a, b said) int {
		return strings.Compare(clusters[a][0], clusters[b][0])
	}) {
		slices.Sort(clusters[w])
		add(w.what, w.message, clusters[w]...)
	}
}

// waitFor returns what a cluster waits for, by the reason of its result.
func waitFor(reason string) fleetv1alpha1.WaitReason {
	switch reason {
	case workv1alpha2.ReasonClusterUnreachable:
		return fleetv1alpha1.WaitCluster
	case workv1alpha2.ReasonOverrideMissing:
		return fleetv1alpha1.WaitOverride
	case workv1alpha2.ReasonSuspended:
		return fleetv1alpha1.WaitSuspension
	case workv1alpha2.ReasonHubRestored:
		return fleetv1alpha1.WaitRestore
	default:
		return fleetv1alpha1.WaitApply
	}
}
