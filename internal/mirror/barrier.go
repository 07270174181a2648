package mirror

import (
	"context"
	"sync"
)

// barrier makes the lists and watches of one cluster wait while the cluster is unreachable, instead
// of failing again and again. They continue at once when the cluster is reachable again. A barrier
// may be used from several goroutines. newBarrier returns one that is closed.
type barrier struct {
	mu   sync.Mutex
	open bool // the cluster is reachable
	phase
}

// phase is the time from one closing of a barrier to its next closing: first the barrier is closed,
// then open.
type phase struct {
	opened chan struct{}   // closed when the barrier opens
	period context.Context //nolint:containedctx // ends when the barrier closes again
	end    context.CancelFunc
}

// newPhase returns a phase in which the barrier is still closed.
func newPhase() phase {
	p := phase{opened: make(chan struct{})}
	p.period, p.end = context.WithCancel(context.Background())
	return p
}

func newBarrier() *barrier { return &barrier{phase: newPhase()} }

// set opens the barrier, when its cluster became reachable, or closes it. It reports whether that
// changed the state of the barrier.
func (b *barrier) set(open bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case open && !b.open:
		close(b.opened)
	case !open && b.open:
		b.end()
		b.phase = newPhase()
	}
	changed := b.open != open
	b.open = open
	return changed
}

// isOpen reports whether the barrier is open: its cluster is reachable.
func (b *barrier) isOpen() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open
}

// pass waits until the barrier is open, which means that the cluster is reachable. The returned
// context ends with ctx, with a call of cancel, and when the barrier closes again. The caller must
// call cancel. If ctx ends first, pass returns the error of ctx, with a nil context and a nil
// cancel.
func (b *barrier) pass(ctx context.Context) (_ context.Context, cancel context.CancelFunc, err error) {
	b.mu.Lock()
	p := b.phase
	b.mu.Unlock()
	select {
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	case <-p.opened:
	}
	ctx, end := context.WithCancel(ctx)
	stop := context.AfterFunc(p.period, end)
	return ctx, func() { stop(); end() }, nil
}
