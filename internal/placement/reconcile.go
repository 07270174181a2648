package placement

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/fleet"
	"orrery.dev/orrery/internal/interpreter"
	"orrery.dev/orrery/internal/policy"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/scheduler"
)

// staleLook is the retry delay when the cache is older than the stored binding.
const staleLook = 100 * time.Millisecond

// Reconcile updates the binding of one template: it gathers the inputs, decides, and writes.
func (c *Controller) Reconcile(ctx context.Context, k binding.Template) (ctrl.Result, error) {
	defer c.turns.pass(k)
	b, others := c.bindings.Of(k)
	for _, other := range others {
		if err := c.delete(ctx, other); err != nil {
			return ctrl.Result{}, err
		}
	}
	o, state := c.template(k, b)
	if state == presence.Unknown {
		return ctrl.Result{}, nil // the event of its kind requeues it; until then all stays
	}
	if state == presence.Absent || gone(o) || b != nil && b.Spec.Resource.UID != "" && b.Spec.Resource.UID != o.GetUID() {
		c.reporter.claimed(k, nil)
		if b == nil {
			return ctrl.Result{}, nil
		}
		// The template was deleted and created again. Its new binding is created when this one is
		// gone: the event of that requeues the template.
		return c.remove(ctx, b)
	}

	claims := settled(c.policies.Claims(o), b)
	c.reporter.claimed(k, claims)
	claims, priority := c.placeable(claims, b)
	required, again := c.requiredBy(k, o, b)
	switch {
	case b == nil && (len(claims) == 0 && !somewhere(required) || !o.GetDeletionTimestamp().IsZero()):
		return ctrl.Result{}, nil
	case b != nil && !b.DeletionTimestamp.IsZero():
		return ctrl.Result{}, nil
	case b != nil && len(claims) == 0 && len(required) == 0 && follower(b):
		return ctrl.Result{}, c.delete(ctx, b) // no template depends on it any more
	}
	o, known := c.inVersion(k, o, claims, b)
	if !known {
		return ctrl.Result{}, nil // the event of that version requeues it; until then all stays
	}
	t, standing := c.gather(k, o, claims, b, c.placements.of)
	t.RequiredBy, t.RequiredByOrphans, t.Priority = required, c.requiredByOrphans(k, required, b), priority
	if byRoom(t) && !c.gate.passes(k) {
		return ctrl.Result{}, nil
	}
	if t.Groups != nil {
		c.turns.pass(k) // groups have an order of their own, by namespace
	}
	defer c.peers.enter(k, t.Groups)()
	standing.Together, standing.Apart = c.peers.others(k, t.Groups)
	seen := c.decisions.seen()
	snapshot, d, undo := c.decide(k, t, standing)
	if d.Spec == nil {
		c.retry(k, d)
		return ctrl.Result{}, nil
	}
	c.noteDeletion(d.Spec, b, o)
	written, end, err := c.write(ctx, k, b, *d.Spec, snapshot.Identities())
	defer end()
	c.waits.wrote(k, err)
	if err != nil {
		undo()
	}
	switch {
	case apierrors.IsAlreadyExists(err), apierrors.IsConflict(err):
		// The cache is stale: the decision is about an old version of the binding.
		return ctrl.Result{RequeueAfter: staleLook}, nil
	case apierrors.IsNotFound(err), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return ctrl.Result{}, nil // the template or the binding is gone; an event follows
	case err != nil:
		return ctrl.Result{}, err
	default:
		if b == nil && t.OnHub != "" {
			c.reporter.recorder.Eventf(o, nil, corev1.EventTypeWarning, "ActsOnHub", "Claim", "%s", note(t.OnHub))
		}
		c.follows(written)
		if len(claims) == 0 {
			c.enqueue(c.needs.templates(binding.Name(written))...) // dependencies stay as well
		}
		c.reservations.written(k, written)
		c.enqueue(c.peers.set(written)...)
		c.decided(written, t, d, snapshot, seen)
		if again {
			d.retry(settledLook)
		}
		if d.RetryAfter > 0 {
			c.retry(k, d)
		}
		return ctrl.Result{}, nil
	}
}

// retry requeues a template after the delay of its decision.
func (c *Controller) retry(k binding.Template, d Decision) {
	if d.RetryAfter == capacityLook {
		d.RetryAfter = c.capacityRetry
	}
	c.rounds.add(k, d.RetryAfter)
}

// decide decides and reserves the capacity that the decision takes. Decisions by capacity are made
// one at a time, in dequeue order, so that each sees the reservations of the others. undo ends the
// reservation; the caller calls it if the write fails.
func (c *Controller) decide(k binding.Template, t Template, standing Standing) (s *fleet.Snapshot, d Decision, undo func()) {
	r := c.reservations
	if !byRoom(t) {
		c.turns.pass(k)
		s = c.fleet.Snapshot()
		d = Decide(s, t, standing)
		d.Record.Time = time.Now()
		return s, d, r.take(k, standing.Binding, demand{t.Claim, t.Components}, d.Spec)
	}
	defer c.turns.pass(k)
	c.turns.wait(k)
	r.deciding.Lock()
	defer r.deciding.Unlock()
	s = c.measured()
	d = Decide(s, t, standing)
	d.Record.Time = time.Now()
	return s, d, r.take(k, standing.Binding, demand{t.Claim, t.Components}, d.Spec)
}

// measured returns the fleet with its free capacity now, less the reservations. The caller holds
// reservations.deciding.
func (c *Controller) measured() *fleet.Snapshot {
	c.mu.RLock()
	settled := c.started.Add(c.settling)
	c.mu.RUnlock()
	// Quotas limit the free capacity.
	c.copies.Require(corev1.SchemeGroupVersion.WithKind("ResourceQuota"))
	c.reservations.activate(c.bindings.All, c.demand, settled)
	c.reservations.refresh(time.Now())
	return c.fleet.Measured()
}

// demand returns the demand of a binding's template; empty while the template is unknown.
func (c *Controller) demand(b *workv1alpha2.ResourceBinding) demand {
	o, state := c.templates.Get(binding.Kind(b), b.Namespace, b.Spec.Resource.Name)
	if state != presence.Present {
		return demand{}
	}
	return demandOf(o)
}

// demandOf returns what an object requires of its clusters.
func demandOf(o *unstructured.Unstructured) demand {
	var d demand
	if d.claim = scheduler.NewClaim(interpreter.RequirementsOf(o)); interpreter.Replicas(o) != nil {
		return d
	}
	for _, c := range interpreter.Components(o) {
		d.components = append(d.components, scheduler.Component{Name: c.Name, Claim: scheduler.NewClaim(c.Requirements), Replicas: int64(c.Replicas)})
	}
	return d
}

// template returns a template in any watched version, first in that of its binding. While the
// version of its binding is served but not listed yet, the template is unknown, not absent.
func (c *Controller) template(k binding.Template, b *workv1alpha2.ResourceBinding) (*unstructured.Unstructured, presence.Presence) {
	versions := c.templates.Versions(k.GroupKind)
	if b != nil {
		versions = slices.Insert(versions, 0, binding.Kind(b))
	}
	known, unknown := presence.Unknown, false
	for _, gvk := range versions {
		switch o, state := c.templates.Get(gvk, k.Namespace, k.Name); state {
		case presence.Present:
			return o, presence.Present
		case presence.Absent:
			known = presence.Absent
		case presence.Unknown:
			unknown = unknown || b != nil && gvk == binding.Kind(b) && !meta.IsNoMatchError(c.templates.Watch(gvk))
		}
	}
	if unknown {
		return nil, presence.Unknown
	}
	return nil, known
}

// inVersion returns a template in the version that its policy names, or without a policy in
// that of its binding. It returns another version only if the hub does not serve that one. It
// returns false while the version is served and the template is not known in it yet.
func (c *Controller) inVersion(
	k binding.Template, o *unstructured.Unstructured, claims []policy.Claim, b *workv1alpha2.ResourceBinding,
) (*unstructured.Unstructured, bool) {
	gvk := o.GroupVersionKind()
	switch {
	case len(claims) > 0:
		gvk = claims[0].GVK
	case b != nil:
		gvk = binding.Kind(b)
	}
	if named, state := c.templates.Get(gvk, k.Namespace, k.Name); state == presence.Present {
		return named, named.GetUID() == o.GetUID()
	}
	return o, meta.IsNoMatchError(c.templates.Watch(gvk))
}

// gather collects the inputs of a decision except the fleet. read returns the compiled placement of
// a policy, and its hash.
func (c *Controller) gather(
	k binding.Template, o *unstructured.Unstructured, claims []policy.Claim, b *workv1alpha2.ResourceBinding,
	read func(*policyv1alpha1.PropagationPolicy) (*scheduler.Placement, string),
) (Template, Standing) {
	t := Template{Claims: claims}
	if len(claims) > 0 {
		// The author of the policy means the version that the policy names.
		if named, state := c.templates.Get(claims[0].GVK, k.Namespace, k.Name); state == presence.Present && named.GetUID() == o.GetUID() {
			o = named
		}
		t.Placement, t.PlacementHash = read(claims[0].Policy)
	}
	t.Object = o
	if len(claims) > 0 {
		t.Groups = groupsOf(o, claims[0].Policy.Spec.Placement.WorkloadAffinity)
	}
	t.OnHub, t.Cut = interpreter.OnHub(o, c.hub), c.cut(o, b)
	d := demandOf(o)
	t.Replicas, t.Claim, t.Components = interpreter.Replicas(o), d.claim, d.components
	if c.overrides != nil {
		t.Overrides = c.overrides(o)
	}
	if len(claims) > 0 && claims[0].Policy.Spec.ActivationPreference == policyv1alpha1.LazyActivation {
		t.Version = versionOf(o)
	}
	if len(claims) > 0 && b != nil && (!b.Spec.Schedules() || waits(t, b)) {
		t.Placement = nil // no change of the fleet concerns a placement that stays
	}
	standing := Standing{Binding: b, Young: c.young()}
	if b != nil {
		standing.Copies = func(cluster string) (int32, presence.Presence) { return c.copies.Copies(b.UID, cluster) }
	}
	return t, standing
}

// cut returns a message about fields of a template that do not exist in its version; "" if all
// exist. While that is unknown, it returns the message of the last decision.
func (c *Controller) cut(o *unstructured.Unstructured, b *workv1alpha2.ResourceBinding) string {
	message, known := c.templates.Cut(o)
	if known || b == nil {
		return message
	}
	if last, made := c.decisions.of(b.UID); made && last.kind == o.GroupVersionKind() {
		return last.cut
	}
	return ""
}

// settled returns the claims on an object in the order that holds for its binding.
func settled(claims []policy.Claim, b *workv1alpha2.ResourceBinding) []policy.Claim {
	if b == nil || follower(b) {
		return claims
	}
	return policy.Settle(claims, b.Spec.PolicyRef.Kind, b.Spec.PolicyRef.Name)
}

// young reports whether the settling time after the start lasts.
func (c *Controller) young() bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return time.Since(c.started) < c.settling
}

// write creates or updates the binding with the wanted spec, in at most one write, and returns
// the binding as written. identities are the clusters that the decision knew. The caller calls
// end when the decision is remembered or dropped.
func (c *Controller) write(
	ctx context.Context, k binding.Template, b *workv1alpha2.ResourceBinding, want workv1alpha2.BindingSpec, identities *fleet.Identities,
) (written *workv1alpha2.ResourceBinding, end func(), err error) {
	if b == nil {
		created := &workv1alpha2.ResourceBinding{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: k.Namespace, Name: c.bindings.FreeName(k), Finalizers: []string{workv1alpha2.Finalizer},
			},
			Spec: want,
		}
		setOwner(created, false)
		end = c.intended.begin(k, created.Spec.DeepCopy(), identities)
		if err := c.client.Create(ctx, binding.Object(created)); err != nil {
			return nil, end, fmt.Errorf("create binding of %s: %w", k, err)
		}
		return created, end, nil
	}
	if equality.Semantic.DeepEqual(b.Spec, want) && slices.Contains(b.Finalizers, workv1alpha2.Finalizer) {
		return b, func() {}, nil
	}
	updated := b.DeepCopy()
	updated.Spec = want
	setOwner(updated, b.Spec.OwnerReferenced)
	controllerutil.AddFinalizer(updated, workv1alpha2.Finalizer)
	end = c.intended.begin(k, updated.Spec.DeepCopy(), identities)
	before := binding.DropManagedFields(b, updated)
	patch := client.MergeFromWithOptions(binding.Object(before), client.MergeFromWithOptimisticLock{})
	if err := c.client.Patch(ctx, binding.Object(updated), patch); err != nil {
		return nil, end, fmt.Errorf("update binding of %s: %w", k, err)
	}
	return updated, end, nil
}

// delete deletes exactly this binding, not another one with the same name.
func (c *Controller) delete(ctx context.Context, b *workv1alpha2.ResourceBinding) error {
	err := c.deleteAt(ctx, b, client.Preconditions{UID: &b.UID})
	if apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// deleteAt deletes a binding if the preconditions hold. A binding that is gone is no error.
func (c *Controller) deleteAt(ctx context.Context, b *workv1alpha2.ResourceBinding, conditions client.Preconditions) error {
	if !b.DeletionTimestamp.IsZero() {
		return nil
	}
	err := c.client.Delete(ctx, binding.Object(b), conditions)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete binding of %s: %w", binding.TemplateOf(b), err)
	}
	c.reservations.forget(b.UID)
	return nil
}
