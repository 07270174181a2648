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

// classes are the priorities that policies give what they place.
type classes struct {
	mu     sync.RWMutex
	values map[string]int32               // of the hub's PriorityClasses
	naming sets.Set[types.NamespacedName] // the policies that name one
}

func newClasses() *classes {
	return &classes{values: map[string]int32{}, naming: sets.New[types.NamespacedName]()}
}

// className is the PriorityClass that a policy names; empty: none.
func className(p *policyv1alpha1.PropagationPolicy) string {
	if p.Spec.SchedulePriority == nil {
		return ""
	}
	return p.Spec.SchedulePriority.PriorityClassName
}

// set notes whether a policy names a class; nil: it is gone.
func (cs *classes) set(name types.NamespacedName, p *policyv1alpha1.PropagationPolicy) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if p != nil && className(p) != "" {
		cs.naming.Insert(name)
	} else {
		cs.naming.Delete(name)
	}
}

// any is true when some policy names a class: without one, all are alike.
func (cs *classes) any() bool {
	cs.mu.RLock()
	defer cs.mu.RUnlock()
	return len(cs.naming) > 0
}

// of is the priority that a policy gives, nil when it gives none; known is false while the class that it names does not exist.
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

// changed notes a class as it is, and returns the policies that name it.
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

func asClass(o any) *schedulingv1.PriorityClass {
	class, _ := o.(*schedulingv1.PriorityClass)
	return class
}

// classChanged has all looked at again that a PriorityClass gives its priority to.
func (c *Controller) classChanged(before, after *schedulingv1.PriorityClass) {
	if before != nil && after != nil && before.Value == after.Value {
		return
	}
	class, naming := c.classes.changed(before, after)
	if !c.working() {
		return // everything is looked at when the work begins
	}
	for _, name := range naming {
		if p, ok := c.policies.Get(name); ok && className(p) == class {
			c.reporter.changed(name)
			c.reevaluate(p)
		}
	}
}

// priority is how urgent the decision on a template is. What is placed has it in its binding; what is not, from the policy that claims
// it. What others need is as urgent as they are.
func (c *Controller) priority(k binding.Template) int32 {
	if !c.classes.any() {
		return 0
	}
	own, known := c.ownPriority(k)
	switch needed, follows := c.needs.priority(k); {
	case !follows:
		return own
	case !known:
		return needed
	default:
		return max(own, needed)
	}
}

// ownPriority is how urgent the decision on a template is by itself; false when nobody says so.
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

// ordered are templates, the most urgent first: the first of those that are added at once may be decided on before the last is added.
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

// placeable are the claims on a template that has a binding or none: while the PriorityClass of the policy that comes first does not
// exist, none of them places what that policy has not placed yet.
func (c *Controller) placeable(claims []policy.Claim, b *workv1alpha2.ResourceBinding) ([]policy.Claim, *workv1alpha2.SchedulePriority) {
	if len(claims) == 0 {
		return nil, nil
	}
	priority, known := c.classes.of(claims[0].Policy)
	switch {
	case known:
		return claims, priority
	case b == nil || follower(b):
		return nil, nil
	default:
		return claims, b.Spec.SchedulePriority
	}
}
