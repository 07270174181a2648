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
	// ErrGone is the error of Agent when the hub reports that the cluster has left the fleet. The
	// agent must then remove itself.
	ErrGone = errors.New("the cluster has left the fleet")
	// ErrSilent is the error of Agent.Run when the hub was unreachable for Timing.Exit. The caller
	// restarts the agent, in case a part of it hangs.
	ErrSilent = errors.New("no connection to the hub for too long")
)

// Agent keeps spare connections to a hub: WebSockets that wait until the hub uses them. The hub
// uses a spare to connect to a destination in the agent's cluster, such as its API server. The
// fields must not change while Run runs.
type Agent struct {
	// URL of the hub's tunnel, such as wss://orrery.example.com/tunnel/v1.
	URL string
	// TLS verifies the hub; nil: with the system's certificate authorities.
	TLS *tls.Config
	// Proxy returns the proxy for a request, as in http.Transport; nil: none.
	Proxy func(*http.Request) (*url.URL, error)
	// NetDial replaces the dialer of TCP connections; nil: net.Dialer.
	NetDial func(ctx context.Context, network, address string) (net.Conn, error)
	// Identity returns the present certificate and key of the agent. It is called for each connection
	// to the hub, from several goroutines.
	Identity func() (tls.Certificate, error)
	// Replica identifies the agent among the agents of the cluster. Version is its version.
	Replica, Version string
	// Destinations has a dial function for each destination in the cluster that the hub may request,
	// by name (such as APIServer). The agent refuses all other names.
	Destinations map[string]func(ctx context.Context) (net.Conn, error)
	Timing       Timing

	answered atomic.Int64 // time of Answered, Unix nanoseconds; 0: none
}

// Answered returns the time at which the hub last answered a probe or accepted a new spare
// connection. It is zero if the hub has not answered yet. The agent's readiness check uses it. It
// may be called at any time.
func (a *Agent) Answered() time.Time {
	if at := a.answered.Load(); at != 0 {
		return time.Unix(0, at)
	}
	return time.Time{}
}

// buffers are the write buffers of the WebSockets to the hub.
var buffers = &sync.Pool{}

// bufferSize is the size in bytes of the largest frame that an agent sends, and of a TLS record.
const bufferSize = 16 << 10

// errAway means that no hub answered at its address: the connection failed, or a load balancer
// answered 502 because it found no hub.
var errAway = errors.New("no hub is there")

// mostAway is the number of failures after which the pause between attempts does not grow any more,
// while no hub answers. So agents reconnect soon after the hub has started. Attempts before that
// cost the hub nothing.
const mostAway = 5

// spare is an open connection to the hub that is not in use. It begins with the hub's Welcome, and
// ends when the hub uses the connection or it is lost.
type spare struct {
	ws      *websocket.Conn
	writing sync.Mutex
	timing  Timing

	// Only the goroutine of Run uses these two fields.
	probed time.Time // time of the probe that is not answered yet; zero: none
	heard  time.Time // time of the last answer
}

// say sends a message to the hub on the spare. It is an error if the message is not sent within
// Timing.Silence. Several goroutines may call it.
func (s *spare) say(w Word) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if err := s.ws.SetWriteDeadline(time.Now().Add(s.timing.Silence)); err != nil {
		return err
	}
	err := s.ws.WriteJSON(w)
	return errors.Join(err, s.ws.SetWriteDeadline(time.Time{}))
}

// grace delays the replacement of a spare that the hub has begun to use, while other spares exist.
// So the dial of the destination comes before the work of opening a connection.
const grace = 5 * time.Millisecond

// Events that goroutines send to Run with loop.tell: a spare was opened, an attempt to open one
// failed, the hub answered on a spare, a spare is no longer available. number is that of the
// attempt.
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
	departed struct { // taken: the hub uses the spare; else the spare is lost
		spare *spare
		taken bool
	}
)

// Run keeps spare connections to the hub, and connects the hub to destinations through them. It
// returns the error of ctx when ctx ends, and ErrGone when the cluster has left the fleet. It
// returns ErrSilent when the hub was unreachable for Timing.Exit. It retries after all other
// failures, and logs the first and every 20th of a series. Before it returns, it closes all
// connections, also those in use, and waits for its goroutines.
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

// loop is the state of a running agent. Only the goroutine of Run uses it; other goroutines only
// call tell.
type loop struct {
	agent  *Agent
	events chan any
	start  func(func())

	spares   map[*spare]bool
	opening  map[int]attempt // unfinished attempts, by number
	opened   int             // number of the last attempt
	failures int
	away     bool // no hub answered the last attempt
	// connected is true if the last log message about the connection was that the agent connected.
	connected bool
	notUntil  time.Time   // earliest time of the next attempt
	alive     time.Time   // time of the last message from the hub
	takes     []time.Time // uses of spares in the last minute
	count     uint64
}

// attempt is a connection to the hub that is being opened. since is when that began; cancel ends
// it.
type attempt struct {
	cancel context.CancelFunc
	since  time.Time
}

// tell sends an event to Run, and blocks until Run has received it or ctx has ended.
func (l *loop) tell(ctx context.Context, e any) {
	select {
	case l.events <- e:
	case <-ctx.Done():
	}
}

// fill opens connections in the background until there are as many spares as wanted. If it must
// pause first, it returns a channel that fires after the pause. nil means that nothing is missing,
// or that an attempt is under way. An attempt that takes longer than Timing.Silence is not counted
// any more, so that fill begins another one. The slow attempt may still succeed.
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
		// After a failure there is one attempt at a time. The next attempt does not wait for the end of
		// this one, since it may hang.
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

// wanted returns how many spare connections an agent should keep: minSpares plus the largest number
// that the hub used within one second, at most MaxSpares. takes are the times at which the hub used
// a spare in the last minute, in order.
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

// take applies an event of a connection to the state of the agent. The error is ErrGone if the
// cluster has left the fleet. Other failures only delay the next attempt, and the result is nil.
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

// settled removes the attempt with this number, which has ended, and releases its context.
func (l *loop) settled(number int) {
	l.opening[number].cancel()
	delete(l.opening, number)
}

// heard records that the hub answered at now.
func (l *loop) heard(now time.Time) {
	l.alive = now
	l.agent.answered.Store(now.UnixNano())
}

// pause returns the delay before the next attempt, after l.failures failures in a row. While no hub
// answers, it does not grow after mostAway failures.
func (l *loop) pause() time.Duration {
	if l.away {
		return pause(l.agent.Timing, min(l.failures, mostAway))
	}
	return pause(l.agent.Timing, l.failures)
}

// pause returns the delay after a number of failures in a row, which is at least 1. The delay
// doubles with each failure from FirstRetry up to LastRetry. Part of it is random, so that agents
// that lost their hub at the same moment do not return at the same moment.
func pause(t Timing, failures int) time.Duration {
	most := t.LastRetry
	if failures < 16 {
		most = min(most, t.FirstRetry<<(failures-1))
	}
	return most/4 + rand.N(most-most/4+1) //nolint:gosec // no secret
}

// probe sends a probe on the spare whose last answer is the oldest. Run calls it every
// Timing.Probe. It drops spares on which a probe was not answered in time, and all spares if the
// hub answered on none. If there are more spares than wanted, it drops one instead of the probe. It
// returns ErrSilent if no spare was answered for Timing.Exit.
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
		l.drop(next) // only one, because the hub may have begun to use it
		return nil
	}
	if next != nil {
		l.count++
		number := l.count
		next.probed = now
		l.start(func() { _ = next.say(Word{Probe: number}) }) // a failed write gets no answer
	}
	return nil
}

// drop closes a spare connection and removes it from l.spares.
func (l *loop) drop(s *spare) {
	delete(l.spares, s)
	_ = s.ws.Close() // the goroutine of the spare ends with the connection
}

// dropAll closes all spares, and cancels the attempts to open more, which may hang as well.
func (l *loop) dropAll() {
	for _, a := range l.opening {
		a.cancel()
	}
	for s := range l.spares {
		l.drop(s)
	}
}

// open opens a spare connection and serves it until the connection ends. It sends l an event for
// each change. The end of ctx closes the connection. The end of opening only ends the attempt to
// open it. number is that of the attempt. fill starts open as a goroutine.
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

// connect opens a connection to the hub at a.URL and authenticates the agent, within
// Timing.Handshake. The error is ErrGone when the cluster has left the fleet, and wraps
// errAway if no hub answered.
func (a *Agent) connect(ctx context.Context) (*websocket.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, a.Timing.Handshake)
	defer cancel()
	ws, err := a.shake(ctx, a.URL)
	if err != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return ws, err
}

// shake opens a connection to a URL of the hub and authenticates the agent. The end of ctx ends
// shake, but not the open connection. The error is ErrGone if the cluster has left the fleet, and
// wraps errAway if no hub answered.
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

// Report sends the agent's report, with new credentials for its cluster, to the hub. It returns the
// hub's answer. to is the URL of ReportPath, to which it opens a new connection. A Receipt with
// Refused is no error. The error is ErrGone if the cluster has left the fleet. ctx limits the whole
// call, in which the hub tries the reported credentials. Report does not require that Run runs.
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

// introduce authenticates the agent on a new connection: it answers the hub's challenge with the
// certificate and a signature, and reads the hub's decision. The error is ErrGone when the cluster
// has left the fleet, or has the hub's reason for a refusal.
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

// serve connects a spare to the destination that the hub requests, and copies bytes until either
// side ends. If it cannot dial the destination, it sends the hub the reason. It closes the
// connection to the destination; the caller closes the spare.
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
		_ = s.say(Word{Refused: err.Error()}) // the connection is closed anyway
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

// Pipe copies bytes between two connections in both directions until one of them ends. It then
// closes both, and returns when both copies have ended. Errors are not reported.
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

// copies are the buffers of Pipe. A buffer with the header of its frame fits into bufferSize.
var copies = sync.Pool{New: func() any { return new(make([]byte, bufferSize-64)) }}

// yieldAfter is the number of bytes that a direction of Pipe copies before it yields the CPU.
const yieldAfter = 64 << 10

// yielding is a reader that yields the CPU to other threads after every yieldAfter bytes. A kernel
// without preemption, common on servers, would run a thread with endless data until the next tick,
// after 4 ms. Small messages on other connections would wait for as long.
type yielding struct {
	from io.Reader
	read int
}

// Read implements io.Reader. It yields the CPU first if yieldAfter bytes were read since the last
// time.
func (y *yielding) Read(p []byte) (int, error) {
	if y.read >= yieldAfter {
		y.read = 0
		_, _, _ = unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0) // it never fails
	}
	n, err := y.from.Read(p)
	y.read += n
	return n, err
}
