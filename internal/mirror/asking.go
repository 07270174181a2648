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

// A type with a few mirrored namespaces is listed and watched in each namespace, because the hub
// may have access to these only. The lists run one after another, like pages of one list whose
// resource version is that of the first. Changes in the other namespaces between that version and
// their own list are repeated by the watches. The watches are merged to one. Its version is that
// of the watch that is furthest behind.

// list returns a page. For Secrets without data it lists only metadata, so that their data does
// not leave the cluster.
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

func (t *table) listOne(ctx context.Context, of ask, o metav1.ListOptions) (runtime.Object, error) {
	gvr := t.api.GroupVersionResource()
	o.LabelSelector = of.selector
	if t.onlyMetadata() {
		return t.cluster.metadata.Resource(gvr).Namespace(of.namespace).List(ctx, o)
	}
	return t.cluster.objects.Resource(gvr).Namespace(of.namespace).List(ctx, o)
}

// newest asks in one namespace, because a cluster has one sequence of versions for a type.
func (t *table) newest(ctx context.Context) (string, error) {
	namespace := t.filter.asks()[0].namespace
	one, err := t.cluster.metadata.Resource(t.api.GroupVersionResource()).Namespace(namespace).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return "", err
	}
	return one.ResourceVersion, nil
}

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

// merge merges watches. A single one gets no goroutine, since a hub has more than ten thousand.
// cancel ends all.
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

// single is a merged watch of one stream.
type single struct {
	events

	cancel context.CancelFunc
}

func (s *single) close() {
	s.events.close()
	s.cancel()
}

// merged is a merged watch of several streams.
type merged struct {
	ctx     context.Context //nolint:containedctx // of the streams
	cancel  context.CancelFunc
	streams []events
	running sync.WaitGroup
	came    chan arrival
	began   string   // version at which all began
	at      []string // version of each stream
	open    int      // streams that have not ended
	ending  <-chan time.Time
}

// arrival is a result of next of a stream.
type arrival struct {
	from    int
	event   watch.Event
	reached string
	err     error
}

// endsTogether is how long the other streams may continue after one has ended. Normally all end
// together; otherwise the first one was interrupted.
const endsTogether = 3 * time.Second

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

// reached returns the version of the stream that is furthest behind. It stays at the start if
// versions are not numbers.
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

func (m *merged) close() {
	m.cancel()
	for _, s := range m.streams {
		s.close()
	}
	m.running.Wait()
}
