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

// Source is what is known of the clusters beyond their objects on the hub.
type Source interface {
	// Contact says whether a cluster answers, and which kinds it serves (nil: nothing is
	// known). Of a cluster that joined with another UID nothing is known.
	Contact(cluster string, uid types.UID) (reachable bool, apis scheduler.APIs)
	// Room is a cluster's free capacity; nil while it is not known. What it returns does not
	// change, and is the same as before while nothing did.
	Room(cluster string) Room
	// Subscribe calls changed when what Contact says of a cluster may have changed, or its
	// Room became known, and measured when its Room changed. measured is called with locks
	// held: it does not ask the source.
	Subscribe(changed, measured func(cluster string))
}

// Room is a cluster's free capacity as it was measured.
type Room interface {
	scheduler.Room
	// Without is the room that is left when replicas have taken theirs, in whatever order they come.
	Without(taken []scheduler.Taken) scheduler.Room
}

// Cache keeps the current snapshot.
type Cache struct {
	source  Source
	synced  []toolscache.InformerSynced
	current atomic.Pointer[Snapshot]
	// fences is true when the current snapshot does not say yet which clusters namespaces may
	// use now: many namespaces that come at once are one snapshot.
	fences atomic.Bool

	mu           sync.Mutex // one change after another
	objects      map[string]*clusterv1alpha1.Cluster
	rules        *access.Rules
	made         map[string]time.Time // the hub's namespaces
	subscribers  []func(Change)
	fenceChanged []func(namespaces sets.Set[string])

	unmeasured struct {
		sync.Mutex
		clusters sets.Set[string] // of which the free capacity changed since it was looked at
		reserved map[string]*reserved
	}
}

// NewCache returns a cache that follows the informers once they run. A namespace that no
// ClusterAccess selects may use what byDefault says.
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
	namespace := &metav1.PartialObjectMetadata{} // their metadata is enough
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

// Synced is true once every Cluster that the hub had at the start is in the snapshot, and every
// ClusterAccess and Namespace. Until then no namespace may use any cluster.
func (c *Cache) Synced() bool {
	return !slices.ContainsFunc(c.synced, func(synced toolscache.InformerSynced) bool { return !synced() })
}

// Snapshot is the fleet as it is known now. The free capacities in it may be older.
func (c *Cache) Snapshot() *Snapshot {
	if c.fences.Load() && c.Synced() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.fence()
	}
	return c.current.Load()
}

// fence brings what namespaces may use up to date in the snapshot. The cache must be locked.
func (c *Cache) fence() {
	if c.Synced() && c.fences.Swap(false) {
		c.current.Store(c.current.Load().WithAccess(c.rules.Set()))
	}
}

// Measured is the fleet as it is known now, with the free capacities of now: what is measured less
// what is reserved.
func (c *Cache) Measured() *Snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fence()
	c.unmeasured.Lock()
	var names sets.Set[string]
	if c.unmeasured.clusters.Len() > 0 { // an empty one is not taken: others go on filling it
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

// Subscribe calls f after each change that matters to a decision. f must not block.
func (c *Cache) Subscribe(f func(Change)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.subscribers = append(c.subscribers, f)
}

// SubscribeFences calls f when namespaces may use other clusters than before, because of a
// ClusterAccess or of their labels; a change of a Cluster is told by Subscribe. f must not block.
func (c *Cache) SubscribeFences(f func(namespaces sets.Set[string])) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fenceChanged = append(c.fenceChanged, f)
}

// accessChanged follows the ClusterAccesses. The error says what of one cannot be read.
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

// namespaceChanged follows the hub's namespaces.
func (c *Cache) namespaceChanged(before, after *metav1.PartialObjectMetadata) {
	c.mu.Lock()
	changed := false
	if after != nil {
		changed = c.rules.Namespace(after.Name, after.Labels)
		if before != nil && before.UID != after.UID { // made anew, and its deletion was not seen
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

// Made is when a namespace of the hub was made; false: no such namespace is known.
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

// changed follows the Cluster objects.
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

// mark notes that a cluster's free capacity changed.
func (c *Cache) mark(cluster string) {
	c.unmeasured.Lock()
	defer c.unmeasured.Unlock()
	c.unmeasured.clusters.Insert(cluster)
}

// refresh brings one cluster of the snapshot up to date.
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

// put makes the next snapshot if a cluster is not as it was. The cache must be locked.
func (c *Cache) put(before, after *Cluster) Aspect {
	what, same := compare(before, after)
	if same {
		return 0
	}
	c.current.Store(c.current.Load().with(cmp.Or(after, before).Name, after))
	return what
}

// look is what is known of a cluster now.
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
