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

// Supervisor runs one plan, once.
type Supervisor struct {
	plan  Plan
	opts  Options
	tasks []*task // in the order of the plan

	thread *thread
	ready  chan struct{}

	mu       sync.Mutex // guards the fields below, and those marked in task
	running  bool
	starting int // started, and never ready yet
	unready  int // never ready yet

	eventMu sync.Mutex // serializes OnEvent
}

// New returns a supervisor for the plan, or an error with all mistakes in the plan. It starts and
// writes nothing.
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

// Run starts the plan and keeps it running until ctx ends. Then it stops the plan in reverse order,
// within 10 seconds. It returns an error if the plan cannot be started: the directory is in use, or
// a process ended startAttempts times before it was ready.
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
	stop := sync.OnceValue(time.Now) // the first process that notices starts the stop budget
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

// schedule starts the processes that may start, and closes ready when all were ready. The caller
// holds mu, and calls schedule after every relevant change.
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

// Ready returns a channel that is closed when every process was ready once.
func (s *Supervisor) Ready() <-chan struct{} { return s.ready }

// Status returns the status of every process, in the order of the plan.
func (s *Supervisor) Status() []Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Status, 0, len(s.tasks))
	for _, t := range s.tasks {
		all = append(all, t.status)
	}
	return all
}

// event logs the event and passes it to OnEvent.
func (s *Supervisor) event(e Event) {
	s.eventMu.Lock()
	defer s.eventMu.Unlock()
	e.Time = time.Now()
	s.opts.Log.Info(string(e.Type), "plan", s.plan.Name, "process", e.Process, "pid", e.PID, "message", e.Message)
	if s.opts.OnEvent != nil {
		s.opts.OnEvent(e)
	}
}

// rotateLogs limits the logs of long-running processes.
func (s *Supervisor) rotateLogs() {
	for _, t := range s.tasks {
		if err := RotateLog(t.logPath(), logLimit); err != nil {
			s.opts.Log.Error(err, "Log not rotated", "process", t.Name)
		}
	}
}

// lockDir creates dir and locks it for one supervisor. A second supervisor would treat the
// processes of the first as leftovers.
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

// stopBudget is how long the processes of a plan may take to stop. Then they are killed.
const stopBudget = 9 * time.Second

// setStopShares gives each process a part of the budget, so that a process that hangs leaves time
// for its dependencies. With three levels, the first one to stop has a third of the budget, and the
// next two thirds, counted from the start.
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
