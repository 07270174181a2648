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

// Supposition is a change that nobody made yet: of a policy or of a cluster.
type Supposition struct {
	// Policy that would be another, new or, without Spec, deleted.
	Policy types.NamespacedName
	// As is the policy as it would be stored; nil: it is deleted, unless Cluster is set.
	As *policyv1alpha1.PropagationPolicy
	// Cluster that would be another; empty: it is about the policy.
	Cluster string
	// Leaves says that it would leave the fleet; else Labels are those that it would have.
	Leaves bool
	Labels map[string]string
}

// Moves are what a Supposition moves.
type Moves struct {
	// Early: too little is known yet to say anything.
	Early bool
	// Looked is how many objects were decided on.
	Looked int
	// Exact is false when there was no time for all, or some objects are not known.
	Exact bool
	// Moving are those that would be placed otherwise, in no order.
	Moving []Move
	// Snapshot is the version of what is known of the clusters.
	Snapshot uint64
}

// Move is an object that would be placed otherwise.
type Move struct {
	Object *unstructured.Unstructured // read-only
	// Before is its binding; nil: it is placed nowhere.
	Before *workv1alpha2.ResourceBinding
	// After is where it would be, with the clusters that it would move out of.
	After   *workv1alpha2.BindingSpec
	Outcome Outcome
	// Later: not before the object changes next, as its policy is lazy.
	Later bool
}

// mostDecisions bounds how often one object is decided on for the sake of others that move.
const mostDecisions = 3

// Moves says what a change moves that nobody made: what it concerns is decided on as Reconcile would, one after the other, each after those before it, and then what
// follows them. It writes and reserves nothing, and holds up other decisions for one object at a time. When ctx ends it says what it has.
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

// supposed is the hub as it would be after a change that nobody made, as far as that is another than it is.
type supposed struct {
	c        *Controller
	policies *policy.Index
	fleet    func(*fleet.Snapshot) *fleet.Snapshot // nil: as it is
	policy   *policyv1alpha1.PropagationPolicy     // the one that is another, with what it says about where
	compiled *scheduler.Placement
	hash     string

	bindings map[binding.Template]*workv1alpha2.ResourceBinding // those that would be others; nil: it is gone
	needs    *needs                                             // of these
	peers    *peers                                             // of these
	taken    map[string][]scheduler.Taken                       // by these, of clusters
	decided  map[binding.Template]int                           // how often
	moves    map[binding.Template]Move
	early    bool
	exact    bool
}

// suppose makes the change, and returns what it concerns.
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
			if _, made := c.decisions.of(b.UID); !made { // by this process: whether it is concerned is not known
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

// listed is a policy that selects the same of what the hub knows, in versions that it lists. Of a kind that is watched in none, nothing is placed.
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

// binding is that of a template, as it would be.
func (w *supposed) binding(k binding.Template) *workv1alpha2.ResourceBinding {
	if b, ok := w.bindings[k]; ok {
		return b
	}
	b, _ := w.c.bindings.Of(k)
	return b
}

// decide decides on a template as Reconcile does, and returns those that are to be decided on because of that.
func (w *supposed) decide(k binding.Template) []binding.Template {
	c, b := w.c, w.binding(k)
	o, state := c.template(k, b)
	switch {
	case state == presence.Unknown:
		w.exact = w.exact && b == nil && len(c.templates.Versions(k.GroupKind)) == 0 // nothing is placed of such a kind
		return nil
	case state == presence.Absent, gone(o), b != nil && (!b.DeletionTimestamp.IsZero() || b.Spec.Resource.UID != "" && b.Spec.Resource.UID != o.GetUID()):
		return nil // it goes, whatever is supposed
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

// read reads what a policy says about where.
func (w *supposed) read(p *policyv1alpha1.PropagationPolicy) (*scheduler.Placement, string) {
	if p == w.policy {
		return w.compiled, w.hash
	}
	return w.c.placements.of(p)
}

// on decides on the fleet as it would be.
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

// take notes the room that a decision takes of clusters above what the binding wants there, so that those after it do not see the same.
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

// requiredBy is the controller's, with the bindings as they would be.
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

// becomes notes the binding that a template would have, and returns those templates that are to be decided on because of it: what follows it, and its group.
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
		w.bindings[k] = nil // it is gone
	}
	w.needs.set(after)
	w.peers.set(after)
	return slices.Concat(concerned.UnsortedList(), w.groups(k, before, after))
}

// groups are the others of an object's groups, if it would be elsewhere.
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
