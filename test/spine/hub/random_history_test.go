package hub

import (
	"context"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// history records the decisions in the bindings of the hub, with their times.
type history struct {
	resource dynamic.NamespaceableResourceInterface
	onEvent  func() // if not nil, called for each event of the watch

	mu       sync.Mutex
	bindings map[types.UID]*past
}

// past is the history of one binding.
type past struct {
	namespace, kind, name string // of the template
	deleting              bool   // or deleted
	said                  []placement
}

// placement is the decision in a binding from a time on.
type placement struct {
	from     time.Time
	clusters map[string]int64 // replicas by cluster, or 0
}

var bindingResource = schema.GroupVersionResource{Group: "work.orrery.dev", Version: "v1alpha2", Resource: "resourcebindings"}

// follow updates the history until ctx ends.
func (h *history) follow(ctx context.Context) {
	for ctx.Err() == nil {
		version, err := h.list(ctx)
		if err == nil {
			h.watch(ctx, version)
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// list updates the history from a list of all bindings.
func (h *history) list(ctx context.Context) (version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	all, err := h.resource.List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	there := map[types.UID]bool{}
	for _, b := range all.Items {
		there[b.GetUID()] = true
		h.observe(&b, false)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for uid, p := range h.bindings {
		if !there[uid] {
			p.deleting = true
		}
	}
	return all.GetResourceVersion(), nil
}

func (h *history) watch(ctx context.Context, version string) {
	w, err := h.resource.Watch(ctx, metav1.ListOptions{ResourceVersion: version})
	if err != nil {
		return
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		if b, ok := e.Object.(*unstructured.Unstructured); ok && b.GetKind() == "ResourceBinding" {
			h.observe(b, e.Type == "DELETED")
			if h.onEvent != nil {
				h.onEvent()
			}
		}
	}
}

func (h *history) observe(b *unstructured.Unstructured, gone bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.bindings[b.GetUID()]
	if p == nil {
		p = &past{namespace: b.GetNamespace()}
		p.kind, _, _ = unstructured.NestedString(b.Object, "spec", "resource", "kind")
		p.name, _, _ = unstructured.NestedString(b.Object, "spec", "resource", "name")
		h.bindings[b.GetUID()] = p
	}
	// After a restore, a deleted binding may exist again.
	p.deleting = gone || b.GetDeletionTimestamp() != nil
	p.said = append(p.said, placement{from: time.Now(), clusters: clustersOf(b)})
}

// clustersOf returns the clusters of a binding with their replicas.
func clustersOf(b *unstructured.Unstructured) map[string]int64 {
	all := map[string]int64{}
	list, _, _ := unstructured.NestedSlice(b.Object, "spec", "clusters")
	for _, c := range list {
		c, _ := c.(map[string]any)
		name, _ := c["name"].(string)
		n, _ := c["replicas"].(int64)
		all[name] = n
	}
	return all
}

// since returns a copy of a binding's past that begins with the decision at that time. It
// returns nil if there never was such a binding.
func (h *history) since(uid types.UID, at time.Time) *past {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.bindings[uid]
	if p == nil {
		return nil
	}
	c := *p
	first := 0
	for i, s := range p.said {
		if !s.from.After(at) {
			first = i
		}
	}
	c.said = append([]placement(nil), p.said[first:]...)
	return &c
}
