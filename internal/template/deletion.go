package template

import (
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// mostDeletions bounds the deletions that a Cache remembers. Beyond it, the oldest is
// forgotten.
const mostDeletions = 10_000

// Propagation returns the propagation with which an object is being deleted: Orphan or
// Foreground, which the API server stores as a finalizer, or else Background. It returns "" for
// an object that is not being deleted. The result is wrong once the garbage collector has
// removed its finalizer and the object waits for finalizers of others.
func Propagation(o metav1.Object) metav1.DeletionPropagation {
	switch finalizers := o.GetFinalizers(); {
	case o.GetDeletionTimestamp().IsZero():
		return ""
	case slices.Contains(finalizers, metav1.FinalizerOrphanDependents):
		return metav1.DeletePropagationOrphan
	case slices.Contains(finalizers, metav1.FinalizerDeleteDependents):
		return metav1.DeletePropagationForeground
	default:
		return metav1.DeletePropagationBackground
	}
}

// deletions remembers the last mostDeletions templates that were deleted with propagation
// Orphan or Foreground. The zero value is ready. It may be used by several goroutines.
type deletions struct {
	mu    sync.RWMutex
	of    map[types.UID]metav1.DeletionPropagation
	order []types.UID // keys of of, the oldest first
}

// observe remembers the propagation of an object that is being deleted with Orphan or Foreground.
// It ignores all other objects. The informers call it with every object before they store it, also
// with the last state of a deleted object.
func (d *deletions) observe(item any) {
	o, ok := item.(metav1.Object)
	if !ok {
		return
	}
	propagation := Propagation(o)
	if propagation != metav1.DeletePropagationOrphan && propagation != metav1.DeletePropagationForeground {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, known := d.of[o.GetUID()]; known {
		return // the API server keeps the propagation of a deletion that has begun
	}
	if d.of == nil {
		d.of = map[types.UID]metav1.DeletionPropagation{}
	}
	if len(d.order) == mostDeletions {
		delete(d.of, d.order[0])
		d.order = d.order[1:]
	}
	d.of[o.GetUID()] = propagation
	d.order = append(d.order, o.GetUID())
}

// Deletion returns Orphan or Foreground if this process saw the template with this UID being
// deleted with that propagation. Otherwise it returns "". Only the last 10,000 such deletions are
// known.
func (c *Cache) Deletion(uid types.UID) metav1.DeletionPropagation {
	c.deletions.mu.RLock()
	defer c.deletions.mu.RUnlock()
	return c.deletions.of[uid]
}
