// Package template keeps in memory the objects on the hub that policies select. It has one
// watch for each requested kind. A kind that the hub does not serve yet is watched as soon as
// the hub serves it.
package template

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/presence"
)

// Event reports that a template was added, changed or deleted. An Event without a name is about
// the kind: all its templates are listed now, or the reason why they are not has changed.
type Event struct {
	GVK             schema.GroupVersionKind
	Namespace, Name string
}

// Cache holds the hub's objects of every watched kind.
type Cache struct {
	discovery discovery.DiscoveryInterface
	dynamic   dynamic.Interface

	mu          sync.RWMutex
	kinds       map[schema.GroupVersionKind]*kind
	start       func(*kind) // nil until the manager starts the cache
	deletions   deletions
	subscribers []func(Event)
}

// New returns a Cache that runs with the manager.
func New(mgr ctrl.Manager) (*Cache, error) {
	d, err := discovery.NewDiscoveryClientForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return nil, fmt.Errorf("create discovery client: %w", err)
	}
	dyn, err := dynamic.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return nil, fmt.Errorf("create dynamic client: %w", err)
	}
	c := &Cache{discovery: d, dynamic: dyn, kinds: map[schema.GroupVersionKind]*kind{}}
	if err := mgr.Add(runnable{c}); err != nil {
		return nil, fmt.Errorf("add templates to the manager: %w", err)
	}
	return c, nil
}

// runnable makes the manager run the cache, on every replica.
type runnable struct{ cache *Cache }

func (r runnable) NeedLeaderElection() bool { return false }

// Start watches until ctx ends.
func (r runnable) Start(ctx context.Context) error {
	c := r.cache
	var running sync.WaitGroup
	c.mu.Lock()
	c.start = func(k *kind) { running.Go(func() { k.run(ctx, c) }) }
	for _, k := range c.kinds {
		c.start(k)
	}
	c.mu.Unlock()

	<-ctx.Done()
	c.mu.Lock()
	c.start = func(*kind) {}
	c.mu.Unlock()
	running.Wait()
	return nil
}

// errOwn is the error for the kinds of Orrery. The schema of the policies refuses them, too.
var errOwn = errors.New("policies, bindings and clusters of Orrery itself cannot be placed")

// Watch starts to watch a kind, if it is not watched yet. It does not wait for the list. The
// error is the known reason why the kind is not listed; for a kind that the hub does not serve
// it matches meta.IsNoMatchError. The cache retries until the kind is listed.
func (c *Cache) Watch(gvk schema.GroupVersionKind) error {
	switch gvk.Group {
	case policyv1alpha1.GroupVersion.Group, workv1alpha2.GroupVersion.Group, clusterv1alpha1.GroupVersion.Group:
		return errOwn
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.watched(gvk)
	k.selected = true
	return k.problem()
}

// watched returns a kind, and starts to watch it if it is not watched yet. The caller holds mu.
func (c *Cache) watched(gvk schema.GroupVersionKind) *kind {
	k, ok := c.kinds[gvk]
	if !ok {
		k = &kind{gvk: gvk}
		c.kinds[gvk] = k
		if c.start != nil {
			c.start(k)
		}
	}
	return k
}

// Versions returns the versions of a kind for which Watch was called, sorted. Versions that the
// cache watches only for comparison are not included.
func (c *Cache) Versions(gk schema.GroupKind) []schema.GroupVersionKind {
	c.mu.RLock()
	defer c.mu.RUnlock()
	var versions []schema.GroupVersionKind
	for gvk, k := range c.kinds {
		if gvk.GroupKind() == gk && k.selected {
			versions = append(versions, gvk)
		}
	}
	slices.SortFunc(versions, func(a, b schema.GroupVersionKind) int { return strings.Compare(a.Version, b.Version) })
	return versions
}

// Get returns a template, which is read-only. The result is Unknown until the kind is listed,
// unless the template is known already.
func (c *Cache) Get(gvk schema.GroupVersionKind, namespace, name string) (*unstructured.Unstructured, presence.Presence) {
	store, listed := c.store(gvk)
	if store == nil {
		return nil, presence.Unknown
	}
	item, ok, err := store.GetByKey(cache.NewObjectName(namespace, name).String())
	if o, is := item.(*unstructured.Unstructured); ok && is && err == nil {
		return o, presence.Present
	}
	if !listed {
		return nil, presence.Unknown
	}
	return nil, presence.Absent
}

// Listed reports whether all templates of a kind are known.
func (c *Cache) Listed(gvk schema.GroupVersionKind) bool {
	_, listed := c.store(gvk)
	return listed
}

// Told reports whether every subscriber was notified of all templates of a listed kind.
func (c *Cache) Told(gvk schema.GroupVersionKind) bool {
	c.mu.RLock()
	k := c.kinds[gvk]
	c.mu.RUnlock()
	if k == nil {
		return false
	}
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.told
}

// List returns the templates of a kind in every namespace, in no order. They are read-only. The
// result is Absent if there are none, and Unknown until the kind is listed.
func (c *Cache) List(gvk schema.GroupVersionKind) ([]*unstructured.Unstructured, presence.Presence) {
	return c.ListIn(gvk, corev1.NamespaceAll)
}

// ListIn is List for one namespace; "": every namespace.
func (c *Cache) ListIn(gvk schema.GroupVersionKind, namespace string) ([]*unstructured.Unstructured, presence.Presence) {
	store, listed := c.store(gvk)
	if !listed {
		return nil, presence.Unknown
	}
	items := []any{}
	if namespace == corev1.NamespaceAll {
		items = store.List()
	} else if found, err := store.ByIndex(cache.NamespaceIndex, namespace); err == nil {
		items = found
	}
	objects := make([]*unstructured.Unstructured, 0, len(items))
	for _, item := range items {
		if o, ok := item.(*unstructured.Unstructured); ok {
			objects = append(objects, o)
		}
	}
	if len(objects) == 0 {
		return nil, presence.Absent
	}
	return objects, presence.Present
}

// Version identifies the content of a template. It changes with every change of the rendered
// copies, and not with the status.
func Version(o *unstructured.Unstructured) string {
	content := o.GetResourceVersion()
	if generation := o.GetGeneration(); generation != 0 {
		content = strconv.FormatInt(generation, 10)
	}
	h := fnv.New64a()
	meta, _ := o.Object["metadata"].(map[string]any)
	var buffer [512]byte
	for _, field := range [2]string{"labels", "annotations"} {
		// The map is not copied: Version is called for each cluster of a template.
		entries, _ := meta[field].(map[string]any)
		text := buffer[:0]
		for _, k := range slices.Sorted(maps.Keys(entries)) {
			value, _ := entries[k].(string)
			text = strconv.AppendQuote(strconv.AppendQuote(text, k), value)
		}
		_, _ = h.Write(append(text, 0)) // a hash never fails
	}
	return string(o.GetUID()) + "/" + content + "/" + strconv.FormatUint(h.Sum64(), 36)
}

// Subscribe registers f to be called after every change. f must not block.
func (c *Cache) Subscribe(f func(Event)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.subscribers = append(c.subscribers, f)
}

func (c *Cache) notify(e Event) {
	c.mu.RLock()
	subscribers := c.subscribers
	c.mu.RUnlock()
	for _, f := range subscribers {
		f(e)
	}
}

func (c *Cache) store(gvk schema.GroupVersionKind) (store cache.Indexer, listed bool) {
	c.mu.RLock()
	k := c.kinds[gvk]
	c.mu.RUnlock()
	if k == nil {
		return nil, false
	}
	return k.current()
}
