package balancer

import (
	"context"
	"io"
	"net"
	"sync"
	"time"
)

// dialTimeout is how long a backend may take before the next one is tried.
const dialTimeout = 2 * time.Second

// keepAlive detects within 30 seconds that the other end of an idle connection is gone.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}

// connection is a client's connection with a backend.
type connection struct {
	client, server net.Conn
}

// close closes both sides. It may be called several times.
func (c *connection) close() {
	_ = c.client.Close()
	_ = c.server.Close()
}

// serve connects the client with the first backend that answers, and forwards until both sides have
// ended.
func (p *pool) serve(ctx context.Context, client net.Conn) {
	defer client.Close() //nolint:errcheck // forwarding has ended
	dialer := net.Dialer{Timeout: dialTimeout, KeepAliveConfig: keepAlive}
	for _, b := range p.candidates() {
		server, err := dialer.DialContext(ctx, "tcp", b.address)
		if ctx.Err() != nil {
			if err == nil {
				_ = server.Close()
			}
			return
		}
		if err != nil {
			p.log.V(1).Info("Backend not reached", "backend", b.address, "reason", err.Error())
			continue
		}
		c := &connection{client: client, server: server}
		if !p.adopt(b, c) {
			_ = server.Close()
			continue
		}
		c.forward()
		p.release(b, c)
		return
	}
	p.log.Info("Connection refused, no backend answers", "client", client.RemoteAddr().String())
}

// forward copies in both directions until both have ended. One side may end before the other.
func (c *connection) forward() {
	defer c.close()
	var both sync.WaitGroup
	both.Go(func() { c.pass(c.server, c.client) })
	both.Go(func() { c.pass(c.client, c.server) })
	both.Wait()
}

func (c *connection) pass(to, from net.Conn) {
	if _, err := io.Copy(to, from); err != nil {
		c.close() // broken: the other direction is useless, too
		return
	}
	if half, ok := to.(interface{ CloseWrite() error }); !ok || half.CloseWrite() != nil {
		c.close()
	}
}
