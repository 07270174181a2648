package spine

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"orrery.dev/orrery/internal/testenv"
)

// balancerIdle is after how long a balancer drops a connection on which nothing passes.
const balancerIdle = time.Minute

// dialled are members whose agents dial the hub through networks.
type dialled struct {
	*placements

	network map[*testenv.Member]*testenv.Network
	agent   map[*testenv.Member]*testenv.Agent
	value   int
}

// TestAgentsInTrouble has all that can happen between a hub and agents happen while workloads with overrides are placed and changed in the clusters of
// those agents, and one that the hub dials. Nothing is written there in an older version than before, without its override or twice, but for what was on its
// way; nothing moves, nothing is deleted; the cluster that the hub dials notices nothing; and each has everything as it is wanted once the trouble ends, with no help.
func TestAgentsInTrouble(t *testing.T) {
	w := start(t, "agents")
	program, err := testenv.BuildAgent(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	d := &dialled{
		placements: w.placing(1, members.List...), network: map[*testenv.Member]*testenv.Network{}, agent: map[*testenv.Member]*testenv.Agent{},
	}
	agents := []*testenv.Member{w.oak, w.pine}
	for _, m := range agents {
		d.network[m] = testenv.NewNetwork(t, w.hub.Listener(t), balancerIdle)
		w.hub.JoinByAgent(t, m, d.network[m])
		d.agent[m] = m.StartAgent(t, program, "one")
	}
	t.Cleanup(func() { // the tests that follow share the fleet, and these agents end with this one
		if !t.Failed() {
			return
		}
		if w.T = t; !w.hub.Running() {
			w.restart()
		}
		for _, m := range agents {
			d.network[m].Dark(false)
			if err := w.hub.Unjoin(m); err != nil {
				t.Logf("unjoin %s: %v", m.Name, err)
			}
		}
	})
	for _, m := range agents {
		// Of one state of the Cluster: while it changes, it is ready by what was there before, and then for a moment not at all.
		w.eventually(m.Name+" is reached by its agent", func() error {
			c, err := w.hub.Find(t.Context(), "cluster.orrery.dev/v1alpha1", "Cluster", "", m.Name)
			if err != nil {
				return err
			}
			mode, _, _ := unstructured.NestedString(c.Object, "spec", "syncMode")
			if is := conditions(c); mode != "Pull" || !contains(is, "AgentConnected=True/") || !contains(is, "Ready=True/") {
				return errorf("it is %s, %s", mode, is)
			}
			return nil
		})
	}
	d.change()
	d.put(0, "app-0", "conf-0")
	d.have(members.List...)
	d.told()
	all := len(d.wanted())
	for _, m := range members.List {
		d.exactly(m, all)
	}
	phase := func(name string, do func(t *testing.T)) {
		t.Helper()
		whole := w.T
		began := time.Now()
		if !t.Run(name, func(t *testing.T) {
			w.T = t
			defer func() { w.T = whole }()
			do(t)
			d.have(members.List...)
			d.told()
			w.moved("ResourceBinding", "app-0-deployment", clusterNames...)
			d.close()
		}) {
			t.FailNow() // it may have left a fleet that is not whole
		}
		t.Logf("%s took %s", name, time.Since(began).Round(time.Second))
	}

	phase("ResetInTheMidst", func(t *testing.T) {
		network := d.network[w.oak]
		// Of lists: each has everything, or fails.
		for i := range 8 {
			reset := time.AfterFunc(time.Duration(i)*40*time.Millisecond, network.Reset)
			out, err := w.hub.Kubectl("--context=oak", "--request-timeout=20s", "get", "configmaps,secrets,clusterroles", "-n", w.ns, "-o", "name")
			if err == nil && (!contains(out, "configmap/conf-0\n") || !contains(out, "secret/app-0\n") || !contains(out, "/cluster-admin\n") || !contains(out, "/view\n")) {
				t.Errorf("a list that was cut off passed for whole:\n%s", out)
			}
			reset.Stop()
		}
		// Of applies.
		var mu sync.Mutex
		cut := 0
		w.oak.OnWrite(func(r testenv.Write) {
			mu.Lock()
			defer mu.Unlock()
			if r.Namespace == w.ns && r.Impersonated == "" && cut < 3 {
				cut++
				network.Reset()
			}
		})
		d.change()
		d.have(members.List...)
		w.oak.OnWrite(nil)
		d.told()
		d.exactly(w.birch, all)
		d.exactly(w.pine, all)
		d.atMost(w.oak, all+3*atOnce)
		d.execs(t)
	})

	phase("HubKilledWhileItWrites", func(*testing.T) {
		hit, killed := make(chan struct{}), make(chan struct{})
		var once sync.Once
		w.oak.OnWrite(func(r testenv.Write) {
			if r.Namespace == w.ns {
				once.Do(func() { close(hit) })
				<-killed
			}
		})
		d.change()
		<-hit
		w.hub.Kill()
		w.oak.OnWrite(nil)
		close(killed)
		w.restart()
		d.restarted()
		d.have(members.List...)
		d.told()
		for _, m := range members.List {
			d.atMost(m, 2*all)
		}
	})

	phase("Swallowed", func(*testing.T) {
		for _, m := range agents {
			d.network[m].Swallow()
		}
		d.change()
		d.have(members.List...)
		d.told()
		d.exactly(w.birch, all)
		for _, m := range agents {
			d.atMost(m, 2*all)
		}
	})

	phase("HalfOpen", func(*testing.T) {
		d.network[w.oak].HalfOpen(true)
		d.network[w.pine].HalfOpen(false)
		d.change()
		d.have(members.List...)
		d.told()
		d.exactly(w.birch, all)
		for _, m := range agents {
			d.atMost(m, 2*all)
		}
	})

	phase("AgentKilledInTheDark", func(*testing.T) {
		d.network[w.oak].Dark(true)
		d.agent[w.oak].Kill()
		d.change()
		w.lost(w.oak)
		d.have(w.birch, w.pine)
		w.binding("Deployment", "app-0", "FullyApplied=False/ClusterUnreachable")
		w.moved("ResourceBinding", "app-0-deployment", clusterNames...)
		d.exactly(w.birch, all)
		d.exactly(w.pine, all)
		d.exactly(w.oak, 0)
		d.agent[w.oak] = w.oak.StartAgent(t, program, "one") // for the rest of the test
		d.network[w.oak].Dark(false)
		d.have(w.oak)
		d.told()
		d.exactly(w.oak, all)
	})

	for _, m := range agents {
		if n := d.network[m].Dropped(); n > 0 {
			t.Errorf("%d connections of %s said nothing for %s", n, m.Name, balancerIdle)
		}
	}
	before := map[*testenv.Member]content{}
	for _, m := range members.List {
		before[m] = w.content(m)
		w.must(w.hub.Unjoin(m))
	}
	for _, m := range members.List {
		w.stays(m, before[m])
		if d.agent[m] == nil {
			continue
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		if err := d.agent[m].Wait(ctx); err != nil {
			t.Errorf("the agent of %s, which has left: %v", m.Name, err)
		}
		cancel()
		w.eventually("the hub's account in "+m.Name+" is gone", func() error {
			_, err := m.Find(t.Context(), "v1", "ServiceAccount", "orrery-system", "orrery")
			if apierrors.IsNotFound(err) {
				return nil
			}
			return errors.Join(err, errors.New("it is there"))
		})
	}
}

// change has each copy written anew.
func (d *dialled) change() {
	d.Helper()
	d.value++
	d.override(0, d.value)
}
