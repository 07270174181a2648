package placement

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/presence"
)

// copies is what placement reads about the copies in the clusters.
type copies interface {
	// Copies returns whether a binding's copy is in a cluster, and the replicas that the copy asks
	// for; 1 for kinds without replicas.
	Copies(uid types.UID, cluster string) (asked int32, known presence.Presence)
	// Pods returns how many pods of a binding's copy are counted in the cluster's free capacity.
	// known is false if the state of the copy is unknown.
	Pods(uid types.UID, cluster string) (pods int64, known bool)
	// Require starts mirroring a kind from every cluster.
	Require(gvk schema.GroupVersionKind)
	// Subscribe registers f for changes of a binding's copy in a cluster. With an empty binding,
	// more copies of the cluster became known.
	Subscribe(f func(cluster string, binding types.UID))
}

// mirrored reads copies from the mirror.
type mirrored struct {
	registry *member.Registry
	mirror   *mirror.Mirror
	bindings *binding.Cache
}

func (m mirrored) Copies(uid types.UID, cluster string) (int32, presence.Presence) {
	o, known := m.lookup(uid, cluster)
	return o.Replicas, known
}

// Pods implements copies. A cluster counts a pod in the status of a copy only after the pod exists.
// The mirror follows both kinds at once, so in practice it has the pod then, too.
func (m mirrored) Pods(uid types.UID, cluster string) (int64, bool) {
	o, known := m.lookup(uid, cluster)
	return int64(o.Pods), known != presence.Unknown
}

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

func (m mirrored) Require(gvk schema.GroupVersionKind) { m.mirror.Require(gvk) }

func (m mirrored) Subscribe(f func(cluster string, binding types.UID)) {
	m.mirror.Subscribe(func(e mirror.Event) {
		if e.Type == mirror.Synced || e.Binding != "" {
			f(e.Cluster, e.Binding)
		}
	})
}
