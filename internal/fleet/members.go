package fleet

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/scheduler"
)

// Members implements Source with the registry of member clusters and the mirror.
type Members struct {
	Registry *member.Registry
	Mirror   *mirror.Mirror
}

// Contact implements Source.
func (m Members) Contact(cluster string, uid types.UID) Contact {
	c, ok := m.Registry.Member(cluster)
	if !ok || c.Cluster().UID != uid {
		return Contact{}
	}
	return Contact{Contact: c.Contact(), APIs: served{c.APIs()}}
}

// FreeCapacity implements Source.
func (m Members) FreeCapacity(cluster string) FreeCapacity {
	free, known := m.Mirror.FreeCapacity(cluster)
	if !known {
		return nil
	}
	return measured{free}
}

// measured adapts the free capacity of the mirror to the interface FreeCapacity. Two values are
// equal with == if they are the same measurement.
type measured struct{ *mirror.FreeCapacity }

// Without implements FreeCapacity.
func (m measured) Without(taken []scheduler.Taken) scheduler.FreeCapacity {
	return measured{m.FreeCapacity.Without(taken)}
}

// Subscribe implements Source.
func (m Members) Subscribe(changed, measured func(cluster string)) {
	m.Registry.Subscribe(func(e member.Event) { changed(e.Name) })
	m.Mirror.Subscribe(func(e mirror.Event) {
		if e.Type == mirror.Synced && mirror.Measured(e.Resource) {
			changed(e.Cluster)
		}
	})
	m.Mirror.SubscribeFreeCapacity(measured)
}

// served implements scheduler.APIs with the API list of a cluster. The list is immutable: when the
// APIs of the cluster change, it gets another list.
type served struct{ apis *member.APIs }

// Serves implements scheduler.APIs.
func (s served) Serves(kind schema.GroupVersionKind) presence.Presence {
	_, known := s.apis.Kind(kind)
	return known
}
