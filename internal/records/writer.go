package records

import (
	"context"
	"errors"
	"fmt"
	"time"

	"orrery.dev/orrery/internal/sqlite"
)

// Start writes new records until ctx ends, and then the remaining ones.
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

// gather waits for more records, for at most batchEvery. Flush ends the wait. It returns false when
// ctx ends.
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

// persist writes a batch, and retries until it is written or ctx ends. In the latter case the batch
// stays in flight.
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

// attempt tries once to write the batch in flight, or else the new records.
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

// failed records why writing fails. It logs the first failure only.
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

// prune deletes decisions that are too old or too many, and returns the delay until the next call.
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

// Flush blocks until all earlier records are written or given up. It needs a running Start.
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

// finish writes the remaining records, for at most lastWrite.
func (r *Records) finish(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWrite)
	defer cancel()
	r.writing.Lock()
	defer r.writing.Unlock()
	for range 2 { // the batch in flight, and the one after it
		if !r.waiting() {
			return
		}
		if err := r.attempt(ctx); err != nil {
			r.failed(err)
			return
		}
	}
}

// waiting reports whether there are unwritten records.
func (r *Records) waiting() bool {
	r.state.Lock()
	defer r.state.Unlock()
	return r.flight != nil || !r.pending.empty()
}

// Close writes the records that came after the end of Start, and closes the file.
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
