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
	"orrery.dev/orrery/internal/store"
)

// Object is the entry of one object of one cluster in the index in memory. The object is placed: it
// is the copy of a template and has the label work.orrery.dev/binding. Or it is orphaned: it has
// only the annotation work.orrery.dev/orphan, because its template was deleted and the copy stayed.
type Object struct {
	Cluster         string
	Resource        schema.GroupVersionResource
	Namespace, Name string

	UID             types.UID
	ResourceVersion string
	Generation      int64

	// Binding is the UID of the binding that placed the object: the label work.orrery.dev/binding.
	// The next fields are annotations, described in api/work/v1alpha2; "": the object lacks one.
	Binding types.UID
	Digest  string // the value of work.orrery.dev/digest
	Source  string // the value of work.orrery.dev/source
	Origin  string // the value of work.orrery.dev/origin
	Orphan  string // the value of work.orrery.dev/orphan
	Fields  uint64 // hash of the set of fields that our server-side apply owns; 0: none

	Deleting bool
	Health   workv1alpha2.ResourceHealth
	// Ended is how the work of the object ended, for example that of a Job. "": the work has not
	// ended, or the kind does no work that ends.
	Ended  workv1alpha2.RunPhase
	Status map[string]any // as the kind's interpreter returns it; read-only

	// Replicas is the number of replicas in the spec of the object in the cluster, and Available
	// the number of available ones. An object of a kind without replicas counts as one replica.
	// Pods is the number of its pods, ready or not, according to its status.
	Replicas, Available, Pods int32
	// Completions is spec.completions of a Job; nil: the Job sets none, or the kind is another.
	Completions *int64
}

// Placed reports whether a binding placed the object, which then has the label
// work.orrery.dev/binding. An Object without it has only its place, UID, ResourceVersion and, if it
// is orphaned, the fields that do not depend on a template.
func (o *Object) Placed() bool { return o.Binding != "" }

// place returns the key of the object among all objects of all clusters.
func (o *Object) place() place {
	return place{o.Cluster, o.Resource.GroupResource(), o.Namespace, o.Name}
}

// place is the key of an object among all objects of all clusters. The namespace of a
// cluster-scoped object is "".
type place struct {
	cluster         string
	resource        schema.GroupResource
	namespace, name string
}

// EventType is the kind of an Event.
type EventType int

// The values of EventType.
const (
	// Changed: an object was created or changed, or is no longer placed by the binding that it had.
	// Binding is the UID of the present binding, or of the one that the object lost.
	Changed EventType = iota
	// Deleted: a placed object or a namespace was deleted in its cluster, or a list lacked it.
	Deleted
	// Synced: a type was listed completely for the first time. Namespace, Name and Binding are empty.
	Synced
	// Failed: a type that was not listed yet cannot be listed, see Mirror.Problem. Namespace, Name and
	// Binding are empty.
	Failed
)

// Event reports that a placed object or a namespace of a cluster changed, that a type was listed
// for the first time, or that a type cannot be listed. The registry of members, and not the mirror,
// reports that a cluster became reachable or unreachable.
type Event struct {
	Type            EventType
	Cluster         string
	Resource        schema.GroupResource
	Namespace, Name string
	Binding         types.UID
	// UID is that of the object if Type is Deleted and the object was placed; else "".
	UID types.UID
	// Final is the last state of a placed object if Type is Deleted. It is nil if the object was
	// only found to be missing. If the watch later reports how that object ended, another Deleted
	// event follows.
	Final *Object
}

// Version returns the resource version of a type in a cluster up to which the mirror has seen all
// changes. It is "" if the type is not mirrored or was not read yet, or if the versions of the
// cluster are not numbers.
func (m *Mirror) Version(cluster string, gr schema.GroupResource) string {
	t, unlock := m.table(cluster, gr)
	defer unlock()
	if t == nil || t.version == 0 {
		return ""
	}
	return strconv.FormatUint(t.version, 10)
}

// Lookup returns whether an object exists in a cluster, and what the index has of it. The result is
// Unknown while the type is not listed, is mirrored only in part, or the cluster is unreachable.
// The Object is then its last observed state, or empty unless the object was placed or orphaned. A
// Present object that is neither placed nor orphaned has only its place, UID and ResourceVersion.
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

// Placed returns the objects that a binding placed in any cluster, as last observed, sorted by
// cluster. For one cluster, PlacedOf is cheaper.
func (m *Mirror) Placed(binding types.UID) []Object {
	return m.bindings.everywhere(binding)
}

// PlacedOf returns the objects that a binding placed in one cluster, as last observed.
func (m *Mirror) PlacedOf(binding types.UID, cluster string) []Object {
	return m.bindings.in(binding, cluster)
}

// PlacedIn returns the objects that any binding placed in a cluster, as last observed. It is nil
// for a cluster that is not mirrored.
func (m *Mirror) PlacedIn(cluster string) []Object {
	c := m.cluster(cluster)
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return sorted(maps.Values(c.index.placed))
}

// Orphans returns the orphaned objects of a cluster, as last observed: those with the annotation
// work.orrery.dev/orphan and without the label of a binding. It is nil for a cluster that is not
// mirrored.
func (m *Mirror) Orphans(cluster string) []Object {
	c := m.cluster(cluster)
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return sorted(maps.Values(c.index.orphans))
}

// sorted returns copies of the objects, sorted by cluster, group, resource, namespace and name.
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

// Namespaces returns the namespaces of a cluster that a hub created for placed objects. The value
// of each is the ID of that hub, from the label work.orrery.dev/created-by. The result may be
// incomplete unless synced is true.
func (m *Mirror) Namespaces(cluster string) (marked map[string]string, synced bool) {
	t, unlock := m.table(cluster, namespaces)
	defer unlock()
	if t == nil {
		return nil, false
	}
	marked = make(map[string]string, len(t.cluster.index.marks))
	for name, marks := range t.cluster.index.marks {
		marked[name] = marks.hub
	}
	return marked, t.current("")
}

// NamespaceMark returns the ID of the hub that created a namespace of a cluster, from the label
// work.orrery.dev/created-by. It is "" if the namespace lacks the label, or is not known.
func (m *Mirror) NamespaceMark(cluster, namespace string) string {
	c := m.cluster(cluster)
	if c == nil {
		return ""
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.index.marks[namespace].hub
}

// NamespaceLabels returns all labels of a namespace of a cluster that a hub created. It is nil if
// the namespace lacks the label work.orrery.dev/created-by, or is not known. The caller must not
// change the result.
func (m *Mirror) NamespaceLabels(cluster, namespace string) map[string]string {
	c := m.cluster(cluster)
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.index.marks[namespace].labels
}

// namespaceMarks are the labels of a namespace of a cluster that a hub created.
type namespaceMarks struct {
	hub    string            // ID of that hub: the label work.orrery.dev/created-by
	labels map[string]string // all labels
}

// Synced reports whether the index in memory has all objects of a type in a cluster that the hub
// may read. That is so if the settings select all objects of the type, the type was listed, and the
// cluster and the API group answer. It stays true while the watch is interrupted, when the newest
// changes are missing: Freshness and Silence report that. Stored reports the same as Synced of the
// database.
func (m *Mirror) Synced(cluster string, gr schema.GroupResource) bool {
	t, unlock := m.table(cluster, gr)
	defer unlock()
	return t != nil && t.listed()
}

// Problem returns why a type of a cluster is not listed: the error of the last attempt, or that its
// first list is slow. It is nil if the type is listed, is not mirrored, or is being listed.
func (m *Mirror) Problem(cluster string, gr schema.GroupResource) error {
	t, unlock := m.table(cluster, gr)
	defer unlock()
	if t == nil || t.synced {
		return nil
	}
	return t.problem
}

// SyncedIn reports whether the index in memory has all objects of a type in one namespace of a
// cluster, "" for all namespaces. It is true if Synced is, and the hub may read the namespace.
func (m *Mirror) SyncedIn(cluster string, gr schema.GroupResource, namespace string) bool {
	t, unlock := m.table(cluster, gr)
	defer unlock()
	return t != nil && t.current(namespace)
}

// Observe adds an object, the response of a cluster to a write, to the index before the watch
// reports the change. It ignores a response that is older than the index, or of a type that is not
// mirrored. Observe calls the functions of Subscribe before it returns: the caller must hold no
// lock that they take.
func (m *Mirror) Observe(cluster string, gvr schema.GroupVersionResource, o *unstructured.Unstructured) {
	e := &entry{
		row:    store.Row{Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(), Labels: o.GetLabels()},
		object: newObject(cluster, gvr, o, note(o)), version: number(o.GetResourceVersion()),
	}
	t, unlock := m.table(cluster, gvr.GroupResource())
	var events []Event
	// Otherwise the watch has passed this version, and the index is newer.
	if t != nil && e.version > t.version {
		events = t.put(nil, e, false)
	}
	unlock()
	m.notify(events...)
}

// ObserveDeleted removes from the index an object that a request of this hub deleted, before the
// watch reports the deletion. It does nothing if the index has another UID under that name. It
// calls the functions of Subscribe before it returns: the caller must hold no lock that they take.
func (m *Mirror) ObserveDeleted(cluster string, gr schema.GroupResource, namespace, name string, uid types.UID) {
	t, unlock := m.table(cluster, gr)
	var events []Event
	if t != nil {
		k := key{namespace, name}
		if r, ok := t.records[k]; ok && r.uid == uid && !r.gone {
			events = t.cluster.index.forget(nil, t, k, uid)
			t.ends(k, r.object)
			r.gone, r.object = true, nil
			t.records[k] = r
		}
	}
	unlock()
	m.notify(events...)
}

// table returns the table of a type of a cluster, and locks the cluster until the caller calls
// unlock. t is nil if the cluster or the type is not mirrored; unlock must be called then, too.
func (m *Mirror) table(cluster string, gr schema.GroupResource) (t *table, unlock func()) {
	c := m.cluster(cluster)
	if c == nil {
		return nil, func() {}
	}
	c.mu.Lock()
	return c.tables[gr], c.mu.Unlock
}

// current reports whether the table has all objects of its type in a namespace, "" for all
// namespaces. It is false if the hub may not read the namespace. The caller holds the cluster's
// lock.
func (t *table) current(namespace string) bool {
	return t.filter.readable(namespace) && t.listed()
}

// listed reports whether the table has all objects of its type that the hub may read, and the
// cluster and the API group answer. The caller holds the cluster's lock.
func (t *table) listed() bool {
	return t.synced && len(t.filter.scopes) == 0 && !t.away && t.cluster.source.Reachable()
}

// put records the state e of an object in the index, unless a newer version is known, or the state
// was observed and is from before a request of this hub deleted the object. Version 0 is never
// older. observed is false for the response to a write: then e has only the key, the UID, the
// labels, the version and the object. put appends the events to publish to events. The caller holds
// the cluster's lock.
func (t *table) put(events []Event, e *entry, observed bool) []Event {
	k, uid, version, object, x := e.key(), e.row.UID, e.version, e.object, t.cluster.index
	r, known := t.records[k]
	if known && version != 0 && version < r.version || observed && r.gone && r.uid == uid && !e.deleting {
		return events
	}
	indexed := r.object
	if known && r.uid != uid {
		events = t.forget(events, k, r)
		t.ends(k, r.object)
		r = record{}
	}
	news := !known || r.gone || r.uid != uid || version == 0 || version != r.version
	old := r.object
	if r.uid == uid {
		object.carry(r.object)
	}
	r.uid, r.version, r.gone, r.observed, r.object = uid, version, false, observed, object
	t.records[k] = r
	if resourceOf(t.api) == namespaces {
		delete(x.marks, k.name)
		if hub := e.row.Labels[workv1alpha2.NamespaceLabel]; hub != "" {
			x.marks[k.name] = namespaceMarks{hub, maps.Clone(e.row.Labels)}
		}
	}
	if old != nil && news && old.Placed() && (object == nil || object.Binding != old.Binding) {
		events = append(events, t.event(Changed, k, old))
	}
	// The entry of an object that keeps its binding is replaced in one step, below. So a concurrent
	// reader of the binding always finds the object.
	if indexed != nil && (object == nil || object.Binding != indexed.Binding) {
		x.remove(indexed)
	}
	if object != nil {
		x.add(object)
	}
	if news && t.interesting(object) {
		events = append(events, t.event(Changed, k, object))
	}
	return events
}

// forget removes the object with the key k and the record r from the table, but not from the
// indexes of placed and orphaned objects. It appends the event to publish to events: Deleted, or
// none. The caller holds the cluster's lock.
func (t *table) forget(events []Event, k key, r record) []Event {
	delete(t.records, k)
	if resourceOf(t.api) == namespaces {
		delete(t.cluster.index.marks, k.name)
	}
	if r.gone || !t.interesting(r.object) {
		return events
	}
	return append(events, t.event(Deleted, k, r.object))
}

// interesting reports whether changes of an object are published as events: it is placed, or is a
// namespace. o may be nil.
func (t *table) interesting(o *Object) bool {
	return o != nil && o.Placed() || resourceOf(t.api) == namespaces
}

// event returns an event for the object with the key k. o is the placed object, or nil.
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

// index has the placed and orphaned objects of a cluster, and the namespaces that a hub created in
// the cluster. It is a consumer of all types, and sets the records of their tables. The lock of the
// cluster (cluster.mu) guards it.
type index struct {
	mirror  *Mirror                   // has the index by binding of all clusters
	placed  map[place]*Object         // objects with work.orrery.dev/binding
	orphans map[place]*Object         // objects with work.orrery.dev/orphan and no binding
	marks   map[string]namespaceMarks // namespaces with work.orrery.dev/created-by
}

// reads implements consumer.
func (x *index) reads(schema.GroupResource) bool { return true }

// observe implements consumer.
func (x *index) observe(events []Event, t *table, e *entry) []Event { return t.put(events, e, true) }

// forget implements consumer. It does nothing if the record of the table belongs to an object with
// another UID.
func (x *index) forget(events []Event, t *table, k key, uid types.UID) []Event {
	r, known := t.records[k]
	if !known || r.uid != uid {
		return events
	}
	if r.object != nil {
		x.remove(r.object)
	}
	return t.forget(events, k, r)
}

// add adds a placed or orphaned object to the index, and a placed one also to the index by binding.
func (x *index) add(o *Object) {
	p := o.place()
	if !o.Placed() {
		x.orphans[p] = o
		return
	}
	x.placed[p] = o
	x.mirror.bindings.add(p, o)
}

// remove removes an object from the indexes to which add added it.
func (x *index) remove(o *Object) {
	p := o.place()
	if !o.Placed() {
		delete(x.orphans, p)
		return
	}
	delete(x.placed, p)
	x.mirror.bindings.remove(p, o)
}

// bindings indexes the placed objects of all clusters by the UID of the binding that placed them.
// Entries are replaced and never changed.
type bindings struct {
	mu     sync.Mutex
	placed map[types.UID]map[string][]*Object // by binding, then by cluster; nearly always one object
}

// add adds the object o at the place p, or replaces the entry of that place under the same binding.
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

// remove removes the entry of the place p under the binding of o.
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

// in returns the objects that a binding placed in one cluster, sorted. It copies and sorts them
// after it has released the lock.
func (b *bindings) in(binding types.UID, cluster string) []Object {
	b.mu.Lock()
	found := slices.Clone(b.placed[binding][cluster])
	b.mu.Unlock()
	return sorted(slices.Values(found))
}

// everywhere returns the objects that a binding placed in any cluster, sorted.
func (b *bindings) everywhere(binding types.UID) []Object {
	b.mu.Lock()
	var found []*Object
	for _, objects := range b.placed[binding] {
		found = append(found, objects...)
	}
	b.mu.Unlock()
	return sorted(slices.Values(found))
}

// without returns objects without the one at the place p. It changes the slice.
func without(objects []*Object, p place) []*Object {
	return slices.DeleteFunc(objects, func(o *Object) bool { return o.place() == p })
}
