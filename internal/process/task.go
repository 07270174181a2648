package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

const (
	minBackoff = 100 * time.Millisecond
	maxBackoff = 10 * time.Second
	// stableAfter is how long a process must run for the backoff to start again at minBackoff.
	stableAfter = 30 * time.Second
	// startAttempts is how often a process may end before it is ready for the first time. Then it
	// counts as failed, and the plan ends with an error.
	startAttempts = 5
)

// task keeps one process running.
type task struct {
	Process
	s         *Supervisor
	after     []*task       // must be ready first
	before    []*task       // must be stopped first
	stopShare time.Duration // part of the stop budget, counted from its start

	start   chan struct{} // closed when it may start
	stopped chan struct{} // closed when it will not run again

	// Guarded by the supervisor's mu.
	launched bool // may start
	spawned  bool // was started once
	wasReady bool
	status   Status
}

func newTask(s *Supervisor, p Process) *task {
	t := &task{
		Process: p,
		s:       s,
		start:   make(chan struct{}),
		stopped: make(chan struct{}),
	}
	t.status = Status{Name: p.Name, State: StateWaiting, Since: time.Now(), Log: t.logPath()}
	return t
}

func (t *task) logPath() string { return filepath.Join(t.s.opts.Dir, t.Name+".log") }
func (t *task) pidPath() string { return filepath.Join(t.s.opts.Dir, t.Name+".pid") }

// run starts the process when its start channel is closed, and respawns it until ctx ends. Then it
// stops the process after its dependents. stop returns when stopping began. The error says why the
// process cannot be started or stopped.
func (t *task) run(ctx context.Context, stop func() time.Time) error {
	defer close(t.stopped)
	defer t.enter(StateStopped, 0)
	select {
	case <-ctx.Done():
		return nil
	case <-t.start:
	}
	backoff, failures := minBackoff, 0
	for ctx.Err() == nil {
		began := time.Now()
		exit, err := t.runOnce(ctx, stop)
		if err != nil || exit == nil { // a nil exit means that it was stopped
			return err
		}
		t.noteExit(exit)
		if ctx.Err() != nil {
			return nil
		}
		if failures++; failures >= startAttempts && !t.everReady() {
			return fmt.Errorf("start %s: ended %d times before it was ready: %w; the end of %s:\n%s",
				t.Name, failures, exit, t.logPath(), logTail(t.logPath()))
		}
		if time.Since(began) >= stableAfter {
			backoff = minBackoff
		}
		t.enter(StateBackoff, 0)
		t.event(EventExited, 0, fmt.Sprintf("%v; starts again in %v", exit, backoff))
		select {
		case <-ctx.Done():
		case <-time.After(backoff):
		}
		backoff = min(2*backoff, maxBackoff)
	}
	return nil
}

// runOnce starts the process and returns when it has ended. exit says how it ended, and is nil if
// it was stopped. err says why it cannot be stopped, or is the error of Options.Gate.
func (t *task) runOnce(ctx context.Context, stop func() time.Time) (exit, err error) {
	c, exit := t.spawn()
	if exit != nil {
		return exit, nil
	}
	t.started(c)

	var probe sync.WaitGroup
	defer probe.Wait()
	probing, cancel := context.WithCancel(ctx)
	defer cancel()
	ready := make(chan struct{})
	if t.Ready == nil {
		t.becomeReady(c)
	} else {
		probe.Go(func() {
			if t.await(probing, t.s.thread, func(err error) { t.slow(c, err) }) == nil {
				close(ready)
			}
		})
	}
	for {
		select {
		case <-c.done:
			t.removePidfile()
			return c.exit(), nil
		case <-ready:
			ready = nil
			if gate := t.s.opts.Gate; gate != nil && !t.everReady() {
				if err := gate(ctx, t.Name); err != nil {
					return nil, errors.Join(err, t.end(c, stop().Add(t.stopShare)))
				}
			}
			t.becomeReady(c)
		case <-ctx.Done():
			for _, dependent := range t.before {
				<-dependent.stopped
			}
			return nil, t.end(c, stop().Add(t.stopShare))
		}
	}
}

// spawn starts the process. After an error no process runs.
func (t *task) spawn() (*child, error) {
	for _, f := range t.Files {
		mode := os.FileMode(f.Mode)
		if mode == 0 {
			mode = 0o600
		}
		if err := writeFile(f.Path, mode, f.Content); err != nil {
			return nil, fmt.Errorf("write file of the process: %w", err)
		}
	}
	if t.Ready != nil && t.Ready.File != nil {
		if err := os.Remove(t.Ready.File.Path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("remove readiness file: %w", err)
		}
	}
	log, err := openLog(t.logPath(), t.Name)
	if err != nil {
		return nil, err
	}
	c, err := t.s.thread.start(t.command(t.Command, log), t.KillMode)
	if err := errors.Join(err, log.Close()); err != nil {
		return nil, err
	}
	if err := writePidfile(t.pidPath(), c.pid, t.KillMode); err != nil {
		return nil, errors.Join(err, c.stop(time.Now()))
	}
	return c, nil
}

// end stops the process and records its end.
func (t *task) end(c *child, deadline time.Time) error {
	if err := c.stop(deadline); err != nil {
		return fmt.Errorf("stop %s: %w", t.Name, err)
	}
	t.removePidfile()
	t.noteExit(c.exit())
	t.event(EventStopped, c.pid, c.exit().Error())
	return nil
}

func (t *task) removePidfile() {
	if err := os.Remove(t.pidPath()); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.s.opts.Log.Error(err, "Pidfile not removed", "process", t.Name)
	}
}

func (t *task) started(c *child) {
	t.s.mu.Lock()
	if t.spawned {
		t.status.Restarts++
	}
	t.spawned = true
	t.s.mu.Unlock()
	t.enter(StateStarting, c.pid)
	t.event(EventStarted, c.pid, "")
}

// becomeReady records that the process is ready. The first time, it starts the processes that
// waited for it.
func (t *task) becomeReady(c *child) {
	t.enter(StateReady, c.pid)
	t.event(EventReady, c.pid, "")
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	if !t.wasReady {
		t.wasReady = true
		t.s.starting--
		t.s.unready--
		t.s.schedule()
	}
}

func (t *task) slow(c *child, probe error) {
	t.event(EventSlow, c.pid, fmt.Sprintf("not ready: %v; the end of %s:\n%s", probe, t.logPath(), logTail(t.logPath())))
}

func (t *task) everReady() bool {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	return t.wasReady
}

func (t *task) noteExit(exit error) {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	t.status.LastExit = exit.Error()
}

func (t *task) enter(state State, pid int) {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	t.status.State, t.status.PID, t.status.Since = state, pid, time.Now()
}

func (t *task) event(what EventType, pid int, message string) {
	t.s.event(Event{Process: t.Name, Type: what, PID: pid, Message: message})
}
