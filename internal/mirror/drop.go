package mirror

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"orrery.dev/orrery/internal/member"
)

// repeat calls f until it returns no error, and returns false if ctx ends before that.
func repeat(ctx context.Context, f func() error) bool {
	for delay := recallDelay; f() != nil; delay = min(2*delay, recallLongest) {
		select {
		case <-time.After(delay + rand.N(delay)/2): //nolint:gosec // spreads load, guards nothing
		case <-ctx.Done():
			return false
		}
	}
	return ctx.Err() == nil
}

// typeDrops are the pending deletions of types of a cluster, which failed before and are retried.
// Only the cluster's run uses them.
type typeDrops struct {
	running sync.WaitGroup
	of      map[schema.GroupResource]func() // each ends the retries and waits for their end
}

// try deletes a type from the store, and retries in the background if that fails. Meanwhile the
// store hides the rows of the type.
func (d *typeDrops) try(ctx context.Context, c *cluster, gr schema.GroupResource) {
	log := logr.FromContextOrDiscard(ctx).WithValues("resource", gr.String())
	err := c.mirror.store.DropType(ctx, c.name, gr)
	if err == nil || ctx.Err() != nil {
		return
	}
	log.Error(err, "Type is not mirrored any more, and its rows cannot be deleted; they are in no search, and it is tried again until they are deleted")
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	d.end(gr)
	if d.of == nil {
		d.of = map[schema.GroupResource]func(){}
	}
	d.of[gr] = func() { cancel(); <-done }
	d.running.Go(func() {
		defer close(done)
		if repeat(ctx, func() error { return c.mirror.store.DropType(ctx, c.name, gr) }) {
			log.Info("Rows of a type that is not mirrored any more are deleted")
		}
	})
}

// end ends the retries for a type that is mirrored again. The store deletes old rows before it
// stores new ones of the type.
func (d *typeDrops) end(gr schema.GroupResource) {
	if end := d.of[gr]; end != nil {
		end()
		delete(d.of, gr)
	}
}

// left deletes a cluster that left, and retries until the store has done it or a cluster of that
// name joins. In that case the store deletes the old rows before it stores new ones.
func (m *Mirror) left(ctx context.Context, name string) {
	err := m.Drop(name) //nolint:contextcheck // begun, it is finished
	m.mu.Lock()
	delete(m.dropped, name)
	m.mu.Unlock()
	// Another cluster of that name may have joined by now.
	m.changed(member.Event{Type: member.Joined, Name: name})
	if err == nil {
		return
	}
	m.log.Error(err, "Cluster left, and its rows cannot be deleted; they are in no search, and it is tried again until they are deleted", "cluster", name)
	m.dropUntilDone(ctx, name)
}

// reserve prevents a cluster of that name from being mirrored until done is called; false: one is
// mirrored.
func (m *Mirror) reserve(name string) (done func(), ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cluster(name) != nil {
		return nil, false
	}
	return m.dropBegins(name), true
}

// dropBegins records that a cluster is being dropped. No cluster of that name is mirrored until
// done is called. The caller holds m.mu.
func (m *Mirror) dropBegins(name string) (done func()) {
	d := m.dropping[name]
	if d == nil {
		d = &dropping{}
		m.dropping[name] = d
	}
	d.by++
	return func() {
		m.mu.Lock()
		if d.by--; d.by == 0 {
			delete(m.dropping, name)
		}
		again := d.by == 0 && d.putOff
		m.mu.Unlock()
		if again {
			m.changed(member.Event{Type: member.Joined, Name: name})
		}
	}
}
