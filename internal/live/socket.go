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

// Limits on the messages of one browser. A window that is scrolled sends one with every frame of
// the screen.
const (
	messagesPerSecond = 120
	messagesAtOnce    = 600
)

// connection is what a socket needs of a WebSocket. Reads, pings and one write may run at the same
// time. read blocks until there is a message. close closes the connection. violation is true if the
// browser broke the protocol.
type connection interface {
	read(ctx context.Context) ([]byte, error)
	write(ctx context.Context, message []byte) error
	ping(ctx context.Context) error
	close(violation bool, reason string)
}

// socket is the connection to one page in a browser, with the windows that the page has opened. mu
// guards windows and refused. Only sendChanges uses sent and greeted.
type socket struct {
	live     *Live
	audience *audience
	conn     connection
	news     chan struct{} // capacity 1; a value means that there may be changes to send

	mu      sync.Mutex
	windows map[int]*window
	refused []refusal // to be sent: windows that were not opened or moved
	sent    []cluster // states of clusters that were sent last
	greeted bool      // states of clusters were sent, perhaps none
}

// serve runs a socket of the user who, whose audience is a. It returns after the browser
// disconnected or broke the protocol, when the user has other groups, or when ctx ends. The
// connection is closed then. Before, the browser gets the reason if ctx ended.
func (l *Live) serve(ctx context.Context, conn connection, who user.Info, a *audience) {
	s := &socket{live: l, audience: a, conn: conn, news: make(chan struct{}, 1), windows: map[int]*window{}}
	l.mu.Lock()
	a.sockets[s] = true
	l.mu.Unlock()
	s.poke()
	// The end of the session (ctx) does not interrupt reads and writes: the last message is sent.
	open, gone := context.WithCancelCause(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { gone(s.listen(open)) })
	running.Go(func() { gone(s.keep(open, who)) })
	err := s.sendChanges(ctx, open)
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

// errOther ends a socket because its user is not the one that opened it: the groups or extras
// changed. The browser must connect again.
var errOther = errors.New("the user's groups are others now: connect again")

// why returns the reason for the end of a session, for the user: the cause of ctx, or a standard
// text if ctx was cancelled without a cause.
func why(ctx context.Context) string {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause.Error()
	}
	return "the session is over"
}

// poke notifies the socket that there may be changes to send. It does not block.
func (s *socket) poke() {
	select {
	case s.news <- struct{}{}:
	default:
	}
}

// violationError is a message that the page of the console never sends: another client, or a fault
// of the page. The socket is closed.
type violationError struct{ what string }

func (v violationError) Error() string { return v.what }

// listen reads and executes the browser's messages until the browser disconnects. Its error is
// never nil: a violationError if the browser broke the protocol, else the error of the connection.
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

// open opens the window of an order. A window with the same ID is closed before. If the order is
// invalid or there are too many windows, the browser gets a refusal.
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

// within returns a BadRequest error if the offset or the limit of an order is out of range.
func within(o order) error {
	if o.Offset < 0 || o.Limit < 1 || o.Limit > search.MostWindow {
		return apierrors.NewBadRequest(fmt.Sprintf("a window has an offset from 0 on, and a limit of 1 to %d", search.MostWindow))
	}
	return nil
}

// refuse queues a refusal: the window of the order was not opened or moved, because of err. Only
// the last mostWindows refusals are kept until they are sent. The caller holds mu.
func (s *socket) refuse(ctx context.Context, o order, err error) {
	s.refused = append(s.refused, refusal{Type: "error", ID: o.ID, Status: answer.Status(ctx, err, http.MethodGet, o.Path)})
	s.refused = s.refused[max(0, len(s.refused)-mostWindows):]
	s.poke()
}

// move shows other rows of the list in an open window. It does nothing if no window has the ID. If
// the order is invalid, the window stays as it is and the browser gets a refusal.
func (s *socket) move(ctx context.Context, o order) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.windows[o.ID]
	if w == nil {
		return // the browser has closed the window
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

// close closes the window with the ID, if it is open.
func (s *socket) close(id int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shut(id)
}

// shut closes the window with the ID, if it is open. The caller holds mu.
func (s *socket) shut(id int) {
	if w := s.windows[id]; w != nil {
		w.question.drop(s)
		delete(s.windows, id)
	}
}

// sendChanges sends changes and beats, one message after the other. It returns the cause when open
// ends, because the browser disconnected. When ctx ends, because the session ended, it sends an end
// and returns. The result is nil if that was sent.
func (s *socket) sendChanges(ctx, open context.Context) error {
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

// all yields the messages that the browser needs: refusals, states of clusters, and changes of
// windows. It computes each message only when the message before was sent, so that the message
// shows the latest state. What was yielded is recorded as sent.
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

// fleet returns the message with the states of clusters, and records it as sent. It returns nil if
// the states are unknown yet, or the browser has them.
func (s *socket) fleet() any {
	clusters, known := s.audience.clusters()
	if !known || s.greeted && slices.Equal(clusters, s.sent) {
		return nil
	}
	s.greeted, s.sent = true, clusters
	return fleetOf(clusters, time.Now())
}

// window returns the message with the changes of the window with the ID, and records it as sent. It
// returns nil if the window is closed, has no answer yet or has not changed.
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

// write sends a message. It returns an error if the browser does not read the message within
// pace.patience, or within one second after the end of ctx. If open has ended, the error is the
// cause of that.
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
	return context.Cause(open) // nil, unless the connection has ended
}

// keep checks at intervals that the browser answers pings, and that who is still the user of the
// audience. It returns the error of the ping, errOther for another user, or the error of ctx.
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
