package placement

import (
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/policy"
	"orrery.dev/orrery/internal/presence"
)

// Claims lists the policies that claim an object on the hub, and those that skip it.
type Claims struct {
	// Order has the claims: first that of the policy that places the object, then those that lose.
	Order []policy.Claim
	// Hash identifies spec.placement of the first policy; "": there is no claim.
	Hash string
	// Skipped are policies whose selectors match the object, but that do not place it: see
	// policy.Skip.
	Skipped []policy.Skip
	// NoClass is the PriorityClass that the first policy names and the hub does not have; "": none
	// is missing.
	NoClass string
}

// Claims returns the policies that claim an object. b is its binding, which decides which policy
// keeps the object; nil: it has none. Until all policies and bindings are listed, Claims returns
// false.
func (c *Controller) Claims(o *unstructured.Unstructured, b *workv1alpha2.ResourceBinding) (Claims, bool) {
	if !c.working() {
		return Claims{}, false
	}
	found := Claims{Order: settled(c.policies.Claims(o), b), Skipped: c.policies.Skipped(o)}
	if len(found.Order) > 0 {
		first := found.Order[0].Policy
		_, found.Hash = c.placements.of(first)
		if _, known := c.classes.of(first); !known {
			found.NoClass = className(first)
		}
	}
	return found, true
}

// Policies returns all propagation policies of the hub, in no order. They are read-only.
func (c *Controller) Policies() []*policyv1alpha1.PropagationPolicy { return c.policies.All() }

// Template returns the template with the key k, which is read-only. The object is nil unless the
// result is Present. b is the binding of the template, which names its version; nil: it has none.
func (c *Controller) Template(k binding.Template, b *workv1alpha2.ResourceBinding) (*unstructured.Unstructured, presence.Presence) {
	return c.template(k, b)
}

// Review returns the decision that would follow for the object o if the policy p claimed it. The
// hub need not have the object or the policy. Review writes and reserves nothing. A decision
// without Spec means that it is too early to decide after a start. An object that is placed already
// keeps as much of its placement as after an edit of its policy. Review may block for a moment:
// decisions by free capacity, and those on members of affinity groups in one namespace, are made
// one at a time.
func (c *Controller) Review(o *unstructured.Unstructured, p *policyv1alpha1.PropagationPolicy) Decision {
	if !c.working() {
		return Decision{RetryAfter: settlingLook}
	}
	k := templateOf(o)
	b, _ := c.bindings.Of(k)
	if b != nil && (b.Spec.Resource.UID != o.GetUID() || !b.DeletionTimestamp.IsZero()) {
		b = nil
	}
	t, current := c.gather(k, o, []policy.Claim{{Policy: p, GVK: o.GroupVersionKind()}}, b, readPlacement)
	t.RequiredBy, _ = c.requiredBy(k, o, b)
	t.RequiredByOrphans = c.requiredByOrphans(k, t.RequiredBy, b)
	defer c.peers.enter(k, t.Groups)()
	current.Together, current.Apart = c.peers.others(k, t.Groups)
	if !byCapacity(t) {
		return reviewed(Decide(c.fleet.Snapshot(), t, current))
	}
	if !c.known() {
		return Decision{RetryAfter: settlingLook}
	}
	c.reservations.deciding.Lock()
	defer c.reservations.deciding.Unlock()
	return reviewed(Decide(c.measured(), t, current))
}

// reviewed returns the decision with the present time in its record.
func reviewed(d Decision) Decision {
	d.Record.Time = time.Now()
	return d
}
