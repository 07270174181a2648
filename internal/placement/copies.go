package placement

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/presence"
)

// copies is what placement reads about the copies of templates: the objects in the clusters that
// were rendered from them. mirrored implements it, and tests replace it.
type copies interface {
	// Copies returns whether the copy of the binding with this UID is in a cluster, and the replicas
	// that the copy asks for; 1 for kinds without replicas. If known is not Present, asked has no
	// meaning.
	Copies(uid types.UID, cluster string) (asked int32, known presence.Presence)
	// Pods returns how many pods the copy of the binding with this UID has in a cluster. These pods
	// are counted in the free capacity of the cluster. known is false if the state of the copy is
	// unknown.
	Pods(uid types.UID, cluster string) (pods int64, known bool)
	// Require starts mirroring a kind from every cluster.
	Require(gvk schema.GroupVersionKind)
	// Subscribe registers f, which is called when the copy of a binding changes in a cluster. An empty
	// binding means that a type of the cluster was listed, so that more copies became known.
	Subscribe(f func(cluster string, binding types.UID))
}

// mirrored implements copies with the mirror.
type mirrored struct {
	registry *member.Registry
	mirror   *mirror.Mirror
	bindings *binding.Cache
}

// Copies implements copies.
func (m mirrored) Copies(uid types.UID, cluster string) (int32, presence.Presence) {
	o, known := m.lookup(uid, cluster)
	return o.Replicas, known
}

// Pods implements copies. The status of a copy counts a pod only after the pod exists. The mirror
// watches copies and pods at the same time, so in practice it has the pod then.
func (m mirrored) Pods(uid types.UID, cluster string) (int64, bool) {
	o, known := m.lookup(uid, cluster)
	return int64(o.Pods), known != presence.Unknown
}

// lookup returns the copy of the binding with this UID in a cluster, and whether it exists. It is
// Unknown if the binding is unknown, the cluster does not answer, or its objects of the kind are
// not mirrored yet. It is Absent if the cluster does not serve the kind, or has no object with the
// name that belongs to the binding.
func (m mirrored) lookup(uid types.UID, cluster string) (mirror.Object, presence.Presence) {
	b, ok := m.bindings.ByUID(uid)
	if !ok {
		return mirror.Object{}, presence.Unknown
	}
	c, ok := m.registry.Member(cluster)
	if !ok || !c.Reachable() {
		return mirror.Object{}, presence.Unknown
	}
	api, served := c.APIs().Kind(binding.Kind(b))
	if served != presence.Present {
		return mirror.Object{}, served
	}
	known, o := m.mirror.Lookup(cluster, api.GroupVersionResource().GroupResource(), b.Namespace, b.Spec.Resource.Name)
	switch {
	case known == presence.Present && o.Binding != uid:
		return mirror.Object{}, presence.Absent // the object belongs to another binding, or to none
	case known == presence.Unknown:
		return mirror.Object{}, presence.Unknown
	}
	return o, known
}

// Require implements copies.
func (m mirrored) Require(gvk schema.GroupVersionKind) { m.mirror.Require(gvk) }

// Subscribe implements copies. It does not report objects without a binding.
func (m mirrored) Subscribe(f func(cluster string, binding types.UID)) {
	m.mirror.Subscribe(func(e mirror.Event) {
		if e.Type == mirror.Synced || e.Binding != "" {
			f(e.Cluster, e.Binding)
		}
	})
}
