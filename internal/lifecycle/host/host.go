// Package host connects to the Linux hosts that clusters are built on, over SSH. It runs commands there as root,
// with sudo where the user is another, and reaches what only the host can reach. It knows nothing of clusters.
//
// Whatever goes wrong has a type of its own ([Unreachable], [Unauthorized], [HostKeyChanged], [UnknownHostKey],
// [NoHostKey], [LoginRefused], [SudoRefused], [ExitError]), names the host and says the way out. Secrets are in none of them.
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

// Target says how to reach one host. Without a password and a key the agent at SSH_AUTH_SOCK is asked, then
// ~/.ssh/id_ed25519, id_ecdsa and id_rsa are tried.
type Target struct {
	// Name of the host in messages and logs. Default: Address.
	Name string
	// Address is an IP or a DNS name.
	Address string
	// Port of sshd. Default: 22.
	Port int
	// User to log in as. Default: root. Its login shell has to be a POSIX one (bash, dash, ksh, zsh).
	User string
	// Password of the user.
	Password Secret
	// PrivateKey is a key in PEM, not encrypted.
	PrivateKey Secret
	// PrivateKeyPath is the file of a key, not encrypted; a leading ~ is the home directory.
	PrivateKeyPath string
	// SudoPassword is what sudo may ask for. Default: Password.
	SudoPassword Secret
	// KnownHosts are the keys that the host may have under the policy [Pinned], as lines of a known_hosts file.
	KnownHosts string
	// KnownHostsIn says in messages where KnownHosts stand.
	KnownHostsIn string
	// Bastion is the host that this one is reached through. It has no further bastion.
	Bastion *Target
	// Timeout of dialling with the handshake, and of sudo's start of a command. Default: 30 s.
	Timeout time.Duration
}

// Conn is a connection to a host. It is safe for concurrent use: each Run is a session of its own.
type Conn interface {
	// Run runs argv as root and returns when it has ended. The command gets stdin, which may be nil, and stdout
	// gets its standard output, unless nil. It runs with a PATH of the usual directories and in the C locale.
	// Everyone on the host can see argv, and sudo logs it: secrets go through stdin.
	//
	// A command that ends with another status than 0 returns an [ExitError]. When ctx ends, or stdin or stdout
	// fails, the command is terminated, killed after some seconds, and the cause is returned; it never sees the
	// end of a stdin that failed. As with ssh, Run waits for all that hold the command's output: what is to
	// outlive it has to redirect its own.
	Run(ctx context.Context, argv []string, stdin io.Reader, stdout io.Writer) error
	// Dial connects from the host, so that what only the host can reach is reached.
	Dial(ctx context.Context, network, address string) (net.Conn, error)
	// Close ends the connection and all that runs over it.
	Close() error
}

// Dialer connects to hosts.
type Dialer interface {
	// Dial connects to the host and logs in. Ending ctx afterwards does not end the connection.
	Dial(ctx context.Context, t Target) (Conn, error)
}

// defaulted returns t with its defaults, or what is wrong with it.
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

// hostPort is the address to dial.
func (t Target) hostPort() string { return net.JoinHostPort(t.Address, strconv.Itoa(t.Port)) }

// errClosed is why a connection that was closed here is of no use.
var errClosed = errors.New("the connection was closed")
