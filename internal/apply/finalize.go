package apply

import (
	"context"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
)

const (
	// finalizers is how many bindings are released at once.
	finalizers = 4
	// leavingLook is when to look again at a binding that waits for a cluster that leaves.
	leavingLook = time.Second
)

// finalizing lets deleted bindings go once no cluster holds anything of theirs.
type finalizing struct {
	applier *Applier
	queue   workqueue.TypedRateLimitingInterface[types.NamespacedName]
}

func newFinalizing(a *Applier) *finalizing {
	return &finalizing{applier: a, queue: workqueue.NewTypedRateLimitingQueue(
		workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](50*time.Millisecond, 30*time.Second))}
}

// look has a binding looked at if it is being deleted.
func (f *finalizing) look(b *workv1alpha2.ResourceBinding) {
	if !b.DeletionTimestamp.IsZero() {
		f.queue.Add(binding.Name(b))
	}
}

func (f *finalizing) start(ctx context.Context, running *sync.WaitGroup) {
	context.AfterFunc(ctx, f.queue.ShutDown)
	for range finalizers {
		running.Go(func() {
			for {
				name, closed := f.queue.Get()
				if closed {
					return
				}
				if err := f.release(ctx, name); err != nil && ctx.Err() == nil {
					logr.FromContextOrDiscard(ctx).Error(err, "release binding", "binding", name.String())
					f.queue.AddRateLimited(name)
				} else {
					f.queue.Forget(name)
				}
				f.queue.Done(name)
			}
		})
	}
}

// release removes the finalizer of a deleted binding if every cluster that may have held
// something of it is known not to any more. A cluster that has left the fleet cannot be
// asked and does not hold the binding back.
func (f *finalizing) release(ctx context.Context, name types.NamespacedName) error {
	a := f.applier
	b, ok := a.bindings.Get(name)
	if !ok || b.DeletionTimestamp.IsZero() || !controllerutil.ContainsFinalizer(b, workv1alpha2.Finalizer) {
		return nil
	}
	for cluster := range binding.Clusters(b).Union(a.holding(b.UID)) {
		if a.Gone(b.UID, cluster) {
			continue
		}
		err := a.hub.Get(ctx, client.ObjectKey{Name: cluster}, &clusterv1alpha1.Cluster{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if _, open := a.lane(cluster); err == nil && !open {
			f.queue.AddAfter(name, leavingLook) // its Cluster is about to go, of which nobody tells
		}
		return err // nil: its lane looks again when it is done
	}
	o := binding.Object(b.DeepCopy())
	before, _ := o.DeepCopyObject().(client.Object)
	controllerutil.RemoveFinalizer(o, workv1alpha2.Finalizer)
	err := a.hub.Patch(ctx, o, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsConflict(err) {
		f.queue.AddRateLimited(name) // the cache is about to know the newer one
		return nil
	}
	return client.IgnoreNotFound(err)
}
