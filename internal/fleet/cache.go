package fleet

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
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
	Room(cluster string) scheduler.Room
	// Subscribe calls changed when what Contact says of a cluster may have changed, or its
	// Room became known, and measured when its Room changed. measured is called with locks
	// held: it does not ask the source.
	Subscribe(changed, measured func(cluster string))
}

// Cache keeps the current snapshot.
type Cache struct {
	source  Source
	synced  toolscache.InformerSynced
	current atomic.Pointer[Snapshot]

	mu          sync.Mutex // one change after another
	objects     map[string]*clusterv1alpha1.Cluster
	subscribers []func(Change)

	unmeasured struct {
		sync.Mutex
		clusters sets.Set[string] // of which the free capacity changed since it was looked at
	}
}

// NewCache returns a cache that follows the informers once they run.
func NewCache(ctx context.Context, informers cache.Informers, source Source) (*Cache, error) {
	c := &Cache{source: source, objects: map[string]*clusterv1alpha1.Cluster{}}
	c.unmeasured.clusters = sets.New[string]()
	c.current.Store(NewSnapshot(0))
	source.Subscribe(c.refresh, c.mark)
	synced, err := binding.Watch(ctx, informers, &clusterv1alpha1.Cluster{}, asCluster, c.changed)
	c.synced = synced
	return c, err
}

func asCluster(o any) *clusterv1alpha1.Cluster {
	c, _ := o.(*clusterv1alpha1.Cluster)
	return c
}

// Synced is true once every Cluster that the hub had at the start is in the snapshot.
func (c *Cache) Synced() bool { return c.synced() }

// Snapshot is the fleet as it is known now. The free capacities in it may be older.
func (c *Cache) Snapshot() *Snapshot { return c.current.Load() }

// Measured is the fleet as it is known now, with the free capacities of now.
func (c *Cache) Measured() *Snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unmeasured.Lock()
	names := c.unmeasured.clusters
	if names.Len() > 0 {
		c.unmeasured.clusters = sets.New[string]()
	}
	c.unmeasured.Unlock()
	for name := range names {
		if before, ok := c.Snapshot().Cluster(name); ok {
			after := *before
			after.Room = c.source.Room(name)
			c.put(before, &after)
		}
	}
	return c.Snapshot()
}

// Subscribe calls f after each change that matters to a decision. f must not block.
func (c *Cache) Subscribe(f func(Change)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.subscribers = append(c.subscribers, f)
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
	before, _ := c.Snapshot().Cluster(name)
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
	c.current.Store(c.Snapshot().with(cmp.Or(after, before).Name, after))
	return what
}

// look is what is known of a cluster now.
func (c *Cache) look(o *clusterv1alpha1.Cluster, before *Cluster) *Cluster {
	after := &Cluster{
		Name: o.Name, UID: o.UID, Labels: labels.Set(o.Labels), Provider: o.Spec.Provider, Region: o.Spec.Region,
		Zones: o.Spec.Zones, Taints: o.Spec.Taints, Leaving: !o.DeletionTimestamp.IsZero(), Joined: o.Status.ID != "",
		Expected: meta.IsStatusConditionTrue(o.Status.Conditions, clusterv1alpha1.ConditionReady),
	}
	after.Reachable, after.APIs = c.source.Contact(o.Name, o.UID)
	if before != nil && before.UID == o.UID && before.Room != nil {
		after.Room = before.Room
	} else {
		after.Room = c.source.Room(o.Name)
	}
	return after
}
