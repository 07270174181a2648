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

// Times and limits of restarts. The pause before a restart doubles from minBackoff to maxBackoff.
const (
	minBackoff = 100 * time.Millisecond
	maxBackoff = 10 * time.Second
	// stableAfter is how long a process must run until the next pause begins at minBackoff again.
	stableAfter = 30 * time.Second
	// startAttempts is how often a process may end before it is ready for the first time. At that
	// number, the plan ends with an error.
	startAttempts = 5
)

// task keeps one process of a plan running. It has the state of the process.
type task struct {
	Process
	s         *Supervisor
	after     []*task       // must be ready before this process starts
	before    []*task       // must be stopped before this process is stopped
	stopShare time.Duration // time from the begin of stopping until this process is killed

	start   chan struct{} // closed when the process may start
	stopped chan struct{} // closed when the process will not run again

	// Guarded by the supervisor's mu.
	launched bool // the process may start
	spawned  bool // the process was started once
	wasReady bool
	status   Status
}

// newTask returns the task of a process of s. It starts nothing.
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

// logPath returns the path of the log of the process.
func (t *task) logPath() string { return filepath.Join(t.s.opts.Dir, t.Name+".log") }

// pidPath returns the path of the pidfile of the process.
func (t *task) pidPath() string { return filepath.Join(t.s.opts.Dir, t.Name+".pid") }

// run starts the process when t.start is closed, and respawns it until ctx ends. Then it stops the
// process after its dependents, and returns nil. stop returns when the plan began to stop, which
// its first call decides. run returns an error if the process ended startAttempts times before it
// was ready, if it cannot be stopped, or if Options.OnFirstReady failed. In all cases it closes
// t.stopped and sets StateStopped. Supervisor.Run starts it as a goroutine.
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
		if err != nil || exit == nil { // a nil exit means that the supervisor stopped the process
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

// runOnce starts the process and returns when it has ended. It records the start and the readiness
// of the process, and starts its dependents. exit says how the process ended, or why it could not
// be started. exit is nil if the supervisor stopped the process: ctx ended, or Options.OnFirstReady
// failed. err is the error of Options.OnFirstReady, or says why the process cannot be stopped. stop
// returns when the plan began to stop, which its first call decides; t.stopShare counts from then.
func (t *task) runOnce(ctx context.Context, stop func() time.Time) (exit, err error) {
	c, exit, err := t.spawn()
	if exit != nil || err != nil {
		return exit, err
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
			if onFirstReady := t.s.opts.OnFirstReady; onFirstReady != nil && !t.everReady() {
				if err := onFirstReady(ctx, t.Name); err != nil {
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

// spawn starts the process. Before that it writes the files of the process, removes its readiness
// file and opens its log; after that it writes the pidfile. exit says why the process could not be
// started; it does not run then. err says that the process runs and cannot be stopped, although one
// of these steps failed: the process must not be started again.
func (t *task) spawn() (c *child, exit, err error) {
	for _, f := range t.Files {
		mode := os.FileMode(f.Mode)
		if mode == 0 {
			mode = 0o600
		}
		if err := writeFile(f.Path, mode, f.Content); err != nil {
			return nil, fmt.Errorf("write file of the process: %w", err), nil
		}
	}
	if t.Ready != nil && t.Ready.File != nil {
		if err := os.Remove(t.Ready.File.Path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("remove readiness file: %w", err), nil
		}
	}
	log, exit := openLog(t.logPath(), t.Name)
	if exit != nil {
		return nil, exit, nil
	}
	c, exit = t.s.thread.start(t.command(t.Command, log), t.KillMode)
	closed := log.Close()
	if exit != nil {
		return nil, errors.Join(exit, closed), nil
	}
	if exit = closed; exit == nil {
		exit = writePidfile(t.pidPath(), c.pid, t.KillMode)
	}
	if exit != nil {
		exit, err = t.discard(c, exit)
		return nil, exit, err
	}
	return c, nil, nil
}

// discard stops the process c, which was just started and cannot be kept for the reason why. exit
// is why if the process has ended. Otherwise err says that the process still runs.
func (t *task) discard(c *child, why error) (exit, err error) {
	if err := c.stop(time.Now()); err != nil {
		return nil, fmt.Errorf("stop %s: %w", t.Name, errors.Join(err, why))
	}
	t.removePidfile()
	return why, nil
}

// end stops the process c, which is killed at the deadline. It waits for the end of the process,
// and records it in the status and as an event. It is an error if the process still runs after
// SIGKILL.
func (t *task) end(c *child, deadline time.Time) error {
	if err := c.stop(deadline); err != nil {
		return fmt.Errorf("stop %s: %w", t.Name, err)
	}
	t.removePidfile()
	t.noteExit(c.exit())
	t.event(EventStopped, c.pid, c.exit().Error())
	return nil
}

// removePidfile removes the pidfile of the process. A failure is only logged.
func (t *task) removePidfile() {
	if err := os.Remove(t.pidPath()); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.s.opts.Log.Error(err, "Pidfile not removed", "process", t.Name)
	}
}

// started records that the process has started as c, with its PID. It counts a restart unless this
// is the first start.
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

// becomeReady records that the process is ready. When the process is ready for the first time,
// becomeReady starts the processes that waited for it. The caller must not hold mu.
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

// slow sends the event that the process is not ready within the timeout of its probe. probe is the
// error of the last attempt.
func (t *task) slow(c *child, probe error) {
	t.event(EventSlow, c.pid, fmt.Sprintf("not ready: %v; the end of %s:\n%s", probe, t.logPath(), logTail(t.logPath())))
}

// everReady reports whether the process was ready at least once.
func (t *task) everReady() bool {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	return t.wasReady
}

// noteExit records in the status how the process ended.
func (t *task) noteExit(exit error) {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	t.status.LastExit = exit.Error()
}

// enter records in the status the state and the PID of the process; 0: it does not run.
func (t *task) enter(state State, pid int) {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	t.status.State, t.status.PID, t.status.Since = state, pid, time.Now()
}

// event sends an event about the process; see Supervisor.event. The caller must not hold mu.
func (t *task) event(what EventType, pid int, message string) {
	t.s.event(Event{Process: t.Name, Type: what, PID: pid, Message: message})
}
