package lifecycle

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/host"
	"orrery.dev/orrery/internal/lifecycle/intent"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/lifecycle/safety"
	"orrery.dev/orrery/internal/pki"
)

// stallHost is a host whose API server does not answer before ends. stops is how long this process
// is stopped during the first request to it.
type stallHost struct {
	leaseHost

	ends  time.Time
	stops time.Duration
	first atomic.Bool
}

// RoundTrip implements http.RoundTripper.
func (h *stallHost) RoundTrip(r *http.Request) (*http.Response, error) {
	switch {
	case h.stops > 0 && h.first.CompareAndSwap(false, true):
		time.Sleep(h.stops)
		return nil, context.DeadlineExceeded
	case time.Now().Before(h.ends):
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	return &http.Response{StatusCode: http.StatusOK, Request: r, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("ok"))}, nil
}

// TestStall: a run that needs the API server of h-2 waits while that server stalls, for at most
// settleTime. A check during which this process was stopped does not refuse the run.
func TestStall(t *testing.T) {
	for name, tc := range map[string]struct {
		action  lifecyclev1alpha1.Action
		stalls  time.Duration
		stops   time.Duration
		refused bool
		leftOut bool // the work is left out when the run begins
	}{
		"NoStall":                {},
		"LongerThanTwoElections": {stalls: 40 * time.Second},
		"Stays":                  {stalls: time.Hour, refused: true},
		"ThisProcessWasStopped":  {stops: 10 * time.Minute},
		// The removal of a node does not depend on the work, and does not wait for it longer than for
		// an election.
		"DeleteNode": {action: lifecyclev1alpha1.ActionDeleteNode, stalls: 40 * time.Second, leftOut: true},
	} {
		newRun := func() *run {
			spec := &clusterv1alpha1.Provision{}
			spec.Etcd.Type, spec.Etcd.ElectionTimeout = plan.EtcdExternal, 5000
			op := &lifecyclev1alpha1.Operation{}
			op.Spec.Action = tc.action
			return &run{
				Engine: &Engine{Connect: func(c host.Conn, _ int32, _ pki.Bundle) *rest.Config {
					return &rest.Config{Host: "http://api-server", Transport: c.(http.RoundTripper), QPS: -1}
				}},
				op: op, spec: spec, state: &State{Specs: intent.Specs{Applied: spec}},
				roles: map[clusterv1alpha1.Role][]string{clusterv1alpha1.RoleControlPlane: {"h-1", "h-2"}},
				conns: map[string]*connection{
					"h-1": {name: "h-1", conn: &stallHost{}},
					"h-2": {name: "h-2", conn: &stallHost{ends: time.Now().Add(tc.stalls), stops: tc.stops}},
				},
			}
		}
		act := safety.Act{APIServers: []string{"h-1"}}
		judge := func(t *testing.T, r *run, began time.Time, err error) {
			t.Helper()
			_, refused := errors.AsType[*safety.RefusedError](err)
			if refused != tc.refused || err != nil && !refused {
				t.Errorf("after %s: %v", time.Since(began), err)
			}
			if took := time.Since(began); refused && (took < r.settleTime() || took > r.settleTime()+2*(etcdTimeout+pollEvery)) {
				t.Errorf("it was refused after %s, want %s", took, r.settleTime())
			}
		}
		t.Run(name+"/Admit", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, began := newRun(), time.Now()
				_, err := r.admit(t.Context(), act)
				judge(t, r, began, err)
			})
		})
		t.Run(name+"/Rehearse", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, began := newRun(), time.Now()
				w := hostWork{conn: r.conns["h-1"], act: act}
				w.Host.Name, w.Restarts = "h-1", plan.Restarts{APIServer: true, Worst: plan.DisruptionRestart}
				work, err := r.rehearse(t.Context(), []hostWork{w})
				judge(t, r, began, err)
				if took := time.Since(began); tc.leftOut && (len(work) > 0 || took > r.electionTime()+2*(etcdTimeout+pollEvery)) {
					t.Errorf("after %s, %d hosts are changed; want none after %s", took, len(work), r.electionTime())
				}
				if err == nil && !tc.leftOut && len(work) != 1 {
					t.Errorf("%d hosts are changed, want 1", len(work))
				}
			})
		})
	}
}
