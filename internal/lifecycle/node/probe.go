package node

import (
	"context"
	"fmt"
	"time"

	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/lifecycle/unit"
)

// probe performs a plan.Probe.
type probe struct{ *plan.Probe }

const (
	// probeInterval is the interval between attempts.
	probeInterval = 100 * time.Millisecond
	// probeLogLines is how many lines of the unit's log an error contains.
	probeLogLines = 20
	// unitAttempts is how many attempts are made between two looks at the unit, which take a program.
	unitAttempts = 10
	// maxEnds is how often the process of the unit may end before the probe fails. A process that
	// refuses its flags or its configuration ends at once, each time it is started.
	maxEnds = 3
)

// observe reports no drift. The health of the cluster is checked elsewhere.
func (p probe) observe(context.Context, *session, *record) (string, error) { return "", nil }

func (p probe) capture(context.Context, *session, *record) error { return nil }

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
		if last == nil || limited.Err() == nil { // an attempt that the timeout interrupted says nothing
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
		if err := s.holds(s.request.Lease); err != nil { // a run without the lease need not wait
			return err
		}
	}
}

// failed adds the log of the unit to an error.
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

func (p probe) revert(context.Context, *session, *record) error { return nil }

// unitEnds counts how often the process of a unit has ended since the first count.
type unitEnds struct {
	name string
	// last is the number of automatic restarts at the last count, ended the sum of the increases.
	counted     bool
	last, ended int
}

// count returns how often the process has ended. It stays the same if the unit cannot be observed,
// because the probe itself decides then.
func (u *unitEnds) count(ctx context.Context, units unit.Manager) int {
	if u.name == "" {
		return 0
	}
	all, err := units.Observe(ctx, []string{u.name})
	if err != nil {
		return u.ended
	}
	now := all[u.name].Restarts
	if u.counted && now > u.last { // a restart by a command counts from 0 again
		u.ended += now - u.last
	}
	u.counted, u.last = true, now
	return u.ended
}
