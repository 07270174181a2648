package unit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"

	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/process"
)

// retryInterval is how long a unit rests that could not be started at all, as a rule for want of its executable.
const retryInterval = 10 * time.Second

// keeper keeps one unit running until it is stopped.
type keeper struct {
	unit   plan.Unit
	dir    string // of its log and its pidfile
	log    logr.Logger
	cancel context.CancelFunc
	failed chan struct{} // closed when it could not be started for the first time
	done   chan struct{} // closed when it will not run again
	err    error         // why it could not be stopped; to be read when done is closed

	mu       sync.Mutex // guards the following
	current  *process.Supervisor
	failure  error // why current ended
	restarts int   // by those before current
}

// keep starts to keep the unit running, with its log and its pidfile in dir. It is stopped by stop, not by ctx, because
// units are stopped in their order.
func keep(ctx context.Context, u plan.Unit, dir string, log logr.Logger) (*keeper, error) {
	if err := raiseFileLimit(u.LimitNOFILE); err != nil {
		log.Error(err, "Unit gets fewer open files than it asks for", "unit", u.Name)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	k := &keeper{unit: u, dir: dir, log: log, cancel: cancel, failed: make(chan struct{}), done: make(chan struct{})}
	if err := k.renew(); err != nil {
		cancel()
		return nil, err
	}
	go k.run(ctx)
	return k, nil
}

// renew makes a new supervisor of the unit's process, since each runs once.
func (k *keeper) renew() error {
	p := process.Process{Name: k.unit.Name, Command: k.unit.Command, Env: k.unit.Env}
	if k.unit.KillMode == "process" {
		p.KillMode = process.KillModeProcess
	}
	s, err := process.New(process.Plan{Name: k.unit.Name, Processes: []process.Process{p}}, process.Options{Dir: k.dir, Log: k.log})
	if err != nil {
		return fmt.Errorf("start unit %s: %w", k.unit.Name, err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.current != nil {
		k.restarts += k.current.Status()[0].Restarts + 1
	}
	k.current, k.failure = s, nil
	return nil
}

func (k *keeper) run(ctx context.Context) {
	defer close(k.done)
	for {
		err := k.current.Run(ctx)
		if ctx.Err() != nil {
			k.err = err
			return
		}
		k.log.Error(err, "Unit not started", "unit", k.unit.Name, "next", retryInterval)
		k.mu.Lock()
		k.failure = err
		if k.restarts == 0 {
			close(k.failed)
		}
		k.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-time.After(retryInterval):
		}
		if err := k.renew(); err != nil { // it was made once
			k.err = err
			return
		}
	}
}

// started waits until the unit was started, or could not be.
func (k *keeper) started(ctx context.Context) error {
	k.mu.Lock()
	first := k.current
	k.mu.Unlock()
	select {
	case <-first.Ready():
		return nil
	case <-k.failed:
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.failure
	case <-k.done:
		return errors.New("it was stopped")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// stop ends the unit and returns when it has ended.
func (k *keeper) stop() error {
	k.cancel()
	<-k.done
	return k.err
}

// signal signals the main process.
func (k *keeper) signal(sig syscall.Signal) error {
	pid := k.status().PID
	if pid == 0 {
		return errors.New("it does not run")
	}
	if err := syscall.Kill(pid, sig); err != nil {
		return fmt.Errorf("signal PID %d: %w", pid, err)
	}
	return nil
}

func (k *keeper) status() Status {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.current.Status()[0]
	s := Status{Running: now.PID > 0, PID: now.PID, Restarts: k.restarts + now.Restarts}
	switch {
	case s.Running:
	case k.failure != nil:
		s.Detail = k.failure.Error()
	case now.LastExit != "":
		s.Detail = "it ended: " + now.LastExit
	default:
		s.Detail = "it is about to be started"
	}
	return s
}

// raiseFileLimit raises the limit of open files, which processes inherit, to limit at least.
func raiseFileLimit(limit int64) error {
	var now syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &now); err != nil {
		return fmt.Errorf("read limit of open files: %w", err)
	}
	want := now
	want.Cur = max(now.Cur, uint64(max(limit, 0)))
	want.Max = max(now.Max, want.Cur)
	err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &want)
	if err != nil { // only who has CAP_SYS_RESOURCE raises the maximum
		want.Cur, want.Max = now.Max, now.Max
		err = errors.Join(err, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &want))
	}
	if err != nil {
		return fmt.Errorf("raise limit of open files to %d: %w", limit, err)
	}
	return nil
}
