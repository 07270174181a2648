package search

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/store"
)

func failure(code int32, reason metav1.StatusReason, message string) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message,
	}}
}

// unavailable says that the mirror has no answer, for now. What is lost is read from the
// clusters again.
func unavailable() error {
	err := failure(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable,
		"the fleet cannot be searched at present: the mirror's database is being replaced or cannot be read; ask again in a moment, or ask one cluster in its own context (kubectl --context CLUSTER)")
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	return err
}

// starting says that it is not known yet what there is: neither that a cluster is none of the fleet nor that a type is not mirrored can be told.
func starting() error {
	err := failure(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable,
		"the fleet cannot be searched yet: the hub has just begun, and learns which clusters it has and what is mirrored of them; ask again in a moment")
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	return err
}

// expired says that a version is not one from which on the changes are known: the client lists again.
func expired() error {
	return apierrors.NewResourceExpired("the resourceVersion is too old, of other rights than yours are now, or not one of the fleet's: list again, and go on from the version of that list")
}

// tooLarge says that a version is not there yet, as API servers do.
func tooLarge(asked, now store.Version) error {
	err := apierrors.NewTimeoutError(fmt.Sprintf("Too large resource version: %s, current: %s", asked, now), 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}}
	return err
}

// tooLong says that a query was given up, and how to ask for less.
func tooLong(q store.Query, after time.Duration) error {
	why := "the database is slow at present"
	if slow := q.Unindexed(); len(slow) > 0 {
		why = "no index leads to " + strings.Join(slow, ", ")
	}
	return apierrors.NewTimeoutError(fmt.Sprintf("the query of %s was given up after %s: %s; name clusters, namespaces, a label, the beginning of a name or a field that is indexed (docs/search.md), or ask for a smaller page",
		q.Resource, after, why), 0)
}

// noCluster says that the fleet has no cluster of a name. One that is closed to whoever asks
// looks the same: its name is not for them.
func noCluster(name string) *apierrors.StatusError {
	return apierrors.NewNotFound(clusterv1alpha1.GroupVersion.WithResource("clusters").GroupResource(), name)
}

// closedError is that a cluster is none for a caller, of one type: of another it may be.
type closedError struct{ *apierrors.StatusError }

// Unwrap returns what the client is told.
func (e closedError) Unwrap() error { return e.StatusError }

func isClosed(err error) bool {
	_, ok := errors.AsType[closedError](err)
	return ok
}

// noClusterIn says the same of a name in a parameter. The details of the answer name the cluster.
func noClusterIn(parameter, name string) *apierrors.StatusError {
	err := apierrors.NewBadRequest(fmt.Sprintf("parameter %s: %q is not a cluster of the fleet", parameter, name))
	err.ErrStatus.Details = noCluster(name).ErrStatus.Details
	return err
}

// notFound is what an API server says of a path or a type that it does not have.
func notFound(what string) *apierrors.StatusError {
	return failure(http.StatusNotFound, metav1.StatusReasonNotFound,
		fmt.Sprintf("the server could not find the requested resource: %s is not mirrored from any cluster asked for", what))
}

// refuse says that the fleet cannot be written to, and where one can write.
func refuse(r *http.Request, at location) error {
	if at.Resource == "" {
		return notAllowed(r.Method+": the fleet is read-only", at)
	}
	return notAllowed(fmt.Sprintf("%s on %s: the fleet is read-only", r.Method, at.GroupResource()), at)
}

// notAllowed ends with the way out: the context of the one cluster in which it works.
func notAllowed(message string, at location) error {
	cluster := at.cluster
	if cluster == "" {
		cluster = "CLUSTER"
	}
	return failure(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed,
		fmt.Sprintf("%s; do it in one cluster through its own context (kubectl --context %s), or in all by a policy on the hub (kubectl --context hub)", message, cluster))
}
