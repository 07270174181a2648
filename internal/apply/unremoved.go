package apply

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

// contentsUnknownError is returned if a Namespace or a CustomResourceDefinition is not deleted
// because the cluster cannot list what would be deleted with it.
type contentsUnknownError struct{ error }

// Unwrap returns the cause.
func (e contentsUnknownError) Unwrap() error { return e.error }

// unlisted returns the error for a failed list of the objects in a Namespace or of a
// CustomResourceDefinition (in). It is a contentsUnknownError only if the API server answered: the
// probes of a cluster report missing answers.
func unlisted(in string, gr schema.GroupResource, err error) error {
	err = fmt.Errorf("%s: the cluster cannot list %s in it: %w", in, gr, err)
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		return contentsUnknownError{err}
	}
	return err
}

// kept returns the reason to report for an error of a deletion. It is "" for nil, and if the cause
// is temporary or a missing answer.
func kept(err error) (reason string) {
	unknown := contentsUnknownError{}
	switch {
	case errors.As(err, &unknown):
		return workv1alpha2.ReasonListFails
	case err == nil, unanswered(err), apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return ""
	default:
		// The cluster rejects the deletion, or one of its webhooks does not answer.
		return workv1alpha2.ReasonRejected
	}
}

// unremoved reports why the cluster does not delete a copy, unless err is temporary or a missing
// answer. For a nil error it replaces an earlier report of a failure by ReasonRemoving. It does
// nothing while the binding is placed in the cluster: the result is then about the manifest, and
// not about copies under other names.
func (t *task) unremoved(ctx context.Context, err error) {
	switch reason := kept(err); {
	case ctx.Err() != nil, t.wanted.Intent == Place:
	case reason != "":
		t.report(reason, "not deleted: "+err.Error())
	case err == nil:
		before, _ := t.queue.applier.results.get(t.binding.UID, t.queue.name())
		if before.known && !before.result.Applied && before.result.Reason != workv1alpha2.ReasonRemoving {
			t.report(workv1alpha2.ReasonRemoving, "")
		}
	}
}

// namespaceWaits records an event for the Cluster with the reason why a namespace that this hub
// created is not deleted, once for each reason. It ignores temporary causes and missing answers.
// For a nil error it forgets the last reason.
func (q *clusterQueue) namespaceWaits(name string, err error) {
	if err == nil {
		q.said.Delete(name)
		return
	}
	if kept(err) == "" {
		return
	}
	if before, _ := q.said.Swap(name, err.Error()); before != err.Error() {
		about := &corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: metav1.ObjectMeta{Name: name}}
		q.applier.recorder.Eventf(q.member.Cluster(), about, corev1.EventTypeWarning, "NamespaceWaits", "Delete",
			"namespace %s is not deleted in cluster %s: %s", name, q.name(), err)
	}
}
