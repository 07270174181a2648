package mirror

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"strconv"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/presence"
)

// Object is the index entry of one object in one cluster: a placed object, which has
// work.orrery.dev/binding, or an orphaned one.
type Object struct {
	Cluster         string
	Resource        schema.GroupVersionResource
	Namespace, Name string

	UID             types.UID
	ResourceVersion string
	Generation      int64

	Binding types.UID // the value of work.orrery.dev/binding
	Digest  string    // the value of work.orrery.dev/digest
	Source  string    // the value of work.orrery.dev/source
	Origin  string    // the value of work.orrery.dev/origin
	Orphan  string    // the value of work.orrery.dev/orphan
	Fields  uint64    // hash of the set of fields that our server-side apply owns; 0: none

	Deleting bool
	Health   workv1alpha2.ResourceHealth
	// How its work ended. "": it has not ended, or its kind does not end.
	Ended  workv1alpha2.RunPhase
	Status map[string]any // as the kind's interpreter returns it; read-only

	// Replicas is the number of replicas in the object's spec there, and Available the number of
	// available ones. An object of a kind without replicas counts as one replica. Pods is the
	// number of its pods, ready or not, according to its status.
	Replicas, Available, Pods int32
	// Completions is that of a Job's spec; nil: it has none.
	Completions *int64
}

// Placed reports whether the object has the mark of a binding. Others are identified only by
// place and UID.
func (o *Object) Placed() bool { return o.Binding != "" }

func (o *Object) place() place {
	return place{o.Cluster, o.Resource.GroupResource(), o.Namespace, o.Name}
}

// place is the key of an object in all clusters.
type place struct {
	cluster         string
	resource        schema.GroupResource
	namespace, name string
}

// EventType is the kind of an Event.
type EventType int

// The values of EventType.
const (
	// Changed: an object was created or changed, or lost its mark. Binding is the current or the
	// lost one.
	Changed EventType = iota
	// Deleted: an object was deleted.
	Deleted
	// Synced: a type was listed for the first time; there is no Namespace, Name or Binding.
	Synced
	// Failed: a type that was not listed yet has a Problem; there is no Namespace, Name or Binding.
	Failed
)

// Event reports a change of a placed object or of a namespace, or that a type was listed or
// failed to be. Changes of a cluster's reachability are events of the registry, not of the
// mirror.
type Event struct {
	Type            EventType
	Cluster         string
	Resource        schema.GroupResource
	Namespace, Name string
	Binding         types.UID
	// UID is set for Deleted: that of the deleted object.
	UID types.UID
	// Final is set for Deleted: the last state of the object. It is nil if the object was only
	// found to be missing. If the watch later reports how that object ended, another event
	// follows.
	Final *Object
}

// Version returns a resource version of a type in a cluster that the mirror has reached; "":
// none.
func (m *Mirror) Version(cluster string, gr schema.GroupResource) string {
	t, unlock := m.table(cluster, gr)
	defer unlock()
	if t == nil || t.version == 0 {
		return ""
	}
	return strconv.FormatUint(t.version, 10)
}

// Lookup returns whether an object exists. The result is Unknown while the type is not listed or
// only mirrored in part, or the cluster is unreachable. In that case the Object is its last
// observed state, if it was placed.
func (m *Mirror) Lookup(cluster string, gr schema.GroupResource, namespace, name string) (presence.Presence, Object) {
	t, unlock := m.table(cluster, gr)
	defer unlock()
	if t == nil {
		return presence.Unknown, Object{}
	}
	r, known := t.records[key{namespace, name}]
	var o Object
	if r.object != nil {
		o = *r.object
	}
	switch {
	case !t.current(namespace):
		return presence.Unknown, o
	case !known || r.gone:
		return presence.Absent, Object{}
	case r.object == nil:
		o := Object{Cluster: cluster, Resource: t.api.GroupVersionResource(), Namespace: namespace, Name: name, UID: r.uid}
		if r.version != 0 {
			o.ResourceVersion = strconv.FormatUint(r.version, 10)
		}
		return presence.Present, o
	default:
		return presence.Present, o
	}
}

// Placed returns a binding's objects in all clusters. For unreachable clusters these are the last
// observed ones. PlacedOf is cheaper for one cluster.
func (m *Mirror) Placed(binding types.UID) []Object {
	return m.bindings.everywhere(binding)
}

// PlacedOf returns a binding's objects in one cluster, as last observed.
func (m *Mirror) PlacedOf(binding types.UID, cluster string) []Object {
	return m.bindings.in(binding, cluster)
}

// PlacedIn returns the objects of all bindings in a cluster.
func (m *Mirror) PlacedIn(cluster string) []Object {
	c := m.cluster(cluster)
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return sorted(maps.Values(c.placed))
}

// Orphans returns the objects of a cluster that have work.orrery.dev/orphan.
func (m *Mirror) Orphans(cluster string) []Object {
	c := m.cluster(cluster)
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return sorted(maps.Values(c.orphans))
}

func sorted(objects iter.Seq[*Object]) []Object {
	out := []Object{}
	for o := range objects {
		out = append(out, *o)
	}
	slices.SortFunc(out, func(a, b Object) int {
		return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmpResource(a.Resource.GroupResource(), b.Resource.GroupResource()),
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// Namespaces returns the namespaces of a cluster that have work.orrery.dev/created-by, with its
// value. The result is complete only if synced is true.
func (m *Mirror) Namespaces(cluster string) (marked map[string]string, synced bool) {
	t, unlock := m.table(cluster, namespaces)
	defer unlock()
	if t == nil {
		return nil, false
	}
	marked = make(map[string]string, len(t.cluster.marks))
	for name, marks := range t.cluster.marks {
		marked[name] = marks.hub
	}
	return marked, t.current("")
}

// NamespaceMark returns the value of work.orrery.dev/created-by of a namespace in a cluster; "":
// none, or unknown.
func (m *Mirror) NamespaceMark(cluster, namespace string) string {
	c := m.cluster(cluster)
	if c == nil {
		return ""
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.marks[namespace].hub
}

// NamespaceLabels returns the labels of a namespace in a cluster, if it has
// work.orrery.dev/created-by; else nil. The caller must not change them.
func (m *Mirror) NamespaceLabels(cluster, namespace string) map[string]string {
	c := m.cluster(cluster)
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.marks[namespace].labels
}

// namespaceMarks are the indexed labels of a namespace that a hub created.
type namespaceMarks struct {
	hub    string // the value of NamespaceLabel
	labels map[string]string
}

// Synced reports whether the index of a type in a cluster is complete, as far as the hub may read
// it: the type was listed, and the cluster is reachable. For the store, see Stored.
func (m *Mirror) Synced(cluster string, gr schema.GroupResource) bool {
	t, unlock := m.table(cluster, gr)
	defer unlock()
	return t != nil && t.listed()
}

// Problem returns why a type of a cluster is not listed: the error of the last attempt, or that
// its first list is slow. nil: it is listed, is not mirrored, or is being listed.
func (m *Mirror) Problem(cluster string, gr schema.GroupResource) error {
	t, unlock := m.table(cluster, gr)
	defer unlock()
	if t == nil || t.synced {
		return nil
	}
	return t.problem
}

// SyncedIn is Synced for one namespace, "" for all. It is false for namespaces that the hub may
// not read.
func (m *Mirror) SyncedIn(cluster string, gr schema.GroupResource, namespace string) bool {
	t, unlock := m.table(cluster, gr)
	defer unlock()
	return t != nil && t.current(namespace)
}

// Observe adds the response to a write to the index before the watch reports the change. A
// response older than the index is ignored.
func (m *Mirror) Observe(cluster string, gvr schema.GroupVersionResource, o *unstructured.Unstructured) {
	object := newObject(cluster, gvr, o, note(o))
	version := number(o.GetResourceVersion())
	t, unlock := m.table(cluster, gvr.GroupResource())
	var events []Event
	// Otherwise the watch has passed this version, and the index is newer.
	if t != nil && version > t.version {
		events = t.put(key{o.GetNamespace(), o.GetName()}, o.GetUID(), version, object, o.GetLabels())
	}
	unlock()
	m.notify(events...)
}

// ObserveDeleted removes a deleted object from the index. It ignores an object of the same name
// with another UID.
func (m *Mirror) ObserveDeleted(cluster string, gr schema.GroupResource, namespace, name string, uid types.UID) {
	t, unlock := m.table(cluster, gr)
	var events []Event
	if t != nil {
		k := key{namespace, name}
		if r, ok := t.records[k]; ok && r.uid == uid && !r.gone {
			events = t.remove(k, r)
			t.ends(k, r.object)
			r.gone, r.object = true, nil
			t.records[k] = r
		}
	}
	unlock()
	m.notify(events...)
}

// table returns a type of a cluster and locks the cluster until unlock is called; nil: the
// cluster or the type is not mirrored.
func (m *Mirror) table(cluster string, gr schema.GroupResource) (t *table, unlock func()) {
	c := m.cluster(cluster)
	if c == nil {
		return nil, func() {}
	}
	c.mu.Lock()
	return c.tables[gr], c.mu.Unlock
}

// current reports whether the table has everything that the cluster has in a namespace.
func (t *table) current(namespace string) bool {
	return t.filter.readable(namespace) && t.listed()
}

// listed reports whether the table has everything of the type that the hub may read.
func (t *table) listed() bool {
	return t.synced && len(t.filter.scopes) == 0 && !t.away && t.cluster.source.Reachable()
}

// put adds an object to the index unless a newer state is known. object is nil if it is not
// placed.
func (t *table) put(k key, uid types.UID, version uint64, object *Object, labels map[string]string) []Event {
	r, known := t.records[k]
	if known && version != 0 && version < r.version {
		return nil
	}
	var events []Event
	indexed := r.object
	if known && r.uid != uid {
		events = t.forget(k, r)
		t.ends(k, r.object)
		r = record{}
	}
	news := !known || r.gone || r.uid != uid || version == 0 || version != r.version
	old := r.object
	if r.uid == uid {
		object.carry(r.object)
	}
	r.uid, r.version, r.gone, r.object = uid, version, false, object
	t.records[k] = r
	if resourceOf(t.api) == namespaces {
		delete(t.cluster.marks, k.name)
		if hub := labels[workv1alpha2.NamespaceLabel]; hub != "" {
			t.cluster.marks[k.name] = namespaceMarks{hub, maps.Clone(labels)}
		}
	}
	if old != nil && news && old.Placed() && (object == nil || object.Binding != old.Binding) {
		events = append(events, t.event(Changed, k, old))
	}
	// An object that keeps its binding is replaced in one step, so that concurrent readers of the
	// binding find it.
	if indexed != nil && (object == nil || object.Binding != indexed.Binding) {
		t.cluster.unindex(indexed.place(), indexed)
	}
	if object != nil {
		t.cluster.index(object)
	}
	if news && t.interesting(object) {
		events = append(events, t.event(Changed, k, object))
	}
	return events
}

// remove removes an object from the index.
func (t *table) remove(k key, r record) []Event {
	if r.object != nil {
		t.cluster.unindex(r.object.place(), r.object)
	}
	return t.forget(k, r)
}

// forget removes an object from the table, but not from the indexes by binding.
func (t *table) forget(k key, r record) []Event {
	delete(t.records, k)
	if resourceOf(t.api) == namespaces {
		delete(t.cluster.marks, k.name)
	}
	if r.gone || !t.interesting(r.object) {
		return nil
	}
	return []Event{t.event(Deleted, k, r.object)}
}

// interesting reports whether changes of an object are published as events.
func (t *table) interesting(o *Object) bool {
	return o != nil && o.Placed() || resourceOf(t.api) == namespaces
}

func (t *table) event(kind EventType, k key, o *Object) Event {
	e := Event{Type: kind, Cluster: t.cluster.name, Resource: resourceOf(t.api), Namespace: k.namespace, Name: k.name}
	if o != nil {
		e.Binding = o.Binding
		if kind == Deleted {
			e.UID = o.UID
		}
	}
	return e
}

// index adds a placed or orphaned object to the cluster's indexes.
func (c *cluster) index(o *Object) {
	p := o.place()
	if !o.Placed() {
		c.orphans[p] = o
		return
	}
	c.placed[p] = o
	c.mirror.bindings.add(p, o)
}

func (c *cluster) unindex(p place, o *Object) {
	if !o.Placed() {
		delete(c.orphans, p)
		return
	}
	delete(c.placed, p)
	c.mirror.bindings.remove(p, o)
}

// bindings indexes the placed objects of all clusters by binding. Indexed objects are replaced,
// never changed.
type bindings struct {
	mu     sync.Mutex
	placed map[types.UID]map[string][]*Object // by binding and cluster; nearly always one each
}

func (b *bindings) add(p place, o *Object) {
	b.mu.Lock()
	defer b.mu.Unlock()
	clusters := b.placed[o.Binding]
	if clusters == nil {
		clusters = map[string][]*Object{}
		b.placed[o.Binding] = clusters
	}
	clusters[p.cluster] = append(without(clusters[p.cluster], p), o)
}

func (b *bindings) remove(p place, o *Object) {
	b.mu.Lock()
	defer b.mu.Unlock()
	clusters := b.placed[o.Binding]
	if left := without(clusters[p.cluster], p); len(left) > 0 {
		clusters[p.cluster] = left
	} else {
		delete(clusters, p.cluster)
	}
	if len(clusters) == 0 {
		delete(b.placed, o.Binding)
	}
}

// in returns the objects of a binding in a cluster, and everywhere those in all clusters. Both
// copy and sort the objects after they have released the lock.
func (b *bindings) in(binding types.UID, cluster string) []Object {
	b.mu.Lock()
	found := slices.Clone(b.placed[binding][cluster])
	b.mu.Unlock()
	return sorted(slices.Values(found))
}

func (b *bindings) everywhere(binding types.UID) []Object {
	b.mu.Lock()
	var found []*Object
	for _, objects := range b.placed[binding] {
		found = append(found, objects...)
	}
	b.mu.Unlock()
	return sorted(slices.Values(found))
}

// without returns the objects at other places. It reuses the slice.
func without(objects []*Object, p place) []*Object {
	return slices.DeleteFunc(objects, func(o *Object) bool { return o.place() == p })
}
