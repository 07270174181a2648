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

// Mirror observes every cluster of the fleet. Start runs it; everything else answers from
// memory.
type Mirror struct {
	store    database
	fleet    fleet
	defaults *clusterv1alpha1.Mirror // of clusters of which nobody says what is mirrored; nil: all but noise
	listing  chan struct{}           // held by lists, of all clusters
	log      logr.Logger
	writer   *writer
	metered  bool // the process's metrics have its lags

	mostListed int // the constant, but in tests

	// The index is locked cluster by cluster: what a cluster holds is guarded by its own lock, so that a thousand clusters
	// that are read at once do not wait for each other. mu is taken before the lock of a cluster, which is taken before
	// that of the bindings.
	mu       sync.Mutex
	synced   func() bool                     // whether every MirrorPolicy of the hub is known; nil: there is no hub
	known    map[string]policy               // the MirrorPolicies, by name
	run      func(func(ctx context.Context)) // nil until Start
	dropped  map[string]types.UID            // clusters that are leaving: not mirrored again under this UID
	dropping map[string]*dropping            // by name: nothing is mirrored under it until that is done
	bindings bindings
	onHub    map[string]bool                   // the clusters that the hub has
	hubKnown func() bool                       // whether all of them are known; nil: there is no hub
	absent   func() <-chan time.Time           // when the rows of other clusters go: after absentFor, but in tests
	strays   map[string][]schema.GroupResource // by cluster: stored types that Types does not return

	incomplete incomplete

	// Replaced under mu and never changed: they are read at each event.
	clusters        atomic.Pointer[map[string]*cluster]
	remembered      atomic.Pointer[map[string][]member.API] // types that the store has of clusters that are not among clusters yet; nil: it has not said so yet
	required        atomic.Pointer[map[schema.GroupVersionKind]bool]
	policies        atomic.Pointer[[]policy]
	subscribers     atomic.Pointer[[]func(Event)]
	roomSubscribers atomic.Pointer[[]func(cluster string)]

	// generation is that of the store's contents: they were lost before each but the first. It is raised before the tables of
	// any cluster are told, so that what a table notes of an earlier generation never counts for a later one.
	generation atomic.Int64

	began time.Time   // what is only remembered is not newer
	lost  atomic.Bool // some contents were lost since the process started
}

// database is what the mirror needs of the store. Every call may fail, for any time: the
// index does not depend on it.
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

// New returns a mirror of the registry's clusters into the store. defaults say what is mirrored of
// clusters of which neither their spec nor a MirrorPolicy does; nil: every type but those that change all the time.
func New(s *store.Store, r *member.Registry, defaults *clusterv1alpha1.Mirror, log logr.Logger) *Mirror {
	m := newMirror(s, registry{r}, log)
	m.defaults = defaults
	m.metered = true
	m.follow(s)
	return m
}

// follow learns from the store when what was written to it is lost.
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
			if err == nil || errors.As(err, &rejected) { // else the database would be waited for once more
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

// Start observes until ctx ends, and returns when nothing runs any more. It may be called
// once.
func (m *Mirror) Start(ctx context.Context) error {
	ctx = logr.NewContext(ctx, m.log)
	if m.synced != nil && !toolscache.WaitForCacheSync(ctx.Done(), m.synced) { // else what a policy selects would be dropped first
		return nil
	}
	var running sync.WaitGroup
	m.mu.Lock()
	m.run = func(f func(context.Context)) { running.Go(func() { f(ctx) }) }
	m.mu.Unlock()
	running.Go(func() { m.writer.run(ctx) })
	running.Go(func() { m.recall(ctx); m.dropAbsent(ctx) })
	if m.metered {
		if err := prometheus.Register(lags{m}); err != nil { // nothing else depends on it
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
	m.run = func(f func(context.Context)) { go f(ctx) } // which has ended
	m.mu.Unlock()
	running.Wait()
	return nil
}

// changed follows the registry.
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

// Require mirrors a kind in every cluster that serves it, whatever the cluster's
// spec.mirror says.
func (m *Mirror) Require(gvk schema.GroupVersionKind) {
	if (*m.required.Load())[gvk] {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	required := maps.Clone(*m.required.Load())
	required[gvk] = true
	m.required.Store(&required)
	for _, c := range *m.clusters.Load() { // one that compares with what was required before does it again
		c.wakeUp()
		if gvk == quotaKind { // what is free is known again when they are
			c.mu.Lock()
			c.measured()
			c.mu.Unlock()
		}
	}
}

// Follow makes the mirror follow the hub's MirrorPolicies and Clusters. It is called before Start,
// which waits until all are known.
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

// setPolicy takes in a MirrorPolicy; nil: there is none of that name any more. Every cluster compares what is mirrored with
// what should be.
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

// dropping says how many drop a cluster right now, and whether one of its name is to be mirrored since.
type dropping struct {
	by     int
	putOff bool
}

// Drop stops observing a cluster and forgets everything that was observed of it. The
// cluster is mirrored again when a Cluster with another UID has its name.
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

// Stale says since when a cluster has not been reachable: what is known of it is as old.
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

// Type is a type that search can answer for: one version in one scope.
type Type struct {
	member.API
	Clusters []string // that have it so, by name
}

// recall asks the store, until it answers, for the types that it has of clusters.
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

// Recalled is true once it is known which types the store has of which clusters. Until then a type that no cluster has may be one that
// is stored all the same.
func (m *Mirror) Recalled() bool { return m.remembered.Load() != nil }

// remembers returns the types that the store has of a cluster that is not mirrored yet.
func (m *Mirror) remembers(name string) []member.API {
	if r := m.remembered.Load(); r != nil {
		return (*r)[name]
	}
	return nil
}

// forget ends that: the cluster itself knows them, or is dropped. mu must be locked.
func (m *Mirror) forget(name string) {
	if len(m.remembers(name)) == 0 {
		return
	}
	remembered := maps.Clone(*m.remembered.Load())
	delete(remembered, name)
	m.remembered.Store(&remembered)
}

// Types returns what is mirrored, by group, resource, version and scope.
func (m *Mirror) Types() []Type {
	type served struct {
		cluster string
		api     member.API
	}
	var all []served
	remembered, running := m.remembered.Load(), m.clusters.Load() // in this order: a cluster that begins to run is among these before it is not among those
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

// GroupTypes sums up the types of clusters, which come by name. A type that clusters have
// in different versions, or namespaced here and not there, is as many Types.
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

// Stored says whether the store has everything that was seen of a type in a cluster: a
// search of it is then as complete as what was last seen.
func (m *Mirror) Stored(cluster string, gr schema.GroupResource) bool {
	t, unlock := m.table(cluster, gr)
	defer unlock()
	return t != nil && t.complete() && m.writer.problem() == nil
}

// Lost says whether what was stored of a type in a cluster was lost and not read again.
func (m *Mirror) Lost(cluster string, gr schema.GroupResource) bool {
	if !m.lost.Load() {
		return false
	}
	t, unlock := m.table(cluster, gr)
	defer unlock()
	return t == nil || !t.complete()
}

// Observation sums up a cluster for its status.
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

// storeTurned is called when the store begins or ceases to fail. gaveUp are the tables of
// which changes were given up; their clusters have them still.
func (m *Mirror) storeTurned(gaveUp []*table) {
	for _, t := range gaveUp {
		t.cluster.mu.Lock()
		t.forgetStored()
		t.cluster.mu.Unlock()
	}
	m.relist(m.all(), gaveUp)
}

// storeLost is called when everything that was stored is lost: all of it is read from the
// clusters again. The index knows what it knew.
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

// cluster finds a cluster; nil: it is not mirrored.
func (m *Mirror) cluster(name string) *cluster {
	return (*m.clusters.Load())[name]
}

// replace makes c the cluster of a name, or none; mu must be locked.
func (m *Mirror) replace(name string, c *cluster) {
	clusters := maps.Clone(*m.clusters.Load())
	clusters[name] = c
	if c == nil {
		delete(clusters, name)
	}
	m.clusters.Store(&clusters)
}

// all returns the clusters that are mirrored.
func (m *Mirror) all() []*cluster {
	return slices.Collect(maps.Values(*m.clusters.Load()))
}

// Subscribe calls f after every change to the index. It must not block.
func (m *Mirror) Subscribe(f func(Event)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	subscribers := append(slices.Clone(*m.subscribers.Load()), f)
	m.subscribers.Store(&subscribers)
}

// notify tells the subscribers; no part of the index must be locked.
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
