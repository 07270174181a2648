package mirror

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"orrery.dev/orrery/internal/store"
)

// pageSize is the number of objects in a page of a list of a cluster, and of a read of the store.
const pageSize = 500

// Delays before a failed list or watch is tried again. They grow from firstDelay up to
// longestDelay, or up to refusedDelay if the server refuses the request. A delay that the server
// requests is added, at most obedientDelay.
const (
	firstDelay    = 200 * time.Millisecond
	longestDelay  = 2 * time.Second
	refusedDelay  = 30 * time.Second
	obedientDelay = 2 * time.Minute
)

// Durations of watches. A usual watch lasts between watchFor and twice that. The first watch after
// a checkpoint lasts catchUpFor, because API servers report at the end of a watch how far it has
// come. catchUpPatience is how much longer the server may take to end it.
const (
	watchFor        = 15 * time.Minute
	catchUpFor      = 4 * time.Second
	catchUpPatience = 6 * time.Second
)

// idlePages is the number of pages in a row without a new object after which a list counts as
// endless. An API server may send a few such pages. One that sends this many announces next pages
// forever.
const idlePages = 100

// mostListed is the number of objects of a type in a cluster above which a list counts as endless.
// The database of etcd, of at most 8 GiB, cannot hold that many of the smallest objects, so an API
// server that lists more invents them.
const mostListed = 5_000_000

// errEndlessList is the error of a list that does not end: it has more than mostListed objects, or
// too many pages without a new object.
var errEndlessList = errors.New("the list does not end")

// watchFailures is the number of failures in a row to open a watch after which the type is listed
// again instead. Each list at least brings the newest state.
const watchFailures = 10

// watcher is the watch loop of a table: it keeps the table equal to the cluster. It begins with a
// list in pages, or with the stored rows and a checkpoint. Then follow watches, each from the
// version at which the last one ended. Only the goroutine of run uses a watcher.
type watcher struct {
	table *table
	ctx   context.Context //nolint:containedctx // of the table's run
	api   reader
	// Frees the list slot of the cluster that the caller of start occupied. nil: it is free.
	slot func()

	recalling sync.WaitGroup // reads of the store in the background

	from     string // resource version from which the watch continues; "": the type must be listed
	identity string // of the cluster that from belongs to
	// sure is true if the cluster cannot have been restored from a backup since from was read,
	// because it has just answered.
	sure bool
	// resuming is true while the index has the stored state and the watch catches up with the
	// cluster. The table is synced when the watch has passed until, the version of the cluster at
	// the start.
	resuming bool
	until    uint64
	moved    bool      // the watch delivered an event in this attempt
	failures int       // number of watches in a row that failed
	savedAt  time.Time // of the last checkpoint
}

// reader sends list and watch requests for one type to a cluster. A table implements it, and tests
// replace it. The context of watch bounds the whole watch.
type reader interface {
	list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error)
	watch(ctx context.Context, o metav1.ListOptions) (events, error)
	// newest returns the present resource version of the type in the cluster.
	newest(ctx context.Context) (string, error)
}

// newWatcher returns a watcher for a table. ctx ends its run. listed frees a list slot of the
// cluster: it is called once, when the first list or read of the store has ended, or run ends. It
// may be nil.
func newWatcher(ctx context.Context, t *table, listed func()) *watcher {
	log := logr.FromContextOrDiscard(ctx).WithValues("resource", resourceOf(t.api).String())
	return &watcher{table: t, ctx: logr.NewContext(ctx, log), api: t, slot: listed}
}

// run lists and watches the table's type until w.ctx ends. It retries after every failure, with
// growing pauses, and records the failure in the table.
func (w *watcher) run() {
	t := w.table
	defer w.recalling.Wait()
	defer func() {
		if w.slot != nil {
			w.slot()
		}
	}()
	delay := firstDelay
	for w.ctx.Err() == nil {
		w.moved = false
		err := w.attempt()
		if !errors.Is(err, errInterrupted) {
			t.cluster.mu.Lock()
			news := !t.synced && (err == nil) != (t.problem == nil)
			t.attempted(err, 0)
			// If the hub may not read ResourceQuotas, the free capacity is known without them.
			if news && resourceOf(t.api) == quotas {
				t.cluster.measured()
			}
			t.cluster.mu.Unlock()
			if news {
				t.turned(err)
			}
		}
		if err != nil {
			logr.FromContextOrDiscard(w.ctx).V(1).Info("type is not followed at present, and is tried again", "error", err.Error())
		}
		if w.moved || errors.Is(err, errInterrupted) {
			delay = firstDelay
		}
		pause := delay + rand.N(delay)/2 //nolint:gosec // spreads load, guards nothing
		if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
			pause += min(time.Duration(seconds)*time.Second, obedientDelay)
		}
		select {
		case <-time.After(pause):
		case <-w.ctx.Done():
		}
		longest := longestDelay
		if refused(err) || errors.Is(err, errEndlessList) {
			longest = refusedDelay
		}
		delay = min(2*delay, longest)
	}
}

// errInterrupted is the error of an attempt that ended because the cluster became unreachable, the
// context ended, or the type must be listed again. It does not mean that the type cannot be read.
var errInterrupted = errors.New("interrupted")

// attempt waits until the cluster is reachable, lists the type if necessary, and watches it once.
// nil means that the watch ended at its regular time, or that its resource version has expired and
// the next attempt lists the type. The error is errInterrupted if the attempt was interrupted, also
// by the end of ctx. Any other error is a reason why the type cannot be read.
func (w *watcher) attempt() error {
	t := w.table
	ctx, end, err := t.cluster.barrier.pass(w.ctx)
	if err != nil {
		return errInterrupted
	}
	defer end()
	ctx, interrupt := context.WithCancel(ctx)
	defer interrupt()
	t.cluster.mu.Lock()
	t.interrupt = interrupt
	if t.stale {
		t.stale, w.from = false, ""
	}
	t.cluster.mu.Unlock()
	w.recognise()
	if w.from == "" {
		err = w.read(ctx)
	}
	if err == nil {
		err = w.watch(ctx)
	}
	if ctx.Err() != nil {
		w.sure = false
		return errInterrupted
	}
	return err
}

// recognise checks whether another cluster now answers under the name. If so, it forgets all known
// resource versions, and the type is listed again.
func (w *watcher) recognise() {
	t := w.table
	identity := t.cluster.identity()
	if w.identity != "" && identity != "" && w.identity != identity {
		t.cluster.mu.Lock()
		t.forgetPast()
		t.synced = false
		t.cluster.mu.Unlock()
		w.from = ""
	}
}

// read fills the table, from the stored rows if they have a usable checkpoint, and otherwise by a
// list. It sets w.from, the version from which to watch. After a checkpoint the table is synced
// only when the watch has caught up. read first waits for a free list slot.
func (w *watcher) read(ctx context.Context) (err error) {
	t := w.table
	m := t.cluster.mirror
	done, err := w.admit(ctx)
	if err != nil {
		return err
	}
	defer done()
	ended := t.superviseList()
	defer func() { ended(err) }()
	t.cluster.mu.Lock()
	w.resuming, w.until, w.failures = false, 0, 0
	if errors.Is(t.problem, errSlowList) { // the problem of a list that was interrupted
		t.problem = nil
	}
	if m.writer.clearAbandoned(t) {
		t.forgetStored()
	}
	t.cluster.mu.Unlock()
	t.recall(w.ctx, &w.recalling) //nolint:contextcheck // the read outlives the attempt
	if w.resume() {
		return nil
	}
	err = w.list(ctx)
	outcome := "listed"
	if err != nil {
		outcome = "failed"
	}
	if ctx.Err() == nil {
		lists.WithLabelValues(outcome).Inc()
	}
	return err
}

// admit waits until fewer than listsOfOne lists of the cluster and fewer than listsOfAll lists of
// all clusters run. The caller calls done when its list has ended. If ctx ends first, admit returns
// a nil done and the error of ctx.
func (w *watcher) admit(ctx context.Context) (done func(), err error) {
	t := w.table
	slot := w.slot
	if w.slot = nil; slot == nil {
		select {
		case t.cluster.slots <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		slot = func() { <-t.cluster.slots }
	}
	leave, ok := t.cluster.mirror.listSlot(ctx)
	if !ok {
		slot()
		return nil, ctx.Err()
	}
	return func() { leave(); slot() }, nil
}

// list reads a complete list of the table's type, page by page, and marks the table as synced. All
// pages show the state of the cluster at the first page. Each page is applied as it comes. Objects
// that the list lacks are removed only at its end. If a page fails, the list fails, and the next
// attempt begins again. The error of a list without end wraps errEndlessList. list waits while the
// writer's queue is full.
func (w *watcher) list(ctx context.Context) error {
	t := w.table
	m := t.cluster.mirror
	w.from, w.identity = "", t.cluster.identity()
	t.cluster.mu.Lock()
	generation, lost := m.generation.Load(), t.lost
	leftovers := t.takeStored()
	epoch := t.epoch
	t.cluster.mu.Unlock()
	// An older checkpoint does not cover the rows that are written from here on.
	m.writer.withdraw(t.cluster.name, resourceOf(t.api))
	t.publish(w.ctx, nil, leftovers) //nolint:contextcheck // also if the attempt ends

	listed := map[key]bool{}
	version := ""
	// Each namespace that the filter asks for may have an empty page.
	idle, mostIdle := 0, idlePages+len(t.filter.asks())
	// A list request without a resource version returns the newest state, which is at least as new
	// as that of any earlier list.
	for o := (metav1.ListOptions{Limit: pageSize}); ; {
		page, err := w.api.list(ctx, o)
		if err != nil {
			return err
		}
		about, err := meta.ListAccessor(page)
		if err != nil {
			return fmt.Errorf("list %s: %w", resourceOf(t.api), err)
		}
		if version == "" {
			version = about.GetResourceVersion()
		}
		known := len(listed)
		if err := w.page(page, number(version), listed, o.Continue == ""); err != nil {
			return err
		}
		if o.Continue = about.GetContinue(); o.Continue == "" {
			break
		}
		if idle++; len(listed) > known {
			idle = 0
		}
		if len(listed) > m.mostListed {
			return fmt.Errorf("%w: it has more than %d objects, and a next page was announced", errEndlessList, m.mostListed)
		}
		if idle >= mostIdle {
			return fmt.Errorf("%w: %d pages in a row had no other objects than those before, and each announced a next page", errEndlessList, idle)
		}
	}

	t.cluster.mu.Lock()
	events, changes := t.removeOthers(listed, number(version))
	t.version, t.seen = number(version), time.Now()
	events = append(events, t.syncedNow()...)
	t.cluster.mu.Unlock()
	t.publish(w.ctx, events, changes) //nolint:contextcheck // also if the attempt ends
	t.cluster.mu.Lock()
	if !m.writer.gaveUp(t) && t.lost == lost { // otherwise the type is listed again
		t.handed, t.coveredBy = generation, epoch
	}
	t.cluster.mu.Unlock()
	w.from, w.sure = cmp.Or(version, "0"), true
	w.saveCheckpoint()
	m.fleet.Refresh(t.cluster.name)
	return nil
}

// page applies one page of a list. version is the resource version of the list, and first is true
// for its first page. page adds the key of each object to listed, with the value true if the object
// is mirrored. If an object cannot be converted, it applies none of the page and returns an error.
func (w *watcher) page(page runtime.Object, version uint64, listed map[key]bool, first bool) error {
	t := w.table
	var entries []*entry
	err := meta.EachListItem(page, func(o runtime.Object) error {
		e, err := t.entry(o)
		entries = append(entries, e)
		return err
	})
	if err != nil {
		return err
	}
	var events []Event
	var changes []store.Change
	t.cluster.mu.Lock()
	if first && version != 0 && version < t.version { // the cluster went back in time
		t.forgetPast()
	}
	if !t.synced { // later lists make the data current only when they end
		t.seen = time.Now()
	}
	for _, e := range entries {
		if !t.takes(e) {
			if _, known := listed[e.key()]; !known {
				listed[e.key()] = false
			}
			continue
		}
		listed[e.key()] = true
		ev, ch := t.observe(e)
		events, changes = append(events, ev...), append(changes, ch...)
	}
	t.cluster.mu.Unlock()
	t.publish(w.ctx, events, changes)
	return nil
}

// watch watches the type from the version w.from until the new watch ends. It clears w.from if the
// type must be listed again: the version has expired, which is no error, the server refuses the
// watch, or too many watches failed in a row.
func (w *watcher) watch(ctx context.Context) error {
	err := w.check(ctx)
	if err == nil && w.from != "" {
		err = w.open(ctx)
	}
	switch {
	case w.moved:
		w.failures = 0
	case err != nil && ctx.Err() == nil:
		w.failures++
	}
	switch {
	case err == nil, ctx.Err() != nil:
	case expired(err):
		w.from, err = "", nil
	case refused(err), w.failures >= watchFailures:
		w.from, w.failures = "", 0
	}
	if w.from == "" && w.resuming {
		resumes.WithLabelValues("listed").Inc()
	}
	return err
}

// check returns an Expired error if the cluster is older than the versions that were seen of it,
// because it was restored from a backup. A watch would get no events until the resource versions
// have caught up. It sends a request only after an interruption, because a cluster is not restored
// while it answers. It also sets w.until after a checkpoint.
func (w *watcher) check(ctx context.Context) error {
	if w.sure {
		return nil
	}
	newest, err := w.api.newest(ctx)
	if err != nil {
		return err
	}
	if err := sameTimeline(w.from, newest); err != nil {
		return err
	}
	w.sure, w.until = true, number(newest)
	if w.resuming && w.until == 0 {
		w.from = "" // without a number, it is unknown when the watch has caught up
	}
	w.catchUp()
	return nil
}

// open opens a watch from the version w.from and applies its events until it ends. The regular end
// of a watch is no error. If the first watch after a checkpoint ends or is interrupted before it
// has caught up, that is no error either: w.from is cleared, so that the type is listed.
func (w *watcher) open(ctx context.Context) error {
	ctx, enough := context.WithCancel(ctx)
	defer enough()
	lasts := watchFor + rand.N(watchFor) //nolint:gosec // spreads load, guards nothing
	var patience *time.Timer
	if w.resuming {
		lasts, patience = catchUpFor, time.AfterFunc(catchUpFor+catchUpPatience, enough)
		defer patience.Stop()
	}
	began := time.Now()
	s, err := w.api.watch(ctx, metav1.ListOptions{
		ResourceVersion: w.from, AllowWatchBookmarks: true, TimeoutSeconds: new(int64(lasts.Seconds())),
	})
	w.sure = false
	if err != nil {
		return err
	}
	defer s.close()
	t := w.table
	t.follows(true)
	defer t.follows(false)
	if err := w.receive(s, patience); err != nil && (ctx.Err() == nil || !w.resuming) {
		return err
	}
	// A watch that lasted its full time ended regularly. A shorter one was interrupted.
	w.sure = time.Since(began) >= lasts-time.Second
	if w.resuming { // the server has not reported how far the watch has come
		w.from = ""
	}
	return nil
}

// receive applies the events of a watch until it ends, which is no error. patience is the timer
// that ends the first watch after a checkpoint; nil for other watches. receive stops it once the
// table is synced.
func (w *watcher) receive(s events, patience *time.Timer) error {
	for {
		e, err := s.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = w.take(e, s.reached())
		}
		if err != nil {
			return err
		}
		if patience != nil && !w.resuming {
			patience.Stop()
		}
	}
}

// take applies one event of the watch, and saves a checkpoint from time to time. reached is the
// resource version of the watch after the event. An event of the type watch.Error is returned as an
// error. After an event that cannot be converted, the type is listed again.
func (w *watcher) take(e watch.Event, reached string) error {
	t := w.table
	if e.Type == watch.Error {
		return apierrors.FromObject(e.Object)
	}
	if e.Type != watch.Bookmark {
		taken, err := t.entry(e.Object)
		if err != nil {
			w.from = "" // the event must not be lost
			return err
		}
		var events []Event
		var changes []store.Change
		t.cluster.mu.Lock()
		switch {
		case e.Type == watch.Deleted || !t.takes(taken):
			events, changes = t.observeDeleted(taken)
		case !t.outdated(taken):
			events, changes = t.observe(taken)
		}
		t.cluster.mu.Unlock()
		t.publish(w.ctx, events, changes)
	}
	w.moved = true
	w.from = reached
	t.cluster.mu.Lock()
	t.version, t.seen = max(t.version, number(w.from)), time.Now()
	events, changes := t.sweep()
	t.cluster.mu.Unlock()
	t.publish(w.ctx, events, changes)
	w.catchUp()
	if !w.resuming && time.Since(w.savedAt) >= checkpointEvery {
		w.saveCheckpoint()
	}
	return nil
}

// catchUp marks the table as synced if the watch, which resumed from a checkpoint, has reached
// w.until, the version of the cluster at the start. Otherwise it does nothing.
func (w *watcher) catchUp() {
	t := w.table
	m := t.cluster.mirror
	if !w.resuming || w.until == 0 || number(w.from) < w.until {
		return
	}
	w.resuming = false
	resumes.WithLabelValues("resumed").Inc()
	t.cluster.mu.Lock()
	events := t.syncedNow()
	t.cluster.mu.Unlock()
	m.notify(events...)
	w.saveCheckpoint()
	m.fleet.Refresh(t.cluster.name)
}

// sameTimeline returns an Expired error if newest, the present resource version of a cluster, is
// lower than seen, a version that was seen of it. That happens after a restore from a backup. It
// returns nil if newest is not a number.
func sameTimeline(seen, newest string) error {
	if number(newest) != 0 && number(newest) < number(seen) {
		return apierrors.NewResourceExpired("the cluster was restored from a backup")
	}
	return nil
}

// expired reports whether err means that the cluster cannot continue a watch from a resource
// version: it no longer has that version, or has not reached it.
func expired(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) ||
		apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge)
}

// refused reports whether err means that the API server refuses the request: Forbidden, NotFound or
// MethodNotSupported.
func refused(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err)
}
