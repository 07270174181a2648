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

// Object is what is remembered of one placed object in one cluster: one that carries
// work.orrery.dev/binding.
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
	Ended    workv1alpha2.RunPhase // how its work ended; "": it has not, or its kind does not end
	Status   map[string]any        // as the kind's interpreter reflects it; read-only

	// Replicas is what the object asks for there, and Available how many of them are; an
	// object of a kind without replicas is one of one. Pods is how many pods it has, those that
	// are not ready among them, as far as its status says.
	Replicas, Available, Pods int32
	// Completions of a Job that asks for them; nil: it does not.
	Completions *int64
}

// Placed is true of an object with a binding's mark. Others are told only by place and UID.
func (o *Object) Placed() bool { return o.Binding != "" }

func (o *Object) place() place {
	return place{o.Cluster, o.Resource.GroupResource(), o.Namespace, o.Name}
}

// place is where an object is.
type place struct {
	cluster         string
	resource        schema.GroupResource
	namespace, name string
}

// EventType says what happened.
type EventType int

// The values of EventType.
const (
	// Changed: an object was created or changed, or its mark was taken off; Binding is
	// the one that it has, or had.
	Changed EventType = iota
	// Deleted: an object is gone.
	Deleted
	// Synced: a type was listed for the first time; there is no Namespace, Name or Binding.
	Synced
	// Failed: a type that was not listed yet has a Problem; there is no Namespace, Name or Binding.
	Failed
)

// Event tells of a placed object, of a namespace, or that a type was listed. That a cluster
// becomes reachable or ceases to be is told by the registry, not here.
type Event struct {
	Type            EventType
	Cluster         string
	Resource        schema.GroupResource
	Namespace, Name string
	Binding         types.UID
	// UID of Deleted is that of the placed object that is gone.
	UID types.UID
	// Final of Deleted is the object as it was in the end; nil where it was only found to be missing. What the watch says later of
	// an object that was found to be missing is told by another event.
	Final *Object
}

// Version is a resourceVersion of a cluster, of a type, that the mirror has reached; "" where it has reached none.
func (m *Mirror) Version(cluster string, gr schema.GroupResource) string {
	t, unlock := m.table(cluster, gr)
	defer unlock()
	if t == nil || t.version == 0 {
		return ""
	}
	return strconv.FormatUint(t.version, 10)
}

// Lookup says what is known of an object: Unknown while the type is not listed, is mirrored in part, or the cluster
// is not reachable. The object is then the last one that was observed, if it was placed.
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

// Placed returns a binding's objects in every cluster, those last seen in clusters that
// are not reachable among them. To ask about one cluster, PlacedOf is cheaper.
func (m *Mirror) Placed(binding types.UID) []Object {
	return m.bindings.everywhere(binding)
}

// PlacedOf returns a binding's objects in one cluster, as last seen.
func (m *Mirror) PlacedOf(binding types.UID, cluster string) []Object {
	return m.bindings.in(binding, cluster)
}

// PlacedIn returns the objects of every binding in a cluster.
func (m *Mirror) PlacedIn(cluster string) []Object {
	c := m.cluster(cluster)
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return sorted(maps.Values(c.placed))
}

// Orphans returns the objects of a cluster that carry work.orrery.dev/orphan.
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

// Namespaces returns the namespaces of a cluster that carry work.orrery.dev/created-by,
// with its value. They are not complete unless synced.
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

// NamespaceMark returns the value of work.orrery.dev/created-by of a namespace of a cluster, as far
// as it is known; "" for none.
func (m *Mirror) NamespaceMark(cluster, namespace string) string {
	c := m.cluster(cluster)
	if c == nil {
		return ""
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.marks[namespace].hub
}

// NamespaceLabels returns the labels of a namespace of a cluster, if it carries
// work.orrery.dev/created-by. They must not be changed.
func (m *Mirror) NamespaceLabels(cluster, namespace string) map[string]string {
	c := m.cluster(cluster)
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.marks[namespace].labels
}

// namespaceMarks are what is remembered of the labels of a namespace that a hub made.
type namespaceMarks struct {
	hub    string // the value of NamespaceLabel
	labels map[string]string
}

// Synced says whether what is known of a type in a cluster is complete, as far as the hub may read it: it was listed, and
// the cluster is reachable. It says nothing of the store, see Stored.
func (m *Mirror) Synced(cluster string, gr schema.GroupResource) bool {
	t, unlock := m.table(cluster, gr)
	defer unlock()
	return t != nil && t.listed()
}

// Problem returns why a type of a cluster is not Synced: the error of the last attempt to list it, or that its first list takes
// long. nil: it is synced, is not mirrored, or is being listed.
func (m *Mirror) Problem(cluster string, gr schema.GroupResource) error {
	t, unlock := m.table(cluster, gr)
	defer unlock()
	if t == nil || t.synced {
		return nil
	}
	return t.problem
}

// SyncedIn is Synced of a namespace, "" for all. Where the hub may read some namespaces alone, nothing is known of the others.
func (m *Mirror) SyncedIn(cluster string, gr schema.GroupResource, namespace string) bool {
	t, unlock := m.table(cluster, gr)
	defer unlock()
	return t != nil && t.current(namespace)
}

// Observe takes in the response to a write, so that the index has it before the watch
// brings it. What is older than what is known is ignored.
func (m *Mirror) Observe(cluster string, gvr schema.GroupVersionResource, o *unstructured.Unstructured) {
	object := newObject(cluster, gvr, o, note(o))
	version := number(o.GetResourceVersion())
	t, unlock := m.table(cluster, gvr.GroupResource())
	var events []Event
	// The watch has passed that version: what it said is newer.
	if t != nil && version > t.version {
		events = t.put(key{o.GetNamespace(), o.GetName()}, o.GetUID(), version, object, o.GetLabels())
	}
	unlock()
	m.notify(events...)
}

// ObserveDeleted takes in that an object is gone from a cluster; an object of the same name
// with another UID is not meant.
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

// table finds a type of a cluster, which is locked until unlock is called; nil: the cluster or the type is not mirrored.
func (m *Mirror) table(cluster string, gr schema.GroupResource) (t *table, unlock func()) {
	c := m.cluster(cluster)
	if c == nil {
		return nil, func() {}
	}
	c.mu.Lock()
	return c.tables[gr], c.mu.Unlock
}

// current says whether the table has everything that the cluster has in a namespace.
func (t *table) current(namespace string) bool {
	return t.filter.readable(namespace) && t.listed()
}

// listed says whether the table has everything that the hub may read of the type.
func (t *table) listed() bool {
	return t.synced && len(t.filter.scopes) == 0 && !t.away && t.cluster.source.Reachable()
}

// put takes an object into the index unless a newer one is known. object is nil when it
// is not placed.
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
	// What stays a binding's is replaced in one act: whoever asks for the binding meanwhile must find it.
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

// remove takes an object out of the index.
func (t *table) remove(k key, r record) []Event {
	if r.object != nil {
		t.cluster.unindex(r.object.place(), r.object)
	}
	return t.forget(k, r)
}

// forget takes an object out of the table, but not out of what is found by binding.
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

// interesting says whether events tell of an object.
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

// index takes a placed or left object into what the cluster has.
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

// bindings finds the placed objects of all clusters by their binding. Objects in it are not changed, but replaced.
type bindings struct {
	mu     sync.Mutex
	placed map[types.UID]map[string][]*Object // by binding and cluster: one each, nearly always
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

// in returns the objects of a binding in a cluster, and everywhere those in every cluster. They are copied and sorted
// when nobody waits for the lock any more.
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

// without returns the objects that are elsewhere, in the same slice.
func without(objects []*Object, p place) []*Object {
	return slices.DeleteFunc(objects, func(o *Object) bool { return o.place() == p })
}
