package member

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/reconciler"
)

// leavers is how many clusters are worked on at a time that leave. One that hangs takes a place until its calls time out.
const leavers = 8

// departures run what is to be done as clusters leave, apart from the workers that look after all others.
type departures struct {
	registry *Registry
	places   chan struct{}

	mu sync.Mutex
	of map[types.UID]*departure
}

// departure is a run for one cluster.
type departure struct {
	part    string
	running bool
	done    bool // it has succeeded; a cache that is behind does not have it run again
	again   bool // somebody asked while it ran: what it saw may be old
	outcome error
	last    error                    // of the run before, for as long as this one has none
	cluster *clusterv1alpha1.Cluster // a copy, in whose status the run may say something
}

func newDepartures(r *Registry) *departures {
	return &departures{registry: r, places: make(chan struct{}, leavers), of: map[types.UID]*departure{}}
}

// run returns the outcome of a part of leaving that has run, and otherwise has it run: the Cluster is looked at again then.
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

// underWay is the outcome of what runs: what it said last.
func (now *departure) underWay() error {
	if now.last != nil {
		return now.last
	}
	return reconciler.Waiting(clusterv1alpha1.ReasonUnjoining, 0, "%s is under way", now.part)
}

// forget drops what is kept of a Cluster that has left.
func (d *departures) forget(uid types.UID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.of, uid)
}
