package apply

import (
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/podsecurity"
	"orrery.dev/orrery/internal/render"
	"orrery.dev/orrery/internal/template"
)

// namespaceDelay delays the reconciliation of a namespace that is being emptied, to combine
// several events into one.
const namespaceDelay = time.Second

// add queues a binding in the given clusters and in every other cluster that may hold a copy of it.
func (a *Applier) add(b *workv1alpha2.ResourceBinding, clusters sets.Set[string]) {
	for cluster := range clusters.Union(a.holding(b.UID)) {
		if q, ok := a.queue(cluster); ok {
			q.items.Add(item{binding: binding.Name(b)})
		}
	}
}

// changed records that an input of the binding's manifests in the given clusters changed. Their
// earlier results become stale, and the subscribers are notified. It queues the binding there, and
// in every other cluster that may hold a copy.
func (a *Applier) changed(b *workv1alpha2.ResourceBinding, clusters sets.Set[string]) {
	for cluster := range clusters {
		a.results.changed(binding.Name(b), b.UID, cluster)
	}
	a.add(b, clusters)
}

// holding returns the clusters that may hold a copy of a binding, even if the binding does not name
// them. They come from the results, also of an earlier process, and from the mirror.
func (a *Applier) holding(uid types.UID) sets.Set[string] {
	clusters := sets.New(a.results.clusters(uid, func(s state) bool { return !s.gone })...)
	for _, o := range a.mirror.Placed(uid) {
		clusters.Insert(o.Cluster)
	}
	return clusters
}

// bindingChanged queues a binding in the clusters that it names or named, unless only its status
// changed. before is nil for a new binding. If the binding is gone (after is nil), everything that
// is remembered about it is forgotten.
func (a *Applier) bindingChanged(before, after *workv1alpha2.ResourceBinding) {
	if after == nil {
		a.results.forget(before.UID)
		a.preservation.forget(before.UID)
		a.runs.forget(before.UID)
		a.records.ForgetBinding(before.UID)
		a.namespaceEmptied(before.Namespace)
		return
	}
	clusters := binding.Clusters(after)
	if before != nil {
		if before.Generation == after.Generation && before.DeletionTimestamp.IsZero() == after.DeletionTimestamp.IsZero() {
			if binding.Ended(before.Status.Runs) != binding.Ended(after.Status.Runs) {
				a.progressed(after) // replicas that move do not wait for work that ended
			}
			return // only its status changed
		}
		clusters = clusters.Union(binding.Clusters(before))
	}
	a.changed(after, clusters)
	a.finalize(after)
}

// namespaceEmptied reconciles a namespace in every cluster after namespaceDelay, as one of its
// bindings is gone. It does nothing for "".
func (a *Applier) namespaceEmptied(namespace string) {
	if namespace == "" {
		return
	}
	a.everyQueue(func(q *clusterQueue) { q.items.AddAfter(item{namespace: namespace}, namespaceDelay) })
}

// templateChanged queues the binding of a template in the clusters whose last plan was made for
// another version of the template. For an event without a name, which is about a kind, it queues
// all bindings of the kind.
func (a *Applier) templateChanged(e template.Event) {
	if e.Name == "" { // the kind was listed
		for _, b := range a.bindings.All() {
			if binding.Kind(b) == e.GVK {
				a.add(b, binding.Clusters(b))
			}
		}
		return
	}
	b, _ := a.bindings.Of(binding.Template{GroupKind: e.GVK.GroupKind(), Namespace: e.Namespace, Name: e.Name})
	if b == nil {
		return
	}
	source, _ := a.template(b)
	version := versionOf(source)
	clusters := binding.Clusters(b)
	for _, cluster := range clusters.UnsortedList() {
		if !a.results.edited(binding.Name(b), b.UID, cluster, version) {
			clusters.Delete(cluster) // the manifest does not depend on a change of the status
		}
	}
	if len(clusters) > 0 {
		a.add(b, clusters)
	}
}

// overrideChanged reconciles the bindings whose manifests a changed override policy concerns,
// before or after the change. It does nothing before start.
func (a *Applier) overrideChanged(before, after *policyv1alpha1.OverridePolicy) {
	a.mu.RLock()
	started := a.ctx != nil
	a.mu.RUnlock()
	if !started {
		return // everything is reconciled when the queues open
	}
	var either []*render.Override
	for _, p := range []*policyv1alpha1.OverridePolicy{before, after} {
		if p != nil {
			either = append(either, render.Compile(p))
		}
	}
	name := client.ObjectKeyFromObject(either[0].Policy)
	a.touched(either, func(b *workv1alpha2.ResourceBinding) {
		clusters := binding.Clusters(b)
		if !slices.Contains(binding.NeededOverrides(b), name) {
			// A manifest does not change if the rules do not concern its cluster, neither before nor
			// after.
			clusters = sets.New(slices.DeleteFunc(clusters.UnsortedList(), func(cluster string) bool {
				m, ok := a.registry.Member(cluster)
				return ok && !slices.ContainsFunc(either, func(v *render.Override) bool { return v.Concerns(m.Cluster()) })
			})...)
		}
		if len(clusters) > 0 {
			a.changed(b, clusters)
		}
	})
}

// memberChanged opens the queue of a cluster that joined, closes and forgets that of one that
// left, and reconciles what depends on the state of the cluster.
func (a *Applier) memberChanged(e member.Event) {
	switch e.Type {
	case member.Joined:
		a.restoreCheck.again()
		a.open(e.Name)
	case member.Changed:
		a.restoreCheck.again() // a cluster that did not answer may do so now
		if q, ok := a.queue(e.Name); ok {
			q.memberChanged()
		}
		a.moving(e.Name)
	case member.Left:
		a.mu.Lock()
		q, ok := a.queues[e.Name]
		delete(a.queues, e.Name)
		a.mu.Unlock()
		if ok {
			q.items.Close()
		}
		held := a.results.heldIn(e.Name) // also by bindings that do not name the cluster any more
		a.results.forgetCluster(e.Name)
		a.records.ForgetCluster(e.Name)
		for _, name := range a.bindings.In(e.Name) {
			if b, ok := a.bindings.Get(name); ok {
				a.finalize(b)
			}
		}
		for _, uid := range held {
			if b, ok := a.bindings.ByUID(uid); ok {
				a.finalize(b)
			}
		}
		a.moving(e.Name)
	}
}

// moving calls progressed for every binding that names a cluster whose state changed. Replicas that
// became available in that cluster may allow other clusters to release replicas.
func (a *Applier) moving(cluster string) {
	for _, name := range a.bindings.In(cluster) {
		if b, ok := a.bindings.Get(name); ok {
			a.progressed(b)
		}
	}
}

// decided queues a binding after a decision of placement, in the clusters whose last plan was made
// without that decision. A plan may have had the decision already: placement knows a decision once
// the hub has stored it, and calls decided later.
func (a *Applier) decided(name types.NamespacedName) {
	b, ok := a.bindings.Get(name)
	if !ok {
		return
	}
	for cluster := range binding.Clusters(b).Union(a.holding(b.UID)) {
		q, ok := a.queue(cluster)
		if !ok {
			continue
		}
		if s, _ := a.results.get(b.UID, cluster); s.cluster != q.uid || s.decided != b.Generation {
			q.items.Add(item{binding: name})
		}
	}
}

// observed handles an event of the mirror. It records the ends of copies, continues the items that
// wait for a list, and queues the binding or namespace of the object. A copy that is as it was
// applied is not queued: most events are only changes of the status.
func (a *Applier) observed(e mirror.Event) {
	a.runs.observed(e)
	q, ok := a.queue(e.Cluster)
	if !ok {
		return
	}
	switch e.Type {
	case mirror.Synced:
		a.restoreCheck.listed(q.uid, e.Resource)
		q.listed(e.Resource)
	case mirror.Failed:
		q.listed(e.Resource) // the items that wait for the list report why they go on waiting
		return
	case mirror.Changed, mirror.Deleted:
	}
	if e.Resource == namespaceResource.GroupResource() {
		switch e.Type {
		case mirror.Synced:
			q.addNamespaces()
		case mirror.Failed:
		case mirror.Changed, mirror.Deleted:
			q.items.AddAfter(item{namespace: e.Name}, namespaceDelay)
		}
	}
	if e.Type == mirror.Deleted && e.Namespace != "" {
		q.items.AddAfter(item{namespace: e.Namespace}, namespaceDelay)
	}
	b, ok := a.bindings.ByUID(e.Binding)
	if !ok {
		return
	}
	switch {
	case a.asWanted(b, e):
	case e.Type == mirror.Changed && !a.mirror.Synced(e.Cluster, e.Resource):
		// The type is being listed, and nothing is done before the list is complete.
		q.await(e.Resource, item{binding: binding.Name(b)})
	default:
		q.items.Add(item{binding: binding.Name(b)})
	}
	if e.Type == mirror.Deleted {
		a.released(b, e.Cluster)
	}
	a.progressed(b)
}

// progressed reconciles a binding in the clusters that replicas move out of, because the
// replicas that these clusters wait for may be available. It does nothing for a binding that
// does not move.
func (a *Applier) progressed(b *workv1alpha2.ResourceBinding) {
	waiting := a.results.waiting(b.UID)
	for _, t := range b.Spec.GracefulEvictionTasks {
		waiting = append(waiting, t.FromCluster)
	}
	for _, cluster := range waiting {
		if q, ok := a.queue(cluster); ok {
			q.items.Add(item{binding: binding.Name(b)})
		}
	}
}

// released continues work that waited until a cluster had no copy of b any more: the deletion of b,
// and the bindings of its namespace whose copies wait to leave the cluster.
func (a *Applier) released(b *workv1alpha2.ResourceBinding, cluster string) {
	a.finalize(b)
	q, ok := a.queue(cluster)
	if !ok || b.Namespace == "" {
		return
	}
	for _, name := range a.bindings.In(cluster) {
		if name.Namespace != b.Namespace {
			continue
		}
		if other, ok := a.bindings.Get(name); ok && evictedFrom(other, cluster) {
			q.items.Add(item{binding: name})
		}
	}
	for _, uid := range a.results.waitingIn(cluster) {
		if other, ok := a.bindings.ByUID(uid); ok && other.Namespace == b.Namespace {
			q.items.Add(item{binding: binding.Name(other)})
		}
	}
}

// reachable reports whether a cluster is a member and answers.
func (a *Applier) reachable(cluster string) bool {
	m, ok := a.registry.Member(cluster)
	return ok && m.Reachable()
}

// asWanted reports whether an observed change of a copy leaves nothing to do: the copy is as it was
// applied, or the hub is just applying the binding to the cluster.
func (a *Applier) asWanted(b *workv1alpha2.ResourceBinding, e mirror.Event) bool {
	if e.Type != mirror.Changed || !b.DeletionTimestamp.IsZero() {
		return false
	}
	if _, placed := binding.Target(b, e.Cluster); !placed {
		return false
	}
	known, _ := a.results.get(b.UID, e.Cluster)
	if known.busy {
		return true
	}
	_, o := a.mirror.Lookup(e.Cluster, e.Resource, e.Namespace, e.Name)
	return o.Placed() && known.result.Applied && !o.Deleting &&
		known.acts.Digest == o.Digest && known.acts.Fields == o.Fields
}

// hubNamespace returns an empty object of kind Namespace, to read or watch the metadata of the
// hub's namespaces with.
func hubNamespace() *metav1.PartialObjectMetadata {
	n := &metav1.PartialObjectMetadata{}
	n.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "Namespace"})
	return n
}

// namespaceChanged queues a namespace in every cluster after its labels on the hub changed, after
// it was deleted or, with SpreadAll, created. If its Pod Security labels or its permission to take
// over objects changed, it also queues the bindings in the namespace. before is nil for a new
// namespace, and after is nil for a deleted one.
func (a *Applier) namespaceChanged(before, after *metav1.PartialObjectMetadata) {
	reconcile := func(name string) {
		a.everyQueue(func(q *clusterQueue) { q.items.Add(item{namespace: name}) })
	}
	switch {
	case after == nil && before != nil:
		a.everywhere.follow(before.Name, nil)
		reconcile(before.Name)
	case after != nil && before == nil:
		a.everywhere.follow(after.Name, after)
		if a.everywhere != nil {
			reconcile(after.Name)
		}
	case after != nil && before != nil:
		a.everywhere.follow(after.Name, after)
		if !maps.Equal(before.Labels, after.Labels) {
			reconcile(after.Name)
		}
		secured := !maps.Equal(podsecurity.Labels(before.Labels), podsecurity.Labels(after.Labels))
		opened := before.Labels[workv1alpha2.AllowTakeOverLabel] != after.Labels[workv1alpha2.AllowTakeOverLabel]
		if !secured && !opened {
			return
		}
		for _, b := range a.bindings.All() {
			switch {
			case b.Namespace != after.Name:
			case secured:
				// Refused manifests may be accepted now, and accepted ones refused.
				a.changed(b, binding.Clusters(b))
			default:
				a.add(b, binding.Clusters(b))
			}
		}
	}
}

// fencesChanged queues in every cluster the namespaces whose allowed clusters changed.
func (a *Applier) fencesChanged(namespaces sets.Set[string]) {
	for name := range namespaces {
		a.everyQueue(func(q *clusterQueue) { q.items.Add(item{namespace: name}) })
	}
}

// opened queues the namespaces of a cluster, because other namespaces may use the cluster now.
func (a *Applier) opened(cluster string) {
	if q, ok := a.queue(cluster); ok {
		q.addNamespaces()
	}
}

// traitsOf returns the present traits of a member.
func traitsOf(m *member.Member) traits {
	c := m.Cluster()
	return traits{
		reachable: m.Reachable(), lost: m.Lost(), leaving: m.Leaving(), apis: m.APIs(),
		generation: c.Generation, labels: labels.Set(c.Labels).String(),
	}
}
