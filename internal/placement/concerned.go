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

// decision is the last decision on a binding, as far as it is remembered.
type decision struct {
	uid      types.UID
	binding  types.NamespacedName
	template binding.Template
	group
	evicting   []string // clusters that replicas or the object move out of
	outcome    Outcome
	cut        string            // what it said of fields that the version of the template lacks
	identities *fleet.Identities // the clusters that the decision knew
}

// group is the key by which decisions share the result of scheduler.Placement.Concerns.
type group struct {
	placement *scheduler.Placement // nil: no policy claims the template
	kind      schema.GroupVersionKind
	fence     *access.Fence // of the template's namespace; nil: none
}

// waits reports whether the decision placed less than requested.
func (d *decision) waits() bool {
	return d.outcome.Reason == workv1alpha2.ReasonNoClusterFits || d.outcome.Reason == workv1alpha2.ReasonInsufficient
}

// mostChanges is the number of fleet changes that are kept for decisions in progress.
const mostChanges = 1024

// decisions remembers the last decision on each binding. A change of a cluster is then checked only
// against the bindings that it can concern. It is safe for concurrent use.
type decisions struct {
	mu     sync.RWMutex
	last   map[types.UID]*decision
	moving map[types.UID]*decision // decisions with evictions
	groups map[group]map[types.UID]*decision

	count   uint64 // number of fleet changes so far
	changes []fleet.Change
}

func newDecisions() *decisions {
	return &decisions{last: map[types.UID]*decision{}, moving: map[types.UID]*decision{}, groups: map[group]map[types.UID]*decision{}}
}

// seen returns the number of fleet changes so far. A caller reads it before it takes a snapshot.
func (ds *decisions) seen() uint64 {
	ds.mu.RLock()
	defer ds.mu.RUnlock()
	return ds.count
}

// of returns the last decision on a binding; false if there is none.
func (ds *decisions) of(uid types.UID) (decision, bool) {
	ds.mu.RLock()
	defer ds.mu.RUnlock()
	if d := ds.last[uid]; d != nil {
		return *d, true
	}
	return decision{}, false
}

// made remembers a decision. seen is the value of seen before the decision's snapshot. news is true
// if the decision differs from the last one. again is true if the template must be decided again,
// because a later fleet change concerns it.
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

// forget removes a binding.
func (ds *decisions) forget(uid types.UID) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	ds.remove(uid)
}

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

// concerned records a fleet change and returns the templates that must be decided again.
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

// supposed returns the templates that a hypothetical change concerns, and records nothing.
func (ds *decisions) supposed(change fleet.Change, bindings *binding.Cache) []binding.Template {
	ds.mu.RLock()
	defer ds.mu.RUnlock()
	return ds.aimedAt(newAim(change, bindings))
}

// aimedAt returns the templates that a change concerns. The caller holds mu.
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

// evicting returns the templates that move something out of the cluster: of one binding, or of all
// bindings if uid is "".
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

// aim finds the decisions that a change of a cluster concerns.
type aim struct {
	change fleet.Change
	placed sets.Set[types.NamespacedName] // the bindings that have the cluster as a target
}

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

// concern says which decisions of a group a change concerns: those with a target in the cluster,
// those without, and those that placed less than requested.
type concern struct{ placed, elsewhere, waiting bool }

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

// hits reports whether the change concerns a decision. group is the result of concerns for the
// group of the decision.
func (a aim) hits(d *decision, group concern) bool {
	switch here := a.placed.Has(d.binding); {
	case here && group.placed, !here && group.elsewhere, group.waiting && d.waits():
		return true
	default: // these changes affect what is known about the copy
		return slices.Contains(d.evicting, a.change.Name) && a.change.What&(fleet.Membership|fleet.Reachability|fleet.APIs) != 0
	}
}
