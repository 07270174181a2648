package scheduler

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// evicts returns a taint with the effect NoExecute that was added some minutes after noon.
func evicts(key string, minutes int) corev1.Taint {
	return corev1.Taint{Key: key, Effect: corev1.TaintEffectNoExecute, TimeAdded: new(metav1.NewTime(noon.Add(time.Duration(minutes) * time.Minute)))}
}

// tolerate returns a toleration of all taints with the key; seconds below -1: without an end.
func tolerate(key string, seconds int64) corev1.Toleration {
	t := corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists}
	if seconds > -2 {
		t.TolerationSeconds = &seconds
	}
	return t
}

// noTolerations is a Fence that allows every cluster, and no toleration.
type noTolerations struct{}

func (noTolerations) Allows(*Cluster) bool                   { return true }
func (noTolerations) Tolerates(*Cluster, *corev1.Taint) bool { return false }
func (noTolerations) Closed() string                         { return "closed" }
func (noTolerations) Ungranted() string                      { return "not granted" }

func TestDue(t *testing.T) {
	const never = -1
	lost := func(minutes int) func(*Cluster) {
		return func(c *Cluster) {
			c.Reachable, c.Lost, c.Since = false, true, noon.Add(time.Duration(minutes)*time.Minute)
		}
	}
	for _, tt := range []struct {
		name        string
		change      func(*Cluster)
		taints      []corev1.Taint
		tolerations []corev1.Toleration
		fence       Fence
		trusted     bool
		want        int // seconds after noon
		because     string
	}{
		{name: "no taint", want: never},
		{name: "another effect", taints: []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectNoSchedule, TimeAdded: evicts("a", 0).TimeAdded}}, want: never},
		{name: "no time yet", taints: []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectNoExecute}}, want: never},
		{name: "not tolerated", taints: []corev1.Taint{evicts("a", 1)}, want: 60, because: "a"},
		{name: "another is tolerated", taints: []corev1.Taint{evicts("a", 1)}, tolerations: []corev1.Toleration{tolerate("b", 30)}, want: 60, because: "a"},
		{name: "tolerated for a time", taints: []corev1.Taint{evicts("a", 1)}, tolerations: []corev1.Toleration{tolerate("a", 30)}, want: 90, because: "a"},
		{name: "less than no time", taints: []corev1.Taint{evicts("a", 1)}, tolerations: []corev1.Toleration{tolerate("a", -1)}, want: 60, because: "a"},
		{name: "tolerated forever", taints: []corev1.Taint{evicts("a", 1)}, tolerations: []corev1.Toleration{tolerate("a", -2)}, want: never},
		{
			name: "the shortest toleration", taints: []corev1.Taint{evicts("a", 1)}, want: 80, because: "a",
			tolerations: []corev1.Toleration{tolerate("a", -2), tolerate("a", 40), tolerate("", 20)},
		},
		{name: "the earliest taint", taints: []corev1.Taint{evicts("a", 3), evicts("b", 2), evicts("c", 4)}, want: 120, because: "b"},
		{name: "a failure", taints: []corev1.Taint{evicts("cluster.orrery.dev/unreachable", 1)}, want: 360, because: "cluster.orrery.dev/unreachable"},
		{
			name: "a failure that ended", change: func(c *Cluster) { c.Since = noon.Add(5 * time.Minute) }, want: 600,
			taints: []corev1.Taint{evicts("cluster.orrery.dev/unreachable", 0)}, because: "cluster.orrery.dev/unreachable",
		},
		{name: "a failure in Karmada's words", taints: []corev1.Taint{evicts("cluster.karmada.io/not-ready", 0)}, want: 300, because: "cluster.karmada.io/not-ready"},
		{
			name: "a failure that is tolerated for less", taints: []corev1.Taint{evicts("cluster.orrery.dev/not-ready", 0)}, want: 10,
			tolerations: []corev1.Toleration{tolerate("cluster.orrery.dev/not-ready", 10)}, because: "cluster.orrery.dev/not-ready",
		},
		{
			name: "the namespace may not tolerate it", taints: []corev1.Taint{evicts("a", 1)}, want: 60, because: "a",
			tolerations: []corev1.Toleration{tolerate("a", -2)}, fence: noTolerations{},
		},
		{
			name: "an administrator's policy may", taints: []corev1.Taint{evicts("a", 1)}, want: never,
			tolerations: []corev1.Toleration{tolerate("a", -2)}, fence: noTolerations{}, trusted: true,
		},
		{name: "not probed yet", change: func(c *Cluster) { c.Reachable = false }, taints: []corev1.Taint{evicts("a", 1)}, want: never},
		{
			name: "found lost after the taint", change: lost(5), taints: []corev1.Taint{evicts("a", 1)}, want: 330, because: "a",
			tolerations: []corev1.Toleration{tolerate("a", 30)},
		},
		{
			name: "found lost before the taint", change: lost(0), taints: []corev1.Taint{evicts("a", 1)}, want: 90, because: "a",
			tolerations: []corev1.Toleration{tolerate("a", 30)},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := Compile(policyv1alpha1.Placement{ClusterTolerations: tt.tolerations})
			if tt.trusted {
				p = p.Trusted()
			}
			c := healthy("oak")
			if tt.change != nil {
				tt.change(c)
			}
			c.Taints = tt.taints
			due, ok := p.Due(c, tt.fence)
			switch {
			case tt.want == never && ok:
				t.Fatalf("due at %s because of %s, want never", due.At, due.Taint.ToString())
			case tt.want == never:
				return
			case !ok:
				t.Fatal("never due")
			}
			if want := noon.Add(time.Duration(tt.want) * time.Second); !due.At.Equal(want) || due.Taint.Key != tt.because {
				t.Errorf("due at %s because of %s, want %s because of %s", due.At, due.Taint.Key, want, tt.because)
			}
		})
	}
}

// TestConcernsEndingTolerations: a taint that the object tolerates for some time closes a cluster
// to it at the end. So adding and removing it concerns the object, in the cluster or not.
func TestConcernsEndingTolerations(t *testing.T) {
	p := Compile(policyv1alpha1.Placement{ClusterTolerations: []corev1.Toleration{tolerate("a", 1), tolerate("b", -2)}})
	before := healthy("oak")
	for key, want := range map[string]bool{"a": true, "b": false} {
		after := with("oak", func(c *Cluster) { c.Taints = []corev1.Taint{evicts(key, 0)} })
		for _, placed := range []bool{true, false} {
			if p.Concerns(before, after, schema.GroupVersionKind{}, nil, placed) != want || p.Concerns(after, before, schema.GroupVersionKind{}, nil, placed) != want {
				t.Errorf("taint %s concerns an object that is there (%t): want %t", key, placed, want)
			}
		}
	}
}

// TestLeaves: an object leaves the clusters of Request.Leaves if it fits elsewhere, and no other
// cluster with the same taint is chosen once its toleration is used up.
func TestLeaves(t *testing.T) {
	tolerating := policyv1alpha1.Placement{ClusterTolerations: []corev1.Toleration{tolerate("a", 60)}}
	one := tolerating
	one.SpreadConstraints = []policyv1alpha1.SpreadConstraint{{SpreadByField: policyv1alpha1.SpreadByCluster, MaxGroups: 1}}
	tainted := func(name string) *Cluster {
		return with(name, func(c *Cluster) { c.Taints = []corev1.Taint{evicts("a", 0)} })
	}
	for _, tt := range []struct {
		name      string
		placement policyv1alpha1.Placement
		clusters  []*Cluster
		leaves    []string
		after     time.Duration // of noon
		want      []workv1alpha2.TargetCluster
		reason    string
	}{
		{"to the other cluster", one, []*Cluster{tainted("oak"), healthy("birch")}, []string{"oak"}, time.Hour, targets("birch", -1), workv1alpha2.ReasonScheduled},
		{"a used-up toleration counts no more", one, []*Cluster{tainted("oak"), tainted("birch")}, []string{"oak"}, time.Hour, targets("oak", -1), workv1alpha2.ReasonNoClusterFits},
		{"one that lasts counts", one, []*Cluster{tainted("oak"), tainted("birch")}, []string{"oak"}, time.Second, targets("birch", -1), workv1alpha2.ReasonScheduled},
		{"without leaving it stays", one, []*Cluster{tainted("oak"), healthy("birch")}, nil, time.Hour, targets("oak", -1), workv1alpha2.ReasonScheduled},
	} {
		t.Run(tt.name, func(t *testing.T) {
			result := schedule(tt.clusters, Request{
				UID: "object", Placement: Compile(tt.placement), Previous: targets("oak", -1), Leaves: sets.New(tt.leaves...), Now: noon.Add(tt.after),
			})
			if got := namesOf(result.Clusters); got != namesOf(tt.want) || result.Reason != tt.reason {
				t.Errorf("placed in %s (%s: %s), want %s (%s)", got, result.Reason, result.Message, namesOf(tt.want), tt.reason)
			}
		})
	}
}

// namesOf returns the names of clusters for comparison.
func namesOf(all []workv1alpha2.TargetCluster) string {
	var names string
	for _, c := range all {
		names += c.Name + " "
	}
	return names
}
