package provision

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/intent"
)

// TestDecide: errors name the host and the reason.
func TestDecide(t *testing.T) {
	cases := map[string]struct {
		specs intent.Specs
		want  string
	}{
		"BegunAndReplaced":     {specs: intent.Specs{Wanted: provision(1, 2), Begun: provision(1, 2).Hosts}, want: "host-2 missing"},
		"AnotherClustersHosts": {specs: intent.Specs{Applied: provision(1, 2)}, want: "an earlier Cluster of this name was built on host-2 too"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			o := cluster("oak", 1)
			if _, err := decide(o, desired(o), &tc.specs); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

// Retries become less frequent with each failure.
func TestDue(t *testing.T) {
	finished := metav1.NewMicroTime(time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC))
	for attempt, want := range map[int32]time.Duration{
		0: time.Minute, 1: time.Minute, 2: 2 * time.Minute, 3: 4 * time.Minute, 4: 8 * time.Minute, 5: 15 * time.Minute, 100: 15 * time.Minute,
	} {
		op := &lifecyclev1alpha1.Operation{Status: lifecyclev1alpha1.OperationStatus{Attempt: attempt, Finished: &finished}}
		if got := due(op).Sub(finished.Time); got != want {
			t.Errorf("after attempt %d it is tried again after %s, want %s", attempt, got, want)
		}
	}
}
