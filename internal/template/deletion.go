package template

import (
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// mostDeletions bounds the deletions that a Cache remembers: of more, it forgets the oldest.
const mostDeletions = 10_000

// Propagation returns the propagation with which an object is being deleted, or was: Orphan or Foreground, which the API server notes as
// a finalizer, or else Background. It is empty for an object that is not being deleted. The garbage collector removes the finalizers, so
// that an object that waits for finalizers of others no longer tells.
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

// deletions remembers the templates that were deleted with another propagation than Background. The zero value is ready.
type deletions struct {
	mu    sync.RWMutex
	of    map[types.UID]metav1.DeletionPropagation
	order []types.UID // of of, the oldest first
}

// observe notes what an object tells of its deletion. The informers call it with every object, also with the last state of one that is
// gone, before their stores change.
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
		return // the API server changes the propagation of no deletion that has begun
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

// Deletion returns Orphan or Foreground for a template that was seen to be deleted with that propagation, and "" for any other.
func (c *Cache) Deletion(uid types.UID) metav1.DeletionPropagation {
	c.deletions.mu.RLock()
	defer c.deletions.mu.RUnlock()
	return c.deletions.of[uid]
}
