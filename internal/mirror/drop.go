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

// repeat calls f, at least once, until f returns nil, with growing pauses. It returns true if f
// succeeded before ctx ended, and false if ctx has ended.
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

// typeDrops are the deletions of types of one cluster from the store that failed and are retried in
// the background. Only the goroutine of cluster.run uses them.
type typeDrops struct {
	running sync.WaitGroup
	of      map[schema.GroupResource]func() // each ends the retries for a type and waits for that
}

// try deletes the rows of a type of the cluster c from the store. A failure is logged, and the
// deletion is retried in the background until ctx ends, or end is called for the type. Meanwhile no
// search returns the rows.
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

// end stops retrying to delete a type, which is going to be mirrored again, and waits until the
// retries have stopped. The store then deletes the old rows itself before it stores new ones of the
// type. Without retries, end does nothing.
func (d *typeDrops) end(gr schema.GroupResource) {
	if end := d.of[gr]; end != nil {
		end()
		delete(d.of, gr)
	}
}

// left stops mirroring a cluster that left the fleet, and deletes its rows. It retries until that
// succeeds, until a cluster with that name is mirrored again, or until ctx ends. For a new cluster
// the store deletes the old rows itself before it stores new ones.
func (m *Mirror) left(ctx context.Context, name string) {
	err := m.Drop(name) //nolint:contextcheck // a drop that has begun is finished
	m.mu.Lock()
	delete(m.dropped, name)
	m.mu.Unlock()
	// Another cluster with that name may have joined during the drop.
	m.changed(member.Event{Type: member.Joined, Name: name})
	if err == nil {
		return
	}
	m.log.Error(err, "Cluster left, and its rows cannot be deleted; they are in no search, and it is tried again until they are deleted", "cluster", name)
	m.dropUntilDone(ctx, name)
}

// reserve prevents a cluster with that name from being mirrored until the caller calls done, which
// it must. It returns nil and false if a cluster with that name is mirrored already. It takes m.mu.
func (m *Mirror) reserve(name string) (done func(), ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cluster(name) != nil {
		return nil, false
	}
	return m.dropBegins(name), true
}

// dropBegins records that the rows of a cluster are being deleted. No cluster with that name is
// mirrored until done was called once for each call of dropBegins. If such a cluster joined
// meanwhile, the last done starts to mirror it. The caller holds m.mu when it calls dropBegins, and
// must not hold it when it calls done.
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
