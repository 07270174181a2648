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

// contentsUnknownError says that a Namespace or a CustomResourceDefinition is not deleted, because
// the cluster cannot say what would go with it.
type contentsUnknownError struct{ error }

// Unwrap returns why.
func (e contentsUnknownError) Unwrap() error { return e.error }

// unlisted is the error of a list of what is in an object. A cluster that did not answer says
// nothing: its probes will.
func unlisted(in string, gr schema.GroupResource, err error) error {
	err = fmt.Errorf("%s: the cluster cannot list %s in it: %w", in, gr, err)
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		return contentsUnknownError{err}
	}
	return err
}

// kept says why a cluster does not let an object go, with the reason of a result; empty: that is
// not known, or passes.
func kept(err error) (reason string) {
	unknown := contentsUnknownError{}
	switch {
	case errors.As(err, &unknown):
		return workv1alpha2.ReasonListFails
	case err == nil, unanswered(err), apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return ""
	default:
		return workv1alpha2.ReasonRejected // by the cluster, or by a webhook of it that does not answer
	}
}

// unremoved reports why the cluster does not let a copy go; with nil, that nothing keeps it any
// more, if something did. The result of what is placed there is about the manifest, and not about
// what is left over beside it.
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

// namespaceWaits has an event of the Cluster say why a namespace that this hub made is not deleted,
// once for each reason. With nil it is forgotten what was said.
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
