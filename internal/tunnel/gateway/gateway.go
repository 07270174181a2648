// Package gateway is the hub's side of the tunnel. It accepts the agents of clusters, keeps their
// spare connections, and dials clusters through them. Callbacks in Options admit agents and receive
// changes, so the package depends on no controller.
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

	"orrery.dev/orrery/internal/slots"
	"orrery.dev/orrery/internal/tunnel"
)

// Limits on what agents can make the hub hold.
const (
	// maxHandshakes bounds the connections that are not authenticated yet; see slots.Pool.
	maxHandshakes = 256
	// maxReplicas bounds the agents of one cluster.
	maxReplicas = 8
	// A spare on which an agent sends more than wordsPerSecond, after a burst of wordsAtOnce, is
	// closed.
	wordsPerSecond, wordsAtOnce = 2, 16
)

// ErrGone is the error that Admit returns for an agent whose cluster has left the fleet.
var ErrGone = tunnel.ErrGone

// Options of a Gateway.
type Options struct {
	// Admit returns the cluster of a certificate whose key signed a challenge. An error refuses the
	// agent and is sent to it. ErrGone makes the agent remove itself, even with an expired
	// certificate, which is never admitted.
	Admit func(ctx context.Context, certificate *x509.Certificate) (cluster string, err error)
	// Changed is called when agents of a cluster connected, disconnected or changed. It must not
	// block. It may be nil.
	Changed func(cluster string)
	Timing  tunnel.Timing
	Log     logr.Logger
}

// Gateway accepts agents, as an http.Handler at tunnel.Path, and dials clusters through them.
type Gateway struct {
	options    Options
	upgrader   websocket.Upgrader
	handshakes *slots.Pool

	mu        sync.Mutex
	clusters  map[string]*cluster
	reporting map[string]bool // clusters with a report in progress
	ended     bool
}

// cluster holds the agents and connections of one cluster.
type cluster struct {
	name     string
	replicas map[string]*replica
	spares   []*spare // the one that was heard last comes last
	open     map[*held]bool
	arrived  chan struct{} // closed and replaced when a spare arrives
	waiting  int           // dials that wait for a spare
}

// replica is one agent.
type replica struct {
	agent  Agent
	spares int
	heard  time.Time
	silent *time.Timer
	// certificate of its last connection. Connections share the value if the certificate is the
	// same.
	certificate *x509.Certificate
}

// Agent describes a connected agent.
type Agent struct {
	// Replica identifies the agent among the agents of the cluster.
	Replica, Version string
	// Address of the client of its last connection: the agent, or the last proxy in front of the
	// hub.
	Address string
	// Spares is the number of its spares.
	Spares int
	// Since is when it connected, after it was away.
	Since time.Time
	// CertificateEnds is when its certificate expires.
	CertificateEnds time.Time
}

// held is a connection to an agent: a spare, or a connection in use.
type held struct {
	ws          *websocket.Conn
	certificate *x509.Certificate
	expiry      *time.Timer
}

// spare is a connection that waits to be used.
type spare struct {
	held

	of       *cluster
	by       *replica
	heard    time.Time // guarded by the gateway's mu
	writing  sync.Mutex
	dialling atomic.Bool
	answer   chan tunnel.Word // to a dial; closed if the connection ends first
}

// New returns a Gateway.
func New(o Options) *Gateway {
	if o.Changed == nil {
		o.Changed = func(string) {}
	}
	return &Gateway{
		options: o, clusters: map[string]*cluster{}, reporting: map[string]bool{},
		upgrader: websocket.Upgrader{
			Subprotocols: []string{tunnel.Protocol}, HandshakeTimeout: o.Timing.Handshake,
			ReadBufferSize: 1 << 10, WriteBufferSize: 16 << 10, WriteBufferPool: &sync.Pool{},
			// Agents are no browsers.
			CheckOrigin: func(r *http.Request) bool { return r.Header.Get("Origin") == "" },
		},
		handshakes: slots.New(slots.Options{Limit: maxHandshakes, Closed: refusals.WithLabelValues("Busy").Inc, Log: o.Log}),
	}
}

// ServeHTTP implements http.Handler.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if ws, slot := g.upgrade(w, r); ws != nil {
		// The goroutine of the request would keep its buffers.
		go g.greet(ws, slot, r.RemoteAddr) //nolint:contextcheck // the connection outlives the request
	}
}

// upgrade turns a request into a WebSocket, and takes a handshake slot, which the caller releases.
// The connection is closed when another one needs the slot. upgrade returns nil if the request is
// invalid; the client has its answer then.
func (g *Gateway) upgrade(w http.ResponseWriter, r *http.Request) (*websocket.Conn, *slots.Slot) {
	if !slices.Contains(websocket.Subprotocols(r), tunnel.Protocol) {
		refusals.WithLabelValues("Protocol").Inc()
		http.Error(w, "this is where agents of clusters connect, with the WebSocket subprotocol "+tunnel.Protocol, http.StatusBadRequest)
		return nil, nil
	}
	ws, err := g.upgrader.Upgrade(w, r, nil)
	if err != nil { // Upgrade has answered
		refusals.WithLabelValues("Protocol").Inc()
		return nil, nil
	}
	drop := func() { go func() { _ = ws.Close() }() } // Close may block
	return ws, g.handshakes.Take(r.RemoteAddr, drop)
}

// greet authenticates an agent and keeps its connection as a spare.
func (g *Gateway) greet(ws *websocket.Conn, slot *slots.Slot, address string) {
	ctx, cancel := context.WithTimeout(context.Background(), g.options.Timing.Handshake)
	stop := context.AfterFunc(ctx, func() { _ = ws.Close() })
	hello, certificate, name, err := g.meet(ctx, ws)
	slot.Heard()
	var s *spare
	if err == nil {
		s, err = g.keep(ws, certificate, name, hello, address)
	}
	if err == nil { // a Recheck after meet did not see the connection
		_, err = g.options.Admit(ctx, certificate)
	}
	if err != nil {
		g.refuse(ws, slot, address, name, err)
	} else if err = s.write(tunnel.Welcome{}, g.options.Timing.Silence); err == nil && stop() {
		cancel()
		slot.Release()
		g.admit(s)
		g.listen(s)
		return
	}
	cancel()
	_ = ws.Close()
	slot.Release()
	if s != nil {
		g.release(s.of, &s.held)
	}
}

// refuse sends the reason to the agent, and counts and logs the refusal. A connection that lost its
// slot is closed already, and counted as Busy.
func (g *Gateway) refuse(ws *websocket.Conn, slot *slots.Slot, address, cluster string, err error) {
	if !slot.Held() {
		return
	}
	refusals.WithLabelValues("Identity").Inc()
	g.options.Log.V(1).Info("agent refused", "address", address, "cluster", cluster, "cause", err.Error())
	// The agent may be gone.
	_ = ws.WriteJSON(tunnel.Welcome{Refused: err.Error(), Gone: errors.Is(err, ErrGone)})
}

// meet sends a challenge and verifies the answer. It returns the cluster of the agent.
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

// keep registers a connection of an admitted agent. It fails if the cluster has too many agents, or
// the hub stops.
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

// admit makes a spare available to dials.
func (g *Gateway) admit(s *spare) {
	s.ws.SetReadLimit(tunnel.MaxWord)
	g.mu.Lock()
	c, r := s.of, s.by
	if r.spares >= tunnel.MaxSpares { // the agent dropped one, and the hub does not know yet
		oldest := c.spares[slices.IndexFunc(c.spares, func(o *spare) bool { return o.by == r })]
		g.leave(oldest)
		go func() { _ = oldest.ws.Close() }() // as in judge
	}
	if g.ended || c.replicas[r.agent.Replica] != r {
		g.mu.Unlock()
		_ = s.ws.Close() // listen then finds it closed
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

// limit returns how long an agent may be silent.
func (g *Gateway) limit() time.Duration { return g.options.Timing.Probe + g.options.Timing.Silence }

// judge removes an agent that was silent for too long, and closes its spares.
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
			go func() { _ = s.ws.Close() }() // Close may block; listen does the rest
		}
	}
	delete(c.replicas, r.agent.Replica)
	g.tidy(c)
	go g.options.Changed(c.name)
}

// listen reads the messages on a spare until the spare is used or lost. It closes a spare without a
// message in the time in which the agent probes all its spares: the agent dropped it, and a proxy
// in between did not close it.
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
			// If the connection is closed, the stream's Read fails.
			_ = s.ws.SetReadDeadline(time.Time{})
			s.answer <- w
			return // the dial has the connection now
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

// heard records that the agent of a spare answered. That spare is used next.
func (g *Gateway) heard(s *spare) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s.by.heard = time.Now()
	s.heard = s.by.heard
	if i := slices.Index(s.of.spares, s); i >= 0 {
		s.of.spares = append(slices.Delete(s.of.spares, i, i+1), s)
	}
}

// write sends a message to an agent, which must accept it within a time.
func (s *spare) write(w any, within time.Duration) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if err := s.ws.SetWriteDeadline(time.Now().Add(within)); err != nil {
		return err
	}
	return errors.Join(s.ws.WriteJSON(w), s.ws.SetWriteDeadline(time.Time{}))
}

// lost removes a spare that was not used, or that ended before the agent answered the dial.
func (g *Gateway) lost(s *spare) {
	g.mu.Lock()
	g.leave(s)
	g.mu.Unlock()
	g.release(s.of, &s.held)
}

// leave removes a spare from the available ones. The caller holds mu.
func (g *Gateway) leave(s *spare) {
	if i := slices.Index(s.of.spares, s); i >= 0 {
		s.of.spares = slices.Delete(s.of.spares, i, i+1)
		s.by.spares--
	}
}

// release removes a connection that has ended.
func (g *Gateway) release(c *cluster, h *held) {
	h.expiry.Stop()
	g.mu.Lock()
	delete(c.open, h)
	g.tidy(c)
	g.mu.Unlock()
	g.options.Changed(c.name)
}

// tidy removes a cluster without agents, connections and waiting dials. The caller holds mu.
func (g *Gateway) tidy(c *cluster) {
	if len(c.replicas) == 0 && len(c.open) == 0 && c.waiting == 0 && g.clusters[c.name] == c {
		delete(g.clusters, c.name)
	}
}

// find returns the entry of a cluster, which it creates if necessary. The caller holds mu.
func (g *Gateway) find(name string) *cluster {
	c := g.clusters[name]
	if c == nil {
		c = &cluster{name: name, replicas: map[string]*replica{}, open: map[*held]bool{}, arrived: make(chan struct{})}
		g.clusters[name] = c
	}
	return c
}

// Agents returns the connected agents of a cluster, sorted by replica; nil if there is none.
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

// Clusters returns the names of clusters with agents or connections, or with a dial that waits,
// sorted.
func (g *Gateway) Clusters() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Sorted(maps.Keys(g.clusters))
}

// Recheck calls Admit again for each connection of a cluster, and closes those that are refused
// now. Connections in use are closed as well.
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

// Close closes every connection and refuses new ones.
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
