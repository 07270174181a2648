package member

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/reconciler"
)

// leavers is the maximum number of clusters that are cleaned up at the same time, because they
// leave the fleet. A cluster that hangs occupies a slot until its calls time out.
const leavers = 8

// departures runs the work for clusters that leave the fleet in the background, so that it does not
// occupy the workers that reconcile Clusters. Several goroutines may use it.
type departures struct {
	registry *Registry
	places   chan struct{}

	mu sync.Mutex
	of map[types.UID]*departure
}

// departure is the state of one part of leaving ("cleaning up in the cluster" or "forgetting the
// cluster") for one Cluster. departures.mu guards it.
type departure struct {
	part    string
	running bool
	done    bool // it has succeeded, and is not repeated for a stale cache
	orphans bool // a run that ended had another deletionPolicy than Delete
	again   bool // the Cluster was reconciled during the run, which may have used old data
	outcome error
	last    error                    // result of the previous run, while this one has none
	cluster *clusterv1alpha1.Cluster // a copy; the run may change its status
}

// newDepartures returns departures without any work. It enqueues Clusters in r.
func newDepartures(r *Registry) *departures {
	return &departures{registry: r, places: make(chan struct{}, leavers), of: map[types.UID]*departure{}}
}

// run starts do, one part of the work for the leaving Cluster o, in the background. part is its
// name, such as "cleaning up in the cluster". The caller repeats the call until it returns nil,
// which means that do has succeeded; later calls also return nil. While do runs, the result is the
// error of the previous run, or an outcome of package reconciler (an error that becomes a
// condition) that the Cluster waits. When do ends, the Cluster is enqueued, and the next call
// returns the result. After an error, the call after that starts do again. If spec.deletionPolicy
// has become Delete since a run that succeeded, do runs once more, because Orphan may have left
// what Delete removes. do gets a copy of o; run copies status.provision from it into o. do may set
// spec.deletionPolicy of the copy to the policy that it follows.
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
		deletes := now.cluster.Spec.DeletionPolicy == clusterv1alpha1.DeletionDelete
		now.orphans = now.orphans || !deletes
		now.cluster, now.outcome, now.last = nil, nil, outcome
		if outcome != nil {
			if now.again {
				d.registry.enqueue(o.Name, leaveRetry)
			}
			return outcome
		}
		if now.done = deletes || o.Spec.DeletionPolicy != clusterv1alpha1.DeletionDelete; now.done {
			return nil
		}
	}
	now.running, now.again, now.cluster = true, false, o.DeepCopy()
	d.registry.mu.RLock()
	ctx := d.registry.ctx
	d.registry.mu.RUnlock()
	go d.work(ctx, now, now.cluster, do)
	return now.underWay()
}

// work waits for a slot, calls do, stores its result in now and enqueues the Cluster. If ctx ends,
// no result is stored. departures.run starts it as a goroutine.
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

// underWay returns what run returns while a part of leaving runs: the error of its last run, or an
// outcome of package reconciler (an error that becomes a condition) that the Cluster waits. The
// caller holds departures.mu.
func (now *departure) underWay() error {
	if now.last != nil {
		return now.last
	}
	return reconciler.Waiting(clusterv1alpha1.ReasonUnjoining, 0, "%s is under way", now.part)
}

// deleted reports whether every run for a Cluster whose part of leaving has succeeded had
// deletionPolicy Delete. Otherwise objects may be left: a run with Orphan takes the marks off, and
// no later run deletes objects without marks.
func (d *departures) deleted(uid types.UID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.of[uid]
	return now != nil && !now.orphans
}

// forget deletes what is recorded about the departure of the Cluster with this UID, which has left.
func (d *departures) forget(uid types.UID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.of, uid)
}
