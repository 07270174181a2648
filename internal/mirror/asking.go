package mirror

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// A type that is mirrored from a few namespaces only is listed and watched in each of them: the hub
// may have no access to others. The lists run one after another, like pages of one list. The
// resource version of the first list counts as that of the whole list. Changes that happen in
// another namespace between that version and its own list are reported again by the watch of that
// namespace. The watches are merged to one watch, see merge. Its version is that of the watch that
// is furthest behind.

// list returns one page of the list of the table's type in its cluster, as a list of Unstructured
// or PartialObjectMetadata. If no Secret is mirrored with data, Secrets are listed as metadata
// only, so that their data does not leave the cluster. If the type is listed in several namespaces,
// the continue token of the result is NUMBER/TOKEN: the index of the namespace and the API server's
// own token. Only list accepts such a token.
func (t *table) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	asks := t.filter.asks()
	if len(asks) == 1 {
		return t.listOne(ctx, asks[0], o)
	}
	i := 0
	if at, token, ok := strings.Cut(o.Continue, "/"); ok {
		var err error
		if i, err = strconv.Atoi(at); err != nil || i < 0 || i >= len(asks) {
			return nil, fmt.Errorf("list %s: continue token %q is not of this list", resourceOf(t.api), o.Continue)
		}
		o.Continue = token
	}
	page, err := t.listOne(ctx, asks[i], o)
	if err != nil {
		return nil, fmt.Errorf("namespace %s: %w", asks[i].namespace, err)
	}
	about, err := meta.ListAccessor(page)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", resourceOf(t.api), err)
	}
	token := about.GetContinue()
	if token == "" {
		i++
	}
	if i < len(asks) {
		about.SetContinue(strconv.Itoa(i) + "/" + token)
	}
	return page, nil
}

// listOne returns one page of the list that one request (of) describes: a namespace, "" for all,
// and a label selector. It replaces the label selector in o.
func (t *table) listOne(ctx context.Context, of ask, o metav1.ListOptions) (runtime.Object, error) {
	gvr := t.api.GroupVersionResource()
	o.LabelSelector = of.selector
	if t.onlyMetadata() {
		return t.cluster.metadata.Resource(gvr).Namespace(of.namespace).List(ctx, o)
	}
	return t.cluster.objects.Resource(gvr).Namespace(of.namespace).List(ctx, o)
}

// newest returns the present resource version of the table's type in its cluster. It lists one
// object in one mirrored namespace, because an API server has one sequence of versions for all
// namespaces of a type.
func (t *table) newest(ctx context.Context) (string, error) {
	namespace := t.filter.asks()[0].namespace
	one, err := t.cluster.metadata.Resource(t.api.GroupVersionResource()).Namespace(namespace).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return "", err
	}
	return one.ResourceVersion, nil
}

// watch opens one watch of the table's type in each namespace that is mirrored, and returns their
// events as one watch. If one watch cannot be opened, the others are closed, and the error is
// returned. The caller must close the result.
func (t *table) watch(ctx context.Context, o metav1.ListOptions) (events, error) {
	asks := t.filter.asks()
	streams := make([]events, 0, len(asks))
	ctx, cancel := context.WithCancel(ctx)
	for _, of := range asks {
		s, err := t.watchOne(ctx, of, o)
		if err != nil {
			for _, s := range streams {
				s.close()
			}
			cancel()
			if len(asks) > 1 {
				err = fmt.Errorf("namespace %s: %w", of.namespace, err)
			}
			return nil, err
		}
		streams = append(streams, s)
	}
	return merge(ctx, cancel, streams), nil
}

// merge returns one watch with the events of all streams. Each stream is the watch of one
// namespace. Closing the result closes the streams and calls cancel, which ends the requests of the
// streams. A single stream is returned without a goroutine of its own, since a hub has more than
// ten thousand streams. streams must not be empty.
func merge(ctx context.Context, cancel context.CancelFunc, streams []events) events {
	if len(streams) == 1 {
		return &single{streams[0], cancel}
	}
	m := &merged{ctx: ctx, cancel: cancel, streams: streams, came: make(chan arrival), began: streams[0].reached(), at: make([]string, len(streams)), open: len(streams)}
	for i, s := range streams {
		m.at[i] = s.reached()
		m.running.Go(func() {
			for {
				e, err := s.next()
				select {
				case m.came <- arrival{i, e, s.reached(), err}:
				case <-ctx.Done():
					return
				}
				if err != nil {
					return
				}
			}
		})
	}
	return m
}

// single is the result of merge for one stream. Its close also ends the request of the stream.
type single struct {
	events

	cancel context.CancelFunc
}

func (s *single) close() {
	s.events.close()
	s.cancel()
}

// merged is the result of merge for several streams: one watch with the events of all. Only one
// goroutine may call its methods. When one stream has ended, next returns io.EOF after endsTogether
// at the latest, even if others still run.
type merged struct {
	ctx     context.Context //nolint:containedctx // of the streams
	cancel  context.CancelFunc
	streams []events
	running sync.WaitGroup
	came    chan arrival     // results of the next methods of all streams
	began   string           // resource version at which all streams began
	at      []string         // resource version that each stream has reached
	open    int              // streams that have not ended
	ending  <-chan time.Time // fires when the other streams have had endsTogether; nil: none ended
}

// arrival is one result of the method next of one stream: an event with the version reached by it,
// or an error.
type arrival struct {
	from    int // index of the stream
	event   watch.Event
	reached string
	err     error
}

// endsTogether is how long the watches of the other namespaces may continue after that of one
// namespace has ended. Normally all end at about the same time. Otherwise the first watch was
// interrupted, and all of them are opened again.
const endsTogether = 3 * time.Second

// next returns the next event of any stream. The events of one stream come in order. The error is
// io.EOF when all streams have ended, endsTogether after the first one ended, or when the context
// of the streams has ended. Any other error is that of one stream.
func (m *merged) next() (watch.Event, error) {
	for {
		select {
		case a := <-m.came:
			if errors.Is(a.err, io.EOF) {
				if m.open--; m.open == 0 {
					return watch.Event{}, io.EOF
				}
				if m.ending == nil {
					m.ending = time.After(endsTogether)
				}
				continue
			}
			m.at[a.from] = a.reached
			return a.event, a.err
		case <-m.ending:
			return watch.Event{}, io.EOF
		case <-m.ctx.Done():
			return watch.Event{}, io.EOF
		}
	}
}

// reached returns the resource version up to which the events of every stream were returned: that
// of the stream that is furthest behind. If any of the versions is not a number, it is the version
// at which the streams began.
func (m *merged) reached() string {
	least := m.at[0]
	for _, at := range m.at {
		if number(at) == 0 {
			return m.began
		}
		if number(at) < number(least) {
			least = at
		}
	}
	return least
}

// close closes all streams and waits for their goroutines.
func (m *merged) close() {
	m.cancel()
	for _, s := range m.streams {
		s.close()
	}
	m.running.Wait()
}
