package reconciler_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"orrery.dev/orrery/internal/reconciler"
)

// TestStopsWhileBusy: a controller that is stopped while it has keys to process ends
// nevertheless. The timing of workers and queue is random, so the test stops many controllers.
func TestStopsWhileBusy(t *testing.T) {
	for range 200 {
		var worked atomic.Int64
		busy := make(chan struct{})
		options := reconciler.Options[int](8)
		options.SkipNameValidation = new(true)
		options.Reconciler = reconcile.TypedFunc[int](func(context.Context, int) (ctrl.Result, error) {
			if worked.Add(1) == 100 {
				close(busy)
			}
			return ctrl.Result{RequeueAfter: time.Microsecond}, nil
		})
		c, err := controller.NewTypedUnmanaged("busy", options)
		if err != nil {
			t.Fatal(err)
		}
		err = c.Watch(source.TypedFunc[int](func(_ context.Context, queue workqueue.TypedRateLimitingInterface[int]) error {
			for key := range 20 {
				queue.Add(key)
			}
			return nil
		}))
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Start(ctx) }()
		<-busy
		stop()
		select {
		case err := <-ended:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("a stopped controller does not end")
		}
	}
}
