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
	b, ok := m.bindings.ByUID(uid)
	if !ok {
		return 0, presence.Unknown
	}
	c, ok := m.registry.Member(cluster)
	if !ok || !c.Reachable() {
		return 0, presence.Unknown
	}
	api, served := c.APIs().Kind(binding.Kind(b))
	if served != presence.Present {
		return 0, served
	}
	known, o := m.mirror.Lookup(cluster, api.GroupVersionResource().GroupResource(), b.Namespace, b.Spec.Resource.Name)
	if known == presence.Present && o.Binding != uid {
		return 0, presence.Absent // what is there is somebody else's
	}
	return o.Replicas, known
}

func (m mirrored) Require(gvk schema.GroupVersionKind) { m.mirror.Require(gvk) }

func (m mirrored) Subscribe(f func(cluster string, binding types.UID)) {
	m.mirror.Subscribe(func(e mirror.Event) {
		if e.Type == mirror.Synced || e.Binding != "" {
			f(e.Cluster, e.Binding)
		}
	})
}
