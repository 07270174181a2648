package placement

import (
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/access"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/fleet"
	"orrery.dev/orrery/internal/scheduler"
)

// decision is what is remembered of the last decision on a binding: the inputs and results that a
// later change of a cluster may affect.
type decision struct {
	uid      types.UID            // of the binding
	binding  types.NamespacedName // name of the binding
	template binding.Template
	group
	evicting   []string // clusters from which replicas, or the whole object, move away
	outcome    Outcome
	cut        string            // message about fields that the version of the template lacks
	identities *fleet.Identities // names and UIDs of the clusters that the decision knew
}

// group has the inputs by which a change of a cluster concerns a decision, see
// scheduler.Placement.Concerns. All decisions with equal inputs are one group, and are checked
// once.
type group struct {
	placement *scheduler.Placement // nil: no policy claims the template, or its placement stays
	kind      schema.GroupVersionKind
	fence     *access.Fence // clusters that the template's namespace may use; nil: all
}

// waits reports whether the decision placed fewer replicas than requested, or nothing, because no
// cluster fits or capacity is lacking.
func (d *decision) waits() bool {
	return d.outcome.Reason == workv1alpha2.ReasonNoClusterFits || d.outcome.Reason == workv1alpha2.ReasonInsufficient
}

// mostChanges is the number of recent changes of clusters that are kept. A decision that began
// before some of them is checked against them when it is remembered.
const mostChanges = 1024

// decisions remembers the last decision on each binding. A change of a cluster is then checked only
// against the decisions that it can concern. It is safe for concurrent use.
type decisions struct {
	mu     sync.RWMutex
	last   map[types.UID]*decision // by UID of the binding
	moving map[types.UID]*decision // the decisions with evictions
	groups map[group]map[types.UID]*decision

	count   uint64         // number of changes of clusters so far
	changes []fleet.Change // the most recent changes of clusters
}

func newDecisions() *decisions {
	return &decisions{last: map[types.UID]*decision{}, moving: map[types.UID]*decision{}, groups: map[group]map[types.UID]*decision{}}
}

// seen returns the number of changes of clusters so far. The caller of made calls it before it
// takes the snapshot of the fleet on which it decides.
func (ds *decisions) seen() uint64 {
	ds.mu.RLock()
	defer ds.mu.RUnlock()
	return ds.count
}

// of returns the last decision on the binding with this UID; false if this process has made none.
func (ds *decisions) of(uid types.UID) (decision, bool) {
	ds.mu.RLock()
	defer ds.mu.RUnlock()
	if d := ds.last[uid]; d != nil {
		return *d, true
	}
	return decision{}, false
}

// made remembers a decision. seen is the result of the method seen before the snapshot on which it
// was made. news is true if its outcome or its clusters differ from those of the last decision on
// the binding. again is true if a later change of a cluster concerns the decision, so that the
// caller must requeue the template.
func (ds *decisions) made(d decision, seen uint64, bindings *binding.Cache) (news, again bool) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	before := ds.last[d.uid]
	ds.remove(d.uid)
	ds.last[d.uid] = &d
	if ds.groups[d.group] == nil {
		ds.groups[d.group] = map[types.UID]*decision{}
	}
	ds.groups[d.group][d.uid] = &d
	if len(d.evicting) > 0 {
		ds.moving[d.uid] = &d
	}
	missed := int(min(ds.count-seen, mostChanges+1))
	again = missed > len(ds.changes)
	for _, change := range ds.changes[len(ds.changes)-min(missed, len(ds.changes)):] {
		a := newAim(change, bindings)
		again = again || a.hits(&d, a.concerns(d.group))
	}
	return before == nil || before.outcome != d.outcome || before.identities != d.identities, again
}

// forget removes the decision on the binding with this UID; if there is none, it does nothing.
func (ds *decisions) forget(uid types.UID) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	ds.remove(uid)
}

// remove removes the decision on the binding with this UID, if there is one. The caller holds
// ds.mu.
func (ds *decisions) remove(uid types.UID) {
	d := ds.last[uid]
	if d == nil {
		return
	}
	delete(ds.last, uid)
	delete(ds.moving, uid)
	if delete(ds.groups[d.group], uid); len(ds.groups[d.group]) == 0 {
		delete(ds.groups, d.group)
	}
}

// concerned records a change of a cluster, so that made checks decisions in progress against it. It
// returns the templates, in no order, that must be decided again because of it.
func (ds *decisions) concerned(change fleet.Change, bindings *binding.Cache) []binding.Template {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	ds.count++
	ds.changes = append(ds.changes, change)
	if len(ds.changes) > mostChanges {
		ds.changes = append(ds.changes[:0:0], ds.changes[mostChanges/2:]...)
	}
	return ds.aimedAt(newAim(change, bindings))
}

// supposed returns the templates that would have to be decided again after a hypothetical change of
// a cluster. It records nothing.
func (ds *decisions) supposed(change fleet.Change, bindings *binding.Cache) []binding.Template {
	ds.mu.RLock()
	defer ds.mu.RUnlock()
	return ds.aimedAt(newAim(change, bindings))
}

// aimedAt returns the templates of the decisions that a change concerns, in no order. The caller
// holds ds.mu.
func (ds *decisions) aimedAt(a aim) []binding.Template {
	var templates []binding.Template
	for g, members := range ds.groups {
		concerns := a.concerns(g)
		if concerns == (concern{}) && len(ds.moving) == 0 {
			continue
		}
		for _, d := range members {
			if a.hits(d, concerns) {
				templates = append(templates, d.template)
			}
		}
	}
	return templates
}

// evicting returns the templates that are moving replicas, or the whole object, out of a cluster,
// in no order: that of the binding with this UID, or those of all bindings if uid is "".
func (ds *decisions) evicting(cluster string, uid types.UID) []binding.Template {
	ds.mu.RLock()
	defer ds.mu.RUnlock()
	var templates []binding.Template
	if uid != "" {
		if d := ds.moving[uid]; d != nil && slices.Contains(d.evicting, cluster) {
			templates = append(templates, d.template)
		}
		return templates
	}
	for _, d := range ds.moving {
		if slices.Contains(d.evicting, cluster) {
			templates = append(templates, d.template)
		}
	}
	return templates
}

// aim is a change of a cluster with what is needed to find the decisions that it concerns.
type aim struct {
	change fleet.Change
	placed sets.Set[types.NamespacedName] // the bindings that have the cluster as a target
}

// newAim returns the aim of a change. It looks up the bindings that have the changed cluster as a
// target.
func newAim(change fleet.Change, bindings *binding.Cache) aim {
	a := aim{change: change, placed: sets.New[types.NamespacedName]()}
	for _, name := range bindings.In(change.Name) {
		if b, ok := bindings.Get(name); ok {
			if _, placed := binding.Target(b, change.Name); placed {
				a.placed.Insert(name)
			}
		}
	}
	return a
}

// concern says which decisions of a group (those with the same placement, kind and fence) a change
// of a cluster concerns: those that place the template in the cluster, those that do not, and those
// that placed less than requested.
type concern struct{ placed, elsewhere, waiting bool }

// concerns returns which decisions of the group g, which have the same placement, kind and fence,
// the change of the cluster concerns.
func (a aim) concerns(g group) concern {
	change := a.change
	if g.placement == nil {
		return concern{placed: change.What&fleet.Membership != 0}
	}
	return concern{
		placed:    g.placement.Concerns(change.Before, change.After, g.kind, schedulerFence(g.fence), true),
		elsewhere: g.placement.Concerns(change.Before, change.After, g.kind, schedulerFence(g.fence), false),
		waiting: change.What&(fleet.Reachability|fleet.Capacity) != 0 && change.After != nil && change.After.Reachable &&
			g.placement.Selects(change.After) && g.fence.Allows(change.After),
	}
}

// hits reports whether the change of the cluster concerns the decision d, so that its template must
// be decided again. group is the result of concerns for the group of d.
func (a aim) hits(d *decision, group concern) bool {
	switch here := a.placed.Has(d.binding); {
	case here && group.placed, !here && group.elsewhere, group.waiting && d.waits():
		return true
	default: // the state of the copy in the cluster decides when an eviction ends
		return slices.Contains(d.evicting, a.change.Name) && a.change.What&(fleet.Membership|fleet.Reachability|fleet.APIs) != 0
	}
}
