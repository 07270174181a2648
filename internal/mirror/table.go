package mirror

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
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

// table is the mirror of one type of one cluster. A reflector fills it through a
// reflectorStore. Nothing in it waits for the database: placement reads it.
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
	version  uint64 // everything up to this resource version was observed; 0: nothing yet
	records  map[key]record
	handed   int            // the Mirror's generation when a whole list was handed to the store; 0: none was
	recalled bool           // the store knows the type, and was asked what it has of it
	recalls  bool           // the store is being asked
	stored   map[key]record // what the store has, until the next list begins
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
		t.forgetStored() // the bodies are of another version
	}
	m.mu.Unlock()
	go func() {
		defer close(t.stopped)
		done, ok := m.turn(ctx)
		if !ok {
			listed()
			return
		}
		t.run(ctx, sync.OnceFunc(func() { done(); listed() }))
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
func (t *table) again() {
	t.cluster.mirror.mu.RLock()
	relist := t.relist
	t.cluster.mirror.mu.RUnlock()
	relist()
}

// complete says whether the store was handed everything that the cluster was seen to have;
// the index must be locked.
func (t *table) complete() bool { return t.synced && t.handed == t.cluster.mirror.generation }

// Delays between lists that fail. A server that comes back is listed within the shorter
// one; what a server refuses is asked for less and less.
const (
	firstDelay   = 200 * time.Millisecond
	longestDelay = 2 * time.Second
	refusedDelay = 30 * time.Second
)

// A first list waits a moment for what the store has: then it writes only what is news. A
// store that fails is asked again; the lists go on without it.
const (
	recallPatience = 5 * time.Second
	recallDelay    = time.Second
	recallLongest  = 30 * time.Second
)

func (t *table) run(ctx context.Context, listed func()) {
	log := logr.FromContextOrDiscard(ctx).WithValues("resource", resourceOf(t.api).String())
	// The reflector's own news is only of interest when looking for its faults.
	ctx = logr.NewContext(ctx, log.V(1))
	m := t.cluster.mirror
	var recalling sync.WaitGroup
	defer recalling.Wait()
	rs := &reflectorStore{table: t, ctx: ctx, listed: listed}
	defer func() { rs.listed() }()
	reflector := cache.NewReflectorWithOptions(t.listWatch(), nil, rs, cache.ReflectorOptions{
		Name: t.cluster.name + "/" + resourceOf(t.api).String(),
		// How long a watch waits that cannot connect; it is not a list and costs little.
		Backoff: &wait.Backoff{Duration: firstDelay, Factor: 2, Steps: 3, Cap: time.Second, Jitter: 0.5},
	})
	delay := firstDelay
	for ctx.Err() == nil {
		t.recall(ctx, &recalling)
		err := t.listAndWatch(ctx, reflector, rs)
		rs.listed()
		m.mu.Lock()
		news := !t.synced && (err == nil) != (t.problem == nil)
		t.problem = err
		refill := t.synced && !t.complete()
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
		if refill { // so are all the cluster's types: they take turns, as with the first lists
			select {
			case t.cluster.slots <- struct{}{}:
				done, ok := m.turn(ctx)
				if !ok {
					done = func() {}
				}
				rs.listed = sync.OnceFunc(func() { done(); <-t.cluster.slots })
			case <-ctx.Done():
			}
		}
	}
}

// listAndWatch runs the reflector until its watch breaks or again is called.
func (t *table) listAndWatch(ctx context.Context, reflector *cache.Reflector, rs *reflectorStore) error {
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	m := t.cluster.mirror
	m.mu.Lock()
	t.relist = cancel
	leftovers := t.takeStored()
	m.mu.Unlock()
	rs.publish(nil, leftovers)
	err := reflector.ListAndWatchWithContext(inner)
	if inner.Err() != nil && ctx.Err() == nil {
		return nil // again was called
	}
	return err
}

// recall asks the store for what it has of the type, unless that was done, and waits a
// moment for the answer. A store that fails is asked until it answers; then the type is
// listed again, so that what the cluster does not have any more leaves the store.
func (t *table) recall(ctx context.Context, running *sync.WaitGroup) {
	m := t.cluster.mirror
	m.mu.Lock()
	begin := !t.recalled && !t.recalls
	t.recalls = t.recalls || begin
	m.mu.Unlock()
	if !begin {
		return
	}
	first := make(chan struct{})
	var late atomic.Bool
	running.Go(func() {
		attempted := sync.OnceFunc(func() { close(first) })
		defer attempted()
		defer func() {
			m.mu.Lock()
			t.recalls = false
			m.mu.Unlock()
		}()
		for delay := recallDelay; ; delay = min(2*delay, recallLongest) {
			err := t.askStore(ctx)
			if err == nil {
				break
			}
			logr.FromContextOrDiscard(ctx).Info("the store cannot say what it has of a type; it is asked again", "error", err.Error())
			late.Store(true)
			attempted()
			select {
			case <-time.After(delay + rand.N(delay)/2): //nolint:gosec // spreads load, guards nothing
			case <-ctx.Done():
				return
			}
		}
		if late.Load() {
			t.again()
		}
	})
	select {
	case <-first:
	case <-time.After(recallPatience):
		late.Store(true)
	}
}

// askStore saves the type in the store, and reads what the store has of it.
func (t *table) askStore(ctx context.Context) error {
	m := t.cluster.mirror
	m.mu.RLock()
	generation, described := m.generation, t.api
	m.mu.RUnlock()
	api, err := json.Marshal(described) //nolint:musttag // read by this package only
	if err != nil {
		return fmt.Errorf("encode type: %w", err)
	}
	gr := resourceOf(described)
	if err := m.store.SaveType(ctx, store.Type{Cluster: t.cluster.name, Resource: gr, API: api}); err != nil {
		return err
	}
	keys, err := m.store.Keys(ctx, t.cluster.name, gr)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.generation != generation {
		return errors.New("the store was lost meanwhile")
	}
	t.recalled, t.stored = true, make(map[key]record, len(keys))
	for _, k := range keys {
		t.stored[key{k.Namespace, k.Name}] = record{uid: k.UID, stored: number(k.ResourceVersion)}
	}
	return nil
}

// takeStored takes into the index what the store has, before a list: the list then finds
// what is to be written and what was deleted since. Of a type that was listed already it
// returns the deletions, since its index knows what there is. The index must be locked.
func (t *table) takeStored() (leftovers []store.Change) {
	for k, r := range t.stored {
		known, ok := t.records[k]
		switch {
		case ok && known.uid == r.uid && known.stored == 0:
			known.stored = r.stored
			t.records[k] = known
		case ok:
		case t.synced:
			leftovers = append(leftovers, t.deletion(k))
		default:
			t.records[k] = r
		}
	}
	t.stored = nil
	return leftovers
}

// deletion of an object from the store.
func (t *table) deletion(k key) store.Change {
	gr := resourceOf(t.api)
	return store.Change{Delete: true, Row: store.Row{
		Cluster: t.cluster.name, Group: gr.Group, Resource: gr.Resource, Namespace: k.namespace, Name: k.name,
	}}
}

// forgetStored takes note that the store may have nothing, or not the latest, of the type's
// objects: the next list hands over all of them. The index must be locked.
func (t *table) forgetStored() {
	t.handed, t.recalled, t.stored = 0, false, nil
	for k, r := range t.records {
		r.stored = 0
		t.records[k] = r
	}
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
