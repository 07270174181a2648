package apply

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/queue"
)

const (
	// finalizers is the number of workers that remove finalizers of bindings.
	finalizers = 4
	// leavingLook is the delay before a binding whose deletion waits for a leaving cluster is checked
	// again.
	leavingLook = time.Second

	// firstFinalize and lastFinalize bound the backoff after a finalizer could not be removed.
	firstFinalize, lastFinalize = 50 * time.Millisecond, 3 * time.Second
)

// finalize queues a binding that is being deleted, so that letGo removes its finalizer once no
// cluster has a copy. It ignores every other binding.
func (a *Applier) finalize(b *workv1alpha2.ResourceBinding) {
	if !b.DeletionTimestamp.IsZero() {
		a.finalizing.Add(binding.Name(b))
	}
}

// letGo removes the finalizer of a binding that is being deleted, once no cluster holds a copy of
// it any more. A cluster that left the fleet cannot be asked, and counts as holding none. If
// another cluster may still hold a copy, letGo keeps the finalizer; the queue of that cluster calls
// finalize when the copy is gone. The workers of the queue a.finalizing call letGo.
func (a *Applier) letGo(ctx context.Context, name types.NamespacedName) queue.Next {
	b, ok := a.bindings.Get(name)
	if !ok || b.DeletionTimestamp.IsZero() || !controllerutil.ContainsFinalizer(b, workv1alpha2.Finalizer) {
		return queue.Next{}
	}
	for cluster := range binding.Clusters(b).Union(a.holding(b.UID)) {
		if a.Gone(b.UID, cluster) {
			continue
		}
		err := a.hub.Get(ctx, client.ObjectKey{Name: cluster}, &clusterv1alpha1.Cluster{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return queue.Next{Backoff: true}
		}
		if _, open := a.queue(cluster); !open {
			// The cluster leaves: its Cluster will soon be gone, and no event reports that.
			return queue.Next{After: leavingLook}
		}
		return queue.Next{} // the queue of the cluster calls finalize when it is done
	}
	o := binding.Object(b.DeepCopy())
	before, _ := o.DeepCopyObject().(client.Object)
	controllerutil.RemoveFinalizer(o, workv1alpha2.Finalizer)
	err := a.hub.Patch(ctx, o, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	switch {
	case err == nil, apierrors.IsNotFound(err), ctx.Err() != nil:
		return queue.Next{}
	case apierrors.IsConflict(err): // the cache will have the newer version soon
	default:
		logr.FromContextOrDiscard(ctx).Error(err, "let binding go", "binding", name.String())
	}
	return queue.Next{Backoff: true}
}
