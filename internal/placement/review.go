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

// Claims lists the policies that claim an object.
type Claims struct {
	// Order has the claims: first the one that places the object, then the ones that lose.
	Order []policy.Claim
	// Hash identifies the placement of the first policy.
	Hash string
	// Skipped are policies whose selectors match the object but that skip it.
	Skipped []policy.Skip
	// NoClass is the PriorityClass that the first policy names and the hub does not have; "": none
	// is missing.
	NoClass string
}

// Claims returns the claims on an object with the binding b; nil: it has none. It returns false
// until all policies and bindings are listed.
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

// Template returns the known template, which is read-only. b is its binding, or nil.
func (c *Controller) Template(k binding.Template, b *workv1alpha2.ResourceBinding) (*unstructured.Unstructured, presence.Presence) {
	return c.template(k, b)
}

// Review returns the decision that the policy would lead to for the object. Neither must exist on
// the hub. It writes and reserves nothing. A decision without Spec means that it is too early. An
// object that is placed already keeps its placement as after an edit of its policy.
func (c *Controller) Review(o *unstructured.Unstructured, p *policyv1alpha1.PropagationPolicy) Decision {
	if !c.working() {
		return Decision{RetryAfter: settlingLook}
	}
	k := templateOf(o)
	b, _ := c.bindings.Of(k)
	if b != nil && (b.Spec.Resource.UID != o.GetUID() || !b.DeletionTimestamp.IsZero()) {
		b = nil
	}
	t, standing := c.gather(k, o, []policy.Claim{{Policy: p, GVK: o.GroupVersionKind()}}, b, readPlacement)
	t.RequiredBy, _ = c.requiredBy(k, o, b)
	t.RequiredByOrphans = c.requiredByOrphans(k, t.RequiredBy, b)
	defer c.peers.enter(k, t.Groups)()
	standing.Together, standing.Apart = c.peers.others(k, t.Groups)
	if !byRoom(t) {
		return reviewed(Decide(c.fleet.Snapshot(), t, standing))
	}
	if !c.known() {
		return Decision{RetryAfter: settlingLook}
	}
	c.reservations.deciding.Lock()
	defer c.reservations.deciding.Unlock()
	return reviewed(Decide(c.measured(), t, standing))
}

func reviewed(d Decision) Decision {
	d.Record.Time = time.Now()
	return d
}
