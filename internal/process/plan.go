// Package process runs a plan of local processes: it starts them in the order of their dependencies, waits for
// each to be ready, respawns what dies and stops everything in reverse order.
//
// A plan is data (JSON and YAML), so it can be printed, compared and tested without running it. One Supervisor
// runs one plan in one directory, which holds `NAME.pid` and `NAME.log` of each process. A supervisor that is
// killed with SIGKILL takes its processes with it, because the kernel signals them when the thread that made
// them ends; whatever survives that is found by its pidfile and killed by the next supervisor of the directory.
//
// The package works on Linux only: it needs /proc, process groups and PR_SET_PDEATHSIG.
package process

import (
	"fmt"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Plan is a set of processes that belong together.
type Plan struct {
	// Name says in logs what this plan is for.
	Name string `json:"name,omitempty"`
	// Parallelism bounds how many processes may be started and not yet ready for the first time. Zero is no
	// bound. Respawns are not counted. When several could start, the order of the plan decides.
	Parallelism int `json:"parallelism,omitempty"`
	// Processes of the plan; their names are unique.
	Processes []Process `json:"processes"`
}

// Process is one process of a plan.
type Process struct {
	// Name is a DNS subdomain. It names the pidfile and the log.
	Name string `json:"name"`
	// Command is the executable, looked up in PATH when it has no slash, and its arguments.
	Command []string `json:"command"`
	// Env is added to the environment of the supervisor.
	Env map[string]string `json:"env,omitempty"`
	// Dir is the working directory. Unset, it is that of the supervisor.
	Dir string `json:"dir,omitempty"`
	// Files are written before each start.
	Files []File `json:"files,omitempty"`
	// Ready says when the process is ready. Unset, it is ready once started.
	Ready *Probe `json:"ready,omitempty"`
	// After names processes that must have been ready before this one starts, and which are stopped after it.
	After []string `json:"after,omitempty"`
	// DeathSignal is sent to the process when the supervisor dies without stopping it: KILL, the default, or
	// TERM.
	DeathSignal DeathSignal `json:"deathSignal,omitempty"`
	// KillMode is group, the default, or process.
	KillMode KillMode `json:"killMode,omitempty"`
}

// KillMode says what is signalled when a process is stopped, and killed once it has ended.
type KillMode string

// Kill modes.
const (
	// KillModeGroup: the process and what it started in its group, which has ended with it.
	KillModeGroup KillMode = "group"
	// KillModeProcess: only the process. What it started outlives it, as containers outlive their runtime.
	KillModeProcess KillMode = "process"
)

// DeathSignal is the signal that a process gets when its supervisor dies.
type DeathSignal string

// Death signals.
const (
	DeathSignalKill DeathSignal = "KILL"
	DeathSignalTerm DeathSignal = "TERM"
)

// File is a file that a process needs.
type File struct {
	// Path of the file; missing directories are made, accessible to the owner only.
	Path string `json:"path"`
	// Mode is the file's permissions, in octal. Unset, it is 0600.
	Mode Mode `json:"mode,omitempty"`
	// Content of the file.
	Content string `json:"content"`
}

// Mode is a file's permissions. It is written as an octal string, as chmod takes it.
type Mode uint32

// MarshalText implements encoding.TextMarshaler.
func (m Mode) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%#o", uint32(m)), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *Mode) UnmarshalText(text []byte) error {
	mode, err := strconv.ParseUint(string(text), 8, 9)
	if err != nil {
		return fmt.Errorf("parse mode %q: want octal permissions such as \"0600\"", text)
	}
	*m = Mode(mode)
	return nil
}

// Probe says when a process is ready: exactly one of http, tcp, file and exec. It is repeated until it succeeds.
type Probe struct {
	HTTP *HTTPProbe `json:"http,omitempty"`
	TCP  *TCPProbe  `json:"tcp,omitempty"`
	File *FileProbe `json:"file,omitempty"`
	Exec *ExecProbe `json:"exec,omitempty"`
	// Timeout is how long a start may take before an event says that it is slow; the probe goes on. Unset, it
	// is one minute.
	Timeout metav1.Duration `json:"timeout,omitzero"`
}

// HTTPProbe succeeds when a GET is answered with a 2xx status. Redirects are not followed. The files are read
// for each attempt, so they may be rotated.
type HTTPProbe struct {
	URL string `json:"url"`
	// CAFile holds the authorities that the server's certificate must come from. Unset, those of the system.
	CAFile string `json:"caFile,omitempty"`
	// CertFile and KeyFile hold the client certificate. Unset, none is presented.
	CertFile string `json:"certFile,omitempty"`
	KeyFile  string `json:"keyFile,omitempty"`
}

// TCPProbe succeeds when the address accepts a connection.
type TCPProbe struct {
	Address string `json:"address"`
}

// FileProbe succeeds when the file exists. It is removed before each start, so that one which an earlier run
// left says nothing.
type FileProbe struct {
	Path string `json:"path"`
}

// ExecProbe succeeds when the command exits with status 0. It runs with the environment and in the directory
// of the process.
type ExecProbe struct {
	Command []string `json:"command"`
}
