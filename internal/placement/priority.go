package placement

import (
	"cmp"
	"slices"
	"sync"

	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/policy"
	"orrery.dev/orrery/internal/presence"
)

// classes knows the PriorityClasses of the hub, and which policies name one. It returns the
// priorities that policies give to templates. It is safe for concurrent use.
type classes struct {
	mu     sync.RWMutex
	values map[string]int32               // of the PriorityClasses, by name
	naming sets.Set[types.NamespacedName] // the policies that name a PriorityClass
}

func newClasses() *classes {
	return &classes{values: map[string]int32{}, naming: sets.New[types.NamespacedName]()}
}

// className returns the PriorityClass that a policy names; "": none.
func className(p *policyv1alpha1.PropagationPolicy) string {
	if p.Spec.SchedulePriority == nil {
		return ""
	}
	return p.Spec.SchedulePriority.PriorityClassName
}

// set records whether the policy with the name names a PriorityClass. p is the policy; nil: it is
// deleted.
func (cs *classes) set(name types.NamespacedName, p *policyv1alpha1.PropagationPolicy) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if p != nil && className(p) != "" {
		cs.naming.Insert(name)
	} else {
		cs.naming.Delete(name)
	}
}

// any reports whether some policy names a PriorityClass. If not, all priorities are equal.
func (cs *classes) any() bool {
	cs.mu.RLock()
	defer cs.mu.RUnlock()
	return len(cs.naming) > 0
}

// of returns the priority that a policy gives to its templates; nil if the policy names no
// PriorityClass. If the hub does not have the PriorityClass that it names, known is false and the
// priority nil.
func (cs *classes) of(p *policyv1alpha1.PropagationPolicy) (priority *workv1alpha2.SchedulePriority, known bool) {
	name := className(p)
	if name == "" {
		return nil, true
	}
	cs.mu.RLock()
	defer cs.mu.RUnlock()
	value, ok := cs.values[name]
	if !ok {
		return nil, false
	}
	return &workv1alpha2.SchedulePriority{Priority: value}, true
}

// changed records a PriorityClass that was added (before is nil), changed, or deleted (after is
// nil). It returns the name of the class, and all policies that name any PriorityClass, in no
// order.
func (cs *classes) changed(before, after *schedulingv1.PriorityClass) (name string, naming []types.NamespacedName) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	name = cmp.Or(after, before).Name
	if after == nil {
		delete(cs.values, name)
	} else {
		cs.values[name] = after.Value
	}
	return name, cs.naming.UnsortedList()
}

// asClass returns a PriorityClass; nil for other objects.
func asClass(o any) *schedulingv1.PriorityClass {
	class, _ := o.(*schedulingv1.PriorityClass)
	return class
}

// classChanged records a PriorityClass that was added (before is nil), changed, or deleted (after
// is nil). It requeues the templates of the policies that name it, and queues the status of these
// policies. If the value of the class stays, it does nothing.
func (c *Controller) classChanged(before, after *schedulingv1.PriorityClass) {
	if before != nil && after != nil && before.Value == after.Value {
		return
	}
	class, naming := c.classes.changed(before, after)
	if !c.working() {
		return // start requeues all templates
	}
	for _, name := range naming {
		if p, ok := c.policies.Get(name); ok && className(p) == class {
			c.reporter.changed(name)
			c.reevaluate(p)
		}
	}
}

// priority returns the priority of a template in the work queue, from its binding or else from the
// policy that claims it. A dependency has at least the priority of the templates that depend on it.
// It is 0 while no policy names a PriorityClass.
func (c *Controller) priority(k binding.Template) int32 {
	if !c.classes.any() {
		return 0
	}
	own, known := c.ownPriority(k)
	switch needed, follows := c.dependencyIndex.priority(k); {
	case !follows:
		return own
	case !known:
		return needed
	default:
		return max(own, needed)
	}
}

// ownPriority returns the priority of a template, from its binding or else from the policy that
// claims it, without regard to the templates that depend on it. known is false if it has neither.
func (c *Controller) ownPriority(k binding.Template) (priority int32, known bool) {
	if b, _ := c.bindings.Of(k); b != nil {
		return b.Spec.Priority(), true
	}
	if o, state := c.template(k, nil); state == presence.Present {
		if claims := c.policies.Claims(o); len(claims) > 0 {
			if own, _ := c.classes.of(claims[0].Policy); own != nil {
				return own.Priority, true
			}
			return 0, true
		}
	}
	return 0, false
}

// ordered returns templates sorted by priority, highest first. It does not change keys. If all
// priorities are equal, it returns keys.
func (c *Controller) ordered(keys []binding.Template) []binding.Template {
	if len(keys) < 2 || !c.classes.any() {
		return keys
	}
	priorities := make(map[binding.Template]int32, len(keys))
	for _, k := range keys {
		priorities[k] = c.priority(k)
	}
	keys = slices.Clone(keys)
	slices.SortStableFunc(keys, func(a, b binding.Template) int { return cmp.Compare(priorities[b], priorities[a]) })
	return keys
}

// placeable returns which of the claims on a template may place it now, and its priority; nil:
// none. If the first policy names a PriorityClass that does not exist, a template that no policy
// has placed yet waits: it gets no claims. A template that a policy has placed keeps its claims and
// its priority. b is the binding; nil: there is none.
func (c *Controller) placeable(claims []policy.Claim, b *workv1alpha2.ResourceBinding) ([]policy.Claim, *workv1alpha2.SchedulePriority) {
	if len(claims) == 0 {
		return nil, nil
	}
	priority, known := c.classes.of(claims[0].Policy)
	switch {
	case known:
		return claims, priority
	case b == nil || dependencyOnly(b):
		return nil, nil
	default:
		return claims, b.Spec.SchedulePriority
	}
}
