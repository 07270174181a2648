// Package facts reads the facts of a host, such as its kernel, disks and ports, with one shell
// script.
//
// The script only collects the facts, as lines of a key and a value. Parse interprets the lines. A
// host needs only a shell and uname. If it lacks another tool, only the facts that the script reads
// with that tool are missing.
package facts

import (
	_ "embed"
	"strings"
)

//go:embed facts.sh
var script string

// Script returns a POSIX shell script that prints the facts of its host. Parse reads the output.
// The script changes nothing, but writes and removes a file of 4 KiB to measure fsync. agentPath is
// where the agent, Orrery's program on hosts, may be. If it is there, it reports what was applied
// to the host. Else the script prints the host's record. etcdLog is the directory with the
// write-ahead log of etcd, or "" for an external etcd.
func Script(agentPath, etcdLog string) string {
	return "agent=" + quote(agentPath) + "\netcd_log=" + quote(etcdLog) + "\ntraces=" + quote(strings.Join(Traces, " ")) + "\n" + script
}

// quote quotes a word for a shell.
func quote(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }

// Traces are shell patterns of paths that exist on a host only because of Orrery.
var Traces = []string{
	"/opt/orrery", "/var/lib/orrery", "/etc/systemd/system/orrery-*", "/etc/modules-load.d/orrery.conf", "/etc/sysctl.d/95-orrery.conf",
}
