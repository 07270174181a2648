package console

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

// writeTime is how long a browser may take to receive one write of an answer: one minute. A slower
// browser loses the answer.
const writeTime = time.Minute

// cutWriter is a ResponseWriter whose answer ends when the context over ends, even if the client
// does not read. Each write must also succeed within patience, or the client loses the answer. If
// patience is 0, writes have no deadline, and only a hijacked connection ends with the context.
// code is the status that was written; 0: none yet. The handler must call done at its end.
type cutWriter struct {
	http.ResponseWriter

	over     context.Context //nolint:containedctx // it ends what is written, and not who writes
	patience time.Duration   // for each write; 0: no deadline
	grace    time.Duration   // from the end of the context until a hijacked connection is closed
	code     int

	mu      sync.Mutex
	ended   bool // done was called, or the context has ended: deadlines stay as they are
	bounded bool // a deadline for writes was set
	stop    func() bool
}

// deadline sets the deadline for writes to the connection. Every connection of the hub's listener
// supports that, so the error is ignored.
func (c *cutWriter) deadline(at time.Time) {
	_ = http.NewResponseController(c.ResponseWriter).SetWriteDeadline(at)
}

// done must be called when the handler has finished. It removes the deadline from the connection,
// which may serve other requests. If the context has ended the answer, the deadline stays, so that
// a rest of the answer is not sent.
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

// WriteHeader implements http.ResponseWriter. It records the first status in c.code.
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

// bound sets the deadline for one write to patience from now, and ensures that the end of the
// context moves the deadline to that moment. If patience is 0, it does nothing.
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

// Hijack implements http.Hijacker. When the context ends, the connection stays open for grace, so
// that the handler can send why, and is then closed.
func (c *cutWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(c.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	c.code = http.StatusSwitchingProtocols
	stop := context.AfterFunc(c.over, func() { time.AfterFunc(c.grace, func() { _ = conn.Close() }) })
	return &cutConn{conn, stop}, buffered, nil
}

// cutConn is the connection that cutWriter.Hijack returns.
type cutConn struct {
	net.Conn

	stop func() bool
}

// Close implements net.Conn. The end of the context has then no effect any more.
func (c *cutConn) Close() error {
	c.stop()
	return c.Conn.Close()
}

// CloseWrite ends the data that this side sends, if the connection supports that. Otherwise it
// closes the connection.
func (c *cutConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}
