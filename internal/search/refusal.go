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

// failure returns an error for the client: a Status with the given HTTP code, reason and message.
func failure(code int32, reason metav1.StatusReason, message string) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message,
	}}
}

// unavailable returns the error (503) that the mirror's database cannot be read at present. The
// client may try again after one second: a lost database is replaced, and filled from the clusters.
func unavailable() error {
	err := failure(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable,
		"the fleet cannot be searched at present: the mirror's database is being replaced or cannot be read; ask again in a moment, or ask one cluster in its own context (kubectl --context CLUSTER)")
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	return err
}

// starting returns the error (503) that the hub has just started and does not know yet which
// clusters and types the fleet has. Until then the hub cannot report anything as absent.
func starting() error {
	err := failure(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable,
		"the fleet cannot be searched yet: the hub has just begun, and learns which clusters it has and what is mirrored of them; ask again in a moment")
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	return err
}

// expired returns the error (410) for a resourceVersion from which the fleet cannot continue: it is
// too old, of other rights or not of the fleet. The client must list again.
func expired() error {
	return apierrors.NewResourceExpired("the resourceVersion is too old, of other rights than yours are now, or not one of the fleet's: list again, and go on from the version of that list")
}

// tooLarge returns the error (504) with which API servers refuse a requested version that is later
// than their current version, now. Clients try again after one second.
func tooLarge(asked, now store.Version) error {
	err := apierrors.NewTimeoutError(fmt.Sprintf("Too large resource version: %s, current: %s", asked, now), 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}}
	return err
}

// tooLong returns the error (504) that the query q was cancelled after the given time, with advice
// how to ask for less.
func tooLong(q store.Query, after time.Duration) error {
	why := "the database is slow at present"
	if slow := q.Unindexed(); len(slow) > 0 {
		why = "no index leads to " + strings.Join(slow, ", ")
	}
	return apierrors.NewTimeoutError(fmt.Sprintf("the query of %s was given up after %s: %s; name clusters, namespaces, a label, the beginning of a name or a field that is indexed (docs/search.md), or ask for a smaller page",
		q.Resource, after, why), 0)
}

// noCluster returns the error (404) that the fleet has no cluster of that name. A cluster that is
// hidden from the caller has the same error, so that the caller does not learn its name.
func noCluster(name string) *apierrors.StatusError {
	return apierrors.NewNotFound(clusterv1alpha1.GroupVersion.WithResource("clusters").GroupResource(), name)
}

// closedError means that the caller may see no objects of a type in a cluster, or anywhere. For the
// client it looks as if the cluster or the type did not exist. A search of several types continues
// with the next type, which the caller may see there.
type closedError struct{ *apierrors.StatusError }

// Unwrap returns the error for the client.
func (e closedError) Unwrap() error { return e.StatusError }

// isClosed reports whether err is or wraps a closedError.
func isClosed(err error) bool {
	_, ok := errors.AsType[closedError](err)
	return ok
}

// noClusterIn returns the error (400) that the value of a parameter names a cluster which the fleet
// does not have. Its details are those of noCluster.
func noClusterIn(parameter, name string) *apierrors.StatusError {
	err := apierrors.NewBadRequest(fmt.Sprintf("parameter %s: %q is not a cluster of the fleet", parameter, name))
	err.ErrStatus.Details = noCluster(name).ErrStatus.Details
	return err
}

// notFound returns the error (404) with which an API server answers for a path or type that it does
// not have. what names it. The error for a missing object has details, and this one has none, so
// that isUnlike can distinguish them.
func notFound(what string) *apierrors.StatusError {
	return failure(http.StatusNotFound, metav1.StatusReasonNotFound,
		fmt.Sprintf("the server could not find the requested resource: %s is not mirrored from any cluster asked for", what))
}

// refuse returns the error (405) for a method that would write: the fleet is read-only. The message
// says where the caller can write.
func refuse(r *http.Request, at location) error {
	if at.Resource == "" {
		return notAllowed(r.Method+": the fleet is read-only", at)
	}
	return notAllowed(fmt.Sprintf("%s on %s: the fleet is read-only", r.Method, at.GroupResource()), at)
}

// notAllowed returns an error (405) with the message and advice: to send the request to the cluster
// itself, in the cluster's own context, or to use a policy on the hub.
func notAllowed(message string, at location) error {
	cluster := at.cluster
	if cluster == "" {
		cluster = "CLUSTER"
	}
	return failure(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed,
		fmt.Sprintf("%s; do it in one cluster through its own context (kubectl --context %s), or in all by a policy on the hub (kubectl --context hub)", message, cluster))
}
