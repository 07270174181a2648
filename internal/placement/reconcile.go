package placement

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/interpreter"
	"orrery.dev/orrery/internal/policy"
	"orrery.dev/orrery/internal/scheduler"
)

const (
	// settlingLook is when a workload is looked at again that waits for the fleet.
	settlingLook = 250 * time.Millisecond
	// capacityLook is when a workload that does not fit is tried again.
	capacityLook = 15 * time.Second
	// staleLook is when a binding is looked at again that exists and is not known yet.
	staleLook = 100 * time.Millisecond
)

// Reconcile brings the binding of one template up to date.
func (c *Controller) Reconcile(ctx context.Context, k binding.Template) (ctrl.Result, error) {
	b, others := c.bindings.Of(k)
	for _, other := range others {
		if err := c.delete(ctx, other); err != nil {
			return ctrl.Result{}, err
		}
	}
	o, state := c.template(k, b)
	if state == presence.Unknown {
		return ctrl.Result{}, nil // its event brings us back; until then all stays
	}
	if state == presence.Absent || gone(o) || b != nil && b.Spec.Resource.UID != "" && b.Spec.Resource.UID != o.GetUID() {
		c.reporter.claimed(k, nil)
		if b == nil {
			return ctrl.Result{}, nil
		}
		// The binding of a template that was made anew is created when this one is gone,
		// of which its last event tells us.
		return ctrl.Result{}, c.delete(ctx, b)
	}

	claims := c.policies.Claims(o)
	c.reporter.claimed(k, claims)
	switch {
	case b == nil && (len(claims) == 0 || !o.GetDeletionTimestamp().IsZero()):
		return ctrl.Result{}, nil
	case b != nil && !b.DeletionTimestamp.IsZero():
		return ctrl.Result{}, nil
	}
	want, outcome, again, err := c.decide(ctx, k, o, claims, b)
	if err != nil || want == nil {
		return ctrl.Result{RequeueAfter: again}, err
	}
	switch written, err := c.write(ctx, k, b, *want); {
	case apierrors.IsAlreadyExists(err):
		return ctrl.Result{RequeueAfter: staleLook}, nil
	case apierrors.IsNotFound(err), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return ctrl.Result{}, nil // the template goes too, or the binding went; events follow
	case err != nil:
		return ctrl.Result{}, err
	default:
		c.decided(written, outcome)
		return ctrl.Result{RequeueAfter: again}, nil
	}
}

// template looks for a template in every watched version, in that of its binding first.
func (c *Controller) template(k binding.Template, b *workv1alpha2.ResourceBinding) (*unstructured.Unstructured, presence.Presence) {
	versions := c.templates.Versions(k.GroupKind)
	if b != nil {
		versions = slices.Insert(versions, 0, binding.Kind(b))
	}
	known := presence.Unknown
	for _, gvk := range versions {
		switch o, state := c.templates.Get(gvk, k.Namespace, k.Name); state {
		case presence.Present:
			return o, presence.Present
		case presence.Absent:
			known = presence.Absent
		case presence.Unknown:
		}
	}
	return nil, known
}

// gone says whether a template is as good as deleted: it only waits for its dependents on
// the hub. Any other finalizer means that somebody is still at work on it.
func gone(o *unstructured.Unstructured) bool {
	return !o.GetDeletionTimestamp().IsZero() && slices.Contains(o.GetFinalizers(), metav1.FinalizerDeleteDependents)
}

// decide returns what the binding's spec shall be and the outcome on it; nil when it is too
// early to say. again is when to look again without an event, 0 for never.
func (c *Controller) decide(
	ctx context.Context, k binding.Template, o *unstructured.Unstructured, claims []policy.Claim, b *workv1alpha2.ResourceBinding,
) (want *workv1alpha2.BindingSpec, outcome Outcome, again time.Duration, err error) {
	if len(claims) > 0 {
		// The version that the policy names is the one that its author means.
		if named, state := c.templates.Get(claims[0].GVK, k.Namespace, k.Name); state == presence.Present && named.GetUID() == o.GetUID() {
			o = named
		}
	}
	replicas, request := interpreter.Replicas(o)
	want = &workv1alpha2.BindingSpec{
		Resource: workv1alpha2.ObjectReference{
			APIVersion: o.GetAPIVersion(), Kind: o.GetKind(), Name: o.GetName(), UID: o.GetUID(), Generation: o.GetGeneration(),
		},
		Replicas: replicas,
	}
	if replicas != nil {
		want.ReplicaSchedulingType = policyv1alpha1.Duplicated
	}

	if len(claims) == 0 {
		clusters, _, err := c.clusters(ctx, o.GroupVersionKind(), nil, false)
		if err != nil {
			return nil, Outcome{}, 0, fmt.Errorf("place %s: %w", k, err)
		}
		want.PolicyRef, want.PlacementHash = b.Spec.PolicyRef, b.Spec.PlacementHash
		if replicas != nil && b.Spec.ReplicaSchedulingType != "" {
			want.ReplicaSchedulingType = b.Spec.ReplicaSchedulingType
		}
		want.ConflictResolution = b.Spec.ConflictResolution
		want.PreserveResourcesOnDeletion = b.Spec.PreserveResourcesOnDeletion
		want.Clusters = scheduler.Keep(clusters, o.GetUID(), b.Spec.Clusters, b.Spec.Replicas, replicas)
		return want, Outcome{
			Status: metav1.ConditionTrue, Reason: workv1alpha2.ReasonPolicyGone,
			Message: fmt.Sprintf("no policy claims %s any more; its placement by %s %s stays", k, want.PolicyRef.Kind, want.PolicyRef.Name),
		}, 0, nil
	}

	p := claims[0].Policy
	want.PolicyRef = workv1alpha2.PolicyReference{Kind: policy.Kind(p.Namespace), Name: p.Name}
	want.PlacementHash = hash(p.Spec.Placement)
	want.PreserveResourcesOnDeletion = p.Spec.PreserveResourcesOnDeletion != nil && *p.Spec.PreserveResourcesOnDeletion
	if p.Spec.ConflictResolution != policyv1alpha1.ConflictAbort {
		want.ConflictResolution = p.Spec.ConflictResolution
	}
	strategy := p.Spec.Placement.ReplicaScheduling
	divided := replicas != nil && strategy != nil && strategy.ReplicaSchedulingType == policyv1alpha1.Divided
	if divided {
		want.ReplicaSchedulingType = policyv1alpha1.Divided
	}
	dynamic := divided && strategy.WeightPreference != nil && strategy.WeightPreference.DynamicWeight != ""
	clusters, settling, err := c.clusters(ctx, o.GroupVersionKind(), request, dynamic)
	if err != nil {
		return nil, Outcome{}, 0, fmt.Errorf("place %s: %w", k, err)
	}
	if b == nil && divided && settling && c.young() {
		return nil, Outcome{}, settlingLook, nil
	}
	r := scheduler.Request{UID: o.GetUID(), Placement: p.Spec.Placement, Replicas: replicas}
	if b != nil {
		r.Previous, r.Asked, r.Fresh = b.Spec.Clusters, b.Spec.Replicas, b.Spec.PlacementHash != want.PlacementHash
	}
	result := scheduler.Schedule(clusters, r)
	want.Clusters = result.Clusters
	outcome = Outcome{Status: metav1.ConditionTrue, Reason: result.Reason, Message: result.Message}
	if result.Reason != workv1alpha2.ReasonScheduled {
		outcome.Status = metav1.ConditionFalse
	}
	if result.Reason == workv1alpha2.ReasonInsufficient {
		again = capacityLook
	}
	return want, outcome, again, nil
}

// hash identifies a placement.
func hash(p policyv1alpha1.Placement) string {
	text, _ := json.Marshal(p) //nolint:errchkjson // plain data
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:6])
}

// young says whether the work began only just.
func (c *Controller) young() bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return time.Since(c.started) < c.settling
}

// write makes the binding's spec what it shall be, in at most one write, and returns the
// binding as it then is.
func (c *Controller) write(
	ctx context.Context, k binding.Template, b *workv1alpha2.ResourceBinding, want workv1alpha2.BindingSpec,
) (*workv1alpha2.ResourceBinding, error) {
	if b == nil {
		created := &workv1alpha2.ResourceBinding{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: k.Namespace, Name: c.bindings.FreeName(k), Finalizers: []string{workv1alpha2.Finalizer},
			},
			Spec: want,
		}
		if err := c.client.Create(ctx, binding.Object(created)); err != nil {
			return nil, fmt.Errorf("create binding of %s: %w", k, err)
		}
		return created, nil
	}
	if equality.Semantic.DeepEqual(b.Spec, want) && slices.Contains(b.Finalizers, workv1alpha2.Finalizer) {
		return b, nil
	}
	updated := b.DeepCopy()
	updated.Spec = want
	controllerutil.AddFinalizer(updated, workv1alpha2.Finalizer)
	if err := c.client.Patch(ctx, binding.Object(updated), client.MergeFrom(binding.Object(b))); err != nil {
		return nil, fmt.Errorf("update binding of %s: %w", k, err)
	}
	return updated, nil
}

// delete starts the deletion of a binding, and of no other of the same name.
func (c *Controller) delete(ctx context.Context, b *workv1alpha2.ResourceBinding) error {
	if !b.DeletionTimestamp.IsZero() {
		return nil
	}
	err := c.client.Delete(ctx, binding.Object(b), client.Preconditions{UID: &b.UID})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete binding of %s: %w", binding.TemplateOf(b), err)
	}
	return nil
}
