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

// restoreCheck checks the copies in every cluster before this process removes anything. A copy in
// another cluster than that of the removal may show that the hub was restored from a backup. A
// removal waits for lists that are being read. It does not wait for a cluster that is known not
// to answer, nor for a type that a cluster has failed to list for failurePatience: one broken
// cluster must not block the removals in all others. Such clusters and types are checked once
// they can be read.
type restoreCheck struct {
	applier *Applier
	now     func() time.Time

	looking sync.Mutex // held by the worker that checks clusters, also while it reads from the hub

	// mu is not held during a request: the subscribers of registry and mirror use it, and must not
	// block.
	mu       sync.Mutex
	finished bool                  // every cluster that answers was checked
	looked   map[types.UID]leftOut // the checked clusters, by the UID of the Cluster
}

// failurePatience is how long the lists of a type have to fail before removals in other
// clusters stop waiting for the type. It is as long as the mirror waits for a list that does
// not answer: an API server that starts refuses lists for a moment.
const failurePatience = 10 * time.Second

// leftOut are the types that the check of a cluster left out, with the error of their list.
type leftOut map[schema.GroupResource]string

// again makes the next call of done look for clusters that were not checked yet. It is called when
// a cluster joins or changes.
func (c *restoreCheck) again() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.finished = false
}

// listed makes the next call of done check a cluster again if its last check left out the type gr,
// which is listed now.
func (c *restoreCheck) listed(cluster types.UID, gr schema.GroupResource) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.looked[cluster][gr]; ok {
		c.finished = false
		delete(c.looked, cluster)
	}
}

// done reports whether the records and every cluster that answers were checked and show no restore
// of the hub. It checks what was not checked before, which may read from the hub. It records an
// event for each type that the check of a cluster left out. It returns false while a cluster or a
// list is being read, and at once while another worker checks clusters.
func (c *restoreCheck) done(ctx context.Context) bool {
	// A comparison stays valid while the clusters are checked.
	if compared, err := c.applier.past.compared(ctx); err != nil || !compared {
		return false
	}
	if open, known := c.open(); !known || len(open) == 0 {
		return known
	}
	if !c.looking.TryLock() {
		return false
	}
	defer c.looking.Unlock()
	open, known := c.open() // another worker may have checked clusters
	if !known {
		return false
	}
	for _, r := range open {
		if restored, err := c.look(ctx, r.member); err != nil || restored {
			return false // the next call checks the cluster again; a restore is recorded in a.restore
		}
		c.checked(r)
	}
	open, known = c.open() // clusters may have joined, and types may be listed meanwhile
	return known && len(open) == 0
}

// readable is a cluster that can be checked, except for the types that it cannot list.
type readable struct {
	member *member.Member
	except leftOut
}

// open returns the clusters that have to be checked before done returns true. It leaves out those
// that are known not to answer. If no cluster is left, further calls return none until again or
// listed is called. known is false while a cluster or a list is being read.
func (c *restoreCheck) open() (open []readable, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.finished {
		return nil, true
	}
	members := c.applier.registry.Members()
	joined := make(map[types.UID]bool, len(members))
	for _, m := range members {
		uid := m.Cluster().UID
		joined[uid] = true
		if _, ok := c.looked[uid]; ok {
			continue
		}
		except, ready, lost := c.ready(m)
		if lost {
			continue
		}
		if !ready {
			return nil, false
		}
		open = append(open, readable{m, except})
	}
	for uid := range c.looked {
		if !joined[uid] {
			delete(c.looked, uid)
		}
	}
	c.finished = len(open) == 0
	return open, true
}

// checked records that the check of a cluster showed no restore, and an event for each type that it
// left out. It records nothing if such a type was listed meanwhile: the cluster is then checked
// again.
func (c *restoreCheck) checked(r readable) {
	a := c.applier
	c.mu.Lock()
	for gr := range r.except {
		if a.mirror.Synced(r.member.Name(), gr) {
			c.mu.Unlock()
			return
		}
	}
	c.looked[r.member.Cluster().UID] = r.except
	c.mu.Unlock()
	for gr, problem := range r.except {
		a.log.Info("Removals in other clusters do not wait for a type that a cluster cannot list; copies of the type cannot show that the hub was restored from a backup",
			"cluster", r.member.Name(), "resource", gr.String(), "problem", problem)
		a.recorder.Eventf(r.member.Cluster(), nil, corev1.EventTypeWarning, workv1alpha2.ReasonListFails, "Delete",
			"removals in other clusters do not wait for %s, which the cluster cannot list: %.200s", gr, problem)
	}
}

// ready reports whether the copies in a cluster are known, except those of the types in except,
// which the cluster cannot list. lost is true if the cluster is known not to answer; ready is then
// false.
func (c *restoreCheck) ready(m *member.Member) (except leftOut, ready, lost bool) {
	a := c.applier
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
		if problem == nil || c.now().Sub(since) < failurePatience {
			a.log.V(1).Info("removals wait for a list", "cluster", m.Name(), "kind", gvk.String())
			return nil, false, false
		}
		except[gr] = problem.Error()
	}
	return except, true, false
}

// look reports whether a copy or an orphan in a cluster shows that the hub was restored. If an
// object seems newer than the caches, look reads from the hub, and records that a restore is
// suspected if the object is newer.
func (c *restoreCheck) look(ctx context.Context, m *member.Member) (restored bool, err error) {
	a := c.applier
	tell := func(o mirror.Object) {
		a.log.V(1).Info("removals wait: the hub may be older than an object in the cluster", "cluster", m.Name(), "object", objectOf(o).String())
	}
	for _, o := range a.mirror.PlacedIn(m.Name()) {
		b, known := a.bindings.ByUID(o.Binding)
		if !known {
			continue
		}
		if restored, err = c.newer(ctx, m, b, o); err != nil || restored {
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
				restored, err = c.newer(ctx, m, b, o)
			}
		}
		if err != nil || restored {
			tell(o)
			return restored, err
		}
	}
	return false, nil
}

// newer reports whether the mark of an object in a member shows that the hub was restored: the
// mark is newer than the hub's binding and template. o is a copy, and b its binding. For an
// orphan, b is the binding of the same template. If the caches show a newer mark,
// restore.verify decides. A mark that this hub did not sign shows nothing.
func (c *restoreCheck) newer(ctx context.Context, m *member.Member, b *workv1alpha2.ResourceBinding, o mirror.Object) (bool, error) {
	a := c.applier
	from, err := a.key().Verify(o.Source)
	if err != nil {
		return false, nil //nolint:nilerr // a mark that this hub did not sign shows nothing
	}
	if b.UID != o.Binding {
		from.Placement = 0 // the mark has the generation of another binding
	}
	source, _ := a.template(b)
	if !from.Newer(a.sourceOf(b, source, m.Cluster().UID)) {
		return false, nil
	}
	return a.restore.verify(ctx, b, o)
}
