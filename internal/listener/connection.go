package listener

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"

	"orrery.dev/orrery/internal/slots"
)

// track frees the slot of a hijacked connection.
func (l *Listener) track(c net.Conn, state http.ConnState) {
	// Close frees the slot of a closed one.
	if b := bounds(c); b != nil && state == http.StateHijacked {
		b.leave()
	}
}

func bounds(c net.Conn) *boundedConn {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	b, _ := c.(*boundedConn)
	return b
}

type connKey struct{}

// withConn stores the connection in the context of its requests.
func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, bounds(c))
}

// Claim assigns the connection of a request to an owner, such as a user. The connection then no
// longer counts against maxConnections, and no other connection can take its place. If the owner,
// or all owners, have reached their limit, it stays unclaimed.
func Claim(ctx context.Context, owner string) {
	if b, _ := ctx.Value(connKey{}).(*boundedConn); b != nil {
		b.claim(owner)
	}
}

func claimed(ctx context.Context) bool {
	b, _ := ctx.Value(connKey{}).(*boundedConn)
	return b != nil && b.isClaimed()
}

// claims counts the claimed connections.
type claims struct {
	mu  sync.Mutex
	all int
	by  map[string]int
}

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

func (c *claims) remove(owner string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all--
	if c.by[owner]--; c.by[owner] == 0 {
		delete(c.by, owner)
	}
}

// bounded gives each connection a slot. If none is free, an earlier connection is closed; see
// slots.Pool.
type bounded struct {
	net.Listener

	slots  *slots.Pool
	claims *claims
}

// Accept implements net.Listener.
func (b *bounded) Accept() (net.Conn, error) {
	conn, err := b.Listener.Accept()
	if err != nil {
		return nil, err //nolint:wrapcheck // the server looks at it
	}
	c := &boundedConn{Conn: conn, claims: b.claims}
	c.release = func() { c.slot.Release(); connections.Dec() }
	// The server calls Accept in one goroutine, so drop is called in a later Accept at the
	// earliest.
	c.slot = b.slots.Take(conn.RemoteAddr().String(), c.drop)
	connections.Inc()
	return c, nil
}

// boundedConn holds a slot until it is hijacked or closed: an unclaimed one, or one of its owner.
type boundedConn struct {
	net.Conn

	claims *claims
	slot   *slots.Slot // an unclaimed one

	mu      sync.Mutex
	release func() // nil: the slot is free
	owned   bool
}

func (c *boundedConn) claim(owner string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.owned || c.release == nil || !c.claims.add(owner) {
		return
	}
	c.release()
	c.owned, c.release = true, func() { c.claims.remove(owner) }
}

func (c *boundedConn) isClaimed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.owned
}

func (c *boundedConn) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.release != nil {
		c.release()
		c.release = nil
	}
}

// drop closes the connection because another one needs its slot. A connection that was claimed or
// hijacked meanwhile has no slot any more, and stays.
func (c *boundedConn) drop() {
	c.mu.Lock()
	unclaimed := !c.owned && c.release != nil
	if unclaimed {
		c.release()
		c.release = nil
	}
	c.mu.Unlock()
	if unclaimed {
		_ = c.Conn.Close() // its client sees that
	}
}

// Read implements net.Conn.
func (c *boundedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.slot.Heard()
	}
	return n, err //nolint:wrapcheck // it is as if it were that
}

// Write implements net.Conn.
func (c *boundedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if n > 0 {
		c.slot.Heard()
	}
	return n, err //nolint:wrapcheck // it is as if it were that
}

// Close implements net.Conn.
func (c *boundedConn) Close() error {
	c.leave()
	return c.Conn.Close() //nolint:wrapcheck // it is as if it were that
}
