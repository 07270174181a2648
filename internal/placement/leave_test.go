package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/sets"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/failover"
	"orrery.dev/orrery/internal/fleet"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/scheduler"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// evicting gives a cluster a taint with the effect NoExecute, which was added at noon.
func evicting(c *fleet.Cluster) {
	c.Taints = []corev1.Taint{{Key: "down", Effect: corev1.TaintEffectNoExecute, TimeAdded: new(metav1.NewTime(noon))}}
}

func lostAndEvicting(c *fleet.Cluster) {
	evicting(c)
	c.Reachable, c.Lost, c.Since = false, true, noon
}

// TestLeave decides on a Deployment in a that may go to b: at one moment, with one answer of the
// queue of evictions.
func TestLeave(t *testing.T) {
	one := in("a", "b")
	one.SpreadConstraints = []policyv1alpha1.SpreadConstraint{{SpreadByField: policyv1alpha1.SpreadByCluster, MaxGroups: 1}}
	tolerant := one
	tolerant.ClusterTolerations = []corev1.Toleration{{Key: "down", Operator: corev1.TolerationOpExists, TolerationSeconds: new(int64(600))}}
	groups := policyv1alpha1.Placement{ClusterAffinities: []policyv1alpha1.ClusterAffinityTerm{
		{AffinityName: "first", ClusterAffinity: *in("a").ClusterAffinity}, {AffinityName: "second", ClusterAffinity: *in("b").ClusterAffinity},
	}}
	job := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "batch/v1", "kind": "Job", "metadata": map[string]any{"namespace": "shop", "name": "web", "uid": "template", "generation": int64(7)},
	}}
	present := func(string) (int32, presence.Presence) { return 4, presence.Present }
	present0 := func(string) (int32, presence.Presence) { return 0, presence.Present }
	absent := func(string) (int32, presence.Presence) { return 0, presence.Absent }
	const minute = time.Minute
	for _, tt := range []struct {
		name      string
		placement policyv1alpha1.Placement
		object    *unstructured.Unstructured // nil: a Deployment
		replicas  int64                      // of the Deployment; 0: 4, -1: 0
		purge     policyv1alpha1.PurgeMode
		a         *fleet.Cluster
		more      []*fleet.Cluster // beside a
		copies    func(string) (int32, presence.Presence)
		wait      failover.Wait
		supposed  string
		after     time.Duration

		want   string // the placement, as in world.placed
		mode   policyv1alpha1.PurgeMode
		wants  int
		due    time.Duration // after noon; 0: none
		reason string
		says   string // in the message
	}{
		{name: "granted", placement: one, a: but("a", evicting), more: []*fleet.Cluster{fine("b")}, after: minute, want: "b=4 -a=4", mode: "Gracefully", wants: 1, reason: "Scheduled"},
		{
			name: "granted, and the old copy is gone", placement: one, a: but("a", evicting), more: []*fleet.Cluster{fine("b")}, copies: absent, after: minute,
			want: "b=4", wants: 1, reason: "Scheduled",
		},
		{name: "Directly", placement: one, purge: "Immediately", a: but("a", evicting), more: []*fleet.Cluster{fine("b")}, after: minute, want: "b=4 -a=4", mode: "Directly", wants: 1, reason: "Scheduled"},
		{name: "Never", placement: one, purge: "Never", a: but("a", evicting), more: []*fleet.Cluster{fine("b")}, after: minute, want: "b=4 -a=4", mode: "Never", wants: 1, reason: "Scheduled"},
		{name: "no taint", placement: one, a: fine("a"), more: []*fleet.Cluster{fine("b")}, after: minute, want: "a=4", reason: "Scheduled"},
		{
			name: "held", placement: one, a: but("a", evicting), more: []*fleet.Cluster{fine("b")}, after: minute, wait: failover.Wait{Hold: failover.HoldPaused, Message: "by somebody"},
			want: "a=4", wants: 1, reason: "Scheduled", says: "to leave a because of taint down:NoExecute, waits: Paused (failover is paused)",
		},
		{
			name: "behind others", placement: one, a: but("a", evicting), more: []*fleet.Cluster{fine("b")}, after: time.Second, wait: failover.Wait{Hold: failover.HoldRate, Message: "the rate"},
			want: "a=4", wants: 1, reason: "Scheduled", due: quiet,
		},
		{
			name: "behind others for long", placement: one, a: but("a", evicting), more: []*fleet.Cluster{fine("b")}, after: time.Hour, wait: failover.Wait{Hold: failover.HoldRate, Message: "the rate"},
			want: "a=4", wants: 1, reason: "Scheduled", says: "waits: RateLimited",
		},
		{name: "tolerated", placement: tolerant, a: but("a", evicting), more: []*fleet.Cluster{fine("b")}, after: minute, want: "a=4", due: 10 * minute, reason: "Scheduled"},
		{name: "tolerated for too long", placement: tolerant, a: but("a", evicting), more: []*fleet.Cluster{fine("b")}, after: 11 * minute, want: "b=4 -a=4", mode: "Gracefully", wants: 1, reason: "Scheduled"},
		{name: "tolerated, but supposed", placement: tolerant, a: but("a", evicting), more: []*fleet.Cluster{fine("b")}, after: minute, supposed: "a", want: "b=4 -a=4", mode: "Gracefully", reason: "Scheduled"},
		{name: "the next group", placement: groups, a: but("a", evicting), more: []*fleet.Cluster{fine("b")}, after: minute, want: "b=4 -a=4", mode: "Gracefully", wants: 1, reason: "Scheduled"},
		{
			name: "no other cluster", placement: one, a: but("a", evicting), after: minute,
			want: "a=4", reason: "Scheduled", says: "waits: NoReplacement",
		},
		{name: "no other cluster, and Directly", placement: one, purge: "Directly", a: but("a", evicting), after: minute, want: "-a=4", mode: "Directly", wants: 1, reason: "NoClusterFits"},
		{
			name: "no other cluster, and Directly from a lost one", placement: one, purge: "Directly", a: but("a", lostAndEvicting), after: minute,
			want: "a=4", reason: "Scheduled", says: "waits: NoReplacement",
		},
		{
			name: "Never, without replicas", placement: one, replicas: -1, purge: "Never", a: but("a", evicting), more: []*fleet.Cluster{fine("b")}, copies: present0, after: minute,
			want: "b=0 -a=0", mode: "Never", wants: 1, reason: "Scheduled",
		},
		{name: "a lost cluster", placement: one, a: but("a", lostAndEvicting), more: []*fleet.Cluster{fine("b")}, after: minute, want: "b=4 -a=4", mode: "Gracefully", wants: 1, reason: "Scheduled"},
		{name: "a Job that may run", placement: one, object: job, purge: "Directly", a: but("a", lostAndEvicting), more: []*fleet.Cluster{fine("b")}, after: minute, want: "a=1", reason: "Scheduled", says: "waits: JobMayRun"},
		{name: "a Job that runs", placement: one, object: job, a: but("a", evicting), more: []*fleet.Cluster{fine("b")}, copies: present, after: minute, want: "a=1", reason: "Scheduled", says: "waits: JobMayRun"},
		{name: "a Job that is gone", placement: one, object: job, a: but("a", evicting), more: []*fleet.Cluster{fine("b")}, copies: absent, after: minute, want: "b=1", wants: 1, reason: "Scheduled"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := max(0, cmp.Or(tt.replicas, 4))
			o, b := tt.object, placedBinding(policyv1alpha1.Duplicated, int32(n), tt.placement, fmt.Sprintf("a=%d", n))
			if o == nil {
				o = workload("Deployment", map[string]any{"replicas": n})
			} else {
				b = placedBinding(policyv1alpha1.Duplicated, 1, tt.placement, "a=1")
			}
			if len(tt.placement.ClusterAffinities) > 0 {
				b.Spec.SchedulerObservedAffinityName = "first"
			}
			template := ofPolicy(o, tt.placement)
			template.Claims[0].Policy.Spec.Failover = &policyv1alpha1.FailoverBehavior{Cluster: &policyv1alpha1.ClusterFailoverBehavior{PurgeMode: tt.purge}}
			d := Decide(fleet.NewSnapshot(1, append(tt.more, tt.a)...), template, CurrentState{
				Binding: b, Copies: tt.copies, Now: noon.Add(tt.after), Supposed: tt.supposed,
				Evict: func(*fleet.Cluster, scheduler.Due) failover.Wait { return tt.wait },
			})
			if got := where(d.Spec); got != tt.want || d.Outcome.Reason != tt.reason {
				t.Errorf("placed in %q (%s: %s), want %q (%s)", got, d.Outcome.Reason, d.Outcome.Message, tt.want, tt.reason)
			}
			if len(d.Wants) != tt.wants {
				t.Errorf("%d evictions are due, want %d", len(d.Wants), tt.wants)
			}
			if due := d.Due; !due.IsZero() != (tt.due > 0) || tt.due > 0 && !due.Equal(noon.Add(tt.due)) {
				t.Errorf("due next at %v, want %s after noon", due, tt.due)
			}
			if !strings.Contains(d.Outcome.Message, tt.says) || tt.says == "" && strings.Contains(d.Outcome.Message, "waits") {
				t.Errorf("the message is %q, want %q in it", d.Outcome.Message, tt.says)
			}
			for _, task := range d.Spec.GracefulEvictionTasks {
				if task.Reason != workv1alpha2.ReasonTaintUntolerated || task.PurgeMode != tt.mode || !task.CreationTimestamp.Time.Equal(noon.Add(tt.after)) ||
					!strings.HasPrefix(task.Message, "taint down:NoExecute, added at 2026-01-01T12:00:00Z") {
					t.Errorf("the eviction task is %+v, want purge mode %s", task, tt.mode)
				}
			}
			// The next decision keeps what the task says, also when the taint is gone.
			if tt.mode == "" {
				return
			}
			b.Spec = *d.Spec
			tt.a.Taints = nil
			next := Decide(fleet.NewSnapshot(2, append(tt.more, tt.a)...), template, CurrentState{Binding: b, Now: noon.Add(tt.after + minute)})
			if len(tt.more) == 0 {
				return // it returns, because no other cluster had fitted
			}
			if got := where(next.Spec); got != tt.want {
				t.Errorf("then placed in %q, want %q: nothing comes back by itself", got, tt.want)
			}
			for i, task := range next.Spec.GracefulEvictionTasks {
				if was := d.Spec.GracefulEvictionTasks[i]; task.Reason != was.Reason || task.Message != was.Message || task.PurgeMode != was.PurgeMode ||
					!task.CreationTimestamp.Equal(was.CreationTimestamp) {
					t.Errorf("the eviction task is %+v, and was %+v", task, was)
				}
			}
		})
	}
}

// TestLeaveBehind: the task of an eviction with the purge mode Never stays until the dependencies
// in the cluster are marked to stay with the copy.
func TestLeaveBehind(t *testing.T) {
	placement := in("b")
	template := claimedTemplate(4, placement)
	b := placedBinding(policyv1alpha1.Duplicated, 4, placement, "b=4 -a=4")
	b.Spec.GracefulEvictionTasks[0].PurgeMode = policyv1alpha1.PurgeNever
	for _, unmarked := range []bool{true, false} {
		d := Decide(fleet.NewSnapshot(1, fine("a"), fine("b")), template, CurrentState{
			Binding: b, Now: noon, Copies: func(string) (int32, presence.Presence) { return 0, presence.Absent },
			Unmarked: func(cluster string) bool { return cluster == "a" && unmarked },
		})
		want := "b=4"
		if unmarked {
			want = "b=4 -a=4"
		}
		if got := where(d.Spec); got != want || unmarked != (d.RetryAfter > 0) {
			t.Errorf("dependencies need it %t: %q, again after %s; want %q", unmarked, got, d.RetryAfter, want)
		}
	}
	// A cluster that left the fleet keeps no task.
	d := Decide(fleet.NewSnapshot(1, fine("b")), template, CurrentState{Binding: b, Now: noon, Unmarked: func(string) bool { return true }})
	if got := where(d.Spec); got != "b=4" {
		t.Errorf("after a has left: %q", got)
	}
}

// TestLeaveTogether: objects of one affinity group, which leave a cluster together, do not keep
// each other there.
func TestLeaveTogether(t *testing.T) {
	placement := in("a", "b")
	placement.SpreadConstraints = []policyv1alpha1.SpreadConstraint{{SpreadByField: policyv1alpha1.SpreadByCluster, MaxGroups: 1}}
	d := Decide(fleet.NewSnapshot(1, but("a", evicting), fine("b")), claimedTemplate(4, placement), CurrentState{
		Binding: placedBinding(policyv1alpha1.Duplicated, 4, placement, "a=4"), Now: noon.Add(time.Minute), Together: sets.New("a"),
		Evict: func(*fleet.Cluster, scheduler.Due) failover.Wait { return failover.Wait{} },
	})
	if got := where(d.Spec); got != "b=4 -a=4" {
		t.Errorf("placed in %q: %s", got, d.Outcome.Message)
	}
}

// TestLeaveOnlyForMore: a template whose replicas are divided by capacity stays in a cluster if no
// other one has capacity for any of the replicas there. The queue is not asked.
func TestLeaveOnlyForMore(t *testing.T) {
	placement := in("a", "b")
	placement.ReplicaScheduling = divided(&policyv1alpha1.ClusterPreferences{DynamicWeight: policyv1alpha1.DynamicWeightByAvailableReplicas})
	for spare, want := range map[int64]string{0: "a=2 b=2", 1: "b=3 -a=2", 2: "b=4 -a=2"} {
		asked := false
		b := placedBinding(policyv1alpha1.Divided, 4, placement, "a=2 b=2")
		d := Decide(fleet.NewSnapshot(1, but("a", evicting), but("b", func(c *fleet.Cluster) { c.FreeCapacity = free(spare) })), claimedTemplate(4, placement), CurrentState{
			Binding: b, Now: noon.Add(time.Minute),
			Evict: func(*fleet.Cluster, scheduler.Due) failover.Wait { asked = true; return failover.Wait{} },
		})
		if got := where(d.Spec); got != want || asked != (spare > 0) {
			t.Errorf("with capacity for %d more: placed in %q, asked %t, want %q: %s", spare, got, asked, want, d.Outcome.Message)
		}
	}
}

// TestLeaveByTheConfirmedTaint: a taint that no user has confirmed hides no later one.
func TestLeaveByTheConfirmedTaint(t *testing.T) {
	placement := in("a", "b")
	placement.SpreadConstraints = []policyv1alpha1.SpreadConstraint{{SpreadByField: policyv1alpha1.SpreadByCluster, MaxGroups: 1}}
	both := func(c *fleet.Cluster) {
		evicting(c)
		c.Taints = append(c.Taints, corev1.Taint{Key: "later", Effect: corev1.TaintEffectNoExecute, TimeAdded: new(metav1.NewTime(noon.Add(time.Minute)))})
	}
	d := Decide(fleet.NewSnapshot(1, but("a", both), fine("b")), claimedTemplate(4, placement), CurrentState{
		Binding: placedBinding(policyv1alpha1.Duplicated, 4, placement, "a=4"), Now: noon.Add(time.Hour),
		Evict: func(_ *fleet.Cluster, due scheduler.Due) failover.Wait {
			if due.Taint.Key == "down" {
				return failover.Wait{Hold: failover.HoldUnconfirmed}
			}
			return failover.Wait{}
		},
	})
	if got := where(d.Spec); got != "b=4 -a=4" || !strings.HasPrefix(d.Spec.GracefulEvictionTasks[0].Message, "taint later:NoExecute") {
		t.Errorf("placed in %q: %+v", got, d.Spec.GracefulEvictionTasks)
	}
}

// TestARunIsNotStartedTwice: a Job that was begun in a cluster does not leave it, even if its copy
// there is gone. No new choice of clusters starts it elsewhere while the cluster does not answer.
func TestARunIsNotStartedTwice(t *testing.T) {
	placement := in("a", "b")
	placement.SpreadConstraints = []policyv1alpha1.SpreadConstraint{{SpreadByField: policyv1alpha1.SpreadByCluster, MaxGroups: 1}}
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "batch/v1", "kind": "Job", "metadata": map[string]any{"namespace": "shop", "name": "web", "uid": "template", "generation": int64(7)},
	}}
	for phase, want := range map[workv1alpha2.RunPhase]string{
		workv1alpha2.RunBegan: "a=1", workv1alpha2.RunComplete: "a=1", workv1alpha2.RunRefused: "b=1",
	} {
		b := placedBinding(policyv1alpha1.Duplicated, 1, placement, "a=1")
		b.Status.Runs = []workv1alpha2.Run{{ClusterName: "a", TemplateUID: "template", Phase: phase}}
		d := Decide(fleet.NewSnapshot(1, but("a", evicting), fine("b")), ofPolicy(o, placement), CurrentState{
			Binding: b, Now: noon.Add(time.Minute), Copies: func(string) (int32, presence.Presence) { return 0, presence.Absent },
			Evict: func(*fleet.Cluster, scheduler.Due) failover.Wait { return failover.Wait{} },
		})
		if got := where(d.Spec); got != want {
			t.Errorf("%s: placed in %q, want %q: %s", phase, got, want, d.Outcome.Message)
		}
	}
	b := rescheduled(placedBinding(policyv1alpha1.Duplicated, 1, placement, "a=1"), 2, 1)
	d := Decide(fleet.NewSnapshot(1, but("a", func(c *fleet.Cluster) { c.Reachable, c.Lost = false, true }), fine("b")), ofPolicy(o, placement), CurrentState{
		Binding: b, Now: noon, Copies: func(string) (int32, presence.Presence) { return 0, presence.Unknown },
	})
	if got := where(d.Spec); got != "a=1" {
		t.Errorf("rescheduled while a does not answer: placed in %q: %s", got, d.Outcome.Message)
	}
}

// TestDueTimes: a template waits for one time, and all with the same time are requeued together.
func TestDueTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looked [][]binding.Template
		q := newRetryQueue(func(keys ...binding.Template) { looked = append(looked, keys) })
		x, y, z := binding.Template{Name: "x"}, binding.Template{Name: "y"}, binding.Template{Name: "z"}
		begin := time.Now()
		for _, k := range []binding.Template{x, y, z} {
			q.setDue(k, begin.Add(10*time.Second))
		}
		q.setDue(x, begin.Add(20*time.Second))
		q.setDue(y, time.Time{})
		q.setDue(z, begin.Add(10*time.Second))
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(looked) != 2 || !slices.Equal(looked[0], []binding.Template{z}) || !slices.Equal(looked[1], []binding.Template{x}) {
			t.Errorf("requeued %v", looked)
		}
		if len(q.due) > 0 || len(q.at) > 0 {
			t.Errorf("left: %v, %v", q.due, q.at)
		}
	})
}
