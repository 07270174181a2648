package binding

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

// Cache holds the hub's bindings of both kinds. Callers must not change the objects that it
// returns, as they are shared. It is safe for concurrent use.
type Cache struct {
	synced []toolscache.InformerSynced

	mu        sync.RWMutex
	bindings  map[types.NamespacedName]*workv1alpha2.ResourceBinding
	names     map[types.UID]types.NamespacedName
	clusters  map[string]sets.Set[types.NamespacedName]
	templates map[Template]sets.Set[types.NamespacedName]
	// within is keyed by the kind and the namespace of the template. An empty kind or namespace stands
	// for all.
	within map[Template]sets.Set[types.NamespacedName]
	// overrides is keyed by the override policies that the bindings need.
	overrides   map[types.NamespacedName]sets.Set[types.NamespacedName]
	subscribers []func(before, after *workv1alpha2.ResourceBinding)
}

// NewCache returns a cache that is filled once the informers run. It does not wait for them.
func NewCache(ctx context.Context, informers cache.Informers) (*Cache, error) {
	c := newCache()
	for _, kind := range []client.Object{&workv1alpha2.ResourceBinding{}, &workv1alpha2.ClusterResourceBinding{}} {
		synced, err := Watch(ctx, informers, kind, Of, c.changed)
		if err != nil {
			return nil, err
		}
		c.synced = append(c.synced, synced)
	}
	return c, nil
}

func newCache() *Cache {
	return &Cache{
		bindings:  map[types.NamespacedName]*workv1alpha2.ResourceBinding{},
		names:     map[types.UID]types.NamespacedName{},
		clusters:  map[string]sets.Set[types.NamespacedName]{},
		templates: map[Template]sets.Set[types.NamespacedName]{},
		within:    map[Template]sets.Set[types.NamespacedName]{},
		overrides: map[types.NamespacedName]sets.Set[types.NamespacedName]{},
	}
}

// Synced reports whether every binding that the hub had at the start is known, and the
// subscribers were called for it.
func (c *Cache) Synced() bool {
	return !slices.ContainsFunc(c.synced, func(synced toolscache.InformerSynced) bool { return !synced() })
}

// Get returns the binding with a name, as the function Name returns it; false if the cache has
// none.
func (c *Cache) Get(name types.NamespacedName) (*workv1alpha2.ResourceBinding, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	b, ok := c.bindings[name]
	return b, ok
}

// ByUID returns the binding with a UID; false if the cache has none.
func (c *Cache) ByUID(uid types.UID) (*workv1alpha2.ResourceBinding, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	b, ok := c.bindings[c.names[uid]]
	return b, ok
}

// In returns, in no order, the names of the bindings that place something in a cluster, move
// something out of it, or list it in their status.
func (c *Cache) In(cluster string) []types.NamespacedName {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.clusters[cluster].UnsortedList()
}

// Of returns the binding of a template, nil if there is none. The binding is the one with the name
// that NameFor gives, or else the oldest. others are further bindings that other clients created
// for the same template.
func (c *Cache) Of(t Template) (b *workv1alpha2.ResourceBinding, others []*workv1alpha2.ResourceBinding) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	var all []*workv1alpha2.ResourceBinding
	for name := range c.templates[t] {
		all = append(all, c.bindings[name])
	}
	if len(all) == 0 {
		return nil, nil
	}
	misnamed := func(b *workv1alpha2.ResourceBinding) int {
		if b.Name == NameFor(t) {
			return 0
		}
		return 1
	}
	slices.SortFunc(all, func(a, b *workv1alpha2.ResourceBinding) int {
		return cmp.Or(
			cmp.Compare(misnamed(a), misnamed(b)),
			a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			strings.Compare(a.Name, b.Name),
		)
	})
	return all[0], all[1:]
}

// Within returns, in no order, the bindings whose templates have a kind and a namespace. An empty
// kind stands for all kinds. The namespace "" stands for all namespaces, and cluster-scoped
// templates.
func (c *Cache) Within(kind schema.GroupKind, namespace string) []*workv1alpha2.ResourceBinding {
	if kind.Empty() && namespace == "" {
		return c.All()
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.all(c.within[Template{GroupKind: kind, Namespace: namespace}])
}

// OverriddenBy returns, in no order, the bindings that require the override policy with this name
// (NeededOverrides).
func (c *Cache) OverriddenBy(name types.NamespacedName) []*workv1alpha2.ResourceBinding {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.all(c.overrides[name])
}

// all returns the bindings with the given names, which the cache must have. The caller holds mu.
func (c *Cache) all(names sets.Set[types.NamespacedName]) []*workv1alpha2.ResourceBinding {
	all := make([]*workv1alpha2.ResourceBinding, 0, len(names))
	for name := range names {
		all = append(all, c.bindings[name])
	}
	return all
}

// scopes returns the keys under which Cache.within has a binding.
func scopes(b *workv1alpha2.ResourceBinding) []Template {
	kind := Kind(b).GroupKind()
	all := []Template{{GroupKind: kind}}
	if b.Namespace != "" {
		all = append(all, Template{Namespace: b.Namespace}, Template{GroupKind: kind, Namespace: b.Namespace})
	}
	return all
}

// All returns every binding, in no order.
func (c *Cache) All() []*workv1alpha2.ResourceBinding {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return slices.Collect(maps.Values(c.bindings))
}

// Templates returns the templates that have bindings, in no order.
func (c *Cache) Templates() []Template {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return slices.Collect(maps.Keys(c.templates))
}

// Kinds returns the kinds of the templates that have bindings, each once, in no order.
func (c *Cache) Kinds() []schema.GroupVersionKind {
	c.mu.RLock()
	defer c.mu.RUnlock()
	kinds := sets.New[schema.GroupVersionKind]()
	for _, b := range c.bindings {
		kinds.Insert(Kind(b))
	}
	return kinds.UnsortedList()
}

// FreeName returns the name for a new binding of a template: that of NameFor or, if the cache has
// the binding of another template with that name, a name that ends with a hash of the template.
func (c *Cache) FreeName(t Template) string {
	c.mu.RLock()
	defer c.mu.RUnlock()
	name := NameFor(t)
	if other, taken := c.bindings[types.NamespacedName{Namespace: t.Namespace, Name: name}]; taken && TemplateOf(other) != t {
		return hashed(name, t)
	}
	return name
}

// Subscribe makes the cache call f after each change of a binding, also of its status. before is
// nil for a new binding, and after is nil for a deleted one. If a binding was deleted and created
// again, f is called twice: for the deletion, then for the new binding. f is not called for
// bindings that the cache already has. f must not block, and several goroutines may call it at
// once.
func (c *Cache) Subscribe(f func(before, after *workv1alpha2.ResourceBinding)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.subscribers = append(c.subscribers, f)
}

// changed updates the indexes for one change of a binding, and then calls the subscribers without
// the lock. before is nil for a new binding, after for a deleted one.
func (c *Cache) changed(before, after *workv1alpha2.ResourceBinding) {
	if before != nil && after != nil && before.UID != after.UID {
		c.changed(before, nil)
		before = nil
	}
	c.mu.Lock()
	if before != nil {
		c.remove(before)
	}
	if after != nil {
		c.insert(after)
	}
	subscribers := c.subscribers
	c.mu.Unlock()
	for _, f := range subscribers {
		f(before, after)
	}
}

// insert adds a binding to all indexes. The caller holds mu.
func (c *Cache) insert(b *workv1alpha2.ResourceBinding) {
	name := Name(b)
	c.bindings[name] = b
	c.names[b.UID] = name
	index(c.templates, TemplateOf(b), name)
	for _, s := range scopes(b) {
		index(c.within, s, name)
	}
	for _, o := range NeededOverrides(b) {
		index(c.overrides, o, name)
	}
	for cluster := range Clusters(b) {
		index(c.clusters, cluster, name)
	}
}

// remove removes a binding from all indexes. The caller holds mu.
func (c *Cache) remove(b *workv1alpha2.ResourceBinding) {
	name := Name(b)
	delete(c.bindings, name)
	delete(c.names, b.UID)
	unindex(c.templates, TemplateOf(b), name)
	for _, s := range scopes(b) {
		unindex(c.within, s, name)
	}
	for _, o := range NeededOverrides(b) {
		unindex(c.overrides, o, name)
	}
	for cluster := range Clusters(b) {
		unindex(c.clusters, cluster, name)
	}
}

func index[K comparable](m map[K]sets.Set[types.NamespacedName], key K, name types.NamespacedName) {
	if m[key] == nil {
		m[key] = sets.New[types.NamespacedName]()
	}
	m[key].Insert(name)
}

func unindex[K comparable](m map[K]sets.Set[types.NamespacedName], key K, name types.NamespacedName) {
	if m[key].Delete(name); m[key].Len() == 0 {
		delete(m, key)
	}
}

// Watch calls f for each change of an object of a kind, with the object before the change (nil: it
// is new) and after it (nil: it is deleted). f gets objects as convert returns them, so that both
// scopes of a kind become one type. If convert returns nil for the object, f is called with nil for
// both. f is also called for updates without a change. Watch does not wait for the informer. synced
// reports whether f was called for every object that existed at the start.
func Watch[T any](
	ctx context.Context, informers cache.Informers, kind client.Object, convert func(any) *T, f func(before, after *T),
) (synced toolscache.InformerSynced, err error) {
	informer, err := informers.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("watch %T: %w", kind, err)
	}
	handlers, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { f(nil, convert(o)) },
		UpdateFunc: func(before, after any) { f(convert(before), convert(after)) },
		DeleteFunc: func(o any) {
			if last, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
				o = last.Obj
			}
			f(convert(o), nil)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watch %T: %w", kind, err)
	}
	return handlers.HasSynced, nil
}
