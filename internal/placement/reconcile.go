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
	"k8s.io/apimachinery/pkg/runtime/schema"
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

// staleLook is the retry delay when the cached binding is older than the one on the hub, and while
// a deletion begins to wait for dependencies.
const staleLook = 100 * time.Millisecond

// Reconcile updates the binding of the template k: it gathers the inputs, decides, and writes. If
// the template is gone, it deletes the binding. It deletes further bindings of the same template.
// It changes nothing while it is unknown whether the template exists, or too early to decide. A
// stale cache is no error: the template is requeued then.
func (c *Controller) Reconcile(ctx context.Context, k binding.Template) (ctrl.Result, error) {
	defer c.dispatchOrder.pass(k)
	b, others := c.bindings.Of(k)
	for _, other := range others {
		if err := c.delete(ctx, other); err != nil {
			return ctrl.Result{}, err
		}
	}
	o, state := c.template(k, b)
	if state == presence.Unknown {
		if b == nil && c.unserved(k.GroupKind) {
			c.enqueue(c.dependencyIndex.settle(k)...)
		}
		if c.unserved(k.GroupKind) {
			c.wanted(k, nil)
		}
		return ctrl.Result{}, nil // the event of the list of its kind requeues the template
	}
	if state == presence.Absent || gone(o) || b != nil && b.Spec.Resource.UID != "" && b.Spec.Resource.UID != o.GetUID() {
		c.reporter.claimed(k, nil)
		c.wanted(k, nil)
		if b == nil {
			switch replaced, err := c.replaced(ctx, k); {
			case err != nil:
				return ctrl.Result{}, err
			case replaced:
				return ctrl.Result{RequeueAfter: staleLook}, nil
			}
			c.enqueue(c.dependencyIndex.settle(k)...)
			return ctrl.Result{}, nil
		}
		// If the template was created again, its new binding is created when this binding is gone.
		// The event of the deletion requeues the template.
		return c.remove(ctx, b)
	}

	claims := settled(c.policies.Claims(o), b)
	c.reporter.claimed(k, claims)
	claims, priority := c.placeable(claims, b)
	required, again := c.requiredBy(k, o, b)
	switch {
	case b == nil && (len(claims) == 0 && !somewhere(required) || !o.GetDeletionTimestamp().IsZero()):
		c.wanted(k, nil)
		c.enqueue(c.dependencyIndex.settle(k)...)
		return ctrl.Result{}, nil
	case b != nil && !b.DeletionTimestamp.IsZero():
		c.wanted(k, nil)
		return ctrl.Result{}, nil
	case b != nil && len(claims) == 0 && len(required) == 0 && dependencyOnly(b):
		c.wanted(k, nil)
		return ctrl.Result{}, c.delete(ctx, b) // no template depends on this one any more
	}
	o, known := c.inVersion(k, o, claims, b)
	if !known {
		return ctrl.Result{}, nil // the event of the list of that version requeues the template
	}
	t, current := c.gather(k, o, claims, b, c.placements.of)
	t.RequiredBy, t.RequiredByOrphans, t.Priority = required, c.requiredByOrphans(k, required, b), priority
	if byCapacity(t) && !c.barrier.passes(k) {
		return ctrl.Result{}, nil
	}
	if t.Groups != nil {
		c.dispatchOrder.pass(k) // members of groups are decided one after the other, see peers
	}
	defer c.peers.enter(k, t.Groups)()
	current.Together, current.Apart = c.peers.others(k, t.Groups)
	seen := c.decisions.seen()
	snapshot, d, undo := c.decide(k, t, current)
	c.wanted(k, d.Wants)
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
		c.enqueue(c.dependencyIndex.settle(k)...)
		if len(claims) == 0 {
			c.enqueue(c.dependencyIndex.templates(binding.Name(written))...) // their placements stay, too
		}
		c.reservations.written(k, written)
		c.enqueue(c.peers.set(written)...)
		c.evicted(b, d.Spec, snapshot)
		c.decided(written, t, d, snapshot, seen)
		if again {
			d.retry(settledLook)
		}
		if d.RetryAfter > 0 {
			c.retry(k, d)
		}
		c.retryQueue.setDue(k, d.Due)
		return ctrl.Result{}, nil
	}
}

// retry requeues the template k after d.RetryAfter.
func (c *Controller) retry(k binding.Template, d Decision) {
	if d.RetryAfter == capacityLook {
		d.RetryAfter = c.capacityRetry
	}
	c.retryQueue.add(k, d.RetryAfter)
}

// decide decides on the template k and reserves the capacity that the decision takes. Decisions by
// capacity are made one at a time, in dequeue order, so that each sees the reservations of the
// earlier ones; decide blocks until these are made. s is the snapshot of the fleet on which d was
// decided. The caller calls undo, which ends the reservation, if the write of d fails.
func (c *Controller) decide(k binding.Template, t Template, current CurrentState) (s *fleet.Snapshot, d Decision, undo func()) {
	r := c.reservations
	if !byCapacity(t) {
		c.dispatchOrder.pass(k)
		s = c.fleet.Snapshot()
		d = Decide(s, t, current)
		d.Record.Time = time.Now()
		return s, d, r.take(k, current.Binding, demand{t.Claim, t.Components}, d.Spec)
	}
	defer c.dispatchOrder.pass(k)
	c.dispatchOrder.wait(k)
	r.deciding.Lock()
	defer r.deciding.Unlock()
	s = c.measured()
	d = Decide(s, t, current)
	d.Record.Time = time.Now()
	return s, d, r.take(k, current.Binding, demand{t.Claim, t.Components}, d.Spec)
}

// measured returns the fleet with its present free capacity, less what is reserved for earlier
// decisions. The first call starts the reservations, and the mirroring of ResourceQuotas, which
// limit the capacity. The caller holds c.reservations.deciding.
func (c *Controller) measured() *fleet.Snapshot {
	c.mu.RLock()
	settled := c.started.Add(c.settling)
	c.mu.RUnlock()
	c.copies.Require(corev1.SchemeGroupVersion.WithKind("ResourceQuota"))
	c.reservations.activate(c.bindings.All, c.demand, settled)
	c.reservations.refresh(time.Now())
	return c.fleet.Measured()
}

// demand returns what the template of a binding requires of a cluster; empty while the template is
// unknown.
func (c *Controller) demand(b *workv1alpha2.ResourceBinding) demand {
	o, state := c.templates.Get(binding.Kind(b), b.Namespace, b.Spec.Resource.Name)
	if state != presence.Present {
		return demand{}
	}
	return demandOf(o)
}

// demandOf returns what an object requires of each cluster that it is placed in.
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

// template returns a template in any version that the hub watches, preferably in that of its
// binding b, which may be nil. The object is nil unless the result is Present. While the version of
// b is served but not listed yet, the result is Unknown and not Absent.
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

// replaced reports whether the hub has the template k, which the caches lack, and whose last
// binding is gone: it was created again just now. It asks the API server only if other templates
// were placed with that binding. They would otherwise be deleted, and created again.
func (c *Controller) replaced(ctx context.Context, k binding.Template) (bool, error) {
	b := c.dependencyIndex.retiredOf(k)
	if b == nil {
		return false, nil
	}
	live := &metav1.PartialObjectMetadata{}
	live.SetGroupVersionKind(binding.Kind(b))
	err := c.reader.Get(ctx, client.ObjectKey{Namespace: k.Namespace, Name: k.Name}, live)
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read whether %s was created again: %w", k, err)
	}
	return live.DeletionTimestamp.IsZero(), nil
}

// unserved reports whether the hub serves no version of a kind in which there were templates: the
// definition of the kind was deleted, and its objects with it.
func (c *Controller) unserved(kind schema.GroupKind) bool {
	return !slices.ContainsFunc(c.templates.Versions(kind), func(gvk schema.GroupVersionKind) bool {
		return !meta.IsNoMatchError(c.templates.Watch(gvk))
	})
}

// inVersion returns the template o in the version that the policy of the first claim names or,
// without claims, in that of its binding b. If the hub does not serve this version, it returns o.
// It returns false while the hub serves the version but the template is not known in it yet. b may
// be nil.
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

// gather collects the inputs of a decision other than the fleet and the dependents. b is the
// binding of the template k, which may be nil. read returns the compiled placement of a policy and
// its hash.
func (c *Controller) gather(
	k binding.Template, o *unstructured.Unstructured, claims []policy.Claim, b *workv1alpha2.ResourceBinding,
	read func(*policyv1alpha1.PropagationPolicy) (*scheduler.Placement, string),
) (Template, CurrentState) {
	t := Template{Claims: claims}
	if len(claims) > 0 {
		// The version that the policy names is placed.
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
	current := CurrentState{Binding: b, Starting: c.starting(), Now: time.Now(), Evict: c.evict(k), Unmarked: c.unmarked(b)}
	if b != nil {
		current.Copies = func(cluster string) (int32, presence.Presence) { return c.copies.Copies(b.UID, cluster) }
	}
	return t, current
}

// cut returns a message about fields of a template that do not exist in the version in which it is
// placed; "" if there are none. While that is unknown, it returns the message of the last decision
// on the binding b, which may be nil.
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

// settled returns the claims on an object in the order that applies if the policy named in its
// binding b placed it, see policy.Settle. If b is nil, or the binding exists only for dependents,
// the order stays.
func settled(claims []policy.Claim, b *workv1alpha2.ResourceBinding) []policy.Claim {
	if b == nil || dependencyOnly(b) {
		return claims
	}
	return policy.Settle(claims, b.Spec.PolicyRef.Kind, b.Spec.PolicyRef.Name)
}

// starting reports whether the time c.settling after the start still lasts. It lasts up to six
// times as long while a cluster that was ready before the start was not probed yet, as on a slow
// machine. It is false before start.
func (c *Controller) starting() bool {
	c.mu.RLock()
	age := time.Since(c.started)
	c.mu.RUnlock()
	return age < c.settling || age < 6*c.settling && slices.ContainsFunc(c.fleet.Snapshot().Clusters(), func(cluster *fleet.Cluster) bool {
		return cluster.Expected && !cluster.Probed
	})
}

// write creates or updates the binding of the template k with the spec want, the finalizer and the
// owner reference, in at most one write. It returns the binding as written; if nothing differs, b
// without a write. b is nil if there is no binding yet. identities are the clusters that the
// decision knew. The caller calls end, also after an error, once it has remembered or dropped the
// decision.
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

// delete deletes the binding b, but not another binding with its name. It is no error if the
// binding is gone already.
func (c *Controller) delete(ctx context.Context, b *workv1alpha2.ResourceBinding) error {
	err := c.deleteAt(ctx, b, client.Preconditions{UID: &b.UID})
	if apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// deleteAt deletes the binding b if the preconditions hold, and releases the capacity that is
// reserved for it. If they do not hold, the error is a conflict. It is no error if the binding is
// gone or is being deleted.
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
