package tunnel

import (
	"context"
	"crypto"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/gorilla/websocket"
	"golang.org/x/sys/unix"
)

var (
	// ErrGone is what the hub says when the cluster has left the fleet. The agent is to remove itself.
	ErrGone = errors.New("the cluster has left the fleet")
	// ErrSilent tells that there was no connection to the hub for too long. Whoever runs the agent starts it anew, in case that something of it is stuck.
	ErrSilent = errors.New("no connection to the hub for too long")
)

// Agent keeps spare connections to a hub and pipes those that the hub takes to destinations in its cluster.
type Agent struct {
	// URL of the hub's tunnel, such as wss://orrery.example.com/tunnel/v1.
	URL string
	// TLS says whom to trust as the hub; nil: the system's authorities.
	TLS *tls.Config
	// Proxy of a request, as in http.Transport; nil: none.
	Proxy func(*http.Request) (*url.URL, error)
	// NetDial replaces the dialer of TCP connections; nil: net.Dialer.
	NetDial func(ctx context.Context, network, address string) (net.Conn, error)
	// Identity is the certificate of the agent and its key, as they are now.
	Identity func() (tls.Certificate, error)
	// Replica tells the agents of the cluster apart, and Version is this one's.
	Replica, Version string
	// Destinations are all that the hub may have dialled, by name.
	Destinations map[string]func(ctx context.Context) (net.Conn, error)
	Timing       Timing

	answered atomic.Int64 // when a spare answered last, in nanoseconds of the Unix epoch; 0: never
}

// Answered is when a spare answered a probe, or was made, last; zero if none has.
func (a *Agent) Answered() time.Time {
	if at := a.answered.Load(); at != 0 {
		return time.Unix(0, at)
	}
	return time.Time{}
}

// buffers are those that messages are written from, for as long as that takes.
var buffers = &sync.Pool{}

// bufferSize is that of the frames in which an agent sends: what TLS puts into one record, and what a copy reads at once.
const bufferSize = 16 << 10

// errAway tells that nobody answered where the hub should be, or only a balancer that finds none.
var errAway = errors.New("no hub is there")

// mostAway bounds the failures that make pauses longer while nobody answers: asking costs a hub nothing that is being started, and nobody is to wait for its
// agents much longer than for the hub.
const mostAway = 5

// spare is a connection to the hub, from when it was welcomed until it is taken or lost.
type spare struct {
	ws      *websocket.Conn
	writing sync.Mutex
	timing  Timing

	// The loop's own.
	probed time.Time // when the probe was sent that was not answered yet; zero: none was
	heard  time.Time
}

func (s *spare) say(w Word) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if err := s.ws.SetWriteDeadline(time.Now().Add(s.timing.Silence)); err != nil {
		return err
	}
	err := s.ws.WriteJSON(w)
	return errors.Join(err, s.ws.SetWriteDeadline(time.Time{}))
}

// grace is how long a spare that was taken is not replaced while there are others: the dial comes first, and then the work of making a
// connection.
const grace = 5 * time.Millisecond

// What the loop is told.
type (
	opened struct {
		number int
		spare  *spare
	}
	failed struct {
		number int
		err    error
	}
	answer   struct{ spare *spare }
	departed struct { // taken, or lost
		spare *spare
		taken bool
	}
)

// Run keeps spares until ctx ends, the cluster has left the fleet (ErrGone), or the hub was out of reach for too long (ErrSilent).
// Connections that are in use end with it.
func (a *Agent) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	l := &loop{agent: a, events: make(chan any), spares: map[*spare]bool{}, opening: map[int]attempt{}, alive: time.Now()}
	l.start = func(f func()) { running.Go(f) }
	tick := time.NewTicker(a.Timing.Probe)
	defer tick.Stop()
	for {
		retry := l.fill(ctx)
		select {
		case <-ctx.Done():
			l.dropAll()
			return ctx.Err()
		case <-retry:
		case <-tick.C:
			if err := l.probe(ctx, time.Now()); err != nil {
				return err
			}
		case e := <-l.events:
			if err := l.take(ctx, e, time.Now()); err != nil {
				l.dropAll()
				return err
			}
		}
	}
}

// loop is the state of a running agent. One goroutine has it.
type loop struct {
	agent  *Agent
	events chan any
	start  func(func())

	spares   map[*spare]bool
	opening  map[int]attempt // the connections that are being opened, by number
	opened   int
	failures int
	away     bool // nobody answered last
	// connected is whether the log says last that the hub was reached.
	connected bool
	notUntil  time.Time   // no connection is tried before
	alive     time.Time   // when the hub was heard last
	takes     []time.Time // of the last minute
	count     uint64
}

// attempt is a connection that is being opened.
type attempt struct {
	cancel context.CancelFunc
	since  time.Time
}

// tell hands an event to the loop, unless that has ended.
func (l *loop) tell(ctx context.Context, e any) {
	select {
	case l.events <- e:
	case <-ctx.Done():
	}
}

// fill opens connections until enough are there. The channel tells when to look again, where a pause is due. One that hangs while it is made
// does not count as being made any more, as long as it may still come: the way may work again for others.
func (l *loop) fill(ctx context.Context) <-chan time.Time {
	now, hang := time.Now(), 0
	for _, a := range l.opening {
		if now.Sub(a.since) >= l.agent.Timing.Silence {
			hang++
		}
	}
	missing := wanted(l.takes) - len(l.spares) - (len(l.opening) - hang)
	if missing <= 0 || hang > 0 && len(l.opening) > hang {
		return nil
	}
	if wait := l.notUntil.Sub(now); wait > 0 {
		return time.After(wait)
	}
	if hang > 0 {
		missing = 1
	}
	if l.failures > 0 {
		// One at a time finds out whether it goes again, and none waits for another, which may hang.
		missing = 1
		l.notUntil = now.Add(l.pause())
	}
	for range missing {
		l.opened++
		number := l.opened
		octx, cancel := context.WithCancel(ctx)
		l.opening[number] = attempt{cancel, now}
		l.start(func() { l.agent.open(ctx, octx, l, number) })
	}
	return l.fill(ctx)
}

// wanted is how many spares are kept: as many as were taken within one second of the last minute, and two.
func wanted(takes []time.Time) int {
	peak := 0
	for i := range takes {
		n := 0
		for n < len(takes)-i && takes[i+n].Sub(takes[i]) <= time.Second {
			n++
		}
		peak = max(peak, n)
	}
	return min(minSpares+peak, MaxSpares)
}

// take changes the state by an event.
func (l *loop) take(ctx context.Context, e any, now time.Time) error {
	log := logr.FromContextOrDiscard(ctx)
	switch e := e.(type) {
	case opened:
		l.settled(e.number)
		l.failures, l.notUntil = 0, time.Time{}
		if !l.connected {
			log.Info("connected to the hub")
		}
		l.connected = true
		e.spare.heard = now
		l.spares[e.spare] = true
		l.heard(now)
	case failed:
		l.settled(e.number)
		if errors.Is(e.err, ErrGone) {
			return e.err
		}
		if errors.Is(e.err, context.Canceled) {
			return nil // it was given up
		}
		l.connected = false
		l.away = errors.Is(e.err, errAway)
		if l.failures++; l.failures == 1 || l.failures%20 == 0 {
			log.Info("the hub cannot be reached", "cause", e.err.Error(), "failures", l.failures)
		}
		if l.notUntil.Before(now) {
			l.notUntil = now.Add(l.pause())
		}
	case answer:
		e.spare.probed, e.spare.heard = time.Time{}, now
		l.heard(now)
	case departed:
		delete(l.spares, e.spare)
		if e.taken {
			l.takes = append(slices.DeleteFunc(l.takes, func(t time.Time) bool { return now.Sub(t) > time.Minute }), now)
			if len(l.spares) > 0 && l.notUntil.Before(now) {
				l.notUntil = now.Add(grace)
			}
		}
	}
	return nil
}

// settled notes that a connection is not being opened any more.
func (l *loop) settled(number int) {
	l.opening[number].cancel()
	delete(l.opening, number)
}

func (l *loop) heard(now time.Time) {
	l.alive = now
	l.agent.answered.Store(now.UnixNano())
}

func (l *loop) pause() time.Duration {
	if l.away {
		return pause(l.agent.Timing, min(l.failures, mostAway))
	}
	return pause(l.agent.Timing, l.failures)
}

// pause after failures: twice as long each time, of which a random part is waited, so that agents that lost their hub at one moment do
// not come back at one.
func pause(t Timing, failures int) time.Duration {
	most := t.LastRetry
	if failures < 16 {
		most = min(most, t.FirstRetry<<(failures-1))
	}
	return most/4 + rand.N(most-most/4+1) //nolint:gosec // no secret
}

// probe asks one spare, and gives up those that did not answer: all of them if none did. One that is not needed any more goes as well.
func (l *loop) probe(ctx context.Context, now time.Time) error {
	t := l.agent.Timing
	l.takes = slices.DeleteFunc(l.takes, func(at time.Time) bool { return now.Sub(at) > time.Minute })
	if now.Sub(l.alive) > t.Exit {
		return ErrSilent
	}
	var next *spare
	for s := range l.spares {
		switch {
		case s.probed.IsZero():
			if next == nil || s.heard.Before(next.heard) {
				next = s
			}
		case now.Sub(s.probed) < t.Silence:
		case l.alive.Before(s.probed):
			logr.FromContextOrDiscard(ctx).Info("nothing is heard from the hub: connecting anew", "since", l.alive)
			l.connected = false
			l.dropAll()
			return nil
		default:
			l.drop(s)
		}
	}
	if len(l.spares) > wanted(l.takes) && next != nil {
		l.drop(next) // one at a time: the hub may be about to take one
		return nil
	}
	if next != nil {
		l.count++
		number := l.count
		next.probed = now
		l.start(func() { _ = next.say(Word{Probe: number}) }) // a write that fails is no answer
	}
	return nil
}

func (l *loop) drop(s *spare) {
	delete(l.spares, s)
	_ = s.ws.Close() // its goroutine ends with it
}

// dropAll gives up all spares, and the connections that are being opened: they hang as well.
func (l *loop) dropAll() {
	for _, a := range l.opening {
		a.cancel()
	}
	for s := range l.spares {
		l.drop(s)
	}
}

// open makes a spare, until opening ends, and serves it.
func (a *Agent) open(ctx, opening context.Context, l *loop, number int) {
	ws, err := a.connect(opening)
	if err != nil {
		l.tell(ctx, failed{number, err})
		return
	}
	stop := context.AfterFunc(ctx, func() { _ = ws.Close() })
	defer stop()
	defer ws.Close() //nolint:errcheck // whatever was said has arrived, or the other side knows
	s := &spare{ws: ws, timing: a.Timing}
	l.tell(ctx, opened{number, s})
	for {
		var w Word
		if err := ws.ReadJSON(&w); err != nil {
			l.tell(ctx, departed{spare: s})
			return
		}
		switch {
		case w.Probe != 0:
			l.tell(ctx, answer{s})
		case w.Dial != "":
			l.tell(ctx, departed{spare: s, taken: true})
			a.serve(ctx, s, w.Dial)
			return
		default:
			l.tell(ctx, departed{spare: s})
			return
		}
	}
}

// connect dials the hub and proves who the agent is.
func (a *Agent) connect(ctx context.Context) (*websocket.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, a.Timing.Handshake)
	defer cancel()
	ws, err := a.shake(ctx, a.URL)
	if err != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return ws, err
}

func (a *Agent) shake(ctx context.Context, to string) (*websocket.Conn, error) {
	dial := a.NetDial
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	stop := func() bool { return true }
	dialer := &websocket.Dialer{
		NetDialContext: func(dctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(dctx, network, address)
			if err == nil { // what is read and written until the WebSocket is there would not end with ctx
				stop = context.AfterFunc(ctx, func() { _ = conn.Close() })
			}
			return conn, err
		},
		Proxy: a.Proxy, TLSClientConfig: a.TLS, Subprotocols: []string{Protocol},
		ReadBufferSize: 1 << 10, WriteBufferSize: bufferSize, WriteBufferPool: buffers,
	}
	ws, resp, err := dialer.DialContext(ctx, to, nil)
	if resp != nil {
		defer resp.Body.Close() //nolint:errcheck // it was read, or is none
	}
	if err != nil {
		stop()
		switch {
		case resp == nil:
			return nil, fmt.Errorf("%w: %w", errAway, err)
		case resp.StatusCode == http.StatusBadGateway:
			return nil, fmt.Errorf("%w: a balancer answers %s", errAway, resp.Status)
		}
		return nil, fmt.Errorf("the hub answers %s: %w", resp.Status, err)
	}
	err = a.introduce(ws)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = ws.Close() // the error says more
		return nil, err
	}
	ws.SetReadLimit(MaxWord)
	return ws, nil
}

// Report tells the hub what is new, on a connection of its own to a URL with ReportPath, and returns what the hub says to that; ErrGone
// when the cluster has left the fleet. ctx bounds all of it: the hub tries what it is told before it answers.
func (a *Agent) Report(ctx context.Context, to string, r Report) (Receipt, error) {
	ws, err := a.shake(ctx, to)
	if err != nil {
		return Receipt{}, err
	}
	defer ws.Close() //nolint:errcheck // what was to be said is said
	stop := context.AfterFunc(ctx, func() { _ = ws.Close() })
	defer stop()
	ws.SetReadLimit(MaxReport)
	var receipt Receipt
	if err = ws.WriteJSON(r); err == nil {
		err = ws.ReadJSON(&receipt)
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return Receipt{}, fmt.Errorf("report to the hub: %w", context.Cause(ctx))
	case err != nil:
		return Receipt{}, fmt.Errorf("report to the hub: %w", err)
	case receipt.Gone:
		return Receipt{}, ErrGone
	}
	return receipt, nil
}

func (a *Agent) introduce(ws *websocket.Conn) error {
	ws.SetReadLimit(MaxHello)
	var c Challenge
	if err := ws.ReadJSON(&c); err != nil {
		return fmt.Errorf("read the hub's challenge: %w", err)
	}
	identity, err := a.Identity()
	if err != nil {
		return fmt.Errorf("read the agent's certificate: %w", err)
	}
	key, ok := identity.PrivateKey.(crypto.Signer)
	if !ok || len(identity.Certificate) == 0 {
		return errors.New("the agent has no certificate")
	}
	hello := Hello{Certificate: identity.Certificate[0], Replica: a.Replica, Version: a.Version}
	if hello.Signature, err = Prove(key, c.Nonce); err != nil {
		return err
	}
	if err := ws.WriteJSON(hello); err != nil {
		return fmt.Errorf("answer the hub's challenge: %w", err)
	}
	var w Welcome
	switch err := ws.ReadJSON(&w); {
	case err != nil:
		return fmt.Errorf("read the hub's verdict: %w", err)
	case w.Gone:
		return ErrGone
	case w.Refused != "":
		return fmt.Errorf("the hub refuses the agent: %s", w.Refused)
	}
	return nil
}

// serve dials what the hub asks for and pipes until either side ends.
func (a *Agent) serve(ctx context.Context, s *spare, destination string) {
	dial, ok := a.Destinations[destination]
	if !ok {
		_ = s.say(Word{Refused: fmt.Sprintf("the agent does not dial %q", destination)}) // it is closed anyway
		return
	}
	dctx, cancel := context.WithTimeout(ctx, a.Timing.Dial)
	defer cancel()
	conn, err := dial(dctx)
	if err != nil {
		_ = s.say(Word{Refused: err.Error()}) // it is closed anyway
		return
	}
	defer conn.Close() //nolint:errcheck // the pipe has ended
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if err := s.say(Word{OK: true}); err != nil {
		return
	}
	Pipe(NewStream(s.ws, a.Timing, nil), conn)
}

// Pipe copies both ways until one side ends, and closes both.
func Pipe(a, b net.Conn) {
	var both sync.WaitGroup
	half := func(to, from net.Conn) {
		p, _ := copies.Get().(*[]byte)
		defer copies.Put(p)
		_, _ = io.CopyBuffer(struct{ io.Writer }{to}, &yielding{from: from}, *p) // how it ended, its ends know
		_ = to.Close()
		_ = from.Close()
	}
	both.Go(func() { half(a, b) })
	both.Go(func() { half(b, a) })
	both.Wait()
}

var copies = sync.Pool{New: func() any { return new(make([]byte, bufferSize-64)) }}

// turn is how many bytes a connection copies until others have their turn.
const turn = 64 << 10

// yielding reads, and now and then lets other threads have the core. Kernels that do not preempt, as those of servers, would let one that
// copies what is always there go on until their next tick, 4 ms later, whoever waits for a few bytes of another connection.
type yielding struct {
	from io.Reader
	read int
}

// Read implements io.Reader.
func (y *yielding) Read(p []byte) (int, error) {
	if y.read >= turn {
		y.read = 0
		_, _, _ = unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0) // it never fails
	}
	n, err := y.from.Read(p)
	y.read += n
	return n, err
}
