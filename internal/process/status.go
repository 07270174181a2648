package process

import (
	"context"
	"time"

	"github.com/go-logr/logr"
)

// Options of a Supervisor.
type Options struct {
	// Dir holds the pidfiles and logs. It is made when missing and belongs to one supervisor at a time.
	Dir string
	// Log gets every event. The zero value discards them.
	Log logr.Logger
	// OnEvent gets every event, one at a time. It must not block.
	OnEvent func(Event)
	// Gate is called when a process is ready for the first time, before what comes after it starts; an error ends the plan.
	Gate func(ctx context.Context, process string) error
}

// EventType says what happened to a process.
type EventType string

// Events.
const (
	EventStarted  EventType = "Started"  // it has a PID
	EventReady    EventType = "Ready"    // its probe succeeded
	EventSlow     EventType = "Slow"     // it is not ready after its probe's timeout; the message ends with its last log lines
	EventExited   EventType = "Exited"   // it ended or could not be started, and will be respawned
	EventStopped  EventType = "Stopped"  // it ended because it was told to
	EventLeftover EventType = "Leftover" // a process of an earlier supervisor was killed
)

// Event is something that happened to a process.
type Event struct {
	Time    time.Time
	Process string
	Type    EventType
	PID     int
	Message string
}

// State of a process.
type State string

// States.
const (
	StateWaiting  State = "Waiting"  // for its dependencies, or its turn
	StateStarting State = "Starting" // started, not ready yet
	StateReady    State = "Ready"    // its probe has succeeded since it was started
	StateBackoff  State = "Backoff"  // it ended and will be respawned
	StateStopped  State = "Stopped"  // the supervisor stopped it, or never started it
)

// Status is how a process is doing.
type Status struct {
	Name string `json:"name"`
	// PID is 0 when the process does not run.
	PID   int   `json:"pid,omitempty"`
	State State `json:"state"`
	// Restarts counts every start but the first.
	Restarts int `json:"restarts"`
	// Since is when State was entered.
	Since time.Time `json:"since"`
	// LastExit says how the process ended last, as "exit status 1" or "signal: killed". Empty when it never did.
	LastExit string `json:"lastExit,omitempty"`
	// Log is the path of its log.
	Log string `json:"log"`
}
