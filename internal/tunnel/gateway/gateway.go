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
	// maxHandshakes is the maximum number of connections that are not authenticated yet. Beyond it,
	// slots.Pool closes one.
	maxHandshakes = 256
	// maxReplicas is the maximum number of agents of one cluster.
	maxReplicas = 8
	// wordsPerSecond limits the messages of an agent on a spare connection, after a burst of
	// wordsAtOnce. The gateway closes a spare with more messages.
	wordsPerSecond, wordsAtOnce = 2, 16
)

// ErrGone is the error that Options.Admit returns for an agent whose cluster has left the fleet. It
// is tunnel.ErrGone.
var ErrGone = tunnel.ErrGone

// Options of a Gateway.
type Options struct {
	// Admit returns the cluster to which a certificate was issued. The agent has proven that it
	// holds the key. Admit may be called several times for a connection, and from several
	// goroutines. An error refuses the agent and is sent to it. ErrGone makes the agent remove
	// itself, even if its certificate has expired. The gateway refuses expired certificates itself.
	Admit func(ctx context.Context, certificate *x509.Certificate) (cluster string, err error)
	// Changed is called when agents of a cluster connected, disconnected or changed. Several
	// goroutines call it, also if Agents returns the same as before. It must not block. It may
	// be nil.
	Changed func(cluster string)
	Timing  tunnel.Timing
	Log     logr.Logger
}

// Gateway accepts the connections of agents, as the http.Handler for tunnel.Path, and connects the
// hub to clusters through them. Several goroutines may use it.
type Gateway struct {
	options    Options
	upgrader   websocket.Upgrader
	handshakes *slots.Pool

	mu        sync.Mutex
	clusters  map[string]*cluster
	reporting map[string]bool // clusters whose report is being processed
	ended     bool
}

// cluster is the entry of one cluster: its agents, their connections, and the number of dials that
// wait for a connection. Gateway.mu guards it.
type cluster struct {
	name     string
	replicas map[string]*replica
	spares   []*spare // available to dials, in the order in which they were last heard
	open     map[*held]bool
	arrived  chan struct{} // closed and replaced when a spare arrives
	waiting  int           // dials that wait for a spare
}

// replica is one agent of a cluster. Gateway.judge removes it when it was silent for too long.
// Gateway.mu guards it.
type replica struct {
	agent  Agent
	spares int
	heard  time.Time
	silent *time.Timer
	// certificate of its last connection. Connections with the same certificate share the pointer,
	// so that Recheck checks it once.
	certificate *x509.Certificate
}

// Agent describes a connected agent.
type Agent struct {
	// Replica identifies the agent among the agents of the cluster.
	Replica, Version string
	// Address is the remote address of its last connection: that of the agent, or of the last
	// proxy in front of the hub.
	Address string
	// Spares is the number of its connections that wait for a dial.
	Spares int
	// Since is when it connected for the first time, or after it counted as disconnected.
	Since time.Time
	// CertificateEnds is when its certificate expires.
	CertificateEnds time.Time
}

// held is an open connection to an agent: a spare one, or one that a dial uses. A timer closes it
// when the agent's certificate expires.
type held struct {
	ws          *websocket.Conn
	certificate *x509.Certificate
	expiry      *time.Timer
}

// spare is an open connection to an agent that waits for a dial. The dial takes it, sends the
// destination, and waits for the agent's answer. Then it is the connection to the destination.
type spare struct {
	held

	of       *cluster
	by       *replica
	heard    time.Time // guarded by the gateway's mu
	writing  sync.Mutex
	dialling atomic.Bool
	answer   chan tunnel.Word // from listen to the dial; closed if the connection ends first
}

// New returns a Gateway for the options. It starts nothing, and holds no resources until agents
// connect.
func New(o Options) *Gateway {
	if o.Changed == nil {
		o.Changed = func(string) {}
	}
	return &Gateway{
		options: o, clusters: map[string]*cluster{}, reporting: map[string]bool{},
		upgrader: websocket.Upgrader{
			Subprotocols: []string{tunnel.Protocol}, HandshakeTimeout: o.Timing.Handshake,
			ReadBufferSize: 1 << 10, WriteBufferSize: 16 << 10, WriteBufferPool: &sync.Pool{},
			// Agents are no browsers, and only browsers send an Origin.
			CheckOrigin: func(r *http.Request) bool { return r.Header.Get("Origin") == "" },
		},
		handshakes: slots.New(slots.Options{Limit: maxHandshakes, Closed: refusals.WithLabelValues("Busy").Inc, Log: o.Log}),
	}
}

// ServeHTTP implements http.Handler for tunnel.Path. It upgrades the request of an agent to a
// WebSocket and returns; the connection goes on in the background.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if ws, slot := g.upgrade(w, r); ws != nil {
		// A new goroutine continues, because that of the request would keep the buffers of the request.
		go g.greet(ws, slot, r.RemoteAddr) //nolint:contextcheck // the connection outlives the request
	}
}

// upgrade turns a request of an agent into a WebSocket. It also takes a slot for a connection that
// is not authenticated, which the caller must release. If slots are scarce, the pool may close the
// WebSocket. For an invalid request, upgrade answers with an error and returns nil.
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

// greet authenticates the agent at address within Timing.Handshake, keeps its connection ws as a
// spare, and serves the spare until a dial uses it or it is lost. It releases slot. ServeHTTP
// starts it as a goroutine.
func (g *Gateway) greet(ws *websocket.Conn, slot *slots.Slot, address string) {
	ctx, cancel := context.WithTimeout(context.Background(), g.options.Timing.Handshake)
	stop := context.AfterFunc(ctx, func() { _ = ws.Close() })
	hello, certificate, name, err := g.meet(ctx, ws)
	slot.Heard()
	var s *spare
	if err == nil {
		s, err = g.keep(ws, certificate, name, hello, address)
	}
	if err == nil { // again, since a Recheck between meet and keep did not see the connection
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

// refuse sends err, the reason of a refusal, to the agent, and counts and logs the refusal. It does
// nothing if the pool has taken the slot away: that connection is closed already, and was counted
// as Busy.
func (g *Gateway) refuse(ws *websocket.Conn, slot *slots.Slot, address, cluster string, err error) {
	if !slot.Held() {
		return
	}
	refusals.WithLabelValues("Identity").Inc()
	g.options.Log.V(1).Info("agent refused", "address", address, "cluster", cluster, "cause", err.Error())
	// The agent may be gone.
	_ = ws.WriteJSON(tunnel.Welcome{Refused: err.Error(), Gone: errors.Is(err, ErrGone)})
}

// meet authenticates an agent on a new connection: it sends a challenge and verifies the answer. It
// returns the answer (hello), the agent's certificate, and the cluster that Options.Admit returns
// for the certificate. For an expired certificate the error is ErrGone if Admit returns ErrGone, so
// that the agent removes itself. Otherwise it is a message with the command that joins the cluster
// again.
func (g *Gateway) meet(ctx context.Context, ws *websocket.Conn) (hello tunnel.Hello, certificate *x509.Certificate, cluster string, err error) {
	ws.SetReadLimit(tunnel.MaxHello)
	challenge := tunnel.Challenge{Nonce: make([]byte, 32)}
	_, _ = rand.Read(challenge.Nonce) // rand.Read never fails
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

// keep registers a connection of an agent that meet has authenticated. name is the cluster. The
// connection will be closed when the certificate expires. Dials cannot use it until g.admit. It is
// an error if the cluster has too many agents, or the hub stops.
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

// admit makes a connection that keep has registered available to dials, as a spare. If the agent
// already has tunnel.MaxSpares, its oldest spare is closed. admit closes the new one instead if
// judge has removed the agent meanwhile, or the hub stops.
func (g *Gateway) admit(s *spare) {
	s.ws.SetReadLimit(tunnel.MaxWord)
	g.mu.Lock()
	c, r := s.of, s.by
	if r.spares >= tunnel.MaxSpares { // the agent closed one, and the hub has not seen that yet
		oldest := c.spares[slices.IndexFunc(c.spares, func(o *spare) bool { return o.by == r })]
		g.leave(oldest)
		go func() { _ = oldest.ws.Close() }() // Close may block
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

// limit returns how long an agent may send nothing on all its spare connections until it counts as
// disconnected.
func (g *Gateway) limit() time.Duration { return g.options.Timing.Probe + g.options.Timing.Silence }

// judge removes an agent that has sent nothing for too long, and closes its spare connections;
// connections in use stay. A timer of the agent calls it. If the agent has sent something since the
// timer was set, judge sets the timer again.
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

// listen reads the messages of an agent on a spare connection and answers probes, until a dial uses
// the spare or the spare is lost. An agent probes all its spares, one after the other. If a spare
// had no message during that time, listen closes it: the agent has closed it, and a proxy between
// them has not.
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
			// If the connection is closed, the dial's next Read fails.
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

// heard records that the agent sent a message on a spare connection. The next dial takes the spare
// with the most recent message.
func (g *Gateway) heard(s *spare) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s.by.heard = time.Now()
	s.heard = s.by.heard
	if i := slices.Index(s.of.spares, s); i >= 0 {
		s.of.spares = append(slices.Delete(s.of.spares, i, i+1), s)
	}
}

// write sends the message w to an agent, as JSON. It is an error if w is not sent within the given
// time. Several goroutines may call it.
func (s *spare) write(w any, within time.Duration) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if err := s.ws.SetWriteDeadline(time.Now().Add(within)); err != nil {
		return err
	}
	return errors.Join(s.ws.WriteJSON(w), s.ws.SetWriteDeadline(time.Time{}))
}

// lost removes a spare connection that ended before the agent answered a dial on it.
func (g *Gateway) lost(s *spare) {
	g.mu.Lock()
	g.leave(s)
	g.mu.Unlock()
	g.release(s.of, &s.held)
}

// leave removes a spare connection from those that dials can take, and does not close it. It does
// nothing if the spare was removed before. The caller holds g.mu.
func (g *Gateway) leave(s *spare) {
	if i := slices.Index(s.of.spares, s); i >= 0 {
		s.of.spares = slices.Delete(s.of.spares, i, i+1)
		s.by.spares--
	}
}

// release removes the record of a connection that has ended, and calls Options.Changed. It takes
// g.mu.
func (g *Gateway) release(c *cluster, h *held) {
	h.expiry.Stop()
	g.mu.Lock()
	delete(c.open, h)
	g.tidy(c)
	g.mu.Unlock()
	g.options.Changed(c.name)
}

// tidy removes the entry of a cluster that has no agents, no connections and no waiting dials. The
// caller holds g.mu.
func (g *Gateway) tidy(c *cluster) {
	if len(c.replicas) == 0 && len(c.open) == 0 && c.waiting == 0 && g.clusters[c.name] == c {
		delete(g.clusters, c.name)
	}
}

// find returns the entry of a cluster, which it creates if necessary. The caller holds g.mu.
func (g *Gateway) find(name string) *cluster {
	c := g.clusters[name]
	if c == nil {
		c = &cluster{name: name, replicas: map[string]*replica{}, open: map[*held]bool{}, arrived: make(chan struct{})}
		g.clusters[name] = c
	}
	return c
}

// Agents returns the connected agents of a cluster, sorted by name: those that have a spare
// connection, so that the hub can dial through them. It is empty or nil if there is none. The
// caller may change the slice.
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

// Clusters returns the names, sorted, of the clusters that have agents, connections of agents, or a
// dial that waits for an agent.
func (g *Gateway) Clusters() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Sorted(maps.Keys(g.clusters))
}

// Recheck calls Options.Admit again for the certificates of the connected agents of a cluster. It
// closes the connections whose certificate is refused now, also those in use. Package enrollment
// calls it after a certificate may have been revoked. After the end of ctx it closes none.
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

// Close closes every connection of agents, in the background, and makes the gateway refuse new
// ones. It does not wait.
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
