package lab

import (
	"os/exec"
	"runtime"
)

// spawner starts processes from one OS thread that lives as long as the lab. The kernel sends the
// parent-death signal when the thread that started a process ends. Other threads of the Go runtime
// may end at any time.
type spawner struct {
	work chan func()
}

// newSpawner starts the thread. The caller calls close.
func newSpawner() *spawner {
	s := &spawner{work: make(chan func())}
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for f := range s.work {
			f()
		}
	}()
	return s
}

// start starts cmd from the thread, and returns the error of cmd.Start.
func (s *spawner) start(cmd *exec.Cmd) error {
	started := make(chan error)
	s.work <- func() { started <- cmd.Start() }
	return <-started
}

// close ends the thread. It may be called once, and start not after it.
func (s *spawner) close() { close(s.work) }
