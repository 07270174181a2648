package mirror

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/store"
)

// Mirror observes every cluster of the fleet. Start runs it; everything else answers from
// memory.
type Mirror struct {
	store    database
	fleet    fleet
	defaults *clusterv1alpha1.Mirror // for Clusters whose spec does not say what is mirrored; nil: all but noise
	listing  chan struct{}           // held by lists, of all clusters
	log      logr.Logger
	writer   *writer

	// mu guards the index: everything below, and what the clusters hold. It is no RWMutex: of that, each of the thousands of writers
	// at a start would wait for all readers that had come before it, and be scheduled anew.
	mu          sync.Mutex
	run         func(func(ctx context.Context)) // nil until Start
	clusters    map[string]*cluster
	dropped     map[string]types.UID               // clusters that are leaving: not mirrored again under this UID
	placed      map[types.UID]map[string][]*Object // by binding and cluster: one each, nearly always
	required    map[schema.GroupVersionKind]bool
	subscribers []func(Event)

	roomSubscribers []func(cluster string)

	generation int  // of the store's contents: they were lost before each but the first
	lost       bool // some contents were lost since the process started
}

// database is what the mirror needs of the store. Every call may fail, for any time: the
// index does not depend on it.
type database interface {
	Write(ctx context.Context, changes []store.Change) error
	Types(ctx context.Context, cluster string) ([]store.Type, error)
	Keys(ctx context.Context, cluster string, gr schema.GroupResource) ([]store.Key, error)
	Rows(ctx context.Context, cluster string, gr schema.GroupResource, bodies bool, after store.Key, limit int) ([]store.Row, error)
	Epoch(ctx context.Context) (string, error)
	Checkpoint(ctx context.Context, cluster string, gr schema.GroupResource) ([]byte, error)
	SaveCheckpoints(ctx context.Context, checkpoints []store.Checkpoint) error
	SaveType(ctx context.Context, t store.Type) error
	DropType(ctx context.Context, cluster string, gr schema.GroupResource) error
	DropCluster(ctx context.Context, cluster string) error
}

// New returns a mirror of the registry's clusters into the store. defaults say what is mirrored of
// a Cluster whose spec.mirror does not; nil: every type but those that change all the time.
func New(s *store.Store, r *member.Registry, defaults *clusterv1alpha1.Mirror, log logr.Logger) *Mirror {
	m := newMirror(s, registry{r}, log)
	m.defaults = defaults
	m.follow(s)
	return m
}

// follow learns from the store when what was written to it is lost.
func (m *Mirror) follow(s *store.Store) {
	s.OnLoss(m.storeLost)
	n := s.Losses()
	m.mu.Lock()
	m.lost = m.lost || n > 0
	m.mu.Unlock()
	losses.Add(float64(n))
}

func newMirror(s database, f fleet, log logr.Logger) *Mirror {
	m := &Mirror{
		store: s, fleet: f, log: log, listing: make(chan struct{}, listsOfAll),
		clusters: map[string]*cluster{}, dropped: map[string]types.UID{},
		placed: map[types.UID]map[string][]*Object{}, required: map[schema.GroupVersionKind]bool{},
		generation: 1,
	}
	m.writer = newWriter(
		func(ctx context.Context, changes []store.Change) error { return m.store.Write(ctx, changes) },
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
	var running sync.WaitGroup
	m.mu.Lock()
	m.run = func(f func(context.Context)) { running.Go(func() { f(ctx) }) }
	m.mu.Unlock()
	running.Go(func() { m.writer.run(ctx) })
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
		m.run(func(context.Context) {
			if err := m.Drop(e.Name); err != nil { //nolint:contextcheck // begun, it is finished
				m.log.Error(err, "Cluster left, and its mirror could not be dropped; it is when the cluster joins again", "cluster", e.Name)
			}
			m.mu.Lock()
			delete(m.dropped, e.Name)
			m.mu.Unlock()
			// Another cluster may have joined under the name by now.
			m.changed(member.Event{Type: member.Joined, Name: e.Name})
		})
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
	c := m.clusters[e.Name]
	if c == nil {
		c = newCluster(m, e.Name, source)
		m.clusters[e.Name] = c
		m.run(c.run)
	}
	c.reachable(source.Reachable())
	c.wakeUp()
}

// Require mirrors a kind in every cluster that serves it, whatever the cluster's
// spec.mirror says.
func (m *Mirror) Require(gvk schema.GroupVersionKind) {
	m.mu.Lock()
	known := m.required[gvk]
	m.mu.Unlock()
	if known {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.required[gvk] = true
	for _, c := range m.clusters {
		c.wakeUp()
	}
}

// Drop stops observing a cluster and forgets everything that was observed of it. The
// cluster is mirrored again when a Cluster with another UID has its name.
func (m *Mirror) Drop(name string) error {
	m.mu.Lock()
	c := m.clusters[name]
	if c != nil {
		m.dropped[name] = c.source.Cluster().UID
	}
	m.mu.Unlock()
	if c != nil {
		c.stop()
		m.mu.Lock()
		for p, o := range c.placed {
			m.unindex(p, o)
		}
		delete(m.clusters, name)
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
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.clusters[name]
	if c == nil || c.source.Reachable() {
		return time.Time{}, false
	}
	return c.since, true
}

// Type is a type that search can answer for: one version in one scope.
type Type struct {
	member.API
	Clusters []string // that have it so, by name
}

// Types returns what is mirrored, by group, resource, version and scope.
func (m *Mirror) Types() []Type {
	type served struct {
		cluster string
		api     member.API
	}
	var all []served
	m.mu.Lock()
	for name, c := range m.clusters {
		for _, t := range c.tables {
			all = append(all, served{name, t.api})
		}
	}
	m.mu.Unlock()
	// Nobody waits for the index while the types are sorted and summed up.
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
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.table(cluster, gr)
	return t != nil && t.complete() && m.writer.problem() == nil
}

// Lost says whether what was stored of a type in a cluster was lost and not read again.
func (m *Mirror) Lost(cluster string, gr schema.GroupResource) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.table(cluster, gr)
	return m.lost && (t == nil || !t.complete())
}

// Observation sums up a cluster for its status.
func (m *Mirror) Observation(name string) member.Observation {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.clusters[name]
	if c == nil {
		return member.Observation{Message: "mirroring has not started"}
	}
	o := c.progress()
	o.NotStored = m.lost && !o.Synced
	if problem := m.writer.problem(); problem != nil {
		o.Synced, o.NotStored, o.Message = false, true, problem.Error()
	}
	if c.capacityKnown() {
		o.Nodes, o.Resources = c.capacity.summary()
	}
	return o
}

// storeTurned is called when the store begins or ceases to fail. gaveUp are the tables of
// which changes were given up; their clusters have them still.
func (m *Mirror) storeTurned(gaveUp []*table) {
	m.mu.Lock()
	names := slices.Collect(maps.Keys(m.clusters))
	for _, t := range gaveUp {
		t.forgetStored()
	}
	m.mu.Unlock()
	m.relist(names, gaveUp)
}

// storeLost is called when everything that was stored is lost: all of it is read from the
// clusters again. The index knows what it knew.
func (m *Mirror) storeLost() {
	losses.Inc()
	m.mu.Lock()
	m.generation++
	m.lost = true
	names := slices.Collect(maps.Keys(m.clusters))
	var tables []*table
	for _, c := range m.clusters {
		for _, t := range c.tables {
			t.forgetStored()
			tables = append(tables, t)
		}
	}
	m.mu.Unlock()
	m.relist(names, tables)
}

func (m *Mirror) relist(clusters []string, tables []*table) {
	for _, t := range tables {
		t.again()
	}
	for _, name := range clusters {
		m.fleet.Refresh(name)
	}
}

// Subscribe calls f after every change to the index. It must not block.
func (m *Mirror) Subscribe(f func(Event)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.subscribers = append(slices.Clip(m.subscribers), f)
}

// notify tells the subscribers; the index must not be locked.
func (m *Mirror) notify(events ...Event) {
	if len(events) == 0 {
		return
	}
	m.mu.Lock()
	subscribers := m.subscribers
	m.mu.Unlock()
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
