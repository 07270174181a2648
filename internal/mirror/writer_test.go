package mirror

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"orrery.dev/orrery/internal/store"
)

// faultyStore keeps the last change of each row. Its writes fail while failure is set.
type faultyStore struct {
	mu      sync.Mutex
	failure error
	rows    map[string]store.Change
	biggest int
	hold    chan struct{} // writes wait until it is closed
}

func (s *faultyStore) Write(_ context.Context, changes []store.Change) error {
	s.mu.Lock()
	hold := s.hold
	s.mu.Unlock()
	if hold != nil {
		<-hold
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failure != nil {
		return s.failure
	}
	s.biggest = max(s.biggest, len(changes))
	for _, c := range changes {
		s.rows[c.Name] = c
	}
	return nil
}

func (s *faultyStore) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failure = err
}

func (s *faultyStore) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.rows)
}

func runWriter(t *testing.T, turned func([]*table)) (*writer, *faultyStore) {
	t.Helper()
	s := &faultyStore{rows: map[string]store.Change{}}
	w := newWriter(s.Write, noCheckpoints, logr.Discard(), turned)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { w.run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	return w, s
}

func noCheckpoints(context.Context, []store.Checkpoint) error { return nil }

func change(name, version string) store.Change {
	return store.Change{Row: store.Row{Cluster: "east", Resource: "configmaps", Namespace: "ns", Name: name, ResourceVersion: version}}
}

func TestWriterBatches(t *testing.T) {
	w, s := runWriter(t, func([]*table) {})
	changes := make([]store.Change, 0, 6*batchSize)
	for i := range 3 * batchSize {
		changes = append(changes, change(fmt.Sprint(i), "1"), change(fmt.Sprint(i), "2"))
	}
	w.add(t.Context(), nil, changes)
	eventually(t, "everything is written", func() bool { return s.len() == 3*batchSize })
	for _, c := range s.rows {
		if c.ResourceVersion != "2" {
			t.Errorf("%s is stored at version %s", c.Name, c.ResourceVersion)
		}
	}
	if s.biggest > batchSize {
		t.Errorf("a batch of %d", s.biggest)
	}
}

// TestWriterWaitsForASlowStore: add waits while pendingBound changes are pending.
func TestWriterWaitsForASlowStore(t *testing.T) {
	w, s := runWriter(t, func([]*table) {})
	s.hold = make(chan struct{})
	changes := make([]store.Change, 0, 2*pendingBound)
	for i := range 2 * pendingBound {
		changes = append(changes, change(fmt.Sprint(i), "1"))
	}
	done := make(chan struct{})
	go func() { w.add(t.Context(), nil, changes); close(done) }()
	pending := func() int {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.pending)
	}
	eventually(t, "the bound is reached", func() bool { return pending() == pendingBound })
	select {
	case <-done:
		t.Error("add did not wait")
	default:
	}
	close(s.hold)
	<-done
	eventually(t, "everything is written", func() bool { return s.len() == len(changes) })
}

// TestPendingChangesAreCounted: the metric is the number of pending changes also after some of them
// are dropped.
func TestPendingChangesAreCounted(t *testing.T) {
	w := newWriter(nil, noCheckpoints, logr.Discard(), func([]*table) {})
	is := func(when string, want float64) {
		t.Helper()
		if got := testutil.ToFloat64(pendingChanges); got != want {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
	}
	w.add(t.Context(), nil, []store.Change{change("a", "1"), change("b", "1"), change("c", "1")})
	is("three are added", 3)
	w.forget(func(k rowKey) bool { return k.name != "a" })
	is("two are dropped", 1)
	w.withdraw("east", configmaps.GroupResource())
	is("a checkpoint is withdrawn", 2)
	w.addCheckpoint(nil, store.Checkpoint{Cluster: "east", Resource: configmaps.GroupResource(), State: []byte("here")})
	is("another is added", 3)
	w.withdraw("east", configmaps.GroupResource())
	is("and withdrawn", 2)
}

// TestFullStore: while the disk is full, the index stays current and the cluster is not
// reported as mirrored. Afterwards all changes are stored.
func TestFullStore(t *testing.T) {
	m, f, _ := fakeTable(t)
	lost := make(chan []*table, 10)
	w, s := runWriter(t, func(l []*table) { lost <- l })
	m.writer = w
	relisted := make(chan struct{})
	f.table.interrupt = sync.OnceFunc(func() { close(relisted) })

	s.fail(fmt.Errorf("write: %w", store.ErrFull))
	list := make([]*unstructured.Unstructured, 0, pendingBound+100)
	for i := range pendingBound + 100 {
		list = append(list, at(fmt.Sprint(i), "u", i+1, "b"))
	}
	if err := f.Replace(list[:batchSize], "100000"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the store fails", w.failing)
	<-lost
	for _, o := range list[batchSize:] { // the watch continues without waiting
		if err := f.event(watch.Added, o); err != nil {
			t.Fatal(err)
		}
	}
	if o := m.Observation("east"); o.Synced || !strings.Contains(o.Message, "no space left") {
		t.Errorf("observation %+v", o)
	}
	if got := len(m.Placed("b")); got != len(list) {
		t.Errorf("%d of %d objects are in the index", got, len(list))
	}
	s.fail(nil)
	tables := <-lost
	if len(tables) != 1 || tables[0] != f.table {
		t.Fatalf("lost %v", tables)
	}
	m.storeTurned(tables)
	<-relisted
	if err := f.Replace(list, "100001"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "everything is written", func() bool { return s.len() == len(list) })
	if problem := w.problem(); problem != nil {
		t.Error(problem)
	}
}

// TestWriterIsBoundedWhileTheStoreIsGone: a row that changes during a failing write is pending
// and queued once, after any number of attempts.
func TestWriterIsBoundedWhileTheStoreIsGone(t *testing.T) {
	var w *writer
	attempts, fails := 0, true
	stored := map[string]string{}
	w = newWriter(func(ctx context.Context, changes []store.Change) error {
		if attempts++; !fails {
			for _, c := range changes {
				stored[c.Name] = c.ResourceVersion
			}
			return nil
		}
		again := make([]store.Change, 0, len(changes))
		for _, c := range changes { // each row changes while it is written
			again = append(again, change(c.Name, fmt.Sprint(attempts)))
		}
		w.add(ctx, nil, again)
		return store.ErrUnavailable
	}, noCheckpoints, logr.Discard(), func([]*table) {})
	for i := range batchSize {
		w.add(t.Context(), nil, []store.Change{change(fmt.Sprint(i), "0")})
	}
	for range 100 {
		w.flush(t.Context())
	}
	if len(w.pending) != batchSize || len(w.queue) != batchSize {
		t.Errorf("after %d attempts %d rows are pending, and %d are queued; %d changed", attempts, len(w.pending), len(w.queue), batchSize)
	}
	fails = false
	w.flush(t.Context())
	for name, version := range stored {
		if version != "100" {
			t.Errorf("%s is stored at version %s", name, version)
		}
	}
	if len(stored) != batchSize || len(w.pending) != 0 {
		t.Errorf("%d rows are stored, %d are pending", len(stored), len(w.pending))
	}
}

func TestRejectedRowIsLeftOut(t *testing.T) {
	w, s := runWriter(t, func([]*table) {})
	s.fail(errors.Join(&store.RejectedError{Name: "bad", Err: errors.New("no JSON")}))
	w.add(t.Context(), nil, []store.Change{change("bad", "1")})
	eventually(t, "it is not tried again", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.pending) == 0 && w.failure == nil
	})
}

// TestDeletionAfterAnother: an object is replaced and deleted before any of these changes is
// written. Only the last deletion is written. It has no UID, so it deletes any row of the name,
// not only the replacement.
func TestDeletionAfterAnother(t *testing.T) {
	w := newWriter(nil, noCheckpoints, logr.Discard(), func([]*table) {})
	first, second := change("a", "1"), change("a", "2")
	first.UID, second.UID, first.Delete = "first", "second", true
	gone := second
	gone.Delete = true
	w.add(t.Context(), nil, []store.Change{first, second, gone})
	batch, _ := w.take()
	if len(batch) != 1 || !batch[0].change.Delete || batch[0].change.UID != "" {
		t.Errorf("to be written: %+v", batch)
	}
}

// TestDeletionWhileAnotherIsWritten: the same, but the object is deleted while the write of the
// replacement runs. That write fails and is not repeated.
func TestDeletionWhileAnotherIsWritten(t *testing.T) {
	s := openStore(t)
	fails := false
	var w *writer
	gone := change("a", "3")
	gone.UID, gone.Delete = "second", true
	w = newWriter(func(ctx context.Context, changes []store.Change) error {
		if fails {
			fails = false
			w.add(ctx, nil, []store.Change{gone})
			return store.ErrFull
		}
		return s.Write(ctx, changes)
	}, noCheckpoints, logr.Discard(), func([]*table) {})
	for _, c := range []struct{ uid, version string }{{"first", "1"}, {"second", "2"}} {
		r := change("a", c.version)
		r.UID, r.Version, r.Kind, r.Body, fails = types.UID(c.uid), "v1", "ConfigMap", []byte("{}"), c.uid == "second"
		w.add(t.Context(), nil, []store.Change{r})
		w.flush(t.Context())
	}
	w.flush(t.Context())
	if left := rows(t, s, store.Query{Resource: "configmaps"}); len(left) != 0 {
		t.Errorf("%v is left of what was deleted", left)
	}
}

// TestNoErrorDropsAChange: after any error of the store, except the rejection of a named row,
// the change is written later.
func TestNoErrorDropsAChange(t *testing.T) {
	for _, failure := range []error{
		store.ErrFull, store.ErrUnavailable, store.ErrContinue, context.DeadlineExceeded, context.Canceled, sql.ErrConnDone, io.ErrUnexpectedEOF,
		errors.New("UNIQUE constraint failed"), errors.New("Error 1040: Too many connections"), errors.New("invalid byte sequence (SQLSTATE 22021)"),
	} {
		t.Run(failure.Error(), func(t *testing.T) {
			s := &faultyStore{rows: map[string]store.Change{}}
			w := newWriter(s.Write, noCheckpoints, logr.Discard(), func([]*table) {})
			s.fail(failure)
			w.add(t.Context(), nil, []store.Change{change("a", "1")})
			for range 3 {
				w.flush(t.Context())
			}
			if w.problem() == nil || s.len() != 0 {
				t.Errorf("it is not said: %v", w.problem())
			}
			s.fail(nil)
			w.flush(t.Context())
			if w.problem() != nil || s.len() != 1 {
				t.Errorf("%d rows are stored, problem %v", s.len(), w.problem())
			}
		})
	}
}
