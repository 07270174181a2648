package fleetapi

import (
	"math"
	"sync"
	"time"
)

// grants tell those who wait that somebody may see something else than before. What happens within a moment is told at once.
type grants struct {
	mu      sync.Mutex
	changed chan struct{}
	due     bool
	ringer  *time.Timer
}

const grantsWindow = time.Second

func newGrants() *grants {
	g := &grants{changed: make(chan struct{})}
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
	if !g.due {
		g.due = true
		g.ringer.Reset(grantsWindow)
	}
}

func (g *grants) ring() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.changed)
	g.changed, g.due = make(chan struct{}), false
}
