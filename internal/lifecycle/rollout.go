package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"orrery.dev/orrery/internal/lifecycle/node"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// makeRollout orders the work on hosts in waves, with the limits and pauses of the Operation. If
// r.op is nil, as for a plan without an Operation, it uses the defaults. repairs has the hosts
// whose work only repairs components that are down. It is nil until the run has checked the control
// plane.
func (r *run) makeRollout(works []plan.Work, repairs map[string]bool) *plan.Rollout {
	o := plan.RolloutOptions{Repairs: repairs, Mute: map[string]bool{}, Joins: map[string]bool{}, Part: map[string]bool{}}
	if r.state.Applied != nil {
		for _, h := range r.state.Applied.Hosts {
			o.Part[h.Name] = true
		}
	}
	if r.op != nil {
		order := r.op.Spec.Order()
		o.MaxUnavailable, o.HaltAfter = int(order.MaxUnavailable), int(order.HaltAfter)
		if p := order.PauseBetween; p != nil {
			o.PauseBetween = p.Duration
		}
	}
	for _, w := range works {
		name := w.Host.Name
		o.Mute[name], o.Joins[name] = r.expired(name), r.joins(name)
	}
	return plan.MakeRollout(r.plan, works, o)
}

// roll performs a rollout of changes to hosts, wave by wave. A failed host does not stop the others
// until HaltAfter hosts have failed. roll returns the joined errors of the failed hosts, or the
// error that ended it. It gives the signal apiReady when an API server answers on a changed host.
func (r *run) roll(ctx context.Context, rollout *plan.Rollout, work []hostWork, apiReady *signal) error {
	failed := &failures{limit: rollout.HaltAfter, hosts: map[string]error{}}
	for i, wave := range rollout.Waves {
		if i > 0 && rollout.PauseBetween > 0 && wave.Disturbs() && rollout.Waves[i-1].Disturbs() {
			if err := r.pauseBetween(ctx, i, rollout.PauseBetween); err != nil {
				return err
			}
		}
		if err := r.rollWave(ctx, wave, work, apiReady, failed); err != nil {
			return err
		}
	}
	return failed.error()
}

// rollWave runs the tasks of a wave, at most wave.AtATime in parallel, and skips hosts that have
// failed before. A host that fails is added to failed, which is no error until the limit of failed
// hosts is reached. rollWave returns an error if no further wave may start: the limit is reached,
// the Operation is paused or canceled, or ctx has ended. Running tasks are canceled then.
func (r *run) rollWave(ctx context.Context, wave plan.Wave, work []hostWork, apiReady *signal, failed *failures) error {
	wctx, halt := context.WithCancelCause(ctx)
	defer halt(nil)
	var group errgroup.Group
	if wave.AtATime > 0 {
		group.SetLimit(wave.AtATime)
	}
	for _, t := range wave.Tasks {
		i := slices.IndexFunc(work, func(w hostWork) bool { return w.Host.Name == t.Host })
		group.Go(func() error {
			if wctx.Err() != nil || failed.has(t.Host) {
				return nil //nolint:nilerr // the reason why the wave ended is returned once, below
			}
			err := r.runTask(wctx, t, work[i], apiReady)
			switch {
			case err == nil:
				return nil
			case ctx.Err() != nil, errors.Is(err, ErrPaused), errors.Is(err, ErrCanceled):
				halt(err)
				return err
			case wctx.Err() != nil:
				return nil //nolint:nilerr // this task was canceled because another host failed
			case failed.add(t.Host, err):
				halt(failed.error())
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if wctx.Err() != nil {
		return context.Cause(wctx)
	}
	return nil
}

// failures collects the hosts that have failed in a rollout, with their errors. The rollout
// stops when limit hosts have failed. It is safe for use by several goroutines.
type failures struct {
	limit int

	mu    sync.Mutex
	hosts map[string]error
}

// add records that a host has failed with err. It reports whether the limit of failed hosts is
// reached, so that the rollout must stop.
func (f *failures) add(name string, err error) (halt bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hosts[name] = err
	return len(f.hosts) >= f.limit
}

// has reports whether the host has failed in this rollout.
func (f *failures) has(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hosts[name] != nil
}

// error returns the joined errors of the failed hosts, or nil if none has failed.
func (f *failures) error() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return errorsOf(f.hosts)
}

// pauseBetween waits for the duration d before the wave with this index, and records the pause as a
// step of the cluster. If the Operation is paused or canceled, it returns ErrPaused or ErrCanceled
// at once. The end of ctx is an error, too.
func (r *run) pauseBetween(ctx context.Context, wave int, d time.Duration) error {
	return r.rec.do(fmt.Sprintf("pause/%d", wave), func() (bool, error) {
		ctx, end := r.rec.wait(ctx)
		defer end(nil)
		select {
		case <-ctx.Done():
			return false, context.Cause(ctx)
		case <-time.After(d):
			return false, nil
		}
	})
}

// runTask performs the task of a wave on one host: it drains the node if the task has steps Before,
// runs the stages of the task, and then the steps After. If t.SafetyChecked is true, safety checks
// of the control plane run before and after all that.
func (r *run) runTask(ctx context.Context, t plan.Task, w hostWork, apiReady *signal) error {
	do := func() error {
		if len(t.Before) > 0 {
			if err := r.drained(ctx, t.Host); err != nil {
				return err
			}
		}
		if err := r.bringHost(ctx, t, w, apiReady); err != nil {
			return err
		}
		for _, s := range t.After {
			if err := r.do(ctx, s); err != nil {
				return err
			}
		}
		return nil
	}
	if !t.SafetyChecked {
		return do()
	}
	return r.withSafetyChecks(ctx, t.Host, actOf(t.Host, plan.Restarts{Etcd: t.Etcd, APIServer: t.APIServer}), do)
}

// bringHost runs the stages of a task on a host, with retries. It records the result of the host
// after an error or after the host's last task. If the Operation is paused or canceled, it stops
// between two stages and returns ErrPaused or ErrCanceled. It gives the signal apiReady after the
// control plane stage.
func (r *run) bringHost(ctx context.Context, t plan.Task, w hostWork, apiReady *signal) (err error) {
	defer func() {
		if err != nil || t.Last {
			r.rec.settle(t.Host, w.conn.trips.Load(), err)
		}
	}()
	stages := slices.DeleteFunc(slices.Clone(w.Stages), func(s plan.Stage) bool { return !slices.Contains(t.Stages, s.ID) })
	for i, stage := range stages {
		if err := r.rec.checkpoint(); err != nil {
			return err
		}
		r.rec.stage(t.Host, string(stage.ID))
		w.conn.notef("stage %s", stage.ID)
		req := node.Request{Steps: stage.Steps, Again: w.Again}
		if i == 0 {
			req.Remove = t.Remove
		}
		do := func(ctx context.Context) error { return r.request(ctx, w.conn, req) }
		if stage.ID == plan.StageEtcd && t.Joins {
			inner := do
			do = func(ctx context.Context) error { return r.joinEtcd(ctx, t.Host, inner) }
		}
		if err := r.retry(ctx, w.conn, do); err != nil {
			return err
		}
		if stage.ID == plan.StageControlPlane {
			apiReady.pass()
		}
	}
	return nil
}
