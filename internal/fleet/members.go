package fleet

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/scheduler"
)

// Members is the Source that reads the registry and the mirror.
type Members struct {
	Registry *member.Registry
	Mirror   *mirror.Mirror
}

// Contact implements Source.
func (m Members) Contact(cluster string, uid types.UID) (bool, scheduler.APIs) {
	c, ok := m.Registry.Member(cluster)
	if !ok || c.Cluster().UID != uid {
		return false, nil
	}
	return c.Reachable(), served{c.APIs()}
}

// Room implements Source.
func (m Members) Room(cluster string) Room {
	room, known := m.Mirror.Room(cluster)
	if !known {
		return nil
	}
	return measured{room}
}

// measured adapts the free capacity of the mirror to this package.
type measured struct{ *mirror.Room }

func (m measured) Without(taken []scheduler.Taken) scheduler.Room {
	return measured{m.Room.Without(taken)}
}

// Subscribe implements Source.
func (m Members) Subscribe(changed, measured func(cluster string)) {
	m.Registry.Subscribe(func(e member.Event) { changed(e.Name) })
	m.Mirror.Subscribe(func(e mirror.Event) {
		if e.Type == mirror.Synced && mirror.Measured(e.Resource) {
			changed(e.Cluster)
		}
	})
	m.Mirror.SubscribeRoom(measured)
}

// served has the kinds of a cluster's API list. The list is immutable: a changed cluster gets
// another list.
type served struct{ apis *member.APIs }

func (s served) Serves(kind schema.GroupVersionKind) presence.Presence {
	_, known := s.apis.Kind(kind)
	return known
}
