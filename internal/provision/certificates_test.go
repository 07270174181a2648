package provision

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/pki"
)

const expiring = clusterv1alpha1.ConditionCertificatesExpiring

// certified returns a hub whose runs issue certificates, and the clock for them.
func certified(t *testing.T) (*hub, *clocktesting.FakeClock) {
	t.Helper()
	h, clock := newHub(t), clocktesting.NewFakeClock(time.Now())
	h.clock = clock
	h.onRun(func(ctx context.Context, e *fakeEngine, op *lifecyclev1alpha1.Operation, spec *clusterv1alpha1.Provision) error {
		return e.certify(ctx, op, spec)
	})
	h.start(t)
	return h, clock
}

// certify does what apply does, and also issues keys.
func (e *fakeEngine) certify(ctx context.Context, op *lifecyclev1alpha1.Operation, spec *clusterv1alpha1.Provision) error {
	if op.Spec.Action != lifecyclev1alpha1.ActionRenewCertificates {
		if err := e.apply(ctx, op, spec); err != nil {
			return err
		}
	}
	state, err := e.Load(ctx, e.cluster)
	if err != nil {
		return err
	}
	if err := state.Mint(e.hub.clock.Now(), spec); err != nil {
		return err
	}
	state.Keys, state.Renewed = state.Keys.With(state.Renewed), nil
	return e.Save(ctx, state)
}

// pass advances the clock. It first waits until the hub waits for the clock.
func pass(t *testing.T, clock *clocktesting.FakeClock, d time.Duration) {
	t.Helper()
	eventually(t, "the hub waits for the time to look at certificates", func() (bool, string) { return clock.HasWaiters(), "" })
	clock.Step(d)
}

const dueAfter = pki.LeafLifetime - pki.RenewBefore + time.Hour

// The hub renews certificates that are due, and reports them until then.
func TestHubRenewsCertificates(t *testing.T) {
	h, clock := certified(t)
	h.create(t, cluster("oak", 1, 2))
	h.until(t, "oak", ready, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
	o := h.until(t, "oak", expiring, metav1.ConditionFalse, clusterv1alpha1.ReasonValid)
	first := o.Status.Provision.CertificatesExpire
	if want := clock.Now().Add(pki.LeafLifetime); first == nil || first.Sub(want).Abs() > time.Hour {
		t.Fatalf("status.provision.certificatesExpire is %v, want about %s", first, want)
	}
	if got := testutil.ToFloat64(metrics.expiry.WithLabelValues("oak", kindCertificate)); got != float64(first.Unix()) {
		t.Errorf("the metric says %f, want %d", got, first.Unix())
	}
	pass(t, clock, dueAfter)
	h.untilPhase(t, "oak-2", lifecyclev1alpha1.PhaseSucceeded)
	eventually(t, "the status tells of the renewal", func() (bool, string) {
		o = h.until(t, "oak", expiring, metav1.ConditionFalse, clusterv1alpha1.ReasonValid)
		end := o.Status.Provision.CertificatesExpire
		return end != nil && end.After(first.Time), fmt.Sprint(end)
	})
	h.until(t, "oak", ready, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
	want := []string{"oak-1 Create [] attempt 1 on 2 hosts", "oak-2 RenewCertificates [] attempt 1 on 2 hosts"}
	if diff := cmp.Diff(want, h.ran()); diff != "" {
		t.Errorf("runs (-want +got):\n%s", diff)
	}
	h.change(t, "oak", func(s *clusterv1alpha1.ClusterSpec) { s.Provision = nil })
	eventually(t, "of a cluster that is not built from here any more nothing is said", func() (bool, string) {
		o = h.until(t, "oak", ready, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
		return meta.FindStatusCondition(o.Status.Conditions, expiring) == nil, ""
	})
}

// With autoRenewCerts false the hub only warns. An Operation of a user renews.
func TestHubDoesNotRenewUnasked(t *testing.T) {
	h, clock := certified(t)
	o := cluster("oak", 1)
	o.Spec.Provision.Kubernetes.AutoRenewCerts = new(bool)
	h.create(t, o)
	h.until(t, "oak", expiring, metav1.ConditionFalse, clusterv1alpha1.ReasonValid)
	pass(t, clock, dueAfter)
	o = h.until(t, "oak", expiring, metav1.ConditionTrue, clusterv1alpha1.ReasonExpiringSoon)
	for _, want := range []string{"autoRenewCerts is false", "RenewCertificates", "ends at"} {
		if message := meta.FindStatusCondition(o.Status.Conditions, expiring).Message; !strings.Contains(message, want) {
			t.Errorf("the message %q does not have %q", message, want)
		}
	}
	pass(t, clock, pki.RenewBefore)
	h.until(t, "oak", expiring, metav1.ConditionTrue, clusterv1alpha1.ReasonExpired)
	h.until(t, "oak", ready, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
	if n := len(h.ran()); n != 1 {
		t.Errorf("runs: %q", h.ran())
	}
	h.create(t, operation("by-hand", lifecyclev1alpha1.OperationSpec{Cluster: "oak", Action: lifecyclev1alpha1.ActionRenewCertificates}))
	h.untilPhase(t, "by-hand", lifecyclev1alpha1.PhaseSucceeded)
	h.until(t, "oak", expiring, metav1.ConditionFalse, clusterv1alpha1.ReasonValid)
}

// A failed run is resumed only after due certificates are renewed, because they may have caused the
// failure. A failed renewal blocks nothing.
func TestHubRenewsBeforeItResumes(t *testing.T) {
	for name, renews := range map[string]bool{"Renewed": true, "RenewalFails": false} {
		t.Run(name, func(t *testing.T) {
			h, clock := certified(t)
			h.create(t, cluster("oak", 1))
			h.until(t, "oak", expiring, metav1.ConditionFalse, clusterv1alpha1.ReasonValid)
			h.onRun(func(ctx context.Context, e *fakeEngine, op *lifecyclev1alpha1.Operation, spec *clusterv1alpha1.Provision) error {
				switch {
				case op.Spec.Action == lifecyclev1alpha1.ActionRenewCertificates && !renews:
					return errors.New("host host-1 does not answer")
				case op.Spec.Action == lifecyclev1alpha1.ActionApply && op.Status.Attempt == 1:
					clock.SetTime(clock.Now().Add(dueAfter))
					return errors.New("certificate has expired")
				}
				return e.certify(ctx, op, spec)
			})
			h.change(t, "oak", func(s *clusterv1alpha1.ClusterSpec) { s.Provision.Kubernetes.MaxPods = 50 })
			// The hub would resume it after a minute. The test does not wait for that.
			h.untilPhase(t, "oak-2", lifecyclev1alpha1.PhaseFailed)
			phase := lifecyclev1alpha1.PhaseSucceeded
			if !renews {
				phase = lifecyclev1alpha1.PhaseFailed
			}
			h.untilPhase(t, "oak-3", phase)
			want := []string{"oak-1 Create [] attempt 1 on 1 hosts", "oak-2 Apply [] attempt 1 on 1 hosts", "oak-3 RenewCertificates [] attempt 1 on 1 hosts"}
			if diff := cmp.Diff(want, h.ran()); diff != "" {
				t.Errorf("runs (-want +got):\n%s", diff)
			}
			h.until(t, "oak", provisioned, metav1.ConditionFalse, clusterv1alpha1.ReasonOperationFailed)
			if !renews {
				o := h.until(t, "oak", expiring, metav1.ConditionTrue, clusterv1alpha1.ReasonExpiringSoon)
				eventually(t, "the condition tells of the failure", func() (bool, string) {
					o = h.until(t, "oak", expiring, metav1.ConditionTrue, clusterv1alpha1.ReasonExpiringSoon)
					message := meta.FindStatusCondition(o.Status.Conditions, expiring).Message
					return strings.Contains(message, "does not answer"), message
				})
			}
		})
	}
}
