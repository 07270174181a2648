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

// Target describes how to reach one host. Without a password and key, the keys of the agent at
// SSH_AUTH_SOCK are tried, and then ~/.ssh/id_ed25519, id_ecdsa and id_rsa.
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
	// PrivateKeyPath is the file of a key without a passphrase. A leading ~ is the home directory.
	PrivateKeyPath string
	// SudoPassword is the answer to sudo's prompt. Default: Password.
	SudoPassword Secret
	// KnownHosts are the allowed keys under the policy [Pinned], as lines of a known_hosts file.
	KnownHosts string
	// KnownHostsIn names the source of KnownHosts in messages.
	KnownHostsIn string
	// Bastion is the host through which this one is reached. It must not have a bastion itself.
	Bastion *Target
	// Timeout for dialing with the handshake, and for sudo to start a command. Default: 30 s.
	Timeout time.Duration
}

// Conn is a connection to a host. It is safe for concurrent use. Each Run uses its own session.
type Conn interface {
	// Run runs argv as root and returns when the command has ended. The command reads stdin, and its
	// standard output goes to stdout. Both may be nil. The command runs with a PATH of the usual
	// directories and in the C locale. All users of the host can see argv, and sudo logs it, so
	// secrets must go through stdin.
	//
	// A command that ends with a status other than 0 returns an [ExitError]. If ctx ends, or stdin or
	// stdout fails, the command is terminated, and killed after some seconds. Run then returns the
	// cause. A command never sees the end of a stdin that failed. As with ssh, Run waits for all
	// processes that hold the command's output. A process that must outlive Run must redirect its
	// output.
	Run(ctx context.Context, argv []string, stdin io.Reader, stdout io.Writer) error
	// Dial connects from the host, and so reaches addresses that only the host can reach.
	Dial(ctx context.Context, network, address string) (net.Conn, error)
	// Close ends the connection and all its sessions.
	Close() error
}

// Dialer connects to hosts.
type Dialer interface {
	// Dial connects to the host and logs in. The end of ctx later does not end the connection.
	Dial(ctx context.Context, t Target) (Conn, error)
}

// defaulted returns t with its defaults, or an error if t is invalid.
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

// hostPort returns the address to dial.
func (t Target) hostPort() string { return net.JoinHostPort(t.Address, strconv.Itoa(t.Port)) }

// errClosed means that Close ended the connection.
var errClosed = errors.New("the connection was closed")
