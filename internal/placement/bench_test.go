package placement

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/failover"
	"orrery.dev/orrery/internal/fleet"
	"orrery.dev/orrery/internal/scheduler"
)

// BenchmarkEvictionDecisions decides on a Deployment in ten of a thousand clusters, as in
// BenchmarkDecide/FewByCapacity. One of the ten does not answer and has a taint with the effect
// NoExecute. The toleration of the taint is not over (Tolerated), or it is over, and the eviction
// waits for the rate (Waiting) or begins (Granted). A queue of evictions judges the whole fleet
// each time that a decision asks it.
func BenchmarkEvictionDecisions(b *testing.B) {
	const lost, tolerated = "cluster-007", time.Minute
	placement := few()
	placement.ReplicaScheduling = divided(&policyv1alpha1.ClusterPreferences{DynamicWeight: policyv1alpha1.DynamicWeightByAvailableReplicas})
	placement.ClusterTolerations = []corev1.Toleration{{
		Key: "down", Operator: corev1.TolerationOpExists, TolerationSeconds: new(int64(tolerated / time.Second)),
	}}
	template, healthy := claimedTemplate(10, placement), thousand()
	before := &workv1alpha2.ResourceBinding{Spec: *Decide(healthy, template, CurrentState{}).Spec}
	s, _, ok := healthy.Supposing(lost, lostAndEvicting)
	if !ok || !has(before, lost) {
		b.Fatalf("%s does not have the Deployment: it is in %v", lost, clusterNames(before))
	}
	for _, tt := range []struct {
		name    string
		after   time.Duration // after the taint was added
		granted bool

		wants, tasks int // of the decision
	}{
		{name: "Tolerated", after: tolerated / 2},
		{name: "Waiting", after: tolerated + quiet/2, wants: 1},
		{name: "Granted", after: tolerated + quiet/2, granted: true, wants: 1, tasks: 1},
	} {
		b.Run(tt.name, func(b *testing.B) {
			now := noon.Add(tt.after)
			q := failover.NewQueue(failover.DefaultLimits, func() *fleet.Snapshot { return s }, func() time.Time { return now })
			q.SetState(failover.State{Known: true})
			current := CurrentState{Binding: before, Now: now, Evict: func(c *fleet.Cluster, due scheduler.Due) failover.Wait {
				wait := q.Evict(binding.Template{}, c, due.Taint)
				if tt.granted && wait.Hold == failover.HoldRate {
					return failover.Wait{}
				}
				return wait
			}}
			if d := Decide(s, template, current); len(d.Wants) != tt.wants || len(d.Spec.GracefulEvictionTasks) != tt.tasks {
				b.Fatalf("%d evictions are due and %d begin, want %d and %d: %s",
					len(d.Wants), len(d.Spec.GracefulEvictionTasks), tt.wants, tt.tasks, d.Outcome.Message)
			}
			b.ReportAllocs()
			for b.Loop() {
				Decide(s, template, current)
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
		})
	}
}
