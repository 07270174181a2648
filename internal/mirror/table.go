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

// table is the mirror of one type of one cluster. A follower fills it. Nothing in it waits for
// the database: placement reads it.
type table struct {
	cluster *cluster
	cancel  context.CancelFunc
	stopped chan struct{}

	// Guarded by the cluster's lock:
	api       member.API
	filter    filter        // which objects are mirrored
	data      *filter       // of which Secrets the data is mirrored, too; nil: of none
	life      time.Duration // how long they stay after they were last seen to happen; 0: as long as in the cluster
	next      *decision     // what to go on with at the next start
	wanted    bool          // by the API list as last seen
	away      bool          // the cluster cannot say at present whether it serves the type: what is known is stale
	running   bool
	interrupt context.CancelFunc // ends what the follower is about
	stale     bool               // it is to be listed again, whatever the watch brought
	problem   error              // why it is not listed
	failing   time.Time          // when the first list failed, of those that have failed in a row; zero: the last did not
	synced    bool
	listing   bool   // a list runs
	overdue   error  // why a list that is repeated has not ended; nil: none is overdue
	version   uint64 // everything up to this resource version was observed; 0: nothing yet
	records   map[key]record
	ending    map[key]*Object // placed objects that are known to be gone, as they were last seen, until the watch says how they ended
	handed    int64           // the Mirror's generation when a whole list was handed to the store; 0: none was
	lost      int64           // counts how often it was forgotten what the store has
	vouched   string          // the epoch of the database that all of it was handed to; "": not known

	recalled  bool           // the store knows the type, and was asked what it has of it
	recalls   bool           // the store is being asked
	epoch     string         // of the database that was asked
	stored    map[key]record // what the store has, until the next list begins
	resumable *resumable     // what the store vouches for, until the first list or watch begins

	happened map[key]time.Time // when the objects last happened, if they have a life
	swept    time.Time         // when those that have outlived it were last looked for

	following bool      // a watch is open
	seen      time.Time // as of when the type is known, or later while a watch is open, see asOf
}

// key names an object of a table.
type key struct{ namespace, name string }

// record is what is remembered of every object.
type record struct {
	uid types.UID
	// version is the resource version that is known; 0: the object was read from the store,
	// or the cluster's resource versions are not numbers.
	version uint64
	// stored is the resource version that was handed to the store; 0: none.
	stored uint64
	// gone: it is known to be deleted, though the watch has not said so yet.
	gone   bool
	object *Object // when it is placed
}

func newTable(c *cluster, api member.API) *table {
	return &table{cluster: c, api: api, records: map[key]record{}, interrupt: func() {}}
}

// plan takes in what was decided of the type, and says whether its follower is to be started anew. The cluster must be locked.
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

// takes says whether an object belongs into the mirror. The cluster must be locked.
func (t *table) takes(e *entry) bool {
	return t.filter.has(e.row.Namespace, e.row.Labels) && (t.life == 0 || e.happened.IsZero() || time.Since(e.happened) < t.life)
}

// happens notes when an object that has a life last happened. The cluster must be locked.
func (t *table) happens(k key, e *entry) {
	if t.life == 0 || e.happened.IsZero() {
		return
	}
	if t.happened == nil {
		t.happened = map[key]time.Time{}
	}
	t.happened[k] = e.happened
}

// Objects that have outlived their time are looked for this many times in a life, and at least every sweepEvery, while the
// cluster says something of the type: of one that is not reachable nothing vanishes.
const (
	sweepsInLife = 10
	sweepEvery   = time.Minute
)

// sweep takes out what has outlived its time, and returns what is to be written. The cluster must be locked.
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

// start runs the table's follower. listed gives back the place among the cluster's lists that the
// first list takes.
func (t *table) start(ctx context.Context, listed func()) {
	c := t.cluster
	ctx, t.cancel = context.WithCancel(ctx)
	t.stopped = make(chan struct{})
	c.mu.Lock()
	t.running = true
	if d := t.next; d != nil {
		if !t.sameAPI(d.api) || dataOf(t.data) != dataOf(d.data) {
			t.forgetStored() // the bodies are of another version, or have other parts
		}
		t.api, t.filter, t.data, t.next, t.synced = d.api, d.filter, d.data, nil, false
	}
	c.mu.Unlock()
	go func() {
		defer close(t.stopped)
		newFollower(ctx, t, listed).run() //nolint:contextcheck // it has ctx
	}()
}

// takeBack takes back what waits to be stored and may have data of Secrets that is not to be any more. It is handed over again. The follower is stopped.
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
	t.forgetStored() // also if what was decided is taken back before the next start
	c.mu.Unlock()
}

// onlyMetadata says whether nothing of the objects is read but their metadata.
func (t *table) onlyMetadata() bool { return resourceOf(t.api) == secrets && t.data == nil }

// stop ends the table's follower, if it runs.
func (t *table) stop() {
	t.cluster.mu.Lock()
	running := t.running
	t.running = false
	t.cluster.mu.Unlock()
	if running {
		t.cancel()
		<-t.stopped
		if t.cluster.mirror.writer.pardon(t) { // the next start must not count on changes that were given up
			t.cluster.mu.Lock()
			t.forgetStored()
			t.cluster.mu.Unlock()
		}
	}
}

// again makes the follower list again.
func (t *table) again() {
	t.cluster.mu.Lock()
	t.stale = true
	interrupt := t.interrupt
	t.cluster.mu.Unlock()
	interrupt()
}

// complete says whether the store was handed everything that the cluster was seen to have;
// the cluster must be locked.
func (t *table) complete() bool { return t.synced && t.handed == t.cluster.mirror.generation.Load() }

// takeStored takes into the index what the store has, before a list: the list then finds
// what is to be written and what was deleted since. Of a type that was listed already it
// returns the deletions, since its index knows what there is. The cluster must be locked.
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

// deletion of an object from the store.
func (t *table) deletion(k key) store.Change {
	gr := resourceOf(t.api)
	return store.Change{Delete: true, Row: store.Row{
		Cluster: t.cluster.name, Group: gr.Group, Resource: gr.Resource, Namespace: k.namespace, Name: k.name,
	}}
}

// forgetStored takes note that the store may have nothing, or not the latest, of the type's
// objects: the next list hands over all of them. The cluster must be locked.
func (t *table) forgetStored() {
	t.lost++
	t.handed, t.vouched = 0, ""
	t.recalled, t.epoch, t.stored, t.resumable = false, "", nil, nil
	for k, r := range t.records {
		r.stored = 0
		t.records[k] = r
	}
}

// observe takes an entry of the watch or a list into the index, and returns what is to be
// written. The cluster must be locked.
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
		return events, nil // it was, or is said once more by a watch that began before
	}
	r.stored = version
	t.records[k] = r
	return events, []store.Change{{Row: e.row}}
}

// outdated says whether the store was handed a newer state of the object than one that a watch brings: API servers tell the states of an
// object in their order, and one that does not must not have the store go back. The cluster must be locked.
func (t *table) outdated(e *entry) bool {
	r, ok := t.records[e.key()]
	version := number(e.row.ResourceVersion)
	return ok && r.uid == e.row.UID && version != 0 && version < r.stored
}

// observeDeleted takes the end of an object out of the watch into the index, and returns what is
// to be written. The cluster must be locked.
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
	} else if ok { // its successor is known already, by the response to a write or from the store
		r.stored = 0
		t.records[k] = r
	}
	tells := e.object != nil && (e.object.Ended != "" || interpreter.Ends(t.api.GroupVersionKind.GroupKind()))
	if last != nil && last.UID == e.row.UID && len(events) == 0 && tells { // that it is gone was told before, and not how it ended
		events = final([]Event{t.event(Deleted, k, last)}, e.object)
	}
	return events, []store.Change{{Row: e.row, Delete: true}}
}

// ends remembers a placed object that is known to be gone before the watch says so.
func (t *table) ends(k key, o *Object) {
	if o == nil || !o.Placed() {
		return
	}
	if t.ending == nil {
		t.ending = map[key]*Object{}
	}
	t.ending[k] = o
}

// final has the events of an object's end tell how it was then.
func final(events []Event, o *Object) []Event {
	for i := range events {
		events[i].Final = o
	}
	return events
}

// forgetPast makes nothing that was known of the objects count any more, since their cluster went
// back in time or is another one: what it says next is news. The cluster must be locked.
func (t *table) forgetPast() {
	t.version, t.ending = 0, nil
	for k, r := range t.records {
		r.version, r.stored, r.gone = 0, 0, false
		t.records[k] = r
	}
}

// removeOthers takes out of the index what a whole list, of a version, did not have. The cluster
// must be locked.
func (t *table) removeOthers(listed map[key]bool, version uint64) (events []Event, changes []store.Change) {
	t.ending = nil // the watch that follows says nothing of what is gone by now
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

// syncedNow takes note that the index is as the cluster was after the follower had begun. The
// cluster must be locked.
func (t *table) syncedNow() []Event {
	if t.synced {
		return nil
	}
	t.synced, t.problem = true, nil
	if resourceOf(t.api) == crds { // now it is known which types are custom resources
		t.cluster.kinds++
		t.cluster.wakeUp()
	}
	return []Event{{Type: Synced, Cluster: t.cluster.name, Resource: resourceOf(t.api)}}
}

// errSlowList is the problem of a type whose first list has not ended after slowList.
var errSlowList = fmt.Errorf("the list has not ended after %s, and goes on", slowList)

// late takes note that the list that runs takes long.
func (t *table) late() {
	t.cluster.mu.Lock()
	news := !t.synced && t.problem == nil
	switch {
	case news:
		t.attempted(errSlowList, slowList)
	case !t.synced: // the problem is that of an earlier watch
		t.attempted(t.problem, slowList)
	}
	t.cluster.mu.Unlock()
	if news {
		t.turned(errSlowList)
	}
}

// superviseList reports a list that begins now when it takes long. ended must be called when it
// has ended, with its error.
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

// setOverdue records whether a list of a type that was listed before is overdue: it runs for long,
// or ended with errEndlessList. The last list that succeeded ends that.
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

// turned tells that a type that is not listed yet has a problem, or has none any more.
func (t *table) turned(problem error) {
	m := t.cluster.mirror
	if problem != nil {
		m.notify(Event{Type: Failed, Cluster: t.cluster.name, Resource: resourceOf(t.api)})
	}
	m.fleet.Refresh(t.cluster.name)
}

// publish tells what changed, and hands it to the store; it waits for the store to keep
// up, but not for one that fails.
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

// number reads a resource version; 0: it is not a number, and cannot be compared.
func number(resourceVersion string) uint64 {
	n, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
