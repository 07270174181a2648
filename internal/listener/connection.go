package listener

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"

	"orrery.dev/orrery/internal/slots"
)

// track implements http.Server.ConnState. It frees the slot of a connection that a handler has
// hijacked, such as a WebSocket.
func (l *Listener) track(c net.Conn, state http.ConnState) {
	// The slot of a closed connection is freed by boundedConn.Close.
	if b := bounds(c); b != nil && state == http.StateHijacked {
		b.leave()
	}
}

// bounds returns the connection below TLS, which bounded.Accept has returned. It is nil for a
// connection of another listener.
func bounds(c net.Conn) *boundedConn {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	b, _ := c.(*boundedConn)
	return b
}

// connKey is the key under which the context of a request has its connection.
type connKey struct{}

// withConn implements http.Server.ConnContext. It stores the connection in the context of its
// requests, where Claim finds it.
func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, bounds(c))
}

// Claim assigns the connection of a request to an owner, such as a user, once the user is
// authenticated. ctx is the context of the request. The connection then no longer counts against
// maxConnections, and is not closed to make place for another one. If the owner, or all owners
// together, have reached their limit, the connection stays unclaimed, and the caller cannot see
// that. A claimed connection keeps its first owner. Claim does nothing for the context of another
// server's request.
func Claim(ctx context.Context, owner string) {
	if b, _ := ctx.Value(connKey{}).(*boundedConn); b != nil {
		b.claim(owner)
	}
}

// claimed reports whether the connection of the request with this context is claimed by an owner.
func claimed(ctx context.Context) bool {
	b, _ := ctx.Value(connKey{}).(*boundedConn)
	return b != nil && b.isClaimed()
}

// claims counts the connections that owners have claimed, in total and by owner. Several goroutines
// may use it.
type claims struct {
	mu  sync.Mutex
	all int
	by  map[string]int
}

// add counts a claimed connection of an owner. It returns false, and counts nothing, if the limit
// of the owner or of all owners is reached.
func (c *claims) add(owner string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all >= maxClaimed || c.by[owner] >= maxClaimedBy {
		return false
	}
	c.all++
	c.by[owner]++
	return true
}

// remove ends the count of a claimed connection that add has counted for the owner.
func (c *claims) remove(owner string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all--
	if c.by[owner]--; c.by[owner] == 0 {
		delete(c.by, owner)
	}
}

// bounded is a net.Listener that limits the number of connections: each takes a slot. If no slot is
// free, slots.Pool closes an earlier connection.
type bounded struct {
	net.Listener

	slots  *slots.Pool
	claims *claims
}

// Accept implements net.Listener. It gives the connection a slot. If no slot is free, the pool
// closes an earlier connection.
func (b *bounded) Accept() (net.Conn, error) {
	conn, err := b.Listener.Accept()
	if err != nil {
		return nil, err //nolint:wrapcheck // the server examines the error
	}
	c := &boundedConn{Conn: conn, claims: b.claims}
	c.release = func() { c.slot.Release(); connections.Dec() }
	// The server calls Accept in one goroutine. So drop is first called in the next call of Accept,
	// when c.slot is set.
	c.slot = b.slots.Take(conn.RemoteAddr().String(), c.drop)
	connections.Inc()
	return c, nil
}

// boundedConn is a connection to the public listener that is counted until it is hijacked or
// closed. It has a slot of the unclaimed connections or, after claim, one of its owner's
// connections.
type boundedConn struct {
	net.Conn

	claims *claims
	slot   *slots.Slot // slot of the unclaimed connections

	mu      sync.Mutex
	release func() // frees the slot or the claim; nil: it is free
	owned   bool   // an owner has claimed the connection
}

// claim counts the connection for the owner instead of its slot. It does nothing if the connection
// is claimed, hijacked or closed, or a limit of claimed connections is reached.
func (c *boundedConn) claim(owner string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.owned || c.release == nil || !c.claims.add(owner) {
		return
	}
	c.release()
	c.owned, c.release = true, func() { c.claims.remove(owner) }
}

// isClaimed reports whether an owner has claimed the connection.
func (c *boundedConn) isClaimed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.owned
}

// leave frees the slot or the claim of a connection that was hijacked or closed. It may be called
// several times.
func (c *boundedConn) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.release != nil {
		c.release()
		c.release = nil
	}
}

// drop closes the connection because a new connection needs its slot. It does nothing if the
// connection was claimed or hijacked meanwhile, because it then has no slot any more.
func (c *boundedConn) drop() {
	c.mu.Lock()
	unclaimed := !c.owned && c.release != nil
	if unclaimed {
		c.release()
		c.release = nil
	}
	c.mu.Unlock()
	if unclaimed {
		_ = c.Conn.Close() // the client sees that the connection is closed
	}
}

// Read implements net.Conn. It reports to the slot that the client sent data, so that a silent
// connection is closed before this one.
func (c *boundedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.slot.Heard()
	}
	return n, err //nolint:wrapcheck // callers expect the errors of the connection
}

// Write implements net.Conn. It reports to the slot that data was sent, so that a silent connection
// is closed before this one.
func (c *boundedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if n > 0 {
		c.slot.Heard()
	}
	return n, err //nolint:wrapcheck // callers expect the errors of the connection
}

// Close implements net.Conn. It frees the slot or the claim of the connection.
func (c *boundedConn) Close() error {
	c.leave()
	return c.Conn.Close() //nolint:wrapcheck // callers expect the errors of the connection
}
