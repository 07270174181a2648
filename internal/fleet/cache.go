package fleet

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	"orrery.dev/orrery/internal/access"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/scheduler"
)

// Source provides the state of the clusters that their objects on the hub do not have.
type Source interface {
	// Contact reports whether a cluster answers, and which kinds it serves; nil: unknown. The
	// result is false and nil if the connected cluster has another UID.
	Contact(cluster string, uid types.UID) (reachable bool, apis scheduler.APIs)
	// Room returns a cluster's free capacity; nil while it is unknown. The result is immutable,
	// and is the same value until the capacity changes.
	Room(cluster string) Room
	// Subscribe calls changed when the result of Contact for a cluster may have changed, or its
	// free capacity became known. It calls measured when the free capacity changed. The source
	// holds locks during measured, so measured must not call the source.
	Subscribe(changed, measured func(cluster string))
}

// Room is the measured free capacity of a cluster.
type Room interface {
	scheduler.Room
	// Without returns the capacity left after the taken replicas. Their order does not matter.
	Without(taken []scheduler.Taken) scheduler.Room
}

// Cache keeps the current snapshot.
type Cache struct {
	source  Source
	synced  []toolscache.InformerSynced
	current atomic.Pointer[Snapshot]
	// fences is true if the rules of access changed after the current snapshot. The next reader
	// applies them, so that many new namespaces at once cause one snapshot.
	fences atomic.Bool

	mu           sync.Mutex // serializes changes
	objects      map[string]*clusterv1alpha1.Cluster
	rules        *access.Rules
	made         map[string]time.Time // creation times of the hub's namespaces
	subscribers  []func(Change)
	fenceChanged []func(namespaces sets.Set[string])

	unmeasured struct {
		sync.Mutex
		clusters sets.Set[string] // clusters whose free capacity changed since the last Measured
		reserved map[string]*reserved
	}
}

// NewCache returns a cache that is filled from the informers once they run. byDefault decides
// for namespaces that no ClusterAccess selects.
func NewCache(ctx context.Context, informers cache.Informers, source Source, byDefault access.Default) (*Cache, error) {
	c := newCache(source, byDefault)
	clusters, err := binding.Watch(ctx, informers, &clusterv1alpha1.Cluster{}, asCluster, c.changed)
	if err != nil {
		return nil, err
	}
	log := logr.FromContextOrDiscard(ctx).WithName("fleet")
	accesses, err := binding.Watch(ctx, informers, &policyv1alpha1.ClusterAccess{}, asAccess, func(before, after *policyv1alpha1.ClusterAccess) {
		if err := c.accessChanged(before, after); err != nil {
			log.Error(err, "a ClusterAccess cannot be read, and lets no namespace in", "clusteraccess", after.Name)
		}
	})
	if err != nil {
		return nil, err
	}
	namespace := &metav1.PartialObjectMetadata{} // only metadata is read
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	namespaces, err := binding.Watch(ctx, informers, namespace, asNamespace, c.namespaceChanged)
	c.synced = []toolscache.InformerSynced{clusters, accesses, namespaces}
	return c, err
}

func newCache(source Source, byDefault access.Default) *Cache {
	c := &Cache{source: source, objects: map[string]*clusterv1alpha1.Cluster{}, rules: access.NewRules(byDefault), made: map[string]time.Time{}}
	c.unmeasured.clusters, c.unmeasured.reserved = sets.New[string](), map[string]*reserved{}
	c.current.Store(NewSnapshot(0).WithAccess(access.Unknown()))
	c.fences.Store(true)
	source.Subscribe(c.refresh, c.mark)
	return c
}

func asAccess(o any) *policyv1alpha1.ClusterAccess {
	a, _ := o.(*policyv1alpha1.ClusterAccess)
	return a
}

func asNamespace(o any) *metav1.PartialObjectMetadata {
	n, _ := o.(*metav1.PartialObjectMetadata)
	return n
}

func asCluster(o any) *clusterv1alpha1.Cluster {
	c, _ := o.(*clusterv1alpha1.Cluster)
	return c
}

// Synced reports whether every Cluster, ClusterAccess and Namespace that the hub had at the
// start is in the snapshot. Until then no namespace may use any cluster.
func (c *Cache) Synced() bool {
	return !slices.ContainsFunc(c.synced, func(synced toolscache.InformerSynced) bool { return !synced() })
}

// Snapshot returns the fleet as it is known now. Its free capacities may be older.
func (c *Cache) Snapshot() *Snapshot {
	if c.fences.Load() && c.Synced() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.fence()
	}
	return c.current.Load()
}

// fence applies changed rules of access to the snapshot. The caller holds mu.
func (c *Cache) fence() {
	if c.Synced() && c.fences.Swap(false) {
		c.current.Store(c.current.Load().WithAccess(c.rules.Set()))
	}
}

// Measured returns the fleet as it is known now, with the present free capacities: the measured
// capacity less the reservations.
func (c *Cache) Measured() *Snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fence()
	c.unmeasured.Lock()
	var names sets.Set[string]
	if c.unmeasured.clusters.Len() > 0 { // an empty set stays in use
		names, c.unmeasured.clusters = c.unmeasured.clusters, sets.New[string]()
	}
	c.unmeasured.Unlock()
	rooms := make(map[string]scheduler.Room, names.Len())
	for name := range names {
		rooms[name] = c.room(name)
	}
	c.current.Store(c.current.Load().withRooms(rooms))
	return c.current.Load()
}

// Subscribe registers f to be called after each change that may affect a decision. f must not
// block.
func (c *Cache) Subscribe(f func(Change)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.subscribers = append(c.subscribers, f)
}

// SubscribeFences registers f to be called when namespaces may use other clusters than before,
// because of a ClusterAccess or of the namespaces' labels. Subscribe reports changes of
// Clusters. f must not block.
func (c *Cache) SubscribeFences(f func(namespaces sets.Set[string])) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fenceChanged = append(c.fenceChanged, f)
}

// accessChanged applies a change of a ClusterAccess. The error names the part that cannot be
// read.
func (c *Cache) accessChanged(before, after *policyv1alpha1.ClusterAccess) error {
	c.mu.Lock()
	var changed []string
	var err error
	if after != nil {
		changed, err = c.rules.Access(after)
	} else {
		changed = c.rules.RemoveAccess(before.Name)
	}
	c.fences.Store(true)
	subscribers := c.fenceChanged
	c.mu.Unlock()
	tell(subscribers, changed...)
	return err
}

// namespaceChanged applies a change of a namespace of the hub.
func (c *Cache) namespaceChanged(before, after *metav1.PartialObjectMetadata) {
	c.mu.Lock()
	changed := false
	if after != nil {
		changed = c.rules.Namespace(after.Name, after.Labels)
		// The namespace was created again, and its deletion was not seen.
		if before != nil && before.UID != after.UID {
			changed = true
		}
		c.made[after.Name] = after.CreationTimestamp.Time
	} else {
		c.rules.RemoveNamespace(before.Name)
		delete(c.made, before.Name)
	}
	if changed || after == nil {
		c.fences.Store(true)
	}
	subscribers := c.fenceChanged
	c.mu.Unlock()
	if changed {
		tell(subscribers, after.Name)
	}
}

// Made returns the creation time of a namespace of the hub; false: the namespace is unknown.
func (c *Cache) Made(namespace string) (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	made, ok := c.made[namespace]
	return made, ok
}

func tell(subscribers []func(sets.Set[string]), namespaces ...string) {
	if len(namespaces) == 0 {
		return
	}
	for _, f := range subscribers {
		f(sets.New(namespaces...))
	}
}

// changed applies a change of a Cluster object.
func (c *Cache) changed(before, after *clusterv1alpha1.Cluster) {
	c.mu.Lock()
	if after != nil {
		c.objects[after.Name] = after
	} else {
		delete(c.objects, before.Name)
	}
	c.mu.Unlock()
	if after != nil {
		c.refresh(after.Name)
	} else {
		c.refresh(before.Name)
	}
}

// mark records that a cluster's free capacity changed.
func (c *Cache) mark(cluster string) {
	c.unmeasured.Lock()
	defer c.unmeasured.Unlock()
	c.unmeasured.clusters.Insert(cluster)
}

// refresh updates one cluster of the snapshot and notifies the subscribers.
func (c *Cache) refresh(name string) {
	c.mu.Lock()
	before, _ := c.current.Load().Cluster(name)
	var after *Cluster
	if o := c.objects[name]; o != nil {
		after = c.look(o, before)
	}
	what := c.put(before, after)
	subscribers := c.subscribers
	c.mu.Unlock()
	if what == 0 {
		return
	}
	for _, f := range subscribers {
		f(Change{Name: name, What: what, Before: before, After: after})
	}
}

// put stores the next snapshot if the cluster changed, and returns what changed. The caller
// holds mu.
func (c *Cache) put(before, after *Cluster) Aspect {
	what, same := compare(before, after)
	if same {
		return 0
	}
	c.current.Store(c.current.Load().with(cmp.Or(after, before).Name, after))
	return what
}

// look returns the present state of a cluster. The free capacity is that of before, if it is
// known.
func (c *Cache) look(o *clusterv1alpha1.Cluster, before *Cluster) *Cluster {
	after := &Cluster{
		Name: o.Name, UID: o.UID, Labels: labels.Set(o.Labels), Provider: o.Spec.Provider, Region: o.Spec.Region,
		Zones: o.Spec.Zones, Taints: o.Spec.Taints, Leaving: !o.DeletionTimestamp.IsZero(), Joined: o.Status.ID != "",
		Expected: meta.IsStatusConditionTrue(o.Status.Conditions, clusterv1alpha1.ConditionReady),
	}
	if profile := o.Spec.Profile(); profile != clusterv1alpha1.AgentProfileAll {
		after.Bounds = &scheduler.Bounds{Profile: string(profile), Namespaces: o.Spec.PlacementNamespaces()}
	}
	after.Reachable, after.APIs = c.source.Contact(o.Name, o.UID)
	if before != nil && before.UID == o.UID && before.Room != nil {
		after.Room = before.Room
	} else {
		after.Room = c.room(o.Name)
	}
	return after
}
