package testenv

import (
	"io"
	"log"
	"net"
	"sync"
)

// discard is the error log of a recorder's HTTP server. It drops messages about connections that a
// fault has ended.
var discard = log.New(io.Discard, "", 0)

// faultyListener is the listener of a Recorder. Its connections have the recorder's present fault.
type faultyListener struct {
	net.Listener
	recorder *Recorder

	mu   sync.Mutex
	open map[*faultyConn]struct{}
}

// Accept implements net.Listener. During the fault Cut it closes each connection at once and waits
// for the next one.
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

// cut closes all open connections, with a reset.
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

// faultyConn is a connection of a client to a Recorder. It passes no bytes during the fault Hang.
type faultyConn struct {
	net.Conn
	listener *faultyListener
	once     sync.Once
	closed   chan struct{}
}

// wait blocks while the fault is Hang and the connection is open.
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

// Read implements net.Conn. It returns the data after the fault Hang.
func (c *faultyConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.wait()
	return n, err
}

// Write implements net.Conn. It sends the data after the fault Hang.
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

// reset closes the connection with a TCP reset, so that the peer notices it at once.
func (c *faultyConn) reset() {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}
