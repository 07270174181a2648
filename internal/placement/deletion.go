package placement

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
)

// gone reports whether a template counts as deleted: it has a deletion time, and only the garbage
// collector of the hub has work left. Any other finalizer means that its controller still works on
// the template. With foreground deletion a template counts as deleted at once, because the garbage
// collector waits for the dependents, such as its binding.
func gone(o *unstructured.Unstructured) bool {
	if o.GetDeletionTimestamp().IsZero() {
		return false
	}
	finalizers := o.GetFinalizers()
	return slices.Contains(finalizers, metav1.FinalizerDeleteDependents) ||
		len(finalizers) == 1 && finalizers[0] == metav1.FinalizerOrphanDependents
}

// remove starts the deletion of the binding b, because its template is gone. First it stores in the
// binding the propagation with which the template was deleted, for clusters that are unreachable
// now and for later processes. With propagation Orphan, the deletion waits until the bindings of
// the dependencies say that their copies stay. The result has the delay of the next attempt.
func (c *Controller) remove(ctx context.Context, b *workv1alpha2.ResourceBinding) (ctrl.Result, error) {
	propagation := binding.Propagation(b, c.templates.Deletion(b.Spec.Resource.UID))
	if propagation != "" && b.Spec.DeletionPropagation == "" {
		updated := b.DeepCopy()
		updated.Spec.DeletionPropagation = propagation
		patch := client.MergeFromWithOptions(binding.Object(b), client.MergeFromWithOptimisticLock{})
		switch err := c.client.Patch(ctx, binding.Object(updated), patch); {
		// For example, the garbage collector removed the owner reference.
		case apierrors.IsConflict(err):
			return ctrl.Result{RequeueAfter: staleLook}, nil
		case apierrors.IsNotFound(err):
			return ctrl.Result{}, nil
		case err != nil:
			return ctrl.Result{}, fmt.Errorf("tell the binding of %s how it was deleted: %w", binding.TemplateOf(b), err)
		}
		b = updated
		c.follows(b)
	}
	if propagation == metav1.DeletePropagationOrphan && b.DeletionTimestamp.IsZero() {
		if behind := c.behind(b); len(behind) > 0 {
			return ctrl.Result{RequeueAfter: c.wait(b, behind)}, nil
		}
	}
	if propagation != "" || !b.Spec.OwnerReferenced {
		if _, decided := c.decisions.of(b.UID); propagation == "" && !decided && b.DeletionTimestamp.IsZero() {
			c.reporter.recorder.Eventf(binding.Object(b), nil, corev1.EventTypeWarning, "DeletionUnseen", "Delete",
				"%s was deleted while no server ran, and its binding, written by an earlier version, does not say with which propagation: "+
					"its copies are deleted in the background", binding.TemplateOf(b))
		}
		return ctrl.Result{}, c.delete(ctx, b)
	}
	// With propagation Orphan, the garbage collector removes the owner reference. So a binding that
	// still has the reference may be deleted, if the cache has its present version.
	err := c.deleteAt(ctx, b, client.Preconditions{UID: &b.UID, ResourceVersion: &b.ResourceVersion})
	if apierrors.IsConflict(err) {
		return ctrl.Result{RequeueAfter: staleLook}, nil
	}
	return ctrl.Result{}, err
}

// noteDeletion sets OwnerReferenced and DeletionPropagation in want, the spec to write. The
// template o may be in deletion and wait for finalizers of other controllers. A propagation that
// the binding b already stores stays; b is nil if there is no binding.
func (c *Controller) noteDeletion(want *workv1alpha2.BindingSpec, b *workv1alpha2.ResourceBinding, o *unstructured.Unstructured) {
	want.OwnerReferenced, want.DeletionPropagation = b == nil || b.Spec.OwnerReferenced, c.templates.Deletion(o.GetUID())
	if b != nil && b.Spec.DeletionPropagation != "" {
		want.DeletionPropagation = b.Spec.DeletionPropagation
	}
}

// setOwner sets the owner reference of a binding to its template, in memory only. had is true if
// the binding had the reference before: then setOwner does nothing, because the garbage collector
// may have removed the reference on purpose.
func setOwner(b *workv1alpha2.ResourceBinding, had bool) {
	if !had && b.Spec.Resource.UID != "" {
		b.Spec.OwnerReferenced, b.OwnerReferences = true, []metav1.OwnerReference{binding.Owner(&b.Spec)}
	}
}
