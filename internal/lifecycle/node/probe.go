package node

import (
	"context"
	"fmt"
	"time"

	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/lifecycle/unit"
)

// probe is the kind of step that performs a plan.Probe: it waits until a component answers.
type probe struct{ *plan.Probe }

const (
	// probeInterval is the interval between attempts.
	probeInterval = 100 * time.Millisecond
	// probeLogLines is how many lines of the unit's log the error of a failed probe contains.
	probeLogLines = 20
	// unitAttempts is how many attempts are made between two observations of the unit. An observation
	// is slower, because it runs systemctl.
	unitAttempts = 10
	// maxEnds is how often systemd may restart the process of the unit before the probe fails. A
	// process that refuses its flags or its configuration ends at once, each time it is started.
	maxEnds = 3
)

// observe implements kind. It reports no drift: the health of the cluster is checked elsewhere.
func (p probe) observe(context.Context, *session, *record) (string, error) { return "", nil }

// capture implements kind. A probe changes nothing.
func (p probe) capture(context.Context, *session, *record) error { return nil }

// apply implements kind. It repeats the probe until an attempt succeeds. It returns an error after
// p.Timeout, after the unit has ended maxEnds times, if ctx ends, or if the lease is lost.
func (p probe) apply(ctx context.Context, s *session, _ *record) error {
	limited, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	var last error
	ends := unitEnds{name: p.Unit}
	for attempt := 0; ; attempt++ {
		err := s.System.Probe(limited, *p.Probe)
		if err == nil {
			return nil
		}
		if last == nil || limited.Err() == nil { // the timeout itself is no reason
			last = err
		}
		if attempt%unitAttempts == 0 {
			if n := ends.count(limited, s.Units); n >= maxEnds {
				return p.failed(ctx, s, fmt.Errorf("%s was started again %d times and ended each time: %w", p.Unit, n, last))
			}
		}
		select {
		case <-limited.Done():
			return p.failed(ctx, s, fmt.Errorf("not so after %s: %w", p.Timeout, last))
		case <-tick.C:
		}
		if err := s.holds(s.request.Lease); err != nil { // a run that has lost the lease must not go on
			return err
		}
	}
}

// failed returns err with the last lines of the unit's log, if the probe names a unit. If ctx has
// ended, it returns the cause of ctx instead.
func (p probe) failed(ctx context.Context, s *session, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if p.Unit == "" {
		return err
	}
	log, logErr := s.Units.Log(ctx, p.Unit, probeLogLines)
	if logErr != nil {
		return fmt.Errorf("%w; the log of %s cannot be read: %w", err, p.Unit, logErr)
	}
	return fmt.Errorf("%w; log of %s:\n%s", err, p.Unit, log)
}

// revert implements kind. A probe has nothing to undo.
func (p probe) revert(context.Context, *session, *record) error { return nil }

// unitEnds counts how often the process of a unit has ended and was started again by systemd, since
// the first count. name is the name of the unit; "" counts nothing.
type unitEnds struct {
	name string
	// counted is true after the first count. last is the number of automatic restarts at the last
	// count. ended is the sum of the increases.
	counted     bool
	last, ended int
}

// count observes the unit, and returns how often its process has ended since the first call. The
// first call returns 0. If the unit cannot be observed, the former number is returned, since then
// only the probe itself decides. Without a name the result is 0.
func (u *unitEnds) count(ctx context.Context, units unit.Manager) int {
	if u.name == "" {
		return 0
	}
	all, err := units.Observe(ctx, []string{u.name})
	if err != nil {
		return u.ended
	}
	now := all[u.name].Restarts
	if u.counted && now > u.last { // a restart by a command resets the counter to 0
		u.ended += now - u.last
	}
	u.counted, u.last = true, now
	return u.ended
}
