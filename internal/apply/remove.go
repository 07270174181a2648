package apply

import (
	"cmp"
	"context"
	"fmt"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/mark"
	"orrery.dev/orrery/internal/mirror"
)

// delete deletes a placed object. A Namespace or a CustomResourceDefinition contains other objects.
// If other clients created some of these, delete only removes our marks from o, and records an
// Event of the Cluster. If some of these will soon be gone, delete returns an error, and the caller
// tries again. With unchanged, o is deleted only if it still has the resourceVersion of o, because
// more replicas of it may serve by now. That also holds for every CustomResourceDefinition, which
// may serve objects by now. propagation says what happens to the dependents; "" is Background. An
// object that is being deleted or is gone is no error.
func (q *clusterQueue) delete(
	ctx context.Context, b *workv1alpha2.ResourceBinding, o mirror.Object, unchanged bool, propagation metav1.DeletionPropagation,
) error {
	if o.Deleting {
		return nil // the object waits for its finalizers
	}
	if o.Resource.GroupResource() == namespaceResource.GroupResource() {
		defer q.empties(o.Name)()
	}
	log := logr.FromContextOrDiscard(ctx).WithValues("object", objectOf(o).String())
	held, pending, err := q.others(ctx, o)
	switch {
	case err != nil:
		log.Info("not deleted yet, and tried again: the objects in it are unknown", "error", err.Error())
		return err
	case len(held) > 0:
		note := fmt.Sprintf("%s is kept in cluster %s, without our marks: it holds %s", objectOf(o), q.name(), some(held))
		about := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: o.Name, UID: o.UID}}
		about.SetGroupVersionKind(binding.Kind(b))
		q.applier.recorder.Eventf(q.member.Cluster(), about, corev1.EventTypeWarning, "Kept", "Delete", "%s", note)
		log.Info("kept", "holds", some(held))
		return q.unmark(ctx, o, b.Spec.Resource.UID, "")
	case len(pending) > 0:
		return fmt.Errorf("%s waits for %s to go", objectOf(o), some(pending))
	}
	conditions := metav1.Preconditions{UID: &o.UID}
	if unchanged || o.Resource.GroupResource() == crdResource.GroupResource() {
		conditions.ResourceVersion = &o.ResourceVersion
	}
	answer, err := q.client.Delete(ctx, objectOf(o), conditions, propagation)
	switch {
	case apierrors.IsNotFound(err):
		q.gone(o)
		return nil
	case err != nil:
		log.V(1).Info("not deleted", "error", err.Error())
		return err
	}
	log.Info("deleted", "propagation", cmp.Or(propagation, metav1.DeletePropagationBackground))
	if answer.GetKind() == "Status" {
		q.gone(o) // while finalizers hold the object, the answer is the object
	} else if answer.GetDeletionTimestamp() != nil {
		q.applier.mirror.Observe(q.name(), o.Resource, answer)
	}
	return nil
}

// gone reports to the mirror that a write showed that an object is gone.
func (q *clusterQueue) gone(o mirror.Object) {
	q.applier.mirror.ObserveDeleted(q.name(), o.Resource.GroupResource(), o.Namespace, o.Name, o.UID)
}

// unmark removes our marks from a placed object, which becomes an orphan. OrphanAnnotation then
// names the template, so that the object becomes a copy again when the cluster joins again. It also
// names the Cluster that is being deleted (from; "" if the cluster stays): a hub that still has
// this Cluster later was restored from a backup. An object that is gone is no error.
func (q *clusterQueue) unmark(ctx context.Context, o mirror.Object, template, from types.UID) error {
	orphan := mark.Orphan{Hub: q.applier.hubID, Template: template, Origin: o.Origin}
	if source, err := q.applier.key().Verify(o.Source); err == nil && source.Template == template {
		source.Cluster, source.Epoch = from, q.applier.restore.Epoch()
		orphan.Source = q.applier.key().Sign(source)
	}
	left, err := q.client.Mark(ctx, objectOf(o), o.UID,
		map[string]any{workv1alpha2.BindingLabel: nil},
		map[string]any{
			workv1alpha2.DigestAnnotation: nil, workv1alpha2.SourceAnnotation: nil, workv1alpha2.OriginAnnotation: nil,
			workv1alpha2.OwnedAnnotation: nil, workv1alpha2.OrphanAnnotation: orphan.String(),
		})
	log := logr.FromContextOrDiscard(ctx).WithValues("object", objectOf(o).String())
	switch {
	case apierrors.IsNotFound(err):
		q.gone(o)
		return nil
	case err != nil:
		log.V(1).Info("not orphaned", "error", err.Error())
		return err
	}
	log.Info("orphaned")
	q.applier.mirror.Observe(q.name(), o.Resource, left)
	return nil
}
