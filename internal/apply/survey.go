package apply

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/mark"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/presence"
)

// Before this process removes anything, it checks the copies in every cluster. A copy in
// another cluster than that of the removal may show that the hub was restored from a backup. A
// removal waits for lists that are being read. It does not wait for a cluster that is known not
// to answer, nor for a type that a cluster has failed to list for failurePatience: one broken
// cluster must not block the removals in all others. Both are checked once they can be read.
type survey struct {
	applier *Applier
	now     func() time.Time

	mu       sync.Mutex
	finished bool
	looked   map[types.UID]leftOut // by the UID of the Cluster
}

// failurePatience is how long the lists of a type have to fail before removals in other
// clusters stop waiting for the type. It is as long as the mirror waits for a list that does
// not answer: an API server that starts refuses lists for a moment.
const failurePatience = 10 * time.Second

// leftOut are the types that the check of a cluster left out, with the error of their list.
type leftOut map[schema.GroupResource]string

// again makes the next removal determine which clusters to check, because the clusters changed.
func (s *survey) again() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finished = false
}

// listed makes the next removal check a cluster again if the last check left out the type.
func (s *survey) listed(cluster types.UID, gr schema.GroupResource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.looked[cluster][gr]; ok {
		s.finished = false
		delete(s.looked, cluster)
	}
}

// done reports whether the records and every cluster that answers were checked and show no
// restore.
func (s *survey) done(ctx context.Context) bool {
	// A comparison stays valid. The mutex is not held meanwhile, as the workers of all clusters use
	// it.
	if compared, err := s.applier.past.compared(ctx); err != nil || !compared {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.finished {
		return true
	}
	members := s.applier.registry.Members()
	type readable struct {
		member *member.Member
		except leftOut
	}
	var open []readable
	joined := make(map[types.UID]bool, len(members))
	for _, m := range members {
		uid := m.Cluster().UID
		joined[uid] = true
		if _, ok := s.looked[uid]; ok {
			continue
		}
		except, ready, lost := s.ready(m)
		if lost {
			continue
		}
		if !ready {
			return false
		}
		open = append(open, readable{m, except})
	}
	for uid := range s.looked {
		if !joined[uid] {
			delete(s.looked, uid)
		}
	}
	for _, r := range open {
		if restored, err := s.look(ctx, r.member); err != nil || restored {
			return false // it is checked again; after a restore, restore reports that from now on
		}
		s.looked[r.member.Cluster().UID] = r.except
		for gr, problem := range r.except {
			s.applier.log.Info("Removals in other clusters do not wait for a type that a cluster cannot list; copies of the type cannot show that the hub was restored from a backup",
				"cluster", r.member.Name(), "resource", gr.String(), "problem", problem)
			s.applier.recorder.Eventf(r.member.Cluster(), nil, corev1.EventTypeWarning, workv1alpha2.ReasonListFails, "Delete",
				"removals in other clusters do not wait for %s, which the cluster cannot list: %.200s", gr, problem)
		}
	}
	s.finished = true
	return true
}

// ready reports whether the copies in a cluster are known, except those of types that the
// cluster cannot list. lost reports that the cluster does not answer.
func (s *survey) ready(m *member.Member) (except leftOut, ready, lost bool) {
	a := s.applier
	if _, ok := a.queue(m.Name()); !ok {
		return nil, false, false
	}
	if !m.Reachable() {
		lost = m.Lost()
		if !lost {
			a.log.V(1).Info("removals wait for a cluster to answer", "cluster", m.Name())
		}
		return nil, false, lost
	}
	except = leftOut{}
	for _, gvk := range a.bindings.Kinds() {
		api, served := m.APIs().Kind(gvk)
		gr := api.GroupVersionResource().GroupResource()
		if served != presence.Present || !api.Readable() || !api.HoldsCopies() || a.mirror.Synced(m.Name(), gr) {
			continue
		}
		since, problem := a.mirror.Failing(m.Name(), gr)
		if problem == nil || s.now().Sub(since) < failurePatience {
			a.log.V(1).Info("removals wait for a list", "cluster", m.Name(), "kind", gvk.String())
			return nil, false, false
		}
		except[gr] = problem.Error()
	}
	return except, true, false
}

// look reports whether anything in a cluster shows that the hub was restored.
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

// newer reports whether a copy of a binding, or an orphan, shows that the hub was restored.
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
