package hub

import (
	"sync"
	"time"

	"orrery.dev/orrery/internal/process"
)

// stopwatch measures how long the parts of the start of a hub take, each from the end of the
// previous part. Several goroutines may use it.
type stopwatch struct {
	mu    sync.Mutex
	last  time.Time
	parts []any // names and seconds alternate, as arguments for a structured log
}

// newStopwatch returns a stopwatch whose first part begins now.
func newStopwatch() *stopwatch { return &stopwatch{last: time.Now()} }

// ended records that the part with this name ended at the given time. It ignores a part that was
// recorded before.
func (s *stopwatch) ended(part string, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := 0; i < len(s.parts); i += 2 {
		if s.parts[i] == part {
			return
		}
	}
	s.parts = append(s.parts, part, at.Sub(s.last).Seconds())
	s.last = at
}

// note records when etcd and the API server are ready for the first time, as parts of the start. It
// ignores other events.
func (s *stopwatch) note(e process.Event) {
	if e.Type != process.EventReady {
		return
	}
	switch e.Process {
	case etcdProcess:
		s.ended("etcdSeconds", e.Time)
	case apiserverProcess:
		s.ended("apiServerSeconds", e.Time)
	}
}

// StartTimes returns how long the parts of the start took, as alternating names and seconds for a
// structured log. The parts are etcd, the API server and the installation of Orrery's kinds. With
// an existing API server, the connection and the wait for the Lease come first instead of etcd and
// the API server.
func (h *Hub) StartTimes() []any {
	h.times.mu.Lock()
	defer h.times.mu.Unlock()
	return append([]any(nil), h.times.parts...)
}
