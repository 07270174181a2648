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

// pageSize is the number of objects in a page of a list.
const pageSize = 500

// Delays after failed attempts. They grow up to longestDelay, or to refusedDelay if the server
// refuses the request. A delay that the server requests is added, up to obedientDelay.
const (
	firstDelay    = 200 * time.Millisecond
	longestDelay  = 2 * time.Second
	refusedDelay  = 30 * time.Second
	obedientDelay = 2 * time.Minute
)

// A watch ends after a time between watchFor and twice that. A watch that resumes from a
// checkpoint ends after catchUpFor, because servers report their progress before the end.
// catchUpPatience is how much longer a server may take to end it.
const (
	watchFor        = 15 * time.Minute
	catchUpFor      = 4 * time.Second
	catchUpPatience = 6 * time.Second
)

// idlePages is the number of successive pages that may have no new object. An API server may send
// such pages, but one that sends this many announces next pages forever.
const idlePages = 100

// mostListed is the maximum number of objects of a type in a cluster. The database of etcd, of 8
// GiB at most, holds fewer of the smallest objects. An API server that lists more invents them.
const mostListed = 5_000_000

// errEndlessList means that a list does not end.
var errEndlessList = errors.New("the list does not end")

// watchFailures is the number of failures in a row to open a watch, after which the type is
// listed instead. Every list at least brings the newest state.
const watchFailures = 10

// follower keeps a table equal to the cluster. It begins with a list in pages, or with the stored
// objects and a checkpoint. Then follow watches, each from the end of the last one.
type follower struct {
	table *table
	ctx   context.Context //nolint:containedctx // of the table's run
	api   reader
	// Frees the list slot of the cluster that the start occupied. nil: it is free already.
	slot func()

	recalling sync.WaitGroup

	from     string // resource version from which the watch continues; "": the type must be listed
	identity string // of the cluster that from belongs to
	// sure means that the cluster cannot have gone back in time, because it has just answered.
	sure bool
	// resuming means that the index has the stored state. The table is synced only after the
	// watch has passed until, the version that the cluster had when this process asked for it.
	resuming  bool
	until     uint64
	moved     bool // the watch delivered an event in this attempt
	failures  int  // of watches, in a row
	vouchedAt time.Time
}

// reader sends requests for one type to a cluster.
type reader interface {
	list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error)
	watch(ctx context.Context, o metav1.ListOptions) (events, error)
	// newest returns the latest resource version of the type.
	newest(ctx context.Context) (string, error)
}

func newFollower(ctx context.Context, t *table, listed func()) *follower {
	log := logr.FromContextOrDiscard(ctx).WithValues("resource", resourceOf(t.api).String())
	return &follower{table: t, ctx: logr.NewContext(ctx, log), api: t, slot: listed}
}

// run keeps the table up to date until it is stopped. It retries after every failure.
func (f *follower) run() {
	t := f.table
	defer f.recalling.Wait()
	defer func() {
		if f.slot != nil {
			f.slot()
		}
	}()
	delay := firstDelay
	for f.ctx.Err() == nil {
		f.moved = false
		err := f.attempt()
		if !errors.Is(err, errInterrupted) {
			t.cluster.mu.Lock()
			news := !t.synced && (err == nil) != (t.problem == nil)
			t.attempted(err, 0)
			// A failure can mean that quotas may not be read, which makes capacity known.
			if news && resourceOf(t.api) == quotas {
				t.cluster.measured()
			}
			t.cluster.mu.Unlock()
			if news {
				t.turned(err)
			}
		}
		if err != nil {
			logr.FromContextOrDiscard(f.ctx).V(1).Info("type is not followed at present, and is tried again", "error", err.Error())
		}
		if f.moved || errors.Is(err, errInterrupted) {
			delay = firstDelay
		}
		pause := delay + rand.N(delay)/2 //nolint:gosec // spreads load, guards nothing
		if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
			pause += min(time.Duration(seconds)*time.Second, obedientDelay)
		}
		select {
		case <-time.After(pause):
		case <-f.ctx.Done():
		}
		longest := longestDelay
		if refused(err) || errors.Is(err, errEndlessList) {
			longest = refusedDelay
		}
		delay = min(2*delay, longest)
	}
}

// errInterrupted ends an attempt when the cluster becomes unreachable, or the table must be
// listed again. It means nothing about the type.
var errInterrupted = errors.New("interrupted")

// attempt lists the type if necessary, and watches it once.
func (f *follower) attempt() error {
	t := f.table
	ctx, end, err := t.cluster.gate.pass(f.ctx)
	if err != nil {
		return errInterrupted
	}
	defer end()
	ctx, interrupt := context.WithCancel(ctx)
	defer interrupt()
	t.cluster.mu.Lock()
	t.interrupt = interrupt
	if t.stale {
		t.stale, f.from = false, ""
	}
	t.cluster.mu.Unlock()
	f.recognise()
	if f.from == "" {
		err = f.read(ctx)
	}
	if err == nil {
		err = f.watch(ctx)
	}
	if ctx.Err() != nil {
		f.sure = false
		return errInterrupted
	}
	return err
}

// recognise drops all known versions if the cluster is now another one.
func (f *follower) recognise() {
	t := f.table
	identity := t.cluster.identity()
	if f.identity != "" && identity != "" && f.identity != identity {
		t.cluster.mu.Lock()
		t.forgetPast()
		t.synced = false
		t.cluster.mu.Unlock()
		f.from = ""
	}
}

// read brings the table up to date, from the store with a checkpoint or else with a list. It
// waits for a free list slot.
func (f *follower) read(ctx context.Context) (err error) {
	t := f.table
	m := t.cluster.mirror
	done, err := f.admit(ctx)
	if err != nil {
		return err
	}
	defer done()
	ended := t.superviseList()
	defer func() { ended(err) }()
	t.cluster.mu.Lock()
	f.resuming, f.until, f.failures = false, 0, 0
	if errors.Is(t.problem, errSlowList) { // the problem of a list that was interrupted
		t.problem = nil
	}
	if m.writer.pardon(t) {
		t.forgetStored()
	}
	t.cluster.mu.Unlock()
	t.recall(f.ctx, &f.recalling) //nolint:contextcheck // it outlives the attempt
	if f.resume() {
		return nil
	}
	err = f.list(ctx)
	outcome := "listed"
	if err != nil {
		outcome = "failed"
	}
	if ctx.Err() == nil {
		lists.WithLabelValues(outcome).Inc()
	}
	return err
}

// admit waits for a free list slot of the cluster and one of the whole mirror. done frees both.
func (f *follower) admit(ctx context.Context) (done func(), err error) {
	t := f.table
	slot := f.slot
	if f.slot = nil; slot == nil {
		select {
		case t.cluster.slots <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		slot = func() { <-t.cluster.slots }
	}
	leave, ok := t.cluster.mirror.turn(ctx)
	if !ok {
		slot()
		return nil, ctx.Err()
	}
	return func() { leave(); slot() }, nil
}

// list reads a complete list, page by page. All pages show the state at the first page. If a page
// fails, for example because that state is too old, the next attempt begins again. A list without
// end returns errEndlessList.
func (f *follower) list(ctx context.Context) error {
	t := f.table
	m := t.cluster.mirror
	f.from, f.identity = "", t.cluster.identity()
	t.cluster.mu.Lock()
	generation, lost := m.generation.Load(), t.lost
	leftovers := t.takeStored()
	epoch := t.epoch
	t.cluster.mu.Unlock()
	// Changes from here on may not follow the state of the checkpoint.
	m.writer.withdraw(t.cluster.name, resourceOf(t.api))
	t.publish(f.ctx, nil, leftovers) //nolint:contextcheck // what was observed is handed over, whatever becomes of the attempt

	listed := map[key]bool{}
	version := ""
	// Each namespace that the filter asks for may have an empty page.
	idle, mostIdle := 0, idlePages+len(t.filter.asks())
	// Without a resource version, the list has the newest state, which is at least as new as any
	// earlier list.
	for o := (metav1.ListOptions{Limit: pageSize}); ; {
		page, err := f.api.list(ctx, o)
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
		if err := f.page(page, number(version), listed, o.Continue == ""); err != nil {
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
	t.publish(f.ctx, events, changes) //nolint:contextcheck // as above
	t.cluster.mu.Lock()
	if !m.writer.gaveUp(t) && t.lost == lost { // otherwise the type is listed again
		t.handed, t.vouched = generation, epoch
	}
	t.cluster.mu.Unlock()
	f.from, f.sure = cmp.Or(version, "0"), true
	f.vouch()
	m.fleet.Refresh(t.cluster.name)
	return nil
}

// page applies a page of a list of a version. first means the first page. The keys of its objects
// are added to listed; the value is whether the object is mirrored.
func (f *follower) page(page runtime.Object, version uint64, listed map[key]bool, first bool) error {
	t := f.table
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
	t.publish(f.ctx, events, changes)
	return nil
}

// watch watches the cluster from the end of the last list or watch until the new watch ends.
func (f *follower) watch(ctx context.Context) error {
	err := f.check(ctx)
	if err == nil && f.from != "" {
		err = f.open(ctx)
	}
	switch {
	case f.moved:
		f.failures = 0
	case err != nil && ctx.Err() == nil:
		f.failures++
	}
	switch {
	case err == nil, ctx.Err() != nil:
	case expired(err):
		f.from, err = "", nil
	case refused(err), f.failures >= watchFailures:
		f.from, f.failures = "", 0
	}
	if f.from == "" && f.resuming {
		resumes.WithLabelValues("listed").Inc()
	}
	return err
}

// check returns Expired if the cluster is older than the versions that were seen of it, such as a
// cluster that was restored from a backup. Its API server would send no events until the resource
// versions have caught up. check asks only after an interruption, because a cluster does not go
// back in time while it answers. Where the versions have caught up, the restarted API server
// itself returns Expired.
func (f *follower) check(ctx context.Context) error {
	if f.sure {
		return nil
	}
	newest, err := f.api.newest(ctx)
	if err != nil {
		return err
	}
	if err := sameTimeline(f.from, newest); err != nil {
		return err
	}
	f.sure, f.until = true, number(newest)
	if f.resuming && f.until == 0 {
		f.from = "" // without a version, the end of catching up cannot be recognized
	}
	f.catchUp()
	return nil
}

// open opens a watch and applies its events until it ends.
func (f *follower) open(ctx context.Context) error {
	ctx, enough := context.WithCancel(ctx)
	defer enough()
	lasts := watchFor + rand.N(watchFor) //nolint:gosec // spreads load, guards nothing
	var patience *time.Timer
	if f.resuming {
		lasts, patience = catchUpFor, time.AfterFunc(catchUpFor+catchUpPatience, enough)
		defer patience.Stop()
	}
	began := time.Now()
	w, err := f.api.watch(ctx, metav1.ListOptions{
		ResourceVersion: f.from, AllowWatchBookmarks: true, TimeoutSeconds: new(int64(lasts.Seconds())),
	})
	f.sure = false
	if err != nil {
		return err
	}
	defer w.close()
	t := f.table
	t.follows(true)
	defer t.follows(false)
	if err := f.receive(w, patience); err != nil && (ctx.Err() == nil || !f.resuming) {
		return err
	}
	// A watch that lasted its full time ended regularly. A shorter one was interrupted.
	f.sure = time.Since(began) >= lasts-time.Second
	if f.resuming { // the server does not report its progress
		f.from = ""
	}
	return nil
}

// receive applies the events of a watch until it ends. It stops the timer, which ends the watch,
// once the table is synced.
func (f *follower) receive(w events, patience *time.Timer) error {
	for {
		e, err := w.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = f.take(e, w.reached())
		}
		if err != nil {
			return err
		}
		if patience != nil && !f.resuming {
			patience.Stop()
		}
	}
}

// take applies an event of the watch. reached is the resource version of the watch after it.
func (f *follower) take(e watch.Event, reached string) error {
	t := f.table
	if e.Type == watch.Error {
		return apierrors.FromObject(e.Object)
	}
	if e.Type != watch.Bookmark {
		taken, err := t.entry(e.Object)
		if err != nil {
			f.from = "" // the event must not be lost
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
		t.publish(f.ctx, events, changes)
	}
	f.moved = true
	f.from = reached
	t.cluster.mu.Lock()
	t.version, t.seen = max(t.version, number(f.from)), time.Now()
	events, changes := t.sweep()
	t.cluster.mu.Unlock()
	t.publish(f.ctx, events, changes)
	f.catchUp()
	if !f.resuming && time.Since(f.vouchedAt) >= vouchEvery {
		f.vouch()
	}
	return nil
}

// catchUp marks the table as synced when a watch that resumed from a checkpoint has passed until.
func (f *follower) catchUp() {
	t := f.table
	m := t.cluster.mirror
	if !f.resuming || f.until == 0 || number(f.from) < f.until {
		return
	}
	f.resuming = false
	resumes.WithLabelValues("resumed").Inc()
	t.cluster.mu.Lock()
	events := t.syncedNow()
	t.cluster.mu.Unlock()
	m.notify(events...)
	f.vouch()
	m.fleet.Refresh(t.cluster.name)
}

// sameTimeline returns an Expired error if the cluster has not reached the version seen yet.
func sameTimeline(seen, newest string) error {
	if number(newest) != 0 && number(newest) < number(seen) {
		return apierrors.NewResourceExpired("the cluster was restored from a backup")
	}
	return nil
}

// expired reports whether the cluster cannot continue from a resource version, because it has
// dropped that version or has not reached it.
func expired(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) ||
		apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge)
}

// refused reports whether the cluster refuses the request, rather than fails to answer it.
func refused(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err)
}
