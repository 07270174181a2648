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
	// maxSessions bounds the sessions of one connection. sshd allows 10 (MaxSessions). Two are left
	// for killing commands.
	maxSessions = 8
	// spareSessions is the number of sessions for killing commands.
	spareSessions = 2
)

// conn is a Conn over SSH.
type conn struct {
	target   Target
	redactor redactor
	client   *ssh.Client
	sessions chan struct{} // has an element for each session
	spare    chan struct{}

	// alive ends with the connection, and has the reason as its cause.
	alive context.Context //nolint:containedctx // it is the connection's life, which no call's context spans
	end   context.CancelCauseFunc
}

// newConn returns the connection of client and starts to monitor it. limit is how long the host may
// be silent.
func newConn(t Target, client *ssh.Client, watched *watched, limit time.Duration) *conn {
	c := &conn{
		target: t, redactor: newRedactor(t), client: client,
		sessions: make(chan struct{}, maxSessions), spare: make(chan struct{}, spareSessions),
	}
	c.alive, c.end = context.WithCancelCause(context.Background())
	context.AfterFunc(c.alive, func() { _ = client.Close() }) // it may be closed already
	go func() { c.end(fmt.Errorf("the connection broke: %w", client.Wait())) }()
	go c.keepAlive(watched, limit)
	return c
}

// keepAlive ends the connection if the host sends nothing within limit, although it was asked.
func (c *conn) keepAlive(watched *watched, limit time.Duration) {
	ticker := time.NewTicker(limit / 3)
	defer ticker.Stop()
	for {
		select {
		case <-c.alive.Done():
			return
		case <-ticker.C:
		}
		// The host was asked at least one tick ago, and an answer would have updated the time.
		if time.Since(watched.heard()) >= limit*2/3 {
			c.end(fmt.Errorf("it has been silent for %s", limit))
			return
		}
		go func() { _ = c.ask() }() // watched records an answer
	}
}

// ask sends a keep-alive request. It returns an error if the connection ends before the answer.
func (c *conn) ask() error {
	_, _, err := c.client.SendRequest("keepalive@openssh.com", true, nil)
	return err
}

// lost returns the error for an operation that the end of the connection interrupted.
func (c *conn) lost() error {
	cause := context.Cause(c.alive)
	if errors.Is(cause, errClosed) {
		return fmt.Errorf("host %s: %w", c.target.Name, cause)
	}
	return &Unreachable{Host: c.target.Name, Address: c.target.hostPort(), Err: cause}
}

// Dial implements Conn.
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

// Close ends the connection and all its sessions.
func (c *conn) Close() error {
	c.end(errClosed)
	return nil
}

// watched is a connection that records when it last received data.
type watched struct {
	net.Conn

	start time.Time // monotonic
	last  atomic.Int64
}

func newWatched(c net.Conn) *watched { return &watched{Conn: c, start: time.Now()} }

// Read reads and records the time.
func (w *watched) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	if n > 0 {
		w.last.Store(int64(time.Since(w.start)))
	}
	return n, err
}

func (w *watched) heard() time.Time { return w.start.Add(time.Duration(w.last.Load())) }
