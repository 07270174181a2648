package lifecycle

import (
	"context"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/gate"
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
		return err
	}
	works, mends := make([]plan.Work, 0, len(work)), map[string]bool{}
	for _, w := range work {
		works, mends[w.Host.Name] = append(works, w.Work), w.mends
		r.changing[w.Host.Name] = true
	}
	rollout := r.makeRollout(works, mends)
	if len(work) > 0 {
		names := make([]string, 0, len(work))
		for _, w := range work {
			names = append(names, w.Host.Name)
		}
		if err := r.distribute(ctx, names); err != nil {
			return err
		}
		if err := r.takeLeases(ctx, names); err != nil { // of hosts that had no agent before
			return err
		}
		if err := r.checkPaths(ctx, work); err != nil {
			return err
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
		return err
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

// starts reports whether the work includes a stage.
func (w hostWork) starts(stage plan.StageID) bool {
	return slices.ContainsFunc(w.Stages, func(s plan.Stage) bool { return s.ID == stage })
}

// work lists the work on the hosts that were reached.
func (r *run) work() []hostWork {
	var work []hostWork
	for _, w := range plan.Works(r.plan, r.changes, r.facts) {
		if c := r.conns[w.Host.Name]; c != nil {
			work = append(work, hostWork{Work: w, conn: c, act: actOf(w.Host.Name, w.Restarts)})
		}
	}
	return work
}

// keepsAPIServer reports whether a reached control plane host keeps its API server and etcd
// unchanged.
func (r *run) keepsAPIServer(work []hostWork) bool {
	return slices.ContainsFunc(r.roles[clusterv1alpha1.RoleControlPlane], func(name string) bool {
		return r.conns[name] != nil && !slices.ContainsFunc(work, func(w hostWork) bool {
			return w.Host.Name == name && (w.starts(plan.StageEtcd) || w.starts(plan.StageControlPlane))
		})
	})
}

// joins reports whether the etcd of a host joins, or joined, an existing etcd cluster.
func (r *run) joins(name string) bool {
	b, ok := r.state.EtcdBootstrap[name]
	return ok && b.Join
}
