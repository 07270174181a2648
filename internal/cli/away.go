package cli

import (
	"errors"
	"net/http"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
)

// awayError is the hub's answer that it knows a cluster to be unreachable. Requests for discovery fail with it: client-go
// replaces the message of such an answer.
type awayError struct{ *apierrors.StatusError }

// Unwrap returns the hub's Status.
func (e awayError) Unwrap() error { return e.StatusError }

// plain returns the hub's Status of an error that is an awayError, or a refusedError, without what
// the request for it adds. It returns any
// other error as it is, and a refusedError to which a command adds something.
func plain(err error) error {
	if away, ok := errors.AsType[awayError](err); ok {
		return away.StatusError
	}
	if request, ok := err.(*url.Error); ok { //nolint:errorlint // one that is wrapped is shown with what wraps it
		if refused, ok := errors.AsType[refusedError](request.Err); ok {
			return refused.StatusError
		}
	}
	return err
}

// awayIn returns an awayError if an answer of the hub is one, and closes it. The body of any other answer can still be read.
// Only answers for discovery have a warning; clients read the message of all others.
func awayIn(resp *http.Response) error {
	if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get(fleetv1alpha1.ProxiedHeader) == "" || resp.Header.Get("Warning") == "" {
		return nil
	}
	status, err := statusIn(resp)
	if err != nil || status == nil || !apierrors.HasStatusCause(status, fleetv1alpha1.CauseClusterUnreachable) {
		return err
	}
	return errors.Join(awayError{status}, resp.Body.Close())
}
