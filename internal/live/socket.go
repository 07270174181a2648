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

// Limits on a browser's messages. A window that is scrolled moves with every frame of the screen.
const (
	messagesPerSecond = 120
	messagesAtOnce    = 600
)

// connection is what a socket needs of a WebSocket. Reads and one write may run at the same time.
type connection interface {
	read(ctx context.Context) ([]byte, error)
	write(ctx context.Context, message []byte) error
	ping(ctx context.Context) error
	close(violation bool, reason string)
}

// socket is one tab of a browser.
type socket struct {
	live     *Live
	audience *audience
	conn     connection
	news     chan struct{} // capacity 1: there may be changes to send

	mu      sync.Mutex
	windows map[int]*window
	refused []refusal // of windows that were not opened
	told    []cluster
	greeted bool // a state of clusters was sent
}

// serve runs a socket until the browser disconnects or ctx ends. In the latter case the browser
// gets the reason.
func (l *Live) serve(ctx context.Context, conn connection, who user.Info, a *audience) {
	s := &socket{live: l, audience: a, conn: conn, news: make(chan struct{}, 1), windows: map[int]*window{}}
	l.mu.Lock()
	a.sockets[s] = true
	l.mu.Unlock()
	s.poke()
	// The end of the session does not interrupt reads and writes.
	open, gone := context.WithCancelCause(context.WithoutCancel(ctx))
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

// errOther means that the session's user changed. The browser must connect again.
var errOther = errors.New("the user's groups are others now: connect again")

// why returns the reason for the end of a session.
func why(ctx context.Context) string {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause.Error()
	}
	return "the session is over"
}

// poke makes the socket look for changes to send.
func (s *socket) poke() {
	select {
	case s.news <- struct{}{}:
	default:
	}
}

// violationError is something that a browser did and the console's page never does.
type violationError struct{ what string }

func (v violationError) Error() string { return v.what }

// listen handles the browser's messages until it disconnects.
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

// open opens a window. It replaces a window with the same id.
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

// within returns an error if the order's rows cannot be a window.
func within(o order) error {
	if o.Offset < 0 || o.Limit < 1 || o.Limit > search.MostWindow {
		return apierrors.NewBadRequest(fmt.Sprintf("a window has an offset from 0 on, and a limit of 1 to %d", search.MostWindow))
	}
	return nil
}

// refuse sends that a window was not opened. Only the last refusals are kept. The caller holds mu.
func (s *socket) refuse(ctx context.Context, o order, err error) {
	s.refused = append(s.refused, refusal{Type: "error", ID: o.ID, Status: answer.Status(ctx, err, http.MethodGet, o.Path)})
	s.refused = s.refused[max(0, len(s.refused)-mostWindows):]
	s.poke()
}

// move changes the rows that a window shows.
func (s *socket) move(ctx context.Context, o order) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.windows[o.ID]
	if w == nil {
		return // it is closed, which the browser knows
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

// shut closes a window, if it is open. The caller holds mu.
func (s *socket) shut(id int) {
	if w := s.windows[id]; w != nil {
		w.question.drop(s)
		delete(s.windows, id)
	}
}

// speak sends changes one after the other, until the browser disconnects or ctx ends.
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

// all yields the messages that are due. Each is computed when it can be sent.
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

// fleet returns the states of clusters that the browser does not have; nil: none.
func (s *socket) fleet() any {
	clusters, known := s.audience.clusters()
	if !known || s.greeted && slices.Equal(clusters, s.told) {
		return nil
	}
	s.greeted, s.told = true, clusters
	return fleetOf(clusters, time.Now())
}

// window returns the changes of a window that the browser does not have; nil: none.
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

// write sends a message. A browser has pace.patience to read it, and one second after the end of
// ctx.
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
	return context.Cause(open) // the cause, if the connection ended
}

// keep checks at intervals that the browser answers, and that the session's user is the same.
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
