package console

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

// writeTime is how long a browser may take to read a part of an answer.
const writeTime = time.Minute

// cutWriter is an answer that ends with a context, even if the client does not read. A client that
// reads too slowly loses the answer.
type cutWriter struct {
	http.ResponseWriter

	over     context.Context //nolint:containedctx // it ends what is written, and not who writes
	patience time.Duration   // for each write; 0: unlimited
	grace    time.Duration   // after the end, for hijacked connections
	code     int

	mu      sync.Mutex
	ended   bool // no more writes
	bounded bool // writes have a deadline
	stop    func() bool
}

// deadline sets the deadline of writes. Every connection of the listener supports one.
func (c *cutWriter) deadline(at time.Time) {
	_ = http.NewResponseController(c.ResponseWriter).SetWriteDeadline(at)
}

// done removes the deadline from the connection, which may serve other answers.
func (c *cutWriter) done() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stop != nil {
		c.stop()
	}
	if c.bounded && !c.ended {
		c.deadline(time.Time{})
	}
	c.ended = true
}

// WriteHeader implements http.ResponseWriter.
func (c *cutWriter) WriteHeader(code int) {
	if c.code == 0 {
		c.code = code
	}
	c.ResponseWriter.WriteHeader(code)
}

// Write implements io.Writer.
func (c *cutWriter) Write(p []byte) (int, error) {
	if c.code == 0 {
		c.code = http.StatusOK
	}
	c.bound()
	return c.ResponseWriter.Write(p)
}

// FlushError supports http.ResponseController.
func (c *cutWriter) FlushError() error { return http.NewResponseController(c.ResponseWriter).Flush() }

// Unwrap supports http.ResponseController.
func (c *cutWriter) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// bound sets the deadline of a write. The end of the context shortens the deadline.
func (c *cutWriter) bound() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended || c.patience == 0 {
		return
	}
	c.bounded = true
	c.deadline(time.Now().Add(c.patience))
	if c.stop != nil {
		return
	}
	c.stop = context.AfterFunc(c.over, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.ended {
			c.ended = true
			c.deadline(time.Now())
		}
	})
}

// Hijack implements http.Hijacker. The connection is closed after the end of the context, too.
func (c *cutWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(c.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	c.code = http.StatusSwitchingProtocols
	stop := context.AfterFunc(c.over, func() { time.AfterFunc(c.grace, func() { _ = conn.Close() }) })
	return &cutConn{conn, stop}, buffered, nil
}

// cutConn is a hijacked connection.
type cutConn struct {
	net.Conn

	stop func() bool
}

// Close implements net.Conn.
func (c *cutConn) Close() error {
	c.stop()
	return c.Conn.Close()
}

// CloseWrite closes one direction if the connection supports that, else the connection.
func (c *cutConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}
