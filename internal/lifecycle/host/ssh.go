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

// KeyPolicy says what to do with a host whose key is not known. A key that is known and differs is always refused.
type KeyPolicy string

// The policies.
const (
	// TrustOnFirstUse records the key of an unknown host. It is the default.
	TrustOnFirstUse KeyPolicy = "TrustOnFirstUse"
	// Strict refuses an unknown host.
	Strict KeyPolicy = "Strict"
	// Pinned knows the keys of [Target.KnownHosts] and no others: no file is read or written, and a host that they do not
	// name is not dialled.
	Pinned KeyPolicy = "Pinned"
)

// SSH is the Dialer over SSH. It is to be used by pointer, for hosts behind one bastion share its connection.
type SSH struct {
	// KnownHosts is the file of the known keys, made when missing. ~/.ssh/known_hosts, its default, is read too.
	// Hosts of two networks may have the same addresses: give each cluster a file of its own.
	KnownHosts string
	// HostKeys is the policy for unknown keys. Default: TrustOnFirstUse.
	HostKeys KeyPolicy
	// KeepAlive is how long a host may be silent before it is held for unreachable. Default: 15 s.
	KeepAlive time.Duration

	mu       sync.Mutex
	bastions map[Target]*bastion
}

var _ Dialer = (*SSH)(nil)

// Dial connects to the host and logs in.
func (s *SSH) Dial(ctx context.Context, t Target) (Conn, error) {
	t, err := t.defaulted()
	if err != nil {
		return nil, err
	}
	if t.Bastion == nil {
		c, err := s.connect(ctx, t, new(net.Dialer).DialContext)
		if err != nil {
			return nil, err // not a Conn that holds nil
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

// connect dials one host, makes the handshake and logs in.
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
	// Not every net.Conn here has deadlines: one through a bastion has none.
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

// dialError says why dialling t failed with err: ctx may have ended, or the part of it that t's timeout allows.
func dialError(ctx, limited context.Context, t Target, err error) error {
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("host %s: connect to it: %w", t.Name, context.Cause(ctx))
	case limited.Err() != nil, errors.Is(err, os.ErrDeadlineExceeded): // a socket notices the deadline a little earlier
		err = fmt.Errorf("no answer within %s: %w", t.Timeout, context.DeadlineExceeded)
	}
	return &Unreachable{Host: t.Name, Address: t.hostPort(), Err: err}
}

// isNetwork says whether err is of the connection, not of what was said over it.
func isNetwork(err error) bool {
	var network net.Error
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &network)
}

// isNegotiation says whether the peer speaks SSH but nothing that we do.
func isNegotiation(err error) bool {
	var negotiation *ssh.AlgorithmNegotiationError
	return errors.As(err, &negotiation)
}
