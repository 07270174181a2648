package node

import (
	"context"
	"fmt"
	"time"

	"orrery.dev/orrery/internal/lifecycle/plan"
)

// probe performs a plan.Probe.
type probe struct{ *plan.Probe }

const (
	// probeInterval is the interval between attempts.
	probeInterval = 100 * time.Millisecond
	// probeLogLines is how many lines of the unit's log an error contains.
	probeLogLines = 20
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
	for {
		err := s.System.Probe(limited, *p.Probe)
		if err == nil {
			return nil
		}
		if last == nil || limited.Err() == nil { // an attempt that the timeout interrupted says nothing
			last = err
		}
		select {
		case <-limited.Done():
			return p.failed(ctx, s, last)
		case <-tick.C:
		}
		if err := s.holds(s.request.Lease); err != nil { // a run without the lease need not wait
			return err
		}
	}
}

func (p probe) failed(ctx context.Context, s *session, last error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	err := fmt.Errorf("not so after %s: %w", p.Timeout, last)
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
