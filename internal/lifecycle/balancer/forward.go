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

// keepAlive has the TCP keep-alive settings of all connections. They detect within 30 seconds that
// the other end of an idle connection is gone.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}

// connection is a client's connection together with the one to the backend that serves it. close
// may be called from any goroutine.
type connection struct {
	client, server net.Conn
}

// close closes the connections to the client and to the backend. It may be called several times.
func (c *connection) close() {
	_ = c.client.Close()
	_ = c.server.Close()
}

// serve handles one client connection: it connects to the first backend that answers, and forwards
// until both sides have ended. If no backend answers, or ctx ends meanwhile, it closes the client's
// connection.
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

// forward copies bytes in both directions until both have ended, and then closes both connections.
// One side may finish sending before the other. An error in one direction ends both.
func (c *connection) forward() {
	defer c.close()
	var both sync.WaitGroup
	both.Go(func() { c.pass(c.server, c.client) })
	both.Go(func() { c.pass(c.client, c.server) })
	both.Wait()
}

// pass copies bytes in one direction until from has ended, and then ends the sending side of to.
// After an error it closes both connections.
func (c *connection) pass(to, from net.Conn) {
	if _, err := io.Copy(to, from); err != nil {
		c.close() // after an error, the other direction is useless, too
		return
	}
	if half, ok := to.(interface{ CloseWrite() error }); !ok || half.CloseWrite() != nil {
		c.close()
	}
}
