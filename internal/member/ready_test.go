package member

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// TestJoinWaitsUntilReady joins clusters whose API server is not ready for a while.
func TestJoinWaitsUntilReady(t *testing.T) {
	f := startFleet(t, Options{})
	door := newFront(t)
	var steps []string
	join := func(ctx context.Context, unready string) error {
		_, err := Join(ctx, f.hub, JoinOptions{Name: "one", Kubeconfig: door.kubeconfig(t), Progress: func(step string) {
			steps = append(steps, step)
			if strings.Contains(step, unready) {
				door.unready.Store(2)
			}
		}})
		return err
	}

	t.Run("NeverReady", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		_, err := Join(ctx, f.hub, JoinOptions{Name: "one", Kubeconfig: door.kubeconfig(t), Progress: func(step string) {
			door.unready.Store(1 << 30)
			if strings.HasPrefix(step, "waiting until") {
				cancel() // the timeout of the join
			}
		}})
		refused, ok := errors.AsType[*JoinError](err)
		if !ok || refused.Reason != clusterv1alpha1.ReasonUnreachable || !strings.Contains(err.Error(), "is not ready") ||
			!strings.Contains(err.Error(), "500") || strings.Contains(err.Error(), "no API server answers") {
			t.Errorf("join: %v, want it refused, for the API server is not ready", err)
		}
		door.unready.Store(0)
	})
	t.Run("New", func(t *testing.T) {
		if err := join(t.Context(), "the identity of"); err != nil {
			t.Fatal(err)
		}
		if left := door.unready.Load(); left != 0 {
			t.Errorf("the join did not ask %d times more", left)
		}
		want := []string{"reading the version and the identity of " + door.URL, "waiting until " + door.URL + " is ready", "checking that the cluster has not joined yet"}
		if diff := cmp.Diff(want, steps[:min(len(want), len(steps))]); diff != "" {
			t.Errorf("steps (-want +got):\n%s", diff)
		}
		f.until(t, "one", readyNow, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
	})
	t.Run("Renewed", func(t *testing.T) {
		again := newFront(t)
		door = again
		if err := join(t.Context(), "the hub has tried"); err != nil {
			t.Fatal(err)
		}
		if left := again.unready.Load(); left != 0 {
			t.Errorf("the hub did not ask %d times more", left)
		}
	})
}

// TestWaitHubReady: WaitHubReady asks a hub until it is ready. It returns without an error for
// any other answer, so that the next request reports the problem.
func TestWaitHubReady(t *testing.T) {
	var answers atomic.Pointer[[]int]
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		left := *answers.Load()
		rest := left[1:]
		answers.Store(&rest)
		w.WriteHeader(left[0])
	}))
	defer hub.Close()
	for name, script := range map[string][]int{"Ready": {200}, "Later": {500, 503, 429, 200}, "Forbidden": {403}, "NoSuchPath": {404}} {
		t.Run(name, func(t *testing.T) {
			answers.Store(&script)
			if err := WaitHubReady(t.Context(), &rest.Config{Host: hub.URL}); err != nil {
				t.Fatal(err)
			}
			if left := *answers.Load(); len(left) > 0 {
				t.Errorf("answers %v were not asked for", left)
			}
		})
	}
	t.Run("NobodyThere", func(t *testing.T) {
		hub.Close()
		if err := WaitHubReady(t.Context(), &rest.Config{Host: hub.URL}); err != nil {
			t.Errorf("%v, want it left to the next request", err)
		}
	})
}
