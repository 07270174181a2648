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
	// leaseTime is how long the lease of a host lasts after it was taken or extended. A lease is the
	// right of one run to change a host. The agent on the host grants it.
	leaseTime = 2 * time.Minute
	// extendEvery is the interval at which a run extends its leases.
	extendEvery = leaseTime / 4
	// releaseTime bounds how long a run tries to give up its leases at its end.
	releaseTime = leaseTime / 8
)

// leaseKeeper extends the leases of a run in the background, until stop. keepLeases makes it.
type leaseKeeper struct {
	cancel context.CancelFunc
	ended  sync.WaitGroup
}

// stop ends the extensions of leases, and waits for those that are under way. It may be called
// several times.
func (k *leaseKeeper) stop() {
	k.cancel()
	k.ended.Wait()
}

// takeLeases takes the leases of hosts before the run changes the first of them. With a lease, the
// host refuses changes of other runs. takeLeases returns an error if another run has one of the
// leases. Its first call in a run sets the epoch of the run, and starts to extend all leases of the
// run until release.
//
// names are the hosts that the run changes. guarded are further hosts that must not change
// meanwhile. A guarded host that cannot grant a lease, for example because its disk is full, does
// not stop the run.
//
// Some hosts are skipped: those that were not reached, and those that have granted a lease to this
// run already. Hosts whose agent does not understand this Orrery are skipped, too. The first
// request that changes them takes the lease. The lease of the first host is taken before all
// others, so only one of two runs that begin at the same moment continues.
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

// leasable reports whether the agent on a host understands the requests of this Orrery. That is
// true for the agent of this version, and for any agent with the same protocol. It is false for a
// host without an agent. It takes c.brings.
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

// takeLeasesFor takes the leases for the work of a run: those of the hosts with work, and of the
// hosts in leaving, which are removed. It also takes those of all other control plane and etcd
// hosts, so that two runs cannot restart different members of etcd at once. If no host is changed,
// it takes no lease. It returns an error if another run has one of the leases.
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

// keepLeases starts to extend the leases of the run, every extendEvery, and returns the leaseKeeper
// that stops that. The end of ctx does not stop the extensions.
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

// extend extends the lease of a host, if the run has the lease. It does nothing while c.extends is
// held, because another extension, or the removal of everything on the host, is under way. Errors
// are only logged.
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
		// The error is only logged. If another run has taken the lease, the next request of this run
		// fails.
		c.notef("extend the lease: %v", err)
	}
}

// lease returns the lease that a request of this run carries. It names the Operation and its epoch,
// and expires leaseTime from now. It takes r.rec.mu.
func (r *run) lease() plan.Lease {
	r.rec.mu.Lock()
	epoch := r.op.Status.Epoch
	r.rec.mu.Unlock()
	return plan.Lease{Operation: r.op.Name, RunID: string(r.op.UID), Holder: r.Holder, Epoch: epoch, Expires: time.Now().Add(leaseTime)}
}

// nextEpoch sets the epoch of this attempt in the status of the Operation. The epoch is a number
// with which hosts refuse requests of earlier runs. It is higher than the present one in the
// status, and than those that the reached hosts have recorded.
func (r *run) nextEpoch() {
	var last int64
	for _, f := range r.facts {
		last = max(last, f.Applied.Lease.Epoch)
	}
	r.rec.set(func(s *lifecyclev1alpha1.OperationStatus) { s.Epoch = max(last, s.Epoch) + 1 })
}

// release gives up the leases at the end of a run, so that another run need not wait until they
// expire. failed is the error of the run, or nil, and release returns it. A paused or interrupted
// run keeps its leases until they expire, because it should resume before any other run starts. In
// both cases, release ends the extension of leases. Errors of hosts are only logged.
func (r *run) release(ctx context.Context, failed error) error {
	if r.keeper == nil {
		return failed
	}
	r.keeper.stop()
	failed = r.rec.asked(failed)
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
	_ = group.Wait() // no goroutine returns an error
	return failed
}
