package host

import (
	"strings"

	"golang.org/x/crypto/ssh"
)

// complaints has texts in messages of sudo, in the C locale, and of sudo-rs, with the reason that
// each one means. The first match counts.
var complaints = []struct {
	text   string
	reason SudoReason
}{
	{"you must have a tty", RequiresTTY},
	{"is not in the sudoers file", NotInSudoers},
	{"may not run sudo", NotInSudoers},
	{"is not allowed to", NotInSudoers},
	{"I'm afraid I can't do that", NotInSudoers},
	{"incorrect password", WrongPassword},
	{"incorrect authentication", WrongPassword},
	{"no password was provided", NeedsPassword},
	{"a password is required", NeedsPassword},
}

// sudoReason returns why sudo did not start the command, from its output and exit status. exit is
// nil if the session ended without a status. The result is SudoFailed if the reason is unknown.
func (e *execution) sudoReason(exit *ssh.ExitError, output string) SudoReason {
	if e.refusal != "" {
		return e.refusal
	}
	for _, complaint := range complaints {
		if strings.Contains(output, complaint.text) {
			return complaint.reason
		}
	}
	if exit != nil && exit.ExitStatus() == 127 { // status of env for a missing program
		return NoSudo
	}
	return SudoFailed
}
