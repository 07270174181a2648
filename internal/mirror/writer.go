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

// How changes are written: a batch at a time, when it is full or has waited long enough.
// When more are pending than the bound, the watches wait.
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

// stallAfter is how long a write may take until the store counts as failing: what is
// observed must not wait for a disk that does not answer.
const stallAfter = 15 * time.Second

var errStalled = errors.New("the mirror's database has not answered for " + stallAfter.String())

// writer writes to the store what the tables observe, of each object only the latest state,
// and those first that have waited longest. While the store fails it keeps what is pending,
// as far as the bound allows; tables whose changes it gave up are listed again when the store
// has recovered.
type writer struct {
	write  func(ctx context.Context, changes []store.Change) error
	save   func(ctx context.Context, checkpoints []store.Checkpoint) error
	log    logr.Logger
	turned func(gaveUp []*table) // called when the store begins or ceases to fail
	bound  int                   // how many changes may be pending until the watches wait

	flushing sync.Mutex // held while a batch is written

	mu       sync.Mutex
	pending  map[rowKey]*pendingRow
	queue    []*pendingRow // in the order of their coming; those that are not pending any more are skipped
	forsaken map[*table]bool
	failure  error
	room     chan struct{} // closed when some pending rows were written, or the store began to fail
	wake     chan struct{} // there is something to be written
	full     chan struct{} // there is a batch
}

// pendingRow is a row, or a checkpoint of a type: its key has no name.
type pendingRow struct {
	key        rowKey
	change     store.Change
	checkpoint *store.Checkpoint
	written    bool // it is being written: what comes now is another row
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

// add hands changes of a table to the writer, in order. It waits for room, but not while
// the store fails: the index must follow the clusters all the same.
func (w *writer) add(ctx context.Context, t *table, changes []store.Change) {
	for _, c := range changes {
		k := rowKey{c.Cluster, schema.GroupResource{Group: c.Group, Resource: c.Resource}, c.Namespace, c.Name}
		w.mu.Lock()
		for w.pending[k] == nil && len(w.pending) >= w.bound && w.failure == nil {
			room := w.room
			w.mu.Unlock()
			select {
			case <-room:
			case <-ctx.Done(): // the table has ended: its stop takes note that the rest was given up
				w.mu.Lock()
				w.forsaken[t] = true
				w.mu.Unlock()
				return
			}
			w.mu.Lock()
		}
		r := w.pending[k]
		if r != nil && c.Delete {
			if c.UID != "" && c.UID != r.change.UID && !r.change.Delete { // heard late: another object has the name by now
				w.mu.Unlock()
				continue
			}
			c.UID = "" // whatever is stored is older than what was pending, be it that this is never written
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

// vouch hands over a checkpoint of a table: it is saved after everything that the table handed
// over before. Another one that waits already is as good. While changes are given up there is
// nothing to vouch for.
func (w *writer) vouch(t *table, c store.Checkpoint) {
	w.mu.Lock()
	defer w.mu.Unlock()
	k := vouching(c.Cluster, c.Resource)
	if w.pending[k] != nil || w.forsaken[t] || w.failure != nil || len(w.pending) >= w.bound {
		return
	}
	w.put(&pendingRow{key: k, checkpoint: &c})
}

// withdraw takes back the checkpoint of a type of a cluster, before anything is written that is
// handed over later.
func (w *writer) withdraw(cluster string, gr schema.GroupResource) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.pending, vouching(cluster, gr))
	if k := withdrawing(cluster, gr); w.pending[k] == nil || w.pending[k].written {
		w.put(&pendingRow{key: k, checkpoint: &store.Checkpoint{Cluster: cluster, Resource: gr}})
	}
}

// waiting returns the keys of a type of a cluster of which something waits to be written, and whether anything of the type
// does, be it a checkpoint.
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

// vouching and withdrawing are the keys of a type's checkpoint, as no object has them.
func vouching(cluster string, gr schema.GroupResource) rowKey {
	return rowKey{cluster: cluster, resource: gr}
}

func withdrawing(cluster string, gr schema.GroupResource) rowKey {
	return rowKey{cluster: cluster, resource: gr, namespace: "withdrawn"}
}

// put queues what is to be written; w.mu must be held.
func (w *writer) put(r *pendingRow) {
	w.pending[r.key] = r
	w.queue = append(w.queue, r)
	signal(w.wake)
	if len(w.pending) >= min(batchSize, w.bound) && w.failure == nil {
		signal(w.full)
	}
	pendingChanges.Set(float64(len(w.pending)))
}

// gaveUp says whether changes of a table were given up since it was pardoned.
func (w *writer) gaveUp(t *table) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.forsaken[t]
}

// pardon says whether changes of a table were given up. It is asked before the table is listed
// whole, which makes good for them.
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

// forget drops pending changes, and returns when none of them is being written.
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

// problem says why what clusters have is not all in the store.
func (w *writer) problem() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failure == nil {
		return nil
	}
	return fmt.Errorf("%d changes wait to be stored: %w", len(w.pending), w.failure)
}

// run writes until ctx ends. What is pending then is found by the first lists of the next
// start.
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

// flush writes a batch. The rows stay pending until they are written, so a failure loses
// none.
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

// send writes the rows of a batch. Checkpoints are taken back before that, and saved after it,
// since they vouch for the rows.
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

// take returns the rows that have waited longest, and how much of the queue they take up.
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

// finish takes note of what became of a batch.
func (w *writer) finish(batch []*pendingRow, taken int, err error) {
	if err != nil {
		w.mu.Lock()
		for _, r := range batch {
			r.written = false
		}
		// What changed while it was being written waits anew: else each attempt would leave some behind.
		w.queue = slices.DeleteFunc(w.queue, func(r *pendingRow) bool { return w.pending[r.key] != r })
		signal(w.wake)
		w.mu.Unlock()
		w.fail(err)
		return
	}
	w.mu.Lock()
	for _, r := range batch {
		if w.pending[r.key] == r { // else it changed meanwhile
			delete(w.pending, r.key)
		}
	}
	w.queue = w.queue[taken:]
	turned := w.failure != nil
	w.failure = nil
	gaveUp := slices.Collect(maps.Keys(w.forsaken)) // until they are listed again
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

// fail takes note that the store fails, and lets go who waits for it.
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
