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

// classes resolves the priorities that policies give to templates.
type classes struct {
	mu     sync.RWMutex
	values map[string]int32               // by name of the hub's PriorityClass
	naming sets.Set[types.NamespacedName] // the policies that name a class
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

// set records whether a policy names a class. p is nil if the policy is deleted.
func (cs *classes) set(name types.NamespacedName, p *policyv1alpha1.PropagationPolicy) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if p != nil && className(p) != "" {
		cs.naming.Insert(name)
	} else {
		cs.naming.Delete(name)
	}
}

// any reports whether some policy names a class. If not, all priorities are equal.
func (cs *classes) any() bool {
	cs.mu.RLock()
	defer cs.mu.RUnlock()
	return len(cs.naming) > 0
}

// of returns the priority that a policy gives; nil if it names no class. known is false if the
// class does not exist.
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

// changed records a changed class. It returns the name of the class, and all policies that name any
// class.
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

// classChanged requeues all templates that get their priority from a PriorityClass.
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

// priority returns the priority of a template in the queue. It comes from the binding, or from the
// policy that claims the template. A dependency has at least the priority of the templates that
// need it.
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

// ownPriority returns the priority of a template without its dependents; false if neither a binding
// nor a policy gives one.
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

// ordered sorts templates by priority, highest first. Workers may take the first template before
// the last one is queued.
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

// placeable returns the claims that may place a template, and its priority. While the PriorityClass
// of the first policy does not exist, a template that no policy placed yet gets no claims. A placed
// template keeps its claims and its priority.
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
