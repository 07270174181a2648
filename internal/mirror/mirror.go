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

// Mirror watches every type of every cluster of the fleet, as far as settings select it. It writes
// the objects to the store, and keeps an index of the objects that Orrery placed in memory. New
// makes a Mirror, and Start runs it. Most other methods read only memory. It may be used from
// several goroutines.
type Mirror struct {
	store database
	fleet fleet
	// Defaults for clusters whose spec and MirrorPolicies say nothing about the mirror. nil:
	// every type except those that change all the time.
	defaults *clusterv1alpha1.Mirror
	listing  chan struct{} // semaphore for concurrent lists of all clusters
	log      logr.Logger
	writer   *writer
	metered  bool // Start registers the metrics of lags

	mostListed int // the constant mostListed, except in tests

	// Each cluster has its own lock, so that a thousand clusters that are read at once do not
	// wait for each other. Lock order: mu, the lock of a cluster, the lock of bindings.
	mu sync.Mutex
	// Reports whether every MirrorPolicy of the hub is known. nil: Follow was not called.
	synced func() bool
	known  map[string]policy               // MirrorPolicies by name
	run    func(func(ctx context.Context)) // runs a goroutine that Start waits for; nil until Start
	// UIDs of clusters that are leaving, by name. A cluster with this name and UID is not mirrored
	// again.
	dropped map[string]types.UID
	// Clusters whose rows are being deleted, by name. A cluster with that name is mirrored only
	// after that.
	dropping map[string]*dropping
	bindings bindings
	onHub    map[string]bool // clusters that the hub has
	// Reports whether onHub is complete. nil: Follow was not called.
	hubKnown func() bool
	// Returns the timer after which rows of clusters that are not on the hub are deleted:
	// absentFor, except in tests.
	absent func() <-chan time.Time
	// Types with stored rows that the store has no record of, by cluster.
	strays map[string][]schema.GroupResource

	incomplete incomplete

	// The values behind the pointers below are replaced while mu is held, and never changed. They
	// are read for each event, without a lock.
	clusters atomic.Pointer[map[string]*cluster]
	// Stored types of clusters that are not in clusters yet. nil: the store has not returned them
	// yet.
	remembered          atomic.Pointer[map[string][]member.API]
	required            atomic.Pointer[map[schema.GroupVersionKind]bool]
	policies            atomic.Pointer[[]policy]
	subscribers         atomic.Pointer[[]func(Event)]
	capacitySubscribers atomic.Pointer[[]func(cluster string)]

	// generation counts the losses of the store's contents, from 1. It is incremented before the
	// tables of any cluster learn of the loss. So a table that records an earlier generation
	// never counts as complete in a later one.
	generation atomic.Int64

	began time.Time   // when the Mirror was made; data from the store is not newer
	lost  atomic.Bool // the store lost its contents since the process started
}

// database is the part of store.Store that the mirror uses. Every call may fail, for any length of
// time. The index in memory does not depend on it.
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

// New returns a mirror of the clusters of the registry r into the store s. It observes nothing
// before Start. defaults apply to clusters whose spec.mirror and MirrorPolicies select no types;
// nil: every type except those that change all the time (see noise). New also subscribes to losses
// of the store's contents.
func New(s *store.Store, r *member.Registry, defaults *clusterv1alpha1.Mirror, log logr.Logger) *Mirror {
	m := newMirror(s, registry{r}, log)
	m.defaults = defaults
	m.metered = true
	m.follow(s)
	return m
}

// follow makes every table list its type again when the store loses its contents, and counts the
// losses that happened before the call.
func (m *Mirror) follow(s *store.Store) {
	s.OnLoss(m.storeLost)
	n := s.Losses()
	if n > 0 {
		m.lost.Store(true)
	}
	losses.Add(float64(n))
}

// newMirror returns a mirror without defaults, which registers no metrics and does not learn of
// losses of the store. New and tests call it.
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
	m.capacitySubscribers.Store(&[]func(string){})
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

// Start mirrors the clusters until ctx ends, and returns nil when all goroutines have ended. If
// Follow was called, Start first waits until all MirrorPolicies are known. It may be called once.
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

// changed handles an event of the registry of members: a cluster joined, changed or left. For a new
// cluster it starts to mirror it, unless rows of a cluster with that name are being deleted. It
// does not block. It must not be called before Start has set m.run.
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

// Require makes the mirror include a kind from every cluster that serves it, even if settings
// exclude it. Placement calls it for the kinds that it places. Require returns before the kind is
// listed, and may be called again. The effect lasts as long as the process. Once ResourceQuotas are
// required, the free capacity of a cluster is unknown until its quotas are listed.
func (m *Mirror) Require(gvk schema.GroupVersionKind) {
	if (*m.required.Load())[gvk] {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	required := maps.Clone(*m.required.Load())
	required[gvk] = true
	m.required.Store(&required)
	// A cluster that is being compared with the previous requirements is compared once more.
	for _, c := range *m.clusters.Load() {
		c.wakeUp()
		if gvk == quotaKind { // free capacity is unknown until the quotas are listed
			c.mu.Lock()
			c.measured()
			c.mu.Unlock()
		}
	}
}

// Follow watches the MirrorPolicies and the Clusters of the hub. It must be called before Start,
// which then waits until all MirrorPolicies are known. Without Follow, no MirrorPolicy applies, and
// rows of clusters that the hub does not have are kept.
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

// setPolicy stores the MirrorPolicy with a name; a nil p removes it. Every cluster then compares
// what it mirrors with the policies.
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

// dropping counts the deletions of rows that run for one cluster name. putOff is true if a cluster
// with that name joined meanwhile, and must be mirrored when the deletions have ended.
type dropping struct {
	by     int // number of deletions
	putOff bool
}

// Drop stops mirroring a cluster, removes it from the index without events, and deletes its rows.
// It blocks until that is done. After an error rows may remain, and the caller calls Drop again. A
// cluster with that name is mirrored again only if its Cluster has another UID. For a cluster that
// is not mirrored, Drop only deletes rows.
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

// Stale returns since when the data of a cluster is not current. stale is false, and since zero, if
// the cluster is reachable, or the mirror has nothing of it. since is the start of the mirror for a
// cluster that only the store knows, because it did not join yet since the start. It is zero, with
// stale true, for a cluster that the hub never reached.
func (m *Mirror) Stale(name string) (since time.Time, stale bool) {
	c := m.cluster(name)
	if c == nil {
		if len(m.remembers(name)) == 0 {
			return time.Time{}, false
		}
		return m.began, true
	}
	if c.source.Reachable() {
		return time.Time{}, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.everReached() {
		return time.Time{}, true
	}
	return c.lastReached(), true
}

// Type is one version of a type, either namespaced or cluster-scoped, with the clusters from which
// it is mirrored. Search reads it. The embedded API is that of one of these clusters.
type Type struct {
	member.API
	Clusters []string // names, sorted
}

// recall reads from the store which clusters and types it has, and retries until the store answers
// or ctx ends. Stored types of clusters that did not join yet can then be searched.
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

// Recalled reports whether the store has returned which types it has. Before that, a type that no
// cluster serves may still be stored. Once true, it stays true.
func (m *Mirror) Recalled() bool { return m.remembered.Load() != nil }

// remembers returns the types that the store has of a cluster that is not mirrored yet. It is nil
// if there are none, if the store has not answered yet, and for a mirrored cluster.
func (m *Mirror) remembers(name string) []member.API {
	if r := m.remembered.Load(); r != nil {
		return (*r)[name]
	}
	return nil
}

// forget removes what remembers returns for a cluster, because the cluster is mirrored now or its
// rows are being deleted. The caller holds m.mu.
func (m *Mirror) forget(name string) {
	if len(m.remembers(name)) == 0 {
		return
	}
	remembered := maps.Clone(*m.remembered.Load())
	delete(remembered, name)
	m.remembered.Store(&remembered)
}

// Types returns all mirrored types, and the stored types of clusters that are not mirrored yet.
// They are sorted by group, resource, version and scope: namespaced, then cluster-scoped. The
// caller may change the result, but not the slices in each API.
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

// GroupTypes merges pairs of a cluster and a type that it serves, sorted by cluster, into one Type
// for each version and scope, with its clusters. The result is sorted by group, resource, version
// and scope: namespaced, then cluster-scoped.
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

// Stored reports whether the store was passed everything that was observed of a type in a cluster.
// Then a search of the type is as complete as the last observation, which may be old: see
// Freshness. It is false for a type that is not mirrored, and for all types while the store fails.
func (m *Mirror) Stored(cluster string, gr schema.GroupResource) bool {
	t, unlock := m.table(cluster, gr)
	defer unlock()
	return t != nil && t.complete() && m.writer.problem() == nil
}

// Lost reports whether the store lost the rows of a type in a cluster and the type was not listed
// again. If the store has lost its contents since the process started, Lost is also true for a type
// that is not mirrored, or was never listed.
func (m *Mirror) Lost(cluster string, gr schema.GroupResource) bool {
	if !m.lost.Load() {
		return false
	}
	t, unlock := m.table(cluster, gr)
	defer unlock()
	return t == nil || !t.complete()
}

// Observation returns a summary of the mirror of a cluster for the status of its Cluster. The
// option member.Options.Observe is this method. For a cluster that is not mirrored, Synced is
// false.
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

// storeTurned is called when the store begins to fail, or works again. It requests a new status for
// all clusters. gaveUp are the tables with changes that were not written and are lost. Their types
// are listed again, since the clusters still have the objects. The caller must hold no lock.
func (m *Mirror) storeTurned(gaveUp []*table) {
	for _, t := range gaveUp {
		t.cluster.mu.Lock()
		t.forgetStored()
		t.cluster.mu.Unlock()
	}
	m.relist(m.all(), gaveUp)
}

// storeLost is called when the store has lost all its contents. It makes every table list its type
// in its cluster again. The index in memory keeps its contents. The caller must hold no lock.
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

// relist makes each of the tables list its type in its cluster again, and requests a new status for
// each of the clusters. It does not wait for the lists.
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

// replace sets the mirrored cluster with a name; a nil c removes it. The caller holds m.mu.
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

// Subscribe registers f, which is called after every change of the index, except for the changes by
// Drop. The mirror holds no lock during the call. f must not block. Several goroutines may call f
// at once, so the events of one object may come in another order than its changes.
func (m *Mirror) Subscribe(f func(Event)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	subscribers := append(slices.Clone(*m.subscribers.Load()), f)
	m.subscribers.Store(&subscribers)
}

// notify calls the functions of Subscribe with each event, in order. The caller must hold neither
// m.mu nor the lock of a cluster.
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

// cmpResource compares types by group, and then by resource.
func cmpResource(a, b schema.GroupResource) int {
	if c := strings.Compare(a.Group, b.Group); c != 0 {
		return c
	}
	return strings.Compare(a.Resource, b.Resource)
}
