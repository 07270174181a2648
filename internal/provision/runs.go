package provision

import (
	"context"
	"sync"
	"time"
)

// maxRuns bounds how many clusters are worked on at a time.
const maxRuns = 4

// runs are the Operations that this process runs, one of a cluster at a time.
type runs struct {
	slots chan struct{}
	group sync.WaitGroup

	mu     sync.Mutex
	ctx    context.Context //nolint:containedctx // the lifetime of the runs, set when the controller starts
	active map[string]active
}

// active is a run.
type active struct {
	operation string
	cancel    context.CancelFunc
}

func newRuns() *runs {
	return &runs{slots: make(chan struct{}, maxRuns), active: map[string]active{}}
}

// begin says how long runs may last.
func (r *runs) begin(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ctx = ctx
}

// start runs an Operation in the background as soon as there is a slot. When nothing of it runs any more, done is told after
// what time the cluster is to be looked at again.
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

// operation of a cluster that runs, or that waits for a slot; empty if none does.
func (r *runs) operation(cluster string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.active[cluster].operation
}

// cancel interrupts the run of a cluster, which can be resumed.
func (r *runs) cancel(cluster string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a, ok := r.active[cluster]; ok {
		a.cancel()
	}
}

// wait returns when nothing runs.
func (r *runs) wait() { r.group.Wait() }
