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
	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/placement"
)

// waits returns what is not done yet for the placement, with the reasons; nil if everything is
// done. Without a binding, it is about the wait for one. Clusters that the caller does not see are
// left out.
func (f *facts) waits(seen *visibilityFilter) []fleetv1alpha1.PlacementWait {
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
		add(fleetv1alpha1.WaitDecision, "its clusters are chosen in a moment")
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

// contests returns a message for each cluster of a binding in which a copy is contested: another
// writer changes it again each time after the hub restored it. Other clusters are left out.
func (e *Explainer) contests(b *workv1alpha2.ResourceBinding) map[string]string {
	all := map[string]string{}
	for cluster := range binding.Clusters(b) {
		if c := e.know.Applier.Contest(b.UID, cluster); c.Message != "" {
			all[cluster] = c.Message
		}
	}
	return all
}

// waitsContested calls add for each cluster that the caller sees in which another writer repeatedly
// changes the copy.
func (f *facts) waitsContested(add func(fleetv1alpha1.WaitReason, string, ...string), seen *visibilityFilter) {
	for _, cluster := range slices.Sorted(maps.Keys(f.contests)) {
		if seen.cluster(cluster) {
			add(fleetv1alpha1.WaitContest, f.contests[cluster], cluster)
		}
	}
}

// propagation returns how the copies of a binding that is being deleted are deleted, as the end of
// a message. It is "" for deletion in the background.
func propagation(b *workv1alpha2.ResourceBinding) string {
	switch b.Spec.DeletionPropagation {
	case metav1.DeletePropagationForeground:
		return ": with propagation Foreground, each is deleted after the objects that it owns"
	case metav1.DeletePropagationOrphan:
		return ": with propagation Orphan, each is deleted after its cluster has released the objects that it owns, and these stay"
	default:
		return ""
	}
}

// waitsPlaced calls add for everything that an object with a binding waits for: free capacity,
// policies, overrides, other clusters, and the results of single clusters.
func (f *facts) waitsPlaced(add func(fleetv1alpha1.WaitReason, string, ...string), seen *visibilityFilter) {
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
		add(fleetv1alpha1.WaitDecision, fmt.Sprintf("the placement is for generation %d of the object, which is at generation %d: its clusters are chosen again in a moment",
			b.Spec.Resource.Generation, f.object.GetGeneration()))
	}
	if len(f.missing) > 0 {
		add(fleetv1alpha1.WaitOverride, "nothing is changed in clusters until these override policies exist: "+strings.Join(f.missing, ", "))
	}
	f.waitsLeaving(add, seen)
	f.waitsApply(add, seen)
}

// keepsRunning says what happens to old copies while their replicas move to other clusters.
const keepsRunning = "old copies keep running until the new ones are ready"

// waitsLeaving calls add for the clusters that the object leaves, with what becomes of its old copy
// there. Clusters with the same message share a call. Clusters that the caller does not see are
// left out.
func (f *facts) waitsLeaving(add func(fleetv1alpha1.WaitReason, string, ...string), seen *visibilityFilter) {
	moving := map[string][]string{}
	tasks := f.binding.Spec.GracefulEvictionTasks
	for _, t := range tasks {
		message := oldCopy(t)
		moving[message] = append(moving[message], t.FromCluster)
	}
	for _, cluster := range f.waiting {
		if !slices.ContainsFunc(tasks, func(t workv1alpha2.GracefulEvictionTask) bool { return t.FromCluster == cluster }) {
			moving[keepsRunning] = append(moving[keepsRunning], cluster)
		}
	}
	for _, message := range slices.Sorted(maps.Keys(moving)) {
		clusters := slices.Sorted(slices.Values(moving[message]))
		if clusters = seen.clusters(slices.Compact(clusters)); len(clusters) > 0 {
			add(fleetv1alpha1.WaitAvailability, message, clusters...)
		}
	}
}

// oldCopy says what becomes of the old copy in the cluster of a task. If a taint is the reason of
// the task, it also names the taint.
func oldCopy(t workv1alpha2.GracefulEvictionTask) string {
	var text string
	switch t.PurgeMode {
	case policyv1alpha1.PurgeDirectly:
		text = "the old copy goes at once, or as soon as the cluster answers"
	case policyv1alpha1.PurgeNever:
		text = "the old copy stays, and loses Orrery's marks as soon as the cluster answers"
	default:
		text = keepsRunning
	}
	if t.Reason != workv1alpha2.ReasonTaintUntolerated {
		return text
	}
	return "it leaves because of " + cmp.Or(t.Message, "a taint") + "; " + text
}

// waitsApply calls add for the clusters of the binding that do not have the present manifest yet,
// with the reason. Clusters with the same reason and message share a call. Clusters that the caller
// does not see are left out.
func (f *facts) waitsApply(add func(fleetv1alpha1.WaitReason, string, ...string), seen *visibilityFilter) {
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
		w := said{fleetv1alpha1.WaitApply, "the cluster has not reported a result yet"}
		if !known && !f.recorded {
			w.message = "the result in the cluster is unknown: " + unreadable
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
			continue // waitsPlaced has added the missing override policies
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

// waitFor returns what a cluster waits for, from the reason of its result. An unknown reason means
// WaitApply.
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
