package member

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/reconciler"
)

// leavers is the maximum number of clusters that leave at the same time. One that hangs occupies
// a slot until its calls time out.
const leavers = 8

// departures run the work for clusters that leave, separate from the workers that reconcile all
// others.
type departures struct {
	registry *Registry
	places   chan struct{}

	mu sync.Mutex
	of map[types.UID]*departure
}

// departure is the run for one cluster.
type departure struct {
	part    string
	running bool
	done    bool // it has succeeded, and is not repeated for a stale cache
	again   bool // the Cluster was reconciled during the run, which may have used old data
	outcome error
	last    error                    // result of the previous run, while this one has none
	cluster *clusterv1alpha1.Cluster // a copy; the run may change its status
}

func newDepartures(r *Registry) *departures {
	return &departures{registry: r, places: make(chan struct{}, leavers), of: map[types.UID]*departure{}}
}

// run returns the result of a finished part of leaving. Otherwise it starts the part, and
// enqueues the Cluster when the part ends.
func (d *departures) run(o *clusterv1alpha1.Cluster, part string, do func(context.Context, *clusterv1alpha1.Cluster) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.of[o.UID]
	if now == nil || !now.running && now.part != part {
		now = &departure{part: part}
		d.of[o.UID] = now
	}
	switch {
	case now.done:
		return nil
	case now.running:
		now.again = true
		return now.underWay()
	case now.cluster != nil:
		o.Status.Provision = now.cluster.Status.Provision
		outcome := now.outcome
		now.cluster, now.outcome, now.last, now.done = nil, nil, outcome, outcome == nil
		if now.again && outcome != nil {
			d.registry.enqueue(o.Name, leaveRetry)
		}
		return outcome
	}
	now.running, now.again, now.cluster = true, false, o.DeepCopy()
	d.registry.mu.RLock()
	ctx := d.registry.ctx
	d.registry.mu.RUnlock()
	go d.work(ctx, now, now.cluster, do)
	return now.underWay()
}

func (d *departures) work(
	ctx context.Context, now *departure, o *clusterv1alpha1.Cluster, do func(context.Context, *clusterv1alpha1.Cluster) error,
) {
	select {
	case d.places <- struct{}{}:
	case <-ctx.Done():
		return
	}
	err := do(ctx, o)
	<-d.places
	if ctx.Err() != nil {
		return
	}
	d.mu.Lock()
	now.running, now.outcome = false, err
	d.mu.Unlock()
	d.registry.enqueue(o.Name, 0)
}

// underWay returns the outcome while the part runs: its last result, or that it waits.
func (now *departure) underWay() error {
	if now.last != nil {
		return now.last
	}
	return reconciler.Waiting(clusterv1alpha1.ReasonUnjoining, 0, "%s is under way", now.part)
}

// forget drops the state of a Cluster that has left.
func (d *departures) forget(uid types.UID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.of, uid)
}
