package records

import (
	"context"
	"errors"
	"fmt"
	"time"

	"orrery.dev/orrery/internal/sqlite"
)

// Start writes new records and deletes old decisions until ctx ends. Then it writes the remaining
// records, for at most lastWrite. It always returns nil. The manager of controller-runtime calls
// it, once.
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

// gather waits for batchEvery, so that more records are written in the same batch. Flush ends the
// wait. gather returns false if ctx ends first.
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

// persist writes the queued records, and retries every retryEvery until they are written or ctx
// ends. If ctx ends first, they stay in r.flight. persist locks r.writing.
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

// attempt tries once to write a batch. That is r.flight, the batch of an earlier attempt that
// failed, or else r.pending, the new records. It opens the file if it is not open. A batch that the
// database refuses is logged and dropped, without an error. After a success, r.problem is nil. The
// caller holds r.writing.
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

// failed counts a failed write, and sets r.problem to the reason. It logs only the first of several
// failures in a row.
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

// prune deletes one chunk of the decisions that are older than r.keepFor or exceed r.keepBytes. It
// returns the delay until the next call: 0 if more must be deleted, else pruneEvery. A failure is
// only logged. prune locks r.writing.
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

// Flush blocks until all records that were given to the methods of Recorder before are written or
// dropped. Start must be running. If ctx ends first, the error is that of ctx, joined with Problem.
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

// finish writes the records that are still queued, for at most lastWrite, also if ctx has ended.
// Records that are not written by then stay in memory. It locks r.writing.
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

// waiting reports whether there are queued records that are not written yet.
func (r *Records) waiting() bool {
	r.state.Lock()
	defer r.state.Unlock()
	return r.flight != nil || !r.pending.empty()
}

// Close writes the records that were queued after the end of Start, for at most lastWrite, and
// closes the file. Records that cannot be written are lost, and so are records that are queued
// after Close. The caller must not call Close while Start runs.
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
