package mirror

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/store"
	"orrery.dev/orrery/internal/testenv"
)

// TestLag: the age of the data is known for each cluster and type, also of a cluster that
// became unreachable before the hub started.
func TestLag(t *testing.T) {
	cfg := testenv.Config(0)
	namespace := testenv.Namespace(t, cfg)
	configMap(t, cfg, namespace, "a", nil)
	s := openStore(t)
	east, west := newSource(t, "east", cfg, "configmaps"), newSource(t, "west", cfg, "configmaps")
	fleet := newFleet(east, west)
	m, stop := start(t, s, fleet)
	cm := configmaps.GroupResource()
	states := func(cluster string) map[fleetv1alpha1.MirrorState]int {
		d, _ := m.Describe(cluster)
		n := map[fleetv1alpha1.MirrorState]int{}
		for _, one := range d.Types {
			n[one.State]++
		}
		return n
	}
	eventually(t, "all is current", func() bool {
		return states("east")[fleetv1alpha1.MirrorCurrent] == 6 && states("west")[fleetv1alpha1.MirrorCurrent] == 6
	})
	asked := time.Now()
	if seen, stale := m.Freshness("east", cm); stale || seen.Before(asked) {
		t.Errorf("seen %s, asked %s, stale %t", seen, asked, stale)
	}
	if got := gauges(t, m); got["east"] != 0 || got["west"] != 0 || got["configmaps"] != 0 || len(got) != 8 {
		t.Errorf("lags %v, want 0 of two clusters and six types", got)
	}

	fleet.setReachable(east, false)
	seen, stale := m.Freshness("east", cm)
	if d, _ := m.Describe("east"); !stale || time.Since(seen) > testenv.Patience || d.Reachable || d.LagSeconds < 1 || states("east")[fleetv1alpha1.MirrorStale] != 6 {
		t.Errorf("seen %s, stale %t, described as %+v", seen, stale, d)
	}
	if got := gauges(t, m); got["east"] <= 0 || got["west"] != 0 || got["configmaps"] <= 0 {
		t.Errorf("lags %v, want some of east and its types", got)
	}
	eventually(t, "its rows are stored", func() bool {
		return len(rows(t, s, store.Query{Resource: "configmaps", Namespaces: []string{namespace}})) == 2
	})
	fleet.setReachable(east, true)
	eventually(t, "it is current again", func() bool { _, stale := m.Freshness("east", cm); return !stale })
	stop()

	// The cluster is unreachable when the hub starts, and has been for an hour.
	away := newSource(t, "east", cfg, "configmaps")
	away.reachable = false
	hourAgo := metav1.NewTime(time.Now().Add(-time.Hour))
	away.cluster.Status.Conditions = []metav1.Condition{{Type: clusterv1alpha1.ConditionReachable, Status: metav1.ConditionUnknown, LastTransitionTime: hourAgo}}
	m, _ = start(t, s, newFleet(away))
	eventually(t, "it is known how old its rows are", func() bool {
		seen, stale := m.Freshness("east", cm)
		return stale && !seen.After(hourAgo.Add(time.Second))
	})
	if since, stale := m.Stale("east"); !stale || !since.Equal(hourAgo.Time) {
		t.Errorf("unreachable since %s, want %s", since, hourAgo)
	}
}

// stub is a source without an API server. The test sets whether it is reachable.
type stub struct {
	source

	reachable bool
}

func (s *stub) Reachable() bool                   { return s.reachable }
func (s *stub) Cluster() *clusterv1alpha1.Cluster { return &clusterv1alpha1.Cluster{} }

// TestAgeOfQuietType: a type without changes is current while it is watched. Afterwards its age
// counts from the end of the watch, or from the loss of the cluster. All types of a cluster
// then have the same age.
func TestAgeOfQuietType(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stub{reachable: true}
		c := newCluster(nil, "east", s)
		c.reachable(true)
		quiet, busy := newTable(c, member.API{}), newTable(c, member.API{})
		lags := func() (all [2]time.Duration) {
			c.mu.Lock()
			defer c.mu.Unlock()
			all[0], _ = quiet.lag(time.Now())
			all[1], _ = busy.lag(time.Now())
			return all
		}
		expect := func(what string, want time.Duration) {
			t.Helper()
			if got := lags(); got[0] != want || got[1] != want {
				t.Errorf("%s: ages %v, want %s of both", what, got, want)
			}
		}
		quiet.follows(true)
		time.Sleep(9 * time.Minute)
		busy.follows(true)
		time.Sleep(time.Second)
		expect("while they are watched", 0)
		quiet.follows(false)
		busy.follows(false)
		time.Sleep(time.Second)
		expect("a second after the watches broke", 0)
		time.Sleep(reconnectGrace)
		expect("after the grace", reconnectGrace+time.Second)

		quiet.follows(true)
		busy.follows(true)
		time.Sleep(time.Minute)
		quiet.away, busy.away = true, true
		expect("of an API group that does not answer", time.Minute)
		quiet.away, busy.away = false, false

		quiet.follows(true)
		time.Sleep(9 * time.Minute)
		busy.follows(true)
		time.Sleep(time.Second)
		s.reachable = false
		expect("before the loss is handled", time.Millisecond)
		c.reachable(false)
		time.Sleep(time.Minute)
		expect("a minute after the cluster was lost", time.Minute)
		quiet.follows(false)
		expect("when one watch has ended", time.Minute)
		busy.follows(false)
		time.Sleep(time.Minute)
		expect("two minutes after the cluster was lost", 2*time.Minute)
	})
}

// gauges returns the lags that a mirror reports, by cluster or resource.
func gauges(t *testing.T, m *Mirror) map[string]float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(lags{m})
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			// The group comes before the resource.
			for _, l := range slices.Backward(metric.GetLabel()) {
				got[l.GetValue()] = metric.GetGauge().GetValue()
				break
			}
		}
	}
	return got
}
