package node

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/lifecycle/unit"
)

// deaf is a System whose probes fail until a moment.
type deaf struct {
	*Recorder
	until time.Time
}

func (d deaf) Probe(context.Context, plan.Probe) error {
	if d.until.IsZero() || time.Now().Before(d.until) {
		return errors.New("connection refused")
	}
	return nil
}

// restarting has one unit, which systemd has restarted as often as restarts says.
type restarting struct {
	unit.Manager
	restarts func() int
	err      error
	asked    int
}

func (r *restarting) Observe(_ context.Context, names []string) (map[string]unit.Status, error) {
	r.asked++
	return map[string]unit.Status{names[0]: {Installed: true, Restarts: r.restarts()}}, r.err
}

func (r *restarting) Log(context.Context, string, int) (string, error) {
	return "unknown flag: --nonsense", nil
}

// TestProbeOfAUnitThatEnds: a probe fails at once when its unit cannot run, with the unit's log. It
// waits for a unit that runs, and for one that ended only before.
func TestProbeOfAUnitThatEnds(t *testing.T) {
	cases := map[string]struct {
		// restarts after a time
		restarts func(time.Duration) int
		answers  time.Duration // zero: never
		err      error
		fails    string
		within   time.Duration
	}{
		"EndsEachSecond":       {restarts: func(d time.Duration) int { return int(d / time.Second) }, fails: "ended each time: connection refused", within: 5 * time.Second},
		"EndedBefore":          {restarts: func(d time.Duration) int { return 40 + int(d/time.Second) }, fails: "ended each time", within: 5 * time.Second},
		"CountsFromZeroAgain":  {restarts: func(d time.Duration) int { return max(9-9*int(d/time.Second), 0) + int(d/time.Second) }, fails: "ended each time", within: 6 * time.Second},
		"EndedOnceAndAnswers":  {restarts: func(d time.Duration) int { return min(int(d/time.Second), 1) }, answers: 50 * time.Second, within: 51 * time.Second},
		"EndedTwiceAndAnswers": {restarts: func(d time.Duration) int { return min(int(d/time.Second), 2) }, answers: 50 * time.Second, within: 51 * time.Second},
		"RunsAndIsSilent":      {restarts: func(time.Duration) int { return 40 }, fails: "not so after 2m0s", within: 121 * time.Second},
		"CannotBeObserved":     {restarts: func(d time.Duration) int { return int(d / time.Second) }, err: errors.New("no bus"), answers: 50 * time.Second, within: 51 * time.Second},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			n := host(t, nil)
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				system := deaf{Recorder: n.System.(*Recorder)}
				if c.answers > 0 {
					system.until = began.Add(c.answers)
				}
				units := &restarting{restarts: func() int { return c.restarts(time.Since(began)) }, err: c.err}
				s := &session{Node: &Node{Root: n.Root, System: system, Units: units, Now: time.Now, NoSync: true}}
				step := probe{&plan.Probe{TCP: "x", Timeout: 2 * time.Minute, Unit: "orrery-apiserver"}}
				err := step.apply(t.Context(), s, nil)
				if took := time.Since(began); took > c.within {
					t.Errorf("the probe took %s of the clock, want at most %s", took, c.within)
				}
				if most := int(c.within/time.Second) + 2; units.asked > most {
					t.Errorf("the unit was observed %d times, want at most %d", units.asked, most)
				}
				switch {
				case c.fails == "" && err != nil:
					t.Errorf("error %v, want none", err)
				case c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails) || !strings.Contains(err.Error(), "unknown flag: --nonsense")):
					t.Errorf("error %v, want %q and the log", err, c.fails)
				}
			})
		})
	}
}
