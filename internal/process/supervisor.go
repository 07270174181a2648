package process

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"orrery.dev/orrery/internal/disk"
)

// Supervisor runs the processes of one plan, once. Several goroutines may call its methods.
type Supervisor struct {
	plan  Plan
	opts  Options
	tasks []*task // in the order of the plan

	thread *thread
	ready  chan struct{}

	mu       sync.Mutex // guards the fields below, and those marked in task
	running  bool
	starting int // number of processes that were started and were never ready yet
	unready  int // number of processes that were never ready yet

	eventMu sync.Mutex // serializes OnEvent
}

// New returns a supervisor for the plan, which Run starts. The error has all mistakes in the plan,
// or says that o.Dir is missing. New starts and writes nothing.
func New(plan Plan, o Options) (*Supervisor, error) {
	if err := plan.validate(); err != nil {
		return nil, fmt.Errorf("plan %q: %w", plan.Name, err)
	}
	if o.Dir == "" {
		return nil, fmt.Errorf("plan %q: options name no directory for pidfiles and logs", plan.Name)
	}
	s := &Supervisor{plan: plan, opts: o, ready: make(chan struct{}), unready: len(plan.Processes)}
	byName := make(map[string]*task, len(plan.Processes))
	for _, p := range plan.Processes {
		t := newTask(s, p)
		s.tasks = append(s.tasks, t)
		byName[p.Name] = t
	}
	for _, t := range s.tasks {
		for _, name := range t.After {
			t.after = append(t.after, byName[name])
			byName[name].before = append(byName[name].before, t)
		}
	}
	setStopShares(s.tasks)
	return s, nil
}

// Run starts the processes of the plan and keeps them running until ctx ends. Then it stops them in
// reverse order and returns nil. A process is killed if it has not ended in time (setStopShares).
// At its start, Run kills the processes that an earlier supervisor of the directory left behind.
//
// An error of one process stops the whole plan: the process ended startAttempts times before it was
// ready, it cannot be stopped, or Options.OnFirstReady failed. It is also an error if another
// supervisor runs in the directory, or if Run was called before.
func (s *Supervisor) Run(ctx context.Context) error {
	s.mu.Lock()
	again := s.running
	s.running = true
	s.mu.Unlock()
	if again {
		return fmt.Errorf("plan %q: a supervisor runs once; make a new one", s.plan.Name)
	}
	unlock, err := lockDir(s.opts.Dir)
	if err != nil {
		return err
	}
	defer unlock()
	err = killLeftovers(s.opts.Dir, func(name string, pid int) {
		s.event(Event{Process: name, Type: EventLeftover, PID: pid, Message: "killed, an earlier supervisor left it behind"})
	})
	if err != nil {
		return err
	}
	s.rotateLogs()
	s.thread = newThread()
	defer s.thread.close()

	g, ctx := errgroup.WithContext(ctx)
	stop := sync.OnceValue(time.Now) // the first process that stops starts the stop budget
	for _, t := range s.tasks {
		g.Go(func() error { return t.run(ctx, stop) })
	}
	g.Go(func() error {
		tick := time.NewTicker(logInterval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C:
				s.rotateLogs()
			}
		}
	})
	s.mu.Lock()
	s.schedule()
	s.mu.Unlock()
	return g.Wait()
}

// schedule starts all processes that may start: their dependencies were ready, and Plan.Parallelism
// allows it. It closes s.ready when all processes were ready. Run calls it once at the start, and
// then each process calls it once, when it is ready for the first time. More calls would close
// s.ready twice. The caller holds mu.
func (s *Supervisor) schedule() {
	if s.unready == 0 {
		close(s.ready)
	}
	for _, t := range s.tasks {
		if s.plan.Parallelism > 0 && s.starting >= s.plan.Parallelism {
			return
		}
		blocked := slices.ContainsFunc(t.after, func(dependency *task) bool { return !dependency.wasReady })
		if t.launched || blocked {
			continue
		}
		t.launched = true
		s.starting++
		close(t.start)
	}
}

// Ready returns a channel that is closed when every process has been ready at least once. Processes
// may have ended again since. If Run ends earlier, the channel stays open.
func (s *Supervisor) Ready() <-chan struct{} { return s.ready }

// Status returns the status of every process, in the order of the plan. It may be called before
// and after Run too.
func (s *Supervisor) Status() []Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Status, 0, len(s.tasks))
	for _, t := range s.tasks {
		all = append(all, t.status)
	}
	return all
}

// event sets the time of the event, logs the event and calls Options.OnEvent with it. The caller
// must not hold mu.
func (s *Supervisor) event(e Event) {
	s.eventMu.Lock()
	defer s.eventMu.Unlock()
	e.Time = time.Now()
	s.opts.Log.Info(string(e.Type), "plan", s.plan.Name, "process", e.Process, "pid", e.PID, "message", e.Message)
	if s.opts.OnEvent != nil {
		s.opts.OnEvent(e)
	}
}

// rotateLogs limits the size of all logs to about logLimit. Run calls it every logInterval. Errors
// are only logged.
func (s *Supervisor) rotateLogs() {
	for _, t := range s.tasks {
		if err := RotateLog(t.logPath(), logLimit); err != nil {
			s.opts.Log.Error(err, "Log not rotated", "process", t.Name)
		}
	}
}

// lockDir creates the directory of a supervisor if it does not exist, and locks it until unlock is
// called. It is an error if another supervisor holds the lock, whose processes would be killed as
// leftovers.
func lockDir(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make directory of the supervisor: %w", err)
	}
	f, err := disk.TryLock(filepath.Join(dir, ".lock"))
	if errors.Is(err, disk.ErrLocked) {
		return nil, fmt.Errorf("lock %s: another supervisor runs there; stop it or use another directory", dir)
	}
	if err != nil {
		return nil, fmt.Errorf("lock directory of the supervisor: %w", err)
	}
	return func() { disk.Unlock(f) }, nil
}

// stopBudget is how long all processes of a plan together may take to stop. Processes that still
// run then are killed.
const stopBudget = 9 * time.Second

// setStopShares sets stopShare of each task: the time after which its process is killed, from the
// moment when the plan begins to stop. So a process that hangs leaves time for the processes on
// which it depends. Processes stop level by level, dependents first. With three levels, the first
// level is killed after a third of stopBudget, the second after two thirds, and the last at its
// end.
func setStopShares(tasks []*task) {
	levels := make(map[*task]int, len(tasks))
	var level func(t *task) int // 1 without dependents
	level = func(t *task) int {
		if levels[t] == 0 {
			above := 0
			for _, dependent := range t.before {
				above = max(above, level(dependent))
			}
			levels[t] = above + 1
		}
		return levels[t]
	}
	for _, t := range tasks {
		level(t)
	}
	total := slices.Max(append(slices.Collect(maps.Values(levels)), 1))
	for t, l := range levels {
		t.stopShare = stopBudget * time.Duration(l) / time.Duration(total)
	}
}
