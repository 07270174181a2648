package mirror

import (
	"context"
	"sync"
)

// gate lets requests to a cluster through while it is reachable. While it is not, they
// wait instead of failing again and again, and go on at once when it is back.
type gate struct {
	mu   sync.Mutex
	open bool
	phase
}

// phase lasts from the moment the gate shuts until it shuts again.
type phase struct {
	opened chan struct{}   // closed when the gate opens
	period context.Context //nolint:containedctx // ends with the phase
	end    context.CancelFunc
}

func newPhase() phase {
	p := phase{opened: make(chan struct{})}
	p.period, p.end = context.WithCancel(context.Background())
	return p
}

func newGate() *gate { return &gate{phase: newPhase()} }

// set opens or shuts the gate and says whether that is news.
func (g *gate) set(open bool) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case open && !g.open:
		close(g.opened)
	case !open && g.open:
		g.end()
		g.phase = newPhase()
	}
	changed := g.open != open
	g.open = open
	return changed
}

func (g *gate) isOpen() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.open
}

// pass waits until the gate is open. The context that it returns ends with ctx, with
// cancel, and when the gate shuts.
func (g *gate) pass(ctx context.Context) (_ context.Context, cancel context.CancelFunc, err error) {
	g.mu.Lock()
	p := g.phase
	g.mu.Unlock()
	select {
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	case <-p.opened:
	}
	ctx, end := context.WithCancel(ctx)
	stop := context.AfterFunc(p.period, end)
	return ctx, func() { stop(); end() }, nil
}
