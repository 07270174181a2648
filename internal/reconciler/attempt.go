package reconciler

import "sync"

// Attempt signals the end of work that a process does once after its start, so that others can wait
// for that end. The zero value is an Attempt that has not ended. It may be used from several
// goroutines.
type Attempt struct {
	mu    sync.Mutex
	ended chan struct{}
	over  bool
}

// End signals that the work has ended, whether it succeeded or not. Later calls do nothing.
func (a *Attempt) End() {
	ended := a.channel()
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.over {
		a.over = true
		close(ended)
	}
}

// Ended returns a channel that is closed once End has been called.
func (a *Attempt) Ended() <-chan struct{} { return a.channel() }

// channel returns the channel that End closes. The first call creates it.
func (a *Attempt) channel() chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended == nil {
		a.ended = make(chan struct{})
	}
	return a.ended
}
