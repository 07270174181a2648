package records

import (
	"context"
	"errors"
	"fmt"
	"time"

	"orrery.dev/orrery/internal/sqlite"
)

// Start writes what is new until ctx ends, then what is left.
func (r *Records) Start(ctx context.Context) error {
	prune := time.NewTimer(0)
	defer prune.Stop()
	for {
		select {
		case <-ctx.Done():
			r.finish(ctx)
			return nil
		case <-r.wake:
			if r.gather(ctx) {
				r.persist(ctx)
			}
		case <-prune.C:
			prune.Reset(r.prune(ctx))
		}
	}
}

// gather waits for more to write, unless somebody waits for it or ctx ends.
func (r *Records) gather(ctx context.Context) bool {
	timer := time.NewTimer(batchEvery)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.kick:
	case <-ctx.Done():
		return false
	}
	return true
}

// persist writes a batch. It tries until that is done or ctx ends; then the batch stays in flight.
func (r *Records) persist(ctx context.Context) {
	r.writing.Lock()
	defer r.writing.Unlock()
	for {
		err := r.attempt(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		r.failed(err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(retryEvery):
		}
	}
}

// attempt tries once to write a batch: the one in flight, or what is new.
func (r *Records) attempt(ctx context.Context) error {
	r.state.Lock()
	if r.flight == nil {
		r.flight, r.pending = r.pending, newBatch()
	}
	b := r.flight
	r.state.Unlock()

	if err := r.reopen(ctx); err != nil {
		return err
	}
	var t tally
	err := r.with(ctx, func(db *database) (err error) {
		if err := db.Check(); err != nil {
			return err
		}
		t, err = db.write(ctx, b)
		return err
	})
	if errors.Is(err, sqlite.ErrRefused) {
		n, results := b.count()
		r.log.Error(err, "Records were refused by the database and are lost.", "decisions", n, "results", results)
		decisions.WithLabelValues(discarded).Add(float64(n))
		err = nil
	}
	if err != nil {
		return err
	}
	decisions.WithLabelValues(stored).Add(float64(t.stored))
	decisions.WithLabelValues(repeated).Add(float64(t.unchanged))
	r.state.Lock()
	defer r.state.Unlock()
	r.flight = nil
	close(b.done)
	if r.problem != nil {
		r.problem = nil
		r.log.Info("Records are written again.")
	}
	return nil
}

// failed notes why nothing is written, and says it once.
func (r *Records) failed(err error) {
	failures.Inc()
	r.state.Lock()
	defer r.state.Unlock()
	if r.problem == nil {
		r.log.Error(err, "Records cannot be written. They wait, the oldest decisions are dropped if they become too many, and it is tried again.",
			"path", r.path)
	}
	r.problem = fmt.Errorf("write records: %w: %v: mend it, for instance by freeing space; it is tried again", ErrUnavailable, err) //nolint:errorlint // callers see no errors of the database
}

// prune deletes decisions that are too old or too many, and returns when to do it again.
func (r *Records) prune(ctx context.Context) time.Duration {
	r.writing.Lock()
	defer r.writing.Unlock()
	var more bool
	err := r.with(ctx, func(db *database) (err error) {
		if err := db.Check(); err != nil {
			return err
		}
		more, err = db.prune(ctx, time.Now().Add(-r.keepFor), r.keepBytes)
		return err
	})
	switch {
	case err != nil && ctx.Err() == nil:
		r.log.V(1).Info("Old decisions could not be deleted.", "error", err.Error())
		return pruneEvery
	case more:
		return 0
	default:
		return pruneEvery
	}
}

// Flush waits until everything that was said before was written or given up. It needs a running Start.
func (r *Records) Flush(ctx context.Context) error {
	r.state.Lock()
	var waits []chan struct{}
	if r.flight != nil {
		waits = append(waits, r.flight.done)
	}
	if !r.pending.empty() {
		waits = append(waits, r.pending.done)
	}
	r.state.Unlock()
	for _, done := range waits {
		signal(r.kick)
		select {
		case <-done:
		case <-ctx.Done():
			return errors.Join(ctx.Err(), r.Problem())
		}
	}
	return nil
}

// finish writes what is left, for a short while.
func (r *Records) finish(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWrite)
	defer cancel()
	r.writing.Lock()
	defer r.writing.Unlock()
	for range 2 { // what is in flight, and what came after it
		if !r.waiting() {
			return
		}
		if err := r.attempt(ctx); err != nil {
			r.failed(err)
			return
		}
	}
}

// waiting says whether something is not written yet.
func (r *Records) waiting() bool {
	r.state.Lock()
	defer r.state.Unlock()
	return r.flight != nil || !r.pending.empty()
}

// Close writes what came after Start had ended, and closes the file.
func (r *Records) Close() error {
	r.finish(context.Background())
	if r.waiting() {
		r.log.Error(r.Problem(), "Records that could not be written are lost.")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.db == nil {
		return nil
	}
	err := r.db.Close()
	r.db = nil
	return err
}
