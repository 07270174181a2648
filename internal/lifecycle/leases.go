package lifecycle

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/node"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

const (
	// leaseTime is how long the lease of a host lasts after it was taken or extended.
	leaseTime = 2 * time.Minute
	// extendEvery is the interval between extensions of all leases of a run.
	extendEvery = leaseTime / 4
	// releaseTime bounds how long the release of all leases takes.
	releaseTime = leaseTime / 8
)

// leaseKeeper extends the leases of a run.
type leaseKeeper struct {
	cancel context.CancelFunc
	ended  sync.WaitGroup
}

// stop ends the extensions. No extension is under way when it returns.
func (k *leaseKeeper) stop() {
	k.cancel()
	k.ended.Wait()
}

// takeLeases takes the leases of hosts before the run changes one of them, and extends all leases
// of the run until release. It returns an error if another run has one of the leases.
//
// The run changes the hosts in names and leaves the hosts in guarded as they are. A guarded host
// that cannot take a lease, because its disk is full for example, does not stop the run.
//
// Hosts that were not reached and hosts that have a lease of this run are skipped. So are hosts
// without an agent that understands the request: each request takes the lease, so the first one
// does. The lease of the first host is taken before all others. Of two runs that begin at the same
// moment, only one therefore continues.
func (r *run) takeLeases(ctx context.Context, names []string, guarded ...string) error {
	if r.keeper == nil {
		r.nextEpoch()
		r.keeper = r.keepLeases(ctx)
	}
	var free []*connection
	for _, name := range slices.Compact(slices.Sorted(slices.Values(slices.Concat(names, guarded)))) {
		if c := r.conns[name]; c != nil && !c.leased.Load() && r.leasable(c) {
			free = append(free, c)
		}
	}
	if len(free) == 0 {
		return nil
	}
	take := func(ctx context.Context, c *connection) error {
		err := r.retry(ctx, c, func(ctx context.Context) error { return r.send(ctx, c, node.Request{}) })
		if step, _ := errors.AsType[*StepError](err); err == nil || ctx.Err() != nil || slices.Contains(names, c.name) || step != nil && step.held {
			return err
		}
		c.notef("no lease of a host that the run does not change: %v", err)
		return nil
	}
	if err := take(ctx, free[0]); err != nil {
		return err
	}
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(maxDials)
	for _, c := range free[1:] {
		group.Go(func() error { return take(gctx, c) })
	}
	return group.Wait()
}

// leasable reports whether the agent on a host understands a request of this run.
func (r *run) leasable(c *connection) bool {
	c.brings.Lock()
	installed := c.agent
	c.brings.Unlock()
	if a, err := r.agent(c.arch); err == nil && installed == a.digest {
		return true
	}
	f := r.facts[c.name]
	return installed != "" && f.AgentError == "" && f.Applied.Protocol == node.Protocol
}

// takeLeasesFor takes the leases that some work needs: those of its hosts, of the hosts that leave,
// and of all hosts of the control plane. Two runs that restart different members of etcd could cost
// it its quorum. It takes none if no host is changed.
func (r *run) takeLeasesFor(ctx context.Context, works []plan.Work, leaving ...string) error {
	names := slices.Clone(leaving)
	for _, w := range works {
		names = append(names, w.Host.Name)
	}
	if len(names) == 0 {
		return nil
	}
	return r.takeLeases(ctx, names, slices.Concat(r.roles[clusterv1alpha1.RoleControlPlane], r.roles[clusterv1alpha1.RoleEtcd])...)
}

// keepLeases extends the leases of the run until the keeper is stopped.
func (r *run) keepLeases(ctx context.Context) *leaseKeeper {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	k := &leaseKeeper{cancel: cancel}
	k.ended.Go(func() {
		tick := time.NewTicker(extendEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			for _, c := range r.conns {
				k.ended.Go(func() { r.extend(ctx, c) })
			}
		}
	})
	return k
}

// extend extends the lease of a host, if the run has it. A request that releases the lease excludes
// extensions, and so does an extension that is under way.
func (r *run) extend(ctx context.Context, c *connection) {
	if !c.extends.TryLock() {
		return
	}
	defer c.extends.Unlock()
	if !c.leased.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, extendEvery)
	defer cancel()
	if err := r.send(ctx, c, node.Request{}); err != nil {
		// The next request of the run reports a lease that another run has taken.
		c.notef("extend the lease: %v", err)
	}
}

// lease returns the lease for a request.
func (r *run) lease() plan.Lease {
	r.rec.mu.Lock()
	epoch := r.op.Status.Epoch
	r.rec.mu.Unlock()
	return plan.Lease{Operation: r.op.Name, RunID: string(r.op.UID), Holder: r.Holder, Epoch: epoch, Expires: time.Now().Add(leaseTime)}
}

// nextEpoch sets an epoch that is higher than those that the hosts have recorded.
func (r *run) nextEpoch() {
	var last int64
	for _, f := range r.facts {
		last = max(last, f.Applied.Lease.Epoch)
	}
	r.rec.set(func(s *lifecyclev1alpha1.OperationStatus) { s.Epoch = max(last, s.Epoch) + 1 })
}

// release gives up the leases at the end of a run, so that another run need not wait until they
// expire. It ignores errors of hosts and returns the error of the run. A paused or interrupted run
// keeps its leases until they expire, because it is to resume before any other run.
func (r *run) release(ctx context.Context, failed error) error {
	if r.keeper == nil {
		return failed
	}
	r.keeper.stop()
	if errors.Is(failed, ErrPaused) || errors.Is(failed, context.Canceled) {
		return failed
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
	defer cancel()
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(maxDials)
	for _, name := range sortedKeys(r.conns) {
		c := r.conns[name]
		if !c.leased.Load() {
			continue
		}
		group.Go(func() error {
			if err := r.send(gctx, c, node.Request{Release: true}); err != nil {
				c.notef("give up the lease: %v", err)
			}
			return nil
		})
	}
	_ = group.Wait() // it returns none
	return failed
}
