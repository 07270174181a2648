package template

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"orrery.dev/orrery/internal/hub"
	"orrery.dev/orrery/internal/render"
)

// Delays before discovery of a kind that the hub does not serve is retried.
const (
	firstRetry = 250 * time.Millisecond
	lastRetry  = 10 * time.Second
)

// kind is a kind in one version that the cache watches on the hub. Cache.watched creates it, and
// its method run watches.
type kind struct {
	gvk schema.GroupVersionKind
	// selected is false if the kind is watched only for comparison with another version. The
	// cache's mu guards it.
	selected bool

	mu       sync.RWMutex
	informer cache.SharedIndexInformer // nil while the hub does not serve the kind
	failure  error                     // why the kind is not listed; nil: listed or unknown
	notified bool                      // every subscriber was notified of all listed objects
	wider    []wider                   // versions with fields that this one lacks
	compared bool                      // wider was computed
}

// problem returns the known reason why the kind is not listed. It is nil if the kind is listed, or
// if the reason is not known yet.
func (k *kind) problem() error {
	k.mu.RLock()
	defer k.mu.RUnlock()
	if k.informer != nil && k.informer.HasSynced() {
		return nil
	}
	return k.failure
}

// current returns the store with the objects that are known; nil if the hub does not serve the
// kind. listed is true if the store has all objects of the kind.
func (k *kind) current() (store cache.Indexer, listed bool) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	if k.informer == nil {
		return nil, false
	}
	return k.informer.GetIndexer(), k.informer.HasSynced()
}

// fail records the reason why the kind is not listed; nil: it is listed. If the reason changed,
// fail notifies the subscribers.
func (k *kind) fail(c *Cache, failure error) {
	k.mu.Lock()
	news := fmt.Sprint(k.failure) != fmt.Sprint(failure)
	k.failure = failure
	k.mu.Unlock()
	if news {
		c.notify(Event{GVK: k.gvk})
	}
}

// run watches the kind until ctx ends, and records why it is not listed. When the hub stops serving
// the kind, the objects become unknown, and run searches for the kind again. If the hub serves only
// another version of the kind, run makes the cache watch that version.
func (k *kind) run(ctx context.Context, c *Cache) {
	wait := firstRetry
	for ctx.Err() == nil {
		resource, err := k.find(c)
		if err == nil {
			wait = firstRetry
			err = k.watch(ctx, c, resource)
		}
		if ctx.Err() != nil {
			return
		}
		if other, ok := errors.AsType[*OtherVersionError](err); ok {
			_ = c.Watch(other.Served) // callers of Watch get the error of that version
		}
		k.fail(c, err)
		logr.FromContextOrDiscard(ctx).V(1).Info("kind is not served", "kind", k.gvk.String(), "reason", err.Error())
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, lastRetry)
	}
}

// find discovers the resource of the kind. It returns an error if the resource cannot be listed and
// watched. For a kind that the hub does not serve, it returns the error of Cache.unserved.
func (k *kind) find(c *Cache) (schema.GroupVersionResource, error) {
	list, err := c.discovery.ServerResourcesForGroupVersion(k.gvk.GroupVersion().String())
	if apierrors.IsNotFound(err) {
		return schema.GroupVersionResource{}, c.unserved(k.gvk)
	}
	if err != nil {
		return schema.GroupVersionResource{}, fmt.Errorf("discover %s: %w", k.gvk.GroupVersion(), err)
	}
	i := slices.IndexFunc(list.APIResources, func(r metav1.APIResource) bool { return isOf(r, k.gvk.Kind) })
	if i < 0 {
		return schema.GroupVersionResource{}, c.unserved(k.gvk)
	}
	resource := list.APIResources[i]
	if !slices.Contains(resource.Verbs, "list") || !slices.Contains(resource.Verbs, "watch") {
		return schema.GroupVersionResource{}, fmt.Errorf("%s cannot be listed and watched", k.gvk)
	}
	return k.gvk.GroupVersion().WithResource(resource.Name), nil
}

// errUnserved ends a watch when the hub no longer serves the kind.
var errUnserved = errors.New("the hub serves the kind no longer")

// watch lists and watches the kind until ctx ends or the hub no longer serves the resource. The
// error is never nil: it is the cause of ctx, errUnserved, or that the informer cannot be set up.
func (k *kind) watch(ctx context.Context, c *Cache, resource schema.GroupVersionResource) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	objects := c.dynamic.Resource(resource)
	informer := hub.NewInformer(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return objects.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			k.compareVersions(ctx, c, resource)
			return objects.Watch(ctx, o)
		},
	}, c.dynamic), &unstructured.Unstructured{}, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	if err := informer.SetTransform(func(item any) (any, error) {
		c.deletions.observe(item) // before the object leaves the store
		return strip(item)
	}); err != nil {
		return fmt.Errorf("watch %s: %w", resource, err)
	}
	if err := informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		switch {
		case apierrors.IsNotFound(err):
			stop(errUnserved)
		case !informer.HasSynced():
			k.fail(c, fmt.Errorf("list %s: %w", resource, err))
		}
	}); err != nil {
		return fmt.Errorf("watch %s: %w", resource, err)
	}
	handlers, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { k.changed(c, o) },
		UpdateFunc: func(_, o any) { k.changed(c, o) },
		DeleteFunc: func(o any) { k.changed(c, o) },
	})
	if err != nil {
		return fmt.Errorf("watch %s: %w", resource, err)
	}

	k.set(informer)
	defer k.set(nil)
	var announcing sync.WaitGroup
	announcing.Go(func() {
		if cache.WaitForCacheSync(ctx.Done(), handlers.HasSynced) {
			k.mu.Lock()
			k.notified = true
			k.mu.Unlock()
			k.fail(c, nil)
			c.notify(Event{GVK: k.gvk})
		}
	})
	informer.RunWithContext(ctx)
	announcing.Wait()
	return context.Cause(ctx)
}

// set replaces the informer; nil if the hub no longer serves the kind, so that its objects are
// unknown.
func (k *kind) set(informer cache.SharedIndexInformer) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.informer, k.notified = informer, false
}

// changed notifies the subscribers about an object of the informer.
func (k *kind) changed(c *Cache, o any) {
	if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = gone.Obj
	}
	if t, ok := o.(*unstructured.Unstructured); ok {
		c.notify(Event{GVK: k.gvk, Namespace: t.GetNamespace(), Name: t.GetName()})
	}
}

// strip removes, in place, fields of a template that no caller of the cache reads, to save memory:
// fields that the hub's API server allocated, the managed fields, and kubectl's annotation with the
// last applied state. Any item that is no object stays as it is. Informers call it for each object;
// the error is always nil.
func strip(item any) (any, error) {
	o, ok := item.(*unstructured.Unstructured)
	if !ok {
		return item, nil
	}
	render.Trim(o)
	if annotations := o.GetAnnotations(); annotations[corev1.LastAppliedConfigAnnotation] != "" {
		delete(annotations, corev1.LastAppliedConfigAnnotation)
		o.SetAnnotations(annotations)
	}
	return o, nil
}
