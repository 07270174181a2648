package mirror

import (
	"context"
	"sync"
)

// gate makes requests to a cluster wait while the cluster is unreachable, instead of failing
// again and again. They continue at once when the cluster is reachable again. It is a barrier.
type gate struct {
	mu   sync.Mutex
	open bool
	phase
}

// phase is the time from one closing of the barrier to the next.
type phase struct {
	opened chan struct{}   // closed when the barrier opens
	period context.Context //nolint:containedctx // ends with the phase
	end    context.CancelFunc
}

func newPhase() phase {
	p := phase{opened: make(chan struct{})}
	p.period, p.end = context.WithCancel(context.Background())
	return p
}

func newGate() *gate { return &gate{phase: newPhase()} }

// set opens or closes the barrier, and reports whether that changed its state.
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

// pass waits until the barrier is open, or returns the error of ctx. The returned context ends
// with ctx, with cancel, and when the barrier closes.
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
