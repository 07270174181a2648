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

// typeDrops are the types of a cluster that the store could not drop, and is asked again to drop. Only the cluster's run uses them.
type typeDrops struct {
	running sync.WaitGroup
	of      map[schema.GroupResource]func() // ends the repetition and waits for its end
}

// try drops a type. If the store fails it is asked again; it answers nobody with the rows of the type until then.
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

// end ends the repetition for a type, which is mirrored again: the store deletes what is left before it stores anything of the type.
func (d *typeDrops) end(gr schema.GroupResource) {
	if end := d.of[gr]; end != nil {
		end()
		delete(d.of, gr)
	}
}

// left forgets a cluster that left. While the store cannot drop it, it is asked again, until a cluster joins under the name: the store deletes what is left
// before it stores anything of that one.
func (m *Mirror) left(ctx context.Context, name string) {
	err := m.Drop(name) //nolint:contextcheck // begun, it is finished
	m.mu.Lock()
	delete(m.dropped, name)
	m.mu.Unlock()
	// Another cluster may have joined under the name by now.
	m.changed(member.Event{Type: member.Joined, Name: name})
	if err == nil {
		return
	}
	m.log.Error(err, "Cluster left, and its rows cannot be deleted; they are in no search, and it is tried again until they are deleted", "cluster", name)
	m.dropUntilDone(ctx, name)
}

// reserve keeps a name from being mirrored until done is called; false: a cluster of that name is mirrored.
func (m *Mirror) reserve(name string) (done func(), ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cluster(name) != nil {
		return nil, false
	}
	return m.dropBegins(name), true
}

// dropBegins takes note that a cluster is being dropped: none of its name is mirrored until done is called. m.mu must be held.
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
