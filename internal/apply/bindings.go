package apply

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

// Bindings are the hub's bindings of both kinds, found by name, UID, cluster and template.
// What it returns is shared: do not change it. Names of ClusterResourceBindings have an
// empty namespace.
type Bindings struct {
	synced []toolscache.InformerSynced

	mu          sync.RWMutex
	all         map[types.NamespacedName]*workv1alpha2.ResourceBinding
	names       map[types.UID]types.NamespacedName
	clusters    map[string]sets.Set[types.NamespacedName]
	templates   map[templateKey]types.NamespacedName
	subscribers []func(before, after *workv1alpha2.ResourceBinding)
}

type templateKey struct{ apiVersion, kind, namespace, name string }

func newBindings(ctx context.Context, informers cache.Informers) (*Bindings, error) {
	i := &Bindings{
		all:       map[types.NamespacedName]*workv1alpha2.ResourceBinding{},
		names:     map[types.UID]types.NamespacedName{},
		clusters:  map[string]sets.Set[types.NamespacedName]{},
		templates: map[templateKey]types.NamespacedName{},
	}
	for _, kind := range []client.Object{&workv1alpha2.ResourceBinding{}, &workv1alpha2.ClusterResourceBinding{}} {
		synced, err := watch(ctx, informers, kind, func(before, after binding) {
			i.changed(convert(before), convert(after))
		})
		if err != nil {
			return nil, err
		}
		i.synced = append(i.synced, synced)
	}
	return i, nil
}

// binding is either kind of binding.
type binding interface {
	Binding() *workv1alpha2.ResourceBinding
}

func convert(b binding) *workv1alpha2.ResourceBinding {
	if b == nil {
		return nil
	}
	return b.Binding()
}

// Name is the name by which a binding is found.
func Name(b *workv1alpha2.ResourceBinding) types.NamespacedName {
	return types.NamespacedName{Namespace: b.Namespace, Name: b.Name}
}

// Object returns a copy of a binding as the kind that it is on the hub.
func Object(b *workv1alpha2.ResourceBinding) client.Object {
	if b.Namespace == "" {
		return (*workv1alpha2.ClusterResourceBinding)(b.DeepCopy())
	}
	return b.DeepCopy()
}

// Get returns the binding of that name.
func (i *Bindings) Get(name types.NamespacedName) (*workv1alpha2.ResourceBinding, bool) {
	i.mu.RLock()
	defer i.mu.RUnlock()
	b, ok := i.all[name]
	return b, ok
}

// ByUID returns the binding with that UID.
func (i *Bindings) ByUID(uid types.UID) (*workv1alpha2.ResourceBinding, bool) {
	i.mu.RLock()
	defer i.mu.RUnlock()
	b, ok := i.all[i.names[uid]]
	return b, ok
}

// In returns the names of the bindings that are placed in a cluster or whose status says
// that they were.
func (i *Bindings) In(cluster string) []types.NamespacedName {
	i.mu.RLock()
	defer i.mu.RUnlock()
	return i.clusters[cluster].UnsortedList()
}

// Of returns the binding of a template.
func (i *Bindings) Of(gvk schema.GroupVersionKind, namespace, name string) (*workv1alpha2.ResourceBinding, bool) {
	apiVersion, kind := gvk.ToAPIVersionAndKind()
	i.mu.RLock()
	defer i.mu.RUnlock()
	b, ok := i.all[i.templates[templateKey{apiVersion, kind, namespace, name}]]
	return b, ok
}

// All returns every binding.
func (i *Bindings) All() []*workv1alpha2.ResourceBinding {
	i.mu.RLock()
	defer i.mu.RUnlock()
	return slices.Collect(maps.Values(i.all))
}

// Subscribe calls f after each change: before is nil for a new binding, after for one that
// is gone. f must not block.
func (i *Bindings) Subscribe(f func(before, after *workv1alpha2.ResourceBinding)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.subscribers = append(i.subscribers, f)
}

func (i *Bindings) changed(before, after *workv1alpha2.ResourceBinding) {
	if before != nil && after != nil && before.UID != after.UID {
		// Deleted and created again between two looks.
		i.changed(before, nil)
		before = nil
	}
	i.mu.Lock()
	if before != nil {
		i.remove(before)
	}
	if after != nil {
		i.insert(after)
	}
	subscribers := i.subscribers
	i.mu.Unlock()
	for _, f := range subscribers {
		f(before, after)
	}
}

func (i *Bindings) insert(b *workv1alpha2.ResourceBinding) {
	name := Name(b)
	i.all[name] = b
	i.names[b.UID] = name
	if _, taken := i.templates[keyOf(b)]; !taken { // a second one is about to go
		i.templates[keyOf(b)] = name
	}
	for cluster := range Clusters(b) {
		if i.clusters[cluster] == nil {
			i.clusters[cluster] = sets.New[types.NamespacedName]()
		}
		i.clusters[cluster].Insert(name)
	}
}

func (i *Bindings) remove(b *workv1alpha2.ResourceBinding) {
	name := Name(b)
	delete(i.all, name)
	delete(i.names, b.UID)
	if i.templates[keyOf(b)] == name {
		delete(i.templates, keyOf(b))
	}
	for cluster := range Clusters(b) {
		if i.clusters[cluster].Delete(name); i.clusters[cluster].Len() == 0 {
			delete(i.clusters, cluster)
		}
	}
}

func keyOf(b *workv1alpha2.ResourceBinding) templateKey {
	return templateKey{b.Spec.Resource.APIVersion, b.Spec.Resource.Kind, b.Namespace, b.Spec.Resource.Name}
}

// Clusters are the clusters that a binding names: those it is placed in, and those that
// its status still speaks of because they may hold something of it.
func Clusters(b *workv1alpha2.ResourceBinding) sets.Set[string] {
	clusters := make(sets.Set[string], len(b.Spec.Clusters))
	for _, c := range b.Spec.Clusters {
		clusters.Insert(c.Name)
	}
	for _, s := range b.Status.AggregatedStatus {
		clusters.Insert(s.ClusterName)
	}
	return clusters
}

// watch calls f for every change of the objects of a kind. T is an interface that the
// kind implements; its zero value stands for absent.
func watch[T any](ctx context.Context, informers cache.Informers, kind client.Object, f func(before, after T)) (toolscache.InformerSynced, error) {
	informer, err := informers.GetInformer(ctx, kind)
	if err != nil {
		return nil, fmt.Errorf("watch %T: %w", kind, err)
	}
	var absent T
	registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) {
			if o, ok := o.(T); ok {
				f(absent, o)
			}
		},
		UpdateFunc: func(before, after any) {
			if before, ok := before.(T); ok {
				f(before, after.(T)) //nolint:forcetypeassert // an informer holds one type
			}
		},
		DeleteFunc: func(o any) {
			if last, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
				o = last.Obj
			}
			if o, ok := o.(T); ok {
				f(o, absent)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watch %T: %w", kind, err)
	}
	return registration.HasSynced, nil
}
