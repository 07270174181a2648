package fleet

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/access"
	"orrery.dev/orrery/internal/interpreter"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/scheduler"
)

type kinds presence.Presence

func (k kinds) Serves(schema.GroupVersionKind) presence.Presence { return presence.Presence(k) }

type free int64

func (n free) Fits(*scheduler.Claim, bool) (int64, string) { return int64(n), "" }

func (n free) Sets(components []scheduler.Component, _ bool) (sets int64, lacking, quota string) {
	var each int64
	for _, c := range components {
		each += c.Replicas
	}
	if each > int64(n) {
		return 0, components[0].Name, ""
	}
	return int64(n) / max(1, each), "", ""
}

func (n free) Without(taken []scheduler.Taken) scheduler.FreeCapacity {
	for _, t := range taken {
		n = max(0, n-free(t.Replicas)-10*free(t.Objects))
	}
	return n
}

// members is a Source with answers that the test sets.
type members struct {
	silent            bool
	apis              kinds
	capacity          FreeCapacity
	changed, measured func(string)
}

func (m *members) Contact(string, types.UID) Contact {
	return Contact{Contact: member.Contact{Reachable: !m.silent, Silent: m.silent, Probed: true}, APIs: m.apis}
}
func (m *members) FreeCapacity(string) FreeCapacity { return m.capacity }
func (m *members) Subscribe(changed, measured func(cluster string)) {
	m.changed, m.measured = changed, measured
}

func newTestCache(source Source) *Cache {
	c := newCache(source, access.All)
	c.Snapshot() // the test need not wait for informers
	return c
}

func object(name string, uid types.UID, change func(*clusterv1alpha1.Cluster)) *clusterv1alpha1.Cluster {
	o := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name, UID: uid}}
	if change != nil {
		change(o)
	}
	return o
}

func TestChanges(t *testing.T) {
	m := &members{apis: kinds(presence.Present)}
	c := newTestCache(m)
	var notified []Aspect
	c.Subscribe(func(change Change) {
		if change.Name != "oak" {
			t.Errorf("notified of %s", change.Name)
		}
		notified = append(notified, change.What)
	})
	const all = Membership | Labels | Taints | Reachability | APIs | Capacity
	now := metav1.Now()
	var before *clusterv1alpha1.Cluster
	set := func(uid types.UID, change func(*clusterv1alpha1.Cluster)) {
		after := object("oak", uid, change)
		c.changed(before, after)
		before = after
	}
	steps := []struct {
		name string
		do   func()
		want []Aspect
	}{
		{"Joins", func() { set("1", nil) }, []Aspect{all}},
		{"Status", func() { set("1", func(o *clusterv1alpha1.Cluster) { o.Status.KubernetesVersion = "v1" }) }, nil},
		{"Labels", func() { set("1", func(o *clusterv1alpha1.Cluster) { o.Labels = map[string]string{"a": "b"} }) }, []Aspect{Labels}},
		{"RegionAndNoLabels", func() { set("1", func(o *clusterv1alpha1.Cluster) { o.Spec.Region = "north" }) }, []Aspect{Labels}},
		{"Taints", func() {
			set("1", func(o *clusterv1alpha1.Cluster) {
				o.Spec.Region = "north"
				o.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}
			})
		}, []Aspect{Taints}},
		{"Silent", func() { m.silent = true; m.changed("oak") }, []Aspect{Reachability}},
		{"StillSilent", func() { m.changed("oak") }, nil},
		{"OtherAPIs", func() { m.silent, m.apis = false, kinds(presence.Absent); m.changed("oak") }, []Aspect{Reachability | APIs}},
		{"CapacityKnown", func() { m.capacity = free(3); m.changed("oak") }, []Aspect{Capacity}},
		{"CapacityOther", func() { m.capacity = free(4); m.measured("oak"); c.Measured() }, nil},
		{"Leaving", func() {
			set("1", func(o *clusterv1alpha1.Cluster) {
				o.Spec, o.DeletionTimestamp = before.Spec, &now
			})
		}, []Aspect{Membership}},
		{"JoinsAgain", func() { set("2", nil) }, []Aspect{all}},
		{"Gone", func() { c.changed(before, nil) }, []Aspect{all}},
		{"NobodyKnowsIt", func() { m.changed("oak") }, nil},
	}
	for _, step := range steps {
		notified = nil
		step.do()
		if diff := cmp.Diff(step.want, notified); diff != "" {
			t.Errorf("%s: notified (-want +got):\n%s", step.name, diff)
		}
	}
}

// TestSnapshotsDoNotChange: later changes do not change an earlier snapshot.
func TestSnapshotsDoNotChange(t *testing.T) {
	m := &members{capacity: free(1)}
	c := newTestCache(m)
	c.changed(nil, object("oak", "1", nil))
	c.changed(nil, object("elm", "2", nil))
	first := c.Snapshot()
	oak, _ := first.Cluster("oak")
	elm, _ := first.Cluster("elm")

	m.capacity = free(9)
	m.measured("oak")
	if s := c.Snapshot(); s != first {
		t.Error("a new capacity made a snapshot that nobody asked for")
	}
	second := c.Measured()
	c.changed(object("elm", "2", nil), nil)
	c.changed(nil, object("ash", "3", nil))
	third := c.Snapshot()

	fits := func(s *Snapshot, name string) int64 {
		cluster, ok := s.Cluster(name)
		if !ok {
			return -1
		}
		n, _, _ := cluster.Fits(nil, false)
		return n
	}
	for what, got := range map[string][2]int64{
		"oak at first": {fits(first, "oak"), 1}, "oak measured": {fits(second, "oak"), 9}, "oak later": {fits(third, "oak"), 9},
		"elm at first": {fits(first, "elm"), 1}, "elm later": {fits(third, "elm"), -1},
		"ash at first": {fits(first, "ash"), -1}, "ash later": {fits(third, "ash"), 9},
	} {
		if got[0] != got[1] {
			t.Errorf("%s: %d fit, want %d", what, got[0], got[1])
		}
	}
	if first.Version() >= second.Version() || second.Version() >= third.Version() {
		t.Errorf("versions %d, %d, %d", first.Version(), second.Version(), third.Version())
	}
	// Unchanged parts are shared.
	if again, _ := second.Cluster("elm"); again != elm {
		t.Error("elm was copied")
	}
	if again, _ := second.Cluster("oak"); again == oak {
		t.Error("oak was changed in place")
	}
	if first.Identities() != second.Identities() || second.Identities() == third.Identities() {
		t.Error("identities are shared exactly while nobody joins or leaves")
	}
	if !first.Identities().Has("elm", "2") || third.Identities().Has("elm", "2") || first.Identities().Has("elm", "") {
		t.Error("identities do not know who was there")
	}
}

// TestReserve: reserved capacity is not free until it is released. A doubt makes the free
// capacity unknown.
func TestReserve(t *testing.T) {
	m := &members{capacity: free(9)}
	c := newTestCache(m)
	c.changed(nil, object("oak", "1", nil))
	c.changed(nil, object("elm", "2", nil))
	fits := func(what string, oak, elm int64) {
		t.Helper()
		s := c.Measured()
		for name, want := range map[string]int64{"oak": oak, "elm": elm} {
			cluster, _ := s.Cluster(name)
			got, _, known := cluster.Fits(nil, false)
			if !known {
				got = -1
			}
			if got != want {
				t.Errorf("%s: %d fit in %s, want %d", what, got, name, want)
			}
		}
	}
	claim := func(requests corev1.ResourceList) *scheduler.Claim {
		return scheduler.NewClaim(&interpreter.Requirements{Requests: requests})
	}
	small := func() *scheduler.Claim { return claim(corev1.ResourceList{"cpu": resource.MustParse("1")}) }
	large := claim(corev1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("1Gi")})
	fits("at first", 9, 9)
	before := c.Measured()
	c.Reserve("oak", small(), 2, 0)
	c.Reserve("oak", large, 3, 0)
	c.Reserve("nowhere", large, 3, 1)
	fits("reserved", 4, 9)
	m.capacity = free(8)
	m.measured("oak")
	fits("and measured", 3, 9)
	c.Reserve("elm", small(), 0, 1)
	fits("a new object", 3, 0)
	c.Reserve("elm", small(), 0, -1)
	c.Reserve("oak", small(), -2, 0)
	c.Doubt("elm", 1)
	fits("given back, and in doubt", 5, -1)
	// A cluster that is read again has the same reservations.
	c.changed(object("oak", "1", nil), object("oak", "3", nil))
	fits("it joined again", 5, -1)
	c.Reserve("oak", large, -3, 0)
	c.Doubt("elm", -1)
	fits("nothing is left", 8, 8)
	if oak, _ := before.Cluster("oak"); oak.FreeCapacity != free(9) {
		t.Error("a snapshot changed")
	}
	c.Reserve("nowhere", large, -3, -1)
	if len(c.unmeasured.reserved) > 0 {
		t.Errorf("something is still reserved in %d clusters", len(c.unmeasured.reserved))
	}
}
