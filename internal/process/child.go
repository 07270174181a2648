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

// thread starts processes from one OS thread. The kernel sends the parent-death signal when the
// thread that started the process ends, not when the supervisor ends. A thread of the Go runtime
// may end earlier.
type thread struct {
	work chan func()
}

// newThread returns a thread that lives until close.
func newThread() *thread {
	th := &thread{work: make(chan func())}
	go func() {
		runtime.LockOSThread()
		// Unlocking returns the thread to the runtime. Otherwise the thread would end with the
		// goroutine.
		defer runtime.UnlockOSThread()
		for f := range th.work {
			f()
		}
	}()
	return th
}

func (th *thread) close() { close(th.work) }

// start starts cmd as the leader of its own process group.
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

// command returns the command of the process or of its probe. Its output goes to log; nil: nowhere.
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

// child is a started process with its group.
type child struct {
	cmd  *exec.Cmd
	pid  int
	mode KillMode
	done chan struct{} // closed when the process has ended
	err  error         // how it ended; nil: status 0; valid after done is closed

	mu     sync.Mutex
	reaped bool // the PID may belong to another process
}

// reap waits for the end of the process, and kills the rest of its group unless the kill mode is
// KillModeProcess. The rest could hold ports and locks that the next start needs.
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

// signal sends sig as the kill mode says, unless the process has ended.
func (c *child) signal(sig syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.reaped {
		c.kill(sig)
	}
}

// exit returns how the process ended; never nil. It is valid after done is closed.
func (c *child) exit() error {
	if c.err == nil {
		return errors.New("exit status 0")
	}
	return c.err
}

// kill signals the process or its group, as the mode says. The caller holds mu, and the process is
// not reaped yet: later the PID may belong to another process. So an error only means that the
// process has just ended.
func (c *child) kill(sig syscall.Signal) { _ = syscall.Kill(c.mode.target(c.pid), sig) }

// target returns the argument of kill(2) for a process: the PID, or its group.
func (m KillMode) target(pid int) int {
	if m == KillModeProcess {
		return pid
	}
	return -pid
}

// killGrace is how long a process may take to end after SIGKILL: the kernel has to run it once more
// and to take back its memory, which on a busy machine has taken more than a second. Only a process
// that is stuck in the kernel takes longer.
const killGrace = 10 * time.Second

// stop sends SIGTERM, and SIGKILL at the deadline. It returns an error if the process still runs
// after killGrace.
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

// ends waits until the process has ended, at most until the deadline, and reports whether it has.
func (c *child) ends(deadline time.Time) bool {
	select {
	case <-c.done:
		return true
	case <-time.After(time.Until(deadline)):
		return false
	}
}
