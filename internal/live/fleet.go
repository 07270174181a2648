package live

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// state is how current what is known of a cluster is.
type state struct {
	state string
	since time.Time // when it was last current; zero where it is, or never was
}

// poll looks at the states of clusters until ctx ends, and tells when they are others.
func (l *Live) poll(ctx context.Context) {
	tick := time.NewTicker(l.pace.poll)
	defer tick.Stop()
	for {
		now := map[string]state{}
		for _, name := range l.Clusters() {
			current, since := l.State(name)
			now[name] = state{current, since.Truncate(time.Second)}
		}
		l.mu.Lock()
		if l.states == nil || !maps.Equal(now, l.states) {
			l.states = now
			close(l.changed)
			l.changed = make(chan struct{})
			for _, a := range l.users {
				a.poke()
			}
		}
		l.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// moved is closed when the state of a cluster is another than now.
func (l *Live) moved() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

// audience are the sockets of a user. What is not ctx, cancel, turns and name is guarded by the mutex of live.
type audience struct {
	live    *Live
	name    string
	ctx     context.Context //nolint:containedctx // it lasts as long as the audience does
	cancel  context.CancelFunc
	turns   chan struct{}
	open    int           // sockets, and those that are about to be
	took    time.Duration // the latest answers of all questions
	sockets map[*socket]bool
	visible map[string]bool // clusters; nil: not known yet
}

// poke has all sockets look for news. The mutex must be held.
func (a *audience) poke() {
	for s := range a.sockets {
		s.poke()
	}
}

// run finds out which clusters the user may know of, again and again, until nobody is there any more.
func (a *audience) run() {
	l := a.live
	var due time.Time
	for {
		grants, moved := l.Grants(), l.moved() // before what they are about
		names, err := l.Visible(a.ctx)
		if a.ctx.Err() != nil {
			return
		}
		wait, pause := l.pace.review, l.pace.reviewAgain
		if err != nil && !apierrors.IsForbidden(err) {
			logr.FromContextOrDiscard(a.ctx).V(1).Info("which clusters a user may know of is not known; it is asked again", "error", err.Error())
			wait, pause = l.pace.retry, 0
		} else {
			a.see(names)
		}
		timer := time.NewTimer(pause)
		select {
		case <-a.ctx.Done():
		case <-timer.C:
		}
		timer.Reset(max(l.pace.until(due, wait)-pause, 0))
		select {
		case <-a.ctx.Done():
		case <-timer.C:
		case <-moved: // clusters may be others, too
		case <-grants:
		}
		timer.Stop()
		if isClosed(grants) {
			due = time.Now().Add(l.pace.reviewAgain)
		}
	}
}

// see takes note of the clusters of which the user may know.
func (a *audience) see(names []string) {
	visible := make(map[string]bool, len(names))
	for _, name := range names {
		visible[name] = true
	}
	a.live.mu.Lock()
	defer a.live.mu.Unlock()
	if a.visible == nil || !maps.Equal(visible, a.visible) {
		a.visible = visible
		a.poke()
	}
}

// clusters are what an audience may know of the fleet now; false: it is not known yet.
func (a *audience) clusters() ([]cluster, bool) {
	a.live.mu.Lock()
	defer a.live.mu.Unlock()
	out := []cluster{}
	for name, s := range a.live.states {
		if a.visible[name] {
			out = append(out, cluster{Name: name, state: s})
		}
	}
	slices.SortFunc(out, func(a, b cluster) int { return cmp.Compare(a.Name, b.Name) })
	return out, a.visible != nil && a.live.states != nil
}
