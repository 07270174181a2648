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
	// ErrGone is returned when the hub reports that the cluster has left the fleet. The agent must
	// then remove itself.
	ErrGone = errors.New("the cluster has left the fleet")
	// ErrSilent is returned when there was no connection to the hub for Timing.Exit. The caller
	// restarts the agent, in case a part of it hangs.
	ErrSilent = errors.New("no connection to the hub for too long")
)

// Agent keeps spare connections to a hub. The hub uses a spare to connect to a destination in the
// agent's cluster.
type Agent struct {
	// URL of the hub's tunnel, such as wss://orrery.example.com/tunnel/v1.
	URL string
	// TLS verifies the hub; nil: with the system's certificate authorities.
	TLS *tls.Config
	// Proxy returns the proxy for a request, as in http.Transport; nil: none.
	Proxy func(*http.Request) (*url.URL, error)
	// NetDial replaces the dialer of TCP connections; nil: net.Dialer.
	NetDial func(ctx context.Context, network, address string) (net.Conn, error)
	// Identity returns the present certificate and key of the agent. It is called for each
	// connection.
	Identity func() (tls.Certificate, error)
	// Replica identifies the agent among the agents of the cluster. Version is its version.
	Replica, Version string
	// Destinations are the dial functions of all destinations that the hub may request, by name.
	Destinations map[string]func(ctx context.Context) (net.Conn, error)
	Timing       Timing

	answered atomic.Int64 // last answer of a spare, Unix nanoseconds; 0: none
}

// Answered returns the time at which a spare last answered a probe or was opened; zero if none has.
func (a *Agent) Answered() time.Time {
	if at := a.answered.Load(); at != 0 {
		return time.Unix(0, at)
	}
	return time.Time{}
}

// buffers are the write buffers of WebSockets, which borrow one for each message.
var buffers = &sync.Pool{}

// bufferSize is the size of a frame that an agent sends, and of one read in Pipe. TLS puts as much
// into one record.
const bufferSize = 16 << 10

// errAway means that no hub answered at its address: the connection failed, or a load balancer
// found no hub.
var errAway = errors.New("no hub is there")

// mostAway bounds the failures that lengthen the pause while no hub answers. Attempts cost a hub
// that is starting nothing, and agents should return soon after the hub.
const mostAway = 5

// spare is a connection to the hub, from the hub's Welcome until the hub uses it or it is lost.
type spare struct {
	ws      *websocket.Conn
	writing sync.Mutex
	timing  Timing

	// Used only by the goroutine of loop.
	probed time.Time // time of the probe without answer yet; zero: none
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

// grace delays the replacement of a used spare while others exist, so that the dial precedes the
// work of opening a connection.
const grace = 5 * time.Millisecond

// Events of the loop.
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
	departed struct { // used by the hub, or lost
		spare *spare
		taken bool
	}
)

// Run keeps spares until ctx ends, the cluster has left the fleet (ErrGone), or the hub was
// unreachable for too long (ErrSilent). Connections in use end with it.
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

// loop is the state of a running agent. Only the goroutine of Run uses it.
type loop struct {
	agent  *Agent
	events chan any
	start  func(func())

	spares   map[*spare]bool
	opening  map[int]attempt // being opened, by number
	opened   int
	failures int
	away     bool // no hub answered the last attempt
	// connected is true if the last log message about the connection was that it was made.
	connected bool
	notUntil  time.Time   // earliest time of the next attempt
	alive     time.Time   // time of the last message from the hub
	takes     []time.Time // uses of spares in the last minute
	count     uint64
}

// attempt is a connection that is being opened.
type attempt struct {
	cancel context.CancelFunc
	since  time.Time
}

// tell sends an event to the loop, unless ctx has ended.
func (l *loop) tell(ctx context.Context, e any) {
	select {
	case l.events <- e:
	case <-ctx.Done():
	}
}

// fill opens connections until there are enough spares. If it must pause first, the returned
// channel fires after the pause; else it is nil. An attempt that takes longer than Timing.Silence
// no longer counts. It may still succeed, and a new one may succeed earlier.
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
		// After a failure there is one attempt at a time. Attempts do not wait for each other,
		// since one may hang.
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

// wanted returns the number of spares to keep: two, and the largest number that was used within one
// second of the last minute.
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

// take applies an event to the state. It returns ErrGone when the cluster has left the fleet.
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
			return nil // the attempt was canceled
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

// settled removes a finished attempt.
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

// pause returns the delay after a number of failures. It doubles with each failure and has a random
// part: agents that lost their hub at the same moment do not return at the same moment.
func pause(t Timing, failures int) time.Duration {
	most := t.LastRetry
	if failures < 16 {
		most = min(most, t.FirstRetry<<(failures-1))
	}
	return most/4 + rand.N(most-most/4+1) //nolint:gosec // no secret
}

// probe probes the spare that answered longest ago. It drops spares that did not answer in time,
// and all spares if none answered. It also drops a spare that is no longer needed. It returns
// ErrSilent when no spare answered for Timing.Exit.
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
		l.drop(next) // one at a time: the hub may be using one
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

// dropAll closes all spares and cancels the attempts, which may hang as well.
func (l *loop) dropAll() {
	for _, a := range l.opening {
		a.cancel()
	}
	for s := range l.spares {
		l.drop(s)
	}
}

// open opens a spare and serves it until it ends. ctx bounds the spare, opening the attempt.
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

// connect opens a connection to the hub and authenticates the agent.
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
			if err == nil { // without the WebSocket, reads and writes do not end with ctx
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

// Report sends a report to the hub, on a new connection to a URL with ReportPath, and returns the
// answer. The error is ErrGone when the cluster has left the fleet. ctx bounds the whole call: the
// hub tries the credentials before it answers.
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

// serve dials the destination that the hub requests, and copies until either side ends.
func (a *Agent) serve(ctx context.Context, s *spare, destination string) {
	dial, ok := a.Destinations[destination]
	if !ok {
		_ = s.say(Word{Refused: fmt.Sprintf("the agent does not dial %q", destination)}) // closed anyway
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

// Pipe copies in both directions until one side ends, and closes both.
func Pipe(a, b net.Conn) {
	var both sync.WaitGroup
	half := func(to, from net.Conn) {
		p, _ := copies.Get().(*[]byte)
		defer copies.Put(p)
		_, _ = io.CopyBuffer(struct{ io.Writer }{to}, &yielding{from: from}, *p) // a and b report errors
		_ = to.Close()
		_ = from.Close()
	}
	both.Go(func() { half(a, b) })
	both.Go(func() { half(b, a) })
	both.Wait()
}

var copies = sync.Pool{New: func() any { return new(make([]byte, bufferSize-64)) }}

// turn is the number of bytes that a connection copies before it yields the CPU.
const turn = 64 << 10

// yielding reads, and regularly yields the core to other threads. A kernel without preemption,
// common on servers, would run a thread with endless data until the next tick, after 4 ms. Small
// messages on other connections would wait for as long.
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
