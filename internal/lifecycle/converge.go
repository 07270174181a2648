package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/gate"
	"orrery.dev/orrery/internal/lifecycle/node"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// latch is something that other hosts wait for.
type latch struct {
	once sync.Once
	open chan struct{}
}

func newLatch() *latch { return &latch{open: make(chan struct{})} }

func (g *latch) pass() { g.once.Do(func() { close(g.open) }) }

// converge makes every host that was reached what the plan says, and applies the objects of the cluster.
//
// Hosts do not wait for each other: each goes through its stages as fast as it can, and the last step of a stage is a
// probe that succeeds when etcd has a quorum or the API server answers. Only changes that disturb what runs are rolled
// over the hosts, control planes one by one, workers as many as the Operation allows.
func (r *run) converge(ctx context.Context) error {
	work, err := r.rehearse(ctx, r.work())
	if err != nil {
		return r.release(ctx, err)
	}
	r.nextEpoch()
	if len(work) > 0 {
		names := make([]string, 0, len(work))
		for _, w := range work {
			names = append(names, w.host.Name)
		}
		if err := r.distribute(ctx, names); err != nil {
			return r.release(ctx, err)
		}
		if err := r.checkPaths(ctx, work); err != nil {
			return r.release(ctx, err)
		}
	}
	group, gctx := errgroup.WithContext(ctx)
	apiReady := newLatch()
	if r.keepsAPIServer(work) {
		apiReady.pass() // it is there already
	}
	group.Go(func() error {
		err := r.hosts(gctx, work, apiReady)
		if err == nil {
			// When all hosts are done there is no one left to wait for.
			apiReady.pass()
		}
		return err
	})
	group.Go(func() error { return r.objects(gctx, apiReady.open) })
	if err := group.Wait(); err != nil {
		return r.release(ctx, err)
	}
	return nil
}

// hostWork is what is to be done on a host.
type hostWork struct {
	host plan.Host
	conn *connection
	// fresh hosts have nothing of ours, and unbuilt ones have never been through all their stages.
	fresh, unbuilt bool
	// stages that have something to do, and what is to be undone before.
	stages []plan.Stage
	remove []string
	worst  plan.Disruption
	// act is what it disturbs of the control plane; it mends if all of that is down.
	act   gate.Act
	mends bool
}

// disturbsControlPlane reports whether etcd or an API server restarts that was there before.
func (w hostWork) disturbsControlPlane() bool { return len(w.act.Etcd)+len(w.act.APIServers) > 0 }

// work lists the hosts that have something to do.
func (r *run) work() []hostWork {
	var work []hostWork
	for _, h := range r.plan.Hosts {
		c := r.conns[h.Name]
		if c == nil {
			continue
		}
		w := hostWork{host: h, conn: c, fresh: r.facts[h.Name].Applied.Cluster == "", worst: plan.DisruptionNone}
		w.unbuilt = unbuilt(h, r.facts[h.Name].Applied)
		changed := map[plan.StageID]bool{}
		for _, i := range r.changes.Items {
			if i.Host != h.Name {
				continue
			}
			if i.Op == plan.OpRemove {
				w.remove = append(w.remove, i.Step)
			} else {
				changed[i.Stage] = true
			}
			if i.Op != plan.OpAdd && plan.Worse(i.Disruption, w.worst) {
				w.worst = i.Disruption
			}
		}
		w.act = act(r.changes, h.Name)
		for _, s := range h.Stages {
			if changed[s.ID] {
				w.stages = append(w.stages, s)
			}
		}
		if len(w.remove) > 0 && len(w.stages) == 0 {
			w.stages = h.Stages[:1]
		}
		if len(w.stages) > 0 {
			work = append(work, w)
		}
	}
	return work
}

// keepsAPIServer reports whether a control plane was reached on which nothing is done to the API server or the etcd below it.
func (r *run) keepsAPIServer(work []hostWork) bool {
	return slices.ContainsFunc(r.roles[clusterv1alpha1.RoleControlPlane], func(name string) bool {
		return r.conns[name] != nil && !slices.ContainsFunc(work, func(w hostWork) bool {
			return w.host.Name == name && slices.ContainsFunc(w.stages, func(s plan.Stage) bool {
				return s.ID == plan.StageEtcd || s.ID == plan.StageControlPlane
			})
		})
	})
}

// unbuilt reports whether a host has a stage of which no probe ever succeeded. Nothing that runs on it is disturbed, and
// others may wait for it: members of etcd for their quorum.
func unbuilt(h plan.Host, applied plan.Applied) bool {
	passed := map[string]bool{}
	for _, s := range applied.Steps {
		passed[s.ID] = s.Complete
	}
	return slices.ContainsFunc(h.Stages, func(stage plan.Stage) bool {
		probes, ok := 0, 0
		for _, s := range stage.Steps {
			if s.Probe != nil {
				probes++
				if passed[s.ID] {
					ok++
				}
			}
		}
		return probes > 0 && ok == 0
	})
}

// nextEpoch takes an epoch that is higher than any that a host has seen.
func (r *run) nextEpoch() {
	var last int64
	for _, f := range r.facts {
		last = max(last, f.Applied.Lease.Epoch)
	}
	r.rec.set(func(s *lifecyclev1alpha1.OperationStatus) { s.Epoch = max(last, s.Epoch) + 1 })
}

// hosts brings on all hosts.
func (r *run) hosts(ctx context.Context, work []hostWork, apiReady *latch) error {
	var together, controlPlanes, workers []hostWork
	joining := newTurns()
	for _, w := range work {
		switch {
		case w.unbuilt || w.mends || !plan.Worse(w.worst, plan.DisruptionReload):
			// What mends is a member already.
			if r.joins(w.host.Name) && !w.mends && slices.ContainsFunc(w.stages, func(s plan.Stage) bool { return s.ID == plan.StageEtcd }) {
				joining.add(w.host.Name)
			}
			together = append(together, w)
		case r.has(w.host.Name, clusterv1alpha1.RoleControlPlane) || r.has(w.host.Name, clusterv1alpha1.RoleEtcd):
			controlPlanes = append(controlPlanes, w)
		default:
			workers = append(workers, w)
		}
	}
	group, gctx := errgroup.WithContext(ctx)
	for _, w := range together {
		group.Go(func() error { return r.bringHost(gctx, w, apiReady, joining) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for _, w := range controlPlanes {
		if err := r.gated(ctx, w.host.Name, w.act, func() error { return r.disturb(ctx, w, apiReady, joining) }); err != nil {
			return err
		}
	}
	group, gctx = errgroup.WithContext(ctx)
	group.SetLimit(max(1, int(r.op.Spec.MaxUnavailable)))
	for _, w := range workers {
		group.Go(func() error { return r.disturb(gctx, w, apiReady, joining) })
	}
	return group.Wait()
}

// disturb brings on a host whose pods are disturbed by it: they are moved away first, if it comes to that.
func (r *run) disturb(ctx context.Context, w hostWork, apiReady *latch, joining *turns) error {
	// Where the kubelet's certificate has ended nothing can be moved away.
	if !plan.Worse(w.worst, plan.DisruptionRestart) || len(stepsOf(w.host, plan.StageNode)) == 0 || r.expired(w.host.Name) {
		return r.bringHost(ctx, w, apiReady, joining)
	}
	cs, err := r.clientset(ctx)
	if err != nil {
		return err
	}
	if err := r.rec.do("drain/"+w.host.Name, func() (bool, error) { return true, r.drain(ctx, cs, w.host.Name) }); err != nil {
		return err
	}
	if err := r.bringHost(ctx, w, apiReady, joining); err != nil {
		return err
	}
	return r.rec.do("uncordon/"+w.host.Name, func() (bool, error) { return true, cordon(ctx, cs, w.host.Name, false) })
}

// bringHost goes through the stages of a host.
func (r *run) bringHost(ctx context.Context, w hostWork, apiReady *latch, joining *turns) (err error) {
	defer func() { r.rec.settle(w.host.Name, w.conn.trips.Load(), err) }()
	defer joining.done(w.host.Name, false)
	for i, stage := range w.stages {
		if err := r.rec.checkpoint(); err != nil {
			return err
		}
		r.rec.stage(w.host.Name, string(stage.ID))
		w.conn.notef("stage %s", stage.ID)
		req := node.Request{Steps: stage.Steps, Release: i == len(w.stages)-1}
		if i == 0 {
			req.Remove = w.remove
		}
		do := func(ctx context.Context) error { return r.request(ctx, w.conn, req) }
		if stage.ID == plan.StageEtcd && r.joins(w.host.Name) {
			if err := joining.wait(ctx, w.host.Name); err != nil {
				return err
			}
			inner := do
			do = func(ctx context.Context) error { return r.joinEtcd(ctx, w.host.Name, inner) }
		}
		if err := r.retry(ctx, w.conn, do); err != nil {
			return err
		}
		switch stage.ID {
		case plan.StageEtcd:
			joining.done(w.host.Name, true)
		case plan.StageControlPlane:
			apiReady.pass()
		case plan.StageSystem, plan.StageNode, plan.StageCertificates:
		}
	}
	return nil
}

// joins reports whether the etcd of a host joined, or joins, one that is there already.
func (r *run) joins(name string) bool {
	b, ok := r.state.EtcdBootstrap[name]
	return ok && b.Join
}

// turns lets the members of etcd join one after the other: each is told the members that were there before it.
type turns struct {
	names []string
	gates map[string]*latch
	mu    sync.Mutex
	ok    map[string]bool
}

func newTurns() *turns { return &turns{gates: map[string]*latch{}, ok: map[string]bool{}} }

func (t *turns) add(name string) {
	t.names = append(t.names, name)
	t.gates[name] = newLatch()
}

// wait waits until all hosts before have had their turn. A host that has none waits for nobody.
func (t *turns) wait(ctx context.Context, name string) error {
	if t.gates[name] == nil {
		return nil
	}
	for _, before := range t.names {
		if before == name {
			return nil
		}
		select {
		case <-t.gates[before].open:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		t.mu.Lock()
		ok := t.ok[before]
		t.mu.Unlock()
		if !ok {
			return fmt.Errorf("host %s: the etcd of host %s has to join first, and did not", name, before)
		}
	}
	return nil
}

// done ends the turn of a host.
func (t *turns) done(name string, ok bool) {
	g := t.gates[name]
	if g == nil {
		return
	}
	t.mu.Lock()
	t.ok[name] = t.ok[name] || ok
	t.mu.Unlock()
	g.pass()
}

// release gives up the leases after a failure, as well as it can, so that another run need not wait for their end.
func (r *run) release(ctx context.Context, failed error) error {
	if errors.Is(failed, ErrPaused) || errors.Is(failed, context.Canceled) {
		return failed // the run is to go on, and nothing else before it
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
