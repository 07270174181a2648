package mirror

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"orrery.dev/orrery/internal/store"
)

// The writer writes in batches, when a batch is full or batchDelay has passed. The watches wait
// while more than pendingBound changes are pending.
const (
	batchSize    = 500
	batchDelay   = 100 * time.Millisecond
	pendingBound = 8 * batchSize
	retryDelay   = time.Second
)

// rowKey names a row of the store.
type rowKey struct {
	cluster         string
	resource        schema.GroupResource
	namespace, name string
}

// stallAfter is the time after which a running write counts as a failure of the store.
// Observations must not wait for a disk that does not answer.
const stallAfter = 15 * time.Second

var errStalled = errors.New("the mirror's database has not answered for " + stallAfter.String())

// writer writes the observations of the tables to the store: the latest state of each object, in
// the order in which the objects became pending. While the store fails, the writer keeps pending
// changes up to its bound and abandons others. Tables with abandoned changes are listed again
// when the store has recovered.
type writer struct {
	write  func(ctx context.Context, changes []store.Change) error
	save   func(ctx context.Context, checkpoints []store.Checkpoint) error
	log    logr.Logger
	turned func(gaveUp []*table) // called when the store begins or stops failing
	bound  int                   // maximum number of pending changes before the watches wait

	flushing sync.Mutex // held while a batch is written

	mu       sync.Mutex
	pending  map[rowKey]*pendingRow
	queue    []*pendingRow // in order of arrival; rows that are no longer pending are skipped
	forsaken map[*table]bool
	failure  error
	room     chan struct{} // closed when pending rows were written, or the store began to fail
	wake     chan struct{} // there are rows to write
	full     chan struct{} // there is a full batch
}

// pendingRow is a change of a row, or the checkpoint of a type. The key of a checkpoint has no
// name.
type pendingRow struct {
	key        rowKey
	change     store.Change
	checkpoint *store.Checkpoint
	written    bool // it is being written, so a later change needs a new pendingRow
}

func newWriter(
	write func(context.Context, []store.Change) error, save func(context.Context, []store.Checkpoint) error,
	log logr.Logger, turned func(gaveUp []*table),
) *writer {
	return &writer{
		write: write, save: save, log: log, turned: turned, bound: pendingBound, pending: map[rowKey]*pendingRow{}, forsaken: map[*table]bool{},
		room: make(chan struct{}), wake: make(chan struct{}, 1), full: make(chan struct{}, 1),
	}
}

// add queues changes of a table, in order. It waits while the queue is full, but not while the
// store fails, because the index must stay current.
func (w *writer) add(ctx context.Context, t *table, changes []store.Change) {
	for _, c := range changes {
		k := rowKey{c.Cluster, schema.GroupResource{Group: c.Group, Resource: c.Resource}, c.Namespace, c.Name}
		w.mu.Lock()
		for w.pending[k] == nil && len(w.pending) >= w.bound && w.failure == nil {
			room := w.room
			w.mu.Unlock()
			select {
			case <-room:
			case <-ctx.Done(): // the table has ended; its stop records that its changes were abandoned
				w.mu.Lock()
				w.forsaken[t] = true
				w.mu.Unlock()
				return
			}
			w.mu.Lock()
		}
		r := w.pending[k]
		if r != nil && c.Delete {
			// The event is late. Another object has the name now.
			if c.UID != "" && c.UID != r.change.UID && !r.change.Delete {
				w.mu.Unlock()
				continue
			}
			c.UID = "" // any stored row is older than the pending one, even if that is never written
		}
		switch {
		case r != nil && !r.written:
			r.change = c
		case r == nil && len(w.pending) >= w.bound:
			w.forsaken[t] = true
		default:
			w.put(&pendingRow{key: k, change: c})
		}
		w.mu.Unlock()
	}
}

// vouch queues a checkpoint of a table. It is saved after all changes that the table queued
// before. It is ignored if a checkpoint is pending already, and while changes are abandoned,
// since the stored rows are then incomplete.
func (w *writer) vouch(t *table, c store.Checkpoint) {
	w.mu.Lock()
	defer w.mu.Unlock()
	k := vouching(c.Cluster, c.Resource)
	if w.pending[k] != nil || w.forsaken[t] || w.failure != nil || len(w.pending) >= w.bound {
		return
	}
	w.put(&pendingRow{key: k, checkpoint: &c})
}

// withdraw deletes the checkpoint of a type of a cluster, before any change that is queued later
// is written.
func (w *writer) withdraw(cluster string, gr schema.GroupResource) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.pending, vouching(cluster, gr))
	if k := withdrawing(cluster, gr); w.pending[k] == nil || w.pending[k].written {
		w.put(&pendingRow{key: k, checkpoint: &store.Checkpoint{Cluster: cluster, Resource: gr}})
	}
}

// waiting returns the keys of a type of a cluster with pending changes. something is also true
// for a pending checkpoint.
func (w *writer) waiting(cluster string, gr schema.GroupResource) (keys map[key]bool, something bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	keys = map[key]bool{}
	for k, r := range w.pending {
		if k.cluster != cluster || k.resource != gr {
			continue
		}
		something = true
		if r.checkpoint == nil {
			keys[key{k.namespace, k.name}] = true
		}
	}
	return keys, something
}

// vouching and withdrawing return the keys of a type's checkpoint and its deletion. No object has
// such keys.
func vouching(cluster string, gr schema.GroupResource) rowKey {
	return rowKey{cluster: cluster, resource: gr}
}

func withdrawing(cluster string, gr schema.GroupResource) rowKey {
	return rowKey{cluster: cluster, resource: gr, namespace: "withdrawn"}
}

// put queues a row. The caller holds w.mu.
func (w *writer) put(r *pendingRow) {
	w.pending[r.key] = r
	w.queue = append(w.queue, r)
	signal(w.wake)
	if len(w.pending) >= min(batchSize, w.bound) && w.failure == nil {
		signal(w.full)
	}
	pendingChanges.Set(float64(len(w.pending)))
}

// gaveUp reports whether changes of a table were abandoned since the last call of `pardon`.
func (w *writer) gaveUp(t *table) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.forsaken[t]
}

// pardon reports whether changes of a table were abandoned, and clears that mark. The caller then
// lists the whole table, which replaces the lost changes.
func (w *writer) pardon(t *table) (gaveUp bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	gaveUp = w.forsaken[t]
	delete(w.forsaken, t)
	return gaveUp
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// forget drops the pending changes that which selects. When it returns, none of them is being
// written.
func (w *writer) forget(which func(rowKey) bool) {
	w.flushing.Lock()
	defer w.flushing.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	for k := range w.pending {
		if which(k) {
			delete(w.pending, k)
		}
	}
}

// problem returns why the store lacks observed changes; nil: the store works.
func (w *writer) problem() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failure == nil {
		return nil
	}
	return fmt.Errorf("%d changes wait to be stored: %w", len(w.pending), w.failure)
}

// run writes until ctx ends. Changes that are pending then are found by the first lists after the
// next start.
func (w *writer) run(ctx context.Context) {
	for {
		select {
		case <-w.wake:
		case <-ctx.Done():
			return
		}
		delay := batchDelay
		if w.failing() {
			delay = retryDelay
		}
		select {
		case <-w.full:
		case <-time.After(delay):
		case <-ctx.Done():
			return
		}
		w.flush(ctx)
	}
}

func (w *writer) failing() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failure != nil
}

// flush writes a batch. Rows stay pending until they are written, so a failure loses none.
func (w *writer) flush(ctx context.Context) {
	w.flushing.Lock()
	defer w.flushing.Unlock()
	batch, taken := w.take()
	stalled := time.AfterFunc(stallAfter, func() { w.fail(errStalled) })
	err := w.send(ctx, batch)
	stalled.Stop()
	if ctx.Err() != nil {
		return
	}
	w.finish(batch, taken, err)
}

// send writes the rows of a batch. It deletes withdrawn checkpoints before, and saves new ones
// after the rows that they cover.
func (w *writer) send(ctx context.Context, batch []*pendingRow) error {
	var changes []store.Change
	var withdrawn, vouched []store.Checkpoint
	for _, r := range batch {
		switch {
		case r.checkpoint == nil:
			changes = append(changes, r.change)
		case r.checkpoint.State == nil:
			withdrawn = append(withdrawn, *r.checkpoint)
		default:
			vouched = append(vouched, *r.checkpoint)
		}
	}
	if len(withdrawn) > 0 {
		if err := w.save(ctx, withdrawn); err != nil {
			return err
		}
	}
	if len(changes) > 0 {
		err := w.write(ctx, changes)
		if rejected, ok := errors.AsType[*store.RejectedError](err); ok {
			w.log.Error(err, "Objects are stored without a part that the database refuses, or, where not even the name fits, not at all", "resource", rejected.Resource, "cluster", rejected.Cluster)
		} else if err != nil {
			return err
		}
	}
	if len(vouched) > 0 {
		return w.save(ctx, vouched)
	}
	return nil
}

// take returns the oldest pending rows, and how many elements of the queue they cover.
func (w *writer) take() (batch []*pendingRow, taken int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.queue {
		if len(batch) == batchSize {
			break
		}
		taken++
		if w.pending[r.key] == r {
			r.written = true
			batch = append(batch, r)
		}
	}
	return batch, taken
}

// finish records the result of a batch.
func (w *writer) finish(batch []*pendingRow, taken int, err error) {
	if err != nil {
		w.mu.Lock()
		for _, r := range batch {
			r.written = false
		}
		// Rows that changed during the write have a second element in the queue, which stays.
		// Without this, each failed attempt would leave obsolete elements.
		w.queue = slices.DeleteFunc(w.queue, func(r *pendingRow) bool { return w.pending[r.key] != r })
		signal(w.wake)
		w.mu.Unlock()
		w.fail(err)
		return
	}
	w.mu.Lock()
	for _, r := range batch {
		if w.pending[r.key] == r { // otherwise it changed during the write
			delete(w.pending, r.key)
		}
	}
	w.queue = w.queue[taken:]
	turned := w.failure != nil
	w.failure = nil
	gaveUp := slices.Collect(maps.Keys(w.forsaken)) // they keep the mark until they are listed again
	close(w.room)
	w.room = make(chan struct{})
	if len(w.pending) > 0 {
		signal(w.wake)
	}
	if len(w.pending) >= batchSize {
		signal(w.full)
	}
	pendingChanges.Set(float64(len(w.pending)))
	w.mu.Unlock()
	if turned {
		storeFailing.Set(0)
		w.log.Info("Mirror can be stored again")
		w.turned(gaveUp)
	}
}

// fail records that the store fails, and releases the callers of add that wait.
func (w *writer) fail(err error) {
	w.mu.Lock()
	turned := w.failure == nil
	w.failure = err
	close(w.room)
	w.room = make(chan struct{})
	w.mu.Unlock()
	if turned {
		storeFailing.Set(1)
		w.log.Error(err, "Mirror cannot be stored; it is tried again until it can")
		w.turned(nil)
	}
}
