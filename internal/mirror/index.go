package mirror

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/podsecurity"
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
	Status   map[string]any // as the kind's interpreter reflects it; read-only

	// Replicas is what the object asks for there, and Available how many of them are; an
	// object of a kind without replicas is one of one. Pods is how many pods it has, those that
	// are not ready among them, as far as its status says.
	Replicas, Available, Pods int32
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
)

// Event tells of a placed object, of a namespace, or that a type was listed. That a cluster
// becomes reachable or ceases to be is told by the registry, not here.
type Event struct {
	Type            EventType
	Cluster         string
	Resource        schema.GroupResource
	Namespace, Name string
	Binding         types.UID
}

// Lookup says what is known of an object: Unknown while the type is not listed or the cluster
// is not reachable. The object is then the last one that was observed, if it was placed.
func (m *Mirror) Lookup(cluster string, gr schema.GroupResource, namespace, name string) (presence.Presence, Object) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.table(cluster, gr)
	if t == nil {
		return presence.Unknown, Object{}
	}
	r, known := t.records[key{namespace, name}]
	var o Object
	if r.object != nil {
		o = *r.object
	}
	switch {
	case !t.current():
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
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []Object
	for _, name := range slices.Sorted(maps.Keys(m.placed[binding])) {
		out = append(out, sorted(slices.Values(m.placed[binding][name]))...)
	}
	return out
}

// PlacedOf returns a binding's objects in one cluster, as last seen.
func (m *Mirror) PlacedOf(binding types.UID, cluster string) []Object {
	m.mu.Lock()
	defer m.mu.Unlock()
	return sorted(slices.Values(m.placed[binding][cluster]))
}

// PlacedIn returns the objects of every binding in a cluster.
func (m *Mirror) PlacedIn(cluster string) []Object {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := m.clusters[cluster]; c != nil {
		return sorted(maps.Values(c.placed))
	}
	return nil
}

// Orphans returns the objects of a cluster that carry work.orrery.dev/orphan.
func (m *Mirror) Orphans(cluster string) []Object {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := m.clusters[cluster]; c != nil {
		return sorted(maps.Values(c.orphans))
	}
	return nil
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
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.table(cluster, namespaces)
	if t == nil {
		return nil, false
	}
	marked = make(map[string]string, len(t.cluster.marks))
	for name, marks := range t.cluster.marks {
		marked[name] = marks.hub
	}
	return marked, t.current()
}

// PodSecurity returns the labels of a namespace of a cluster that say its Pod Security levels, if it
// carries work.orrery.dev/created-by. They must not be changed.
func (m *Mirror) PodSecurity(cluster, namespace string) map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := m.clusters[cluster]; c != nil {
		return c.marks[namespace].podSecurity
	}
	return nil
}

// namespaceMarks are what is remembered of the labels of a namespace that a hub made.
type namespaceMarks struct {
	hub         string // the value of NamespaceLabel
	podSecurity map[string]string
}

// Synced says whether what is known of a type in a cluster is complete: it was listed, and
// the cluster is reachable. It says nothing of the store, see Stored.
func (m *Mirror) Synced(cluster string, gr schema.GroupResource) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.table(cluster, gr)
	return t != nil && t.current()
}

// Observe takes in the response to a write, so that the index has it before the watch
// brings it. What is older than what is known is ignored.
func (m *Mirror) Observe(cluster string, gvr schema.GroupVersionResource, o *unstructured.Unstructured) {
	object := newObject(cluster, gvr, o, note(o))
	version := number(o.GetResourceVersion())
	m.mu.Lock()
	t := m.table(cluster, gvr.GroupResource())
	var events []Event
	// The watch has passed that version: what it said is newer.
	if t != nil && version > t.version {
		events = t.put(key{o.GetNamespace(), o.GetName()}, o.GetUID(), version, object, o.GetLabels())
	}
	m.mu.Unlock()
	m.notify(events...)
}

// ObserveDeleted takes in that an object is gone from a cluster; an object of the same name
// with another UID is not meant.
func (m *Mirror) ObserveDeleted(cluster string, gr schema.GroupResource, namespace, name string, uid types.UID) {
	m.mu.Lock()
	var events []Event
	if t := m.table(cluster, gr); t != nil {
		k := key{namespace, name}
		if r, ok := t.records[k]; ok && r.uid == uid && !r.gone {
			events = t.remove(k, r)
			r.gone, r.object = true, nil
			t.records[k] = r
		}
	}
	m.mu.Unlock()
	m.notify(events...)
}

// table finds a type of a cluster; the index must be locked, as for all that follows.
func (m *Mirror) table(cluster string, gr schema.GroupResource) *table {
	if c := m.clusters[cluster]; c != nil {
		return c.tables[gr]
	}
	return nil
}

// current says whether the table has everything that the cluster has.
func (t *table) current() bool { return t.synced && t.cluster.source.Reachable() }

// put takes an object into the index unless a newer one is known. object is nil when it
// is not placed.
func (t *table) put(k key, uid types.UID, version uint64, object *Object, labels map[string]string) []Event {
	r, known := t.records[k]
	if known && version != 0 && version < r.version {
		return nil
	}
	var events []Event
	if known && r.uid != uid {
		events = t.remove(k, r)
		r = record{}
	}
	news := !known || r.gone || r.uid != uid || version == 0 || version != r.version
	old := r.object
	r.uid, r.version, r.gone, r.object = uid, version, false, object
	t.records[k] = r
	if resourceOf(t.api) == namespaces {
		delete(t.cluster.marks, k.name)
		if hub := labels[workv1alpha2.NamespaceLabel]; hub != "" {
			t.cluster.marks[k.name] = namespaceMarks{hub, podsecurity.Labels(labels)}
		}
	}
	if old != nil {
		t.cluster.mirror.unindex(old.place(), old)
		if news && old.Placed() && (object == nil || object.Binding != old.Binding) {
			events = append(events, t.event(Changed, k, old))
		}
	}
	if object != nil {
		t.cluster.mirror.index(object)
	}
	if news && t.interesting(object) {
		events = append(events, t.event(Changed, k, object))
	}
	return events
}

// remove takes an object out of the index.
func (t *table) remove(k key, r record) []Event {
	delete(t.records, k)
	if resourceOf(t.api) == namespaces {
		delete(t.cluster.marks, k.name)
	}
	if r.object != nil {
		t.cluster.mirror.unindex(r.object.place(), r.object)
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
	}
	return e
}

func (m *Mirror) index(o *Object) {
	p := o.place()
	if !o.Placed() {
		m.clusters[o.Cluster].orphans[p] = o
		return
	}
	clusters := m.placed[o.Binding]
	if clusters == nil {
		clusters = map[string][]*Object{}
		m.placed[o.Binding] = clusters
	}
	clusters[o.Cluster] = append(without(clusters[o.Cluster], p), o)
	m.clusters[o.Cluster].placed[p] = o
}

func (m *Mirror) unindex(p place, o *Object) {
	if !o.Placed() {
		if c := m.clusters[p.cluster]; c != nil {
			delete(c.orphans, p)
		}
		return
	}
	clusters := m.placed[o.Binding]
	if left := without(clusters[p.cluster], p); len(left) > 0 {
		clusters[p.cluster] = left
	} else {
		delete(clusters, p.cluster)
	}
	if len(clusters) == 0 {
		delete(m.placed, o.Binding)
	}
	if c := m.clusters[p.cluster]; c != nil {
		delete(c.placed, p)
	}
}

// without returns the objects that are elsewhere, in the same slice.
func without(objects []*Object, p place) []*Object {
	return slices.DeleteFunc(objects, func(o *Object) bool { return o.place() == p })
}
