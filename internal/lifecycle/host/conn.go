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
	// maxSessions of one connection: sshd allows 10 (MaxSessions), of which two are left for killing commands.
	maxSessions = 8
	// spareSessions are those left.
	spareSessions = 2
)

// conn is the Conn over SSH.
type conn struct {
	target   Target
	redactor redactor
	client   *ssh.Client
	sessions chan struct{} // holds one for each session
	spare    chan struct{}

	// alive ends with the connection; its cause is why.
	alive context.Context //nolint:containedctx // it is the connection's life, which no call's context spans
	end   context.CancelCauseFunc
}

// newConn watches over the connection of client until it ends.
func newConn(t Target, client *ssh.Client, watched *watched, limit time.Duration) *conn {
	c := &conn{
		target: t, redactor: newRedactor(t), client: client,
		sessions: make(chan struct{}, maxSessions), spare: make(chan struct{}, spareSessions),
	}
	c.alive, c.end = context.WithCancelCause(context.Background())
	context.AfterFunc(c.alive, func() { _ = client.Close() }) // its error is that it was closed before
	go func() { c.end(fmt.Errorf("the connection broke: %w", client.Wait())) }()
	go c.keepAlive(watched, limit)
	return c
}

// keepAlive ends the connection when the host has been silent for as long as limit, although it was asked.
func (c *conn) keepAlive(watched *watched, limit time.Duration) {
	ticker := time.NewTicker(limit / 3)
	defer ticker.Stop()
	for {
		select {
		case <-c.alive.Done():
			return
		case <-ticker.C:
		}
		// Asked at least one tick ago, for an answer would have broken the silence.
		if time.Since(watched.heard()) >= limit*2/3 {
			c.end(fmt.Errorf("it has been silent for %s", limit))
			return
		}
		go func() { _ = c.ask() }() // it is heard, or not
	}
}

// ask makes the host say something, and returns an error if the connection ends before.
func (c *conn) ask() error {
	_, _, err := c.client.SendRequest("keepalive@openssh.com", true, nil)
	return err
}

// lost is the error of whatever the end of the connection interrupted.
func (c *conn) lost() error {
	cause := context.Cause(c.alive)
	if errors.Is(cause, errClosed) {
		return fmt.Errorf("host %s: %w", c.target.Name, cause)
	}
	return &Unreachable{Host: c.target.Name, Address: c.target.hostPort(), Err: cause}
}

// Dial connects from the host.
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

// Close ends the connection and all that runs over it.
func (c *conn) Close() error {
	c.end(errClosed)
	return nil
}

// watched is a connection that knows when it last heard from its peer.
type watched struct {
	net.Conn

	start time.Time // monotonic
	last  atomic.Int64
}

func newWatched(c net.Conn) *watched { return &watched{Conn: c, start: time.Now()} }

// Read notes the time.
func (w *watched) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	if n > 0 {
		w.last.Store(int64(time.Since(w.start)))
	}
	return n, err
}

func (w *watched) heard() time.Time { return w.start.Add(time.Duration(w.last.Load())) }
