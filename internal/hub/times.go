package hub

import (
	"sync"
	"time"

	"orrery.dev/orrery/internal/process"
)

// stopwatch measures the parts of a hub's start, each from the end of the one before.
type stopwatch struct {
	mu    sync.Mutex
	last  time.Time
	parts []any // name and seconds in turn, as a structured log takes them
}

func newStopwatch() *stopwatch { return &stopwatch{last: time.Now()} }

// ended notes the end of a part. A part that has ended before is not noted again.
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

// note notes when etcd and the API server are ready for the first time.
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

// StartTimes says how long the parts of the start took, as names and seconds in turn, for a log line: etcd and the API server,
// or with an existing API server the connection to it and the wait for the Lease, and the installation of Orrery's kinds.
func (h *Hub) StartTimes() []any {
	h.times.mu.Lock()
	defer h.times.mu.Unlock()
	return append([]any(nil), h.times.parts...)
}
