package hub

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/watchlist"
)

// NewInformer returns an informer that gets the present objects at once after the API server was
// restarted.
//
// A restarted API server does not know earlier versions, so every watch must be replaced by a list.
// client-go's reflector waits before that list, twice as long each time, up to a minute if an API
// server is restarted repeatedly. The ListerWatcher of this informer instead lists within the
// watch, and sends the changes to the reflector as events.
func NewInformer(lw cache.ListerWatcher, example runtime.Object, resync time.Duration, indexers cache.Indexers) cache.SharedIndexInformer {
	r := &relister{lw: cache.ToListerWatcherWithContext(lw), example: example, versions: map[string]string{}}
	r.listOnly = watchlist.DoesClientNotSupportWatchListSemantics(lw)
	informer := cache.NewSharedIndexInformer(r, example, resync, indexers)
	r.known = informer.GetIndexer()
	return informer
}

// relister is the ListerWatcher of an informer that NewInformer returns. Its watches continue
// across restarts of the API server.
type relister struct {
	lw       cache.ListerWatcherWithContext
	example  runtime.Object
	known    cache.Store
	listOnly bool

	mu       sync.Mutex
	versions map[string]string // by namespace/name, of the objects that the reflector has received
}

// IsWatchListSemanticsUnSupported reports whether the ListerWatcher that was given to NewInformer
// lacks support for watch lists. client-go calls it.
func (r *relister) IsWatchListSemanticsUnSupported() bool { return r.listOnly }

// List implements cache.ListerWatcher.
func (r *relister) List(o metav1.ListOptions) (runtime.Object, error) {
	return r.ListWithContext(context.Background(), o)
}

// Watch implements cache.ListerWatcher.
func (r *relister) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return r.WatchWithContext(context.Background(), o)
}

// ListWithContext implements cache.ListerWatcherWithContext. It records the versions of the objects
// in the list, for changes.
func (r *relister) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	list, err := r.lw.ListWithContext(ctx, o)
	if err != nil {
		return nil, err //nolint:wrapcheck // the reflector examines the error
	}
	if o.Continue == "" {
		r.forget()
	}
	err = meta.EachListItem(list, func(item runtime.Object) error {
		m, err := meta.Accessor(item)
		if err == nil {
			r.note(watch.Added, cache.MetaObjectToName(m).String(), m.GetResourceVersion())
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read list: %w", err)
	}
	return list, nil
}

// WatchWithContext implements cache.ListerWatcherWithContext. The returned watch is a stream, which
// continues when a watch of the API server ends. If the API server no longer knows the requested
// version, there is no error: the stream first lists the objects and sends the changes.
func (r *relister) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	initial := o.SendInitialEvents != nil && *o.SendInitialEvents
	w, err := r.lw.WatchWithContext(ctx, o)
	expired := isExpired(err) && !initial
	if err != nil && !expired {
		return nil, err //nolint:wrapcheck // the reflector examines the error
	}
	if initial {
		r.forget()
	}
	ctx, stop := context.WithCancel(ctx)
	s := &stream{relister: r, options: o, events: make(chan watch.Event), stop: stop, initial: initial, expired: expired}
	s.options.SendInitialEvents, s.options.ResourceVersionMatch = nil, ""
	go s.run(ctx, w)
	return s, nil
}

// forget drops all recorded versions of objects, because the reflector starts with a new list.
func (r *relister) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.versions = map[string]string{}
}

// note records the version of an object in an event that the reflector receives. key is its
// namespace/name. A deleted object is removed from the record.
func (r *relister) note(t watch.EventType, key, version string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch t {
	case watch.Added, watch.Modified:
		r.versions[key] = version
	case watch.Deleted:
		delete(r.versions, key)
	case watch.Bookmark, watch.Error:
	}
}

// changes lists the objects, and returns the events that lead from what the reflector has received
// to that list. The last event is a bookmark with the version of the list. changes records nothing;
// stream.send records each event that was sent.
func (r *relister) changes(ctx context.Context) ([]watch.Event, error) {
	list, err := r.lw.ListWithContext(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err //nolint:wrapcheck // the reflector examines the error
	}
	listed, err := meta.ListAccessor(list)
	if err != nil {
		return nil, fmt.Errorf("read list: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var events []watch.Event
	present := map[string]bool{}
	err = meta.EachListItem(list, func(item runtime.Object) error {
		m, err := meta.Accessor(item)
		if err != nil {
			return fmt.Errorf("read item: %w", err)
		}
		key := cache.MetaObjectToName(m).String()
		present[key] = true
		switch version, seen := r.versions[key]; {
		case !seen:
			events = append(events, watch.Event{Type: watch.Added, Object: item})
		case version != m.GetResourceVersion():
			events = append(events, watch.Event{Type: watch.Modified, Object: item})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for key := range r.versions {
		if !present[key] {
			events = append(events, watch.Event{Type: watch.Deleted, Object: r.last(key, listed.GetResourceVersion())})
		}
	}
	bookmark := r.blank()
	if m, err := meta.Accessor(bookmark); err == nil {
		m.SetResourceVersion(listed.GetResourceVersion())
	}
	return append(events, watch.Event{Type: watch.Bookmark, Object: bookmark}), nil
}

// blank returns an empty object of the type that the informer watches.
func (r *relister) blank() runtime.Object { return r.example.DeepCopyObject() }

// last returns the object for the event of a deletion that was found by a list. key is the object's
// namespace/name, and version is that of the list. The result is the last known state with this
// version. If no state is known, it has only the version, the namespace and the name.
func (r *relister) last(key, version string) runtime.Object {
	o := r.blank()
	if item, ok, err := r.known.GetByKey(key); ok && err == nil {
		if known, is := item.(runtime.Object); is {
			o = known.DeepCopyObject()
		}
	}
	if m, err := meta.Accessor(o); err == nil {
		if namespace, name, err := cache.SplitMetaNamespaceKey(key); err == nil {
			m.SetNamespace(namespace)
			m.SetName(name)
		}
		m.SetResourceVersion(version)
	}
	return o
}

// isExpired reports whether err means that the API server does not know the version at which a
// watch should continue. It is false for nil.
func isExpired(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }

// stream is a watch.Interface that continues when a watch of the API server ends. It closes its
// channel after Stop, after an error, which it sends as the last event, or if a watch ends before
// it has sent the whole initial list.
type stream struct {
	relister *relister
	options  metav1.ListOptions
	events   chan watch.Event
	stop     context.CancelFunc
	initial  bool // the events of the initial list are not complete yet
	expired  bool // the API server does not know the version any more
}

// Stop implements watch.Interface.
func (s *stream) Stop() { s.stop() }

// ResultChan implements watch.Interface.
func (s *stream) ResultChan() <-chan watch.Event { return s.events }

// A watch that ends within shortWatch is followed by a pause of shortPause. This limits the rate of
// requests to an API server that ends each watch at once.
const (
	shortWatch = time.Second
	shortPause = 200 * time.Millisecond
)

// run sends the events of w, and of the watches that follow w, until the stream ends. w is nil if
// the API server does not know the version at which the watch should begin. WatchWithContext starts
// run as a goroutine.
func (s *stream) run(ctx context.Context, w watch.Interface) {
	defer close(s.events)
	defer s.stop()
	for {
		began := time.Now()
		if err := s.follow(ctx, w); err != nil {
			if !errors.Is(err, context.Canceled) {
				s.fail(ctx, err)
			}
			return
		}
		if s.initial {
			return // the list is incomplete: the reflector starts again
		}
		if time.Since(began) < shortWatch {
			select {
			case <-ctx.Done():
				return
			case <-time.After(shortPause):
			}
		}
		if s.expired {
			continue
		}
		var err error
		if w, err = s.watch(ctx); err != nil {
			s.fail(ctx, err)
			return
		}
	}
}

// watch starts a watch at the version of the last event. If the API server does not know that
// version any more, watch returns nil without an error, and sets s.expired.
func (s *stream) watch(ctx context.Context) (watch.Interface, error) {
	w, err := s.relister.lw.WatchWithContext(ctx, s.options)
	if s.expired = isExpired(err); s.expired {
		return nil, nil //nolint:nilnil // s.expired reports why
	}
	return w, err //nolint:wrapcheck // the reflector examines the error
}

// follow sends the events of the watch w until w ends, and stops w. If s.expired is true, it
// ignores w: it sends the changes since the last event, and starts a watch itself. nil means that
// the stream can continue with another watch, because the connection broke or the version has
// expired. In the second case it sets s.expired.
func (s *stream) follow(ctx context.Context, w watch.Interface) error {
	if s.expired {
		s.expired = false
		events, err := s.relister.changes(ctx)
		if err != nil {
			return err
		}
		for _, e := range events {
			if err := s.send(ctx, e); err != nil {
				return err
			}
		}
		if w, err = s.watch(ctx); err != nil || w == nil {
			return err
		}
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e, open := <-w.ResultChan():
			if !open {
				return nil
			}
			if e.Type == watch.Error {
				err := apierrors.FromObject(e.Object)
				s.expired = isExpired(err)
				if (s.expired || apierrors.IsInternalError(err)) && !s.initial {
					return nil // client-go reports a broken connection as an internal error
				}
				return err //nolint:wrapcheck // the reflector examines the error
			}
			if err := s.send(ctx, e); err != nil {
				return err
			}
		}
	}
}

// send sends an event to the reflector. It records the version of the object, at which the next
// watch starts. It returns an error if ctx ends first. It reads the object before it sends the
// event, because the receiver may change the object at once.
func (s *stream) send(ctx context.Context, e watch.Event) error {
	m, err := meta.Accessor(e.Object)
	if err != nil {
		return fmt.Errorf("read event: %w", err)
	}
	key, version := cache.MetaObjectToName(m).String(), m.GetResourceVersion()
	complete := e.Type == watch.Bookmark && m.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true"
	select {
	case <-ctx.Done():
		return ctx.Err()
	case s.events <- e:
	}
	s.relister.note(e.Type, key, version)
	if complete {
		s.initial = false
	}
	s.options.ResourceVersion = version
	return nil
}

// fail sends err to the reflector as an event of type Error, in the format of the API server. It
// sends nothing if ctx ends first.
func (s *stream) fail(ctx context.Context, err error) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		status = apierrors.NewInternalError(err)
	}
	object := status.Status()
	select {
	case <-ctx.Done():
	case s.events <- watch.Event{Type: watch.Error, Object: &object}:
	}
}
