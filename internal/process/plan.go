// Package process runs a plan of local processes. It starts them in the order of their
// dependencies, waits until each is ready, respawns those that end, and stops all in reverse order.
//
// A plan is data (JSON and YAML), so it can be printed, compared and tested without being run. One
// Supervisor runs one plan in one directory, which holds `NAME.pid` and `NAME.log` of each process.
// When a supervisor is killed with SIGKILL, the kernel signals its processes, because the thread
// that started them ends. The next supervisor of the directory finds surviving processes by their
// pidfiles and kills them.
//
// The package works on Linux only: it needs /proc, process groups and PR_SET_PDEATHSIG.
package process

import (
	"fmt"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Plan is a set of processes that a Supervisor runs together.
type Plan struct {
	// Name of the plan, for logs.
	Name string `json:"name,omitempty"`
	// Parallelism is the maximum number of processes that are started and not ready for the first
	// time yet. 0: no maximum. Respawns do not count. If several processes could start, the order
	// of the plan decides.
	Parallelism int `json:"parallelism,omitempty"`
	// Processes of the plan; their names are unique.
	Processes []Process `json:"processes"`
}

// Process describes one process of a plan: its command, its environment, and when it starts and is
// ready.
type Process struct {
	// Name is a DNS subdomain. The names of the pidfile and the log contain it.
	Name string `json:"name"`
	// Command is the executable, looked up in PATH if it has no slash, and its arguments.
	Command []string `json:"command"`
	// Env is added to the environment of the supervisor.
	Env map[string]string `json:"env,omitempty"`
	// Dir is the working directory; "": that of the supervisor.
	Dir string `json:"dir,omitempty"`
	// Files are written before each start.
	Files []File `json:"files,omitempty"`
	// Ready determines when the process is ready; nil: when it has started.
	Ready *Probe `json:"ready,omitempty"`
	// After names processes that must be ready before this one starts, and that are stopped after
	// this one.
	After []string `json:"after,omitempty"`
	// DeathSignal is sent to the process if the supervisor dies without stopping it: KILL, the
	// default, or TERM.
	DeathSignal DeathSignal `json:"deathSignal,omitempty"`
	// KillMode says what is signaled to stop the process: group, the default, or process.
	KillMode KillMode `json:"killMode,omitempty"`
}

// KillMode says which processes get the signals that stop a process, and which are killed after its
// end.
type KillMode string

// Kill modes.
const (
	// KillModeGroup signals the process with its process group, and kills the rest of the group after
	// the end of the process.
	KillModeGroup KillMode = "group"
	// KillModeProcess signals only the process. Its children outlive it, as containers outlive their
	// runtime.
	KillModeProcess KillMode = "process"
)

// DeathSignal is the signal that the kernel sends to a process if its supervisor dies without
// stopping it.
type DeathSignal string

// Values of Process.DeathSignal; "" means DeathSignalKill.
const (
	DeathSignalKill DeathSignal = "KILL"
	DeathSignalTerm DeathSignal = "TERM"
)

// File is a file that the supervisor writes before it starts a process.
type File struct {
	// Path of the file. Missing directories are created, accessible only to the owner.
	Path string `json:"path"`
	// Mode is the file's permissions, in octal; 0: 0600.
	Mode Mode `json:"mode,omitempty"`
	// Content of the file.
	Content string `json:"content"`
}

// Mode is the permissions of a file. Its text form is octal, as for chmod.
type Mode uint32

// MarshalText implements encoding.TextMarshaler. It returns the permissions in octal, such as 0600.
func (m Mode) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%#o", uint32(m)), nil }

// UnmarshalText implements encoding.TextUnmarshaler. It accepts permissions only, at most 0777.
func (m *Mode) UnmarshalText(text []byte) error {
	mode, err := strconv.ParseUint(string(text), 8, 9)
	if err != nil {
		return fmt.Errorf("parse mode %q: want octal permissions such as \"0600\"", text)
	}
	*m = Mode(mode)
	return nil
}

// Probe determines when a process is ready, by exactly one of http, tcp, file and exec. It is
// repeated until it succeeds, and not after that: a ready process is not probed again.
type Probe struct {
	HTTP *HTTPProbe `json:"http,omitempty"`
	TCP  *TCPProbe  `json:"tcp,omitempty"`
	File *FileProbe `json:"file,omitempty"`
	Exec *ExecProbe `json:"exec,omitempty"`
	// Timeout is the time after which an event reports a slow start. The probe continues. 0: one
	// minute.
	Timeout metav1.Duration `json:"timeout,omitzero"`
}

// HTTPProbe succeeds when a GET is answered with a 2xx status. Redirects are not followed. The
// files are read for each attempt, so that they can be rotated.
type HTTPProbe struct {
	URL string `json:"url"`
	// CAFile holds the authorities of the server's certificate; "": the system's.
	CAFile string `json:"caFile,omitempty"`
	// CertFile and KeyFile hold the client certificate; "": none.
	CertFile string `json:"certFile,omitempty"`
	KeyFile  string `json:"keyFile,omitempty"`
}

// TCPProbe succeeds when the address accepts a connection.
type TCPProbe struct {
	Address string `json:"address"`
}

// FileProbe succeeds when the file exists. The file is removed before each start, so that one from
// an earlier run does not count.
type FileProbe struct {
	Path string `json:"path"`
}

// ExecProbe succeeds when the command exits with status 0. It runs with the environment and in the
// directory of the process.
type ExecProbe struct {
	Command []string `json:"command"`
}
