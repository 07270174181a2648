package hub

import (
	"sync"
	"time"

	"orrery.dev/orrery/internal/process"
)

// stopwatch measures the parts of the start of a hub, each from the end of the previous one.
type stopwatch struct {
	mu    sync.Mutex
	last  time.Time
	parts []any // names and seconds alternate, as arguments for a structured log
}

func newStopwatch() *stopwatch { return &stopwatch{last: time.Now()} }

// ended records the end of a part. It ignores a part that was recorded before.
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

// note records when etcd and the API server are ready for the first time.
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

// StartTimes returns how long the parts of the start took, as alternating names and seconds for
// a log line. The parts are etcd and the API server or, with an existing API server, the
// connection and the wait for the Lease, then the installation of Orrery's kinds.
func (h *Hub) StartTimes() []any {
	h.times.mu.Lock()
	defer h.times.mu.Unlock()
	return append([]any(nil), h.times.parts...)
}
