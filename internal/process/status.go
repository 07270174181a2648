package process

import (
	"context"
	"time"

	"github.com/go-logr/logr"
)

// Options of a Supervisor.
type Options struct {
	// Dir holds the pidfiles and logs. It is created if missing, and belongs to one supervisor at a
	// time.
	Dir string
	// Log gets every event. The zero value discards events.
	Log logr.Logger
	// OnEvent gets every event, one at a time; nil: none. It must not block. It may call
	// Supervisor.Status.
	OnEvent func(Event)
	// OnFirstReady is called when a process is ready for the first time, before the processes that
	// depend on it start; nil: none. An error stops that process and then the whole plan.
	OnFirstReady func(ctx context.Context, process string) error
}

// EventType is what happened to a process, such as Started or Exited.
type EventType string

// The types of events.
const (
	EventStarted  EventType = "Started"  // the process has a PID
	EventReady    EventType = "Ready"    // the probe succeeded
	EventSlow     EventType = "Slow"     // not ready in time; the message has the last log lines
	EventExited   EventType = "Exited"   // the process ended or did not start, and will be respawned
	EventStopped  EventType = "Stopped"  // the supervisor stopped the process
	EventLeftover EventType = "Leftover" // a process of an earlier supervisor was killed
)

// Event is something that happened to a process of a supervisor. PID is 0 if the process does not
// run. Message is for the log and may be "".
type Event struct {
	Time    time.Time
	Process string
	Type    EventType
	PID     int
	Message string
}

// State is what a process of a plan does at the moment.
type State string

// The states of a process.
const (
	StateWaiting  State = "Waiting"  // waits for its dependencies, or for Plan.Parallelism
	StateStarting State = "Starting" // started, not ready yet
	StateReady    State = "Ready"    // the probe has succeeded since the start
	StateBackoff  State = "Backoff"  // the process ended or did not start, and will be respawned
	StateStopped  State = "Stopped"  // the supervisor stopped the process, or never started it
)

// Status is the state of a process of a plan at the time of a call of Supervisor.Status.
type Status struct {
	Name string `json:"name"`
	// PID is 0 if the process does not run.
	PID   int   `json:"pid,omitempty"`
	State State `json:"state"`
	// Restarts counts all starts except the first.
	Restarts int `json:"restarts"`
	// Since is when State was entered.
	Since time.Time `json:"since"`
	// LastExit says how the process last ended, such as "exit status 1" or "signal: killed"; "" if
	// it never ended.
	LastExit string `json:"lastExit,omitempty"`
	// Log is the path of the log.
	Log string `json:"log"`
}
