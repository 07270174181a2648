package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
)

// awayError is the hub's answer that it knows a cluster to be unreachable. Requests for discovery fail with it: client-go
// replaces the message of such an answer.
type awayError struct{ *apierrors.StatusError }

// Unwrap returns the hub's Status.
func (e awayError) Unwrap() error { return e.StatusError }

// plain returns the hub's Status of an error that is an awayError, without what the request for it adds; any other error as it is.
func plain(err error) error {
	if away, ok := errors.AsType[awayError](err); ok {
		return away.StatusError
	}
	return err
}

// mostOfStatus is the number of bytes of an answer that may be a Status.
const mostOfStatus = 1 << 20

// awayIn returns an awayError if an answer of the hub is one, and closes it. The body of any other answer can still be read.
// Only answers for discovery have a warning; clients read the message of all others.
func awayIn(resp *http.Response) error {
	if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get(fleetv1alpha1.ProxiedHeader) == "" || resp.Header.Get("Warning") == "" {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, mostOfStatus))
	if err != nil {
		return errors.Join(fmt.Errorf("read the hub's answer: %w", err), resp.Body.Close())
	}
	var refused apierrors.StatusError
	if json.Unmarshal(body, &refused.ErrStatus) == nil && apierrors.HasStatusCause(&refused, fleetv1alpha1.CauseClusterUnreachable) {
		return errors.Join(awayError{&refused}, resp.Body.Close())
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(body), resp.Body), resp.Body}
	return nil
}
