package mirror

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	configv1alpha1 "orrery.dev/orrery/api/config/v1alpha1"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/store"
)

// Mirror observes every cluster of the fleet. Start runs it. Most other methods answer from
// memory.
type Mirror struct {
	store database
	fleet fleet
	// Defaults for clusters whose spec and MirrorPolicies say nothing about the mirror. nil:
	// every type except those that change all the time.
	defaults *clusterv1alpha1.Mirror
	listing  chan struct{} // semaphore for concurrent lists of all clusters
	log      logr.Logger
	writer   *writer
	metered  bool // lags are registered with the process's metrics

	mostListed int // the constant of that name, except in tests

	// Each cluster has its own lock, so that a thousand clusters that are read at once do not
	// wait for each other. Lock order: mu, the lock of a cluster, the lock of bindings.
	mu sync.Mutex
	// Reports whether every MirrorPolicy of the hub is known. nil: there is no hub.
	synced func() bool
	known  map[string]policy               // MirrorPolicies by name
	run    func(func(ctx context.Context)) // nil until Start
	// Clusters that are leaving. A cluster with this UID is not mirrored again.
	dropped map[string]types.UID
	// By name. A cluster of that name is mirrored only after the drop has ended.
	dropping map[string]*dropping
	bindings bindings
	onHub    map[string]bool // clusters that the hub has
	// Reports whether onHub is complete. nil: there is no hub.
	hubKnown func() bool
	// Returns the timer after which rows of clusters that are not on the hub are deleted:
	// absentFor, except in tests.
	absent func() <-chan time.Time
	strays map[string][]schema.GroupResource // by cluster: stored types that Types does not return

	incomplete incomplete

	// The values behind these pointers are replaced under mu and never changed, because they are
	// read for each event.
	clusters atomic.Pointer[map[string]*cluster]
	// Stored types of clusters that are not in clusters yet. nil: the store has not returned them
	// yet.
	remembered      atomic.Pointer[map[string][]member.API]
	required        atomic.Pointer[map[schema.GroupVersionKind]bool]
	policies        atomic.Pointer[[]policy]
	subscribers     atomic.Pointer[[]func(Event)]
	roomSubscribers atomic.Pointer[[]func(cluster string)]

	// generation counts the losses of the store's contents, from 1. It is incremented before the
	// tables of any cluster learn of the loss. So a table that records an earlier generation
	// never counts as complete in a later one.
	generation atomic.Int64

	began time.Time   // upper bound for the time of data that was only read back from the store
	lost  atomic.Bool // contents were lost since the process started
}

// database is the part of the store that the mirror uses. Every call may fail, for any length of
// time. The index does not depend on it.
type database interface { //nolint:interfacebloat // one store
	Write(ctx context.Context, changes []store.Change) error
	Types(ctx context.Context) ([]store.Type, error)
	Keys(ctx context.Context, cluster string, gr schema.GroupResource) ([]store.Key, error)
	Rows(ctx context.Context, cluster string, gr schema.GroupResource, bodies bool, after store.Key, limit int) ([]store.Row, error)
	Epoch(ctx context.Context) (string, error)
	Checkpoint(ctx context.Context, cluster string, gr schema.GroupResource) ([]byte, error)
	SaveCheckpoints(ctx context.Context, checkpoints []store.Checkpoint) error
	SaveType(ctx context.Context, t store.Type) error
	DropType(ctx context.Context, cluster string, gr schema.GroupResource) error
	HideCluster(cluster string)
	DropCluster(ctx context.Context, cluster string) error
	Clusters(ctx context.Context) ([]string, error)
	Strays(ctx context.Context) ([]store.Stray, error)
	Incomplete(ctx context.Context) ([]store.Incomplete, error)
	KeepData(ctx context.Context, cluster string, keep func(namespace string, labels map[string]string) bool) (lost int, err error)
}

// New returns a mirror of the registry's clusters into the store. defaults apply to clusters
// whose spec and MirrorPolicies do not say what is mirrored; nil: every type except those that
// change all the time.
func New(s *store.Store, r *member.Registry, defaults *clusterv1alpha1.Mirror, log logr.Logger) *Mirror {
	m := newMirror(s, registry{r}, log)
	m.defaults = defaults
	m.metered = true
	m.follow(s)
	return m
}

// follow subscribes to losses of the store's contents, and counts the losses that happened
// before.
func (m *Mirror) follow(s *store.Store) {
	s.OnLoss(m.storeLost)
	n := s.Losses()
	if n > 0 {
		m.lost.Store(true)
	}
	losses.Add(float64(n))
}

func newMirror(s database, f fleet, log logr.Logger) *Mirror {
	m := &Mirror{
		store: s, fleet: f, log: log, began: time.Now(), listing: make(chan struct{}, listsOfAll), absent: func() <-chan time.Time { return time.After(absentFor) },
		mostListed: mostListed, dropped: map[string]types.UID{}, dropping: map[string]*dropping{}, known: map[string]policy{},
		bindings: bindings{placed: map[types.UID]map[string][]*Object{}},
	}
	m.clusters.Store(&map[string]*cluster{})
	m.required.Store(&map[schema.GroupVersionKind]bool{})
	m.policies.Store(&[]policy{})
	m.subscribers.Store(&[]func(Event){})
	m.roomSubscribers.Store(&[]func(string){})
	m.generation.Store(1)
	m.writer = newWriter(
		func(ctx context.Context, changes []store.Change) error {
			err := m.store.Write(ctx, changes)
			var rejected *store.RejectedError
			// On other errors the database would delay the writer once more.
			if err == nil || errors.As(err, &rejected) {
				m.countIncomplete(ctx)
			}
			return err
		},
		func(ctx context.Context, checkpoints []store.Checkpoint) error {
			return m.store.SaveCheckpoints(ctx, checkpoints)
		},
		log, m.storeTurned)
	return m
}

// Start observes until ctx ends, and returns when all goroutines have ended. It may be called
// once.
func (m *Mirror) Start(ctx context.Context) error {
	ctx = logr.NewContext(ctx, m.log)
	// Without the policies, the mirror would first drop objects that they select.
	if m.synced != nil && !toolscache.WaitForCacheSync(ctx.Done(), m.synced) {
		return nil
	}
	var running sync.WaitGroup
	m.mu.Lock()
	m.run = func(f func(context.Context)) { running.Go(func() { f(ctx) }) }
	m.mu.Unlock()
	running.Go(func() { m.writer.run(ctx) })
	running.Go(func() { m.recall(ctx); m.dropAbsent(ctx) })
	if m.metered {
		if err := prometheus.Register(lags{m}); err != nil { // the mirror works without the metric
			m.log.Error(err, "The mirror's lags are not among the metrics")
		} else {
			defer prometheus.Unregister(lags{m})
		}
	}
	m.fleet.Subscribe(m.changed)
	for _, name := range m.fleet.names() {
		m.changed(member.Event{Type: member.Joined, Name: name})
	}
	<-ctx.Done()
	m.mu.Lock()
	m.run = func(f func(context.Context)) { go f(ctx) } // with a ctx that has ended
	m.mu.Unlock()
	running.Wait()
	return nil
}

// changed handles an event of the registry: a cluster joined, changed or left.
func (m *Mirror) changed(e member.Event) {
	if e.Type == member.Left {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.run(func(ctx context.Context) { m.left(ctx, e.Name) })
		return
	}
	source, ok := m.fleet.source(e.Name)
	if !ok {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dropped[e.Name] != "" && m.dropped[e.Name] == source.Cluster().UID {
		return
	}
	if d := m.dropping[e.Name]; d != nil {
		d.putOff = true
		return
	}
	c := m.cluster(e.Name)
	if c == nil {
		c = newCluster(m, e.Name, source)
		c.remember(m.remembers(e.Name))
		m.replace(e.Name, c)
		m.forget(e.Name)
		m.run(c.run)
	}
	c.reachable(source.Reachable())
	c.wakeUp()
}

// Require mirrors a kind in every cluster that serves it, even if the cluster's spec.mirror
// excludes it.
func (m *Mirror) Require(gvk schema.GroupVersionKind) {
	if (*m.required.Load())[gvk] {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	required := maps.Clone(*m.required.Load())
	required[gvk] = true
	m.required.Store(&required)
	// A cluster that is comparing with the previous requirements compares again.
	for _, c := range *m.clusters.Load() {
		c.wakeUp()
		if gvk == quotaKind { // free capacity is unknown until the quotas are listed
			c.mu.Lock()
			c.measured()
			c.mu.Unlock()
		}
	}
}

// Follow watches the hub's MirrorPolicies and Clusters. It must be called before Start, which
// waits until all of them are known.
func (m *Mirror) Follow(ctx context.Context, informers cache.Informers) error {
	informer, err := informers.GetInformer(ctx, &configv1alpha1.MirrorPolicy{}, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watch MirrorPolicies: %w", err)
	}
	set := func(o any) {
		if p, ok := o.(*configv1alpha1.MirrorPolicy); ok {
			m.setPolicy(p.Name, p)
		}
	}
	handlers, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    set,
		UpdateFunc: func(_, o any) { set(o) },
		DeleteFunc: func(o any) {
			if last, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
				o = last.Obj
			}
			if p, ok := o.(*configv1alpha1.MirrorPolicy); ok {
				m.setPolicy(p.Name, nil)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("watch MirrorPolicies: %w", err)
	}
	m.synced = handlers.HasSynced
	return m.followClusters(ctx, informers)
}

// setPolicy stores a MirrorPolicy; nil deletes the one with that name. Every cluster then
// compares its tables with the policies.
func (m *Mirror) setPolicy(name string, p *configv1alpha1.MirrorPolicy) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if delete(m.known, name); p != nil {
		m.known[name] = newPolicy(p)
	}
	policies := slices.Collect(maps.Values(m.known))
	m.policies.Store(&policies)
	for _, c := range *m.clusters.Load() {
		c.wakeUp()
	}
}

// dropping has the number of running drops of a cluster, and whether a cluster of the same name
// is to be mirrored afterwards.
type dropping struct {
	by     int
	putOff bool
}

// Drop stops observing a cluster and deletes all its rows. A cluster of that name is mirrored
// again only when it has another UID.
func (m *Mirror) Drop(name string) error {
	m.mu.Lock()
	c := m.cluster(name)
	if c != nil {
		m.dropped[name] = c.source.Cluster().UID
	}
	m.forget(name)
	done := m.dropBegins(name)
	m.mu.Unlock()
	defer done()
	if c != nil {
		c.stop()
		c.forget()
		m.mu.Lock()
		m.replace(name, nil)
		m.mu.Unlock()
	}
	m.writer.forget(func(k rowKey) bool { return k.cluster == name })
	if err := m.store.DropCluster(context.Background(), name); err != nil {
		return fmt.Errorf("drop mirror: %w", err)
	}
	return nil
}

// Stale returns since when the data of a cluster is not current. stale is false if the cluster is
// reachable, or unknown. For a cluster that is only in the store, since is the start of the
// mirror.
func (m *Mirror) Stale(name string) (since time.Time, stale bool) {
	c := m.cluster(name)
	if c == nil {
		return m.began, len(m.remembers(name)) > 0
	}
	if c.source.Reachable() {
		return time.Time{}, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lastReached(), true
}

// Type is one version of a type in one scope, as search reads it.
type Type struct {
	member.API
	Clusters []string // that serve this version in this scope, by name
}

// recall reads the types and strays that the store has, and retries until the store answers or
// ctx ends.
func (m *Mirror) recall(ctx context.Context) {
	var stored []store.Type
	var strays []store.Stray
	for delay := recallDelay; ; delay = min(2*delay, recallLongest) {
		var err error
		if stored, strays, err = m.readStored(ctx); err == nil {
			break
		}
		m.log.V(1).Info("the store cannot say which types it has; it is asked again", "error", err.Error())
		select {
		case <-time.After(delay + rand.N(delay)/2): //nolint:gosec // spreads load, guards nothing
		case <-ctx.Done():
			return
		}
	}
	m.countIncomplete(ctx)
	remembered := map[string][]member.API{}
	for _, s := range stored {
		var api member.API
		if err := json.Unmarshal(s.API, &api); err != nil { //nolint:musttag // written by this package
			m.log.Error(err, "Stored type cannot be read, and is known again when the cluster answers", "cluster", s.Cluster, "resource", s.Resource.String())
			continue
		}
		remembered[s.Cluster] = append(remembered[s.Cluster], api)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.setStrays(strays)
	for _, c := range m.all() {
		c.remember(remembered[c.name])
		delete(remembered, c.name)
		c.wakeUp()
	}
	for name := range m.dropped {
		delete(remembered, name)
	}
	m.remembered.Store(&remembered)
}

// Recalled reports whether the types that the store has are known. Before that, a type that no
// cluster serves may still be stored.
func (m *Mirror) Recalled() bool { return m.remembered.Load() != nil }

// remembers returns the stored types of a cluster that is not mirrored yet; nil: none, or not
// read yet.
func (m *Mirror) remembers(name string) []member.API {
	if r := m.remembered.Load(); r != nil {
		return (*r)[name]
	}
	return nil
}

// forget removes the result of remembers for a cluster that is mirrored now or was dropped. The
// caller holds mu.
func (m *Mirror) forget(name string) {
	if len(m.remembers(name)) == 0 {
		return
	}
	remembered := maps.Clone(*m.remembered.Load())
	delete(remembered, name)
	m.remembered.Store(&remembered)
}

// Types returns all mirrored types, and the stored types of clusters that are not mirrored yet,
// by group, resource, version and scope.
func (m *Mirror) Types() []Type {
	type served struct {
		cluster string
		api     member.API
	}
	var all []served
	// In this order: a cluster that starts is in clusters before it is removed from remembered.
	remembered, running := m.remembered.Load(), m.clusters.Load()
	if remembered != nil {
		for name, apis := range *remembered {
			if (*running)[name] != nil {
				continue
			}
			for _, api := range apis {
				all = append(all, served{name, api})
			}
		}
	}
	for _, c := range *running {
		c.mu.Lock()
		for _, t := range c.tables {
			all = append(all, served{c.name, t.api})
		}
		c.mu.Unlock()
	}
	slices.SortStableFunc(all, func(a, b served) int { return strings.Compare(a.cluster, b.cluster) })
	return GroupTypes(func(yield func(string, member.API) bool) {
		for _, s := range all {
			if !yield(s.cluster, s.api) {
				return
			}
		}
	})
}

// GroupTypes merges the types of clusters. served must be sorted by cluster. A type has one Type
// for each version and scope in which clusters serve it.
func GroupTypes(served iter.Seq2[string, member.API]) []Type {
	type identity struct {
		schema.GroupVersionResource
		namespaced bool
	}
	found := map[identity]*Type{}
	for cluster, api := range served {
		id := identity{api.GroupVersionResource(), api.Namespaced}
		if found[id] == nil {
			found[id] = &Type{API: api}
		}
		found[id].Clusters = append(found[id].Clusters, cluster)
	}
	out := make([]Type, 0, len(found))
	for _, t := range found {
		out = append(out, *t)
	}
	scope := func(t Type) int {
		if t.Namespaced {
			return 0
		}
		return 1
	}
	slices.SortFunc(out, func(a, b Type) int {
		return cmp.Or(
			cmpResource(a.GroupVersionResource().GroupResource(), b.GroupVersionResource().GroupResource()),
			cmp.Compare(a.GroupVersionKind.Version, b.GroupVersionKind.Version), cmp.Compare(scope(a), scope(b)),
		)
	})
	return out
}

// Stored reports whether the store has everything that was observed of a type in a cluster. Then
// a search of the type is as complete as the last observation.
func (m *Mirror) Stored(cluster string, gr schema.GroupResource) bool {
	t, unlock := m.table(cluster, gr)
	defer unlock()
	return t != nil && t.complete() && m.writer.problem() == nil
}

// Lost reports whether the stored rows of a type in a cluster were lost and have not been read
// again.
func (m *Mirror) Lost(cluster string, gr schema.GroupResource) bool {
	if !m.lost.Load() {
		return false
	}
	t, unlock := m.table(cluster, gr)
	defer unlock()
	return t == nil || !t.complete()
}

// Observation returns a summary of a cluster for its status.
func (m *Mirror) Observation(name string) member.Observation {
	c := m.cluster(name)
	if c == nil {
		return member.Observation{Message: "mirroring has not started"}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.progress()
	o.NotStored = m.lost.Load() && !o.Synced
	if problem := m.writer.problem(); problem != nil {
		o.Synced, o.NotStored, o.Message = false, true, problem.Error()
	}
	if o.Synced {
		o.Notice = m.incomplete.notice(name)
	}
	if c.capacityKnown() {
		o.Nodes, o.Resources = c.capacity.summary()
	}
	return o
}

// storeTurned is called when the store begins or stops failing. gaveUp are the tables with
// abandoned changes. They are listed again, since their clusters still have the objects.
func (m *Mirror) storeTurned(gaveUp []*table) {
	for _, t := range gaveUp {
		t.cluster.mu.Lock()
		t.forgetStored()
		t.cluster.mu.Unlock()
	}
	m.relist(m.all(), gaveUp)
}

// storeLost is called when all stored contents are lost. It makes every table read its cluster
// again. The index keeps its contents.
func (m *Mirror) storeLost() {
	losses.Inc()
	m.lost.Store(true)
	m.generation.Add(1)
	all := m.all()
	var tables []*table
	for _, c := range all {
		c.mu.Lock()
		for _, t := range c.tables {
			t.forgetStored()
			tables = append(tables, t)
		}
		c.mu.Unlock()
	}
	m.relist(all, tables)
}

func (m *Mirror) relist(clusters []*cluster, tables []*table) {
	for _, t := range tables {
		t.again()
	}
	for _, c := range clusters {
		m.fleet.Refresh(c.name)
	}
}

// cluster returns a mirrored cluster; nil: it is not mirrored.
func (m *Mirror) cluster(name string) *cluster {
	return (*m.clusters.Load())[name]
}

// replace sets the cluster of a name; nil removes it. The caller holds mu.
func (m *Mirror) replace(name string, c *cluster) {
	clusters := maps.Clone(*m.clusters.Load())
	clusters[name] = c
	if c == nil {
		delete(clusters, name)
	}
	m.clusters.Store(&clusters)
}

// all returns the mirrored clusters, in no order.
func (m *Mirror) all() []*cluster {
	return slices.Collect(maps.Values(*m.clusters.Load()))
}

// Subscribe registers f, which is called after every change of the index. f must not block.
func (m *Mirror) Subscribe(f func(Event)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	subscribers := append(slices.Clone(*m.subscribers.Load()), f)
	m.subscribers.Store(&subscribers)
}

// notify calls the subscribers. The caller must not hold a lock of the index.
func (m *Mirror) notify(events ...Event) {
	if len(events) == 0 {
		return
	}
	subscribers := *m.subscribers.Load()
	for _, e := range events {
		for _, f := range subscribers {
			f(e)
		}
	}
}

func cmpResource(a, b schema.GroupResource) int {
	if c := strings.Compare(a.Group, b.Group); c != 0 {
		return c
	}
	return strings.Compare(a.Resource, b.Resource)
}
