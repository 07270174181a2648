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
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/scheduler"
)

// Source provides the state of clusters that the hub does not store: whether they answer, what they
// serve, and their free capacity. Members implements it.
type Source interface {
	// Contact returns what is known of the contact with a cluster. It is the zero Contact if no
	// cluster with that name and UID is connected.
	Contact(cluster string, uid types.UID) Contact
	// FreeCapacity returns a cluster's free capacity, which is immutable; nil while it is unknown.
	// Until the capacity changes, the results are equal with ==.
	FreeCapacity(cluster string) FreeCapacity
	// Subscribe registers two functions. changed is called when the result of Contact for a cluster
	// may have changed, or its free capacity became known. measured is called when the free capacity
	// of a cluster changed. The source holds locks during measured, so measured must not call the
	// source.
	Subscribe(changed, measured func(cluster string))
}

// Contact is what this process knows of the contact with a cluster. The zero value stands for a
// cluster that was not probed yet.
type Contact struct {
	member.Contact
	// APIs are the kinds that the cluster serves; nil: unknown.
	APIs scheduler.APIs
}

// FreeCapacity is the measured free capacity of a cluster, from which capacity that is taken can be
// subtracted.
type FreeCapacity interface {
	scheduler.FreeCapacity
	// Without returns the capacity that remains when the replicas in taken are placed in the cluster.
	// The order of taken does not matter.
	Without(taken []scheduler.Taken) scheduler.FreeCapacity
}

// Cache keeps the current Snapshot of the fleet: the state of all clusters, and the rules by which
// namespaces may use clusters. It is made from the Clusters, ClusterAccesses and Namespaces of the
// hub and from a Source. It may be used from several goroutines, and holds no lock while it calls
// subscribers.
type Cache struct {
	source  Source
	synced  []toolscache.InformerSynced
	current atomic.Pointer[Snapshot]
	// fences is true if the rules by which namespaces may use clusters changed after the current
	// snapshot. The next reader applies them. So many new namespaces at once cause one new snapshot.
	fences atomic.Bool

	mu           sync.Mutex // serializes changes
	objects      map[string]*clusterv1alpha1.Cluster
	rules        *access.Rules                       // by which namespaces may use clusters
	made         map[string]time.Time                // creation times of the hub's namespaces
	subscribers  []func(Change)                      // see Subscribe
	fenceChanged []func(namespaces sets.Set[string]) // see SubscribeFences

	unmeasured struct {
		sync.Mutex
		clusters sets.Set[string]     // clusters whose free capacity changed since the last Measured
		reserved map[string]*reserved // by cluster
	}
}

// NewCache returns a cache that the informers fill once they run; see Synced. byDefault says which
// clusters namespaces may use that no ClusterAccess selects. The cache also subscribes to source.
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

// newCache returns a cache without informers. Its Synced returns true. NewCache and tests call it.
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

// Synced reports whether the snapshot has every Cluster, ClusterAccess and Namespace that the hub
// had at the start. Before that, no namespace may use any cluster.
func (c *Cache) Synced() bool {
	return !slices.ContainsFunc(c.synced, func(synced toolscache.InformerSynced) bool { return !synced() })
}

// Snapshot returns the current snapshot of the fleet, never nil. The amounts of free capacity in it
// may be old. Measured updates them.
func (c *Cache) Snapshot() *Snapshot {
	if c.fences.Load() && c.Synced() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.fence()
	}
	return c.current.Load()
}

// fence stores a snapshot with the present rules by which namespaces may use clusters, if they
// changed and the cache is synced. The caller holds c.mu.
func (c *Cache) fence() {
	if c.Synced() && c.fences.Swap(false) {
		c.current.Store(c.current.Load().WithAccess(c.rules.Set()))
	}
}

// Measured returns the current snapshot with the present free capacity of each cluster: what its
// nodes and quotas can take, less what Reserve has reserved. It stores the result as the current
// snapshot. If only an amount of free capacity changed, subscribers are not called.
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
	capacities := make(map[string]scheduler.FreeCapacity, names.Len())
	for name := range names {
		capacities[name] = c.freeCapacity(name)
	}
	c.current.Store(c.current.Load().withCapacities(capacities))
	return c.current.Load()
}

// Subscribe registers f to be called after each change of a cluster that may affect a decision. f
// must not block, and several goroutines may call it at once. It is not called for clusters that
// the snapshot has already.
func (c *Cache) Subscribe(f func(Change)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.subscribers = append(c.subscribers, f)
}

// SubscribeFences registers f to be called with namespaces of the hub that may use other clusters
// than before. The cause is a ClusterAccess, the labels of the namespaces, or that a namespace was
// created again. f is not called for a deleted namespace, nor because a Cluster changed, which
// Subscribe reports. f must not block.
func (c *Cache) SubscribeFences(f func(namespaces sets.Set[string])) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fenceChanged = append(c.fenceChanged, f)
}

// accessChanged applies a ClusterAccess that was added (before is nil), changed or deleted (after
// is nil), and notifies the functions of SubscribeFences. The error names the part of it that
// cannot be parsed; such a ClusterAccess allows no namespace to use a cluster.
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

// namespaceChanged applies a namespace of the hub that was added (before is nil), changed or
// deleted (after is nil). It notifies the functions of SubscribeFences if the namespace may use
// other clusters than before, but not after its deletion.
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

// Made returns the creation time of a namespace of the hub; false if the namespace is not known.
func (c *Cache) Made(namespace string) (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	made, ok := c.made[namespace]
	return made, ok
}

// tell calls each of the functions of SubscribeFences with its own copy of the set of namespaces.
// Without namespaces it does nothing.
func tell(subscribers []func(sets.Set[string]), namespaces ...string) {
	if len(namespaces) == 0 {
		return
	}
	for _, f := range subscribers {
		f(sets.New(namespaces...))
	}
}

// changed applies a Cluster object that was added (before is nil), changed or deleted (after is
// nil).
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

// mark records that a cluster's free capacity changed, so that the next Measured reads it. The
// source calls mark while it holds its own locks.
func (c *Cache) mark(cluster string) {
	c.unmeasured.Lock()
	defer c.unmeasured.Unlock()
	c.unmeasured.clusters.Insert(cluster)
}

// refresh reads the state of one cluster again, from its Cluster object and from c.source, and
// stores it in the snapshot. It removes a cluster whose Cluster is deleted. It notifies the
// functions of Subscribe if an Aspect changed.
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

// put stores the next snapshot if the state of a cluster changed from before to after, and returns
// the aspects that changed. The result is 0 if nothing changed, or only parts that no Aspect
// covers. A nil before means that the cluster is new, a nil after that it is gone. The caller holds
// c.mu.
func (c *Cache) put(before, after *Cluster) Aspect {
	what, same := compare(before, after)
	if same {
		return 0
	}
	c.current.Store(c.current.Load().with(cmp.Or(after, before).Name, after))
	return what
}

// look returns the present state of the cluster of the Cluster o. before is its state in the
// snapshot, or nil. The free capacity is that of before, if before has one and the UID of o; else
// it is read now. The caller holds c.mu.
func (c *Cache) look(o *clusterv1alpha1.Cluster, before *Cluster) *Cluster {
	after := &Cluster{
		Name: o.Name, UID: o.UID, Labels: labels.Set(o.Labels), Provider: o.Spec.Provider, Region: o.Spec.Region,
		Zones: o.Spec.Zones, Taints: o.Spec.Taints, Leaving: !o.DeletionTimestamp.IsZero(), Joined: o.Status.ID != "",
		Expected: meta.IsStatusConditionTrue(o.Status.Conditions, clusterv1alpha1.ConditionReady),
	}
	if profile := o.Spec.Profile(); profile != clusterv1alpha1.AgentProfileAll {
		after.Bounds = &scheduler.Bounds{Profile: string(profile), Namespaces: o.Spec.PlacementNamespaces()}
	}
	contact := c.source.Contact(o.Name, o.UID)
	after.Reachable, after.Lost, after.Probed, after.Since, after.APIs = contact.Reachable, contact.Silent, contact.Probed, contact.Since, contact.APIs
	if !member.Built(o) {
		after.Probed = true // it has no API server that could be probed
	}
	if before != nil && before.UID == o.UID && before.FreeCapacity != nil {
		after.FreeCapacity = before.FreeCapacity
	} else {
		after.FreeCapacity = c.freeCapacity(o.Name)
	}
	return after
}
