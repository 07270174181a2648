package console

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

// writeTime is how long a browser may take to read a piece of an answer.
const writeTime = time.Minute

// cutWriter is an answer that ends with a context, though nobody reads it. A browser that takes too long to read loses it.
type cutWriter struct {
	http.ResponseWriter

	over     context.Context //nolint:containedctx // it ends what is written, and not who writes
	patience time.Duration   // for each write; 0: no bound
	grace    time.Duration   // for what was taken over, to say goodbye
	code     int

	mu      sync.Mutex
	ended   bool // nothing more is to be written
	bounded bool // writes have a deadline
	stop    func() bool
}

// deadline sets that of writes; every connection of the listener can have one.
func (c *cutWriter) deadline(at time.Time) {
	_ = http.NewResponseController(c.ResponseWriter).SetWriteDeadline(at)
}

// done takes the deadline off the connection, over which other answers may come.
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

// WriteHeader implements http.ResponseWriter. Answers before the answer, whose headers nobody has looked at, are left out; that of who
// switches protocols is the answer.
func (c *cutWriter) WriteHeader(code int) {
	if code < http.StatusOK && code != http.StatusSwitchingProtocols {
		return
	}
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

// FlushError is for http.ResponseController.
func (c *cutWriter) FlushError() error { return http.NewResponseController(c.ResponseWriter).Flush() }

// Unwrap is for http.ResponseController.
func (c *cutWriter) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// bound gives a write its time, which the end of the context cuts short.
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

// Hijack implements http.Hijacker: what takes the connection over loses it, too.
func (c *cutWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(c.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	c.code = http.StatusSwitchingProtocols
	stop := context.AfterFunc(c.over, func() { time.AfterFunc(c.grace, func() { _ = conn.Close() }) })
	return &cutConn{conn, stop}, buffered, nil
}

// cutConn is a connection that was taken over.
type cutConn struct {
	net.Conn

	stop func() bool
}

// Close implements net.Conn.
func (c *cutConn) Close() error {
	c.stop()
	return c.Conn.Close()
}

// CloseWrite is for what is copied both ways, of which one way has ended.
func (c *cutConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}
