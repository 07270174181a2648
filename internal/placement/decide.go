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

// Template is an object on the hub and who claims it.
type Template struct {
	Object *unstructured.Unstructured
	// Replicas that it asks for, nil for kinds without, and what each of them claims of a cluster.
	Replicas *int32
	Claim    *scheduler.Claim
	// Components that it has, of a kind with several; nil for all others.
	Components []scheduler.Component
	// Claims on it, in order: the first one places it. None: what is placed stays.
	Claims []policy.Claim
	// Placement of the first claim's policy, and the hash that identifies it.
	Placement     *scheduler.Placement
	PlacementHash string
	// OnHub says what the template does on the hub itself; empty for most.
	OnHub string
	// Cut says which fields of it do not exist in the version in which it is placed; empty for most.
	Cut string
	// Groups are the groups that it is in by the workloadAffinity of the first claim's policy; nil:
	// none.
	Groups *workv1alpha2.WorkloadAffinityGroups
	// Overrides are the override policies that select it, in order.
	Overrides []records.Policy
	// Version identifies what it says, for policies that are Lazy.
	Version string
	// Priority that the first claim's policy gives it; nil: none.
	Priority *workv1alpha2.SchedulePriority
	// RequiredBy are bindings whose templates refer to it and have it follow them, by name: the first
	// of them, and one for all that say the same about those that follow.
	RequiredBy []Need
}

// Need is a binding that has a template follow its own.
type Need struct {
	Binding *workv1alpha2.ResourceBinding
	// Orphaned: the policy that placed it is gone.
	Orphaned bool
}

// Standing is what stands already.
type Standing struct {
	// Binding of the template; nil when there is none yet.
	Binding *workv1alpha2.ResourceBinding
	// Copies says what is known of the binding's copy in a cluster: how many replicas it asks
	// for, 1 for kinds without. It says the same for as long as the decision takes. nil:
	// nothing is known.
	Copies func(cluster string) (asked int32, known presence.Presence)
	// Together are the clusters in which others of the template's affinity group are placed, and
	// Apart those in which others of its anti-affinity group are.
	Together, Apart sets.Set[string]
	// Young is true just after a start, when clusters that answered before it are about to
	// answer again.
	Young bool
}

// Decision is where a template belongs, and why.
type Decision struct {
	// Spec that the binding shall have; nil when it is too early to say.
	Spec    *workv1alpha2.BindingSpec
	Outcome Outcome
	// Record of the decision; who decides does not know its time, nor the UID of a new binding.
	Record records.Decision
	// RetryAfter is when to decide again at the latest, without an event; 0: never.
	RetryAfter time.Duration
}

const (
	// settlingLook is when a workload is looked at again that waits for the fleet.
	settlingLook = 250 * time.Millisecond
	// settledLook is when a template is looked at again that something may need no longer.
	settledLook = 5 * time.Second
	// capacityLook is when a workload that does not fit is tried again.
	capacityLook = 15 * time.Second
)

// Decide says where a template belongs. It is pure: it reads nothing but its arguments. A
// template that nobody claims must have a binding.
func Decide(s *fleet.Snapshot, t Template, standing Standing) Decision {
	b := standing.Binding
	fence := s.Fence(t.Object.GetNamespace())
	if b == nil && !fence.Known() || standing.Young && chooses(t, b) && settling(s, t) {
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
	d.depend(t, b)
	if len(t.Claims) == 0 && len(t.RequiredBy) > 0 && (b == nil || follower(b)) && len(d.Spec.Clusters) == 0 {
		unmatched = true // what it followed is nowhere
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
	// What matches no cluster any more is placed nowhere: it is no move, and nothing is waited for.
	if b != nil && !unmatched && o.GetDeletionTimestamp().IsZero() {
		d.Spec.GracefulEvictionTasks = evictions(s, &b.Spec, d.Spec, standing.Copies)
	}
	if interpreter.KeepsReplicas(o) { // whose numbers nobody changes here: no share moves out of a cluster that keeps its copy
		d.Spec.GracefulEvictionTasks = slices.DeleteFunc(d.Spec.GracefulEvictionTasks, func(task workv1alpha2.GracefulEvictionTask) bool {
			return slices.ContainsFunc(d.Spec.Clusters, func(c workv1alpha2.TargetCluster) bool { return c.Name == task.FromCluster })
		})
	}
	d.record(s, t)
	return d
}

// retry has it decided again after a time, or earlier.
func (d *Decision) retry(after time.Duration) {
	if d.RetryAfter == 0 || d.RetryAfter > after {
		d.RetryAfter = after
	}
}

// componentsOf are a template's components as its binding has them.
func componentsOf(t Template) []workv1alpha2.Component {
	var all []workv1alpha2.Component
	for _, c := range t.Components {
		all = append(all, workv1alpha2.Component{Name: c.Name, Replicas: int32(c.Replicas)}) //nolint:gosec // it was one
	}
	return all
}

// byRoom is true when where a template goes, or how many of its replicas, depends on the free capacities.
func byRoom(t Template) bool {
	return divides(t) && t.Placement.ByCapacity() || once(t) && t.Placement.OnceByCapacity()
}

// once is true when the policy has the template's components placed together, in one cluster.
func once(t Template) bool {
	return t.Components != nil && len(t.Claims) > 0 && t.Placement != nil && t.Placement.Once()
}

// divides is true when the policy has the template's replicas shared out.
func divides(t Template) bool {
	return t.Replicas != nil && len(t.Claims) > 0 && t.Placement != nil && t.Placement.Divided()
}

// chooses is true when clusters are chosen for a template, and for long: it is new, or placed as if
// it were, and what does not fit in one cluster goes to another.
func chooses(t Template, b *workv1alpha2.ResourceBinding) bool {
	return len(t.Claims) > 0 && t.Placement != nil && (divides(t) || once(t) || t.Placement.Chooses()) &&
		(b == nil || b.Spec.Schedules() && fresh(t, b))
}

// fresh is true when a template is to be placed as if it were placed nowhere yet: the policy was
// edited, or somebody asked for it. A binding without a hash was written before there were any:
// nothing says that the policy changed.
func fresh(t Template, b *workv1alpha2.ResourceBinding) bool {
	return b.Spec.PlacementHash != "" && b.Spec.PlacementHash != t.PlacementHash ||
		!b.Spec.RescheduleTriggeredAt.Equal(b.Spec.RescheduledFor)
}

// settling is true while something is not known that was known when the hub's last process
// ended: it will be again in a moment.
func settling(s *fleet.Snapshot, t Template) bool {
	kind := t.Object.GroupVersionKind()
	for _, c := range s.Clusters() {
		if c.Expected && (!c.Reachable || c.Serves(kind) == presence.Unknown || (t.Placement.ByCapacity() || byRoom(t)) && c.Room == nil) {
			return true
		}
	}
	return false
}

// keep is the decision on a template that nobody claims any more.
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
	// What is to stay as it is needs what made it so: without its overrides it is not written.
	d.Spec.DependentOverrides = distinct(append(d.Spec.DependentOverrides, selecting(t)...))
	return d
}

// stay is a placement that stays as it is, but for the replicas that the template asks for.
func stay(s *fleet.Snapshot, t Template, was *workv1alpha2.BindingSpec) *workv1alpha2.BindingSpec {
	spec := standstill(was)
	spec.Clusters = unmoved(s, t, was)
	return spec
}

// unmoved are the clusters of a placement that stays as it is; shares stay, too, while scheduling is suspended.
func unmoved(s *fleet.Snapshot, t Template, was *workv1alpha2.BindingSpec) []workv1alpha2.TargetCluster {
	if was.Schedules() || !shared(was) {
		return scheduler.Keep(s.Clusters(), t.Object.GetUID(), own(was), shared(was), t.Replicas)
	}
	return slices.DeleteFunc(slices.Clone(own(was)), func(target workv1alpha2.TargetCluster) bool {
		c, ok := s.Cluster(target.Name)
		return !ok || c.Leaving
	})
}

// standstill is all that a binding says, but for what every decision says anew.
func standstill(was *workv1alpha2.BindingSpec) *workv1alpha2.BindingSpec {
	spec := was.DeepCopy()
	spec.ReplicaSchedulingType = schedulingType(shared(was))
	spec.GracefulEvictionTasks, spec.RequiredBy, spec.Dependencies, spec.Activation = nil, nil, nil, nil
	return spec
}

// place is the decision of the policy that claims a template. unmatched is true when the policy
// selects none of the fleet's clusters.
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

// schedulerFence is a fence as the scheduler takes it: none is nil.
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

// shared is true when the clusters' replicas are shares of what a template asks for. A
// binding that does not say so was written before bindings could: then the numbers do.
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

// record makes the decision's record whole.
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
