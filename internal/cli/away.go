package cli

import (
	"errors"
	"net/http"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
)

// awayError is the response of the hub that a cluster is unreachable. Only requests for
// discovery fail with awayError: client-go would replace the message of the response.
type awayError struct{ *apierrors.StatusError }

// Unwrap returns the Status from the hub.
func (e awayError) Unwrap() error { return e.StatusError }

// plain returns the Status from the hub for an awayError or a refusedError, without the text
// that the request adds. It returns any other error unchanged, and so a refusedError that a
// command has wrapped.
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

// awayIn returns an awayError if a response of the hub is one, and closes the body. Otherwise
// the body can still be read. Only responses to discovery have a warning; clients read the
// message of all others.
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
