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

// NewInformer returns an informer that continues at once when a watch has ended.
//
// A restarted API server does not know earlier versions, so that every watch must be replaced by
// a list. client-go's reflector waits before that, twice as long each time, up to a minute if an
// API server is restarted repeatedly. This informer lists within the watch, and sends the
// changes to the reflector as events.
func NewInformer(lw cache.ListerWatcher, example runtime.Object, resync time.Duration, indexers cache.Indexers) cache.SharedIndexInformer {
	r := &relister{lw: cache.ToListerWatcherWithContext(lw), example: example, versions: map[string]string{}}
	r.listOnly = watchlist.DoesClientNotSupportWatchListSemantics(lw)
	informer := cache.NewSharedIndexInformer(r, example, resync, indexers)
	r.known = informer.GetIndexer()
	return informer
}

// relister is the ListerWatcher of such an informer.
type relister struct {
	lw       cache.ListerWatcherWithContext
	example  runtime.Object
	known    cache.Store
	listOnly bool

	mu       sync.Mutex
	versions map[string]string // by key, of the objects that the reflector has received
}

// IsWatchListSemanticsUnSupported reports whether the inner ListerWatcher lacks support for
// watch lists.
func (r *relister) IsWatchListSemanticsUnSupported() bool { return r.listOnly }

// List implements cache.ListerWatcher.
func (r *relister) List(o metav1.ListOptions) (runtime.Object, error) {
	return r.ListWithContext(context.Background(), o)
}

// Watch implements cache.ListerWatcher.
func (r *relister) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return r.WatchWithContext(context.Background(), o)
}

// ListWithContext implements cache.ListerWatcherWithContext.
func (r *relister) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	list, err := r.lw.ListWithContext(ctx, o)
	if err != nil {
		return nil, err //nolint:wrapcheck // the reflector looks at it
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

// WatchWithContext implements cache.ListerWatcherWithContext.
func (r *relister) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	initial := o.SendInitialEvents != nil && *o.SendInitialEvents
	w, err := r.lw.WatchWithContext(ctx, o)
	expired := isExpired(err) && !initial
	if err != nil && !expired {
		return nil, err //nolint:wrapcheck // the reflector looks at it
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

func (r *relister) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.versions = map[string]string{}
}

// note records an event that the reflector receives.
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

// changes lists the objects, and returns the events that lead from the state of the reflector to
// the list, then a bookmark.
func (r *relister) changes(ctx context.Context) ([]watch.Event, error) {
	list, err := r.lw.ListWithContext(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err //nolint:wrapcheck // the reflector looks at it
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
		switch version, told := r.versions[key]; {
		case !told:
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

// blank returns an empty object of the type of the informer.
func (r *relister) blank() runtime.Object { return r.example.DeepCopyObject() }

// last returns the last known state of a deleted object, with the version of the list that lacks
// it.
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

// isExpired reports whether the API server does not know the version at which a watch should
// continue.
func isExpired(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }

// stream is a watch that continues when a watch of the API server ends.
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

// shortWatch and shortPause limit the rate of requests to an API server that ends each watch at
// once.
const (
	shortWatch = time.Second
	shortPause = 200 * time.Millisecond
)

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

// watch starts a watch at the version of the stream. It returns nil, and sets s.expired, if the
// API server does not know the version any more.
func (s *stream) watch(ctx context.Context) (watch.Interface, error) {
	w, err := s.relister.lw.WatchWithContext(ctx, s.options)
	if s.expired = isExpired(err); s.expired {
		return nil, nil //nolint:nilnil // that it is expired is said
	}
	return w, err //nolint:wrapcheck // the reflector looks at it
}

// follow sends the events of a watch until it ends. If the version has expired, it first sends
// the changes since then.
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
				return err //nolint:wrapcheck // the reflector looks at it
			}
			if err := s.send(ctx, e); err != nil {
				return err
			}
		}
	}
}

// send sends an event. It reads the object before: the receiver may change the object at once,
// as transforms do.
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

// fail sends an error in the format of the API server.
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
