package members

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/test/spine"
)

// balancerIdle is the idle time after which a load balancer drops a connection.
const balancerIdle = time.Minute

// dialled is a fleet with members whose agents dial the hub through networks.
type dialled struct {
	*spine.Placements

	network map[*testenv.Member]*testenv.Network
	agent   map[*testenv.Member]*testenv.Agent
	value   int
}

// TestAgentsInTrouble causes every fault between a hub and agents, while workloads with
// overrides are placed and changed in the clusters of the agents and in a cluster that the hub
// dials. No copy is written in an older version than before or without its override. None is
// written twice, except for writes that were pending. Nothing moves, nothing is deleted. The
// cluster that the hub dials is not affected. When the faults end, each cluster reaches the
// wanted state without help.
func TestAgentsInTrouble(t *testing.T) {
	testenv.Rotate(t, 2, "TestAgentsInTrouble", "TestMembersInTrouble")
	w := spine.Start(t, "agents")
	program, err := testenv.BuildAgent(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	d := &dialled{
		Placements: w.Placing(1, spine.Members.List...), network: map[*testenv.Member]*testenv.Network{}, agent: map[*testenv.Member]*testenv.Agent{},
	}
	agents := []*testenv.Member{w.Oak, w.Pine}
	for _, m := range agents {
		d.network[m] = testenv.NewNetwork(t, w.Hub.Listener(t), balancerIdle)
		w.Hub.JoinByAgent(t, m, d.network[m])
		d.agent[m] = m.StartAgent(t, program, "one")
	}
	// Later tests share the fleet, and the agents end with this test.
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		if w.T = t; !w.Hub.Running() {
			w.Restart()
		}
		for _, m := range agents {
			d.network[m].Dark(false)
			if err := w.Hub.Unjoin(m); err != nil {
				t.Logf("unjoin %s: %v", m.Name, err)
			}
		}
	})
	for _, m := range agents {
		// All conditions must hold in one state of the Cluster. While the Cluster changes, it
		// is ready by its old state, and then for a moment not ready.
		w.Eventually(m.Name+" is reached by its agent", func() error {
			c, err := w.Hub.Find(t.Context(), "cluster.orrery.dev/v1alpha1", "Cluster", "", m.Name)
			if err != nil {
				return err
			}
			mode, _, _ := unstructured.NestedString(c.Object, "spec", "syncMode")
			if is := spine.Conditions(c); mode != "Pull" || !strings.Contains(is, "AgentConnected=True/") || !strings.Contains(is, "Ready=True/") {
				return fmt.Errorf("it is %s, %s", mode, is)
			}
			return nil
		})
	}
	d.change()
	d.Put(0, "app-0", "conf-0")
	d.Have(spine.Members.List...)
	d.AllApplied()
	all := len(d.Wanted())
	for _, m := range spine.Members.List {
		d.Exactly(m, all)
	}
	phase := func(name string, do func(t *testing.T)) {
		t.Helper()
		whole := w.T
		began := time.Now()
		if !t.Run(name, func(t *testing.T) {
			w.T = t
			defer func() { w.T = whole }()
			do(t)
			d.Have(spine.Members.List...)
			d.AllApplied()
			w.Moved("ResourceBinding", "app-0-deployment", spine.ClusterNames...)
			d.Close()
		}) {
			t.FailNow() // the fleet may have faults left
		}
		t.Logf("%s took %s", name, time.Since(began).Round(time.Second))
	}

	phase("ResetInTheMidst", func(t *testing.T) {
		network := d.network[w.Oak]
		d.lists(t)
		// Reset the network during applies.
		var mu sync.Mutex
		cut := 0
		w.Oak.OnWriteIn(w.Namespace, func(r testenv.Write) {
			mu.Lock()
			defer mu.Unlock()
			if r.Namespace == w.Namespace && r.Impersonated == "" && cut < 3 {
				cut++
				network.Reset()
			}
		})
		d.change()
		d.Have(spine.Members.List...)
		w.Oak.OnWriteIn(w.Namespace, nil)
		d.AllApplied()
		d.Exactly(w.Birch, all)
		d.Exactly(w.Pine, all)
		d.AtMost(w.Oak, all+3*atOnce)
		d.execs(t)
	})

	phase("HubKilledWhileItWrites", func(*testing.T) {
		hit, killed := make(chan struct{}), make(chan struct{})
		var once sync.Once
		w.Oak.OnWriteIn(w.Namespace, func(r testenv.Write) {
			if r.Namespace == w.Namespace {
				once.Do(func() { close(hit) })
				<-killed
			}
		})
		d.change()
		<-hit
		w.Hub.Kill()
		w.Oak.OnWriteIn(w.Namespace, nil)
		close(killed)
		w.Restart()
		d.Restarted()
		d.Have(spine.Members.List...)
		d.AllApplied()
		for _, m := range spine.Members.List {
			d.AtMost(m, 2*all)
		}
	})

	phase("Swallowed", func(*testing.T) {
		for _, m := range agents {
			d.network[m].Swallow()
		}
		d.change()
		d.Have(spine.Members.List...)
		d.AllApplied()
		d.Exactly(w.Birch, all)
		for _, m := range agents {
			d.AtMost(m, 2*all)
		}
	})

	phase("HalfOpen", func(*testing.T) {
		d.network[w.Oak].HalfOpen(true)
		d.network[w.Pine].HalfOpen(false)
		d.change()
		d.Have(spine.Members.List...)
		d.AllApplied()
		d.Exactly(w.Birch, all)
		for _, m := range agents {
			d.AtMost(m, 2*all)
		}
	})

	phase("AgentKilledInTheDark", func(*testing.T) {
		d.network[w.Oak].Dark(true)
		d.agent[w.Oak].Kill()
		d.change()
		w.Lost(w.Oak)
		d.Have(w.Birch, w.Pine)
		w.Binding("Deployment", "app-0", "FullyApplied=False/ClusterUnreachable")
		w.Moved("ResourceBinding", "app-0-deployment", spine.ClusterNames...)
		d.Exactly(w.Birch, all)
		d.Exactly(w.Pine, all)
		d.Exactly(w.Oak, 0)
		d.agent[w.Oak] = w.Oak.StartAgent(t, program, "one") // for the rest of the test
		d.network[w.Oak].Dark(false)
		d.Have(w.Oak)
		d.AllApplied()
		d.Exactly(w.Oak, all)
	})

	for _, m := range agents {
		if n := d.network[m].Dropped(); n > 0 {
			t.Errorf("%d connections of %s said nothing for %s", n, m.Name, balancerIdle)
		}
	}
	before := map[*testenv.Member]spine.Content{}
	for _, m := range spine.Members.List {
		before[m] = w.Content(m)
		w.Unjoin(m)
	}
	for _, m := range spine.Members.List {
		w.Stays(m, before[m])
		if d.agent[m] == nil {
			continue
		}
		ctx, cancel := context.WithTimeout(t.Context(), spine.Patience)
		if err := d.agent[m].Wait(ctx); err != nil {
			t.Errorf("the agent of %s, which has left: %v", m.Name, err)
		}
		cancel()
		w.Eventually("the hub's account in "+m.Name+" is gone", func() error {
			_, err := m.Find(t.Context(), "v1", "ServiceAccount", "orrery-system", "orrery")
			if apierrors.IsNotFound(err) {
				return nil
			}
			return errors.Join(err, errors.New("it is there"))
		})
	}
}

// change changes the override, so that each copy is written again.
func (d *dialled) change() {
	d.Helper()
	d.value++
	d.Override(0, d.value)
}
