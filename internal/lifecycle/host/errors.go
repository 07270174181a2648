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

// Unreachable means that a host cannot be reached, or that the connection to it broke. The state of
// the host is then unknown, and so is the state of a command that ran.
type Unreachable struct {
	Host    string // name of the host
	Address string // address that was dialed
	Err     error  // the cause
}

// Error names the host and what to check.
func (e *Unreachable) Error() string {
	return fmt.Sprintf("host %s: unreachable at %s: %s: %s", e.Host, e.Address, e.Err, e.hint())
}

// Unwrap returns the cause.
func (e *Unreachable) Unwrap() error { return e.Err }

// hint returns what the user can check, depending on the cause.
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

// errNoSSH means that the peer at the address of a host does not use SSH.
var errNoSSH = errors.New("no SSH server answers")

// Unauthorized means that a host refused the login.
type Unauthorized struct {
	Host  string
	User  string
	Tried []string // methods in the order of attempts, with reasons for those that were impossible
	Err   error    // error of the SSH handshake
}

// Error names the host and everything that was tried.
func (e *Unauthorized) Error() string {
	return fmt.Sprintf("host %s: login of %s refused; tried: %s; give a password or a key that the host accepts",
		e.Host, e.User, strings.Join(e.Tried, ", "))
}

// Unwrap returns the error of the SSH handshake.
func (e *Unauthorized) Unwrap() error { return e.Err }

// HostKeyChanged means that a host shows another key than the one that is known for it. The host
// was reinstalled, or another machine poses as it.
type HostKeyChanged struct { //nolint:revive // a KeyChanged could be any key
	Host    string
	Address string // of the host, as File has it
	File    string // the known_hosts file with the known key
	Line    int    // in File, from 1
	Want    string // fingerprint of the known key
	Got     string // fingerprint of the key shown
	Pinned  bool   // the policy is Pinned: File is then Target.KnownHostsIn, and no file
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

// NoHostKey means that the policy is [Pinned] and [Target.KnownHosts] has no key for the host. The
// host was not dialed.
type NoHostKey struct {
	Host    string
	Address string
	Port    int
	In      string // Target.KnownHostsIn: where the key should be
}

// Error names the host and how to get its key.
func (e *NoHostKey) Error() string {
	return fmt.Sprintf("host %s: %s has no key of %s, so it is not dialled; add what ssh-keyscan -p %d %s prints, if the host's console shows the same (ssh-keygen -l)",
		e.Host, e.In, knownhosts.Normalize(net.JoinHostPort(e.Address, strconv.Itoa(e.Port))), e.Port, e.Address)
}

// UnknownHostKey means that the policy is [Strict] and no known_hosts file has a key for the host.
type UnknownHostKey struct {
	Host string
	File string // file for the key
	Line string // line to add to the file
	Got  string // fingerprint of the key shown
}

// Error names the host and the line to add.
func (e *UnknownHostKey) Error() string {
	return fmt.Sprintf("host %s: its key %s is unknown; if the host's console shows the same (ssh-keygen -l), add to %s: %s",
		e.Host, e.Got, e.File, e.Line)
}

// LoginRefused means that the login succeeded, but the host starts no commands for this user. The
// login shell may be nologin, the password may have expired, or root's key may only print a
// message.
type LoginRefused struct {
	Host   string
	User   string
	Output string // output of the host
}

// Error names the host and its output.
func (e *LoginRefused) Error() string {
	return fmt.Sprintf("host %s: the login of %s starts no commands; give a user with a POSIX shell; the host says: %s",
		e.Host, e.User, said(e.Output))
}

// SudoReason is the reason why sudo did not start a command, see SudoRefused.
type SudoReason string

// Values of SudoReason.
const (
	WrongPassword SudoReason = "WrongPassword" // sudo refused the password
	NeedsPassword SudoReason = "NeedsPassword" // sudo asks for a password, and none was given
	NotInSudoers  SudoReason = "NotInSudoers"  // the user may not use sudo
	NoSudo        SudoReason = "NoSudo"        // sudo is not installed
	RequiresTTY   SudoReason = "RequiresTTY"   // sudo requires a terminal
	SudoFailed    SudoReason = "SudoFailed"    // another reason, see SudoRefused.Output
)

// wayOut returns what happened and what the user can do, for the message of SudoRefused.
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

// SudoRefused means that sudo did not start a command, so that the user of a login cannot become
// root.
type SudoRefused struct {
	Host   string
	User   string
	Reason SudoReason
	Output string // output of sudo
}

// Error names the host, the user, and what to do.
func (e *SudoRefused) Error() string {
	return fmt.Sprintf("host %s: user %s: %s; the host says: %s", e.Host, e.User, e.Reason.wayOut(), said(e.Output))
}

// said quotes the output of a host for a message; "nothing" stands for an empty output.
func said(output string) string {
	if output == "" {
		return "nothing"
	}
	return fmt.Sprintf("%q", output)
}

// ExitError means that a command ended with a status other than 0.
type ExitError struct {
	Host    string
	Command string // the program without its arguments, which may be secret
	Code    int    // exit status, or 128 plus the number of the signal that killed it
	Stderr  string // the end of standard error
}

// Error names the host, the program and the end of its standard error.
func (e *ExitError) Error() string {
	return fmt.Sprintf("host %s: %s: exit status %d: %s", e.Host, e.Command, e.Code, said(e.Stderr))
}
