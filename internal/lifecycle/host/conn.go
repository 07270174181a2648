package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"
)

const (
	// maxSessions is the maximum number of commands that run on one connection at the same time. sshd
	// allows 10 sessions (MaxSessions). The other two are for spareSessions.
	maxSessions = 8
	// spareSessions is the number of sessions in which commands are killed.
	spareSessions = 2
)

// conn is a Conn over SSH. SSH.Dial makes it.
type conn struct {
	target   Target
	redactor redactor
	client   *ssh.Client
	sessions chan struct{} // has an element for each running command, at most maxSessions
	spare    chan struct{} // likewise for commands that kill another one

	// alive ends with the connection, and has the reason as its cause.
	alive context.Context //nolint:containedctx // it is the connection's life, which no call's context spans
	end   context.CancelCauseFunc
}

// newConn returns the Conn to t over an SSH client and starts to monitor it. watched is the network
// connection of client. The connection ends by Close, if the network breaks, or if the host sends
// nothing for limit.
func newConn(t Target, client *ssh.Client, watched *watched, limit time.Duration) *conn {
	c := &conn{
		target: t, redactor: newRedactor(t), client: client,
		sessions: make(chan struct{}, maxSessions), spare: make(chan struct{}, spareSessions),
	}
	c.alive, c.end = context.WithCancelCause(context.Background())
	context.AfterFunc(c.alive, func() { _ = client.Close() }) // the client may be closed already
	go func() { c.end(fmt.Errorf("the connection broke: %w", client.Wait())) }()
	go c.keepAlive(watched, limit)
	return c
}

// keepAlive ends the connection if the host sends nothing for limit. It divides limit into
// requestsWithin intervals, and sends a request at the end of each interval but the last. It counts
// requests and not only time. If this process itself was suspended, the host therefore gets a
// request before it counts as silent. keepAlive returns when the connection ends.
func (c *conn) keepAlive(watched *watched, limit time.Duration) {
	timer := time.NewTimer(limit / requestsWithin)
	defer timer.Stop()
	var s silence
	for {
		select {
		case <-c.alive.Done():
			return
		case <-timer.C:
		}
		if s.ends(watched.heard()) {
			c.end(fmt.Errorf("it has been silent for %s", limit))
			return
		}
		go func() { _ = c.ask() }() // watched records the time of the answer
		timer.Reset(limit / requestsWithin)
	}
}

// requestsWithin is the number of intervals into which keepAlive divides the limit of silence.
const requestsWithin = 3

// silence counts the keep-alive requests that were sent since the host last sent something. One
// goroutine uses it.
type silence struct {
	heard time.Time // when the host last sent something, as far as known
	asked int       // requests since then
}

// ends reports whether the host counts as silent: requestsWithin-1 requests were sent since it last
// sent something, which was at heard. Otherwise ends counts one more request, which the caller must
// send.
func (s *silence) ends(heard time.Time) bool {
	if heard.After(s.heard) {
		*s = silence{heard: heard}
	}
	if s.asked == requestsWithin-1 {
		return true
	}
	s.asked++
	return false
}

// ask sends a keep-alive request. It returns an error if the connection ends before the answer.
func (c *conn) ask() error {
	_, _, err := c.client.SendRequest("keepalive@openssh.com", true, nil)
	return err
}

// lost returns the error for an operation that was interrupted because the connection ended. The
// error is an *Unreachable, or about errClosed if Close ended the connection. c.alive must have
// ended.
func (c *conn) lost() error {
	cause := context.Cause(c.alive)
	if errors.Is(cause, errClosed) {
		return fmt.Errorf("host %s: %w", c.target.Name, cause)
	}
	return &Unreachable{Host: c.target.Name, Address: c.target.hostPort(), Err: cause}
}

// Dial implements Conn. It connects from the host to an address, through an SSH channel. The error
// is an *Unreachable if the connection to the host broke.
func (c *conn) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	netConn, err := c.client.DialContext(ctx, network, address)
	switch {
	case err == nil:
		return netConn, nil
	case ctx.Err() != nil:
		return nil, fmt.Errorf("host %s: connect from it to %s: %w", c.target.Name, address, context.Cause(ctx))
	case isNetwork(err) && c.ask() != nil:
		<-c.alive.Done()
		return nil, c.lost()
	}
	var refused *ssh.OpenChannelError
	if errors.As(err, &refused) && refused.Reason == ssh.Prohibited {
		return nil, fmt.Errorf("host %s: its sshd forbids connections from it to %s: set AllowTcpForwarding local in sshd_config: %w",
			c.target.Name, address, err)
	}
	return nil, fmt.Errorf("host %s: connect from it to %s: %w", c.target.Name, address, err)
}

// Close implements Conn. It ends the connection and always returns nil.
func (c *conn) Close() error {
	c.end(errClosed)
	return nil
}

// watched is a network connection that records when it last received data, for keepAlive. It may be
// used from several goroutines.
type watched struct {
	net.Conn

	start time.Time    // when the connection was made
	last  atomic.Int64 // nanoseconds from start to the last data
}

// newWatched returns c with a record of the last data, which begins now.
func newWatched(c net.Conn) *watched { return &watched{Conn: c, start: time.Now()} }

// Read implements net.Conn. It records the time if it gets data.
func (w *watched) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	if n > 0 {
		w.last.Store(int64(time.Since(w.start)))
	}
	return n, err
}

// heard returns when the connection last received data. It is the start if there were no data.
func (w *watched) heard() time.Time { return w.start.Add(time.Duration(w.last.Load())) }
