package lifecycle

import (
	"context"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/lifecycle/safety"
)

// signal is an event that happens once. pass closes the channel open, on which other goroutines
// wait.
type signal struct {
	once sync.Once
	open chan struct{}
}

// newSignal returns a signal that has not been given.
func newSignal() *signal { return &signal{open: make(chan struct{})} }

// pass gives the signal: it closes g.open. Further calls do nothing. It may be called from several
// goroutines.
func (g *signal) pass() { g.once.Do(func() { close(g.open) }) }

// converge carries out the plan of a run: it changes every reached host, and applies the objects of
// the cluster. At the end it uncordons nodes that this run or an earlier one has left cordoned. If
// the safety checks refuse the work, or new hosts cannot reach each other, it returns an error
// before it changes a host.
//
// The hosts are changed in the waves of a rollout, one wave after another. Hosts of one wave do not
// wait for each other, except at the probes that end a stage. A probe succeeds when etcd has a
// quorum or the API server answers.
func (r *run) converge(ctx context.Context) error {
	work, err := r.rehearse(ctx, r.work())
	if err != nil {
		return err
	}
	works, repairs := make([]plan.Work, 0, len(work)), map[string]bool{}
	for _, w := range work {
		works, repairs[w.Host.Name] = append(works, w.Work), w.repairs
		r.changing[w.Host.Name] = true
	}
	rollout := r.makeRollout(works, repairs)
	if len(work) > 0 {
		names := make([]string, 0, len(work))
		for _, w := range work {
			names = append(names, w.Host.Name)
		}
		if err := r.distribute(ctx, names); err != nil {
			return err
		}
		if err := r.takeLeases(ctx, names); err != nil { // only now do new hosts have an agent
			return err
		}
		if err := r.checkPaths(ctx, work); err != nil {
			return err
		}
	}
	group, gctx := errgroup.WithContext(ctx)
	apiReady, rolled := newSignal(), newSignal()
	if r.keepsAPIServer(work) {
		apiReady.pass() // an API server runs that the work does not change
	}
	group.Go(func() error {
		err := r.roll(gctx, rollout, work, apiReady)
		if err == nil {
			// All hosts are done, so no host can report a ready API server any more.
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

// hostWork is what a run has to do on one host that was reached, with the connection to the host.
type hostWork struct {
	plan.Work

	conn *connection
	// act lists the etcd member and the API server that the work restarts. repairs is true if all of
	// these are down, so that the work only repairs them.
	act     safety.Act
	repairs bool
}

// starts reports whether the work on the host includes the given stage, such as plan.StageEtcd.
func (w hostWork) starts(stage plan.StageID) bool {
	return slices.ContainsFunc(w.Stages, func(s plan.Stage) bool { return s.ID == stage })
}

// work returns the work on each reached host that has something to change. repairs is false in all
// elements, and rehearse sets it later.
func (r *run) work() []hostWork {
	var work []hostWork
	for _, w := range plan.Works(r.plan, r.changes, r.facts) {
		if c := r.conns[w.Host.Name]; c != nil {
			work = append(work, hostWork{Work: w, conn: c, act: actOf(w.Host.Name, w.Restarts)})
		}
	}
	return work
}

// keepsAPIServer reports whether the work leaves etcd and the API server of some reached control
// plane host unchanged. An API server then runs already, so objects can be applied at once.
func (r *run) keepsAPIServer(work []hostWork) bool {
	return slices.ContainsFunc(r.roles[clusterv1alpha1.RoleControlPlane], func(name string) bool {
		return r.conns[name] != nil && !slices.ContainsFunc(work, func(w hostWork) bool {
			return w.Host.Name == name && (w.starts(plan.StageEtcd) || w.starts(plan.StageControlPlane))
		})
	})
}

// joins reports whether the etcd of a host joined, or is to join, an existing etcd cluster instead
// of starting a new one. It is false if r.state does not say how the etcd of the host starts.
func (r *run) joins(name string) bool {
	b, ok := r.state.EtcdBootstrap[name]
	return ok && b.Join
}
