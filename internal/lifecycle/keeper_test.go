package lifecycle

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/node"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// leaseHost is a host that only records the requests to its agent.
type leaseHost struct {
	mu       sync.Mutex
	expires  time.Time // of the lease
	lapsed   bool      // the lease has expired once
	requests []string
	refuses  string // the event that answers every request; empty: the agent does it
}

// Run implements host.Conn.
func (h *leaseHost) Run(_ context.Context, _ []string, stdin io.Reader, stdout io.Writer) error {
	line, err := io.ReadAll(stdin)
	if err != nil {
		return err
	}
	var req node.Request
	if err := json.Unmarshal(bytes.TrimSpace(line), &req); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lapsed = h.lapsed || !h.expires.IsZero() && time.Now().After(h.expires)
	h.expires = req.Lease.Expires
	if req.Release {
		h.expires = time.Time{}
	}
	h.requests = append(h.requests, fmt.Sprintf("epoch %d, release %t", req.Lease.Epoch, req.Release))
	event := fmt.Sprintf(`{"state":%q}`, lifecyclev1alpha1.StepRunning)
	_, err = fmt.Fprintln(stdout, cmp.Or(h.refuses, event))
	return err
}

// Dial implements host.Conn.
func (*leaseHost) Dial(context.Context, string, string) (net.Conn, error) { return nil, io.EOF }

// Close implements host.Conn.
func (*leaseHost) Close() error { return nil }

// count returns the number of requests, and whether the lease has expired in between.
func (h *leaseHost) count() (n int, lapsed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.requests), h.lapsed || !h.expires.IsZero() && time.Now().After(h.expires)
}

// TestLeasesOfGuardedHosts: of the hosts that a run does not change, only one stops it that has a
// lease of another run.
func TestLeasesOfGuardedHosts(t *testing.T) {
	const digest = "sha256:agent"
	full := fmt.Sprintf(`{"state":%q,"message":"no space left on device"}`, lifecyclev1alpha1.StepFailed)
	held := fmt.Sprintf(`{"state":%q,"message":"held","leaseHeld":{"operation":"other","holder":"hub","epoch":9,"expires":"2100-01-01T00:00:00Z"}}`, lifecyclev1alpha1.StepFailed)
	for name, tc := range map[string]struct {
		changed, guarded string // how the host answers
		stops            string
	}{
		"All":          {"", "", ""},
		"GuardedFull":  {"", full, ""},
		"GuardedHeld":  {"", held, "operation other"},
		"ChangedFull":  {full, "", "no space left"},
		"ChangedHeld":  {held, "", "operation other"},
		"BothOfThem":   {held, full, "operation other"},
		"ChangedFirst": {full, full, "no space left"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				op := &lifecyclev1alpha1.Operation{}
				r := &run{
					Engine: &Engine{}, op: op, rec: newRecorder(&Engine{}, op), state: &State{}, spec: &clusterv1alpha1.Provision{},
					agents: agents{read: map[string]agent{"amd64": {digest: digest}}}, conns: map[string]*connection{},
					roles: map[clusterv1alpha1.Role][]string{clusterv1alpha1.RoleEtcd: {"h-1"}, clusterv1alpha1.RoleControlPlane: {"h-1"}},
				}
				for host, refuses := range map[string]string{"h-1": tc.guarded, "h-2": tc.changed} {
					r.conns[host] = &connection{name: host, conn: &leaseHost{refuses: refuses}, arch: "amd64", agent: digest}
				}
				err := r.takeLeasesFor(t.Context(), []plan.Work{{Host: plan.Host{Name: "h-2"}}})
				if (err != nil) != (tc.stops != "") || err != nil && !strings.Contains(err.Error(), tc.stops) {
					t.Errorf("the run is stopped by %v, want %q", err, tc.stops)
				}
				_ = r.release(t.Context(), nil)
			})
		})
	}
}

// TestKeepsLeases: the leases of a run never expire while it runs, however long it leaves a host
// alone. A host that is being undone gets no requests, and no host gets any after the release.
func TestKeepsLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const digest = "sha256:agent"
		op := &lifecyclev1alpha1.Operation{}
		r := &run{
			Engine: &Engine{}, op: op, rec: newRecorder(&Engine{}, op), state: &State{}, spec: &clusterv1alpha1.Provision{},
			agents: agents{read: map[string]agent{"amd64": {digest: digest}}}, conns: map[string]*connection{},
		}
		hosts := map[string]*leaseHost{"h-1": {}, "h-2": {}, "h-3": {}}
		for name, h := range hosts {
			r.conns[name] = &connection{name: name, conn: h, arch: "amd64", agent: digest}
		}
		if err := r.takeLeases(t.Context(), []string{"h-1", "h-2"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		for _, name := range []string{"h-1", "h-2"} {
			if n, lapsed := hosts[name].count(); lapsed || n < int(time.Hour/leaseTime) {
				t.Errorf("host %s: %d requests, expired %t", name, n, lapsed)
			}
		}
		if n, _ := hosts["h-3"].count(); n > 0 {
			t.Errorf("host h-3, which the run does not need: %d requests", n)
		}
		if err := r.takeLeases(t.Context(), []string{"h-1", "h-3"}); err != nil {
			t.Fatal(err)
		}

		r.conns["h-2"].extends.Lock() // as while it is undone
		synctest.Wait()
		before, _ := hosts["h-2"].count()
		time.Sleep(time.Hour)
		if n, _ := hosts["h-2"].count(); n != before {
			t.Errorf("host h-2 got %d requests while it was undone", n-before)
		}
		if n, lapsed := hosts["h-3"].count(); lapsed || n < int(time.Hour/leaseTime) {
			t.Errorf("host h-3: %d requests, expired %t", n, lapsed)
		}
		r.conns["h-2"].leased.Store(false)
		r.conns["h-2"].extends.Unlock()

		if err := r.release(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		ended := map[string]int{}
		for name, h := range hosts {
			ended[name], _ = h.count()
		}
		time.Sleep(time.Hour)
		for name, h := range hosts {
			n, _ := h.count()
			last := h.requests[n-1]
			if n != ended[name] || name != "h-2" && last != "epoch 1, release true" {
				t.Errorf("host %s: %d requests after the release, of which the last was %s", name, n-ended[name], last)
			}
		}
	})
}

// TestReleaseAfterTheEnd: a run gives up its leases unless it is to be resumed. A wait that ended
// does not say whether the run was paused or canceled.
func TestReleaseAfterTheEnd(t *testing.T) {
	broken := errors.New("broken off")
	for name, tc := range map[string]struct {
		spec   lifecyclev1alpha1.OperationSpec
		failed error
		want   error
		kept   bool
	}{
		"Succeeded":              {},
		"Failed":                 {failed: broken, want: broken},
		"FailedAndPaused":        {spec: lifecyclev1alpha1.OperationSpec{Paused: true}, failed: broken, want: broken},
		"Canceled":               {spec: lifecyclev1alpha1.OperationSpec{Canceled: true}, failed: ErrCanceled, want: ErrCanceled},
		"CanceledInAWait":        {spec: lifecyclev1alpha1.OperationSpec{Canceled: true}, failed: fmt.Errorf("wait: %w", context.Canceled), want: ErrCanceled},
		"CanceledInSeveralWaits": {spec: lifecyclev1alpha1.OperationSpec{Canceled: true}, failed: errors.Join(ErrCanceled, context.Canceled), want: ErrCanceled},
		"Paused":                 {spec: lifecyclev1alpha1.OperationSpec{Paused: true}, failed: ErrPaused, want: ErrPaused, kept: true},
		"PausedInAWait":          {spec: lifecyclev1alpha1.OperationSpec{Paused: true}, failed: context.Canceled, want: ErrPaused, kept: true},
		"PausedThenCanceled":     {spec: lifecyclev1alpha1.OperationSpec{Paused: true, Canceled: true}, failed: context.Canceled, want: ErrCanceled},
		"Interrupted":            {failed: fmt.Errorf("dial: %w", context.Canceled), want: context.Canceled, kept: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const digest = "sha256:agent"
				op, h := &lifecyclev1alpha1.Operation{Spec: tc.spec}, &leaseHost{}
				r := &run{
					Engine: &Engine{}, op: op, rec: newRecorder(&Engine{}, op), state: &State{}, spec: &clusterv1alpha1.Provision{},
					agents: agents{read: map[string]agent{"amd64": {digest: digest}}},
					conns:  map[string]*connection{"h-1": {name: "h-1", conn: h, arch: "amd64", agent: digest}},
				}
				if err := r.takeLeases(t.Context(), []string{"h-1"}); err != nil {
					t.Fatal(err)
				}
				if err := r.release(t.Context(), tc.failed); !errors.Is(err, tc.want) {
					t.Errorf("%v, want %v", err, tc.want)
				}
				if kept := !h.expires.IsZero(); kept != tc.kept {
					t.Errorf("the lease is kept: %t; requests: %v", kept, h.requests)
				}
			})
		})
	}
}
