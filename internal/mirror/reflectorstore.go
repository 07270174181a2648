package mirror

import (
	"context"

	"k8s.io/client-go/tools/cache"

	"orrery.dev/orrery/internal/store"
)

// reflectorStore is a table as the store of its reflector.
type reflectorStore struct {
	table  *table
	ctx    context.Context //nolint:containedctx // of the reflector, whose interface has none
	listed func()          // called when a list has succeeded
}

// Add takes in an object that the watch brought.
func (s *reflectorStore) Add(obj any) error { return s.Update(obj) }

// Update takes in an object that the watch brought.
func (s *reflectorStore) Update(obj any) error {
	t := s.table
	m := t.cluster.mirror
	e, err := t.entry(obj)
	if err != nil {
		return err
	}
	m.mu.Lock()
	events, changes := t.observe(e)
	m.mu.Unlock()
	s.publish(events, changes)
	return nil
}

// Delete takes in that an object is gone.
func (s *reflectorStore) Delete(obj any) error {
	t := s.table
	m := t.cluster.mirror
	e, err := t.entry(obj)
	if err != nil {
		return err
	}
	k := key{e.row.Namespace, e.row.Name}
	m.mu.Lock()
	t.uncount(k)
	var events []Event
	if r, ok := t.records[k]; ok && r.uid == e.row.UID {
		events = t.remove(k, r)
	} else if ok { // its successor is known already, by the response to a write
		r.stored = 0
		t.records[k] = r
	}
	m.mu.Unlock()
	s.publish(events, []store.Change{{Row: e.row, Delete: true}})
	return nil
}

// Replace takes in a whole list. What is not in it is gone: that it succeeded was seen to
// by the reflector.
func (s *reflectorStore) Replace(list []any, resourceVersion string) error {
	t := s.table
	m := t.cluster.mirror
	entries := make([]*entry, 0, len(list))
	for _, obj := range list {
		e, err := t.entry(obj)
		if err != nil {
			return err
		}
		entries = append(entries, e)
	}
	m.mu.Lock()
	generation := m.generation
	events, changes := t.replace(entries, number(resourceVersion))
	m.mu.Unlock()
	s.publish(events, changes)
	m.mu.Lock()
	if !m.writer.gaveUp(t) {
		t.handed = generation
	}
	m.mu.Unlock()
	s.listed()
	m.fleet.Refresh(t.cluster.name)
	return nil
}

// Resync is of no use to us.
func (s *reflectorStore) Resync() error { return nil }

// Transformer makes a reflector that streams a list hold entries instead of objects.
func (s *reflectorStore) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) { return s.table.entry(obj) }
}

// UpdateResourceVersion follows the watch, bookmarks too.
func (s *reflectorStore) UpdateResourceVersion(resourceVersion string) {
	m := s.table.cluster.mirror
	m.mu.Lock()
	defer m.mu.Unlock()
	s.table.version = max(s.table.version, number(resourceVersion))
}

// publish tells what changed, and hands it to the store; it waits for the store to keep
// up, but not for one that fails.
func (s *reflectorStore) publish(events []Event, changes []store.Change) {
	m := s.table.cluster.mirror
	m.notify(events...)
	switch resourceOf(s.table.api) {
	case crds, apiservices:
		m.fleet.Rediscover(s.table.cluster.name)
	}
	m.writer.add(s.ctx, s.table, changes)
}

// observe takes an entry of the watch or a list into the index, and returns what is to be
// written. The index must be locked.
func (t *table) observe(e *entry) (events []Event, changes []store.Change) {
	k := key{e.row.Namespace, e.row.Name}
	version := number(e.row.ResourceVersion)
	t.count(k, e)
	if r := t.records[k]; !r.gone || r.uid != e.row.UID || e.deleting {
		events = t.put(k, e.row.UID, version, e.object, e.row.Labels)
	}
	r := t.records[k]
	if version != 0 && r.stored == version && r.uid == e.row.UID {
		return events, nil
	}
	r.stored = version
	t.records[k] = r
	return events, []store.Change{{Row: e.row}}
}

// replace makes the index what a list says. The index must be locked.
func (t *table) replace(entries []*entry, version uint64) (events []Event, changes []store.Change) {
	restored := version != 0 && version < t.version
	if restored { // the cluster went back in time: nothing that was known counts
		for k, r := range t.records {
			r.version, r.stored, r.gone = 0, 0, false
			t.records[k] = r
		}
	}
	listed := make(map[key]bool, len(entries))
	for _, e := range entries {
		listed[key{e.row.Namespace, e.row.Name}] = true
		ev, ch := t.observe(e)
		events, changes = append(events, ev...), append(changes, ch...)
	}
	for k, r := range t.records {
		// A write's response may be newer than the list.
		if listed[k] || version != 0 && r.version > version {
			continue
		}
		t.uncount(k)
		events = append(events, t.remove(k, r)...)
		changes = append(changes, t.deletion(k))
	}
	t.version = version
	if !t.synced {
		t.synced, t.problem = true, nil
		events = append(events, Event{Type: Synced, Cluster: t.cluster.name, Resource: resourceOf(t.api)})
	}
	return events, changes
}
