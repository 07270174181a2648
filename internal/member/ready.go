package member

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

const (
	// readyTimeout limits how long a join waits for an API server that answers but is not ready. The
	// context of the join may end earlier.
	readyTimeout = time.Minute
	// trialReadyTimeout limits how long the hub, which tries new credentials, waits for an API server
	// that answers but is not ready. It is less than confirmTimeout, so that the join that waits for
	// the trial gets the result.
	trialReadyTimeout = 20 * time.Second
	// readyLook is the time between two checks whether an API server is ready.
	readyLook = 500 * time.Millisecond
)

// notReadyError means that an API server answered that it cannot serve requests at the moment. It
// starts or stops, or its readiness check failed under load.
type notReadyError struct{ err error }

// Error implements error.
func (e *notReadyError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *notReadyError) Unwrap() error { return e.err }

// isNotReady reports whether err means that an API server answered, but cannot serve the request
// now. That is a *notReadyError, or a Status with a temporary HTTP status. It is false for nil, and
// if the server did not answer at all.
func isNotReady(err error) bool {
	if _, ok := errors.AsType[*notReadyError](err); ok {
		return true
	}
	var status apierrors.APIStatus
	return errors.As(err, &status) && passingStatus(int(status.Status().Code))
}

// passingStatus reports whether an HTTP status is temporary, so that the next request may
// succeed: 429, or 500 and above.
func passingStatus(code int) bool {
	return code == http.StatusTooManyRequests || code >= http.StatusInternalServerError
}

// askUntilReady calls ask every readyLook until ask returns nil or an error for which isNotReady is
// false, and returns that result. If ctx ends first, it returns the last error for which isNotReady
// was true. It calls waiting once, before the second call of ask; waiting may be nil.
func askUntilReady(ctx context.Context, ask func() error, waiting func()) error {
	var answer error
	for {
		err := ask()
		switch {
		case ctx.Err() != nil && answer != nil:
			return answer
		case !isNotReady(err):
			return err
		case answer == nil && waiting != nil:
			waiting()
		}
		answer = err
		select {
		case <-ctx.Done():
			return answer
		case <-time.After(readyLook):
		}
	}
}

// examineReady calls examine, which makes all checks of a join, until the API server is ready, ctx
// ends or timeout has passed. It returns the last result. The error is a *JoinError if the cluster
// is refused, or if its API server did not become ready in time. examineReady calls progress once
// when it begins to wait; progress may be nil.
func examineReady(
	ctx context.Context, dial Dial, cluster *clusterv1alpha1.Cluster, secret *corev1.Secret, timeout time.Duration, progress func(string),
) (found contact, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err = askUntilReady(ctx, func() error {
		found, err = examine(ctx, dial, cluster, secret)
		return err
	}, func() {
		if progress != nil {
			progress("waiting until " + Redacted(cluster.Spec.APIEndpoint) + " is ready")
		}
	})
	if isNotReady(err) {
		return contact{}, err
	}
	return found, err
}

// WaitHubReady waits until the API server of a hub is ready, before a command sends its first
// request. It returns an error if the server still answers that it is not ready when ctx ends. It
// returns nil if the server is ready, refuses the request or does not answer, because the next
// request will report that.
func WaitHubReady(ctx context.Context, hub *rest.Config) error {
	rt, err := rest.TransportFor(hub)
	if err != nil {
		return fmt.Errorf("reach the hub: %w", err)
	}
	base, _, err := rest.DefaultServerUrlFor(hub)
	if err != nil {
		return fmt.Errorf("reach the hub: %w", err)
	}
	if err := askUntilReady(ctx, func() error { return readyz(ctx, rt, base) }, nil); isNotReady(err) {
		return fmt.Errorf("the hub at %s answers but is not ready: %w", base.Redacted(), err)
	}
	return nil
}
