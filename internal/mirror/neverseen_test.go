package mirror

import (
	"testing"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/member"
)

// TestNeverSeen: the state of a cluster that the hub has never reached has no time. The state has
// one if the hub reached the cluster, or if its Cluster or the store has data about it.
func TestNeverSeen(t *testing.T) {
	hourAgo := metav1.NewTime(time.Now().Add(-time.Hour))
	for name, tc := range map[string]struct {
		change func(*cluster, *testSource)
		never  bool
	}{
		"NeverReached": {never: true},
		"NeverReachedSinceItJoined": {never: true, change: func(_ *cluster, s *testSource) {
			s.cluster.Status.Conditions = []metav1.Condition{{Type: clusterv1alpha1.ConditionReachable, Status: metav1.ConditionUnknown, LastTransitionTime: hourAgo}}
		}},
		"ReachedByThisProcess": {change: func(c *cluster, _ *testSource) { c.reachable(true); c.reachable(false) }},
		"ReachedEarlier":       {change: func(_ *cluster, s *testSource) { s.cluster.Status.ID = "id" }},
		"InTheStore":           {change: func(c *cluster, _ *testSource) { c.remember([]member.API{{}}) }},
	} {
		t.Run(name, func(t *testing.T) {
			s := sourceOf("oak", &rest.Config{Host: "https://127.0.0.1:1"})
			s.reachable = false
			m := newMirror(nil, newFleet(s), logr.Discard())
			c := newCluster(m, "oak", s)
			c.reachable(false)
			if tc.change != nil {
				tc.change(c, s)
			}
			m.clusters.Store(&map[string]*cluster{"oak": c})
			if state, since := m.State("oak"); state != StateUnknown || since.IsZero() != tc.never {
				t.Errorf("state %s since %s", state, since)
			}
			if since, stale := m.Stale("oak"); !stale || since.IsZero() != tc.never {
				t.Errorf("stale: %t, since %s", stale, since)
			}
			if d, found := m.Describe("oak"); !found || d.Reachable {
				t.Errorf("described: %t, as %+v", found, d)
			}
		})
	}
}

// TestNeverSeenNotMirroredYet: the start of the hub is not shown as the time of a cluster that is
// neither mirrored yet nor in the store.
func TestNeverSeenNotMirroredYet(t *testing.T) {
	m := newMirror(nil, newFleet(), logr.Discard())
	if state, since := m.State("oak"); state != StateUnknown || !since.IsZero() {
		t.Errorf("state %s since %s, want no time", state, since)
	}
	if since, stale := m.Stale("oak"); stale || !since.IsZero() {
		t.Errorf("stale: %t, since %s", stale, since)
	}
	m.remembered.Store(&map[string][]member.API{"oak": {{}}})
	if state, since := m.State("oak"); state != StateUnknown || since.IsZero() {
		t.Errorf("of a cluster in the store: state %s since %s, want a time", state, since)
	}
}
