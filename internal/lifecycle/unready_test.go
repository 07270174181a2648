package lifecycle_test

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/host"
	"orrery.dev/orrery/internal/pki"
)

// unready answers like an API server that cannot reach etcd, as long as left is set.
type unready struct {
	next http.RoundTripper
	left *atomic.Int32 // how many more requests are answered so
}

// RoundTrip implements http.RoundTripper.
func (u unready) RoundTrip(r *http.Request) (*http.Response, error) {
	if !strings.HasSuffix(r.URL.Path, "/readyz") || u.left.Add(-1) < 0 {
		return u.next.RoundTrip(r)
	}
	return &http.Response{
		StatusCode: http.StatusInternalServerError, Request: r, Header: http.Header{"Content-Type": {"text/plain"}},
		Body: io.NopCloser(strings.NewReader("[+]ping ok\n[-]etcd failed: reason withheld\n[+]shutdown ok\nreadyz check failed\n")),
	}, nil
}

// TestNotReadyForAMoment: no API server is ready when a step of the cluster begins, as during an
// election of etcd. The step waits for the API servers without using an attempt. If none becomes
// ready, the error briefly names what is missing.
func TestNotReadyForAMoment(t *testing.T) {
	for name, tc := range map[string]struct {
		questions int32
		settle    time.Duration
		want      string
	}{
		"Passes": {questions: 7},
		"Stays":  {questions: 1 << 30, settle: time.Millisecond, want: "host h-2: it is not ready: etcd\n"},
	} {
		t.Run(name, func(t *testing.T) {
			l := built(t, 4, 3)
			var left atomic.Int32
			l.engine.Settle = tc.settle
			connect := l.engine.Connect
			l.engine.Connect = func(c host.Conn, port int32, keys pki.Bundle) *rest.Config {
				cfg := connect(c, port, keys)
				cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return unready{next: next, left: &left} })
				return cfg
			}
			l.env.progress = func(_ lifecyclev1alpha1.Operation, s lifecyclev1alpha1.StepRecord) {
				if s.ID == "cordon/h-4" && s.State == lifecyclev1alpha1.StepRunning {
					left.Store(tc.questions)
				}
			}
			rest := l.spec.DeepCopy()
			rest.Hosts = rest.Hosts[:3]
			delete(rest.RoleGroups, clusterv1alpha1.RoleWorker)
			op, err := l.run(lifecyclev1alpha1.ActionDeleteNode, rest, hosts("h-4"))
			if tc.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				if n := l.kept(op.Name).Status.Attempt; n != 1 {
					t.Errorf("it took %d attempts", n)
				}
				if left.Load() >= 0 {
					t.Error("the API servers were not asked until they were ready")
				}
				return
			}
			says(t, err, "no API server of cluster oak answers", tc.want)
			if strings.Contains(err.Error(), "ping") {
				t.Errorf("the error lists what is well: %v", err)
			}
		})
	}
}
