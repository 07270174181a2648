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

// The writer writes up to batchSize changes at once, when that many are pending or batchDelay has
// passed. After a failure it waits retryDelay. While pendingBound changes are pending, watches and
// lists wait.
const (
	batchSize    = 500
	batchDelay   = 100 * time.Millisecond
	pendingBound = 8 * batchSize
	retryDelay   = time.Second
)

// rowKey names a row of the store: one object in one cluster.
type rowKey struct {
	cluster         string
	resource        schema.GroupResource
	namespace, name string
}

// stallAfter is the time after which a write that still runs counts as a failure of the store.
// Watches must not wait for a disk that does not answer.
const stallAfter = 15 * time.Second

// errStalled is the failure of the store while one write has run for longer than stallAfter.
var errStalled = errors.New("the mirror's database has not answered for " + stallAfter.String())

// writer writes the objects that the tables observe to the store: the latest state of each object,
// in the order in which the objects became pending. While the store fails, it keeps up to bound
// pending changes and abandons further ones. When the store works again, the types of tables with
// abandoned changes are listed again. A writer may be used from several goroutines. Its method run
// does the writing.
type writer struct {
	write  func(ctx context.Context, changes []store.Change) error
	save   func(ctx context.Context, checkpoints []store.Checkpoint) error
	log    logr.Logger
	turned func(gaveUp []*table) // see newWriter
	bound  int                   // maximum number of pending changes before the watches wait

	flushing sync.Mutex // held while a batch is written

	mu        sync.Mutex
	pending   map[rowKey]*pendingRow
	queue     []*pendingRow   // in order of arrival; rows that are no longer pending are skipped
	abandoned map[*table]bool // tables with changes that are lost
	failure   error           // of the last write; nil: the store works
	space     chan struct{}   // closed when pending rows were written, or the store began to fail
	wake      chan struct{}   // there are rows to write
	full      chan struct{}   // there is a full batch
}

// pendingRow is one element of the writer's queue: the change of a row or, if checkpoint is set,
// the checkpoint of a type. A checkpoint without State deletes that of the store.
type pendingRow struct {
	key        rowKey
	change     store.Change
	checkpoint *store.Checkpoint
	written    bool // it is being written, so a later change needs a new pendingRow
}

// newWriter returns a writer. run calls write to write changes to the store, and save to save
// checkpoints. turned is called when the store begins to fail, with nil, and when it works again,
// with the tables that lost changes. No lock is held during the call.
func newWriter(
	write func(context.Context, []store.Change) error, save func(context.Context, []store.Checkpoint) error,
	log logr.Logger, turned func(gaveUp []*table),
) *writer {
	return &writer{
		write: write, save: save, log: log, turned: turned, bound: pendingBound, pending: map[rowKey]*pendingRow{}, abandoned: map[*table]bool{},
		space: make(chan struct{}), wake: make(chan struct{}, 1), full: make(chan struct{}, 1),
	}
}

// add queues changes of a table, in order. It waits while the queue is full, but not while the
// store fails, because the index in memory must stay current. Changes for which the queue has no
// space then are lost, and so are the rest when ctx ends: gaveUp then returns true for the table. A
// deletion is ignored if another object with that name is pending.
func (w *writer) add(ctx context.Context, t *table, changes []store.Change) {
	for _, c := range changes {
		k := rowKey{c.Cluster, schema.GroupResource{Group: c.Group, Resource: c.Resource}, c.Namespace, c.Name}
		w.mu.Lock()
		for w.pending[k] == nil && len(w.pending) >= w.bound && w.failure == nil {
			space := w.space
			w.mu.Unlock()
			select {
			case <-space:
			case <-ctx.Done(): // the table is being stopped: table.stop calls clearAbandoned
				w.mu.Lock()
				w.abandoned[t] = true
				w.mu.Unlock()
				return
			}
			w.mu.Lock()
		}
		r := w.pending[k]
		if r != nil && c.Delete {
			// The deletion is that of an earlier object. Another one has the name now.
			if c.UID != "" && c.UID != r.change.UID && !r.change.Delete {
				w.mu.Unlock()
				continue
			}
			c.UID = "" // no stored row is newer than the pending change, so any UID is deleted
		}
		switch {
		case r != nil && !r.written:
			r.change = c
		case r == nil && len(w.pending) >= w.bound:
			w.abandoned[t] = true
		default:
			w.put(&pendingRow{key: k, change: c})
		}
		w.mu.Unlock()
	}
}

// addCheckpoint queues a checkpoint of a table's type. It is saved after all changes that the table
// queued before. It is ignored in four cases: a checkpoint of the type is pending, changes of the
// table were abandoned, the store fails, or the queue is full.
func (w *writer) addCheckpoint(t *table, c store.Checkpoint) {
	w.mu.Lock()
	defer w.mu.Unlock()
	k := checkpointKey(c.Cluster, c.Resource)
	if w.pending[k] != nil || w.abandoned[t] || w.failure != nil || len(w.pending) >= w.bound {
		return
	}
	w.put(&pendingRow{key: k, checkpoint: &c})
}

// withdraw queues the deletion of the checkpoint of a type of a cluster, and drops a pending
// checkpoint. The deletion is written before any change that is queued later. withdraw does not
// wait for that.
func (w *writer) withdraw(cluster string, gr schema.GroupResource) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.pending, checkpointKey(cluster, gr))
	pendingChanges.Set(float64(len(w.pending)))
	if k := withdrawalKey(cluster, gr); w.pending[k] == nil || w.pending[k].written {
		w.put(&pendingRow{key: k, checkpoint: &store.Checkpoint{Cluster: cluster, Resource: gr}})
	}
}

// waiting returns the objects of a type of a cluster with pending changes. something is true if
// there is any, or if a checkpoint of the type, or its deletion, is pending.
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

// checkpointKey returns the key under which the checkpoint of a type of a cluster is pending. No
// object has this key.
func checkpointKey(cluster string, gr schema.GroupResource) rowKey {
	return rowKey{cluster: cluster, resource: gr}
}

// withdrawalKey returns the key under which the deletion of the checkpoint of a type of a cluster
// is pending. No object has this key.
func withdrawalKey(cluster string, gr schema.GroupResource) rowKey {
	return rowKey{cluster: cluster, resource: gr, namespace: "withdrawn"}
}

// put queues a row. It replaces a pending row with the same key. The caller holds w.mu.
func (w *writer) put(r *pendingRow) {
	w.pending[r.key] = r
	w.queue = append(w.queue, r)
	signal(w.wake)
	if len(w.pending) >= min(batchSize, w.bound) && w.failure == nil {
		signal(w.full)
	}
	pendingChanges.Set(float64(len(w.pending)))
}

// gaveUp reports whether changes of a table were abandoned, and so are missing in the store, since
// the last call of `clearAbandoned`.
func (w *writer) gaveUp(t *table) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.abandoned[t]
}

// clearAbandoned reports whether changes of a table were abandoned, and forgets that. The caller
// then makes the table list its type again, which replaces the lost changes.
func (w *writer) clearAbandoned(t *table) (gaveUp bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	gaveUp = w.abandoned[t]
	delete(w.abandoned, t)
	return gaveUp
}

// signal sends a signal to c without blocking. If c is full, a signal is pending already, and
// signal does nothing.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// forget drops the pending changes and checkpoints whose keys the function which selects. It
// waits for a running write, so that none of them is being written when it returns. It holds locks
// while it calls which.
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
	pendingChanges.Set(float64(len(w.pending)))
}

// problem returns the failure of the store, with the number of pending changes; nil: the last write
// succeeded. Changes may be pending then, too.
func (w *writer) problem() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failure == nil {
		return nil
	}
	return fmt.Errorf("%d changes wait to be stored: %w", len(w.pending), w.failure)
}

// run writes pending changes until ctx ends. A failed write is repeated. Changes that are still
// pending when ctx ends are not written: the first lists after the next start find them.
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

// failing reports whether the last write failed, or the running one has taken longer than
// stallAfter.
func (w *writer) failing() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failure != nil
}

// flush writes one batch of pending rows, and records the result. Rows stay pending until they are
// written, so that a failure loses none. If ctx ends during the write, the result is not recorded.
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

// send writes the rows of a batch: first the deletions of checkpoints, then the changes, then the
// new checkpoints, which cover these changes. Rows that the database refuses are logged, and are no
// error.
func (w *writer) send(ctx context.Context, batch []*pendingRow) error {
	var changes []store.Change
	var withdrawn, checkpoints []store.Checkpoint
	for _, r := range batch {
		switch {
		case r.checkpoint == nil:
			changes = append(changes, r.change)
		case r.checkpoint.State == nil:
			withdrawn = append(withdrawn, *r.checkpoint)
		default:
			checkpoints = append(checkpoints, *r.checkpoint)
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
	if len(checkpoints) > 0 {
		return w.save(ctx, checkpoints)
	}
	return nil
}

// take returns up to batchSize of the oldest pending rows, and marks them as being written. taken
// is the number of elements of the queue up to the last of them. They leave the queue only in
// finish.
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

// finish records the result of a write. batch and taken are the results of take. Without an error,
// the rows of the batch are no longer pending, and if the store had failed before, finish calls
// w.turned. With an error, they stay pending.
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
		if w.pending[r.key] == r { // otherwise the row changed during the write
			delete(w.pending, r.key)
		}
	}
	w.queue = w.queue[taken:]
	turned := w.failure != nil
	w.failure = nil
	gaveUp := slices.Collect(maps.Keys(w.abandoned)) // the marks stay until the types are listed again
	close(w.space)
	w.space = make(chan struct{})
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

// fail records that the store fails with err, and wakes the callers of add that wait. For the first
// failure in a row, it logs err and calls w.turned(nil).
func (w *writer) fail(err error) {
	w.mu.Lock()
	turned := w.failure == nil
	w.failure = err
	close(w.space)
	w.space = make(chan struct{})
	w.mu.Unlock()
	if turned {
		storeFailing.Set(1)
		w.log.Error(err, "Mirror cannot be stored; it is tried again until it can")
		w.turned(nil)
	}
}
