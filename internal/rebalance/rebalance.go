// Package rebalance triggers new decisions for the objects that a WorkloadRebalancer names. It
// writes one field of their bindings; placement decides.
package rebalance

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	appsv1alpha1 "orrery.dev/orrery/api/apps/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/reconciler"
)

// bindingsLook is the delay before a WorkloadRebalancer is reconciled again if the cache of
// bindings is incomplete or stale: 100 ms.
const bindingsLook = 100 * time.Millisecond

// bindings is the part of binding.Cache that rebalancing uses. Synced reports whether the cache has
// read all bindings of the hub. Of returns the binding of a template; nil if there is none.
type bindings interface {
	Synced() bool
	Of(t binding.Template) (b *workv1alpha2.ResourceBinding, others []*workv1alpha2.ResourceBinding)
}

// controller reconciles WorkloadRebalancers: objects with which a user requests that the clusters
// of some templates are chosen again.
type controller struct {
	client   client.Client
	bindings bindings
	now      func() time.Time
}

// Add adds the controller of WorkloadRebalancers to the manager. b is the cache of all bindings.
func Add(mgr ctrl.Manager, b *binding.Cache) error {
	options := reconciler.Options[reconcile.Request](1)
	// Tests run several managers in one process.
	options.SkipNameValidation = new(true)
	err := ctrl.NewControllerManagedBy(mgr).Named("rebalance").
		For(&appsv1alpha1.WorkloadRebalancer{}).
		WithOptions(options).
		Complete(&controller{client: mgr.GetClient(), bindings: b, now: time.Now})
	if err != nil {
		return fmt.Errorf("add rebalance controller: %w", err)
	}
	return nil
}

// Reconcile implements reconcile.Reconciler for one WorkloadRebalancer. It requests a new decision
// for each object in spec.workloads, unless that was done already, and writes the results to the
// status. A finished WorkloadRebalancer is deleted when its time to live is over. If the cache of
// bindings is incomplete or stale, nothing is written to the status, and Reconcile tries again
// after bindingsLook.
func (c *controller) Reconcile(ctx context.Context, key reconcile.Request) (ctrl.Result, error) {
	w := &appsv1alpha1.WorkloadRebalancer{}
	if err := c.client.Get(ctx, key.NamespacedName, w); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	switch {
	case !w.DeletionTimestamp.IsZero():
		return ctrl.Result{}, nil
	case w.Status.FinishTime != nil && w.Status.ObservedGeneration == w.Generation:
		return c.expire(ctx, w)
	case !c.bindings.Synced():
		return ctrl.Result{RequeueAfter: bindingsLook}, nil
	}
	updated := w.DeepCopy()
	updated.Status.ObservedWorkloads = nil
	for _, o := range w.Spec.Workloads {
		observed, err := c.rebalance(ctx, w, o)
		if apierrors.IsConflict(err) {
			return ctrl.Result{RequeueAfter: bindingsLook}, nil // the cache of bindings is stale
		}
		if err != nil {
			return ctrl.Result{}, err
		}
		updated.Status.ObservedWorkloads = append(updated.Status.ObservedWorkloads, observed)
	}
	updated.Status.ObservedGeneration = w.Generation
	updated.Status.FinishTime = new(metav1.NewTime(c.now()))
	// NotFound means that the WorkloadRebalancer was deleted meanwhile.
	if err := c.client.Status().Patch(ctx, updated, client.MergeFrom(w)); client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("write status of WorkloadRebalancer %s: %w", w.Name, err)
	}
	return ctrl.Result{}, nil // the event of this write causes the next call, which expires it
}

// rebalance requests a new decision for o, one of the templates that w names, with a write to the
// binding of o. It does nothing if w has requested one before. The result is for the status of w:
// success, or why o cannot be decided again: there is no such object, or no policy places it. If
// the cached binding is stale, the error is a conflict.
func (c *controller) rebalance(ctx context.Context, w *appsv1alpha1.WorkloadRebalancer, o appsv1alpha1.ObjectReference) (appsv1alpha1.ObservedWorkload, error) {
	i := slices.IndexFunc(w.Status.ObservedWorkloads, func(was appsv1alpha1.ObservedWorkload) bool { return was.Workload == o })
	if i >= 0 && w.Status.ObservedWorkloads[i].Result == appsv1alpha1.RebalanceSuccessful {
		return w.Status.ObservedWorkloads[i], nil
	}
	notFound := appsv1alpha1.ObservedWorkload{Workload: o, Result: appsv1alpha1.RebalanceFailed, Reason: appsv1alpha1.RebalanceObjectNotFound}
	gv, err := schema.ParseGroupVersion(o.APIVersion)
	if err != nil {
		return notFound, nil //nolint:nilerr // there is no such kind, hence no such object
	}
	b, _ := c.bindings.Of(binding.Template{GroupKind: schema.GroupKind{Group: gv.Group, Kind: o.Kind}, Namespace: o.Namespace, Name: o.Name})
	if b == nil || !b.DeletionTimestamp.IsZero() {
		return notFound, nil
	}
	if !placed(b) {
		return appsv1alpha1.ObservedWorkload{Workload: o, Result: appsv1alpha1.RebalanceFailed, Reason: appsv1alpha1.RebalanceNoPolicy}, nil
	}
	if at := due(b, w); at != nil {
		asked := b.DeepCopy()
		asked.Spec.RescheduleTriggeredAt = at
		metav1.SetMetaDataAnnotation(&asked.ObjectMeta, workv1alpha2.RebalancedByAnnotation, askedBy(w))
		// The lock prevents two WorkloadRebalancers that were created in the same second from
		// requesting with the same time.
		patch := client.MergeFromWithOptions(binding.Object(b), client.MergeFromWithOptimisticLock{})
		err := c.client.Patch(ctx, binding.Object(asked), patch)
		if apierrors.IsNotFound(err) {
			return notFound, nil
		} else if err != nil {
			return notFound, fmt.Errorf("ask for a new placement of %s %s: %w", o.Kind, o.Name, err)
		}
	}
	return appsv1alpha1.ObservedWorkload{Workload: o, Result: appsv1alpha1.RebalanceSuccessful}, nil
}

// askedBy returns the value of the annotation by which a binding names the WorkloadRebalancer that
// last requested a decision. It is the creation time and the UID of w, as TIME/UID.
func askedBy(w *appsv1alpha1.WorkloadRebalancer) string {
	return w.CreationTimestamp.UTC().Format(time.RFC3339) + "/" + string(w.UID)
}

// due returns the time that w must write to the binding b to request a new decision, or nil if a
// write is unnecessary. Placement decides again when that time changes. It is the creation time of
// w, or one second after the time in b if that is not earlier. It is nil if w has written to b
// before, or if a WorkloadRebalancer that was created later has.
func due(b *workv1alpha2.ResourceBinding, w *appsv1alpha1.WorkloadRebalancer) *metav1.Time {
	own := w.CreationTimestamp.DeepCopy()
	at, by := b.Spec.RescheduleTriggeredAt, b.Annotations[workv1alpha2.RebalancedByAnnotation]
	if at == nil || at.Before(own) {
		return own
	}
	if by == askedBy(w) {
		return nil
	}
	created := at.Time
	if text, _, ok := strings.Cut(by, "/"); ok {
		if t, err := time.Parse(time.RFC3339, text); err == nil && t.Before(at.Time) {
			created = t // that WorkloadRebalancer wrote a later time than its creation
		}
	}
	if created.After(own.Time) {
		return nil
	}
	return new(metav1.NewTime(at.Add(time.Second)))
}

// placed reports whether a policy places the template of a binding. It is false for a template that
// is only placed as a dependency of others, and if the policy was gone at the last decision.
func placed(b *workv1alpha2.ResourceBinding) bool {
	if b.Spec.PlacementHash == "" && len(b.Spec.RequiredBy) > 0 {
		return false
	}
	scheduled := meta.FindStatusCondition(b.Status.Conditions, workv1alpha2.ConditionScheduled)
	return scheduled == nil || scheduled.Reason != workv1alpha2.ReasonPolicyGone
}

// expire deletes a finished WorkloadRebalancer when its time to live is over. Before that it
// returns the remaining time as the delay of the result. Without spec.ttlSecondsAfterFinished it
// does nothing.
func (c *controller) expire(ctx context.Context, w *appsv1alpha1.WorkloadRebalancer) (ctrl.Result, error) {
	if w.Spec.TTLSecondsAfterFinished == nil {
		return ctrl.Result{}, nil
	}
	left := w.Status.FinishTime.Add(time.Duration(*w.Spec.TTLSecondsAfterFinished) * time.Second).Sub(c.now())
	if left > 0 {
		return ctrl.Result{RequeueAfter: left}, nil
	}
	err := c.client.Delete(ctx, w, client.Preconditions{UID: &w.UID})
	if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		return ctrl.Result{}, fmt.Errorf("delete WorkloadRebalancer %s: %w", w.Name, err)
	}
	return ctrl.Result{}, nil
}
