package provision

import (
	"context"
	"sync"
	"time"
)

// maxRuns is the maximum number of Operations that run at the same time in this process, each for
// another cluster.
const maxRuns = 4

// runs are the Operations that this process runs in the background, one for each cluster and at
// most maxRuns at a time. active has them by cluster. The methods may be called from several
// goroutines.
type runs struct {
	slots chan struct{} // has an element for each Operation that runs
	group sync.WaitGroup

	mu     sync.Mutex
	ctx    context.Context //nolint:containedctx // the lifetime of the runs, set when the controller starts
	active map[string]active
}

// active is a run of an Operation, or an Operation that waits for a slot. cancel interrupts it.
type active struct {
	operation string
	cancel    context.CancelFunc
}

// newRuns returns runs without any Operation. begin must be called before start.
func newRuns() *runs {
	return &runs{slots: make(chan struct{}, maxRuns), active: map[string]active{}}
}

// begin sets the context of all runs, whose end interrupts them. The controller calls it when it
// starts. It must be called before start.
func (r *runs) begin(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ctx = ctx
}

// start calls run for an Operation in the background, as soon as fewer than maxRuns others run.
// Afterwards it calls done with the delay that run returned. If the run is canceled while it waits,
// run is not called, and the delay is 0. The caller makes sure that no other Operation of the
// cluster is active.
func (r *runs) start(cluster, operation string, run func(ctx context.Context) (again time.Duration), done func(again time.Duration)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ctx, cancel := context.WithCancel(r.ctx)
	r.active[cluster] = active{operation: operation, cancel: cancel}
	r.group.Go(func() {
		var again time.Duration
		select {
		case r.slots <- struct{}{}:
			again = run(ctx)
			<-r.slots
		case <-ctx.Done():
		}
		r.end(cluster)
		done(again)
	})
}

// end removes the run of a cluster from r.active and releases its context.
func (r *runs) end(cluster string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.active[cluster].cancel()
	delete(r.active, cluster)
}

// operation returns the name of the Operation of a cluster that runs, or waits for a slot, in this
// process; "" if there is none.
func (r *runs) operation(cluster string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.active[cluster].operation
}

// cancel interrupts the run of a cluster, if there is one, and does not wait for its end. The
// Operation itself is not canceled and can be resumed.
func (r *runs) cancel(cluster string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a, ok := r.active[cluster]; ok {
		a.cancel()
	}
}

// wait blocks until no Operation runs or waits for a slot in this process.
func (r *runs) wait() { r.group.Wait() }
