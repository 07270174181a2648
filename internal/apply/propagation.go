package apply

import (
	"cmp"
	"context"
	"fmt"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/template"
)

// remove deletes a copy. The copies of a deleted binding are deleted with the propagation with
// which its template was deleted. Copies that move out of a cluster, or are left over, are deleted
// in the background. A copy that moves out is deleted only in the state in which it was seen. The
// result for the cluster also gets an error of the request.
func (t *task) remove(ctx context.Context, o mirror.Object) error {
	propagation := metav1.DeletePropagationBackground
	if t.wanted.Intent == Remove {
		var err error
		if propagation, err = t.queue.applier.propagation(ctx, t.binding); err != nil {
			logr.FromContextOrDiscard(ctx).V(1).Info("not deleted yet", "object", objectOf(o).String(), "error", err.Error())
			return err
		}
	}
	err := t.queue.delete(ctx, t.binding, o, t.wanted.Intent == Vacate, propagation)
	t.unremoved(ctx, err)
	return err
}

// propagation returns the propagation with which the copies of a deleted binding are deleted: that
// of its template. The garbage collector of the hub may delete a binding before the deletion of its
// template is observed; then propagation reads the template. An error means that it is not known
// yet.
func (a *Applier) propagation(ctx context.Context, b *workv1alpha2.ResourceBinding) (metav1.DeletionPropagation, error) {
	_, state := a.template(b)
	if propagation := binding.Propagation(b, a.templates.Deletion(b.Spec.Resource.UID)); propagation != "" {
		return propagation, nil
	}
	if state == presence.Absent || !b.Spec.OwnerReferenced {
		return metav1.DeletePropagationBackground, nil
	}
	live := &metav1.PartialObjectMetadata{}
	live.SetGroupVersionKind(binding.Kind(b))
	err := a.reader.Get(ctx, client.ObjectKey{Namespace: b.Namespace, Name: b.Spec.Resource.Name}, live)
	gone := apierrors.IsNotFound(err) || meta.IsNoMatchError(err) || err == nil && live.UID != b.Spec.Resource.UID
	switch {
	case gone && state == presence.Present:
		return "", fmt.Errorf("%s was deleted, and how is about to be observed", binding.TemplateOf(b))
	case gone:
		return metav1.DeletePropagationBackground, nil
	case err != nil:
		return "", fmt.Errorf("read how %s is deleted: %w", binding.TemplateOf(b), err)
	}
	return cmp.Or(template.Propagation(live), metav1.DeletePropagationBackground), nil
}
