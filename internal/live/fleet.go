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

// state is how current the data of a cluster is. The field state is the word that Options.State
// returned and browsers show.
type state struct {
	state string
	since time.Time // when the data was last current; zero: it is current, or never was
}

// poll reads the states of all clusters at intervals until ctx ends. When a state changed, or a
// cluster joined or left, poll notifies all sockets (poke) and closes the channel that moved
// returned. Its goroutine runs while any socket is open.
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

// moved returns a channel that is closed when the state of a cluster changes, or a cluster joins or
// leaves. Then the caller gets the next channel by another call.
func (l *Live) moved() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

// audience is one user with at least one open socket: the sockets, and the clusters that the user
// may know. The mutex of live guards its fields, except ctx, cancel, slots and name, which do not
// change.
type audience struct {
	live    *Live
	name    string
	ctx     context.Context //nolint:containedctx // it lasts as long as the audience does
	cancel  context.CancelFunc
	slots   chan struct{}
	open    int           // sockets, also those that are being opened
	took    time.Duration // sum of the durations of the last answers to the user's questions
	sockets map[*socket]bool
	visible map[string]bool // clusters; nil: unknown
}

// poke notifies all sockets of the user that there may be something to send. The caller holds the
// mutex of live.
func (a *audience) poke() {
	for s := range a.sockets {
		s.poke()
	}
}

// run reads again and again which clusters the user may know, until the context of the audience
// ends. It reads when rights or the set of clusters changed, and at intervals. Its goroutine starts
// with the first socket of the user.
func (a *audience) run() {
	l := a.live
	var due time.Time
	for {
		grants, moved := l.Grants(), l.moved() // before Visible, so that no later change is missed
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
		case <-moved: // the set of clusters may have changed
		case <-grants:
		}
		timer.Stop()
		if isClosed(grants) {
			due = time.Now().Add(l.pace.reviewAgain)
		}
	}
}

// see stores the names of the clusters that the user may know. If they differ from the stored ones,
// it notifies the sockets of the user.
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

// clusters returns the states of the clusters that the user may know, sorted by name. The result is
// false, and the list incomplete, until both the states and the user's clusters were read.
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
