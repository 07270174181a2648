// Package facts reads the facts of a host with one script.
//
// The script only collects, as lines of a key and a value. This package interprets them, which can
// be tested. A host therefore needs only a shell, and a missing tool costs only a fact.
package facts

import (
	_ "embed"
	"strings"
)

//go:embed facts.sh
var script string

// Script returns a POSIX shell script that prints the facts of its host. It changes nothing, but
// writes and removes a file of 4 KiB to measure fsync. If the agent is at agentPath, the agent
// reports what was applied. Else the script prints the agent's record. etcdLog is the directory
// with the write-ahead log of etcd, or empty.
func Script(agentPath, etcdLog string) string {
	return "agent=" + quote(agentPath) + "\netcd_log=" + quote(etcdLog) + "\ntraces=" + quote(strings.Join(Traces, " ")) + "\n" + script
}

// quote quotes a word for a shell.
func quote(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }

// Traces are patterns of paths that exist on a host only because of Orrery.
var Traces = []string{
	"/opt/orrery", "/var/lib/orrery", "/etc/systemd/system/orrery-*", "/etc/modules-load.d/orrery.conf", "/etc/sysctl.d/95-orrery.conf",
}
