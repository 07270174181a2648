package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// slowHost is a leaseHost that answers a request when answer is closed. begun counts the requests.
type slowHost struct {
	leaseHost

	begun  *atomic.Int32
	answer chan struct{}
}

// Run implements host.Conn.
func (h *slowHost) Run(ctx context.Context, argv []string, stdin io.Reader, stdout io.Writer) error {
	h.begun.Add(1)
	select {
	case <-h.answer:
		return h.leaseHost.Run(ctx, argv, stdin, stdout)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestRemovalStops: a removal of many hosts works on some of them at a time. After a pause or
// cancellation it begins no other host, and ends the work on those that it has begun.
func TestRemovalStops(t *testing.T) {
	for name, tc := range map[string]struct {
		ask  func(*lifecyclev1alpha1.OperationSpec)
		want error
	}{
		"Paused":   {func(s *lifecyclev1alpha1.OperationSpec) { s.Paused = true }, ErrPaused},
		"Canceled": {func(s *lifecyclev1alpha1.OperationSpec) { s.Canceled = true }, ErrCanceled},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const digest = "sha256:agent"
				op := &lifecyclev1alpha1.Operation{}
				r := &run{
					Engine: &Engine{}, op: op, rec: newRecorder(&Engine{}, op), state: &State{}, spec: &clusterv1alpha1.Provision{},
					agents: agents{read: map[string]agent{"amd64": {digest: digest}}}, conns: map[string]*connection{}, facts: map[string]plan.Facts{},
				}
				var begun atomic.Int32
				answer := make(chan struct{})
				var names []string
				for i := range 3 * maxDials {
					host := fmt.Sprintf("h-%d", i)
					names = append(names, host)
					r.conns[host] = &connection{name: host, conn: &slowHost{begun: &begun, answer: answer}, arch: "amd64", agent: digest}
					r.facts[host] = plan.Facts{Recorded: true}
				}
				ended := make(chan error, 1)
				go func() { ended <- r.removeAll(t.Context(), names) }()
				synctest.Wait()
				r.rec.mu.Lock()
				tc.ask(&op.Spec)
				r.rec.mu.Unlock()
				close(answer)
				if err := <-ended; !errors.Is(err, tc.want) {
					t.Errorf("the removal ended with %v, want %v", err, tc.want)
				}
				if n := begun.Load(); n != maxDials {
					t.Errorf("%d hosts were begun, want %d", n, maxDials)
				}
				if len(op.Status.Hosts) == 0 {
					t.Error("the status has no host")
				}
				for _, h := range op.Status.Hosts {
					if h.State != lifecyclev1alpha1.StepChanged {
						t.Errorf("host %s is %s: %s", h.Name, h.State, h.Message)
					}
				}
			})
		})
	}
}
