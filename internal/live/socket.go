package live

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"

	"orrery.dev/orrery/internal/answer"
	"orrery.dev/orrery/internal/search"
)

// How many messages a browser may send: a window that is scrolled moves as often as the screen is drawn.
const (
	messagesPerSecond = 120
	messagesAtOnce    = 600
)

// connection is what a socket needs of a WebSocket. Reads, and one write, may go on at the same time.
type connection interface {
	read(ctx context.Context) ([]byte, error)
	write(ctx context.Context, message []byte) error
	ping(ctx context.Context) error
	close(violation bool, reason string)
}

// socket is one browser's tab.
type socket struct {
	live     *Live
	audience *audience
	conn     connection
	news     chan struct{} // of one: there may be some

	mu      sync.Mutex
	windows map[int]*window
	refused []refusal // of windows that are not open
	told    []cluster
	greeted bool // something of clusters was told
}

// serve follows a browser until it goes, or the context ends, which is told.
func (l *Live) serve(ctx context.Context, conn connection, who user.Info, a *audience) {
	s := &socket{live: l, audience: a, conn: conn, news: make(chan struct{}, 1), windows: map[int]*window{}}
	l.mu.Lock()
	a.sockets[s] = true
	l.mu.Unlock()
	s.poke()
	open, gone := context.WithCancelCause(context.WithoutCancel(ctx)) // reads and writes are not broken off by the end of the session
	var running sync.WaitGroup
	running.Go(func() { gone(s.listen(open)) })
	running.Go(func() { gone(s.keep(open, who)) })
	err := s.speak(ctx, open)
	switch violation := (violationError{}); {
	case errors.As(err, &violation):
		conn.close(true, violation.Error())
	case ctx.Err() != nil:
		conn.close(false, why(ctx))
	case errors.Is(err, errOther):
		conn.close(false, errOther.Error())
	default:
		conn.close(false, "")
	}
	gone(err)
	running.Wait()
	l.mu.Lock()
	delete(a.sockets, s)
	l.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.windows {
		w.question.drop(s)
	}
}

// errOther is that the hub takes the session for another user than before, who has to ask anew.
var errOther = errors.New("the user's groups are others now: connect again")

// why is why a session ended.
func why(ctx context.Context) string {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause.Error()
	}
	return "the session is over"
}

// poke has the socket look for something to tell.
func (s *socket) poke() {
	select {
	case s.news <- struct{}{}:
	default:
	}
}

// violationError is what a browser did that no page of ours does.
type violationError struct{ what string }

func (v violationError) Error() string { return v.what }

// listen does what the browser says, until it goes.
func (s *socket) listen(ctx context.Context) error {
	messages := rate.NewLimiter(messagesPerSecond, messagesAtOnce)
	for {
		raw, err := s.conn.read(ctx)
		if err != nil {
			return err
		}
		if !messages.Allow() {
			return violationError{"too many messages"}
		}
		var o order
		if err := json.Unmarshal(raw, &o); err != nil {
			return violationError{"a message is no JSON of a known shape"}
		}
		if o.ID < 0 {
			return violationError{"the id of a window is a number from 0 on"}
		}
		switch o.Type {
		case "open":
			s.open(ctx, o)
		case "move":
			s.move(ctx, o)
		case "close":
			s.close(o.ID)
		default:
			return violationError{"a message is of no known type"}
		}
	}
}

// open opens a window, in the place of another one with its id.
func (s *socket) open(ctx context.Context, o order) {
	values, err := parse(o.Path, o.Query)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shut(o.ID)
	if err == nil && len(s.windows) >= mostWindows {
		err = apierrors.NewTooManyRequests(fmt.Sprintf("%d windows are open: close one", mostWindows), 0)
	}
	if err == nil {
		err = within(o)
	}
	if err != nil {
		s.refuse(ctx, o, err)
		return
	}
	s.windows[o.ID] = &window{id: o.ID, fresh: true, question: s.live.ask(s, o.Path, values, o.Offset, o.Limit)} //nolint:contextcheck // a question is of several sockets
	s.poke()
}

// within refuses rows that no window can have.
func within(o order) error {
	if o.Offset < 0 || o.Limit < 1 || o.Limit > search.MostWindow {
		return apierrors.NewBadRequest(fmt.Sprintf("a window has an offset from 0 on, and a limit of 1 to %d", search.MostWindow))
	}
	return nil
}

// refuse tells that a window is not opened. Of many the last are told. The socket must be locked.
func (s *socket) refuse(ctx context.Context, o order, err error) {
	s.refused = append(s.refused, refusal{Type: "error", ID: o.ID, Status: answer.Status(ctx, err, http.MethodGet, o.Path)})
	s.refused = s.refused[max(0, len(s.refused)-mostWindows):]
	s.poke()
}

// move has a window show other rows of its list.
func (s *socket) move(ctx context.Context, o order) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.windows[o.ID]
	if w == nil {
		return // it is closed: the browser will know
	}
	if err := within(o); err != nil {
		s.refuse(ctx, o, err)
		return
	}
	was := w.question
	w.question, w.fresh = s.live.ask(s, was.path, was.query, o.Offset, o.Limit), true //nolint:contextcheck // a question is of several sockets
	was.drop(s)
	s.poke()
}

func (s *socket) close(id int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shut(id)
}

// shut closes a window, if it is open. The socket must be locked.
func (s *socket) shut(id int) {
	if w := s.windows[id]; w != nil {
		w.question.drop(s)
		delete(s.windows, id)
	}
}

// speak tells the browser whatever is news, one message after the other, until it is gone or ctx ends.
func (s *socket) speak(ctx, open context.Context) error {
	quiet := time.NewTicker(s.live.pace.ping)
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return s.write(ctx, open, end{Type: "end", Reason: why(ctx)})
		case <-open.Done():
			return context.Cause(open)
		case <-quiet.C:
			if err := s.write(ctx, open, beat{Type: "beat"}); err != nil {
				return err
			}
			continue
		case <-s.news:
		}
		for message := range s.all {
			if ctx.Err() != nil {
				break
			}
			if err := s.write(ctx, open, message); err != nil {
				return err
			}
		}
	}
}

// all yields all that is news, each as it is when it can be told.
func (s *socket) all(yield func(message any) bool) {
	s.mu.Lock()
	refused := s.refused
	s.refused = nil
	ids := slices.Sorted(maps.Keys(s.windows))
	s.mu.Unlock()
	for _, r := range refused {
		if !yield(r) {
			return
		}
	}
	if message := s.fleet(); message != nil && !yield(message) {
		return
	}
	for _, id := range ids {
		if message := s.window(id); message != nil && !yield(message) {
			return
		}
	}
}

// fleet is what the browser does not know of clusters; nil: nothing.
func (s *socket) fleet() any {
	clusters, known := s.audience.clusters()
	if !known || s.greeted && slices.Equal(clusters, s.told) {
		return nil
	}
	s.greeted, s.told = true, clusters
	return fleetOf(clusters, time.Now())
}

// window is what the browser does not know of a window; nil: nothing.
func (s *socket) window(id int) any {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.windows[id]
	if w == nil {
		return nil
	}
	now := w.question.latest()
	if now == nil {
		return nil
	}
	return w.news(now)
}

// write sends a message. A browser has some time to take it, and after the end of the session a moment.
func (s *socket) write(ctx, open context.Context, message any) error {
	raw, err := json.Marshal(message)
	if err != nil {
		return err
	}
	writing, cancel := context.WithTimeout(open, s.live.pace.patience)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(time.Second, cancel) })
	defer stop()
	if err := s.conn.write(writing, raw); err != nil && open.Err() == nil {
		return err
	}
	return context.Cause(open) // what broke the write off, if anything did
}

// keep finds out whether the browser is still there, and its user who it was.
func (s *socket) keep(ctx context.Context, who user.Info) error {
	tick := time.NewTicker(s.live.pace.ping)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		if name, _ := identityOf(who); name != s.audience.name {
			return errOther
		}
		within, cancel := context.WithTimeout(ctx, s.live.pace.patience)
		err := s.conn.ping(within)
		if cancel(); err != nil {
			return err
		}
	}
}
