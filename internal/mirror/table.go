package mirror

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"orrery.dev/orrery/internal/interpreter"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/store"
)

// table mirrors one type of one cluster. It has a record of each object in memory. Its watch loop,
// a `watcher`, fills it. No method waits for the database while it holds the cluster's lock,
// because placement reads tables.
type table struct {
	cluster *cluster
	cancel  context.CancelFunc
	stopped chan struct{}

	// The cluster's lock guards all fields below.
	api    member.API
	filter filter  // which objects are mirrored
	data   *filter // the Secrets that are mirrored with data; nil: none
	// How long Events stay after they last happened. 0: as long as they exist in the cluster.
	life   time.Duration
	next   *decision // the changed settings, which apply from the next start
	wanted bool      // the type is to be mirrored, by the last plan
	// The API group does not answer at present, so it is unknown whether the cluster serves the
	// type. Known objects are stale.
	away bool
	// When the API list of the cluster began to lack the type. Zero: the list has it.
	unlisted  time.Time
	asked     time.Time // when the cluster was last asked for such a type
	running   bool
	interrupt context.CancelFunc // ends the current attempt of the watch loop
	stale     bool               // the type must be listed again, even if the watch is current
	problem   error              // why the type is not listed; nil: no reason
	// When the first list failed since the last success. Zero: the last list succeeded.
	failing time.Time
	synced  bool   // the index has all objects that the settings select and the hub may read
	listing bool   // a list is running
	overdue error  // why a list after the first one is overdue; nil: none is
	version uint64 // everything up to this resource version was observed; 0: nothing yet
	records map[key]record
	// Consumers of the cluster that read the type.
	consumers []consumer
	// Last states of placed objects that are gone, until the watch reports how they ended.
	ending map[key]*Object
	// Value of Mirror.generation when a whole list was passed to the store. 0: none was since the
	// last call of forgetStored.
	handed    int64
	lost      int64  // number of calls of forgetStored
	coveredBy string // epoch of the database that was passed all objects; "": unknown

	recalled bool           // the store has returned its contents of the type
	recalls  bool           // the store is being read
	epoch    string         // identifies the database that was read
	stored   map[key]record // contents of the store, until the next list begins
	// Stored rows with a usable checkpoint, until the first list or watch begins. nil: none.
	resumable *resumable

	happened map[key]time.Time // times at which objects last happened, if life is set
	swept    time.Time         // time of the last sweep of objects older than life

	following bool // a watch is open
	// Time at which the data was last known to be current. With an open watch the data may be
	// newer: see asOf.
	seen time.Time
}

// key names an object of a table. The namespace of a cluster-scoped object is "".
type key struct{ namespace, name string }

// record is what a table has in memory of each object.
type record struct {
	uid types.UID
	// version is the latest known resource version. It is 0 if the object was read from the
	// store, or the cluster's resource versions are not numbers.
	version uint64
	// stored is the resource version that was passed to the store; 0: none.
	stored uint64
	// gone is true if a request of this hub deleted the object, and the watch has not reported that
	// yet.
	gone bool
	// observed is true if a list, a watch or the store returned the state of this version, and not
	// only the response to a write.
	observed bool
	object   *Object // only for placed and orphaned objects
}

func newTable(c *cluster, api member.API) *table {
	consumers := slices.DeleteFunc(slices.Clone(c.consumers), func(c consumer) bool { return !c.reads(resourceOf(api)) })
	return &table{cluster: c, api: api, records: map[key]record{}, consumers: consumers, interrupt: func() {}}
}

// plan sets what is to be mirrored of the table's type. Settings that need another list and watch
// apply from the next start: if the watch loop is running then, restart is true, and the caller
// stops the table and starts it again. The caller holds the cluster's lock.
func (t *table) plan(d decision) (restart bool) {
	t.wanted, t.life, t.away, t.next = true, d.life, d.api.Stale, nil
	if !t.sameAPI(d.api) || t.filter.String() != d.filter.String() || dataOf(t.data) != dataOf(d.data) {
		t.next = &d
		return t.running
	}
	if !t.running {
		t.api = d.api
	}
	return false
}

// sameAPI reports whether the table mirrors the version and scope of api. The caller holds the
// cluster's lock.
func (t *table) sameAPI(api member.API) bool {
	return t.api.GroupVersionResource() == api.GroupVersionResource() && t.api.Namespaced == api.Namespaced
}

// takes reports whether the settings select an object, and the object is not older than the life of
// its type. The caller holds the cluster's lock.
func (t *table) takes(e *entry) bool {
	return t.filter.has(e.row.Namespace, e.row.Labels) && (t.life == 0 || e.happened.IsZero() || time.Since(e.happened) < t.life)
}

// happens records when the Event with the key k last happened, if the table has a life after which
// Events are removed. For other objects it does nothing. The caller holds the cluster's lock.
func (t *table) happens(k key, e *entry) {
	if t.life == 0 || e.happened.IsZero() {
		return
	}
	if t.happened == nil {
		t.happened = map[key]time.Time{}
	}
	t.happened[k] = e.happened
}

// Events that are older than the table's life are removed sweepsInLife times within that life, and
// at least every sweepEvery. Only events of the watch start such a sweep, so the Events of an
// unreachable cluster stay.
const (
	sweepsInLife = 10
	sweepEvery   = time.Minute
)

// sweep removes Events that are older than the table's life from the index, if the last sweep was
// long enough ago. It returns the events to publish and the deletions to write to the store. The
// caller holds the cluster's lock.
func (t *table) sweep() (events []Event, changes []store.Change) {
	if t.life == 0 || time.Since(t.swept) < min(t.life/sweepsInLife, sweepEvery) {
		return nil, nil
	}
	t.swept = time.Now()
	for k, at := range t.happened {
		if time.Since(at) < t.life {
			continue
		}
		if r, ok := t.records[k]; ok {
			events = t.discard(events, k, r.uid)
			changes = append(changes, t.deletion(k))
		}
		delete(t.happened, k)
	}
	return events, changes
}

// start applies the settings that plan has set, and runs the watch loop of the table in a
// goroutine. The first list occupies a list slot of the cluster, which listed frees.
func (t *table) start(ctx context.Context, listed func()) {
	c := t.cluster
	ctx, t.cancel = context.WithCancel(ctx)
	t.stopped = make(chan struct{})
	c.mu.Lock()
	t.running = true
	if d := t.next; d != nil {
		if !t.sameAPI(d.api) || dataOf(t.data) != dataOf(d.data) {
			t.forgetStored() // the stored bodies have another version, or other parts
			for k, r := range t.records {
				r.observed = false // the consumers may see another version, or other parts
				t.records[k] = r
			}
		}
		t.api, t.filter, t.data, t.next, t.synced = d.api, d.filter, d.data, nil, false
	}
	c.mu.Unlock()
	go func() {
		defer close(t.stopped)
		newWatcher(ctx, t, listed).run() //nolint:contextcheck // the watcher has ctx
	}()
}

// takeBack removes the pending changes of a table of Secrets from the writer's queue if plan has
// set another filter for their data. The changes may contain data that must not be stored. The next
// list passes the objects to the writer again. The watch loop must be stopped.
func (t *table) takeBack() {
	c := t.cluster
	c.mu.Lock()
	gr := resourceOf(t.api)
	other := t.next != nil && dataOf(t.data) != dataOf(t.next.data)
	c.mu.Unlock()
	if !other {
		return
	}
	c.mirror.writer.forget(func(k rowKey) bool { return k.cluster == c.name && k.resource == gr && k != withdrawalKey(c.name, gr) })
	c.mu.Lock()
	t.forgetStored() // also if the new settings are reverted before the next start
	c.mu.Unlock()
}

// onlyMetadata reports whether only the metadata of the objects is read: the type is secrets, and
// no Secret is mirrored with data.
func (t *table) onlyMetadata() bool { return resourceOf(t.api) == secrets && t.data == nil }

// stop ends the table's watch loop, if it runs, and waits for its end. The caller must not
// hold the cluster's lock.
func (t *table) stop() {
	t.cluster.mu.Lock()
	running := t.running
	t.running = false
	t.cluster.mu.Unlock()
	if running {
		t.cancel()
		<-t.stopped
		if t.cluster.mirror.writer.clearAbandoned(t) { // the next start must not rely on the lost changes
			t.cluster.mu.Lock()
			t.forgetStored()
			t.cluster.mu.Unlock()
		}
	}
}

// again makes the watch loop list the type again, even while a watch is open. It does not wait for
// the list.
func (t *table) again() {
	t.cluster.mu.Lock()
	t.stale = true
	interrupt := t.interrupt
	t.cluster.mu.Unlock()
	interrupt()
}

// complete reports whether all objects that were observed in the cluster were passed to the store,
// after the last loss of the store's contents. The caller holds the cluster's lock.
func (t *table) complete() bool { return t.synced && t.handed == t.cluster.mirror.generation.Load() }

// takeStored merges the keys of the rows that the store has, in t.stored, into the records, before
// a list. So the list shows which objects must be written and which were deleted since. If the type
// was listed before, its records are complete: then takeStored returns deletions of the rows that
// have no record. The caller holds the cluster's lock.
func (t *table) takeStored() (leftovers []store.Change) {
	for k, r := range t.stored {
		known, ok := t.records[k]
		switch {
		case ok && known.uid == r.uid && known.stored == 0:
			known.stored = r.stored
			t.records[k] = known
		case ok:
		case t.synced:
			leftovers = append(leftovers, t.deletion(k))
		default:
			t.records[k] = r
		}
	}
	t.stored, t.resumable = nil, nil
	return leftovers
}

// deletion returns the change that deletes the row of the object with the key k from the store.
func (t *table) deletion(k key) store.Change {
	gr := resourceOf(t.api)
	return store.Change{Delete: true, Row: store.Row{
		Cluster: t.cluster.name, Group: gr.Group, Resource: gr.Resource, Namespace: k.namespace, Name: k.name,
	}}
}

// forgetStored records that the store may lack objects of the type, or have old states of them. The
// next list passes all objects to the store. The caller holds the cluster's lock.
func (t *table) forgetStored() {
	t.lost++
	t.handed, t.coveredBy = 0, ""
	t.recalled, t.epoch, t.stored, t.resumable = false, "", nil, nil
	for k, r := range t.records {
		r.stored = 0
		t.records[k] = r
	}
}

// observe records an object of a watch or list, or of a checkpoint. It passes the object to the
// consumers of the type, unless they were passed this state or a newer one before. It returns the
// events to publish, and the change to write to the store; none if the store was passed this state
// before. The caller holds the cluster's lock.
func (t *table) observe(e *entry) (events []Event, changes []store.Change) {
	k, version := e.key(), e.version
	t.happens(k, e)
	r := t.records[k]
	if !r.observed || r.gone || r.uid != e.row.UID || r.version < version || version == 0 {
		for _, c := range t.consumers {
			events = c.observe(events, t, e)
		}
		r = t.records[k]
	}
	if version != 0 && (version <= r.stored && r.uid == e.row.UID || version < r.version && r.uid != e.row.UID) {
		return events, nil // the store was passed this state, or a newer object with this name
	}
	r.stored = version
	t.records[k] = r
	return events, []store.Change{{Row: e.row}}
}

// outdated reports whether the store was already passed a newer state of the object than e, the
// state in a watch event. API servers send the states of an object in order; if one does not, the
// old state is ignored. The caller holds the cluster's lock.
func (t *table) outdated(e *entry) bool {
	r, ok := t.records[e.key()]
	return ok && r.uid == e.row.UID && e.version != 0 && e.version < r.stored
}

// observeDeleted records that the watch reported the deletion of an object, or that the settings no
// longer select it. e is its last state. It returns the events to publish and the change to write
// to the store. The caller holds the cluster's lock.
func (t *table) observeDeleted(e *entry) (events []Event, changes []store.Change) {
	k := e.key()
	r, ok := t.records[k]
	if !ok && !t.takes(e) {
		return nil, nil // the object was never mirrored
	}
	last := t.ending[k]
	delete(t.ending, k)
	e.object.carry(last)
	e.object.carry(r.object)
	if ok {
		events = final(t.discard(nil, k, e.row.UID), e.object)
		if r.uid != e.row.UID { // the record belongs to a later object with that name
			r.stored, r.observed = 0, false
			t.records[k] = r
		}
	}
	endKnown := e.object != nil && (e.object.Ended != "" || interpreter.Ends(t.api.GroupVersionKind.GroupKind()))
	// The deletion was published before, without how the object ended.
	if last != nil && last.UID == e.row.UID && len(events) == 0 && endKnown {
		events = final([]Event{t.event(Deleted, k, last)}, e.object)
	}
	return events, []store.Change{{Row: e.row, Delete: true}}
}

// ends remembers the last state o of a placed object with the key k that is known to be deleted
// before the watch reports the deletion. The watch event then shows how the object ended. A nil o,
// or one that is not placed, is ignored. The caller holds the cluster's lock.
func (t *table) ends(k key, o *Object) {
	if o == nil || !o.Placed() {
		return
	}
	if t.ending == nil {
		t.ending = map[key]*Object{}
	}
	t.ending[k] = o
}

// final sets the last state of a deleted object in its events, and returns the events. o may be
// nil.
func final(events []Event, o *Object) []Event {
	for i := range events {
		events[i].Final = o
	}
	return events
}

// forgetPast forgets the known resource versions of all objects, because the cluster was restored
// from a backup or is another one. So its next answers count as new. The caller holds the cluster's
// lock.
func (t *table) forgetPast() {
	t.version, t.ending = 0, nil
	for k, r := range t.records {
		r.version, r.stored, r.gone = 0, 0, false
		t.records[k] = r
	}
}

// removeOthers removes the objects that a complete list of the given resource version lacks: their
// keys are not in listed, or have the value false. It returns the events to publish and the
// deletions to write to the store. The caller holds the cluster's lock.
func (t *table) removeOthers(listed map[key]bool, version uint64) (events []Event, changes []store.Change) {
	t.ending = nil // the next watch reports nothing about objects that are gone by now
	for k, r := range t.records {
		// An object from the response to a write may be newer than the list.
		if listed[k] || version != 0 && r.version > version {
			continue
		}
		events = t.discard(events, k, r.uid)
		changes = append(changes, t.deletion(k))
	}
	return events, changes
}

// syncedNow marks the table as synced: its index is complete. It returns the event Synced, or none
// if the table was synced before. The caller holds the cluster's lock.
func (t *table) syncedNow() []Event {
	if t.synced {
		return nil
	}
	t.synced, t.problem = true, nil
	if resourceOf(t.api) == crds { // now the custom resource types are known
		t.cluster.kinds++
		t.cluster.wakeUp()
	}
	return []Event{{Type: Synced, Cluster: t.cluster.name, Resource: resourceOf(t.api)}}
}

// errSlowList is the problem of a type while its first list has run for longer than slowList.
var errSlowList = fmt.Errorf("the list has not ended after %s, and goes on", slowList)

// late is called when a list has run for slowList. If the type was never listed before, and has no
// other problem, it sets errSlowList as its problem and publishes that.
func (t *table) late() {
	t.cluster.mu.Lock()
	news := !t.synced && t.problem == nil
	switch {
	case news:
		t.attempted(errSlowList, slowList)
	case !t.synced: // the problem comes from an earlier watch
		t.attempted(t.problem, slowList)
	}
	t.cluster.mu.Unlock()
	if news {
		t.turned(errSlowList)
	}
}

// superviseList begins to measure a list of the table's type. A first list that runs for slowList
// gets a problem, and a later one that runs for longList is overdue. The caller must call ended
// with the error of the list.
func (t *table) superviseList() (ended func(error)) {
	began := time.Now()
	t.cluster.mu.Lock()
	t.listing = true
	t.cluster.mu.Unlock()
	late := time.AfterFunc(slowList, t.late)
	long := time.AfterFunc(longList, func() {
		t.setOverdue(true, fmt.Errorf("the list that began at %s has not ended", began.UTC().Format(time.RFC3339)))
	})
	return func(err error) {
		late.Stop()
		long.Stop()
		t.setOverdue(false, err)
	}
}

// setOverdue sets or clears t.overdue, which says that a list after the first one takes too long.
// listing is true if the list still runs; then err says since when. Otherwise err is the error of
// the list that ended: nil clears t.overdue, and errEndlessList sets it.
func (t *table) setOverdue(listing bool, err error) {
	t.cluster.mu.Lock()
	before := t.overdue
	switch {
	case listing && !t.listing: // the list ended just now
	case err == nil:
		t.overdue = nil
	case t.synced && (listing || errors.Is(err, errEndlessList)):
		t.overdue = err
	}
	t.listing = t.listing && listing
	news := (before == nil) != (t.overdue == nil) || before != nil && before.Error() != t.overdue.Error()
	t.cluster.mu.Unlock()
	if news {
		t.cluster.mirror.fleet.Refresh(t.cluster.name)
	}
}

// turned is called when a type that was never listed cannot be listed (problem), or no longer has a
// problem (nil). It publishes the event Failed for a problem, and requests a new status of the
// cluster. The caller must hold no lock.
func (t *table) turned(problem error) {
	m := t.cluster.mirror
	if problem != nil {
		m.notify(Event{Type: Failed, Cluster: t.cluster.name, Resource: resourceOf(t.api)})
	}
	m.fleet.Refresh(t.cluster.name)
}

// publish calls the subscribers with the events and passes the changes to the writer of the store.
// It waits while the writer's queue is full, unless the store fails. The caller must hold no lock.
func (t *table) publish(ctx context.Context, events []Event, changes []store.Change) {
	m := t.cluster.mirror
	m.notify(events...)
	if gr := resourceOf(t.api); len(changes) > 0 && (gr == crds || gr == apiservices) {
		if gr == crds {
			t.cluster.mu.Lock()
			t.cluster.kinds++
			t.cluster.mu.Unlock()
			t.cluster.wakeUp()
		}
		m.fleet.Rediscover(t.cluster.name)
	}
	m.writer.add(ctx, t, changes)
}

// number parses a resource version. It returns 0 if the version is not a number, and so cannot be
// compared.
func number(resourceVersion string) uint64 {
	n, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
