package host

import (
	"context"
	"net"
)

// bastion is a connection to a bastion, which the hosts behind it share. The first user dials it,
// and the last user closes it.
type bastion struct {
	users  int // number of connections through it; guarded by SSH.mu
	cancel context.CancelFunc
	ready  chan struct{} // closed when conn or err is set
	conn   *conn
	err    error
}

// acquire returns the shared connection to bastion t. It dials if there is no connection, or if it
// is broken. Callers share one attempt to dial, which continues if ctx ends while other callers
// wait. After a nil error, the caller must call release.
func (s *SSH) acquire(ctx context.Context, t Target) (*bastion, error) {
	s.mu.Lock()
	b := s.bastions[t]
	if b == nil || b.broken() {
		// The dial must continue if the context of this caller ends while other callers wait for it.
		dialling, cancel := context.WithCancel(context.WithoutCancel(ctx))
		b = &bastion{cancel: cancel, ready: make(chan struct{})}
		if s.bastions == nil {
			s.bastions = map[Target]*bastion{}
		}
		s.bastions[t] = b
		go func() {
			defer close(b.ready)
			b.conn, b.err = s.connect(dialling, t, new(net.Dialer).DialContext)
		}()
	}
	b.users++
	s.mu.Unlock()

	select {
	case <-b.ready:
		if b.err == nil {
			return b, nil
		}
		s.release(t, b)
		return nil, b.err
	case <-ctx.Done():
		s.release(t, b)
		return nil, context.Cause(ctx)
	}
}

// release ends one use of b, which acquire returned for t. The last user closes the connection, or
// cancels the attempt to dial.
func (s *SSH) release(t Target, b *bastion) {
	s.mu.Lock()
	b.users--
	last := b.users == 0
	if last && s.bastions[t] == b {
		delete(s.bastions, t)
	}
	s.mu.Unlock()
	if !last {
		return
	}
	b.cancel()
	<-b.ready // closed soon, since the context of the dial was canceled
	if b.err == nil {
		b.conn.end(errClosed)
	}
}

// broken reports whether dialing b failed or its connection ended. It is false while b is dialed.
func (b *bastion) broken() bool {
	select {
	case <-b.ready:
		return b.err != nil || b.conn.alive.Err() != nil
	default:
		return false
	}
}
