package lab

import (
	"os/exec"
	"runtime"
)

// spawner starts processes from one OS thread that lives as long as the lab. The kernel sends the
// parent-death signal when the thread that started the process ends, and a thread of the Go runtime
// may end at any time.
type spawner struct {
	work chan func()
}

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

func (s *spawner) start(cmd *exec.Cmd) error {
	started := make(chan error)
	s.work <- func() { started <- cmd.Start() }
	return <-started
}

func (s *spawner) close() { close(s.work) }
