package provision

import (
	"context"
	"sync"
	"time"
)

// maxRuns bounds how many clusters have a running Operation at the same time.
const maxRuns = 4

// runs are the Operations that this process runs, one for each cluster at a time.
type runs struct {
	slots chan struct{}
	group sync.WaitGroup

	mu     sync.Mutex
	ctx    context.Context //nolint:containedctx // the lifetime of the runs, set when the controller starts
	active map[string]active
}

// active is a run, or one that waits for a slot.
type active struct {
	operation string
	cancel    context.CancelFunc
}

func newRuns() *runs {
	return &runs{slots: make(chan struct{}, maxRuns), active: map[string]active{}}
}

// begin sets the context of all runs.
func (r *runs) begin(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ctx = ctx
}

// start runs an Operation in the background as soon as a slot is free. At the end it calls done
// with the delay after which the cluster is to be reconciled.
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

func (r *runs) end(cluster string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.active[cluster].cancel()
	delete(r.active, cluster)
}

// operation returns the Operation of a cluster that runs or waits for a slot, or an empty string.
func (r *runs) operation(cluster string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.active[cluster].operation
}

// cancel interrupts the run of a cluster. The Operation can be resumed.
func (r *runs) cancel(cluster string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a, ok := r.active[cluster]; ok {
		a.cancel()
	}
}

// wait blocks until no Operation runs.
func (r *runs) wait() { r.group.Wait() }
