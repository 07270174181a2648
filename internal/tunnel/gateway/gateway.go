// Package gateway is the hub's side of the tunnel: it accepts the agents of clusters, keeps the spare connections that they bring, and
// dials clusters through them. It knows no controller: who may come in is asked, and what became of agents is told.
package gateway

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/gorilla/websocket"
	"golang.org/x/time/rate"

	"orrery.dev/orrery/internal/tunnel"
)

// Bounds of what agents may have the hub keep.
const (
	// maxHandshakes bounds the connections that have not proven who they are.
	maxHandshakes = 256
	// maxReplicas bounds the agents of one cluster.
	maxReplicas = 8
	// An agent that says more than wordsPerSecond on a spare for longer than a few seconds is no agent.
	wordsPerSecond, wordsAtOnce = 2, 16
)

// ErrGone is to be returned by Admit for an agent whose cluster has left the fleet.
var ErrGone = tunnel.ErrGone

// Options say for whom a Gateway works.
type Options struct {
	// Admit judges a certificate with whose key a challenge was signed: which cluster its agent speaks for. An error refuses the
	// agent and is shown to it; ErrGone tells it to remove itself, also by a certificate that has ended, which lets nobody in.
	Admit func(ctx context.Context, certificate *x509.Certificate) (cluster string, err error)
	// Changed is told when the agents of a cluster came, went or changed. It must not block. It may be nil.
	Changed func(cluster string)
	Timing  tunnel.Timing
	Log     logr.Logger
}

// Gateway accepts agents, as an http.Handler at tunnel.Path, and dials clusters through them.
type Gateway struct {
	options    Options
	upgrader   websocket.Upgrader
	handshakes chan struct{}

	mu        sync.Mutex
	clusters  map[string]*cluster
	reporting map[string]bool // the clusters of which a report is being taken
	ended     bool
}

// cluster is what is known of the agents of one.
type cluster struct {
	name     string
	replicas map[string]*replica
	spares   []*spare // the one that was heard last comes last
	open     map[*held]bool
	arrived  chan struct{} // closed when a spare arrives, and made anew
	waiting  int           // dials that wait for it
}

// replica is one agent.
type replica struct {
	agent  Agent
	spares int
	heard  time.Time
	silent *time.Timer
	// certificate by which it came last. Connections share it while it is the same one.
	certificate *x509.Certificate
}

// Agent is what is known of one that is connected.
type Agent struct {
	// Replica tells the agents of a cluster apart.
	Replica, Version string
	// Address from which it came last: that of the last proxy in front of the hub.
	Address string
	// Spares that it has at the hub.
	Spares int
	// Since is when it connected, after it was away.
	Since time.Time
	// CertificateEnds is when its certificate does.
	CertificateEnds time.Time
}

// held is a connection to an agent, whatever it is used for.
type held struct {
	ws          *websocket.Conn
	certificate *x509.Certificate
	expiry      *time.Timer
}

// spare is a connection that waits to be taken.
type spare struct {
	held

	of       *cluster
	by       *replica
	heard    time.Time // the gateway's lock guards it
	writing  sync.Mutex
	dialling atomic.Bool
	answer   chan tunnel.Word // of the agent, after a dial; closed when the connection ends before
}

// New returns a Gateway.
func New(o Options) *Gateway {
	if o.Changed == nil {
		o.Changed = func(string) {}
	}
	return &Gateway{
		options: o, handshakes: make(chan struct{}, maxHandshakes), clusters: map[string]*cluster{}, reporting: map[string]bool{},
		upgrader: websocket.Upgrader{
			Subprotocols: []string{tunnel.Protocol}, HandshakeTimeout: o.Timing.Handshake,
			ReadBufferSize: 1 << 10, WriteBufferSize: 16 << 10, WriteBufferPool: &sync.Pool{},
			CheckOrigin: func(r *http.Request) bool { return r.Header.Get("Origin") == "" }, // agents are no browsers
		},
	}
}

// ServeHTTP implements http.Handler.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if ws := g.upgrade(w, r); ws != nil {
		// The goroutine of the request would keep its buffers.
		go g.greet(ws, r.RemoteAddr) //nolint:contextcheck // the connection outlives the request
	}
}

// upgrade makes a WebSocket of a request, and takes a place among those that have not proven who they are. It returns nil if there is
// none, or the request is for something else; the client was told then.
func (g *Gateway) upgrade(w http.ResponseWriter, r *http.Request) *websocket.Conn {
	select {
	case g.handshakes <- struct{}{}:
	default:
		refusals.WithLabelValues("Busy").Inc()
		w.Header().Set("Retry-After", "1")
		http.Error(w, "too many agents are connecting at once; try again", http.StatusServiceUnavailable)
		return nil
	}
	if !slices.Contains(websocket.Subprotocols(r), tunnel.Protocol) {
		<-g.handshakes
		refusals.WithLabelValues("Protocol").Inc()
		http.Error(w, "this is where agents of clusters connect, with the WebSocket subprotocol "+tunnel.Protocol, http.StatusBadRequest)
		return nil
	}
	ws, err := g.upgrader.Upgrade(w, r, nil)
	if err != nil { // the client was told
		<-g.handshakes
		refusals.WithLabelValues("Protocol").Inc()
		return nil
	}
	return ws
}

// greet finds out who an agent is, and keeps its spare.
func (g *Gateway) greet(ws *websocket.Conn, address string) {
	ctx, cancel := context.WithTimeout(context.Background(), g.options.Timing.Handshake)
	stop := context.AfterFunc(ctx, func() { _ = ws.Close() })
	hello, certificate, name, err := g.meet(ctx, ws)
	var s *spare
	if err == nil {
		s, err = g.keep(ws, certificate, name, hello, address)
	}
	if err == nil { // a Recheck of a revocation since it was judged did not see it
		_, err = g.options.Admit(ctx, certificate)
	}
	if err != nil {
		g.refuse(ws, address, name, err)
	} else if err = s.write(tunnel.Welcome{}, g.options.Timing.Silence); err == nil && stop() {
		cancel()
		<-g.handshakes
		g.admit(s)
		g.listen(s)
		return
	}
	cancel()
	_ = ws.Close()
	<-g.handshakes
	if s != nil {
		g.release(s.of, &s.held)
	}
}

// refuse tells an agent that it may not come in.
func (g *Gateway) refuse(ws *websocket.Conn, address, cluster string, err error) {
	refusals.WithLabelValues("Identity").Inc()
	g.options.Log.V(1).Info("agent refused", "address", address, "cluster", cluster, "cause", err.Error())
	_ = ws.WriteJSON(tunnel.Welcome{Refused: err.Error(), Gone: errors.Is(err, ErrGone)}) // it may have gone
}

// meet challenges an agent.
func (g *Gateway) meet(ctx context.Context, ws *websocket.Conn) (hello tunnel.Hello, certificate *x509.Certificate, cluster string, err error) {
	ws.SetReadLimit(tunnel.MaxHello)
	challenge := tunnel.Challenge{Nonce: make([]byte, 32)}
	_, _ = rand.Read(challenge.Nonce) // it never fails
	if err = ws.WriteJSON(challenge); err != nil {
		return hello, nil, "", err
	}
	if err = ws.ReadJSON(&hello); err != nil {
		return hello, nil, "", fmt.Errorf("no answer to the challenge can be read: %w", err)
	}
	if len(hello.Replica) == 0 || len(hello.Replica) > 253 || len(hello.Version) > 64 {
		return hello, nil, "", errors.New("replica and version are missing, or too long")
	}
	if certificate, err = x509.ParseCertificate(hello.Certificate); err != nil {
		return hello, nil, "", errors.New("the certificate cannot be read")
	}
	if err = tunnel.Proven(certificate, challenge.Nonce, hello.Signature); err != nil {
		return hello, nil, "", err
	}
	cluster, err = g.options.Admit(ctx, certificate)
	if time.Now().After(certificate.NotAfter) && !errors.Is(err, ErrGone) {
		return hello, nil, "", fmt.Errorf("the certificate expired at %s; run orrery cluster rejoin where the hub is administered", certificate.NotAfter.UTC().Format(time.RFC3339))
	}
	return hello, certificate, cluster, err
}

// keep notes a connection of an agent that was admitted.
func (g *Gateway) keep(ws *websocket.Conn, certificate *x509.Certificate, name string, hello tunnel.Hello, address string) (*spare, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		return nil, errors.New("the hub stops")
	}
	c := g.find(name)
	r := c.replicas[hello.Replica]
	if r == nil {
		if len(c.replicas) >= maxReplicas {
			return nil, fmt.Errorf("cluster %s has %d agents already", name, maxReplicas)
		}
		r = &replica{agent: Agent{Since: time.Now()}, heard: time.Now()}
		r.silent = time.AfterFunc(g.limit(), func() { g.judge(c, r) })
		c.replicas[hello.Replica] = r
	}
	r.agent.Replica, r.agent.Version, r.agent.Address, r.agent.CertificateEnds = hello.Replica, hello.Version, address, certificate.NotAfter
	if r.certificate.Equal(certificate) {
		certificate = r.certificate
	}
	r.certificate = certificate
	s := &spare{of: c, by: r, answer: make(chan tunnel.Word, 1)}
	s.held = held{ws: ws, certificate: certificate}
	s.expiry = time.AfterFunc(time.Until(certificate.NotAfter), func() { _ = ws.Close() })
	c.open[&s.held] = true
	return s, nil
}

// admit lets a spare be taken.
func (g *Gateway) admit(s *spare) {
	s.ws.SetReadLimit(tunnel.MaxWord)
	g.mu.Lock()
	c, r := s.of, s.by
	if r.spares >= tunnel.MaxSpares { // the agent has given up one, and the hub was not told
		oldest := c.spares[slices.IndexFunc(c.spares, func(o *spare) bool { return o.by == r })]
		g.leave(oldest)
		go func() { _ = oldest.ws.Close() }() // as in judge
	}
	if g.ended || c.replicas[r.agent.Replica] != r {
		g.mu.Unlock()
		_ = s.ws.Close() // its listener finds it closed
		return
	}
	r.spares++
	r.heard = time.Now()
	s.heard = r.heard
	c.spares = append(c.spares, s)
	close(c.arrived)
	c.arrived = make(chan struct{})
	g.mu.Unlock()
	g.options.Changed(c.name)
}

// limit is how long an agent may say nothing.
func (g *Gateway) limit() time.Duration { return g.options.Timing.Probe + g.options.Timing.Silence }

// judge gives up an agent that has been silent for too long, and its spares.
func (g *Gateway) judge(c *cluster, r *replica) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		return
	}
	if since := time.Since(r.heard); since < g.limit() {
		r.silent.Reset(g.limit() - since)
		return
	}
	for _, s := range slices.Clone(c.spares) {
		if s.by == r {
			g.leave(s)
			go func() { _ = s.ws.Close() }() // it may take its time; its listener sees to the rest
		}
	}
	delete(c.replicas, r.agent.Replica)
	g.tidy(c)
	go g.options.Changed(c.name)
}

// listen hears what an agent says on a spare, until that is taken or lost. One on which nothing is said while the agent could have probed
// all that it has was given up by the agent, and whatever is between did not tell.
func (g *Gateway) listen(s *spare) {
	words := rate.NewLimiter(wordsPerSecond, wordsAtOnce)
	for {
		var w tunnel.Word
		err := s.ws.SetReadDeadline(time.Now().Add(tunnel.MaxSpares*g.options.Timing.Probe + g.limit()))
		if err == nil {
			err = s.ws.ReadJSON(&w)
		}
		switch {
		case err != nil:
		case w.Probe != 0:
			if err = errors.New("too many words"); words.Allow() {
				g.heard(s)
				err = s.write(tunnel.Word{Probe: w.Probe}, g.options.Timing.Silence)
			}
		case s.dialling.Load() && (w.OK || w.Refused != ""):
			_ = s.ws.SetReadDeadline(time.Time{}) // if it is closed, whoever reads is told
			s.answer <- w
			return // whoever dialled has it now
		default:
			err = errors.New("a word that is none")
		}
		if err != nil {
			_ = s.ws.Close()
			close(s.answer)
			g.lost(s)
			return
		}
	}
}

// heard notes that the agent of a spare is there. The spare is the next to be taken.
func (g *Gateway) heard(s *spare) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s.by.heard = time.Now()
	s.heard = s.by.heard
	if i := slices.Index(s.of.spares, s); i >= 0 {
		s.of.spares = append(slices.Delete(s.of.spares, i, i+1), s)
	}
}

// write says something to an agent, which must take it within a time.
func (s *spare) write(w any, within time.Duration) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if err := s.ws.SetWriteDeadline(time.Now().Add(within)); err != nil {
		return err
	}
	return errors.Join(s.ws.WriteJSON(w), s.ws.SetWriteDeadline(time.Time{}))
}

// lost forgets a spare that was not taken, or that ended before the agent had answered the dial.
func (g *Gateway) lost(s *spare) {
	g.mu.Lock()
	g.leave(s)
	g.mu.Unlock()
	g.release(s.of, &s.held)
}

// leave takes a spare out of those that can be taken. The lock is held.
func (g *Gateway) leave(s *spare) {
	if i := slices.Index(s.of.spares, s); i >= 0 {
		s.of.spares = slices.Delete(s.of.spares, i, i+1)
		s.by.spares--
	}
}

// release forgets a connection that has ended.
func (g *Gateway) release(c *cluster, h *held) {
	h.expiry.Stop()
	g.mu.Lock()
	delete(c.open, h)
	g.tidy(c)
	g.mu.Unlock()
	g.options.Changed(c.name)
}

// tidy forgets a cluster of which nothing is left. The lock is held.
func (g *Gateway) tidy(c *cluster) {
	if len(c.replicas) == 0 && len(c.open) == 0 && c.waiting == 0 && g.clusters[c.name] == c {
		delete(g.clusters, c.name)
	}
}

// find returns what is known of a cluster, which may be nothing yet. The lock is held.
func (g *Gateway) find(name string) *cluster {
	c := g.clusters[name]
	if c == nil {
		c = &cluster{name: name, replicas: map[string]*replica{}, open: map[*held]bool{}, arrived: make(chan struct{})}
		g.clusters[name] = c
	}
	return c
}

// Agents are those of a cluster that are connected, by replica.
func (g *Gateway) Agents(cluster string) []Agent {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := g.clusters[cluster]
	if c == nil {
		return nil
	}
	agents := make([]Agent, 0, len(c.replicas))
	for _, r := range c.replicas {
		if r.spares > 0 {
			agent := r.agent
			agent.Spares = r.spares
			agents = append(agents, agent)
		}
	}
	slices.SortFunc(agents, func(a, b Agent) int { return strings.Compare(a.Replica, b.Replica) })
	return agents
}

// Clusters are those of which anything is connected.
func (g *Gateway) Clusters() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Sorted(maps.Keys(g.clusters))
}

// Recheck asks anew for each connection of a cluster whether its agent may come in, and closes those of which it may not, whatever
// they are used for.
func (g *Gateway) Recheck(ctx context.Context, cluster string) {
	g.mu.Lock()
	var all []*held
	if c := g.clusters[cluster]; c != nil {
		all = slices.Collect(maps.Keys(c.open))
	}
	g.mu.Unlock()
	verdicts := map[*x509.Certificate]error{}
	for _, h := range all {
		err, known := verdicts[h.certificate]
		if !known {
			var now string
			if now, err = g.options.Admit(ctx, h.certificate); err == nil && now != cluster {
				err = errors.New("it is of another cluster")
			}
			verdicts[h.certificate] = err
		}
		if err != nil && ctx.Err() == nil {
			_ = h.ws.Close()
		}
	}
}

// Close closes every connection, and lets none in any more.
func (g *Gateway) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended = true
	for _, c := range g.clusters {
		for h := range c.open {
			go func() { _ = h.ws.Close() }()
		}
		for _, r := range c.replicas {
			r.silent.Stop()
		}
	}
}
