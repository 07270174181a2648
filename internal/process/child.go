package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// thread is an OS thread on which all processes of a supervisor are started. The kernel sends the
// parent-death signal to a process when the thread that started it ends. A thread of the Go runtime
// may end before the supervisor does.
type thread struct {
	work chan func()
}

// newThread returns a new thread, which lives until close. start must not be called after close.
func newThread() *thread {
	th := &thread{work: make(chan func())}
	go func() {
		runtime.LockOSThread()
		// Unlocking returns the OS thread to the Go runtime. Otherwise the OS thread would end with the
		// goroutine.
		defer runtime.UnlockOSThread()
		for f := range th.work {
			f()
		}
	}()
	return th
}

// close ends the goroutine of the thread. Processes that the thread has started continue.
func (th *thread) close() { close(th.work) }

// start starts cmd on the thread, and returns when cmd runs. mode decides whether signals go to the
// process or to its group, and whether the rest of the group is killed when the process ends. cmd
// must come from Process.command, which gives it a process group.
func (th *thread) start(cmd *exec.Cmd, mode KillMode) (*child, error) {
	started := make(chan error)
	th.work <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return nil, err
	}
	c := &child{cmd: cmd, pid: cmd.Process.Pid, mode: mode, done: make(chan struct{})}
	go c.reap()
	return c, nil
}

// command returns an exec.Cmd with these arguments, for the process p or for its readiness probe.
// It has the directory, environment and death signal of p, and its own process group. Its output
// goes to log; nil: nowhere. The command is not started.
func (p Process) command(args []string, log *os.File) *exec.Cmd {
	cmd := exec.Command(args[0], args[1:]...) //nolint:noctx // it is stopped in order, not by a context
	cmd.Dir = p.Dir
	cmd.Env = os.Environ()
	for name, value := range p.Env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	if log != nil { // a nil *os.File in an interface is not nil
		cmd.Stdout, cmd.Stderr = log, log
	}
	death := syscall.SIGKILL
	if p.DeathSignal == DeathSignalTerm {
		death = syscall.SIGTERM
	}
	// A separate process group gets no Ctrl-C from the terminal, so stopping keeps its order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: death}
	return cmd
}

// child is a started process with its process group. Several goroutines may use it.
type child struct {
	cmd  *exec.Cmd
	pid  int
	mode KillMode
	done chan struct{} // closed when the process has ended
	err  error         // how it ended; nil: status 0; valid after done is closed

	mu     sync.Mutex
	reaped bool // the PID may belong to another process
}

// reap waits for the end of the process, and closes done. Unless the kill mode is KillModeProcess,
// it kills the rest of the process group, which could hold ports and locks that the next start of
// the process needs.
func (c *child) reap() {
	defer close(c.done)
	for {
		// WNOWAIT keeps the ended process, and so the ID of its group, until the group is killed.
		err := unix.Waitid(unix.P_PID, c.pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mode != KillModeProcess {
		c.kill(syscall.SIGKILL)
	}
	c.err = c.cmd.Wait()
	c.reaped = true
}

// signal sends sig to the process or its group, as the kill mode says. It does nothing if the
// process has ended.
func (c *child) signal(sig syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.reaped {
		c.kill(sig)
	}
}

// exit returns how the process ended. It is never nil, also for status 0. The caller must have
// waited until done is closed.
func (c *child) exit() error {
	if c.err == nil {
		return errors.New("exit status 0")
	}
	return c.err
}

// kill sends sig to the process or its group, as the kill mode says. The caller holds mu, and the
// process must not be reaped: later the PID may belong to another process. So an error only means
// that the process has just ended, and is ignored.
func (c *child) kill(sig syscall.Signal) { _ = syscall.Kill(c.mode.target(c.pid), sig) }

// target returns the first argument of kill(2) for a process with this PID: the PID with
// KillModeProcess, else the process group.
func (m KillMode) target(pid int) int {
	if m == KillModeProcess {
		return pid
	}
	return -pid
}

// killGrace is how long a process may take to end after SIGKILL before that counts as a failure.
// The kernel has to run the process once more and to free its memory, which on a busy machine has
// taken more than a second.
const killGrace = 10 * time.Second

// stop sends SIGTERM to the process, and SIGKILL at the deadline, and waits until the process has
// ended. The kill mode decides whether the process group gets the signals. It returns nil if the
// process has ended already. It is an error if the process still runs killGrace after SIGKILL.
func (c *child) stop(deadline time.Time) error {
	c.signal(syscall.SIGTERM)
	c.signal(syscall.SIGCONT) // a stopped process handles SIGTERM only after it continues
	if c.ends(deadline) {
		return nil
	}
	c.signal(syscall.SIGKILL)
	if c.ends(time.Now().Add(killGrace)) {
		return nil
	}
	return fmt.Errorf("PID %d still runs after SIGKILL", c.pid)
}

// ends waits until the process has ended or the deadline has passed. It reports whether the process
// has ended.
func (c *child) ends(deadline time.Time) bool {
	select {
	case <-c.done:
		return true
	case <-time.After(time.Until(deadline)):
		return false
	}
}
