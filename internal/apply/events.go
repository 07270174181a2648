package apply

import (
	"context"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/render"
	"orrery.dev/orrery/internal/template"
)

// sweepDelay coalesces the looks at a namespace that is being emptied.
const sweepDelay = time.Second

// enqueue has a binding looked at in every cluster that may hold something of it.
func (a *Applier) enqueue(b *workv1alpha2.ResourceBinding, clusters sets.Set[string]) {
	for cluster := range clusters.Union(a.holding(b.UID)) {
		if l, ok := a.lane(cluster); ok {
			l.queue.Add(item{binding: binding.Name(b)})
		}
	}
}

// holding are the clusters that may hold something of a binding, whatever it says.
func (a *Applier) holding(binding types.UID) sets.Set[string] {
	clusters := sets.New(a.ledger.clusters(binding, func(e entry) bool { return !e.gone })...)
	for _, o := range a.mirror.Placed(binding) {
		clusters.Insert(o.Cluster)
	}
	return clusters
}

func (a *Applier) bindingChanged(before, after *workv1alpha2.ResourceBinding) {
	if after == nil {
		a.ledger.forget(before.UID)
		return
	}
	clusters := binding.Clusters(after)
	if before != nil {
		if before.Generation == after.Generation && before.DeletionTimestamp.IsZero() == after.DeletionTimestamp.IsZero() {
			return // only its status changed
		}
		clusters = clusters.Union(binding.Clusters(before))
	}
	a.enqueue(after, clusters)
	a.finalizing.look(after)
}

func (a *Applier) templateChanged(e template.Event) {
	if e.Name == "" { // the kind was listed
		for _, b := range a.bindings.All() {
			if binding.Kind(b) == e.GVK {
				a.enqueue(b, binding.Clusters(b))
			}
		}
		return
	}
	if b, _ := a.bindings.Of(binding.Template{GroupKind: e.GVK.GroupKind(), Namespace: e.Namespace, Name: e.Name}); b != nil {
		a.enqueue(b, binding.Clusters(b))
	}
}

func (a *Applier) overrideChanged(before, after *policyv1alpha1.OverridePolicy) {
	either := slices.DeleteFunc([]*policyv1alpha1.OverridePolicy{before, after},
		func(p *policyv1alpha1.OverridePolicy) bool { return p == nil })
	for _, b := range a.bindings.All() {
		if namespace := either[0].Namespace; namespace != "" && namespace != b.Namespace {
			continue
		}
		o, state := a.template(b)
		if state == presence.Present && len(render.Overrides(either, o)) > 0 {
			a.enqueue(b, binding.Clusters(b))
		}
	}
}

func (a *Applier) memberChanged(e member.Event) {
	switch e.Type {
	case member.Joined:
		a.open(e.Name)
	case member.Changed:
		if l, ok := a.lane(e.Name); ok {
			l.memberChanged()
		}
	case member.Left:
		a.mu.Lock()
		l, ok := a.lanes[e.Name]
		delete(a.lanes, e.Name)
		a.mu.Unlock()
		if ok {
			l.close()
		}
		a.ledger.forgetCluster(e.Name)
		for _, name := range a.bindings.In(e.Name) {
			if b, ok := a.bindings.Get(name); ok {
				a.finalizing.look(b)
			}
		}
	}
}

// observed looks at what the mirror saw, unless it is what is wanted: most events are
// changes of status.
func (a *Applier) observed(e mirror.Event) {
	l, ok := a.lane(e.Cluster)
	if !ok {
		return
	}
	if e.Type == mirror.Synced {
		l.listed(e.Resource)
	}
	if e.Resource == namespaceResource.GroupResource() {
		switch e.Type {
		case mirror.Synced:
			l.lookAtNamespaces()
		case mirror.Changed:
			l.queue.AddAfter(item{namespace: e.Name}, sweepDelay)
		default: // one that is gone needs no sweep
		}
	}
	if e.Type == mirror.Deleted && e.Namespace != "" {
		l.queue.AddAfter(item{namespace: e.Namespace}, sweepDelay)
	}
	b, ok := a.bindings.ByUID(e.Binding)
	if !ok {
		return
	}
	if !a.asWanted(b, e) {
		l.queue.Add(item{binding: binding.Name(b)})
	}
	a.lookAtHeld(b)
}

// lookAtHeld looks again at copies that are to go and wait for another one to be healthy.
func (a *Applier) lookAtHeld(b *workv1alpha2.ResourceBinding) {
	for _, cluster := range a.ledger.clusters(b.UID, func(e entry) bool { return e.held }) {
		if l, ok := a.lane(cluster); ok {
			l.queue.Add(item{binding: binding.Name(b)})
		}
	}
}

func (a *Applier) reachable(cluster string) bool {
	m, ok := a.registry.Member(cluster)
	return ok && m.Reachable()
}

// asWanted is true when an observed change leaves nothing to do, or is the lane's doing.
func (a *Applier) asWanted(b *workv1alpha2.ResourceBinding, e mirror.Event) bool {
	if e.Type != mirror.Changed || !b.DeletionTimestamp.IsZero() {
		return false
	}
	if _, placed := binding.Target(b, e.Cluster); !placed {
		return false
	}
	known, _ := a.ledger.get(b.UID, e.Cluster)
	if known.busy {
		return true
	}
	_, o := a.mirror.Lookup(e.Cluster, e.Resource, e.Namespace, e.Name)
	return o.Placed() && known.result.Applied && !o.Deleting &&
		known.digest == o.Digest && known.fields == o.Fields
}

func (a *Applier) watchHubNamespaces(ctx context.Context, informers cache.Informers) error {
	named := func(o any) *metav1.PartialObjectMetadata {
		n, _ := o.(*metav1.PartialObjectMetadata)
		return n
	}
	synced, err := binding.Watch(ctx, informers, hubNamespace(), named, func(before, after *metav1.PartialObjectMetadata) {
		if after == nil && before != nil {
			a.everyLane(func(l *lane) { l.queue.Add(item{namespace: before.GetName()}) })
		}
	})
	if err != nil {
		return fmt.Errorf("watch the hub's namespaces: %w", err)
	}
	a.namespacesSynced = synced
	return nil
}

// template returns the template of a binding.
func (a *Applier) template(b *workv1alpha2.ResourceBinding) (*unstructured.Unstructured, presence.Presence) {
	o, state := a.templates.Get(binding.Kind(b), b.Namespace, b.Spec.Resource.Name)
	if state == presence.Present && b.Spec.Resource.UID != "" && o.GetUID() != b.Spec.Resource.UID {
		return nil, presence.Absent // another object of the same name
	}
	return o, state
}

func traitsOf(m *member.Member) traits {
	c := m.Cluster()
	return traits{
		reachable: m.Reachable(), leaving: m.Leaving(), apis: m.APIs(),
		generation: c.Generation, labels: labels.Set(c.Labels).String(),
	}
}
