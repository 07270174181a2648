package testenv

import (
	"io"
	"log"
	"net"
	"sync"
)

// discard drops the messages of a recorder's server about connections that a test has ended.
var discard = log.New(io.Discard, "", 0)

// faultyListener accepts connections that have the recorder's fault.
type faultyListener struct {
	net.Listener
	recorder *Recorder

	mu   sync.Mutex
	open map[*faultyConn]struct{}
}

// Accept closes connections at once during the fault Cut.
func (l *faultyListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		one := &faultyConn{Conn: c, listener: l, closed: make(chan struct{})}
		l.mu.Lock()
		l.open[one] = struct{}{}
		l.mu.Unlock()
		if l.recorder.Fault() != Cut {
			return one, nil
		}
		one.reset()
	}
}

// cut closes every connection.
func (l *faultyListener) cut() {
	l.mu.Lock()
	open := make([]*faultyConn, 0, len(l.open))
	for c := range l.open {
		open = append(open, c)
	}
	l.mu.Unlock()
	for _, c := range open {
		c.reset()
	}
}

// faultyConn passes no bytes during the fault Hang.
type faultyConn struct {
	net.Conn
	listener *faultyListener
	once     sync.Once
	closed   chan struct{}
}

// wait blocks during the fault Hang, or until the connection is closed.
func (c *faultyConn) wait() {
	for {
		fault, _, ended := c.listener.recorder.state()
		if fault != Hang {
			return
		}
		select {
		case <-ended:
		case <-c.closed:
			return
		}
	}
}

func (c *faultyConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.wait()
	return n, err
}

func (c *faultyConn) Write(b []byte) (int, error) {
	c.wait()
	return c.Conn.Write(b)
}

// Close implements net.Conn.
func (c *faultyConn) Close() error {
	c.once.Do(func() {
		close(c.closed)
		c.listener.mu.Lock()
		delete(c.listener.open, c)
		c.listener.mu.Unlock()
	})
	return c.Conn.Close()
}

// reset closes the connection with a reset, so that the peer sees it at once.
func (c *faultyConn) reset() {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}
