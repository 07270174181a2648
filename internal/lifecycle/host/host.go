// Package host connects over SSH to the Linux hosts on which clusters are built. It runs commands
// there as root, with sudo for other users, and opens connections from the host. It knows nothing
// of clusters.
//
// Each failure has a type: [Unreachable], [Unauthorized], [HostKeyChanged], [UnknownHostKey],
// [NoHostKey], [LoginRefused], [SudoRefused], [ExitError]. The messages name the host and what to
// do. They contain no secrets.
package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"
)

// Target describes how to reach one host and log in. If it has neither a password nor a key, the
// keys of the SSH agent at SSH_AUTH_SOCK are tried, and then ~/.ssh/id_ed25519, id_ecdsa and
// id_rsa.
type Target struct {
	// Name of the host in messages and logs. Default: Address.
	Name string
	// Address is an IP address or DNS name.
	Address string
	// Port of sshd. Default: 22.
	Port int
	// User for the login. Default: root. The login shell must be a POSIX shell (bash, dash, ksh, zsh).
	User string
	// Password of the user.
	Password Secret
	// PrivateKey is a PEM key without a passphrase.
	PrivateKey Secret
	// PrivateKeyPath is the file of a PEM key without a passphrase. A leading ~/ is the home
	// directory.
	PrivateKeyPath string
	// SudoPassword is the answer to sudo's prompt. Default: Password.
	SudoPassword Secret
	// KnownHosts are the keys that the host may show, as lines of a known_hosts file. Only the policy
	// [Pinned] uses them.
	KnownHosts string
	// KnownHostsIn says in messages where KnownHosts come from, such as a key of a Secret.
	KnownHostsIn string
	// Bastion is the host through which this host is reached; nil: directly. A bastion must not have a
	// bastion itself.
	Bastion *Target
	// Timeout limits dialing with handshake and login, and how long sudo may take to start a command.
	// Default: 30 s.
	Timeout time.Duration
}

// Conn is a connection to a host, on which it runs commands. It is safe for concurrent use. Each
// Run has its own SSH session.
type Conn interface {
	// Run runs argv as root and returns when the command has ended. The command reads stdin, and its
	// standard output goes to stdout. nil is an empty input, or discards the output. The command runs
	// with a PATH of the usual directories and in the C locale. All users of the host can see argv,
	// and sudo logs it, so secrets must go through stdin.
	//
	// For a command that ends with a status other than 0, the error is an [ExitError]. If ctx ends, or
	// stdin or stdout fails, Run terminates the command, kills it after some seconds, and returns the
	// cause. After an error of stdin the command does not see the end of its input. As with ssh, Run
	// waits for all processes that hold the command's output. A process that must outlive Run must
	// redirect its output.
	Run(ctx context.Context, argv []string, stdin io.Reader, stdout io.Writer) error
	// Dial connects from the host to an address, also to one that only the host can reach. network is
	// as for net.Dial. Close ends the connection; the end of ctx after Dial has returned does not.
	Dial(ctx context.Context, network, address string) (net.Conn, error)
	// Close ends the connection and all its sessions. Operations under way return errors. It may
	// be called several times.
	Close() error
}

// Dialer connects to hosts.
type Dialer interface {
	// Dial connects to the host and logs in. Close ends the connection; the end of ctx after Dial has
	// returned does not.
	Dial(ctx context.Context, t Target) (Conn, error)
}

// defaulted returns a copy of t with the default values of unset fields, also in its bastion. It
// returns an error if t has no address, an invalid port or timeout, or a bastion with a bastion.
func (t Target) defaulted() (Target, error) {
	t.Name = cmp.Or(t.Name, t.Address)
	t.Port = cmp.Or(t.Port, 22)
	t.User = cmp.Or(t.User, "root")
	t.SudoPassword = cmp.Or(t.SudoPassword, t.Password)
	t.Timeout = cmp.Or(t.Timeout, 30*time.Second)
	switch {
	case t.Address == "":
		return t, fmt.Errorf("host %q: give its address", t.Name)
	case t.Port < 1 || t.Port > 65535:
		return t, fmt.Errorf("host %s: port %d: give one of 1 to 65535", t.Name, t.Port)
	case t.Timeout < 0:
		return t, fmt.Errorf("host %s: timeout %s: give one above 0", t.Name, t.Timeout)
	case t.Bastion == nil:
		return t, nil
	case t.Bastion.Bastion != nil:
		return t, fmt.Errorf("host %s: its bastion %s has a bastion: only one is passed through", t.Name, t.Bastion.Name)
	}
	bastion, err := t.Bastion.defaulted()
	if err != nil {
		return t, fmt.Errorf("host %s: bastion: %w", t.Name, err)
	}
	t.Bastion = &bastion
	return t, nil
}

// hostPort returns the host:port to dial.
func (t Target) hostPort() string { return net.JoinHostPort(t.Address, strconv.Itoa(t.Port)) }

// errClosed is the cause with which Close ends a connection.
var errClosed = errors.New("the connection was closed")
