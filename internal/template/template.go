// Package template keeps in memory the objects on the hub that policies select. It has one
// watch for each requested kind. A kind that the hub does not serve yet is watched as soon as
// the hub serves it.
package template

import (
	"context"
	"encoding/json"
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
	"k8s.io/apimachinery/pkg/types"
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

// Cache holds the hub's objects of every watched kind. It is safe for concurrent use. The
// objects that it returns are shared and read-only.
type Cache struct {
	discovery discovery.DiscoveryInterface
	dynamic   dynamic.Interface

	mu          sync.RWMutex
	kinds       map[schema.GroupVersionKind]*kind
	start       func(*kind) // nil until the manager starts the cache
	deletions   deletions
	subscribers []func(Event)
}

// New returns a Cache that runs with the manager, which must not have started.
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

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (r runnable) NeedLeaderElection() bool { return false }

// Start watches all kinds for which Watch was called, also those of later calls, until ctx ends,
// which is no error. The manager calls it.
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

// errOwn is Watch's error for Orrery's own policies, bindings and clusters. The schema of the
// policies refuses these kinds, too.
var errOwn = errors.New("policies, bindings and clusters of Orrery itself cannot be placed")

// Watch starts to watch a kind, if it is not watched yet. It does not wait for the list. The cache
// retries until the kind is listed. The error is the known reason why the kind is not listed. It
// matches meta.IsNoMatchError for a kind that the hub does not serve. The error is nil if no reason
// is known yet, as after the first call. Kinds of Orrery's own policies, bindings and clusters are
// refused.
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

// Get returns a template, which is read-only, and Present. Without the template the result is
// Absent if the kind is listed, and Unknown if it is not.
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

// Listed reports whether the cache has all templates of a kind. It is false for a kind that is not
// watched, and while the hub does not serve the kind.
func (c *Cache) Listed(gvk schema.GroupVersionKind) bool {
	_, listed := c.store(gvk)
	return listed
}

// Notified reports whether the kind is listed and every subscriber was notified of all its
// templates. It is false while the hub does not serve the kind, and for a kind that is not watched.
func (c *Cache) Notified(gvk schema.GroupVersionKind) bool {
	c.mu.RLock()
	k := c.kinds[gvk]
	c.mu.RUnlock()
	if k == nil {
		return false
	}
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.notified
}

// List returns the templates of a kind in every namespace, in no order, and Present. They are
// read-only. The presence is Absent if there are none, and Unknown until the kind is listed.
func (c *Cache) List(gvk schema.GroupVersionKind) ([]*unstructured.Unstructured, presence.Presence) {
	return c.ListIn(gvk, corev1.NamespaceAll)
}

// ListIn returns the templates of a kind in one namespace, with the results of List. The namespace
// "" stands for every namespace and for cluster-scoped templates.
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

// Version returns a text that identifies the content of a template: UID/CONTENT/HASH. CONTENT is
// the generation. For a kind without generations it is the resourceVersion or, if the template has
// a status, a digest. HASH covers labels and annotations. Every change of the rendered copies
// changes the text, and a change of the status does not: the hub itself writes it.
func Version(o *unstructured.Unstructured) string {
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
	return string(o.GetUID()) + "/" + content(o) + "/" + strconv.FormatUint(h.Sum64(), 36)
}

// content returns the part CONTENT of Version. A digest begins with a letter, so that it is no
// number.
func content(o *unstructured.Unstructured) string {
	if generation := o.GetGeneration(); generation != 0 {
		return strconv.FormatInt(generation, 10)
	}
	if !hasDigest(o) {
		return o.GetResourceVersion()
	}
	object, meta := maps.Clone(o.Object), map[string]any{}
	delete(object, "status")
	if m, ok := object["metadata"].(map[string]any); ok {
		meta = maps.Clone(m)
	}
	// HASH covers labels and annotations, and managedFields change with the status.
	for _, field := range []string{"resourceVersion", "managedFields", "labels", "annotations"} {
		delete(meta, field)
	}
	object["metadata"] = meta
	h := fnv.New64a()
	if err := json.NewEncoder(h).Encode(object); err != nil { // it sorts keys
		return o.GetResourceVersion()
	}
	return "d" + strconv.FormatUint(h.Sum64(), 36)
}

// hasDigest reports whether the version of a template has a digest of its content: the kind has no
// generations, and the template has a status, which changes the resourceVersion.
func hasDigest(o *unstructured.Unstructured) bool {
	_, found := o.Object["status"]
	return found && o.GetGeneration() == 0
}

// Recorded returns the version of a template for the records, which Same compares. It is version,
// the result of Version for the template, followed by /RESOURCEVERSION if CONTENT is a digest. So
// the text always shows whether one state of a template is later than another. It is "" for nil.
func Recorded(o *unstructured.Unstructured, version string) string {
	switch {
	case o == nil:
		return ""
	case hasDigest(o):
		return version + "/" + o.GetResourceVersion()
	default:
		return version
	}
}

// Same reports whether a result of Recorded and one of Version identify the same content of the
// same template.
func Same(recorded, version string) bool {
	return recorded == version || version != "" && strings.HasPrefix(recorded, version+"/")
}

// Number returns the UID of a template and the number in a result of Recorded by which states of
// the template are compared: its generation, or its resourceVersion if the kind has no generations.
// The number is 0 if the text has none.
func Number(recorded string) (uid types.UID, number uint64) {
	parts := strings.Split(recorded, "/")
	at := 1
	if len(parts) > 3 {
		at = 3
	}
	if at < len(parts) {
		number, _ = strconv.ParseUint(parts[at], 10, 64)
	}
	return types.UID(parts[0]), number
}

// Subscribe makes the cache call f after every change of a template or of the state of a kind. f
// must not block, and several goroutines may call it at once.
func (c *Cache) Subscribe(f func(Event)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.subscribers = append(c.subscribers, f)
}

// notify calls the subscribers, without a lock.
func (c *Cache) notify(e Event) {
	c.mu.RLock()
	subscribers := c.subscribers
	c.mu.RUnlock()
	for _, f := range subscribers {
		f(e)
	}
}

// store returns the store with the known objects of a kind, and whether it has all of them. It
// returns nil and false for a kind that is not watched, and nil while the hub does not serve the
// kind.
func (c *Cache) store(gvk schema.GroupVersionKind) (store cache.Indexer, listed bool) {
	c.mu.RLock()
	k := c.kinds[gvk]
	c.mu.RUnlock()
	if k == nil {
		return nil, false
	}
	return k.current()
}
