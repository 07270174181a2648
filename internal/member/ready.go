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
	// readyTimeout limits how long a join waits for an API server that answers but is not ready.
	// The context of the join may end earlier.
	readyTimeout = time.Minute
	// trialReadyTimeout is readyTimeout for the hub's trial of new credentials. It is less than
	// confirmTimeout, so that the join gets the result.
	trialReadyTimeout = 20 * time.Second
	// readyLook is the time between two checks whether an API server is ready.
	readyLook = 500 * time.Millisecond
)

// notReadyError means that an API server cannot serve requests at the moment: it starts, stops,
// or failed a check under load.
type notReadyError struct{ err error }

// Error implements error.
func (e *notReadyError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *notReadyError) Unwrap() error { return e.err }

// isNotReady reports whether an API server answered that it cannot serve the request now.
func isNotReady(err error) bool {
	if _, ok := errors.AsType[*notReadyError](err); ok {
		return true
	}
	var status apierrors.APIStatus
	return errors.As(err, &status) && passingStatus(int(status.Status().Code))
}

// passingStatus reports whether an HTTP status is temporary, so that the next request may
// succeed.
func passingStatus(code int) bool {
	return code == http.StatusTooManyRequests || code >= http.StatusInternalServerError
}

// askUntilReady calls ask until its error is no longer a not-ready error, and returns that
// result. If ctx ends first, it returns the last complete answer. waiting is called once, before
// the second call; it may be nil.
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

// examineReady calls examine until the API server is ready, ctx ends or timeout has passed, and
// returns the last result. progress is called once when the wait begins; it may be nil.
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

// WaitHubReady waits until the API server of a hub is ready, or ctx ends. Other answers, and no
// answer, end the wait without an error, because the next request will explain them.
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
