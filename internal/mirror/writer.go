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

// database is what the writer needs of the store.
type database interface {
	Write(ctx context.Context, changes []store.Change) error
}

// writer writes to the store what the tables observe, of each object only the latest
// state. While the store fails it keeps what is pending, as far as the bound allows; tables
// whose changes it gave up are listed again when the store has recovered.
type writer struct {
	store  database
	log    logr.Logger
	turned func(lost []*table) // called when the store begins or ceases to fail

	flushing sync.Mutex // held while a batch is written

	mu      sync.Mutex
	pending map[rowKey]*pendingRow
	lost    map[*table]bool
	failure error
	room    chan struct{} // closed when some pending rows were written, or the store began to fail
	wake    chan struct{} // there is something to be written
	full    chan struct{} // there is a batch
}

type pendingRow struct{ change store.Change }

func newWriter(s database, log logr.Logger, turned func(lost []*table)) *writer {
	return &writer{
		store: s, log: log, turned: turned, pending: map[rowKey]*pendingRow{}, lost: map[*table]bool{},
		room: make(chan struct{}), wake: make(chan struct{}, 1), full: make(chan struct{}, 1),
	}
}

// add hands changes of a table to the writer, in order. It waits for room, but not while
// the store fails: the index must follow the clusters all the same.
func (w *writer) add(ctx context.Context, t *table, changes []store.Change) {
	for _, c := range changes {
		k := rowKey{c.Cluster, schema.GroupResource{Group: c.Group, Resource: c.Resource}, c.Namespace, c.Name}
		w.mu.Lock()
		for len(w.pending) >= pendingBound && w.failure == nil {
			room := w.room
			w.mu.Unlock()
			select {
			case <-room:
			case <-ctx.Done():
				return // the next list finds what was not written
			}
			w.mu.Lock()
		}
		lost := false
		if w.pending[k] == nil && !c.Delete && len(w.pending) >= pendingBound {
			lost, w.lost[t] = true, true
		} else {
			w.pending[k] = &pendingRow{c}
		}
		signal(w.wake)
		if len(w.pending) >= batchSize && w.failure == nil {
			signal(w.full)
		}
		w.mu.Unlock()
		if lost {
			t.unstored(key{c.Namespace, c.Name})
		}
	}
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

// problem says why what a cluster has is not all in the store.
func (w *writer) problem(cluster string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failure == nil {
		return nil
	}
	waiting := 0
	for k := range w.pending {
		if k.cluster == cluster {
			waiting++
		}
	}
	if waiting == 0 {
		return nil
	}
	return fmt.Errorf("%d changes wait to be stored: %w", waiting, w.failure)
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
	batch := make(map[rowKey]*pendingRow, batchSize)
	changes := make([]store.Change, 0, batchSize)
	w.mu.Lock()
	for k, r := range w.pending {
		if len(changes) == batchSize {
			break
		}
		batch[k] = r
		changes = append(changes, r.change)
	}
	w.mu.Unlock()
	err := w.store.Write(ctx, changes)
	if ctx.Err() != nil {
		return
	}
	if rejected, ok := errors.AsType[*store.RejectedError](err); ok {
		w.log.Error(err, "Objects cannot be stored, and are missing in searches until they change", "resource", rejected.Resource, "cluster", rejected.Cluster)
		err = nil
	}
	w.finish(batch, err)
}

// finish takes note of what became of a batch.
func (w *writer) finish(batch map[rowKey]*pendingRow, err error) {
	w.mu.Lock()
	turned := (err == nil) != (w.failure == nil)
	w.failure = err
	var lost []*table
	if err == nil {
		for k, r := range batch {
			if w.pending[k] == r { // else it changed meanwhile
				delete(w.pending, k)
			}
		}
		lost = slices.Collect(maps.Keys(w.lost))
		clear(w.lost)
	}
	close(w.room)
	w.room = make(chan struct{})
	if len(w.pending) > 0 {
		signal(w.wake)
	}
	if len(w.pending) >= batchSize && err == nil {
		signal(w.full)
	}
	w.mu.Unlock()
	switch {
	case turned && err != nil:
		w.log.Error(err, "Mirror cannot be stored; it is tried again until it can")
	case turned:
		w.log.Info("Mirror can be stored again")
	}
	if turned {
		w.turned(lost)
	}
}
