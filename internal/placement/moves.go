package placement

import (
	"context"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/fleet"
	"orrery.dev/orrery/internal/policy"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/scheduler"
)

// Supposition is a hypothetical change of a policy or of a cluster. Controller.Moves computes its
// effects.
type Supposition struct {
	// Policy is the name of the policy that would change, be created or be deleted. It is not used if
	// Cluster is set.
	Policy types.NamespacedName
	// As is the policy as it would be stored. nil: the policy would be deleted. It is not used if
	// Cluster is set.
	As *policyv1alpha1.PropagationPolicy
	// Cluster is the name of the cluster that would change; "": the change is about the policy.
	Cluster string
	// Leaves is true if the cluster would leave the fleet. Tainted is true if its taints would be
	// Taints; those with the effect NoExecute evict at once, without regard to tolerationSeconds and
	// to the limits of evictions. Else its labels would be Labels.
	Leaves, Tainted bool
	Labels          map[string]string
	Taints          []corev1.Taint
}

// Moves is the effect of a hypothetical change, as Controller.Moves computes it.
type Moves struct {
	// Early is true if the hub knows too little just after a start. The other fields are then
	// incomplete, and the caller tries again later.
	Early bool
	// Looked is the number of objects on which decisions were made.
	Looked int
	// Exact is false if Moving may be incomplete: the context ended, an object was decided
	// mostDecisions times, or the hub does not know some objects yet.
	Exact bool
	// Moving are the objects that would be placed differently, in no order.
	Moving []Move
	// Snapshot is the version of the snapshot of the fleet, see fleet.Snapshot.Version.
	Snapshot uint64
}

// Move is an object that would be placed differently after a hypothetical change.
type Move struct {
	Object *unstructured.Unstructured // read-only
	// Before is the present binding; nil: the object is placed nowhere.
	Before *workv1alpha2.ResourceBinding
	// After is the spec that the binding would have, with its evictions.
	After   *workv1alpha2.BindingSpec
	Outcome Outcome // of the decision that leads to After
	// Later is true if the object moves only after its next change, because the policy has
	// activationPreference Lazy.
	Later bool
}

// mostDecisions is how often Moves decides on one object at most: again each time that another
// object moves on which it depends.
const mostDecisions = 3

// Moves returns what a hypothetical change would move. It decides on the objects that the change
// concerns, one after the other as Reconcile would, each with the results of those before it. Then
// it decides on their dependencies and on the other members of their affinity groups. It writes and
// reserves nothing, and blocks other decisions for one object at a time. When ctx ends, it returns
// the moves so far, and Exact is false. Nothing moves if the fleet does not have the cluster of the
// change.
func (c *Controller) Moves(ctx context.Context, what Supposition) Moves {
	if !c.working() {
		return Moves{Early: true}
	}
	w := &supposed{
		c: c, policies: c.policies, bindings: map[binding.Template]*workv1alpha2.ResourceBinding{}, dependencyIndex: newDependencyIndex(), peers: newPeers(),
		taken: map[string][]scheduler.Taken{}, decided: map[binding.Template]int{}, moves: map[binding.Template]Move{}, exact: true,
	}
	todo := c.ordered(w.suppose(what))
	for len(todo) > 0 && !w.early {
		var next []binding.Template
		for _, k := range todo {
			if ctx.Err() != nil {
				w.exact, next = false, nil
				break
			}
			if w.decided[k] >= mostDecisions {
				w.exact = false
				continue
			}
			w.decided[k]++
			next = append(next, w.decide(k)...)
		}
		todo = c.ordered(sets.New(next...).UnsortedList())
	}
	result := Moves{Early: w.early, Looked: len(w.decided), Exact: w.exact, Snapshot: c.fleet.Snapshot().Version()}
	for k, m := range w.moves {
		if m.Before, _ = c.bindings.Of(k); !moved(m) {
			continue
		}
		result.Moving = append(result.Moving, m)
	}
	return result
}

// moved reports whether the clusters, or the replicas in one of them, would change.
func moved(m Move) bool {
	var before []workv1alpha2.TargetCluster
	if m.Before != nil {
		before = m.Before.Spec.Clusters
	}
	return !slices.EqualFunc(before, m.After.Clusters, sameTarget)
}

// supposed is the state of the hub after a hypothetical change, as far as it differs from the real
// state. Each call of Moves creates one.
type supposed struct {
	c        *Controller
	policies *policy.Index
	fleet    func(*fleet.Snapshot) *fleet.Snapshot // applies the change; nil: no cluster changes
	policy   *policyv1alpha1.PropagationPolicy     // the changed policy; nil: deleted, or none
	tainted  string                                // the cluster whose taints change; "": none
	compiled *scheduler.Placement                  // of policy
	hash     string                                // of policy

	bindings        map[binding.Template]*workv1alpha2.ResourceBinding // after the change; nil: gone
	dependencyIndex *dependencyIndex                                   // of the changed bindings
	peers           *peers                                             // of the changed bindings
	taken           map[string][]scheduler.Taken                       // by the decisions, by cluster
	decided         map[binding.Template]int                           // number of decisions
	moves           map[binding.Template]Move
	early           bool // see Moves.Early
	exact           bool // see Moves.Exact
}

// suppose applies a hypothetical change to w. It returns the templates that the change concerns,
// some perhaps twice; nil if the fleet does not have the cluster of the change.
func (w *supposed) suppose(what Supposition) []binding.Template {
	c := w.c
	if what.Cluster != "" {
		as := func(s *fleet.Snapshot) (*fleet.Snapshot, fleet.Change, bool) {
			return s.Supposing(what.Cluster, func(cluster *fleet.Cluster) {
				switch {
				case what.Leaves:
					cluster.Leaving = true
				case what.Tainted:
					cluster.Taints = added(what.Taints, time.Now())
				default:
					cluster.Labels = what.Labels
				}
			})
		}
		var last, next *fleet.Snapshot
		w.fleet = func(s *fleet.Snapshot) *fleet.Snapshot {
			if s != last {
				last = s
				next, _, _ = as(s)
			}
			return next
		}
		_, change, ok := as(c.fleet.Snapshot())
		if !ok {
			return nil
		}
		if what.Tainted {
			w.tainted = what.Cluster
		}
		all := c.decisions.supposed(change, c.bindings)
		for _, b := range c.bindings.All() {
			// This process has not decided on the binding since its start. So it does not know whether
			// the change concerns the binding.
			if _, made := c.decisions.of(b.UID); !made {
				all = append(all, binding.TemplateOf(b))
			}
		}
		return all
	}
	others := slices.DeleteFunc(c.policies.All(), func(p *policyv1alpha1.PropagationPolicy) bool { return policy.Name(p) == what.Policy })
	w.policies = policy.NewIndex(others...)
	concerned := map[binding.Template]*unstructured.Unstructured{}
	if stored, ok := c.policies.Get(what.Policy); ok {
		maps.Copy(concerned, selected(c.templates, stored))
	}
	if w.policy = what.As; w.policy != nil {
		w.policies.Set(w.policy)
		w.compiled, w.hash = readPlacement(w.policy)
		maps.Copy(concerned, selected(c.templates, w.listed(w.policy)))
	}
	var all []binding.Template
	for k, o := range concerned {
		b, _ := c.bindings.Of(k)
		if first(settled(c.policies.Claims(o), b)) == what.Policy || first(settled(w.policies.Claims(o), b)) == what.Policy {
			all = append(all, k)
		}
	}
	return all
}

// added returns taints in which each with the effect NoExecute has the time at which it was added:
// now, if it has none.
func added(taints []corev1.Taint, now time.Time) []corev1.Taint {
	taints = slices.Clone(taints)
	for i := range taints {
		if t := &taints[i]; t.Effect == corev1.TaintEffectNoExecute && t.TimeAdded == nil {
			t.TimeAdded = new(metav1.NewTime(now))
		}
	}
	return taints
}

// first returns the name of the policy with the first of the claims; the zero name if there are no
// claims.
func first(claims []policy.Claim) types.NamespacedName {
	if len(claims) == 0 {
		return types.NamespacedName{}
	}
	return policy.Name(claims[0].Policy)
}

// listed returns a copy of the policy p for finding the objects that it selects: each selector
// names a version of its kind that the hub has listed. A kind that the hub watches in no version
// stays, because none of its objects is placed. If a kind is watched and not listed in any version
// yet, w.exact becomes false.
func (w *supposed) listed(p *policyv1alpha1.PropagationPolicy) *policyv1alpha1.PropagationPolicy {
	p = p.DeepCopy()
	for _, gvk := range policy.Kinds(p) {
		versions := w.c.templates.Versions(gvk.GroupKind())
		if w.c.templates.Listed(gvk) || len(versions) == 0 {
			continue
		}
		i := slices.IndexFunc(versions, w.c.templates.Listed)
		if i < 0 {
			w.exact = false
			continue
		}
		for j := range p.Spec.ResourceSelectors {
			if s := &p.Spec.ResourceSelectors[j]; s.Kind == gvk.Kind && s.APIVersion == gvk.GroupVersion().String() {
				s.APIVersion = versions[i].GroupVersion().String()
			}
		}
	}
	return p
}

// binding returns the binding that a template has after the hypothetical change and the decisions
// so far; nil if there is none.
func (w *supposed) binding(k binding.Template) *workv1alpha2.ResourceBinding {
	if b, ok := w.bindings[k]; ok {
		return b
	}
	b, _ := w.c.bindings.Of(k)
	return b
}

// decide decides on a template as Reconcile would after the hypothetical change, and records the
// result in w. It returns the templates that must be decided because of the result. If inputs are
// incomplete, it sets w.early or clears w.exact.
func (w *supposed) decide(k binding.Template) []binding.Template {
	c, b := w.c, w.binding(k)
	o, state := c.template(k, b)
	switch {
	case state == presence.Unknown:
		// The result stays exact only if the hub watches the kind in no version and the template has no
		// binding. Then it is not placed.
		w.exact = w.exact && b == nil && len(c.templates.Versions(k.GroupKind)) == 0
		return nil
	case state == presence.Absent, gone(o), b != nil && (!b.DeletionTimestamp.IsZero() || b.Spec.Resource.UID != "" && b.Spec.Resource.UID != o.GetUID()):
		return nil // the binding is removed with or without the change
	}
	claims, priority := c.placeable(settled(w.policies.Claims(o), b), b)
	required := w.requiredBy(k, o, b)
	switch {
	case b == nil && (len(claims) == 0 && !somewhere(required) || !o.GetDeletionTimestamp().IsZero()):
		return nil
	case b != nil && len(claims) == 0 && len(required) == 0 && dependencyOnly(b):
		return w.becomes(k, o, b, Decision{Spec: &workv1alpha2.BindingSpec{Resource: b.Spec.Resource}})
	}
	t, current := c.gather(k, o, claims, b, w.read)
	current.Supposed = w.tainted
	t.RequiredBy, t.Priority = required, priority
	another := func(other binding.Template) bool { _, ok := w.bindings[other]; return ok || other == k }
	if t.Groups != nil {
		current.Together, current.Apart = c.peers.othersThan(another, k.Namespace, t.Groups)
		together, apart := w.peers.others(k, t.Groups)
		current.Together, current.Apart = current.Together.Union(together), current.Apart.Union(apart)
	}
	d := w.on(t, current)
	if d.Spec == nil {
		w.early = true
		return nil
	}
	if d.Outcome.Reason == workv1alpha2.ReasonPolicyWaits && b.Spec.Schedules() {
		later := *b
		later.Spec, t.Version, current.Binding = *d.Spec, t.Version+" later", &later
		t.Placement, _ = w.read(claims[0].Policy)
		if d := w.on(t, current); d.Spec != nil {
			w.moves[k] = Move{Object: o, After: d.Spec, Outcome: d.Outcome, Later: true}
		}
		return nil
	}
	w.take(b, demand{t.Claim, t.Components}, d.Spec)
	return w.becomes(k, o, b, d)
}

// read returns the compiled placement of a policy and its hash. For the hypothetically changed
// policy, these are the changed ones.
func (w *supposed) read(p *policyv1alpha1.PropagationPolicy) (*scheduler.Placement, string) {
	if p == w.policy {
		return w.compiled, w.hash
	}
	return w.c.placements.of(p)
}

// on decides on a template with the fleet after the hypothetical change. The decision has no Spec
// while inputs are incomplete after a start. It may block other decisions by capacity.
func (w *supposed) on(t Template, current CurrentState) Decision {
	c := w.c
	as := func(s *fleet.Snapshot) *fleet.Snapshot {
		if w.fleet != nil {
			s = w.fleet(s)
		}
		return s
	}
	if !byCapacity(t) {
		return Decide(as(c.fleet.Snapshot()), t, current)
	}
	if !c.known() {
		return Decision{}
	}
	c.reservations.deciding.Lock()
	defer c.reservations.deciding.Unlock()
	return Decide(as(c.measured()).Without(w.taken), t, current)
}

// take records the capacity that a decision takes beyond what the binding b has, so that later
// decisions of the same call of Moves see less. want is the spec by the decision, and d what the
// template requires. b is nil if there is no binding.
func (w *supposed) take(b *workv1alpha2.ResourceBinding, d demand, want *workv1alpha2.BindingSpec) {
	var before workv1alpha2.BindingSpec
	if b != nil {
		before = b.Spec
	}
	for _, t := range want.Clusters {
		i := slices.IndexFunc(before.Clusters, func(was workv1alpha2.TargetCluster) bool { return was.Name == t.Name })
		var had, objects int64
		components := d.components
		if i < 0 {
			objects = 1
		} else if had = heldBy(&before, before.Clusters[i]); components != nil {
			components = d.grown(before.Components)
		}
		if d.components == nil && d.pods(t) > had {
			w.takes(t.Name, scheduler.Taken{Claim: d.claim, Replicas: d.pods(t) - had, Objects: objects})
		}
		for _, c := range components {
			w.takes(t.Name, scheduler.Taken{Claim: c.Claim, Replicas: c.Replicas, Objects: objects})
			objects = 0
		}
	}
}

// takes adds more to the capacity that the decisions of this call of Moves take in a cluster.
func (w *supposed) takes(cluster string, more scheduler.Taken) {
	all := w.taken[cluster]
	i := slices.IndexFunc(all, func(t scheduler.Taken) bool { return t.Claim.Same() == more.Claim.Same() })
	if i < 0 {
		w.taken[cluster] = append(all, more)
		return
	}
	all[i].Replicas += more.Replicas
	all[i].Objects += more.Objects
}

// requiredBy returns the bindings that depend on the template k, as Controller.requiredBy does, but
// after the hypothetical change: with the changed bindings and policies. o is the object of k, and
// b its binding; nil: none.
func (w *supposed) requiredBy(k binding.Template, o *unstructured.Unstructured, b *workv1alpha2.ResourceBinding) []Dependent {
	all, after := w.c.dependencyIndex.everybody(k), w.dependencyIndex.everybody(k)
	before := len(all)
	maps.DeleteFunc(all, func(_ types.NamespacedName, by *workv1alpha2.ResourceBinding) bool {
		_, another := w.bindings[binding.TemplateOf(by)]
		return another
	})
	switch {
	case !policy.Placeable(o):
		return nil
	case len(all) == before && len(after) == 0:
		found, _ := w.c.requiredBy(k, o, b)
		for i := range found {
			found[i].Orphaned = orphaned(w.policies, found[i].Binding)
		}
		return found
	}
	maps.Copy(all, after)
	return dependentsOf(all, w.policies)
}

// becomes records the binding that the template k would have by the decision d. before is its
// present binding; nil: none. It returns the templates that must be decided because of the
// difference: the dependencies of k, and the other members of its workload affinity groups.
func (w *supposed) becomes(k binding.Template, o *unstructured.Unstructured, before *workv1alpha2.ResourceBinding, d Decision) []binding.Template {
	w.moves[k] = Move{Object: o, After: d.Spec, Outcome: d.Outcome}
	if before != nil && equality.Semantic.DeepEqual(before.Spec, *d.Spec) {
		return nil
	}
	after := &workv1alpha2.ResourceBinding{ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace}, Spec: *d.Spec}
	concerned := followed(after)
	if before == nil {
		after.Name = w.c.bindings.FreeName(k)
	} else {
		after.ObjectMeta, after.Status = before.ObjectMeta, before.Status
		concerned = concerned.Union(followed(before))
		if termsOf(before) == termsOf(after) && followed(before).Equal(followed(after)) {
			concerned = nil
		}
	}
	after.Generation++
	if w.bindings[k] = after; len(d.Spec.Clusters) == 0 && d.Spec.PolicyRef == (workv1alpha2.PolicyReference{}) {
		w.bindings[k] = nil // the binding is gone
	}
	w.dependencyIndex.set(after)
	w.peers.set(after)
	return slices.Concat(concerned.UnsortedList(), w.groups(k, before, after))
}

// groups returns the other members of the workload affinity groups that the template k has in its
// binding before or after the change. They must be decided again. It is nil if neither the clusters
// nor the groups of k differ. before is nil for a new binding.
func (w *supposed) groups(k binding.Template, before, after *workv1alpha2.ResourceBinding) []binding.Template {
	groups := []*workv1alpha2.WorkloadAffinityGroups{after.Spec.WorkloadAffinityGroups}
	if before != nil {
		if slices.Equal(whereabouts(&before.Spec), whereabouts(&after.Spec)) && equality.Semantic.DeepEqual(before.Spec.WorkloadAffinityGroups, groups[0]) {
			return nil
		}
		groups = append(groups, before.Spec.WorkloadAffinityGroups)
	}
	var all []binding.Template
	for _, g := range groups {
		all = append(all, w.c.peers.members(k.Namespace, g)...)
		all = append(all, w.peers.members(k.Namespace, g)...)
	}
	return slices.DeleteFunc(all, func(other binding.Template) bool { return other == k })
}
