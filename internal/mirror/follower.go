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

// pageSize is how many objects are asked for at once.
const pageSize = 500

// Delays between attempts that fail. A server that comes back is asked within the shorter
// one; what a server refuses is asked for less and less. A server that says when to come again is
// believed up to a bound.
const (
	firstDelay    = 200 * time.Millisecond
	longestDelay  = 2 * time.Second
	refusedDelay  = 30 * time.Second
	obedientDelay = 2 * time.Minute
)

// A watch ends after a time between watchFor and twice that. One that goes on from a checkpoint
// ends soon, for before the end a server says how far it is; catchUpPatience is how much longer a server
// may take to end it.
const (
	watchFor        = 15 * time.Minute
	catchUpFor      = 4 * time.Second
	catchUpPatience = 6 * time.Second
)

// idlePages is how many pages in a row may bring no object that the list did not have before. An
// API server may send such pages, but one that sends so many announces a next page for ever.
const idlePages = 100

// mostListed is how many objects of a type a cluster may list. The database of etcd, of 8 GiB at
// most, holds fewer of the smallest objects; an API server that lists more invents them.
const mostListed = 5_000_000

// errEndlessList is the error of a list that does not end.
var errEndlessList = errors.New("the list does not end")

// watchFailures is how many times in a row a watch that does not come about is tried before the
// type is listed instead: at least every list is as new as can be.
const watchFailures = 10

// follower keeps a table as the cluster is: a list in pages, or what the store has of it with a
// checkpoint, then watches, each from where the last one ended.
type follower struct {
	table *table
	ctx   context.Context //nolint:containedctx // of the table's run
	api   reader
	slot  func() // gives back the place among the cluster's lists that it was started with; nil: it was

	recalling sync.WaitGroup

	from     string // the resource version that the watch goes on from; "": the type is to be listed
	identity string // of the cluster that it is of
	// sure: the cluster cannot have gone back in time since, for the last answer came right now.
	sure bool
	// resuming: the index is as stored. Nothing is synced before the watch has passed until, which
	// is what the cluster had reached when this process asked it.
	resuming  bool
	until     uint64
	moved     bool // the watch brought something in this attempt
	failures  int  // of watches, in a row
	vouchedAt time.Time
}

// reader asks a cluster for one type.
type reader interface {
	list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error)
	watch(ctx context.Context, o metav1.ListOptions) (events, error)
	// newest is the resource version that the type has reached.
	newest(ctx context.Context) (string, error)
}

func newFollower(ctx context.Context, t *table, listed func()) *follower {
	log := logr.FromContextOrDiscard(ctx).WithValues("resource", resourceOf(t.api).String())
	return &follower{table: t, ctx: logr.NewContext(ctx, log), api: t, slot: listed}
}

// run follows the cluster until the table is stopped. Whatever fails is tried again.
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
			if news && resourceOf(t.api) == quotas { // it may be known now that they are not to be read
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

// errInterrupted ends an attempt when the cluster ceases to be reachable, or the table is to be
// listed again. It says nothing about the type.
var errInterrupted = errors.New("interrupted")

// attempt lists the type if need be, and watches it once.
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

// recognise sees to it that nothing that was known of another cluster counts.
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

// read takes in everything that there is of the type, in its turn: from the store, or else from
// the cluster.
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
	if errors.Is(t.problem, errSlowList) { // of a list that was interrupted
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

// admit waits until the type may be listed: so many at once of a cluster, and of all. done gives
// the places back.
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

// list takes in a whole list, page by page. All pages are of the moment of the first one; a list
// that is interrupted, or whose moment is too long ago, is begun again. A list without end is an
// error.
func (f *follower) list(ctx context.Context) error {
	t := f.table
	m := t.cluster.mirror
	f.from, f.identity = "", t.cluster.identity()
	t.cluster.mu.Lock()
	generation, lost := m.generation.Load(), t.lost
	leftovers := t.takeStored()
	epoch := t.epoch
	t.cluster.mu.Unlock()
	// What is stored from here on may be of another past than the checkpoint.
	m.writer.withdraw(t.cluster.name, resourceOf(t.api))
	t.publish(f.ctx, nil, leftovers) //nolint:contextcheck // what was observed is handed over, whatever becomes of the attempt

	listed := map[key]bool{}
	version := ""
	idle, mostIdle := 0, idlePages+len(t.filter.asks()) // each namespace that is asked may be empty
	// No resource version: the newest, which no list that was seen before is ahead of.
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
	if !m.writer.gaveUp(t) && t.lost == lost { // else it is listed again
		t.handed, t.vouched = generation, epoch
	}
	t.cluster.mu.Unlock()
	f.from, f.sure = cmp.Or(version, "0"), true
	f.vouch()
	m.fleet.Refresh(t.cluster.name)
	return nil
}

// page takes in a page, perhaps the first, of a list of a version. It adds its objects to listed:
// true if they are mirrored.
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
	if !t.synced { // else what is known is current only when the list has ended
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

// watch follows the cluster from where the last list or watch ended, until this one ends.
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

// check refuses to go on in a cluster that is older than what was seen of it, such as one that was
// restored from a backup: the API server would keep silent until the resource versions have caught
// up. That is asked only where there was a break: a cluster does not go back in time while it
// answers. Where the versions have caught up, the API server has begun anew and says Expired.
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
		f.from = "" // nothing would ever say that the watch has caught up
	}
	f.catchUp()
	return nil
}

// open opens a watch and takes in what it brings until it ends.
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
	// A watch that ends at its time ends in good order. One that ends early was broken off.
	f.sure = time.Since(began) >= lasts-time.Second
	if f.resuming { // the server does not say how far it is
		f.from = ""
	}
	return nil
}

// receive takes in what a watch brings until it ends. The timer ends it while nothing is synced.
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

// take takes in an event of the watch, with which it has reached a resource version.
func (f *follower) take(e watch.Event, reached string) error {
	t := f.table
	if e.Type == watch.Error {
		return apierrors.FromObject(e.Object)
	}
	if e.Type != watch.Bookmark {
		taken, err := t.entry(e.Object)
		if err != nil {
			f.from = "" // it must not be missed
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

// catchUp takes note when a watch that goes on from a checkpoint has passed what the cluster had
// reached when this process asked it.
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

// sameTimeline says Expired of a resource version that the cluster has not reached yet.
func sameTimeline(seen, newest string) error {
	if number(newest) != 0 && number(newest) < number(seen) {
		return apierrors.NewResourceExpired("the cluster was restored from a backup")
	}
	return nil
}

// expired says whether the cluster cannot go on from a resource version: it has forgotten it, or
// has not reached it.
func expired(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) ||
		apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge)
}

// refused says whether the cluster does not want to answer, rather than cannot.
func refused(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err)
}
