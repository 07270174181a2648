package testenv

import (
	"runtime"
	"sync"
)

var (
	// lasting starts lastingThread once.
	lasting sync.Once
	// starts has functions that lastingThread must run.
	starts = make(chan func())
)

// lastingThread runs the functions from starts in one OS thread that ends only with the process. It
// never returns.
func lastingThread() {
	runtime.LockOSThread()
	for f := range starts {
		f()
	}
}
