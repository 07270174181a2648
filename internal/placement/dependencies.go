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
	// mostDependents is the number of bindings that spec.requiredBy of a binding names at most.
	mostDependents = 10
	// mostDependencies is the number of dependencies that one template can have at most.
	mostDependencies = 1000
)

// dependencies returns the dependencies of a template: the objects in its namespace to which it
// refers, such as ConfigMaps and Secrets, sorted. They need not exist on the hub.
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

// followed returns the dependencies that the spec of a binding lists, without its own template.
// They are placed where the binding places its template. The result is empty if the binding does
// not propagate dependencies.
func followed(b *workv1alpha2.ResourceBinding) sets.Set[binding.Template] {
	all := sets.New[binding.Template]()
	if b.Spec.PropagateDeps {
		for _, d := range b.Spec.Dependencies {
			all.Insert(binding.Template{GroupKind: schema.GroupKind{Group: d.Group, Kind: d.Kind}, Namespace: b.Namespace, Name: d.Name})
		}
	}
	return all.Delete(binding.TemplateOf(b))
}

// dependencyIndex finds the bindings that depend on a template, by the dependencies that the
// bindings list. Thousands of bindings may depend on one template, so bindings with equal terms
// count as one. Terms are the fields of a binding that affect its dependencies, see termsOf. A
// change of a binding causes a new decision on a dependency only in two cases: a value of terms
// appears or disappears among its dependents, or its first mostDependents dependents by name
// change. The index is safe for concurrent use.
//
// A binding that is gone stays in the index until its template is decided again: if the template
// was only replaced, or only the binding was deleted, a new binding follows with the same
// dependencies. These would otherwise be deleted from the clusters, and created again.
type dependencyIndex struct {
	mu sync.RWMutex
	of map[types.NamespacedName]dependencySet // by name of the binding
	by map[binding.Template]*dependents       // by dependency
	// Bindings that are gone, by template and name.
	gone map[binding.Template]map[types.NamespacedName]*workv1alpha2.ResourceBinding
}

// dependencySet has the dependencies of one binding, and its terms: the fields that affect them,
// see termsOf.
type dependencySet struct {
	binding *workv1alpha2.ResourceBinding
	what    sets.Set[binding.Template]
	terms   string
}

// dependents has the names of the bindings that depend on one template.
type dependents struct {
	names []types.NamespacedName                    // sorted
	terms map[string]sets.Set[types.NamespacedName] // the same, by terms, see termsOf
}

func newDependencyIndex() *dependencyIndex {
	return &dependencyIndex{
		of: map[types.NamespacedName]dependencySet{}, by: map[binding.Template]*dependents{},
		gone: map[binding.Template]map[types.NamespacedName]*workv1alpha2.ResourceBinding{},
	}
}

// termsOf returns the terms of a binding as a text for comparison: all fields that affect its
// dependencies, such as its clusters, its policy and its priority.
func termsOf(b *workv1alpha2.ResourceBinding) string {
	where := whereabouts(&b.Spec)
	held := slices.DeleteFunc(slices.Clone(where), func(cluster string) bool { return !b.Spec.SuspendedOn(cluster) })
	text, _ := json.Marshal([]any{ //nolint:errchkjson // plain data
		where, held, b.Spec.PolicyRef, b.Spec.ConflictResolution, b.Spec.PreserveResourcesOnDeletion, b.Spec.DependentOverrides, b.Spec.Priority(),
		b.Spec.DeletionPropagation, leftBehind(&b.Spec),
	})
	return string(text)
}

// set records the dependencies of a binding, unless this or a later generation of the binding is
// recorded. It returns the dependencies that must be decided again, in no order; nil if nothing was
// recorded.
func (d *dependencyIndex) set(b *workv1alpha2.ResourceBinding) []binding.Template {
	name := binding.Name(b)
	d.mu.Lock()
	defer d.mu.Unlock()
	before, known := d.of[name]
	if known && before.binding.UID == b.UID && before.binding.Generation >= b.Generation {
		return nil
	}
	after := dependencySet{binding: b, what: followed(b)}
	if len(after.what) > 0 {
		after.terms = termsOf(b)
	}
	concerned := sets.New[binding.Template]()
	for t := range before.what {
		if (before.terms != after.terms || !after.what.Has(t)) && d.by[t].remove(name, before.terms, after.what.Has(t)) {
			concerned.Insert(t)
		}
		if len(d.by[t].names) == 0 {
			delete(d.by, t)
		}
	}
	for t := range after.what {
		if d.by[t] == nil {
			d.by[t] = &dependents{terms: map[string]sets.Set[types.NamespacedName]{}}
		}
		if d.by[t].add(name, after.terms) {
			concerned.Insert(t)
		}
	}
	if d.of[name] = after; len(after.what) == 0 {
		delete(d.of, name)
	}
	return concerned.UnsortedList()
}

// retire records that a binding is gone. It stays in the index until settle is called for its
// template.
func (d *dependencyIndex) retire(b *workv1alpha2.ResourceBinding) {
	k := binding.TemplateOf(b)
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.of[binding.Name(b)].what) == 0 {
		d.forget(binding.Name(b), b.UID)
		return
	}
	if d.gone[k] == nil {
		d.gone[k] = map[types.NamespacedName]*workv1alpha2.ResourceBinding{}
	}
	d.gone[k][binding.Name(b)] = b
}

// settle removes from the index the bindings of the template k that are gone. It is called once it
// is decided that k has no binding, or which one. It returns the dependencies that must be decided
// again.
func (d *dependencyIndex) settle(k binding.Template) []binding.Template {
	d.mu.Lock()
	defer d.mu.Unlock()
	var concerned []binding.Template
	for name, b := range d.gone[k] {
		concerned = append(concerned, d.forget(name, b.UID)...)
	}
	delete(d.gone, k)
	return concerned
}

// retiredOf returns a binding of the template k that is gone and not settled yet; nil if there is
// none.
func (d *dependencyIndex) retiredOf(k binding.Template) *workv1alpha2.ResourceBinding {
	d.mu.RLock()
	defer d.mu.RUnlock()
	for _, b := range d.gone[k] {
		return b
	}
	return nil
}

// retired returns the templates with bindings that are gone and that were not settled yet.
func (d *dependencyIndex) retired() []binding.Template {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return slices.Collect(maps.Keys(d.gone))
}

// forget removes the binding with the name and UID from the index, and returns the dependencies
// that must be decided again. If the index has another binding with that name, or none, it does
// nothing. The caller holds the mu of the index.
func (d *dependencyIndex) forget(name types.NamespacedName, uid types.UID) []binding.Template {
	before := d.of[name]
	if before.binding == nil || before.binding.UID != uid {
		return nil
	}
	delete(d.of, name)
	var concerned []binding.Template
	for t := range before.what {
		if d.by[t].remove(name, before.terms, false) {
			concerned = append(concerned, t)
		}
		if len(d.by[t].names) == 0 {
			delete(d.by, t)
		}
	}
	return concerned
}

// add records that the binding with the name and terms depends on the template of d. news is true
// if that template must be decided again. The caller holds the mu of the index.
func (d *dependents) add(name types.NamespacedName, terms string) (news bool) {
	if at, found := slices.BinarySearchFunc(d.names, name, compareNames); !found {
		d.names = slices.Insert(d.names, at, name)
		news = at < mostDependents
	}
	if d.terms[terms] == nil {
		d.terms[terms], news = sets.New[types.NamespacedName](), true
	}
	d.terms[terms].Insert(name)
	return news
}

// remove removes the binding with the name from those with the given terms. Unless stays is true,
// it also removes it from the bindings that depend on the template of d. news is true if that
// template must be decided again. The caller holds the mu of the index.
func (d *dependents) remove(name types.NamespacedName, terms string, stays bool) (news bool) {
	if at, found := slices.BinarySearchFunc(d.names, name, compareNames); found && !stays {
		d.names = slices.Delete(d.names, at, at+1)
		news = at < mostDependents
	}
	if d.terms[terms].Delete(name); len(d.terms[terms]) == 0 {
		delete(d.terms, terms)
		news = true
	}
	return news
}

func compareNames(a, b types.NamespacedName) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

// templates returns the dependencies of the binding with the name, in no order.
func (d *dependencyIndex) templates(name types.NamespacedName) []binding.Template {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.of[name].what.UnsortedList()
}

// all returns the templates on which any binding depends, in no order.
func (d *dependencyIndex) all() []binding.Template {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return slices.Collect(maps.Keys(d.by))
}

// who returns bindings that depend on a template, by name: the first mostDependents, and one for
// each distinct terms. The map is never nil, and the caller may change it.
func (d *dependencyIndex) who(t binding.Template) map[types.NamespacedName]*workv1alpha2.ResourceBinding {
	d.mu.RLock()
	defer d.mu.RUnlock()
	found := map[types.NamespacedName]*workv1alpha2.ResourceBinding{}
	by := d.by[t]
	if by == nil {
		return found
	}
	for _, name := range by.names[:min(len(by.names), mostDependents)] {
		found[name] = d.of[name].binding
	}
	for _, names := range by.terms {
		for name := range names {
			found[name] = d.of[name].binding
			break
		}
	}
	return found
}

// everybody returns all bindings that depend on a template, by name. The caller may change the
// map.
func (d *dependencyIndex) everybody(t binding.Template) map[types.NamespacedName]*workv1alpha2.ResourceBinding {
	d.mu.RLock()
	defer d.mu.RUnlock()
	found := map[types.NamespacedName]*workv1alpha2.ResourceBinding{}
	if by := d.by[t]; by != nil {
		for _, name := range by.names {
			found[name] = d.of[name].binding
		}
	}
	return found
}

// priority returns the highest priority of the bindings that depend on a template. needed is false,
// and the priority 0, if there are none.
func (d *dependencyIndex) priority(t binding.Template) (highest int32, needed bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	by := d.by[t]
	if by == nil {
		return 0, false
	}
	for _, names := range by.terms {
		for name := range names {
			if p := d.of[name].binding.Spec.Priority(); !needed || p > highest {
				highest, needed = p, true
			}
			break
		}
	}
	return highest, needed
}

// requiredBy returns bindings that depend on the template k, sorted by name. Of many with equal
// terms it may return only one, see dependencyIndex.who. It is nil if the object o of the template
// may not be placed. b is the binding of k; nil: there is none.
//
// The result includes bindings in spec.requiredBy of b that the index lacks: those that list k,
// and those of an earlier version of the hub, which list nothing until they are decided. In both
// cases again is true: k must be decided again later.
func (c *Controller) requiredBy(k binding.Template, o *unstructured.Unstructured, b *workv1alpha2.ResourceBinding) (found []Dependent, again bool) {
	if !policy.Placeable(o) {
		return nil, false
	}
	undecided, listing := map[types.NamespacedName]*workv1alpha2.ResourceBinding{}, map[types.NamespacedName]*workv1alpha2.ResourceBinding{}
	if b != nil {
		for _, r := range b.Spec.RequiredBy {
			name := types.NamespacedName{Namespace: r.Namespace, Name: r.Name}
			by, ok := c.bindings.Get(name)
			if !ok || !by.DeletionTimestamp.IsZero() || !by.Spec.PropagateDeps {
				continue
			}
			if len(by.Spec.Dependencies) > 0 {
				if followed(by).Has(k) { // the index may not have it yet
					listing[name] = by
				}
				continue
			}
			if _, decided := c.decisions.of(by.UID); !decided {
				undecided[name] = by
			}
		}
	}
	// The index is read after the decisions. Reconcile records them in the opposite order, so a
	// binding whose decision was seen has its dependencies in the index.
	all := c.dependencyIndex.who(k)
	// The cache and the index may differ for a moment, and either may be ahead.
	for name, by := range listing {
		if _, known := all[name]; !known {
			all[name], again = by, true
		}
	}
	for name, by := range undecided {
		if _, known := all[name]; !known {
			all[name], again = by, true
		}
	}
	return dependentsOf(all, c.policies), again
}

// dependentsOf converts bindings that depend on one template to Dependents, sorted by name.
// policies has the policies that exist; a binding of another policy is Orphaned.
func dependentsOf(all map[types.NamespacedName]*workv1alpha2.ResourceBinding, policies *policy.Index) []Dependent {
	var found []Dependent
	for _, by := range all {
		found = append(found, Dependent{Binding: by, Orphaned: orphaned(policies, by)})
	}
	slices.SortFunc(found, func(a, b Dependent) int { return compareNames(binding.Name(a.Binding), binding.Name(b.Binding)) })
	return found
}

// unsettled reports whether some cluster of the binding b may still run an earlier version of its
// template o, which needs the former dependencies. It is false if b has no clusters.
func unsettled(o *unstructured.Unstructured, b *workv1alpha2.ResourceBinding) bool {
	return len(whereabouts(&b.Spec)) > 0 && (o.GetGeneration() != b.Spec.Resource.Generation || !settledStatus(b))
}

// depend sets the dependencies in d.Spec, at most mostDependencies, if the policy of the template
// propagates them. Dependencies that the binding b lists and the template no longer has stay until
// every cluster has the present version of the template. Until then the template is decided again
// after settledLook. b may be nil.
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
		d.Outcome.Message += fmt.Sprintf("; it refers to %d objects, and only the first %d by kind and name are placed with it", len(all), mostDependencies)
		all = all[:mostDependencies]
	}
	if len(all) > 0 {
		d.Spec.Dependencies = all
	}
}

// settledStatus reports whether every cluster has the present version of a template and, as far as
// its health can be judged, runs it. The status of its binding shows that.
func settledStatus(b *workv1alpha2.ResourceBinding) bool {
	applied := meta.FindStatusCondition(b.Status.Conditions, workv1alpha2.ConditionFullyApplied)
	healthy := meta.FindStatusCondition(b.Status.Conditions, workv1alpha2.ConditionHealthy)
	return applied != nil && applied.Status == metav1.ConditionTrue && applied.ObservedGeneration == b.Generation &&
		healthy != nil && healthy.ObservedGeneration == b.Generation &&
		(healthy.Status == metav1.ConditionTrue || healthy.Reason == workv1alpha2.ReasonCannotJudge)
}

// orphaned reports whether the policy that placed the template of a binding no longer exists.
func orphaned(policies *policy.Index, b *workv1alpha2.ResourceBinding) bool {
	name := types.NamespacedName{Name: b.Spec.PolicyRef.Name}
	if b.Spec.PolicyRef.Kind != policy.Kind("") {
		name.Namespace = b.Namespace
	}
	_, ok := policies.Get(name)
	return !ok
}

// somewhere reports whether any of the bindings of the dependents places its template in a cluster.
func somewhere(required []Dependent) bool {
	return slices.ContainsFunc(required, func(n Dependent) bool { return len(n.Binding.Spec.Clusters) > 0 })
}

// follows records the dependencies of the binding b after a write, watches their kinds, and
// requeues the dependencies that must be decided again.
func (c *Controller) follows(b *workv1alpha2.ResourceBinding) {
	concerned := c.dependencyIndex.set(b)
	for _, t := range c.dependencyIndex.templates(binding.Name(b)) {
		c.watchKinds(corev1.SchemeGroupVersion.WithKind(t.Kind))
	}
	c.enqueue(concerned...)
}

// dependencyOnly reports whether the binding exists only because other templates depend on its
// template. No policy claimed that template. The binding is deleted with the last dependent.
func dependencyOnly(b *workv1alpha2.ResourceBinding) bool {
	return b.Spec.PlacementHash == "" && len(b.Spec.RequiredBy) > 0
}

// right ranks how far a placement may overwrite objects in clusters that Orrery did not create: 0
// not at all, 1 as a PropagationPolicy of a namespace allows, 2 as a ClusterPropagationPolicy
// allows.
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

// leastRight returns the spec of the dependent that may overwrite least in clusters, see right. Of
// equal ones it is the first by the name of its policy. required must not be empty.
func leastRight(required []Dependent) *workv1alpha2.BindingSpec {
	return &slices.MinFunc(required, func(a, b Dependent) int {
		x, y := &a.Binding.Spec, &b.Binding.Spec
		return cmp.Or(
			cmp.Compare(right(x), right(y)), strings.Compare(x.PolicyRef.Name, y.PolicyRef.Name), strings.Compare(x.PolicyRef.Kind, y.PolicyRef.Kind),
		)
	}).Binding.Spec
}

// follow returns the decision on a template that no policy claims, and on which others depend
// (t.RequiredBy, not empty). The method attach then adds its clusters. b is the binding of the
// template; nil: there is none.
//
// The policy and the conflict resolution come from the dependent with the lowest right, see right.
// The override policies come from all dependents. A policy that no longer exists is named only if
// the policies of all dependents are gone. A binding with such a policy keeps its placement, but
// this placement must change with the dependents.
func follow(t Template, b *workv1alpha2.ResourceBinding) Decision {
	living := slices.DeleteFunc(slices.Clone(t.RequiredBy), func(n Dependent) bool { return n.Orphaned })
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
			PreserveResourcesOnDeletion: slices.ContainsFunc(t.RequiredBy, func(n Dependent) bool {
				return n.Binding.Spec.PreserveResourcesOnDeletion || n.Binding.Spec.DeletionPropagation == metav1.DeletePropagationOrphan
			}),
		},
		Outcome: Outcome{
			Status: metav1.ConditionFalse, Reason: workv1alpha2.ReasonNoClusterFits,
			Message: "the objects that refer to it are not placed in any cluster",
		},
	}
	var overrides []workv1alpha2.OverrideReference
	for _, n := range t.RequiredBy {
		overrides = append(overrides, n.Binding.Spec.DependentOverrides...)
	}
	if orphaned { // the placement of the dependents stays, and so does this one
		overrides = append(overrides, selecting(t)...)
		if b != nil {
			overrides = append(overrides, b.Spec.DependentOverrides...)
		}
	}
	d.Spec.DependentOverrides = distinct(overrides)
	// A dependency is not dispatched to a cluster if dispatching is suspended there for every
	// dependent that is placed in the cluster.
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

// selecting returns references to the override policies that select a template, for the spec of its
// binding.
func selecting(t Template) []workv1alpha2.OverrideReference {
	all := make([]workv1alpha2.OverrideReference, 0, len(t.Overrides))
	for _, o := range t.Overrides {
		all = append(all, workv1alpha2.OverrideReference{Kind: o.Kind, Name: o.Name})
	}
	return all
}

// distinct sorts references and removes duplicates. It changes the slice.
func distinct(all []workv1alpha2.OverrideReference) []workv1alpha2.OverrideReference {
	slices.SortFunc(all, func(a, b workv1alpha2.OverrideReference) int {
		return cmp.Or(strings.Compare(a.Kind, b.Kind), strings.Compare(a.Name, b.Name))
	})
	return slices.Compact(all)
}

// whereabouts returns the clusters in which a binding has copies: those that it places its template
// in, and those that the copies have not moved out of yet. The dependencies of the template stay in
// both.
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

// own returns the clusters in which a policy places the template of a binding. It leaves out
// clusters in which the template is placed only because templates that depend on it are there.
func own(spec *workv1alpha2.BindingSpec) []workv1alpha2.TargetCluster {
	if !slices.ContainsFunc(spec.Clusters, func(c workv1alpha2.TargetCluster) bool { return c.Attached }) {
		return spec.Clusters
	}
	return slices.DeleteFunc(slices.Clone(spec.Clusters), func(c workv1alpha2.TargetCluster) bool { return c.Attached })
}

// attach adds the clusters of the dependents of a template to its placement, and names the first
// mostDependents dependents in RequiredBy. A template with replicas gets no further clusters. If a
// dependent may overwrite less in clusters than the template's own policy, nothing is overwritten.
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
		if len(d.Spec.RequiredBy) < mostDependents {
			d.Spec.RequiredBy = append(d.Spec.RequiredBy, workv1alpha2.BindingSnapshot{Namespace: b.Namespace, Name: b.Name})
		}
		for _, name := range whereabouts(&b.Spec) {
			if c, ok := s.Cluster(name); ok && !c.Leaving && !clusters.Has(name) {
				clusters.Insert(name)
				d.Spec.Clusters = append(d.Spec.Clusters, workv1alpha2.TargetCluster{Name: name, Attached: true})
				// The dependent may overwrite less than the template's own policy.
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
	message := "placed with " + binding.TemplateOf(t.RequiredBy[0].Binding).String()
	switch more := len(d.Spec.RequiredBy) - 1; {
	case more == mostDependents-1:
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
