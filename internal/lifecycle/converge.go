package lifecycle

import (
	"context"
	"errors"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/gate"
	"orrery.dev/orrery/internal/lifecycle/node"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// latch is a signal that is given once. Others wait until open is closed.
type latch struct {
	once sync.Once
	open chan struct{}
}

func newLatch() *latch { return &latch{open: make(chan struct{})} }

func (g *latch) pass() { g.once.Do(func() { close(g.open) }) }

// converge changes every reached host to match the plan, and applies the objects of the cluster.
//
// The hosts are changed in the waves of a rollout. Hosts of one wave do not wait for each other.
// A stage ends with probes, which succeed when etcd has a quorum or the API server answers.
func (r *run) converge(ctx context.Context) error {
	work, err := r.rehearse(ctx, r.work())
	if err != nil {
		return r.release(ctx, err)
	}
	works, mends := make([]plan.Work, 0, len(work)), map[string]bool{}
	for _, w := range work {
		works, mends[w.Host.Name] = append(works, w.Work), w.mends
		r.changing[w.Host.Name] = true
	}
	rollout := r.makeRollout(works, mends)
	r.nextEpoch()
	if len(work) > 0 {
		names := make([]string, 0, len(work))
		for _, w := range work {
			names = append(names, w.Host.Name)
		}
		if err := r.distribute(ctx, names); err != nil {
			return r.release(ctx, err)
		}
		if err := r.checkPaths(ctx, work); err != nil {
			return r.release(ctx, err)
		}
	}
	group, gctx := errgroup.WithContext(ctx)
	apiReady, rolled := newLatch(), newLatch()
	if r.keepsAPIServer(work) {
		apiReady.pass() // an unchanged API server is running
	}
	group.Go(func() error {
		err := r.roll(gctx, rollout, work, apiReady)
		if err == nil {
			// All hosts are done, so nothing can signal that an API server is ready any more.
			apiReady.pass()
			rolled.pass()
		}
		return err
	})
	group.Go(func() error { return r.objects(gctx, apiReady.open, rolled.open) })
	if err := interrupted(ctx, group.Wait()); err != nil {
		return r.release(ctx, err)
	}
	return r.uncordonLeft(ctx)
}

// hostWork is the work on a host.
type hostWork struct {
	plan.Work

	conn *connection
	// act is what the work disturbs of the control plane. mends is true if all of that is down, so
	// that the work only repairs it.
	act   gate.Act
	mends bool
}

// disturbsControlPlane reports whether the work restarts an existing etcd or API server.
func (w hostWork) disturbsControlPlane() bool { return len(w.act.Etcd)+len(w.act.APIServers) > 0 }

// work lists the work on the hosts that were reached.
func (r *run) work() []hostWork {
	var work []hostWork
	for _, w := range plan.Works(r.plan, r.changes, r.facts) {
		if c := r.conns[w.Host.Name]; c != nil {
			work = append(work, hostWork{Work: w, conn: c, act: act(r.changes, w.Host.Name)})
		}
	}
	return work
}

// keepsAPIServer reports whether a reached control plane host keeps its API server and etcd
// unchanged.
func (r *run) keepsAPIServer(work []hostWork) bool {
	return slices.ContainsFunc(r.roles[clusterv1alpha1.RoleControlPlane], func(name string) bool {
		return r.conns[name] != nil && !slices.ContainsFunc(work, func(w hostWork) bool {
			return w.Host.Name == name && slices.ContainsFunc(w.Stages, func(s plan.Stage) bool {
				return s.ID == plan.StageEtcd || s.ID == plan.StageControlPlane
			})
		})
	})
}

// nextEpoch sets an epoch that is higher than those that the hosts have recorded.
func (r *run) nextEpoch() {
	var last int64
	for _, f := range r.facts {
		last = max(last, f.Applied.Lease.Epoch)
	}
	r.rec.set(func(s *lifecyclev1alpha1.OperationStatus) { s.Epoch = max(last, s.Epoch) + 1 })
}

// joins reports whether the etcd of a host joins, or joined, an existing etcd cluster.
func (r *run) joins(name string) bool {
	b, ok := r.state.EtcdBootstrap[name]
	return ok && b.Join
}

// release gives up the leases after a failure, so that another run need not wait until they expire.
// It ignores errors of hosts and returns failed. A paused or interrupted run keeps its leases.
func (r *run) release(ctx context.Context, failed error) error {
	if errors.Is(failed, ErrPaused) || errors.Is(failed, context.Canceled) {
		return failed // the run is to resume before any other run
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaseTime/8)
	defer cancel()
	group, gctx := errgroup.WithContext(ctx)
	for _, name := range sortedKeys(r.conns) {
		c := r.conns[name]
		if !c.leased.Load() {
			continue
		}
		group.Go(func() error {
			if err := r.request(gctx, c, node.Request{Release: true}); err != nil {
				c.notef("give up the lease: %v", err)
			}
			return nil
		})
	}
	_ = group.Wait() // it returns none
	return failed
}
