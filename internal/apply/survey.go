package apply

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/mark"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/presence"
)

// survey is the look of a process at what every cluster has, before it removes anything: that the
// hub was restored from a backup may show in another cluster than the one in which something is
// to go. Clusters that are known not to answer are not waited for; they are looked at once they
// do.
type survey struct {
	applier *Applier

	mu       sync.Mutex
	finished bool
	seen     map[types.UID]bool // the Clusters that were looked at
}

// again makes the next removal ask which clusters are to be looked at: they have changed.
func (s *survey) again() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finished = false
}

// done is true once every cluster that answers was looked at, and showed nothing.
func (s *survey) done(ctx context.Context) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.finished {
		return true
	}
	members := s.applier.registry.Members()
	var open []*member.Member
	joined := make(map[types.UID]bool, len(members))
	for _, m := range members {
		uid := m.Cluster().UID
		joined[uid] = true
		if s.seen[uid] {
			continue
		}
		ready, lost := s.ready(m)
		if lost {
			continue
		}
		if !ready {
			return false
		}
		open = append(open, m)
	}
	for uid := range s.seen {
		if !joined[uid] {
			delete(s.seen, uid)
		}
	}
	for _, m := range open {
		if restored, err := s.look(ctx, m); err != nil || restored {
			return false // it is looked at again, and restored says so from now on
		}
		s.seen[m.Cluster().UID] = true
	}
	s.finished = true
	return true
}

// ready says whether it is known what a cluster has; lost, that it does not answer.
func (s *survey) ready(m *member.Member) (ready, lost bool) {
	a := s.applier
	if _, ok := a.queue(m.Name()); !ok {
		return false, false
	}
	if !m.Reachable() {
		lost = m.Lost()
		if !lost {
			a.log.V(1).Info("removals wait for a cluster to answer", "cluster", m.Name())
		}
		return false, lost
	}
	for _, gvk := range a.bindings.Kinds() {
		api, served := m.APIs().Kind(gvk)
		if served == presence.Present && api.Readable() && !a.mirror.Synced(m.Name(), api.GroupVersionResource().GroupResource()) {
			a.log.V(1).Info("removals wait for a list", "cluster", m.Name(), "kind", gvk.String())
			return false, false
		}
	}
	return true, false
}

// look says whether anything in a cluster shows that the hub was restored.
func (s *survey) look(ctx context.Context, m *member.Member) (restored bool, err error) {
	a := s.applier
	tell := func(o mirror.Object) {
		a.log.V(1).Info("removals wait: the hub may be older than what is there", "cluster", m.Name(), "object", objectOf(o).String())
	}
	for _, o := range a.mirror.PlacedIn(m.Name()) {
		b, known := a.bindings.ByUID(o.Binding)
		if !known {
			continue
		}
		if restored, err = s.newer(ctx, m, b, o); err != nil || restored {
			tell(o)
			return restored, err
		}
	}
	var byTemplate map[types.UID]*workv1alpha2.ResourceBinding
	for _, o := range a.mirror.Orphans(m.Name()) {
		orphan, ok := mark.ParseOrphan(o.Orphan)
		from, err := a.key().Verify(orphan.Source)
		if !ok || orphan.Hub != a.hubID || err != nil {
			continue
		}
		restored, err = a.restore.left(ctx, m.Cluster(), o, from)
		if err == nil && !restored {
			if byTemplate == nil {
				byTemplate = map[types.UID]*workv1alpha2.ResourceBinding{}
				for _, b := range a.bindings.All() {
					byTemplate[b.Spec.Resource.UID] = b
				}
			}
			if b := byTemplate[from.Template]; b != nil {
				o.Source = orphan.Source
				restored, err = s.newer(ctx, m, b, o)
			}
		}
		if err != nil || restored {
			tell(o)
			return restored, err
		}
	}
	return false, nil
}

// newer says whether a copy of a binding, or what was one, shows that the hub was restored.
func (s *survey) newer(ctx context.Context, m *member.Member, b *workv1alpha2.ResourceBinding, o mirror.Object) (bool, error) {
	a := s.applier
	from, err := a.key().Verify(o.Source)
	if err != nil {
		return false, nil //nolint:nilerr // not made by this hub: it says nothing
	}
	if b.UID != o.Binding {
		from.Placement = 0 // that of another binding
	}
	source, _ := a.template(b)
	if !from.Newer(a.sourceOf(b, source, m.Cluster().UID)) {
		return false, nil
	}
	return a.restore.verify(ctx, b, o)
}
