package node

import (
	"context"
	"fmt"
	"time"

	"orrery.dev/orrery/internal/lifecycle/plan"
)

// probe is a plan.Probe.
type probe struct{ *plan.Probe }

const (
	// probeInterval is how often is asked.
	probeInterval = 100 * time.Millisecond
	// probeLogLines of the unit say why a probe failed.
	probeLogLines = 20
)

// Whether it still holds is for the health of the cluster to say.
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
		if last == nil || limited.Err() == nil { // what the end of the time interrupted says nothing
			last = err
		}
		select {
		case <-limited.Done():
			return p.failed(ctx, s, last)
		case <-tick.C:
		}
		if err := s.holds(s.request.Lease); err != nil { // waiting is not worth it for one who lost the host
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
