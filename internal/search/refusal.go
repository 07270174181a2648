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

// unavailable returns the error that the mirror cannot answer at present. Lost objects are read
// from the clusters again.
func unavailable() error {
	err := failure(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable,
		"the fleet cannot be searched at present: the mirror's database is being replaced or cannot be read; ask again in a moment, or ask one cluster in its own context (kubectl --context CLUSTER)")
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	return err
}

// starting returns the error that clusters and types are not known yet. Nothing can be reported
// as absent before.
func starting() error {
	err := failure(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable,
		"the fleet cannot be searched yet: the hub has just begun, and learns which clusters it has and what is mirrored of them; ask again in a moment")
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	return err
}

// expired returns the error that the changes since a version are not known: the client must list
// again.
func expired() error {
	return apierrors.NewResourceExpired("the resourceVersion is too old, of other rights than yours are now, or not one of the fleet's: list again, and go on from the version of that list")
}

// tooLarge returns the error of API servers that a version is in the future.
func tooLarge(asked, now store.Version) error {
	err := apierrors.NewTimeoutError(fmt.Sprintf("Too large resource version: %s, current: %s", asked, now), 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}}
	return err
}

// tooLong returns the error that a query was cancelled after a time, with advice how to ask for
// less.
func tooLong(q store.Query, after time.Duration) error {
	why := "the database is slow at present"
	if slow := q.Unindexed(); len(slow) > 0 {
		why = "no index leads to " + strings.Join(slow, ", ")
	}
	return apierrors.NewTimeoutError(fmt.Sprintf("the query of %s was given up after %s: %s; name clusters, namespaces, a label, the beginning of a name or a field that is indexed (docs/search.md), or ask for a smaller page",
		q.Resource, after, why), 0)
}

// noCluster returns the error that the fleet has no cluster of a name. It is the same for a
// cluster that is hidden from the caller, who must not learn the name.
func noCluster(name string) *apierrors.StatusError {
	return apierrors.NewNotFound(clusterv1alpha1.GroupVersion.WithResource("clusters").GroupResource(), name)
}

// closedError is the error that a cluster is hidden from the caller for one type. For another
// type the cluster may be visible.
type closedError struct{ *apierrors.StatusError }

// Unwrap returns the error for the client.
func (e closedError) Unwrap() error { return e.StatusError }

func isClosed(err error) bool {
	_, ok := errors.AsType[closedError](err)
	return ok
}

// noClusterIn returns the same error for a name in a parameter. Its details name the cluster.
func noClusterIn(parameter, name string) *apierrors.StatusError {
	err := apierrors.NewBadRequest(fmt.Sprintf("parameter %s: %q is not a cluster of the fleet", parameter, name))
	err.ErrStatus.Details = noCluster(name).ErrStatus.Details
	return err
}

// notFound returns the error of an API server for a path or a type that it does not have.
func notFound(what string) *apierrors.StatusError {
	return failure(http.StatusNotFound, metav1.StatusReasonNotFound,
		fmt.Sprintf("the server could not find the requested resource: %s is not mirrored from any cluster asked for", what))
}

// refuse returns the error that the fleet is read-only, with advice where the caller can write.
func refuse(r *http.Request, at location) error {
	if at.Resource == "" {
		return notAllowed(r.Method+": the fleet is read-only", at)
	}
	return notAllowed(fmt.Sprintf("%s on %s: the fleet is read-only", r.Method, at.GroupResource()), at)
}

// notAllowed adds advice to a message: to use the context of the cluster that supports the
// request.
func notAllowed(message string, at location) error {
	cluster := at.cluster
	if cluster == "" {
		cluster = "CLUSTER"
	}
	return failure(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed,
		fmt.Sprintf("%s; do it in one cluster through its own context (kubectl --context %s), or in all by a policy on the hub (kubectl --context hub)", message, cluster))
}
