package placement

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/presence"
)

// copies is what placement asks about what is in the clusters.
type copies interface {
	// Copies says what is known of a binding's copy in a cluster, and how many replicas it
	// asks for; 1 for kinds without.
	Copies(uid types.UID, cluster string) (asked int32, known presence.Presence)
	// Pods says how many pods of a binding's copy the free capacity of a cluster counts; not
	// known: of the copy nothing is known.
	Pods(uid types.UID, cluster string) (pods int64, known bool)
	// Require has a kind mirrored from every cluster.
	Require(gvk schema.GroupVersionKind)
	// Subscribe calls f when a binding's copy in a cluster changed; without a binding: when
	// more became known of the cluster.
	Subscribe(f func(cluster string, binding types.UID))
}

// mirrored are the copies that the mirror observes.
type mirrored struct {
	registry *member.Registry
	mirror   *mirror.Mirror
	bindings *binding.Cache
}

func (m mirrored) Copies(uid types.UID, cluster string) (int32, presence.Presence) {
	o, known := m.lookup(uid, cluster)
	return o.Replicas, known
}

// Pods implements copies. A cluster says in the status of a copy that a pod exists after the pod
// exists; that the mirror then has the pod, too, is as good as sure: it follows both kinds at once.
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
		return mirror.Object{}, presence.Absent // what is there is somebody else's
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
