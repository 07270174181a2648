package placement

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/fleet"
	"orrery.dev/orrery/internal/graph"
	"orrery.dev/orrery/internal/policy"
)

const (
	// mostNeeds bounds the bindings that spec.requiredBy of a binding names.
	mostNeeds = 10
	// mostDependencies bounds the dependencies of one template.
	mostDependencies = 1000
)

// dependencies returns the dependencies of a template, sorted: the objects of its namespace
// that it refers to.
func dependencies(o *unstructured.Unstructured) []workv1alpha2.DependencyReference {
	found := graph.Dependencies(o)
	all := make([]workv1alpha2.DependencyReference, 0, len(found))
	for _, r := range found {
		all = append(all, workv1alpha2.DependencyReference{Group: r.Kind.Group, Kind: r.Kind.Kind, Name: r.Name})
	}
	slices.SortFunc(all, compareDependencies)
	return all
}

func compareDependencies(a, b workv1alpha2.DependencyReference) int {
	return cmp.Or(strings.Compare(a.Group, b.Group), strings.Compare(a.Kind, b.Kind), strings.Compare(a.Name, b.Name))
}

// followed returns the dependencies that a binding stores, without its own template. The result
// is empty if the binding does not propagate dependencies.
func followed(b *workv1alpha2.ResourceBinding) sets.Set[binding.Template] {
	all := sets.New[binding.Template]()
	if b.Spec.PropagateDeps {
		for _, d := range b.Spec.Dependencies {
			all.Insert(binding.Template{GroupKind: schema.GroupKind{Group: d.Group, Kind: d.Kind}, Namespace: b.Namespace, Name: d.Name})
		}
	}
	return all.Delete(binding.TemplateOf(b))
}

// needs indexes the dependencies that bindings store. Thousands of bindings may depend on one
// template, so bindings with equal terms count as one. The template is decided again only when
// a set of terms comes or goes, or when its first mostNeeds bindings by name change.
type needs struct {
	mu sync.RWMutex
	of map[types.NamespacedName]need
	by map[binding.Template]*needed
}

// need has the dependencies of one binding.
type need struct {
	binding *workv1alpha2.ResourceBinding
	what    sets.Set[binding.Template]
	terms   string
}

// needed has the bindings that depend on one template.
type needed struct {
	names []types.NamespacedName                    // sorted
	terms map[string]sets.Set[types.NamespacedName] // bindings by their terms
}

func newNeeds() *needs {
	return &needs{of: map[types.NamespacedName]need{}, by: map[binding.Template]*needed{}}
}

// termsOf returns all fields of a binding that affect its dependencies, as a key for
// comparison.
func termsOf(b *workv1alpha2.ResourceBinding) string {
	where := whereabouts(&b.Spec)
	held := slices.DeleteFunc(slices.Clone(where), func(cluster string) bool { return !b.Spec.SuspendedOn(cluster) })
	text, _ := json.Marshal([]any{ //nolint:errchkjson // plain data
		where, held, b.Spec.PolicyRef, b.Spec.ConflictResolution, b.Spec.PreserveResourcesOnDeletion, b.Spec.DependentOverrides, b.Spec.Priority(),
		b.Spec.DeletionPropagation,
	})
	return string(text)
}

// set records the dependencies of a binding, unless this or a later generation of it is
// recorded. It returns the templates that must be decided again.
func (n *needs) set(b *workv1alpha2.ResourceBinding) []binding.Template {
	name := binding.Name(b)
	n.mu.Lock()
	defer n.mu.Unlock()
	before, known := n.of[name]
	if known && before.binding.UID == b.UID && before.binding.Generation >= b.Generation {
		return nil
	}
	after := need{binding: b, what: followed(b)}
	if len(after.what) > 0 {
		after.terms = termsOf(b)
	}
	concerned := sets.New[binding.Template]()
	for t := range before.what {
		if (before.terms != after.terms || !after.what.Has(t)) && n.by[t].remove(name, before.terms, after.what.Has(t)) {
			concerned.Insert(t)
		}
		if len(n.by[t].names) == 0 {
			delete(n.by, t)
		}
	}
	for t := range after.what {
		if n.by[t] == nil {
			n.by[t] = &needed{terms: map[string]sets.Set[types.NamespacedName]{}}
		}
		if n.by[t].add(name, after.terms) {
			concerned.Insert(t)
		}
	}
	if n.of[name] = after; len(after.what) == 0 {
		delete(n.of, name)
	}
	return concerned.UnsortedList()
}

// forget removes a deleted binding and returns the templates that must be decided again.
func (n *needs) forget(b *workv1alpha2.ResourceBinding) []binding.Template {
	name := binding.Name(b)
	n.mu.Lock()
	defer n.mu.Unlock()
	before := n.of[name]
	if before.binding == nil || before.binding.UID != b.UID {
		return nil
	}
	delete(n.of, name)
	var concerned []binding.Template
	for t := range before.what {
		if n.by[t].remove(name, before.terms, false) {
			concerned = append(concerned, t)
		}
		if len(n.by[t].names) == 0 {
			delete(n.by, t)
		}
	}
	return concerned
}

// add records that a binding depends on the template. news is true if the template must be
// decided again.
func (n *needed) add(name types.NamespacedName, terms string) (news bool) {
	if at, found := slices.BinarySearchFunc(n.names, name, compareNames); !found {
		n.names = slices.Insert(n.names, at, name)
		news = at < mostNeeds
	}
	if n.terms[terms] == nil {
		n.terms[terms], news = sets.New[types.NamespacedName](), true
	}
	n.terms[terms].Insert(name)
	return news
}

// remove removes a binding from those with these terms and, unless stays is true, from the
// bindings that depend on the template. news is true if the template must be decided again.
func (n *needed) remove(name types.NamespacedName, terms string, stays bool) (news bool) {
	if at, found := slices.BinarySearchFunc(n.names, name, compareNames); found && !stays {
		n.names = slices.Delete(n.names, at, at+1)
		news = at < mostNeeds
	}
	if n.terms[terms].Delete(name); len(n.terms[terms]) == 0 {
		delete(n.terms, terms)
		news = true
	}
	return news
}

func compareNames(a, b types.NamespacedName) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

// templates returns the dependencies of a binding, in no order.
func (n *needs) templates(name types.NamespacedName) []binding.Template {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.of[name].what.UnsortedList()
}

// all returns the templates on which any binding depends, in no order.
func (n *needs) all() []binding.Template {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return slices.Collect(maps.Keys(n.by))
}

// who returns the first mostNeeds bindings that depend on a template, and one binding of each
// set of terms.
func (n *needs) who(t binding.Template) map[types.NamespacedName]*workv1alpha2.ResourceBinding {
	n.mu.RLock()
	defer n.mu.RUnlock()
	found := map[types.NamespacedName]*workv1alpha2.ResourceBinding{}
	by := n.by[t]
	if by == nil {
		return found
	}
	for _, name := range by.names[:min(len(by.names), mostNeeds)] {
		found[name] = n.of[name].binding
	}
	for _, names := range by.terms {
		for name := range names {
			found[name] = n.of[name].binding
			break
		}
	}
	return found
}

// everybody returns all bindings that depend on a template.
func (n *needs) everybody(t binding.Template) map[types.NamespacedName]*workv1alpha2.ResourceBinding {
	n.mu.RLock()
	defer n.mu.RUnlock()
	found := map[types.NamespacedName]*workv1alpha2.ResourceBinding{}
	if by := n.by[t]; by != nil {
		for _, name := range by.names {
			found[name] = n.of[name].binding
		}
	}
	return found
}

// priority returns the highest priority of the bindings that depend on a template; false if
// there are none.
func (n *needs) priority(t binding.Template) (highest int32, needed bool) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	by := n.by[t]
	if by == nil {
		return 0, false
	}
	for _, names := range by.terms {
		for name := range names {
			if p := n.of[name].binding.Spec.Priority(); !needed || p > highest {
				highest, needed = p, true
			}
			break
		}
	}
	return highest, needed
}

// requiredBy returns the bindings that depend on the template k, sorted by name. A binding that
// an earlier version of the hub wrote lists no dependencies until it is decided again. Until
// then spec.requiredBy of b names it, and again is true: k must be decided again later. b is
// the binding of k; nil: there is none.
func (c *Controller) requiredBy(k binding.Template, o *unstructured.Unstructured, b *workv1alpha2.ResourceBinding) (found []Need, again bool) {
	if !policy.Placeable(o) {
		return nil, false
	}
	undecided := map[types.NamespacedName]*workv1alpha2.ResourceBinding{}
	if b != nil {
		for _, r := range b.Spec.RequiredBy {
			name := types.NamespacedName{Namespace: r.Namespace, Name: r.Name}
			by, ok := c.bindings.Get(name)
			if !ok || !by.DeletionTimestamp.IsZero() || !by.Spec.PropagateDeps || len(by.Spec.Dependencies) > 0 {
				continue
			}
			if _, decided := c.decisions.of(by.UID); !decided {
				undecided[name] = by
			}
		}
	}
	// This read comes after that of the decisions: Reconcile records the dependencies of a
	// binding before its decision.
	all := c.needs.who(k)
	for name, by := range undecided {
		if _, known := all[name]; !known {
			all[name], again = by, true
		}
	}
	return needsOf(all, c.policies), again
}

// needsOf converts bindings that depend on a template, sorted by name. policies has the
// policies that exist.
func needsOf(all map[types.NamespacedName]*workv1alpha2.ResourceBinding, policies *policy.Index) []Need {
	var found []Need
	for _, by := range all {
		found = append(found, Need{Binding: by, Orphaned: orphaned(policies, by)})
	}
	slices.SortFunc(found, func(a, b Need) int { return compareNames(binding.Name(a.Binding), binding.Name(b.Binding)) })
	return found
}

// unsettled reports whether some cluster may still run an earlier version of a template.
func unsettled(o *unstructured.Unstructured, b *workv1alpha2.ResourceBinding) bool {
	return len(whereabouts(&b.Spec)) > 0 && (o.GetGeneration() != b.Spec.Resource.Generation || !settledStatus(b))
}

// depend sets the dependencies of the template. Former dependencies stay until every cluster
// has the present version of the template.
func (d *Decision) depend(t Template, b *workv1alpha2.ResourceBinding) {
	if d.Spec.Dependencies = nil; !d.Spec.PropagateDeps {
		return
	}
	all := dependencies(t.Object)
	if b != nil && b.Spec.PropagateDeps && unsettled(t.Object, b) {
		for _, was := range b.Spec.Dependencies {
			if !slices.Contains(all, was) {
				all = append(all, was)
				d.retry(settledLook)
			}
		}
		slices.SortFunc(all, compareDependencies)
	}
	if len(all) > mostDependencies {
		d.Outcome.Message += fmt.Sprintf("; of the %d objects that it refers to, only the first %d by kind and name follow it", len(all), mostDependencies)
		all = all[:mostDependencies]
	}
	if len(all) > 0 {
		d.Spec.Dependencies = all
	}
}

// settledStatus reports whether the status of a binding says that every cluster has the present
// version of the template and, as far as its health can be judged, runs it.
func settledStatus(b *workv1alpha2.ResourceBinding) bool {
	applied := meta.FindStatusCondition(b.Status.Conditions, workv1alpha2.ConditionFullyApplied)
	healthy := meta.FindStatusCondition(b.Status.Conditions, workv1alpha2.ConditionHealthy)
	return applied != nil && applied.Status == metav1.ConditionTrue && applied.ObservedGeneration == b.Generation &&
		healthy != nil && healthy.ObservedGeneration == b.Generation &&
		(healthy.Status == metav1.ConditionTrue || healthy.Reason == workv1alpha2.ReasonCannotJudge)
}

// orphaned reports whether the policy of a binding is gone.
func orphaned(policies *policy.Index, b *workv1alpha2.ResourceBinding) bool {
	name := types.NamespacedName{Name: b.Spec.PolicyRef.Name}
	if b.Spec.PolicyRef.Kind != policy.Kind("") {
		name.Namespace = b.Namespace
	}
	_, ok := policies.Get(name)
	return !ok
}

// somewhere reports whether any of the bindings names a cluster.
func somewhere(required []Need) bool {
	return slices.ContainsFunc(required, func(n Need) bool { return len(n.Binding.Spec.Clusters) > 0 })
}

// follows records the dependencies of a binding, watches their kinds and requeues the
// dependencies that must be decided again.
func (c *Controller) follows(b *workv1alpha2.ResourceBinding) {
	concerned := c.needs.set(b)
	for _, t := range c.needs.templates(binding.Name(b)) {
		c.watchKinds(corev1.SchemeGroupVersion.WithKind(t.Kind))
	}
	c.enqueue(concerned...)
}

// follower reports whether the binding exists only because other templates depend on its
// template. No policy claimed that template. The binding is deleted with the last dependent.
func follower(b *workv1alpha2.ResourceBinding) bool {
	return b.Spec.PlacementHash == "" && len(b.Spec.RequiredBy) > 0
}

// right ranks how far a placement may overwrite objects in clusters that others created: 0 not
// at all, 1 for a policy of a namespace, 2 for a policy of the hub.
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

// leastRight returns the spec with the lowest right. Among equals it is the first by the name
// of its policy.
func leastRight(required []Need) *workv1alpha2.BindingSpec {
	return &slices.MinFunc(required, func(a, b Need) int {
		x, y := &a.Binding.Spec, &b.Binding.Spec
		return cmp.Or(
			cmp.Compare(right(x), right(y)), strings.Compare(x.PolicyRef.Name, y.PolicyRef.Name), strings.Compare(x.PolicyRef.Kind, y.PolicyRef.Kind),
		)
	}).Binding.Spec
}

// follow returns the decision on a template that no policy claims and on which others depend.
// Its policy and conflict resolution come from the dependent with the lowest right, its
// overrides from all dependents. A policy that is gone is named only if all their policies are
// gone: such a policy keeps a placement as it is, and this placement changes with the
// dependents.
func follow(t Template, b *workv1alpha2.ResourceBinding) Decision {
	living := slices.DeleteFunc(slices.Clone(t.RequiredBy), func(n Need) bool { return n.Orphaned })
	orphaned := len(living) == 0
	if orphaned {
		living = t.RequiredBy
	}
	first, resolution, priority := leastRight(living), policyv1alpha1.ConflictResolution(""), (*workv1alpha2.SchedulePriority)(nil)
	if right(first) <= right(leastRight(t.RequiredBy)) {
		resolution = first.ConflictResolution
	}
	for _, n := range t.RequiredBy {
		if p := n.Binding.Spec.SchedulePriority; p != nil && (priority == nil || p.Priority > priority.Priority) {
			priority = p
		}
	}
	d := Decision{
		Spec: &workv1alpha2.BindingSpec{
			PolicyRef: first.PolicyRef, ConflictResolution: resolution, PropagateDeps: true, SchedulePriority: priority,
			PreserveResourcesOnDeletion: slices.ContainsFunc(t.RequiredBy, func(n Need) bool {
				return n.Binding.Spec.PreserveResourcesOnDeletion || n.Binding.Spec.DeletionPropagation == metav1.DeletePropagationOrphan
			}),
		},
		Outcome: Outcome{
			Status: metav1.ConditionFalse, Reason: workv1alpha2.ReasonNoClusterFits,
			Message: "what refers to it is placed in no cluster",
		},
	}
	var overrides []workv1alpha2.OverrideReference
	for _, n := range t.RequiredBy {
		overrides = append(overrides, n.Binding.Spec.DependentOverrides...)
	}
	if orphaned { // the placement stays, as that of the dependents
		overrides = append(overrides, selecting(t)...)
		if b != nil {
			overrides = append(overrides, b.Spec.DependentOverrides...)
		}
	}
	d.Spec.DependentOverrides = distinct(overrides)
	// Dispatching to a cluster is suspended if it is suspended there for all dependents in it.
	held := sets.New[string]()
	for _, n := range t.RequiredBy {
		held.Insert(whereabouts(&n.Binding.Spec)...)
	}
	for _, n := range t.RequiredBy {
		for _, name := range whereabouts(&n.Binding.Spec) {
			if !n.Binding.Spec.SuspendedOn(name) {
				held.Delete(name)
			}
		}
	}
	if len(held) > 0 {
		d.Spec.Suspension = &workv1alpha2.Suspension{Suspension: policyv1alpha1.Suspension{
			DispatchingOnClusters: &policyv1alpha1.SuspendClusters{ClusterNames: sets.List(held)},
		}}
	}
	// A policy never unsets a suspension of scheduling.
	if b != nil && b.Spec.Suspension != nil && b.Spec.Suspension.Scheduling != nil {
		if d.Spec.Suspension == nil {
			d.Spec.Suspension = &workv1alpha2.Suspension{}
		}
		d.Spec.Suspension.Scheduling = b.Spec.Suspension.Scheduling
	}
	return d
}

// selecting returns references to the override policies that select a template.
func selecting(t Template) []workv1alpha2.OverrideReference {
	all := make([]workv1alpha2.OverrideReference, 0, len(t.Overrides))
	for _, o := range t.Overrides {
		all = append(all, workv1alpha2.OverrideReference{Kind: o.Kind, Name: o.Name})
	}
	return all
}

// distinct sorts references and removes duplicates.
func distinct(all []workv1alpha2.OverrideReference) []workv1alpha2.OverrideReference {
	slices.SortFunc(all, func(a, b workv1alpha2.OverrideReference) int {
		return cmp.Or(strings.Compare(a.Kind, b.Kind), strings.Compare(a.Name, b.Name))
	})
	return slices.Compact(all)
}

// whereabouts returns the clusters of a placement, and those that it has not moved out of yet.
// The dependencies must stay in the latter until then.
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

// own returns the clusters of a placement without those that it has only because dependents are
// there.
func own(spec *workv1alpha2.BindingSpec) []workv1alpha2.TargetCluster {
	if !slices.ContainsFunc(spec.Clusters, func(c workv1alpha2.TargetCluster) bool { return c.Attached }) {
		return spec.Clusters
	}
	return slices.DeleteFunc(slices.Clone(spec.Clusters), func(c workv1alpha2.TargetCluster) bool { return c.Attached })
}

// attach adds the clusters of the dependents to the placement of a template.
func (d *Decision) attach(s *fleet.Snapshot, t Template) {
	if len(t.RequiredBy) == 0 || t.Replicas != nil {
		return
	}
	clusters := sets.New[string]()
	for _, c := range d.Spec.Clusters {
		clusters.Insert(c.Name)
	}
	for _, n := range t.RequiredBy {
		b := n.Binding
		if len(d.Spec.RequiredBy) < mostNeeds {
			d.Spec.RequiredBy = append(d.Spec.RequiredBy, workv1alpha2.BindingSnapshot{Namespace: b.Namespace, Name: b.Name})
		}
		for _, name := range whereabouts(&b.Spec) {
			if c, ok := s.Cluster(name); ok && !c.Leaving && !clusters.Has(name) {
				clusters.Insert(name)
				d.Spec.Clusters = append(d.Spec.Clusters, workv1alpha2.TargetCluster{Name: name, Attached: true})
				// The dependent here may do less than the template's own policy.
				if right(&b.Spec) < right(d.Spec) {
					d.Spec.ConflictResolution = ""
				}
			}
		}
	}
	slices.SortFunc(d.Spec.Clusters, func(a, b workv1alpha2.TargetCluster) int { return strings.Compare(a.Name, b.Name) })
	if len(d.Spec.Clusters) == 0 {
		return
	}
	message := "follows " + binding.TemplateOf(t.RequiredBy[0].Binding).String()
	switch more := len(d.Spec.RequiredBy) - 1; {
	case more == mostNeeds-1:
		message += fmt.Sprintf(" and at least %d more", more)
	case more > 0:
		message += fmt.Sprintf(" and %d more", more)
	}
	if len(t.Claims) == 0 && d.Outcome.Reason == workv1alpha2.ReasonNoClusterFits {
		d.Outcome = Outcome{Status: metav1.ConditionTrue, Reason: workv1alpha2.ReasonScheduled, Message: message}
		return
	}
	d.Outcome.Message += "; " + message
}
