package testenv

import (
	"runtime"
	"sync"
)

var (
	lasting sync.Once
	starts  = make(chan func())
)

// lastingThread runs functions in one thread that ends with the process.
func lastingThread() {
	runtime.LockOSThread()
	for f := range starts {
		f()
	}
}
