package fleetapi

import (
	"math"
	"sync"
	"time"
)

// grants notify open watches that the rights of users may have changed. A watch then checks its
// rights again. One notification reports all changes within grantsWindow. A change while a
// notification is scheduled causes a second notification: the hub's authorizer may not know that
// change at the first one. Several goroutines may use it.
type grants struct {
	mu      sync.Mutex
	changed chan struct{}
	due     bool        // a notification is scheduled
	again   bool        // there was another change since due was set
	ringer  *time.Timer // the timer that calls ring
	// telling is called before a notification, while mu is held. again is true if another
	// notification follows.
	telling func(again bool)
}

// grantsWindow is the time from the first change of rights to its notification.
const grantsWindow = time.Second

// newGrants returns grants without a change.
func newGrants() *grants {
	g := &grants{changed: make(chan struct{}), telling: func(bool) {}}
	g.ringer = time.AfterFunc(math.MaxInt64, g.ring)
	return g
}

// wait returns a channel that is closed by the next notification of a change of rights. Each
// notification closes the channel that was returned before it, so callers call wait again.
func (g *grants) wait() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.changed
}

// change schedules a notification that rights have changed, after grantsWindow. If one is scheduled
// already, a second notification follows it.
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

// ring notifies the waiting watches that rights may have changed. If there was another change since
// the notification was scheduled, ring schedules the next one. The timer calls it.
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
