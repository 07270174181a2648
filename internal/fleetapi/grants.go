package fleetapi

import (
	"math"
	"sync"
	"time"
)

// grants notify waiting watches that rights may have changed. Changes within grantsWindow are
// reported together. Changes that arrive before the report are reported once more, because the
// authorizer of the hub may not know them yet.
type grants struct {
	mu      sync.Mutex
	changed chan struct{}
	due     bool
	again   bool // there was another change since due was set
	ringer  *time.Timer
	// telling is called before a notification. again is true if another notification follows.
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

// change schedules a notification.
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
