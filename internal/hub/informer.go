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

// NewInformer returns an informer that goes on at once when a watch has ended.
//
// An API server that was restarted does not know the versions from before, so that every
// watch has to be replaced by a list. client-go's reflector waits before that, twice as
// long each time, up to a minute when an API server is restarted again and again. This
// informer lists within the watch and tells the reflector what has changed as events.
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
	versions map[string]string // of the objects that the reflector was told of, by key
}

// IsWatchListSemanticsUnSupported tells client-go what the ListerWatcher within can do.
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

// note remembers an event that the reflector gets.
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

// changes lists, and returns the events that lead from what the reflector was told to that, and a bookmark.
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

// blank is an object of the informer's type with nothing in it.
func (r *relister) blank() runtime.Object { return r.example.DeepCopyObject() }

// last is an object as it was last known, at the version at which it was gone.
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

// isExpired is true when the API server does not know the version from which a watch was to go on.
func isExpired(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }

// stream is a watch that outlives those of the API server.
type stream struct {
	relister *relister
	options  metav1.ListOptions
	events   chan watch.Event
	stop     context.CancelFunc
	initial  bool // the events before the bookmark that ends a list are under way
	expired  bool // the API server does not know the version any more
}

// Stop implements watch.Interface.
func (s *stream) Stop() { s.stop() }

// ResultChan implements watch.Interface.
func (s *stream) ResultChan() <-chan watch.Event { return s.events }

// shortWatch and the pause after one keep a stream from asking without end an API server that ends each watch at once.
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
			return // half a list is none: the reflector begins anew
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

// watch goes on from where the stream is. It returns nothing if the API server does not know that any more.
func (s *stream) watch(ctx context.Context) (watch.Interface, error) {
	w, err := s.relister.lw.WatchWithContext(ctx, s.options)
	if s.expired = isExpired(err); s.expired {
		return nil, nil //nolint:nilnil // that it is expired is said
	}
	return w, err //nolint:wrapcheck // the reflector looks at it
}

// follow passes on what changed, if the API server does not know that any more, or what a watch says until it ends.
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
					return nil // an internal error is how client-go says that a connection broke
				}
				return err //nolint:wrapcheck // the reflector looks at it
			}
			if err := s.send(ctx, e); err != nil {
				return err
			}
		}
	}
}

// send passes an event on. Its object is read before: who gets the object may change it at once, as transforms do.
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

// fail passes an error on as the API server would.
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
