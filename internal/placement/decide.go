package placement

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/sets"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/access"
	"orrery.dev/orrery/internal/fleet"
	"orrery.dev/orrery/internal/interpreter"
	"orrery.dev/orrery/internal/policy"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/records"
	"orrery.dev/orrery/internal/scheduler"
)

// Template is an object on the hub with everything that a decision needs to know about it.
type Template struct {
	Object *unstructured.Unstructured
	// Replicas that the object asks for; nil for kinds without. Claim is what each replica requires
	// of a cluster.
	Replicas *int32
	Claim    *scheduler.Claim
	// Components of the object; nil unless its kind has several.
	Components []scheduler.Component
	// Claims on the object, in order: the first one places it. Empty: the placement stays.
	Claims []policy.Claim
	// Placement of the first claim's policy, compiled, and the hash that identifies it.
	Placement     *scheduler.Placement
	PlacementHash string
	// OnHub is a message about what the object does on the hub itself; "" for most objects.
	OnHub string
	// Cut is a message about fields of the object that do not exist in the version in which it is
	// placed; "" for most objects.
	Cut string
	// Groups of the object, by the workloadAffinity of the first claim's policy; nil: none.
	Groups *workv1alpha2.WorkloadAffinityGroups
	// Overrides are the override policies that select the object, in order.
	Overrides []records.Policy
	// Version identifies the content of the object. It is set only if the policy is Lazy.
	Version string
	// Priority from the first claim's policy; nil: none.
	Priority *workv1alpha2.SchedulePriority
	// RequiredBy are the bindings whose templates depend on this one, sorted by name. Of bindings
	// that say the same about their dependencies only one is listed, see needsOf.
	RequiredBy []Need
	// RequiredByOrphans are deleted templates whose orphans in clusters still need this object.
	RequiredByOrphans []workv1alpha2.OrphaningTemplate
}

// Need is a binding whose template depends on another template.
type Need struct {
	Binding *workv1alpha2.ResourceBinding
	// Orphaned is true if the policy that placed the template of Binding is gone.
	Orphaned bool
}

// Standing is the present state that a decision starts from.
type Standing struct {
	// Binding of the template; nil if there is none yet.
	Binding *workv1alpha2.ResourceBinding
	// Copies returns whether the binding's copy is in a cluster, and the replicas that it asks for;
	// 1 for kinds without replicas. The result must not change during a decision. nil: the copies
	// are unknown.
	Copies func(cluster string) (asked int32, known presence.Presence)
	// Together are the clusters with other objects of the affinity group, Apart those with other
	// objects of the anti-affinity group.
	Together, Apart sets.Set[string]
	// Young is true just after a start, while clusters that answered before may still connect.
	Young bool
}

// Decision says where a template is placed, and why.
type Decision struct {
	// Spec that the binding shall have; nil if it is too early to decide.
	Spec    *workv1alpha2.BindingSpec
	Outcome Outcome
	// Record of the decision. Decide sets neither its time nor the UID of a new binding.
	Record records.Decision
	// RetryAfter is when to decide again at the latest, without an event; 0: never.
	RetryAfter time.Duration
}

const (
	// settlingLook is the retry delay of a workload that waits for the fleet after a start.
	settlingLook = 250 * time.Millisecond
	// settledLook is the retry delay of a template that a dependent may no longer need.
	settledLook = 5 * time.Second
	// capacityLook is the retry delay of a workload that does not fit.
	capacityLook = 15 * time.Second
)

// Decide decides where a template is placed. It is pure: it reads only its arguments. A template
// without claims must have a binding or RequiredBy.
func Decide(s *fleet.Snapshot, t Template, standing Standing) Decision {
	b := standing.Binding
	fence := s.Fence(t.Object.GetNamespace())
	// A fence that is unknown closes every cluster. That must not look like a fleet without them, in
	// which nothing stays.
	if !fence.Known() || standing.Young && chooses(t, b) && settling(s, t, b, fence) {
		return Decision{RetryAfter: settlingLook}
	}
	var d Decision
	unmatched := false
	switch {
	case len(t.Claims) == 0 && (b == nil || follower(b)):
		d = follow(t, b)
	case len(t.Claims) == 0:
		d = keep(s, t, b)
	case waits(t, b):
		d = wait(s, t, b)
	case b != nil && !b.Spec.Schedules():
		d = suspend(s, t, b)
	default:
		d, unmatched = place(s, t, standing, schedulerFence(fence))
		inherit(d.Spec, t, b)
	}
	d.attach(s, t)
	d.Spec.RequiredByOrphans = inFleet(s, t.RequiredByOrphans)
	d.depend(t, b)
	if len(t.Claims) == 0 && len(t.RequiredBy) > 0 && (b == nil || follower(b)) && len(d.Spec.Clusters) == 0 {
		unmatched = true // the templates that need it are placed nowhere
	}
	if t.OnHub != "" {
		d.Outcome.Message += "; " + t.OnHub
	}
	if t.Cut != "" {
		d.Outcome.Message += "; " + t.Cut
	}
	o := t.Object
	d.Spec.Resource = workv1alpha2.ObjectReference{
		APIVersion: o.GetAPIVersion(), Kind: o.GetKind(), Name: o.GetName(), UID: o.GetUID(), Generation: o.GetGeneration(),
	}
	d.Spec.Replicas, d.Spec.Components = t.Replicas, componentsOf(t)
	if t.Replicas == nil {
		d.Spec.ReplicaSchedulingType = ""
	}
	// A template that matches no cluster any more is removed everywhere. That is no move, so
	// nothing waits for a replacement.
	if b != nil && !unmatched && o.GetDeletionTimestamp().IsZero() {
		d.Spec.GracefulEvictionTasks = evictions(s, &b.Spec, d.Spec, standing.Copies)
	}
	// Clusters own the replicas of their copies. No share moves out of a cluster that keeps its
	// copy.
	if interpreter.KeepsReplicas(o) {
		d.Spec.GracefulEvictionTasks = slices.DeleteFunc(d.Spec.GracefulEvictionTasks, func(task workv1alpha2.GracefulEvictionTask) bool {
			return slices.ContainsFunc(d.Spec.Clusters, func(c workv1alpha2.TargetCluster) bool { return c.Name == task.FromCluster })
		})
	}
	d.record(s, t)
	return d
}

// retry lowers RetryAfter to after, if it is 0 or longer.
func (d *Decision) retry(after time.Duration) {
	if d.RetryAfter == 0 || d.RetryAfter > after {
		d.RetryAfter = after
	}
}

// componentsOf returns a template's components as its binding stores them.
func componentsOf(t Template) []workv1alpha2.Component {
	var all []workv1alpha2.Component
	for _, c := range t.Components {
		all = append(all, workv1alpha2.Component{Name: c.Name, Replicas: int32(c.Replicas)}) //nolint:gosec // it was one
	}
	return all
}

// byRoom reports whether the decision depends on free capacity.
func byRoom(t Template) bool {
	return divides(t) && t.Placement.ByCapacity() || once(t) && t.Placement.OnceByCapacity()
}

// once reports whether the policy places all components of the template together in one cluster.
func once(t Template) bool {
	return t.Components != nil && len(t.Claims) > 0 && t.Placement != nil && t.Placement.Once()
}

// divides reports whether the policy divides the template's replicas.
func divides(t Template) bool {
	return t.Replicas != nil && len(t.Claims) > 0 && t.Placement != nil && t.Placement.Divided()
}

// chooses reports whether clusters are now chosen for a template that is new, or placed as if it
// were. Such a choice lasts, so it waits for the fleet after a start.
func chooses(t Template, b *workv1alpha2.ResourceBinding) bool {
	return len(t.Claims) > 0 && t.Placement != nil && (divides(t) || once(t) || t.Placement.Chooses()) &&
		(b == nil || b.Spec.Schedules() && fresh(t, b))
}

// fresh reports whether a template is placed as if it were new: the policy's placement was edited,
// or a user requested it. A binding without a hash was written by an early version. It does not
// count as edited.
func fresh(t Template, b *workv1alpha2.ResourceBinding) bool {
	return b.Spec.PlacementHash != "" && b.Spec.PlacementHash != t.PlacementHash ||
		!b.Spec.RescheduleTriggeredAt.Equal(b.Spec.RescheduledFor)
}

// settling reports whether a cluster that was ready before the hub's last process ended is not
// known completely yet. Clusters that are closed to the template, and do not have it, do not count.
func settling(s *fleet.Snapshot, t Template, b *workv1alpha2.ResourceBinding, fence *access.Fence) bool {
	kind := t.Object.GroupVersionKind()
	for _, c := range s.Clusters() {
		if !fence.Allows(c) && !has(b, c.Name) {
			continue
		}
		if c.Expected && (!c.Reachable || c.Serves(kind) == presence.Unknown || (t.Placement.ByCapacity() || byRoom(t)) && c.Room == nil) {
			return true
		}
	}
	return false
}

// has reports whether a binding (nil: there is none) places its template in a cluster.
func has(b *workv1alpha2.ResourceBinding, cluster string) bool {
	return b != nil && slices.ContainsFunc(b.Spec.Clusters, func(t workv1alpha2.TargetCluster) bool { return t.Name == cluster })
}

// keep returns the decision on a template that no policy claims any more: its placement stays.
func keep(s *fleet.Snapshot, t Template, b *workv1alpha2.ResourceBinding) Decision {
	was := &b.Spec
	d := Decision{
		Spec: stay(s, t, was),
		Outcome: Outcome{
			Status: metav1.ConditionTrue, Reason: workv1alpha2.ReasonPolicyGone,
			Message: fmt.Sprintf("no policy claims %s any more; its placement by %s %s stays",
				templateOf(t.Object), was.PolicyRef.Kind, was.PolicyRef.Name),
		},
	}
	// A placement that stays needs the override policies that shaped it: the copies are not written
	// without them.
	d.Spec.DependentOverrides = distinct(append(d.Spec.DependentOverrides, selecting(t)...))
	return d
}

// stay returns the binding spec of a placement that stays, with the template's present replicas.
func stay(s *fleet.Snapshot, t Template, was *workv1alpha2.BindingSpec) *workv1alpha2.BindingSpec {
	spec := standstill(was)
	spec.Clusters = unmoved(s, t, was)
	return spec
}

// unmoved returns the clusters of a placement that stays. While scheduling is suspended, the
// divided replicas stay as well.
func unmoved(s *fleet.Snapshot, t Template, was *workv1alpha2.BindingSpec) []workv1alpha2.TargetCluster {
	if was.Schedules() || !shared(was) {
		return scheduler.Keep(s.Clusters(), t.Object.GetUID(), own(was), shared(was), t.Replicas)
	}
	return slices.DeleteFunc(slices.Clone(own(was)), func(target workv1alpha2.TargetCluster) bool {
		c, ok := s.Cluster(target.Name)
		return !ok || c.Leaving
	})
}

// standstill copies the spec of a binding without the fields that every decision sets again.
func standstill(was *workv1alpha2.BindingSpec) *workv1alpha2.BindingSpec {
	spec := was.DeepCopy()
	spec.ReplicaSchedulingType = schedulingType(shared(was))
	spec.GracefulEvictionTasks, spec.RequiredBy, spec.Dependencies, spec.Activation = nil, nil, nil, nil
	return spec
}

// place decides by the first claim's policy. unmatched is true if the policy selects no cluster of
// the fleet.
func place(s *fleet.Snapshot, t Template, standing Standing, fence scheduler.Fence) (d Decision, unmatched bool) {
	b, p := standing.Binding, t.Claims[0].Policy
	r := scheduler.Request{
		UID: t.Object.GetUID(), Kind: t.Object.GroupVersionKind(), Namespace: t.Object.GetNamespace(), Placement: t.Placement, Fence: fence,
		Replicas: t.Replicas, Claim: t.Claim, Components: t.Components, Together: standing.Together, Apart: standing.Apart,
	}
	var rescheduled *metav1.Time
	if b != nil {
		r.Previous, r.Shared, r.Group = own(&b.Spec), shared(&b.Spec), b.Spec.SchedulerObservedAffinityName
		rescheduled = b.Spec.RescheduleTriggeredAt
		r.Fresh = fresh(t, b)
	}
	result := scheduler.Schedule(s.Clusters(), r)
	d = Decision{
		Spec: &workv1alpha2.BindingSpec{
			PolicyRef:                   workv1alpha2.PolicyReference{Kind: policy.Kind(p.Namespace), Name: p.Name},
			PlacementHash:               t.PlacementHash,
			ReplicaSchedulingType:       schedulingType(result.Shared),
			Clusters:                    result.Clusters,
			PreserveResourcesOnDeletion: p.Spec.PreserveResourcesOnDeletion != nil && *p.Spec.PreserveResourcesOnDeletion,

			SchedulerObservedAffinityName: result.Group, WorkloadAffinityGroups: t.Groups,
			RescheduleTriggeredAt: rescheduled, RescheduledFor: rescheduled,
		},
		Outcome: Outcome{Status: metav1.ConditionTrue, Reason: result.Reason, Message: result.Message},
		Record:  records.Decision{Verdicts: verdicts(&result.Verdicts)},
	}
	if p.Spec.ConflictResolution != policyv1alpha1.ConflictAbort {
		d.Spec.ConflictResolution = p.Spec.ConflictResolution
	}
	if t.Replicas == nil && t.Components == nil && t.Placement.Divided() {
		_, why := interpreter.DivisibleBy(t.Object)
		d.Outcome.Message += fmt.Sprintf("; %s: each cluster gets it whole",
			cmp.Or(why, fmt.Sprintf("%s %s has no replicas to divide", t.Object.GetKind(), t.Object.GetName())))
	}
	if result.Reason != workv1alpha2.ReasonScheduled {
		d.Outcome.Status = metav1.ConditionFalse
	}
	if result.Reason == workv1alpha2.ReasonInsufficient || result.Reason == workv1alpha2.ReasonNoClusterFits && byRoom(t) {
		d.RetryAfter = capacityLook
	}
	return d, result.Unmatched
}

// schedulerFence converts a fence for the scheduler; nil becomes a nil interface.
func schedulerFence(f *access.Fence) scheduler.Fence {
	if f == nil {
		return nil
	}
	return f
}

func schedulingType(shared bool) policyv1alpha1.ReplicaSchedulingType {
	if shared {
		return policyv1alpha1.Divided
	}
	return policyv1alpha1.Duplicated
}

// shared reports whether the clusters' replicas are shares of the template's replicas. Bindings of
// early versions do not store this. There, differing numbers mean shares.
func shared(spec *workv1alpha2.BindingSpec) bool {
	if spec.ReplicaSchedulingType != "" {
		return spec.ReplicaSchedulingType == policyv1alpha1.Divided
	}
	for _, t := range spec.Clusters {
		if spec.Replicas != nil && t.Replicas != nil && *t.Replicas != *spec.Replicas {
			return true
		}
	}
	return false
}

// record completes the decision's record.
func (d *Decision) record(s *fleet.Snapshot, t Template) {
	o, r := t.Object, &d.Record
	r.Template = records.Template{
		APIVersion: o.GetAPIVersion(), Kind: o.GetKind(), Namespace: o.GetNamespace(), Name: o.GetName(),
		UID: o.GetUID(), Generation: o.GetGeneration(),
	}
	r.Snapshot = s.Version()
	if len(t.Claims) > 0 {
		r.Claimed = claimant(t.Claims[0])
		for _, c := range t.Claims[1:] {
			r.Lost = append(r.Lost, claimant(c))
		}
	}
	r.PlacementHash, r.Overrides = d.Spec.PlacementHash, t.Overrides
	r.Reason, r.Message = d.Outcome.Reason, d.Outcome.Message
	r.Replicas, r.Divided = d.Spec.Replicas, d.Spec.ReplicaSchedulingType == policyv1alpha1.Divided
	if n := len(d.Spec.Clusters); n > 0 {
		r.Targets = make([]records.Target, n)
		for i, c := range d.Spec.Clusters {
			r.Targets[i] = records.Target{Cluster: c.Name, Replicas: c.Replicas}
		}
	}
	for _, e := range d.Spec.GracefulEvictionTasks {
		r.Evictions = append(r.Evictions, records.Target{Cluster: e.FromCluster, Replicas: e.Replicas})
	}
}

func claimant(c policy.Claim) records.Policy {
	return records.Policy{
		Kind: policy.Kind(c.Policy.Namespace), Namespace: c.Policy.Namespace, Name: c.Policy.Name, Generation: c.Policy.Generation,
	}
}

func verdicts(v *scheduler.Verdicts) []records.Verdict {
	said := v.All()
	all := make([]records.Verdict, len(said))
	for i, s := range said {
		all[i] = records.Verdict{Reason: s.Reason, Message: s.Message, Clusters: s.Clusters}
	}
	return all
}
