package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/fleet"
	"orrery.dev/orrery/internal/graph"
	"orrery.dev/orrery/internal/policy"
	"orrery.dev/orrery/internal/presence"
)

// dependencies are the templates that follow one: those of its namespace that it needs beside it.
func dependencies(o *unstructured.Unstructured) sets.Set[binding.Template] {
	found := sets.New[binding.Template]()
	for _, r := range graph.Dependencies(o) {
		found.Insert(binding.Template{GroupKind: r.Kind, Namespace: r.Namespace, Name: r.Name})
	}
	return found
}

// needs remembers which bindings have which templates follow theirs. What this process has not
// looked at yet is as the followers' bindings say.
type needs struct {
	mu     sync.RWMutex
	looked sets.Set[types.NamespacedName]                      // bindings that this process has looked at
	of     map[types.NamespacedName]sets.Set[binding.Template] // what a binding needs
	by     map[binding.Template]sets.Set[types.NamespacedName] // who needs a template
}

func newNeeds() *needs {
	return &needs{
		looked: sets.New[types.NamespacedName](),
		of:     map[types.NamespacedName]sets.Set[binding.Template]{},
		by:     map[binding.Template]sets.Set[types.NamespacedName]{},
	}
}

// set notes what a binding needs, and returns the templates of which that is news.
func (n *needs) set(name types.NamespacedName, templates sets.Set[binding.Template]) []binding.Template {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(templates) == 0 && len(n.of[name]) == 0 {
		return nil
	}
	n.looked.Insert(name)
	news := n.of[name].SymmetricDifference(templates)
	n.put(name, templates)
	return news.UnsortedList()
}

// said notes what the binding of a follower says of who needs it.
func (n *needs) said(b *workv1alpha2.ResourceBinding) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, r := range b.Spec.RequiredBy {
		if name := (types.NamespacedName{Namespace: r.Namespace, Name: r.Name}); !n.looked.Has(name) {
			n.put(name, n.of[name].Union(sets.New(binding.TemplateOf(b))))
		}
	}
}

// drop forgets a binding that is gone, and returns what it needed.
func (n *needs) drop(name types.NamespacedName) []binding.Template {
	n.mu.Lock()
	defer n.mu.Unlock()
	needed := n.of[name].UnsortedList()
	n.put(name, nil)
	n.looked.Delete(name)
	return needed
}

func (n *needs) put(name types.NamespacedName, templates sets.Set[binding.Template]) {
	for t := range n.of[name].Difference(templates) {
		if n.by[t].Delete(name); len(n.by[t]) == 0 {
			delete(n.by, t)
		}
	}
	for t := range templates {
		if n.by[t] == nil {
			n.by[t] = sets.New[types.NamespacedName]()
		}
		n.by[t].Insert(name)
	}
	if n.of[name] = templates; len(templates) == 0 {
		delete(n.of, name)
	}
}

// templates are what a binding needs.
func (n *needs) templates(name types.NamespacedName) []binding.Template {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.of[name].UnsortedList()
}

// who are the bindings that need a template.
func (n *needs) who(t binding.Template) []types.NamespacedName {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.by[t].UnsortedList()
}

// requiredBy are the bindings that have a template follow theirs, by name. Those that did, as its own binding b says, and whose
// templates do not refer to it any more, need it until every cluster has them as they are now: again is true then.
func (c *Controller) requiredBy(k binding.Template, o *unstructured.Unstructured, b *workv1alpha2.ResourceBinding) (found []*workv1alpha2.ResourceBinding, again bool) {
	if !policy.Placeable(o) {
		return nil, false
	}
	names := sets.New(c.needs.who(k)...)
	for name := range names {
		if by, ok := c.bindings.Get(name); ok && by.Spec.PropagateDeps && binding.TemplateOf(by) != k {
			found = append(found, by)
		}
	}
	if b != nil {
		for _, r := range b.Spec.RequiredBy {
			name := types.NamespacedName{Namespace: r.Namespace, Name: r.Name}
			if by, ok := c.bindings.Get(name); ok && !names.Has(name) && c.unsettled(by) {
				found, again = append(found, by), true
			}
		}
	}
	slices.SortFunc(found, func(a, b *workv1alpha2.ResourceBinding) int { return cmp.Compare(a.Name, b.Name) })
	return found, again
}

// unsettled is true while some cluster may run a template that is propagated with what it needs as it was before.
func (c *Controller) unsettled(b *workv1alpha2.ResourceBinding) bool {
	if !b.DeletionTimestamp.IsZero() || !b.Spec.PropagateDeps || len(whereabouts(&b.Spec)) == 0 {
		return false
	}
	o, state := c.templates.Get(binding.Kind(b), b.Namespace, b.Spec.Resource.Name)
	return state == presence.Unknown || state == presence.Present && o.GetGeneration() != b.Spec.Resource.Generation || !settledStatus(b)
}

// settledStatus is true when the status of a binding says that every cluster has the template as it is now and, as far as that
// can be judged, runs it.
func settledStatus(b *workv1alpha2.ResourceBinding) bool {
	applied := meta.FindStatusCondition(b.Status.Conditions, workv1alpha2.ConditionFullyApplied)
	healthy := meta.FindStatusCondition(b.Status.Conditions, workv1alpha2.ConditionHealthy)
	return applied != nil && applied.Status == metav1.ConditionTrue && applied.ObservedGeneration == b.Generation &&
		healthy != nil && healthy.ObservedGeneration == b.Generation &&
		(healthy.Status == metav1.ConditionTrue || healthy.Reason == workv1alpha2.ReasonCannotJudge)
}

// orphaned is true when the policies of some bindings are gone.
func (c *Controller) orphaned(bindings []*workv1alpha2.ResourceBinding) bool {
	for _, b := range bindings {
		name := types.NamespacedName{Name: b.Spec.PolicyRef.Name}
		if b.Spec.PolicyRef.Kind != policy.Kind("") {
			name.Namespace = b.Namespace
		}
		if _, ok := c.policies.Get(name); ok {
			return false
		}
	}
	return len(bindings) > 0
}

// somewhere is true when some of the bindings name a cluster.
func somewhere(bindings []*workv1alpha2.ResourceBinding) bool {
	return slices.ContainsFunc(bindings, func(b *workv1alpha2.ResourceBinding) bool { return len(b.Spec.Clusters) > 0 })
}

// follows has what a binding's template refers to follow it.
func (c *Controller) follows(b *workv1alpha2.ResourceBinding, o *unstructured.Unstructured) {
	var needed sets.Set[binding.Template]
	if b.Spec.PropagateDeps {
		needed = dependencies(o)
		for t := range needed {
			c.watchKinds(corev1.SchemeGroupVersion.WithKind(t.Kind))
		}
	}
	c.enqueue(c.needs.set(binding.Name(b), needed)...)
}

// follower is true of the binding of a template that no policy ever claimed: it is there for those
// that refer to it, and goes with the last of them.
func follower(b *workv1alpha2.ResourceBinding) bool {
	return b.Spec.PlacementHash == "" && len(b.Spec.RequiredBy) > 0
}

// right says how much a placement may do to what others made in clusters: the greater may do more.
func right(spec *workv1alpha2.BindingSpec) int {
	switch {
	case spec.ConflictResolution != policyv1alpha1.ConflictOverwrite:
		return 0
	case spec.PolicyRef.Kind != policy.Kind(""):
		return 1
	default:
		return 2
	}
}

// leastRight is the placement of those of bindings that may do the least, the first of several by name.
func leastRight(bindings []*workv1alpha2.ResourceBinding) *workv1alpha2.BindingSpec {
	return &slices.MinFunc(bindings, func(a, b *workv1alpha2.ResourceBinding) int {
		return cmp.Or(cmp.Compare(right(&a.Spec), right(&b.Spec)), cmp.Compare(a.Name, b.Name))
	}).Spec
}

// follow is the decision on a template that no policy claims and that others refer to. The one of them that may do the least
// says by whose right it is placed, and all of them which overrides must be there.
func follow(t Template, b *workv1alpha2.ResourceBinding) Decision {
	first := leastRight(t.RequiredBy)
	d := Decision{
		Spec: &workv1alpha2.BindingSpec{
			PolicyRef: first.PolicyRef, ConflictResolution: first.ConflictResolution, PropagateDeps: true,
			PreserveResourcesOnDeletion: slices.ContainsFunc(t.RequiredBy, func(b *workv1alpha2.ResourceBinding) bool {
				return b.Spec.PreserveResourcesOnDeletion
			}),
		},
		Outcome: Outcome{
			Status: metav1.ConditionFalse, Reason: workv1alpha2.ReasonNoClusterFits,
			Message: "what refers to it is placed in no cluster",
		},
	}
	var overrides []workv1alpha2.OverrideReference
	for _, b := range t.RequiredBy {
		overrides = append(overrides, b.Spec.DependentOverrides...)
	}
	if t.Orphaned { // it stays as it is, as they do
		overrides = append(overrides, selecting(t)...)
		if b != nil {
			overrides = append(overrides, b.Spec.DependentOverrides...)
		}
	}
	d.Spec.DependentOverrides = distinct(overrides)
	// What nobody may write for any of those that need it there is held back.
	held := sets.New[string]()
	for _, b := range t.RequiredBy {
		held.Insert(whereabouts(&b.Spec)...)
	}
	for _, b := range t.RequiredBy {
		for _, name := range whereabouts(&b.Spec) {
			if !b.Spec.SuspendedOn(name) {
				held.Delete(name)
			}
		}
	}
	if len(held) > 0 {
		d.Spec.Suspension = &workv1alpha2.Suspension{Suspension: policyv1alpha1.Suspension{
			DispatchingOnClusters: &policyv1alpha1.SuspendClusters{ClusterNames: sets.List(held)},
		}}
	}
	if b != nil && b.Spec.Suspension != nil && b.Spec.Suspension.Scheduling != nil { // which nobody unsets
		if d.Spec.Suspension == nil {
			d.Spec.Suspension = &workv1alpha2.Suspension{}
		}
		d.Spec.Suspension.Scheduling = b.Spec.Suspension.Scheduling
	}
	return d
}

// selecting are the override policies that select a template.
func selecting(t Template) []workv1alpha2.OverrideReference {
	all := make([]workv1alpha2.OverrideReference, 0, len(t.Overrides))
	for _, o := range t.Overrides {
		all = append(all, workv1alpha2.OverrideReference{Kind: o.Kind, Name: o.Name})
	}
	return all
}

// distinct are references, each once and in order.
func distinct(all []workv1alpha2.OverrideReference) []workv1alpha2.OverrideReference {
	slices.SortFunc(all, func(a, b workv1alpha2.OverrideReference) int {
		return cmp.Or(strings.Compare(a.Kind, b.Kind), strings.Compare(a.Name, b.Name))
	})
	return slices.Compact(all)
}

// whereabouts are the clusters in which a placement is, and those in which it stays until it may move out of them: it
// needs there what it refers to until then.
func whereabouts(spec *workv1alpha2.BindingSpec) []string {
	names := make([]string, 0, len(spec.Clusters)+len(spec.GracefulEvictionTasks))
	for _, c := range spec.Clusters {
		names = append(names, c.Name)
	}
	for _, task := range spec.GracefulEvictionTasks {
		names = append(names, task.FromCluster)
	}
	return names
}

// attach adds the clusters of those that a template follows to the placement of its own.
func (d *Decision) attach(s *fleet.Snapshot, t Template) {
	if len(t.RequiredBy) == 0 || t.Replicas != nil {
		return
	}
	clusters := sets.New[string]()
	for _, c := range d.Spec.Clusters {
		clusters.Insert(c.Name)
	}
	var first string
	for _, b := range t.RequiredBy {
		d.Spec.RequiredBy = append(d.Spec.RequiredBy, workv1alpha2.BindingSnapshot{Namespace: b.Namespace, Name: b.Name})
		first = cmp.Or(first, binding.TemplateOf(b).String())
		for _, name := range whereabouts(&b.Spec) {
			if c, ok := s.Cluster(name); ok && !c.Leaving && !clusters.Has(name) {
				clusters.Insert(name)
				d.Spec.Clusters = append(d.Spec.Clusters, workv1alpha2.TargetCluster{Name: name})
				if right(&b.Spec) < right(d.Spec) { // who brings it here may not do what its own policy may
					d.Spec.ConflictResolution = ""
				}
			}
		}
	}
	slices.SortFunc(d.Spec.Clusters, func(a, b workv1alpha2.TargetCluster) int { return strings.Compare(a.Name, b.Name) })
	if len(d.Spec.Clusters) == 0 {
		return
	}
	message := "follows " + first
	if more := len(t.RequiredBy) - 1; more > 0 {
		message += fmt.Sprintf(" and %d more", more)
	}
	if len(t.Claims) == 0 && d.Outcome.Reason == workv1alpha2.ReasonNoClusterFits {
		d.Outcome = Outcome{Status: metav1.ConditionTrue, Reason: workv1alpha2.ReasonScheduled, Message: message}
		return
	}
	d.Outcome.Message += "; " + message
}
