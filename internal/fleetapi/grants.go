package fleetapi

import (
	"math"
	"sync"
	"time"
)

// grants tell those who wait that somebody may see something else than before. What happens within a moment is told at once, and
// what happens while that is about to be told, once more: the hub's authorizer may not know of it yet.
type grants struct {
	mu      sync.Mutex
	changed chan struct{}
	due     bool
	again   bool // something changed since it is due
	ringer  *time.Timer
	// telling is called before those who wait are told; again: it is called once more after that.
	telling func(again bool)
}

const grantsWindow = time.Second

func newGrants() *grants {
	g := &grants{changed: make(chan struct{}), telling: func(bool) {}}
	g.ringer = time.AfterFunc(math.MaxInt64, g.ring)
	return g
}

// wait returns a channel that is closed after the next change.
func (g *grants) wait() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.changed
}

// change has those who wait told soon.
func (g *grants) change() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.due {
		g.again = true
		return
	}
	g.due = true
	g.ringer.Reset(grantsWindow)
}

func (g *grants) ring() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.telling(g.again)
	close(g.changed)
	g.changed, g.due, g.again = make(chan struct{}), g.again, false
	if g.due {
		g.ringer.Reset(grantsWindow)
	}
}
