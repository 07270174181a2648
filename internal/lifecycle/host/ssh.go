package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// KeyPolicy says whether a host with an unknown key is accepted. A key that differs from the known
// keys of the host is always refused.
type KeyPolicy string

// The policies.
const (
	// TrustOnFirstUse records the key of an unknown host. It is the default.
	TrustOnFirstUse KeyPolicy = "TrustOnFirstUse"
	// Strict refuses an unknown host.
	Strict KeyPolicy = "Strict"
	// Pinned accepts only the keys in [Target.KnownHosts], and uses no files. A host without such a
	// key is not dialed.
	Pinned KeyPolicy = "Pinned"
)

// SSH is a Dialer that connects over SSH. Use it by pointer, because hosts behind the same bastion
// share the connection to the bastion. Dial may be called from several goroutines.
type SSH struct {
	// KnownHosts is the known_hosts file with the keys of hosts, in which new keys are recorded. It is
	// created if missing. Default: ~/.ssh/known_hosts, which is always read, too. Give each cluster
	// its own file, since two networks may use the same addresses. The policy Pinned does not use the
	// file.
	KnownHosts string
	// HostKeys is the policy for unknown keys. Default: TrustOnFirstUse.
	HostKeys KeyPolicy
	// KeepAlive is how long a host may be silent before it counts as unreachable. Default: 15 s.
	KeepAlive time.Duration

	mu       sync.Mutex
	bastions map[Target]*bastion
}

var _ Dialer = (*SSH)(nil)

// Dial implements Dialer. It connects to t and logs in. A bastion is dialed only if no other host
// uses it, and is closed after its last host. Under TrustOnFirstUse, Dial may add a line to the
// known_hosts file.
func (s *SSH) Dial(ctx context.Context, t Target) (Conn, error) {
	t, err := t.defaulted()
	if err != nil {
		return nil, err
	}
	if t.Bastion == nil {
		c, err := s.connect(ctx, t, new(net.Dialer).DialContext)
		if err != nil {
			return nil, err // a nil *conn would be a Conn that is not nil
		}
		return c, nil
	}
	b, err := s.acquire(ctx, *t.Bastion)
	if err != nil {
		return nil, fmt.Errorf("host %s: through its bastion: %w", t.Name, err)
	}
	c, err := s.connect(ctx, t, b.conn.client.DialContext)
	if err != nil {
		s.release(*t.Bastion, b)
		return nil, err
	}
	go func() {
		<-c.alive.Done()
		s.release(*t.Bastion, b)
	}()
	return c, nil
}

// connect connects to one host through dial, performs the handshake and logs in, all within
// t.Timeout. Under TrustOnFirstUse it may record the host's key. An error has one of the types that
// the comment of the package lists, unless ctx ends or a file cannot be read.
func (s *SSH) connect(ctx context.Context, t Target, dial func(context.Context, string, string) (net.Conn, error)) (*conn, error) {
	keys, err := s.hostKeys(t)
	if err != nil {
		return nil, err
	}
	algorithms, err := keys.algorithms()
	if err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, t.Timeout)
	defer cancel()
	login, err := newLogin(limited, t)
	if err != nil {
		return nil, err
	}
	defer login.close()

	netConn, err := dial(limited, "tcp", t.hostPort())
	if err != nil {
		return nil, dialError(ctx, limited, t, err)
	}
	watched := newWatched(netConn)
	// Not every net.Conn supports deadlines: one through a bastion does not.
	stop := context.AfterFunc(limited, func() { _ = watched.Close() })
	var verified bool
	var refused error
	sshConn, channels, requests, err := ssh.NewClientConn(watched, t.hostPort(), &ssh.ClientConfig{
		User:              t.User,
		Auth:              login.methods,
		HostKeyAlgorithms: algorithms,
		HostKeyCallback: func(_ string, _ net.Addr, key ssh.PublicKey) error {
			refused = keys.verify(limited, key)
			verified = refused == nil
			return refused
		},
	})
	inTime := stop()
	switch {
	case refused != nil:
		return nil, refused
	case err != nil && verified && inTime && !isNetwork(err):
		return nil, login.refused(t, err)
	case err != nil && !verified && inTime && !isNegotiation(err):
		return nil, dialError(ctx, limited, t, fmt.Errorf("%w: %w", errNoSSH, err))
	case err != nil:
		return nil, dialError(ctx, limited, t, err)
	case !inTime:
		return nil, dialError(ctx, limited, t, errors.Join(limited.Err(), sshConn.Close()))
	}
	limit := s.KeepAlive
	if limit == 0 {
		limit = 15 * time.Second
	}
	return newConn(t, ssh.NewClient(sshConn, channels, requests), watched, limit), nil
}

// dialError returns the error for dialing t, which failed with err. limited is ctx with t's
// timeout. The result is an *Unreachable, unless ctx itself has ended.
func dialError(ctx, limited context.Context, t Target, err error) error {
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("host %s: connect to it: %w", t.Name, context.Cause(ctx))
	// A socket notices the deadline a little earlier.
	case limited.Err() != nil, errors.Is(err, os.ErrDeadlineExceeded):
		err = fmt.Errorf("no answer within %s: %w", t.Timeout, context.DeadlineExceeded)
	}
	return &Unreachable{Host: t.Name, Address: t.hostPort(), Err: err}
}

// isNetwork reports whether the network caused err, and not the SSH protocol. The end of the stream
// counts as a network error.
func isNetwork(err error) bool {
	var network net.Error
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &network)
}

// isNegotiation reports whether the peer uses SSH but shares no algorithm with this client.
func isNegotiation(err error) bool {
	var negotiation *ssh.AlgorithmNegotiationError
	return errors.As(err, &negotiation)
}
