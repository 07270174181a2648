package placement

import (
	"context"
	"maps"
	"slices"

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

// Supposition is a hypothetical change of a policy or of a cluster.
type Supposition struct {
	// Policy is the name of the policy that would change, be created or be deleted.
	Policy types.NamespacedName
	// As is the policy as it would be stored. nil: the policy is deleted, unless Cluster is set.
	As *policyv1alpha1.PropagationPolicy
	// Cluster is the name of the cluster that would change; "": the change is about the policy.
	Cluster string
	// Leaves is true if the cluster would leave the fleet; else it would have Labels.
	Leaves bool
	Labels map[string]string
}

// Moves is the effect of a Supposition.
type Moves struct {
	// Early is true if the hub does not know enough yet, just after a start.
	Early bool
	// Looked is the number of objects that were decided.
	Looked int
	// Exact is false if the time was too short for all objects, or some objects are unknown.
	Exact bool
	// Moving are the objects that would be placed differently, in no order.
	Moving []Move
	// Snapshot is the version of the fleet snapshot.
	Snapshot uint64
}

// Move is an object that would be placed differently.
type Move struct {
	Object *unstructured.Unstructured // read-only
	// Before is the present binding; nil: the object is placed nowhere.
	Before *workv1alpha2.ResourceBinding
	// After is the placement that would follow, with its evictions.
	After   *workv1alpha2.BindingSpec
	Outcome Outcome
	// Later is true if the move waits for the next change of the object, because the policy is
	// Lazy.
	Later bool
}

// mostDecisions bounds how often one object is decided because others move.
const mostDecisions = 3

// Moves returns what a hypothetical change would move. It decides the concerned objects one after
// the other as Reconcile would, each with the results of those before it, and then their
// dependencies and groups. It writes and reserves nothing, and blocks other decisions for one
// object at a time. When ctx ends, it returns what it has.
func (c *Controller) Moves(ctx context.Context, what Supposition) Moves {
	if !c.working() {
		return Moves{Early: true}
	}
	w := &supposed{
		c: c, policies: c.policies, bindings: map[binding.Template]*workv1alpha2.ResourceBinding{}, needs: newNeeds(), peers: newPeers(),
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
	told := Moves{Early: w.early, Looked: len(w.decided), Exact: w.exact, Snapshot: c.fleet.Snapshot().Version()}
	for k, m := range w.moves {
		if m.Before, _ = c.bindings.Of(k); !moved(m) {
			continue
		}
		told.Moving = append(told.Moving, m)
	}
	return told
}

func moved(m Move) bool {
	var before []workv1alpha2.TargetCluster
	if m.Before != nil {
		before = m.Before.Spec.Clusters
	}
	return !slices.EqualFunc(before, m.After.Clusters, sameTarget)
}

// supposed is the state of the hub after a hypothetical change, as far as it differs from the real
// state.
type supposed struct {
	c        *Controller
	policies *policy.Index
	fleet    func(*fleet.Snapshot) *fleet.Snapshot // nil: unchanged
	policy   *policyv1alpha1.PropagationPolicy     // the changed policy
	compiled *scheduler.Placement
	hash     string

	bindings map[binding.Template]*workv1alpha2.ResourceBinding // after the change; nil: it is gone
	needs    *needs                                             // of the changed bindings
	peers    *peers                                             // of the changed bindings
	taken    map[string][]scheduler.Taken                       // capacity, by cluster
	decided  map[binding.Template]int                           // number of decisions
	moves    map[binding.Template]Move
	early    bool
	exact    bool
}

// suppose applies the change and returns the templates that it concerns.
func (w *supposed) suppose(what Supposition) []binding.Template {
	c := w.c
	if what.Cluster != "" {
		as := func(s *fleet.Snapshot) (*fleet.Snapshot, fleet.Change, bool) {
			return s.Supposing(what.Cluster, func(cluster *fleet.Cluster) {
				if what.Leaves {
					cluster.Leaving = true
				} else {
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
		all := c.decisions.supposed(change, c.bindings)
		for _, b := range c.bindings.All() {
			// Not decided by this process, so it may be concerned.
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

func first(claims []policy.Claim) types.NamespacedName {
	if len(claims) == 0 {
		return types.NamespacedName{}
	}
	return policy.Name(claims[0].Policy)
}

// listed returns a copy of the policy that selects the same kinds in versions that the hub lists.
// Kinds without a watched version are skipped, because nothing of them is placed.
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

// binding returns the binding of a template after the change; nil if there is none.
func (w *supposed) binding(k binding.Template) *workv1alpha2.ResourceBinding {
	if b, ok := w.bindings[k]; ok {
		return b
	}
	b, _ := w.c.bindings.Of(k)
	return b
}

// decide decides on a template as Reconcile does. It returns the templates that must be decided
// because of the result.
func (w *supposed) decide(k binding.Template) []binding.Template {
	c, b := w.c, w.binding(k)
	o, state := c.template(k, b)
	switch {
	case state == presence.Unknown:
		// Nothing of such a kind is placed.
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
	case b != nil && len(claims) == 0 && len(required) == 0 && follower(b):
		return w.becomes(k, o, b, Decision{Spec: &workv1alpha2.BindingSpec{Resource: b.Spec.Resource}})
	}
	t, standing := c.gather(k, o, claims, b, w.read)
	t.RequiredBy, t.Priority = required, priority
	another := func(other binding.Template) bool { _, ok := w.bindings[other]; return ok || other == k }
	if t.Groups != nil {
		standing.Together, standing.Apart = c.peers.othersThan(another, k.Namespace, t.Groups)
		together, apart := w.peers.others(k, t.Groups)
		standing.Together, standing.Apart = standing.Together.Union(together), standing.Apart.Union(apart)
	}
	d := w.on(t, standing)
	if d.Spec == nil {
		w.early = true
		return nil
	}
	if d.Outcome.Reason == workv1alpha2.ReasonPolicyWaits && b.Spec.Schedules() {
		later := *b
		later.Spec, t.Version, standing.Binding = *d.Spec, t.Version+" later", &later
		t.Placement, _ = w.read(claims[0].Policy)
		if d := w.on(t, standing); d.Spec != nil {
			w.moves[k] = Move{Object: o, After: d.Spec, Outcome: d.Outcome, Later: true}
		}
		return nil
	}
	w.take(b, demand{t.Claim, t.Components}, d.Spec)
	return w.becomes(k, o, b, d)
}

// read returns a policy's compiled placement and hash, after the change.
func (w *supposed) read(p *policyv1alpha1.PropagationPolicy) (*scheduler.Placement, string) {
	if p == w.policy {
		return w.compiled, w.hash
	}
	return w.c.placements.of(p)
}

// on decides with the fleet after the change. The decision is empty while the inputs are
// incomplete.
func (w *supposed) on(t Template, standing Standing) Decision {
	c := w.c
	as := func(s *fleet.Snapshot) *fleet.Snapshot {
		if w.fleet != nil {
			s = w.fleet(s)
		}
		return s
	}
	if !byRoom(t) {
		return Decide(as(c.fleet.Snapshot()), t, standing)
	}
	if !c.known() {
		return Decision{}
	}
	c.reservations.deciding.Lock()
	defer c.reservations.deciding.Unlock()
	return Decide(as(c.measured()).Without(w.taken), t, standing)
}

// take records the capacity that a decision takes beyond what the binding has, so that later
// decisions see less.
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

// requiredBy is Controller.requiredBy with the bindings and policies after the change.
func (w *supposed) requiredBy(k binding.Template, o *unstructured.Unstructured, b *workv1alpha2.ResourceBinding) []Need {
	all, after := w.c.needs.everybody(k), w.needs.everybody(k)
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
	return needsOf(all, w.policies)
}

// becomes records the binding that a template would have. It returns the templates that must be
// decided because of it: dependencies, and others of its groups.
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
	w.needs.set(after)
	w.peers.set(after)
	return slices.Concat(concerned.UnsortedList(), w.groups(k, before, after))
}

// groups returns the other templates of an object's groups; nil if its clusters and groups stay.
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
