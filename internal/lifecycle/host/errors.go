//nolint:errname // they are named for what happened
package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/crypto/ssh/knownhosts"
)

// Unreachable says that a host cannot be reached, or no longer. Nothing is known of its state.
type Unreachable struct {
	Host    string // its name
	Address string // what was dialled
	Err     error  // why
}

// Error names the host and what to look at.
func (e *Unreachable) Error() string {
	return fmt.Sprintf("host %s: unreachable at %s: %s: %s", e.Host, e.Address, e.Err, e.hint())
}

// Unwrap returns why.
func (e *Unreachable) Unwrap() error { return e.Err }

// hint is the way out.
func (e *Unreachable) hint() string {
	var dns *net.DNSError
	switch {
	case errors.As(e.Err, &dns):
		return "correct the name or give an IP address"
	case errors.Is(e.Err, syscall.ECONNREFUSED):
		return "check that sshd runs there and listens on this port"
	case errors.Is(e.Err, syscall.EHOSTUNREACH), errors.Is(e.Err, syscall.ENETUNREACH):
		return "check the address and the routes to it"
	case errors.Is(e.Err, errNoSSH):
		return "check that the port is sshd's and that sshd accepts more connections (MaxStartups)"
	case errors.Is(e.Err, context.DeadlineExceeded):
		return "check that the host is up and that no firewall drops the packets"
	}
	return "check that the host is up and on the network, then try again"
}

// errNoSSH is why a peer that does not speak SSH is of no use.
var errNoSSH = errors.New("no SSH server answers")

// Unauthorized says that a host refused the login.
type Unauthorized struct {
	Host  string
	User  string
	Tried []string // the ways to log in, in the order they were tried, and why one could not be
	Err   error    // what SSH says
}

// Error names the host and all that was tried.
func (e *Unauthorized) Error() string {
	return fmt.Sprintf("host %s: login of %s refused; tried: %s; give a password or a key that the host accepts",
		e.Host, e.User, strings.Join(e.Tried, ", "))
}

// Unwrap returns what SSH says.
func (e *Unauthorized) Unwrap() error { return e.Err }

// HostKeyChanged says that a host shows another key than the one that is known.
type HostKeyChanged struct { //nolint:revive // a KeyChanged could be any key
	Host    string
	Address string // as it stands in File
	File    string
	Line    int
	Want    string // the known key's fingerprint
	Got     string // the shown key's fingerprint
	Pinned  bool   // File is no file, but says where the target's own keys stand
}

// Error names the host, both keys, and what to do if the host was reinstalled.
func (e *HostKeyChanged) Error() string {
	wayOut := fmt.Sprintf("run: ssh-keygen -f %s -R %s", Quote(e.File), Quote(e.Address))
	if e.Pinned {
		wayOut = "replace that line by the host's new key"
	}
	return fmt.Sprintf("host %s: its key is %s, but %s:%d knows %s: another machine may pose as it; if it was reinstalled, %s",
		e.Host, e.Got, e.File, e.Line, e.Want, wayOut)
}

// NoHostKey says that under the policy [Pinned] no key of a host is known, so that it was not dialled.
type NoHostKey struct {
	Host    string
	Address string
	Port    int
	In      string // where its key should stand
}

// Error names the host and how its key is found.
func (e *NoHostKey) Error() string {
	return fmt.Sprintf("host %s: %s has no key of %s, so it is not dialled; add what ssh-keyscan -p %d %s prints, if the host's console shows the same (ssh-keygen -l)",
		e.Host, e.In, knownhosts.Normalize(net.JoinHostPort(e.Address, strconv.Itoa(e.Port))), e.Port, e.Address)
}

// UnknownHostKey says that no file knows the key of a host, and that the policy asks for it.
type UnknownHostKey struct {
	Host string
	File string // where it should stand
	Line string // what should stand there
	Got  string // the shown key's fingerprint
}

// Error names the host and the line to add.
func (e *UnknownHostKey) Error() string {
	return fmt.Sprintf("host %s: its key %s is unknown; if the host's console shows the same (ssh-keygen -l), add to %s: %s",
		e.Host, e.Got, e.File, e.Line)
}

// LoginRefused says that the login worked but starts no commands: its shell is nologin, its password has expired,
// or root's key only tells to log in as another user.
type LoginRefused struct {
	Host   string
	User   string
	Output string // what the host said
}

// Error names the host and what it said.
func (e *LoginRefused) Error() string {
	return fmt.Sprintf("host %s: the login of %s starts no commands; give a user with a POSIX shell; the host says: %s",
		e.Host, e.User, said(e.Output))
}

// SudoReason is why sudo did not start a command.
type SudoReason string

// The reasons of sudo.
const (
	WrongPassword SudoReason = "WrongPassword"
	NeedsPassword SudoReason = "NeedsPassword" // and none was given
	NotInSudoers  SudoReason = "NotInSudoers"
	NoSudo        SudoReason = "NoSudo" // there is no such program
	RequiresTTY   SudoReason = "RequiresTTY"
	SudoFailed    SudoReason = "SudoFailed" // see Output
)

// wayOut of each reason.
func (r SudoReason) wayOut() string {
	switch r {
	case WrongPassword:
		return "sudo does not accept the password; correct the sudo password"
	case NeedsPassword:
		return "sudo asks for a password; give the sudo password, or allow the user NOPASSWD in /etc/sudoers.d"
	case NotInSudoers:
		return "the user may not use sudo; add it to the group sudo or wheel, or log in as root"
	case NoSudo:
		return "there is no sudo; install it, or log in as root"
	case RequiresTTY:
		return "sudo asks for a terminal; set Defaults:USER !requiretty in /etc/sudoers.d"
	case SudoFailed:
	}
	return "sudo did not start the command; see what it says"
}

// SudoRefused says that a user cannot become root.
type SudoRefused struct {
	Host   string
	User   string
	Reason SudoReason
	Output string // what sudo said
}

// Error names the host, the user and the way out.
func (e *SudoRefused) Error() string {
	return fmt.Sprintf("host %s: user %s: %s; the host says: %s", e.Host, e.User, e.Reason.wayOut(), said(e.Output))
}

// said quotes what a host said.
func said(output string) string {
	if output == "" {
		return "nothing"
	}
	return fmt.Sprintf("%q", output)
}

// ExitError says that a command ended with another status than 0.
type ExitError struct {
	Host    string
	Command string // the program, without its arguments, which may be secret
	Code    int    // its exit status; 128 and the number of the signal that killed it
	Stderr  string // the end of what it wrote there
}

// Error names the host, the program and what it said.
func (e *ExitError) Error() string {
	return fmt.Sprintf("host %s: %s: exit status %d: %s", e.Host, e.Command, e.Code, said(e.Stderr))
}
