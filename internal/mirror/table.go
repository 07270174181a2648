package mirror

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"orrery.dev/orrery/internal/interpreter"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/store"
)

// table is the mirror of one type of one cluster. Its watch loop, a `follower`, fills it. No
// method waits for the database while it holds the cluster's lock, since placement reads the
// table.
type table struct {
	cluster *cluster
	cancel  context.CancelFunc
	stopped chan struct{}

	// Guarded by the cluster's lock:
	api    member.API
	filter filter  // which objects are mirrored
	data   *filter // the Secrets that are mirrored with data; nil: none
	// How long objects stay after they last happened. 0: as long as they exist in the cluster.
	life   time.Duration
	next   *decision // the changed settings, which apply from the next start
	wanted bool      // the type is in the last API list
	// The cluster cannot tell at present whether it serves the type. Known objects are stale.
	away      bool
	running   bool
	interrupt context.CancelFunc // ends the current attempt of the watch loop
	stale     bool               // the type must be listed again, even if the watch is current
	problem   error              // why the type is not listed; nil: no reason
	// When the first of the lists failed that have failed in a row. Zero: the last list
	// succeeded.
	failing time.Time
	synced  bool
	listing bool   // a list is running
	overdue error  // why a repeated list has not ended; nil: none is overdue
	version uint64 // everything up to this resource version was observed; 0: nothing yet
	records map[key]record
	// Last states of placed objects that are gone, until the watch reports how they ended.
	ending map[key]*Object
	// The Mirror's generation when a whole list was passed to the store. 0: no list was.
	handed  int64
	lost    int64  // number of calls of forgetStored
	vouched string // epoch of the database that has all objects; "": unknown

	recalled bool           // the store has the type, and has returned its contents
	recalls  bool           // the store is being read
	epoch    string         // epoch of the database that was read
	stored   map[key]record // contents of the store, until the next list begins
	// Checkpoint that the store confirmed, until the first list or watch begins.
	resumable *resumable

	happened map[key]time.Time // times at which objects last happened, if life is set
	swept    time.Time         // time of the last sweep

	following bool // a watch is open
	// Time at which the data was current. With an open watch the data may be newer: see asOf.
	seen time.Time
}

// key names an object of a table.
type key struct{ namespace, name string }

// record is what the table keeps for every object.
type record struct {
	uid types.UID
	// version is the latest known resource version. It is 0 if the object was read from the
	// store, or the cluster's resource versions are not numbers.
	version uint64
	// stored is the resource version that was passed to the store; 0: none.
	stored uint64
	// gone means that the object was deleted, but the watch has not reported that yet.
	gone   bool
	object *Object // only for placed objects
}

func newTable(c *cluster, api member.API) *table {
	return &table{cluster: c, api: api, records: map[key]record{}, interrupt: func() {}}
}

// plan sets what is to be mirrored. restart is true if the watch loop is running and must be
// restarted. The caller holds the cluster's lock.
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

func (t *table) sameAPI(api member.API) bool {
	return t.api.GroupVersionResource() == api.GroupVersionResource() && t.api.Namespaced == api.Namespaced
}

// takes reports whether an object is to be mirrored. The caller holds the cluster's lock.
func (t *table) takes(e *entry) bool {
	return t.filter.has(e.row.Namespace, e.row.Labels) && (t.life == 0 || e.happened.IsZero() || time.Since(e.happened) < t.life)
}

// happens records when an object last happened, if the table has a life. The caller holds the
// cluster's lock.
func (t *table) happens(k key, e *entry) {
	if t.life == 0 || e.happened.IsZero() {
		return
	}
	if t.happened == nil {
		t.happened = map[key]time.Time{}
	}
	t.happened[k] = e.happened
}

// Objects that are older than the life are removed sweepsInLife times in a life, and at least
// every sweepEvery. Only events of the watch cause that: objects of an unreachable cluster stay.
const (
	sweepsInLife = 10
	sweepEvery   = time.Minute
)

// sweep removes objects that are older than the table's life from the index, and returns their
// events and the deletions to write. The caller holds the cluster's lock.
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
			events = append(events, t.remove(k, r)...)
			changes = append(changes, t.deletion(k))
		}
		delete(t.happened, k)
	}
	return events, changes
}

// start runs the table's watch loop. listed frees the cluster's list slot that the first list
// occupies.
func (t *table) start(ctx context.Context, listed func()) {
	c := t.cluster
	ctx, t.cancel = context.WithCancel(ctx)
	t.stopped = make(chan struct{})
	c.mu.Lock()
	t.running = true
	if d := t.next; d != nil {
		if !t.sameAPI(d.api) || dataOf(t.data) != dataOf(d.data) {
			t.forgetStored() // the stored bodies have another version, or other parts
		}
		t.api, t.filter, t.data, t.next, t.synced = d.api, d.filter, d.data, nil, false
	}
	c.mu.Unlock()
	go func() {
		defer close(t.stopped)
		newFollower(ctx, t, listed).run() //nolint:contextcheck // it has ctx
	}()
}

// takeBack removes changes from the writer's queue if they may contain data of Secrets that must
// no longer be stored. The next list passes the objects again. The watch loop must be stopped.
func (t *table) takeBack() {
	c := t.cluster
	c.mu.Lock()
	gr := resourceOf(t.api)
	other := t.next != nil && dataOf(t.data) != dataOf(t.next.data)
	c.mu.Unlock()
	if !other {
		return
	}
	c.mirror.writer.forget(func(k rowKey) bool { return k.cluster == c.name && k.resource == gr && k != withdrawing(c.name, gr) })
	c.mu.Lock()
	t.forgetStored() // needed even if the new settings are reverted before the next start
	c.mu.Unlock()
}

// onlyMetadata reports whether only the metadata of the objects is read.
func (t *table) onlyMetadata() bool { return resourceOf(t.api) == secrets && t.data == nil }

// stop ends the table's watch loop, if it runs.
func (t *table) stop() {
	t.cluster.mu.Lock()
	running := t.running
	t.running = false
	t.cluster.mu.Unlock()
	if running {
		t.cancel()
		<-t.stopped
		if t.cluster.mirror.writer.pardon(t) { // the next start must not rely on abandoned changes
			t.cluster.mu.Lock()
			t.forgetStored()
			t.cluster.mu.Unlock()
		}
	}
}

// again makes the watch loop list the type again.
func (t *table) again() {
	t.cluster.mu.Lock()
	t.stale = true
	interrupt := t.interrupt
	t.cluster.mu.Unlock()
	interrupt()
}

// complete reports whether everything that the cluster was seen to have was passed to the store.
// The caller holds the cluster's lock.
func (t *table) complete() bool { return t.synced && t.handed == t.cluster.mirror.generation.Load() }

// takeStored merges the contents of the store into the index, before a list. The list can then
// tell which objects to write, and which were deleted since. If the type was listed before, its
// index is complete, and takeStored returns deletions of stored rows that the index lacks. The
// caller holds the cluster's lock.
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

// deletion returns the change that deletes an object from the store.
func (t *table) deletion(k key) store.Change {
	gr := resourceOf(t.api)
	return store.Change{Delete: true, Row: store.Row{
		Cluster: t.cluster.name, Group: gr.Group, Resource: gr.Resource, Namespace: k.namespace, Name: k.name,
	}}
}

// forgetStored records that the store may lack objects of the type, or have old states. The next
// list passes all of them. The caller holds the cluster's lock.
func (t *table) forgetStored() {
	t.lost++
	t.handed, t.vouched = 0, ""
	t.recalled, t.epoch, t.stored, t.resumable = false, "", nil, nil
	for k, r := range t.records {
		r.stored = 0
		t.records[k] = r
	}
}

// observe applies an entry of a watch or list to the index, and returns the events and the
// changes to write. The caller holds the cluster's lock.
func (t *table) observe(e *entry) (events []Event, changes []store.Change) {
	k := e.key()
	version := number(e.row.ResourceVersion)
	t.count(k, e)
	t.happens(k, e)
	if r := t.records[k]; !r.gone || r.uid != e.row.UID || e.deleting {
		events = t.put(k, e.row.UID, version, e.object, e.row.Labels)
	}
	r := t.records[k]
	if version != 0 && (version <= r.stored && r.uid == e.row.UID || version < r.version && r.uid != e.row.UID) {
		return events, nil // the state was written before, or an older watch repeats it
	}
	r.stored = version
	t.records[k] = r
	return events, []store.Change{{Row: e.row}}
}

// outdated reports whether the store was passed a newer state of the object than that of a watch
// event. API servers send the states of an object in order. If one does not, the store must not
// go back. The caller holds the cluster's lock.
func (t *table) outdated(e *entry) bool {
	r, ok := t.records[e.key()]
	version := number(e.row.ResourceVersion)
	return ok && r.uid == e.row.UID && version != 0 && version < r.stored
}

// observeDeleted applies the deletion event of a watch to the index, and returns the events and
// the changes to write. The caller holds the cluster's lock.
func (t *table) observeDeleted(e *entry) (events []Event, changes []store.Change) {
	k := e.key()
	if _, ok := t.records[k]; !ok && !t.takes(e) {
		return nil, nil // it never was mirrored
	}
	t.uncount(k)
	delete(t.happened, k)
	last := t.ending[k]
	delete(t.ending, k)
	e.object.carry(last)
	if r, ok := t.records[k]; ok && r.uid == e.row.UID {
		e.object.carry(r.object)
		events = final(t.remove(k, r), e.object)
	} else if ok { // its successor is known, from a write or the store
		r.stored = 0
		t.records[k] = r
	}
	tells := e.object != nil && (e.object.Ended != "" || interpreter.Ends(t.api.GroupVersionKind.GroupKind()))
	// The deletion was published before, without how the object ended.
	if last != nil && last.UID == e.row.UID && len(events) == 0 && tells {
		events = final([]Event{t.event(Deleted, k, last)}, e.object)
	}
	return events, []store.Change{{Row: e.row, Delete: true}}
}

// ends remembers a placed object that was deleted before the watch reports the deletion.
func (t *table) ends(k key, o *Object) {
	if o == nil || !o.Placed() {
		return
	}
	if t.ending == nil {
		t.ending = map[key]*Object{}
	}
	t.ending[k] = o
}

// final adds the last state of an object to the events of its end.
func final(events []Event, o *Object) []Event {
	for i := range events {
		events[i].Final = o
	}
	return events
}

// forgetPast forgets the known versions of all objects, because the cluster went back in time or
// is another one. Its next answers count as new. The caller holds the cluster's lock.
func (t *table) forgetPast() {
	t.version, t.ending = 0, nil
	for k, r := range t.records {
		r.version, r.stored, r.gone = 0, 0, false
		t.records[k] = r
	}
}

// removeOthers removes objects from the index that a complete list of the given version lacks.
// The caller holds the cluster's lock.
func (t *table) removeOthers(listed map[key]bool, version uint64) (events []Event, changes []store.Change) {
	t.ending = nil // the next watch reports nothing about objects that are gone by now
	for k, r := range t.records {
		// A write's response may be newer than the list.
		if listed[k] || version != 0 && r.version > version {
			continue
		}
		t.uncount(k)
		delete(t.happened, k)
		events = append(events, t.remove(k, r)...)
		changes = append(changes, t.deletion(k))
	}
	return events, changes
}

// syncedNow records that the index is complete, and returns the event for it. The caller holds
// the cluster's lock.
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

// errSlowList is the problem of a type whose first list has not ended after slowList.
var errSlowList = fmt.Errorf("the list has not ended after %s, and goes on", slowList)

// late records that the running list is slow.
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

// superviseList reports the list that begins now if it takes long. The caller must call ended
// with the list's error.
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

// setOverdue records whether a list of a type that was listed before is overdue: it runs for
// long, or ended with errEndlessList. The next list that succeeds resets that.
func (t *table) setOverdue(listing bool, err error) {
	t.cluster.mu.Lock()
	before := t.overdue
	switch {
	case listing && !t.listing: // it ended just now
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

// turned publishes that a type that is not listed yet got a problem, or lost it (nil).
func (t *table) turned(problem error) {
	m := t.cluster.mirror
	if problem != nil {
		m.notify(Event{Type: Failed, Cluster: t.cluster.name, Resource: resourceOf(t.api)})
	}
	m.fleet.Refresh(t.cluster.name)
}

// publish sends events to the subscribers and passes changes to the writer. It waits while the
// writer's queue is full, but not for a store that fails.
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
