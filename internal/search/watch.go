package search

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"reflect"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"

	"orrery.dev/orrery/internal/store"
)

// Durations of a watch.
const (
	// watchTime is the minimum duration of a watch for which the client gives no timeout. A random
	// duration of up to the same length is added.
	watchTime     = 30 * time.Minute
	bookmarkEvery = time.Minute
	// reviewEvery is the interval at which a watch reads the rights of its caller again (a review). A
	// signal of changed rights (Grants) causes further reviews.
	reviewEvery = 30 * time.Second
	// reviewUntold replaces reviewEvery if the hub has authorizers whose changes cause no signal.
	reviewUntold = 5 * time.Second
	// reviewAgain is the time from the review after a signal to a further review. By then, cached
	// answers from before the change have expired.
	reviewAgain = 6 * time.Second
	// versionPatience is how long a request waits until the store has reached the requested version.
	versionPatience = 3 * time.Second
)

var watches = promauto.NewGauge(prometheus.GaugeOpts{
	Name: "orrery_fleet_watches",
	Help: "Watches of the fleet that are open.",
})

// watch is a request for the changes of the objects that a view selects.
//
// It begins with a version: that of the client, from a list or an event, or that of the list with
// which the watch begins. Each later change in the journal of the store is an event, if the view
// includes the object before or after the change. Every object carries the version of its change as
// resourceVersion, so that a client can continue after any event. A client that is too slow, or
// begins with a version that is too old, gets an Expired error and lists again.
//
// A watch is used once, by the goroutine of its request.
type watch struct {
	search  *Search
	at      location
	params  params
	view    view
	encoder encoder
	version store.Version
	// newer has the objects that changed after version, before begin listed them: the version of the
	// state that begin sent, by object. Changes of the object up to that version are not sent again.
	newer map[key]store.Version
	// switched is not nil after a review that changed the view, until the changes that happened
	// during the review were sent.
	switched *switched
	// gone are objects for which an update was sent as a deletion. The view does not include their
	// new state, and the journal lacks the old state, so the watch assumed that the client had them.
	// It must assume that only once for an object.
	gone map[key]struct{}

	out   sender
	write func(kind apiwatch.EventType, object any) error
}

// sender is the connection to which a watch writes its events.
type sender interface {
	Flush() error
	SetWriteDeadline(deadline time.Time) error
}

// switched is a change of a client's rights during a watch, until the client has all its
// consequences. Until then the client has objects by the earlier view, was. So for the first change
// of an object, the earlier view says whether the client had it. For later changes, the present
// view does.
type switched struct {
	was     view
	until   store.Version    // the change is complete when events up to this version were sent
	present map[key]struct{} // objects for which the client already has the present view
}

// key identifies an object of one type in the fleet.
type key struct{ cluster, namespace, name string }

// keyOf returns the key of the object in a row.
func keyOf(r *store.Row) key { return key{r.Cluster, r.Namespace, r.Name} }

// IsWatch reports whether a request is a watch, whose answer is a stream of events. path is the
// path below the root of the fleet.
func IsWatch(r *http.Request, path string) bool {
	at, _ := locate(path)
	watching, _ := strconv.ParseBool(r.URL.Query().Get("watch"))
	return at.watch || watching && at.name == "" // API servers ignore the parameter for one object
}

// serveWatch answers a watch of one type, over HTTP or a WebSocket: with events until the client
// disconnects, the time is over or an error ends the watch. It returns an error only if nothing was
// written. Later errors are sent as events.
func (s *Search) serveWatch(w http.ResponseWriter, r *http.Request, at location, p params, accepts forms) error {
	if at.name != "" {
		return apierrors.NewBadRequest(fmt.Sprintf("one object is watched among all: watch %s with fieldSelector=metadata.name=%s", at.Resource, at.name))
	}
	if err := p.checkWatch(); err != nil {
		return err
	}
	ctx := r.Context()
	grants := s.Grants() // before the rights are read, so that no change of them is missed
	v, err := s.look(ctx, at, p, "watch")
	if err != nil {
		return err
	}
	as, err := s.choose(accepts, at.as(v.kind), func(f form) bool { return f.wire.streamType() != "" && f.can(at.as(v.kind)) })
	if err != nil {
		return err
	}
	// A watch does not show how long ago a cluster was last seen: that changes without an event.
	enc, err := s.encoder(ctx, as, at, v.kind, p.include, shown{names: at.names})
	if err != nil {
		return err
	}
	enc.tag = v.seen.tag
	f := &watch{search: s, at: at, params: p, view: v, encoder: enc, newer: map[key]store.Version{}, gone: map[key]struct{}{}}
	initial := p.beginsWithAll()
	if f.version, err = s.resumed(ctx, at, p, v); err != nil {
		return err
	}
	if initial || f.version == 0 {
		if f.version, err = s.now(ctx); err != nil {
			return err
		}
	} else if _, _, _, err := s.Store.Since(at.GroupResource(), f.version); err != nil {
		return expired()
	}
	s.warn(w, at, v.kind, v.seen)
	warnOfLoss(w, at, as)
	w.Header().Set("Content-Type", as.wire.streamType())
	w.Header().Set("Cache-Control", "no-cache, private")
	if isWebSocket(r) {
		f.overWebSocket(ctx, w, r, as.wire, func(ctx context.Context) { f.run(ctx, initial, grants) })
		return nil
	}
	w.WriteHeader(http.StatusOK)
	f.out, f.write = http.NewResponseController(w), as.wire.events(w)
	f.run(ctx, initial, grants)
	return nil
}

// run sends the existing objects if initial is true, and then changes. It returns when the client
// disconnects, the time of the watch is over, or after an error, which it sends to the client.
// grants is the result of Grants before the rights were read.
func (f *watch) run(ctx context.Context, initial bool, grants <-chan struct{}) {
	watches.Inc()
	defer watches.Dec()
	ends := time.NewTimer(watchTime + rand.N(watchTime)) //nolint:gosec // so that not all come back at once
	if f.params.timeout > 0 {
		ends.Reset(f.params.timeout)
	}
	defer ends.Stop()
	err := f.flush()
	if err == nil && initial {
		err = f.begin(ctx)
	}
	if err == nil {
		err = f.follow(ctx, ends.C, grants)
	}
	f.fail(ctx, err)
}

// fail sends the error that ended a watch to the client. It sends nothing if err is nil, the client
// has disconnected, or the error has no Status. It sends nothing for a lossError either, but
// records it by learn: the client continues, and gets another encoding.
func (f *watch) fail(ctx context.Context, err error) {
	if f.search.learn(f.encoder, err) {
		return // the client continues after its last event, and gets another encoding
	}
	var known apierrors.APIStatus
	if err == nil || ctx.Err() != nil || !errors.As(err, &known) {
		return
	}
	f.patient()
	status := known.Status()
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	if f.write(apiwatch.Error, status) == nil {
		_ = f.flush() // an error means that the client is gone
	}
}

// flush sends the written events to the client and removes the deadline for writes. Otherwise a
// deadline that passes while there is nothing to write would end a stream of HTTP/2.
func (f *watch) flush() error {
	err := f.out.Flush()
	_ = f.out.SetWriteDeadline(time.Time{}) // an error means that there are no deadlines, as in tests
	return err
}

// patient sets the deadline by which the client must have read the next events.
func (f *watch) patient() {
	// An error is ignored: only writers in tests have no deadlines.
	_ = f.out.SetWriteDeadline(time.Now().Add(f.search.slowest))
}

// begin sends all existing objects. If the client asked for it (sendInitialEvents with bookmarks),
// a bookmark says that these were all. Objects that are newer than f.version are recorded in
// f.newer.
func (f *watch) begin(ctx context.Context) error {
	if err := f.each(ctx, f.view, func(row *store.Row) error {
		if row.Changed > f.version {
			f.newer[keyOf(row)] = row.Changed
		}
		return f.event(ctx, apiwatch.Added, row)
	}); err != nil {
		return err
	}
	if f.params.initial && f.params.bookmarks {
		return f.bookmark(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	}
	return f.flush()
}

// each calls do for every object that the view v includes now, until do fails. After each page, the
// events that do has written are sent.
func (f *watch) each(ctx context.Context, v view, do func(row *store.Row) error) error {
	pages := pager{search: f.search, query: v.query, keep: v.keep}
	for {
		page, err := pages.next(ctx)
		if err != nil || len(page.Rows) == 0 {
			return err
		}
		f.patient()
		for i := range page.Rows {
			if err := do(&page.Rows[i]); err != nil {
				return err
			}
		}
		if err := f.flush(); err != nil {
			return err
		}
	}
}

// follow sends changes and bookmarks, and reviews the rights at intervals and after signals. It
// returns nil when ctx is done or ends fires, and else the error that ends the watch. It moves
// f.version to the version up to which changes were sent.
func (f *watch) follow(ctx context.Context, ends <-chan time.Time, grants <-chan struct{}) error {
	bookmarks, reviews := time.NewTicker(bookmarkEvery), time.NewTimer(f.search.reviewPause())
	defer bookmarks.Stop()
	defer reviews.Stop()
	for {
		events, now, more, err := f.search.Store.Since(f.at.GroupResource(), f.version)
		if err != nil {
			return expired()
		}
		if len(events) > 0 {
			f.patient()
		}
		for _, e := range events {
			if err := f.tell(ctx, e); err != nil {
				return err
			}
		}
		if len(events) > 0 {
			if err := f.flush(); err != nil {
				return err
			}
		}
		f.version = now
		if f.switched != nil && f.version >= f.switched.until {
			f.switched = nil
			f.encoder.tag = f.view.seen.tag // the client has what the view shows
			if err := f.mark(); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ends:
			return f.mark()
		case <-bookmarks.C:
			if err := f.mark(); err != nil {
				return err
			}
		case <-more:
		case <-reviews.C:
			reviews.Reset(f.search.reviewPause())
			if err := f.review(ctx); err != nil {
				return err
			}
		case <-grants:
			grants = f.search.Grants()
			reviews.Reset(min(reviewAgain, f.search.reviewPause()))
			if err := f.review(ctx); err != nil {
				return err
			}
		}
	}
}

// tell sends the event for a change in the journal, if the view includes the object before or after
// the change. It returns an Expired error for a visible change that may be older than the hub's
// namespace of the object: the client must list again.
func (f *watch) tell(ctx context.Context, e *store.Event) error {
	row := e.After
	if row == nil {
		row = e.Before
	}
	if version, ok := f.newer[keyOf(row)]; ok {
		if e.Version <= version {
			return nil
		}
		delete(f.newer, keyOf(row))
	}
	before, err := f.had(ctx, keyOf(row), e.Before)
	if err != nil {
		return err
	}
	after, err := f.view.shows(ctx, e.After)
	if err != nil {
		return err
	}
	if _, gone := f.gone[keyOf(row)]; gone {
		before = false // the client has got the deletion already
	} else if before && !after && e.After != nil && e.Before.Body == nil {
		f.gone[keyOf(row)] = struct{}{}
	}
	if after || e.After == nil {
		delete(f.gone, keyOf(row))
	}
	if (before || after) && f.search.precedes(f.view.seen, f.at.GroupResource(), e, row) {
		// The change may be older than the hub's namespace. The client must list again.
		return expired()
	}
	switch {
	case before && after:
		return f.event(ctx, apiwatch.Modified, e.After)
	case after:
		return f.event(ctx, apiwatch.Added, e.After)
	case before:
		return f.event(ctx, apiwatch.Deleted, e.Before)
	default:
		return nil
	}
}

// had reports whether the client had the object k before a change. row is the state before the
// change; nil: the object did not exist. After a change of rights (f.switched), the first call for
// an object looks in the earlier view, and records the object as looked up.
func (f *watch) had(ctx context.Context, k key, row *store.Row) (bool, error) {
	if f.switched == nil {
		return f.view.shows(ctx, row)
	}
	if _, present := f.switched.present[k]; present {
		return f.view.shows(ctx, row)
	}
	f.switched.present[k] = struct{}{}
	return f.switched.was.shows(ctx, row)
}

// review reads again what the client may see. Objects that are no longer visible are sent as
// deleted, and those that have become visible as added. If the rights cannot be read, nothing
// changes and the result is nil. If the client may not watch any more, all objects are sent as
// deleted, and the result is the refusal.
func (f *watch) review(ctx context.Context) error {
	v, err := f.search.look(ctx, f.at, f.params, "watch")
	refused := apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || apierrors.IsBadRequest(err)
	switch {
	case refused: // the new view includes nothing
		v = view{query: f.view.query, kind: f.view.kind}
		v.query.Clusters = []string{}
	case err != nil:
		logr.FromContextOrDiscard(ctx).V(1).Info("rights of a watch are not known; they are asked again", "resource", f.at.Resource, "error", err.Error())
		return nil
	}
	if reflect.DeepEqual(v.query, f.view.query) {
		f.view = v
		if f.switched != nil || f.encoder.tag == v.seen.tag {
			return nil
		}
		f.encoder.tag = v.seen.tag
		return f.mark()
	}
	was := f.view
	f.encoder.tag = f.search.unsettled() // a client that disconnects now must list again
	f.view, f.switched = v, &switched{was: was, present: map[key]struct{}{}}
	for _, side := range []struct {
		from, without view
		kind          apiwatch.EventType
	}{{was, v, apiwatch.Deleted}, {v, was, apiwatch.Added}} {
		if err := f.each(ctx, side.from, func(row *store.Row) error {
			// Objects that changed later are left to the events of the journal.
			if known, err := side.without.shows(ctx, row); known || err != nil || row.Changed > f.version {
				return err
			}
			f.switched.present[keyOf(row)] = struct{}{}
			sent := *row
			sent.Changed = f.version // the object changes at this version only for this client
			return f.event(ctx, side.kind, &sent)
		}); err != nil {
			return err
		}
	}
	if refused {
		return errors.Join(f.last(ctx), err)
	}
	f.switched.until, err = f.search.now(ctx)
	return err
}

// last sends the changes since f.version to a client that may not watch any more. The view is empty
// then, so objects that changed and that the client still has are sent as deleted.
func (f *watch) last(ctx context.Context) error {
	events, _, _, err := f.search.Store.Since(f.at.GroupResource(), f.version)
	if err != nil {
		return expired()
	}
	for _, e := range events {
		if err := f.tell(ctx, e); err != nil {
			return err
		}
	}
	return f.flush()
}

// event sends an event with the object of a row. An object that cannot be encoded is logged and
// left out, as in lists. Then an event other than Added becomes a deletion, because the client may
// have an older state.
func (f *watch) event(ctx context.Context, kind apiwatch.EventType, row *store.Row) error {
	err := f.send(kind, row)
	if _, wrong := errors.AsType[encodingError](err); !wrong {
		return err
	}
	logr.FromContextOrDiscard(ctx).Error(about(*row, err), "an object is left out of a watch")
	if kind == apiwatch.Added {
		return nil
	}
	bare := *row
	bare.Body = nil
	return f.send(apiwatch.Deleted, &bare)
}

// send sends one event. It returns an encodingError if the object cannot be encoded, else a
// lossError or the error of the connection. For a row without a body, the object has only its
// names, UID and labels.
func (f *watch) send(kind apiwatch.EventType, row *store.Row) error {
	r := *row
	if r.Body == nil { // the journal has only key, UID and labels of the object
		body, err := bare(row)
		if err != nil {
			return err
		}
		r.Body, r.Version, r.Kind = body, f.at.Version, f.view.kind.GroupVersionKind.Kind
	}
	item, err := f.search.watchItem(f.encoder, r)
	if err != nil {
		return encodingError{err}
	}
	return f.write(kind, item)
}

// bare returns the JSON of an object if only its names, UID and labels are known.
func bare(r *store.Row) ([]byte, error) {
	metadata := map[string]any{"name": r.Name, "uid": r.UID}
	if r.Namespace != "" {
		metadata["namespace"] = r.Namespace
	}
	if len(r.Labels) > 0 {
		metadata["labels"] = r.Labels
	}
	return json.Marshal(map[string]any{"metadata": metadata})
}

// mark sends a bookmark, which is an event with f.version and no object, if the client wants
// bookmarks.
func (f *watch) mark() error {
	if !f.params.bookmarks {
		return nil
	}
	f.patient()
	return f.bookmark(nil)
}

// bookmark sends a bookmark with f.version and the annotations, which may be nil, and flushes.
func (f *watch) bookmark(annotations map[string]string) error {
	metadata := map[string]any{"resourceVersion": f.version.Tagged(f.encoder.tag).String()}
	if annotations != nil {
		metadata["annotations"] = annotations
	}
	object := maps.Clone(f.encoder.kind)
	object["metadata"] = metadata
	if err := f.write(apiwatch.Bookmark, object); err != nil {
		return err
	}
	return f.flush()
}

// now returns the current version of the store. If the store cannot be read, the error is that of
// unavailable (503).
func (s *Search) now(ctx context.Context) (store.Version, error) {
	v, err := s.Store.Version(ctx)
	if err != nil {
		return 0, unavailable()
	}
	return v, nil
}

// asked returns the version that a request asks for (resourceVersion); 0: any. tag is the tag of
// the caller's rights, which the version must have. A version with another tag, of another database
// or of another API is an Expired error. asked waits up to versionPatience until the store has
// reached the version. After that it returns the error of tooLarge.
func (s *Search) asked(ctx context.Context, p params, tag int64) (store.Version, error) {
	if p.version == "" || p.version == "0" {
		return 0, nil
	}
	asked, err := store.ParseVersion(p.version)
	if err != nil {
		return 0, expired() // the version of an object in a cluster, or of another API
	}
	asked = asked.Untagged(tag)
	patience := time.NewTimer(versionPatience)
	defer patience.Stop()
	for {
		now, err := s.now(ctx)
		switch {
		case err != nil:
			return 0, err
		case now.At(0) != asked.At(0):
			return 0, expired()
		case asked <= now:
			return asked, nil
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-patience.C:
			return 0, tooLarge(asked, now)
		case <-time.After(versionPatience / 30):
		}
	}
}
