package reconciler

import "sync"

// Attempt signals the end of something that a process does once after its start. In the zero
// value it has not ended.
type Attempt struct {
	mu    sync.Mutex
	ended chan struct{}
	over  bool
}

// End signals that the attempt has ended, successful or not. Later calls do nothing.
func (a *Attempt) End() {
	ended := a.channel()
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.over {
		a.over = true
		close(ended)
	}
}

// Ended returns a channel that is closed once the attempt has ended.
func (a *Attempt) Ended() <-chan struct{} { return a.channel() }

func (a *Attempt) channel() chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended == nil {
		a.ended = make(chan struct{})
	}
	return a.ended
}
