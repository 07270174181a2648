package fleet

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/scheduler"
)

// Members is the Source that asks the registry and the mirror.
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

// measured is a mirror's Room as this package takes it.
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

// served are the kinds of a cluster's API list, which does not change: a cluster gets
// another list instead.
type served struct{ apis *member.APIs }

func (s served) Serves(kind schema.GroupVersionKind) presence.Presence {
	_, known := s.apis.Kind(kind)
	return known
}
