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

// thread starts processes from one OS thread. The kernel sends a process its death signal when the thread that
// made it ends, not when the supervisor's process does; a thread of the runtime may end earlier.
type thread struct {
	work chan func()
}

// newThread returns a thread that lives until it is closed.
func newThread() *thread {
	th := &thread{work: make(chan func())}
	go func() {
		runtime.LockOSThread()
		// Unlocking leaves the thread to the runtime. Without it the thread would end with the goroutine.
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

// command of the process itself or of its probe, writing to log (nil: nowhere).
func (p Process) command(args []string, log *os.File) *exec.Cmd {
	cmd := exec.Command(args[0], args[1:]...) //nolint:noctx // it is stopped in order, not by a context
	cmd.Dir = p.Dir
	cmd.Env = os.Environ()
	for name, value := range p.Env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	if log != nil { // a nil *os.File in an interface would not be nil
		cmd.Stdout, cmd.Stderr = log, log
	}
	death := syscall.SIGKILL
	if p.DeathSignal == DeathSignalTerm {
		death = syscall.SIGTERM
	}
	// In a group of its own it does not get the terminal's Ctrl-C, so that stopping keeps its order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: death}
	return cmd
}

// child is a process that was started, and its group.
type child struct {
	cmd  *exec.Cmd
	pid  int
	mode KillMode
	done chan struct{} // closed when it has ended
	err  error         // how it ended; nil is status 0; to be read when done is closed

	mu     sync.Mutex
	reaped bool // the PID may belong to someone else
}

// reap waits for the end of the process and, unless it is to outlive it, kills what is left of its group, which would
// otherwise hold the ports and locks that the next start needs.
func (c *child) reap() {
	defer close(c.done)
	for {
		// WNOWAIT keeps the ended process, and with it the ID of its group, until the group is dead.
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

// signal sends sig to what the kill mode says, unless the process has ended.
func (c *child) signal(sig syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.reaped {
		c.kill(sig)
	}
}

// exit says how the process ended. It is never nil.
func (c *child) exit() error {
	if c.err == nil {
		return errors.New("exit status 0")
	}
	return c.err
}

// kill cannot fail in a way that matters: what it signals exists and is ours, or has just ended.
func (c *child) kill(sig syscall.Signal) { _ = syscall.Kill(c.mode.target(c.pid), sig) }

// target is what kill(2) takes to signal the process with this PID, as its mode wants it.
func (m KillMode) target(pid int) int {
	if m == KillModeProcess {
		return pid
	}
	return -pid
}

// killGrace is what SIGKILL may take. Only a process that is stuck in the kernel takes longer.
const killGrace = time.Second

// stop asks the process to end, and kills it at the deadline.
func (c *child) stop(deadline time.Time) error {
	c.signal(syscall.SIGTERM)
	c.signal(syscall.SIGCONT) // a stopped process gets the other signal only when it continues
	if c.ends(deadline) {
		return nil
	}
	c.signal(syscall.SIGKILL)
	if c.ends(time.Now().Add(killGrace)) {
		return nil
	}
	return fmt.Errorf("PID %d still runs after SIGKILL", c.pid)
}

// ends waits for the end of the process, at most until the deadline.
func (c *child) ends(deadline time.Time) bool {
	select {
	case <-c.done:
		return true
	case <-time.After(time.Until(deadline)):
		return false
	}
}
