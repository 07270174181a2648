// Package facts asks a host what it is: one script, one answer.
//
// The script only collects, as lines of a key and a value; what they mean is decided here, where it can be tested. So a
// host needs nothing but a shell, and a tool that it lacks costs a fact and not the answer.
package facts

import (
	_ "embed"
	"strings"
)

//go:embed facts.sh
var script string

// Script is a POSIX shell script that writes the facts of the host it runs on. It changes nothing there but for a file
// of 4 KiB that measures fsync, which it removes. If agentPath is our agent, that says what was applied to the host; else
// the record that it keeps does.
func Script(agentPath string) string {
	return "agent='" + strings.ReplaceAll(agentPath, "'", `'\''`) + "'\ntraces='" + strings.Join(Traces, " ") + "'\n" + script
}

// Traces are patterns of what is on a host only because of us.
var Traces = []string{
	"/opt/orrery", "/var/lib/orrery", "/etc/systemd/system/orrery-*", "/etc/modules-load.d/orrery.conf", "/etc/sysctl.d/95-orrery.conf",
}
