package mirror

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/store"
)

// table is the mirror of one type of one cluster. A reflector feeds it, for which it is
// the store.
type table struct {
	cluster *cluster
	cancel  context.CancelFunc
	stopped chan struct{}

	// Guarded by Mirror.mu:
	api      member.API
	replaced *member.API // the version to go on with at the next start
	wanted   bool        // by the API list as last seen
	running  bool
	relist   context.CancelFunc
	problem  error // why it is not listed
	synced   bool
	loaded   bool   // what the store has is in records
	version  uint64 // everything up to this resource version was observed; 0: nothing yet
	records  map[key]record
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
	return &table{cluster: c, api: api, records: map[key]record{}, relist: func() {}}
}

// start runs the table's reflector. listed is called when the first list has succeeded
// or failed.
func (t *table) start(ctx context.Context, listed func()) {
	m := t.cluster.mirror
	ctx, t.cancel = context.WithCancel(ctx)
	t.stopped = make(chan struct{})
	m.mu.Lock()
	t.running = true
	if t.replaced != nil {
		t.api, t.replaced, t.synced = *t.replaced, nil, false
		for k, r := range t.records {
			r.stored = 0 // the bodies are of another version
			t.records[k] = r
		}
	}
	m.mu.Unlock()
	go func() {
		defer close(t.stopped)
		t.run(ctx, sync.OnceFunc(listed))
	}()
}

// stop ends the table's reflector, if it runs.
func (t *table) stop() {
	t.cluster.mirror.mu.Lock()
	running := t.running
	t.running = false
	t.cluster.mirror.mu.Unlock()
	if running {
		t.cancel()
		<-t.stopped
	}
}

// again makes the reflector list again.
func (t *table) again() { t.relist() }

// Delays between lists that fail. A server that comes back is listed within the shorter
// one; what a server refuses is asked for less and less.
const (
	firstDelay   = 200 * time.Millisecond
	longestDelay = 2 * time.Second
	refusedDelay = 30 * time.Second
)

func (t *table) run(ctx context.Context, listed func()) {
	defer listed()
	log := logr.FromContextOrDiscard(ctx).WithValues("resource", resourceOf(t.api).String())
	// The reflector's own news is only of interest when looking for its faults.
	ctx = logr.NewContext(ctx, log.V(1))
	m := t.cluster.mirror
	if err := t.save(ctx); err != nil {
		log.Error(err, "Type is mirrored, but searched only while its cluster is reachable")
	}
	reflector := cache.NewReflectorWithOptions(t.listWatch(), nil, &feed{table: t, ctx: ctx, listed: listed}, cache.ReflectorOptions{
		Name: t.cluster.name + "/" + resourceOf(t.api).String(),
		// How long a watch waits that cannot connect; it is not a list and costs little.
		Backoff: &wait.Backoff{Duration: firstDelay, Factor: 2, Steps: 3, Cap: time.Second, Jitter: 0.5},
	})
	delay := firstDelay
	for ctx.Err() == nil {
		err := t.listAndWatch(ctx, reflector)
		listed()
		m.mu.Lock()
		news := !t.synced && (err == nil) != (t.problem == nil)
		t.problem = err
		m.mu.Unlock()
		if news {
			m.fleet.Refresh(t.cluster.name)
		}
		if err == nil {
			delay = firstDelay
		}
		longest := longestDelay
		if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
			longest = refusedDelay
		}
		select {
		case <-time.After(delay + rand.N(delay)/2): //nolint:gosec // spreads load, guards nothing
		case <-ctx.Done():
		}
		delay = min(2*delay, longest)
	}
}

// listAndWatch runs the reflector until its watch breaks or again is called.
func (t *table) listAndWatch(ctx context.Context, reflector *cache.Reflector) error {
	if err := t.load(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t.cluster.mirror.mu.Lock()
	t.relist = cancel
	t.cluster.mirror.mu.Unlock()
	return reflector.ListAndWatchWithContext(ctx)
}

// save remembers the type in the store.
func (t *table) save(ctx context.Context) error {
	api, err := json.Marshal(t.api) //nolint:musttag // read by this package only
	if err != nil {
		return fmt.Errorf("encode type: %w", err)
	}
	return t.cluster.mirror.store.SaveType(ctx, store.Type{Cluster: t.cluster.name, Resource: resourceOf(t.api), API: api})
}

// load reads once what the store has, so that the first list finds what is to be written
// and what was deleted since.
func (t *table) load(ctx context.Context) error {
	m := t.cluster.mirror
	m.mu.RLock()
	loaded := t.loaded
	m.mu.RUnlock()
	if loaded {
		return nil
	}
	stored := map[key]record{}
	for k, err := range m.store.Keys(ctx, t.cluster.name, resourceOf(t.api)) {
		if err != nil {
			return err
		}
		stored[key{k.Namespace, k.Name}] = record{uid: k.UID, stored: number(k.ResourceVersion)}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	t.loaded = true
	for k, r := range stored {
		// A write's response may have come before the first list.
		if known, ok := t.records[k]; !ok {
			t.records[k] = r
		} else if known.uid == r.uid {
			known.stored = r.stored
			t.records[k] = known
		}
	}
	return nil
}

// listWatch reads the type from the cluster. Of Secrets it reads the metadata: their data
// must not leave the cluster.
func (t *table) listWatch() cache.ListerWatcher {
	gvr := t.api.GroupVersionResource()
	meta := t.cluster.metadata.Resource(gvr)
	list := func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return meta.List(ctx, o) }
	open := meta.Watch
	if gvr.GroupResource() != secrets {
		objects := t.cluster.objects.Resource(gvr)
		list = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return objects.List(ctx, o) }
		open = objects.Watch
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			ctx, cancel, err := t.cluster.gate.pass(ctx)
			if err != nil {
				return nil, err
			}
			defer cancel()
			return list(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			ctx, cancel, err := t.cluster.gate.pass(ctx)
			if err != nil {
				return nil, err
			}
			if !ptr.Deref(o.SendInitialEvents, false) {
				newest, err := meta.List(ctx, metav1.ListOptions{Limit: 1})
				if err == nil {
					err = sameTimeline(o.ResourceVersion, newest.ResourceVersion)
				}
				if err != nil {
					cancel()
					return nil, err
				}
			}
			w, err := open(ctx, o)
			if err != nil {
				cancel()
				return nil, err
			}
			return gated{w, cancel}, nil
		},
	}
}

// sameTimeline refuses to continue a watch in a cluster that is older than what was seen
// of it, such as one that was restored from a backup: the API server would keep silent
// until the resource versions have caught up. The reflector then lists again.
func sameTimeline(seen, newest string) error {
	if number(newest) != 0 && number(newest) < number(seen) {
		return apierrors.NewResourceExpired("the cluster was restored from a backup")
	}
	return nil
}

// number reads a resource version; 0: it is not a number, and cannot be compared.
func number(resourceVersion string) uint64 {
	n, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
