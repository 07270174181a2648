package cli

import (
	"errors"
	"net/http"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
)

// awayError is the error of a request for discovery to a cluster that is unreachable. It wraps the
// Status with which the hub answered. client-go would replace the message of that Status. Other
// requests fail with the Status itself.
type awayError struct{ *apierrors.StatusError }

// Unwrap returns the Status with which the hub answered.
func (e awayError) Unwrap() error { return e.StatusError }

// plain returns the Status of the hub without the text that client-go adds, for messages as kubectl
// prints them. It does that for an awayError, and for a refusedError directly inside the *url.Error
// of a request. Every other error is returned unchanged, also a refusedError that a command has
// wrapped.
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

// awayIn returns an awayError if the hub answered a request for discovery with the Status that the
// cluster is unreachable, and then closes the body. It recognizes such an answer by its Warning
// header. For every other answer it returns nil, and the body can still be read. A body that cannot
// be read is another error.
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
