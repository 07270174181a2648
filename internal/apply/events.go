package apply

import (
	"context"
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

// namespaceDelay coalesces the looks at a namespace that is being emptied.
const namespaceDelay = time.Second

// add has a binding reconciled in every cluster that may hold something of it.
func (a *Applier) add(b *workv1alpha2.ResourceBinding, clusters sets.Set[string]) {
	for cluster := range clusters.Union(a.holding(b.UID)) {
		if q, ok := a.queue(cluster); ok {
			q.items.Add(item{binding: binding.Name(b)})
		}
	}
}

// changed notes that something changed that a binding's manifests depend on, and has it reconciled.
func (a *Applier) changed(b *workv1alpha2.ResourceBinding, clusters sets.Set[string]) {
	for cluster := range clusters {
		a.results.changed(binding.Name(b), b.UID, cluster)
	}
	a.add(b, clusters)
}

// holding are the clusters that may hold something of a binding, whatever it says.
func (a *Applier) holding(uid types.UID) sets.Set[string] {
	clusters := sets.New(a.results.clusters(uid, func(s state) bool { return !s.gone })...)
	for _, o := range a.mirror.Placed(uid) {
		clusters.Insert(o.Cluster)
	}
	return clusters
}

func (a *Applier) bindingChanged(before, after *workv1alpha2.ResourceBinding) {
	if after == nil {
		a.results.forget(before.UID)
		a.runs.forget(before.UID)
		a.records.ForgetBinding(before.UID)
		a.namespaceEmptied(before.Namespace)
		return
	}
	clusters := binding.Clusters(after)
	if before != nil {
		if before.Generation == after.Generation && before.DeletionTimestamp.IsZero() == after.DeletionTimestamp.IsZero() {
			if binding.Ended(before.Status.Runs) != binding.Ended(after.Status.Runs) {
				a.progressed(after) // what moves waits for nothing that ended
			}
			return // only its status changed
		}
		clusters = clusters.Union(binding.Clusters(before))
	}
	a.changed(after, clusters)
	a.finalize(after)
}

// namespaceEmptied has a namespace looked at in every cluster: a binding less is in it.
func (a *Applier) namespaceEmptied(namespace string) {
	if namespace == "" {
		return
	}
	a.everyQueue(func(q *clusterQueue) { q.items.AddAfter(item{namespace: namespace}, namespaceDelay) })
}

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
			clusters.Delete(cluster) // what only changed the status concerns nobody here
		}
	}
	if len(clusters) > 0 {
		a.add(b, clusters)
	}
}

func (a *Applier) overrideChanged(before, after *policyv1alpha1.OverridePolicy) {
	a.mu.RLock()
	started := a.ctx != nil
	a.mu.RUnlock()
	if !started {
		return // everything is looked at when the queues open
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
			// What the rules do not speak of, before or after, stays as it is.
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

func (a *Applier) memberChanged(e member.Event) {
	switch e.Type {
	case member.Joined:
		a.survey.again()
		a.open(e.Name)
	case member.Changed:
		a.survey.again() // one that did not answer may do so now
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
		a.results.forgetCluster(e.Name)
		a.records.ForgetCluster(e.Name)
		for _, name := range a.bindings.In(e.Name) {
			if b, ok := a.bindings.Get(name); ok {
				a.finalize(b)
			}
		}
		a.moving(e.Name)
	}
}

// moving has bindings reconciled that move something and name a cluster: what is available
// there may let something go elsewhere.
func (a *Applier) moving(cluster string) {
	for _, name := range a.bindings.In(cluster) {
		if b, ok := a.bindings.Get(name); ok {
			a.progressed(b)
		}
	}
}

// decided has a binding reconciled about which placement knows more, where the last plan did not know that much: placement knows a
// decision once the hub has stored it, which is before it tells.
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

// observed reconciles what the mirror saw, unless it is what is wanted: most events are
// changes of status.
func (a *Applier) observed(e mirror.Event) {
	a.runs.observed(e)
	q, ok := a.queue(e.Cluster)
	if !ok {
		return
	}
	switch e.Type {
	case mirror.Synced:
		a.survey.listed(q.uid, e.Resource)
		q.listed(e.Resource)
	case mirror.Failed:
		q.listed(e.Resource) // what awaits the list says why it goes on waiting
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
		q.await(e.Resource, item{binding: binding.Name(b)}) // it is being listed: without the whole list nothing is done
	default:
		q.items.Add(item{binding: binding.Name(b)})
	}
	if e.Type == mirror.Deleted {
		a.released(b, e.Cluster)
	}
	a.progressed(b)
}

// progressed has a binding reconciled where something moves out, since what it waits for may
// have come.
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

// released goes on with what waited for a copy of a binding to go from a cluster.
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
		other, ok := a.bindings.Get(name)
		if ok && slices.ContainsFunc(other.Spec.GracefulEvictionTasks, func(t workv1alpha2.GracefulEvictionTask) bool { return t.FromCluster == cluster }) {
			q.items.Add(item{binding: name})
		}
	}
	for _, uid := range a.results.waitingIn(cluster) {
		if other, ok := a.bindings.ByUID(uid); ok && other.Namespace == b.Namespace {
			q.items.Add(item{binding: binding.Name(other)})
		}
	}
}

func (a *Applier) reachable(cluster string) bool {
	m, ok := a.registry.Member(cluster)
	return ok && m.Reachable()
}

// asWanted is true when an observed change leaves nothing to do, or is our own doing.
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

// takeOverAllowed is true of a namespace of the hub in which an administrator lets policies take
// over what others made in members.
func (a *Applier) takeOverAllowed(ctx context.Context, namespace string) bool {
	n := hubNamespace()
	err := a.hub.Get(ctx, types.NamespacedName{Name: namespace}, n)
	return err == nil && n.Labels[workv1alpha2.AllowTakeOverLabel] == "true"
}

// hubNamespace is the kind by which the hub's namespaces are watched: their metadata is enough.
func hubNamespace() *metav1.PartialObjectMetadata {
	n := &metav1.PartialObjectMetadata{}
	n.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "Namespace"})
	return n
}

// namespaceChanged follows the hub's namespaces.
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
				a.changed(b, binding.Clusters(b)) // what was held may be applied, and the other way round
			default:
				a.add(b, binding.Clusters(b))
			}
		}
	}
}

// fencesChanged has namespaces reconciled that may use other clusters than before.
func (a *Applier) fencesChanged(namespaces sets.Set[string]) {
	for name := range namespaces {
		a.everyQueue(func(q *clusterQueue) { q.items.Add(item{namespace: name}) })
	}
}

// opened has the namespaces of a cluster reconciled that others may use than before.
func (a *Applier) opened(cluster string) {
	if q, ok := a.queue(cluster); ok {
		q.addNamespaces()
	}
}

func traitsOf(m *member.Member) traits {
	c := m.Cluster()
	return traits{
		reachable: m.Reachable(), lost: m.Lost(), leaving: m.Leaving(), apis: m.APIs(),
		generation: c.Generation, labels: labels.Set(c.Labels).String(),
	}
}
