package hub

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"orrery.dev/orrery/internal/process"
)

func TestStartTimes(t *testing.T) {
	began := time.Now()
	s := &stopwatch{last: began}
	at := began.Add
	s.note(process.Event{Time: at(time.Second), Type: process.EventStarted, Process: etcdProcess})
	s.note(process.Event{Time: at(2 * time.Second), Type: process.EventReady, Process: etcdProcess})
	s.note(process.Event{Time: at(5 * time.Second), Type: process.EventReady, Process: apiserverProcess})
	s.note(process.Event{Time: at(5 * time.Second), Type: process.EventReady, Process: controllerManagerProcess})
	s.ended("installSeconds", at(5500*time.Millisecond))
	// etcd was killed and started again.
	s.note(process.Event{Time: at(time.Hour), Type: process.EventReady, Process: etcdProcess})
	want := []any{"etcdSeconds", 2.0, "apiServerSeconds", 3.0, "installSeconds", 0.5}
	if diff := cmp.Diff(want, (&Hub{times: s}).StartTimes()); diff != "" {
		t.Errorf("times (-want +got):\n%s", diff)
	}
}
