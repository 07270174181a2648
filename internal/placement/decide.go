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
	"orrery.dev/orrery/internal/failover"
	"orrery.dev/orrery/internal/fleet"
	"orrery.dev/orrery/internal/interpreter"
	"orrery.dev/orrery/internal/policy"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/records"
	"orrery.dev/orrery/internal/scheduler"
)

// Template is an object on the hub that may be placed in clusters, with everything about it that a
// decision depends on.
type Template struct {
	Object *unstructured.Unstructured
	// Replicas that the object asks for; nil for kinds without replicas. Claim is what each replica
	// requires of a cluster.
	Replicas *int32
	Claim    *scheduler.Claim
	// Components are the groups of pods of an object that has several, such as head and workers; nil
	// for all other kinds.
	Components []scheduler.Component
	// Claims are the policies that select the object. The first one places it. Empty: no policy
	// selects it, and its placement stays.
	Claims []policy.Claim
	// Placement is that of the first claim's policy, compiled, and PlacementHash identifies it.
	Placement     *scheduler.Placement
	PlacementHash string
	// OnHub is a message about an effect that the object has on the hub itself; "" for most objects.
	OnHub string
	// Cut is a message about fields of the object that do not exist in the version in which it is
	// placed; "" for most objects.
	Cut string
	// Groups are the affinity and anti-affinity groups of the object, by workloadAffinity of the first
	// claim's policy; nil: none.
	Groups *workv1alpha2.WorkloadAffinityGroups
	// Overrides are the override policies that select the object, in order.
	Overrides []records.Policy
	// Version is a hash of the content of the object. It is set only if the first claim's policy has
	// activationPreference Lazy.
	Version string
	// Priority is the priority that the first claim's policy gives; nil: none.
	Priority *workv1alpha2.SchedulePriority
	// RequiredBy are bindings whose templates depend on this one, sorted by name. Of many bindings
	// with the same clusters and policy fields it may have only one, see dependencyIndex.
	RequiredBy []Dependent
	// RequiredByOrphans are deleted templates whose copies stayed in clusters as orphans, and need
	// this object there.
	RequiredByOrphans []workv1alpha2.OrphaningTemplate
}

// Dependent is a binding whose template depends on another template.
type Dependent struct {
	Binding *workv1alpha2.ResourceBinding
	// Orphaned is true if the policy that placed the template of Binding no longer exists.
	Orphaned bool
}

// CurrentState is what a decision reads besides the template and the fleet: mainly the present
// placement.
type CurrentState struct {
	// Binding of the template; nil if there is none yet.
	Binding *workv1alpha2.ResourceBinding
	// Copies returns whether the binding's copy is in a cluster, and the replicas that the copy asks
	// for; 1 for kinds without replicas. The result must not change during a decision. nil: the copies
	// are unknown.
	Copies func(cluster string) (asked int32, known presence.Presence)
	// Together are the clusters that have other objects of the template's affinity group, Apart those
	// that have other objects of its anti-affinity group.
	Together, Apart sets.Set[string]
	// Starting is true just after a start of the hub, while clusters that were ready before may still
	// connect.
	Starting bool
	// Now is the time of the decision. Taints whose toleration is over at that time evict the
	// template.
	Now time.Time
	// Evict returns why the template does not leave a cluster yet in which a taint is due; the zero
	// Wait: it leaves now. nil: no taint evicts.
	Evict func(c *fleet.Cluster, due scheduler.Due) failover.Wait
	// Supposed is the name of a cluster whose taints evict at once, for a hypothetical change of its
	// taints; "": there is none.
	Supposed string
	// Unmarked reports whether a dependency is not marked yet to stay in a cluster in which the copy
	// of the template is left behind. The eviction task for the cluster stays meanwhile. nil: never.
	Unmarked func(cluster string) bool
}

// Decision says in which clusters a template is placed, and why.
type Decision struct {
	// Spec is the spec that the binding is to have; nil if it is too early to decide.
	Spec    *workv1alpha2.BindingSpec
	Outcome Outcome
	// Record is what is stored of the decision for later explanation. Decide sets neither its time nor
	// the UID of the binding.
	Record records.Decision
	// RetryAfter is the delay after which to decide again even without an event; 0: never. Due is the
	// time at which the next taint evicts the template; zero: never.
	RetryAfter time.Duration
	Due        time.Time
	// Wants are the evictions that are due, whether they wait or not.
	Wants []failover.Want

	leaves map[string]scheduler.Due // by cluster that the template leaves with this decision
	runs   []string                 // clusters that it would leave, and in which it may still run
}

const (
	// settlingLook is the retry delay of a workload that waits until the clusters are known after a
	// start.
	settlingLook = 250 * time.Millisecond
	// settledLook is the retry delay while a dependency is kept for an earlier version of the
	// template, and while a deletion waits for dependencies.
	settledLook = 5 * time.Second
	// capacityLook is the retry delay of a workload for which the clusters lack capacity.
	capacityLook = 15 * time.Second
)

// Decide decides in which clusters a template is placed. It is pure: it reads only its arguments. A
// template without claims must have RequiredBy, or a binding that exists not only for dependents.
// While too little is known of the clusters, the decision has no Spec, only RetryAfter.
func Decide(s *fleet.Snapshot, t Template, current CurrentState) Decision {
	b := current.Binding
	fence := s.Fence(t.Object.GetNamespace())
	// While the clusters that the namespace may use are unknown, the fence allows none. Nothing may be
	// removed because of that.
	if !fence.Known() || current.Starting && (chooses(t, b) && settling(s, t, b, fence) || unprobed(s, b)) {
		return Decision{RetryAfter: settlingLook}
	}
	var d Decision
	unmatched := false
	switch {
	case len(t.Claims) == 0 && (b == nil || dependencyOnly(b)):
		d = follow(t, b)
	case len(t.Claims) == 0:
		d = keep(s, t, b)
	case waits(t, b):
		d = wait(s, t, b)
	case b != nil && !b.Spec.Schedules():
		d = suspend(s, t, b)
	default:
		d, unmatched = place(s, t, current, schedulerFence(fence))
		inherit(d.Spec, t, b)
	}
	d.attach(s, t)
	d.Spec.RequiredByOrphans = inFleet(s, t.RequiredByOrphans)
	d.depend(t, b)
	if len(t.Claims) == 0 && len(t.RequiredBy) > 0 && (b == nil || dependencyOnly(b)) && len(d.Spec.Clusters) == 0 {
		unmatched = true // the templates that need this one are placed nowhere
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
	// A template that matches no cluster any more is removed from every cluster at once. There is no
	// other cluster in which replicas must be available first.
	if b != nil && !unmatched && o.GetDeletionTimestamp().IsZero() {
		d.Spec.GracefulEvictionTasks = evictions(s, &b.Spec, d.Spec, current.Copies, d.behind(t, &b.Spec))
		d.explain(s, t, &b.Spec, current)
	}
	// The number of replicas belongs to each cluster, so no part of them moves out of a cluster that
	// keeps its copy.
	if interpreter.KeepsReplicas(o) {
		d.Spec.GracefulEvictionTasks = slices.DeleteFunc(d.Spec.GracefulEvictionTasks, func(task workv1alpha2.GracefulEvictionTask) bool {
			return slices.ContainsFunc(d.Spec.Clusters, func(c workv1alpha2.TargetCluster) bool { return c.Name == task.FromCluster })
		})
	}
	d.record(s, t)
	return d
}

// retry sets RetryAfter to after, unless RetryAfter is set to a shorter delay.
func (d *Decision) retry(after time.Duration) {
	if d.RetryAfter == 0 || d.RetryAfter > after {
		d.RetryAfter = after
	}
}

// componentsOf returns a template's components as the spec of its binding stores them; nil if it
// has none.
func componentsOf(t Template) []workv1alpha2.Component {
	var all []workv1alpha2.Component
	for _, c := range t.Components {
		all = append(all, workv1alpha2.Component{Name: c.Name, Replicas: int32(c.Replicas)}) //nolint:gosec // it was one
	}
	return all
}

// byCapacity reports whether the decision on a template depends on the free capacity of clusters.
func byCapacity(t Template) bool {
	return divides(t) && t.Placement.ByCapacity() || once(t) && t.Placement.OnceByCapacity()
}

// once reports whether the policy places all components of the template together in one cluster.
func once(t Template) bool {
	return t.Components != nil && len(t.Claims) > 0 && t.Placement != nil && t.Placement.Once()
}

// divides reports whether a policy claims the template and divides its replicas among clusters.
func divides(t Template) bool {
	return t.Replicas != nil && len(t.Claims) > 0 && t.Placement != nil && t.Placement.Divided()
}

// chooses reports whether the decision chooses clusters for a template that is new, or is to be
// placed as if it were new. Such a choice lasts, so after a start it waits until the clusters are
// known. b is the binding; nil: there is none.
func chooses(t Template, b *workv1alpha2.ResourceBinding) bool {
	return len(t.Claims) > 0 && t.Placement != nil && (divides(t) || once(t) || t.Placement.Chooses()) &&
		(b == nil || b.Spec.Schedules() && fresh(t, b))
}

// fresh reports whether a template is placed as if it were new, because the placement of the policy
// was edited or a user requested it (rescheduleTriggeredAt). A binding without a hash was written
// by an early version of Orrery; it does not count as edited. b must not be nil.
func fresh(t Template, b *workv1alpha2.ResourceBinding) bool {
	return b.Spec.PlacementHash != "" && b.Spec.PlacementHash != t.PlacementHash ||
		!b.Spec.RescheduleTriggeredAt.Equal(b.Spec.RescheduledFor)
}

// settling reports whether the hub does not know some cluster completely yet that was ready before
// its last process ended. Clusters that the fence closes to the template and that do not have it do
// not count. b is the binding; nil: there is none.
func settling(s *fleet.Snapshot, t Template, b *workv1alpha2.ResourceBinding, fence *access.Fence) bool {
	kind := t.Object.GroupVersionKind()
	for _, c := range s.Clusters() {
		if !fence.Allows(c) && !has(b, c.Name) {
			continue
		}
		if c.Expected && (!c.Reachable || c.Serves(kind) == presence.Unknown || (t.Placement.ByCapacity() || byCapacity(t)) && c.FreeCapacity == nil) {
			return true
		}
	}
	return false
}

// has reports whether a binding (nil: there is none) places its template in a cluster.
func has(b *workv1alpha2.ResourceBinding, cluster string) bool {
	return b != nil && slices.ContainsFunc(b.Spec.Clusters, func(t workv1alpha2.TargetCluster) bool { return t.Name == cluster })
}

// keep returns the decision on a template that no policy selects any more: its placement stays.
func keep(s *fleet.Snapshot, t Template, b *workv1alpha2.ResourceBinding) Decision {
	was := &b.Spec
	d := Decision{
		Spec: stay(s, t, was),
		Outcome: Outcome{
			Status: metav1.ConditionTrue, Reason: workv1alpha2.ReasonPolicyGone,
			Message: fmt.Sprintf("no policy selects %s any more; its copies from %s %s stay",
				templateOf(t.Object), was.PolicyRef.Kind, was.PolicyRef.Name),
		},
	}
	// The binding names the override policies that apply to the copies: while one of them is missing,
	// the copies are not written.
	d.Spec.DependentOverrides = distinct(append(d.Spec.DependentOverrides, selecting(t)...))
	return d
}

// stay returns the spec of a binding whose placement stays as in was, with the template's present
// number of replicas.
func stay(s *fleet.Snapshot, t Template, was *workv1alpha2.BindingSpec) *workv1alpha2.BindingSpec {
	spec := standstill(was)
	spec.Clusters = unmoved(s, t, was)
	return spec
}

// unmoved returns the clusters of a placement that stays, without those that left the fleet or are
// leaving it. Divided replicas are divided among them again if their number changed, but not while
// scheduling is suspended.
func unmoved(s *fleet.Snapshot, t Template, was *workv1alpha2.BindingSpec) []workv1alpha2.TargetCluster {
	if was.Schedules() || !shared(was) {
		return scheduler.Keep(s.Clusters(), t.Object.GetUID(), own(was), shared(was), t.Replicas)
	}
	return slices.DeleteFunc(slices.Clone(own(was)), func(target workv1alpha2.TargetCluster) bool {
		c, ok := s.Cluster(target.Name)
		return !ok || c.Leaving
	})
}

// standstill returns a copy of the spec of a binding without the fields that every decision
// computes: evictions, requiredBy, dependencies and activation.
func standstill(was *workv1alpha2.BindingSpec) *workv1alpha2.BindingSpec {
	spec := was.DeepCopy()
	spec.ReplicaSchedulingType = schedulingType(shared(was))
	spec.GracefulEvictionTasks, spec.RequiredBy, spec.Dependencies, spec.Activation = nil, nil, nil, nil
	return spec
}

// place decides by the policy of the first claim. unmatched is true if the policy selects no
// cluster that the namespace of the template may use. The functions inherit and attach set the rest
// of the spec. fence says which clusters the namespace may use; nil: all.
func place(s *fleet.Snapshot, t Template, current CurrentState, fence scheduler.Fence) (d Decision, unmatched bool) {
	b, p := current.Binding, t.Claims[0].Policy
	r := scheduler.Request{
		UID: t.Object.GetUID(), Kind: t.Object.GroupVersionKind(), Namespace: t.Object.GetNamespace(), Placement: t.Placement, Fence: fence,
		Replicas: t.Replicas, Claim: t.Claim, Components: t.Components, Together: current.Together, Apart: current.Apart,
	}
	var rescheduled *metav1.Time
	if b != nil {
		r.Previous, r.Shared, r.Group = own(&b.Spec), shared(&b.Spec), b.Spec.SchedulerObservedAffinityName
		rescheduled = b.Spec.RescheduleTriggeredAt
		r.Fresh = fresh(t, b) && !runsAway(s, t, current)
	}
	l := leave(s, t, current, fence)
	result := l.place(s, t, current, r)
	d = Decision{
		Wants: l.wants, Due: l.next, leaves: l.now, runs: l.runs,
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
	for _, wait := range l.waits {
		d.Outcome.Message += "; " + wait
	}
	if t.Replicas == nil && t.Components == nil && t.Placement.Divided() {
		_, why := interpreter.DivisibleBy(t.Object)
		d.Outcome.Message += fmt.Sprintf("; %s: each cluster gets it whole",
			cmp.Or(why, fmt.Sprintf("%s %s has no replicas to divide", t.Object.GetKind(), t.Object.GetName())))
	}
	if result.Reason != workv1alpha2.ReasonScheduled {
		d.Outcome.Status = metav1.ConditionFalse
	}
	if result.Reason == workv1alpha2.ReasonInsufficient || (result.Reason == workv1alpha2.ReasonNoClusterFits || l.stuck) && byCapacity(t) {
		d.RetryAfter = capacityLook
	}
	return d, result.Unmatched
}

// schedulerFence converts a fence (the clusters that a namespace may use) for the scheduler; nil
// becomes a nil interface.
func schedulerFence(f *access.Fence) scheduler.Fence {
	if f == nil {
		return nil
	}
	return f
}

// schedulingType returns Divided if the clusters share the replicas, and Duplicated if each has all
// of them.
func schedulingType(shared bool) policyv1alpha1.ReplicaSchedulingType {
	if shared {
		return policyv1alpha1.Divided
	}
	return policyv1alpha1.Duplicated
}

// shared reports whether the replicas of each cluster in a binding are a share of the replicas of
// the template. Bindings of early versions of Orrery do not store that; there, a cluster with
// another number than the template shows it.
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

// record sets the fields of d.Record, except the verdicts, the time and the UID of the binding.
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

// claimant returns the policy of a claim in the form of the records.
func claimant(c policy.Claim) records.Policy {
	return records.Policy{
		Kind: policy.Kind(c.Policy.Namespace), Namespace: c.Policy.Namespace, Name: c.Policy.Name, Generation: c.Policy.Generation,
	}
}

// verdicts converts the scheduler's reasons for and against clusters to the form of the records.
func verdicts(v *scheduler.Verdicts) []records.Verdict {
	said := v.All()
	all := make([]records.Verdict, len(said))
	for i, s := range said {
		all[i] = records.Verdict{Reason: s.Reason, Message: s.Message, Clusters: s.Clusters}
	}
	return all
}
