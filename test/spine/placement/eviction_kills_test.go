package placement

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/test/spine"
)

const (
	// evictions is the number of workloads that leave a cluster in TestEvictionsSurviveKills.
	evictions = 20
	// eventsEach is less than the number of events of one eviction: changes of its binding, and
	// writes in members. The hub is killed at a random event.
	eventsEach = 5
	// recorded is the time within which the hub certainly stores what it has applied.
	recorded = time.Second
)

// evictionKill evicts the workloads of a test from one member to another one, and kills the hub
// meanwhile.
type evictionKill struct {
	w        *spine.World
	from, to *testenv.Member
	marks    map[string]int // in members, before the eviction
	dead     map[string]int // in members, before the hub is started again
	burnt    chan struct{}  // closed when an event has killed the hub

	mu     sync.Mutex
	left   int       // number of events until the hub is killed; 0: no event kills it
	killed time.Time // when the kill began
	wrong  []string
}

// event counts an event. The last one kills the hub, and waits until the hub is dead.
func (k *evictionKill) event() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.left == 0 {
		return
	}
	if k.left--; k.left == 0 {
		k.killed = time.Now()
		k.w.Hub.Kill()
		close(k.burnt)
	}
}

// light makes the n-th event from now kill the hub; 0: no event does.
func (k *evictionKill) light(n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.left = n
}

// look judges a write to a Deployment in a member before it is passed on, and counts it.
func (k *evictionKill) look(m *testenv.Member, r testenv.Write) {
	if r.Resource != "deployments" || r.DryRun {
		return
	}
	if m == k.from && r.Verb == "delete" {
		var available int64
		err := wait.PollUntilContextTimeout(context.Background(), 100*time.Millisecond, spine.Patience, true, func(ctx context.Context) (bool, error) {
			d, err := k.to.Find(ctx, "apps/v1", "Deployment", r.Namespace, r.Name)
			if err == nil {
				available = spine.AvailableReplicas(d)
			}
			return err == nil || apierrors.IsNotFound(err), nil
		})
		if available != 1 || err != nil {
			k.mu.Lock()
			k.wrong = append(k.wrong, fmt.Sprintf("%s: %s: %d replicas are available in %s (%v)", m.Name, r, available, k.to.Name, err))
			k.mu.Unlock()
		}
	}
	k.event()
}

// follow counts each change of the bindings as an event, until stop is called.
func (k *evictionKill) follow(bindings dynamic.ResourceInterface) (stop func()) {
	k.w.Helper()
	var events watch.Interface
	k.w.Eventually("watch the bindings", func() error {
		list, err := bindings.List(k.w.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		events, err = bindings.Watch(k.w.Context(), metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
		return err
	})
	var following sync.WaitGroup
	following.Go(func() {
		for range events.ResultChan() {
			k.event()
		}
	})
	return func() {
		events.Stop()
		following.Wait()
	}
}

// run evicts all workloads with a taint that has this key, kills the hub, and starts it again. It
// returns after the eviction, and reports whether an event killed the hub.
func (k *evictionKill) run(random *rand.Rand, bindings dynamic.ResourceInterface, key string) (byEvent bool) {
	w := k.w
	w.Helper()
	for _, m := range spine.Members.List {
		k.marks[m.Name] = m.Mark()
		m.OnWriteIn(w.Namespace, func(r testenv.Write) { k.look(m, r) })
	}
	defer func() {
		for _, m := range spine.Members.List {
			m.OnWriteIn(w.Namespace, nil)
		}
	}()
	defer k.follow(bindings)()
	defer k.light(0)
	taint(w, k.from, noExecute(key, ""))
	k.light(1 + random.IntN(eventsEach*evictions))
	w.Eventually("the hub is killed, or every workload has left "+k.from.Name, func() error {
		select {
		case <-k.burnt:
			byEvent = true
			return nil
		default:
			return placedOnlyIn(w, k.to, k.from)
		}
	})
	k.light(0)
	select {
	case <-k.burnt:
		byEvent = true
	default:
		k.killed = time.Now() // every event has happened
		w.Hub.Kill()
	}
	w.Eventually("the writes of the killed hub end", func() error {
		for _, m := range spine.Members.List {
			for _, r := range m.Writes(k.marks[m.Name]) {
				if r.Ended.IsZero() {
					return fmt.Errorf("%s: %s", m.Name, r)
				}
			}
		}
		return nil
	})
	for _, m := range spine.Members.List {
		k.dead[m.Name] = m.Mark()
	}
	w.Restart()
	w.Eventually("every workload has left "+k.from.Name, func() error { return placedOnlyIn(w, k.to, k.from) })
	w.CaughtUp(time.Second)
	return byEvent
}

// judge fails the test unless each workload was created once in the one member and deleted once in
// the other one, after its replacement was available. No write that was done may be repeated.
func (k *evictionKill) judge() {
	k.w.Helper()
	want, got := map[string]int{}, map[string]int{}
	for i := range evictions {
		want[fmt.Sprintf("%s: create app-%d", k.to.Name, i)] = 1
		want[fmt.Sprintf("%s: delete app-%d", k.from.Name, i)] = 1
	}
	for _, m := range spine.Members.List {
		last := map[string]testenv.Write{}
		for _, r := range k.w.WritesSince(m, k.marks[m.Name]) {
			if r.Resource != "deployments" {
				continue
			}
			switch {
			case r.Verb == "delete":
				got[m.Name+": delete "+r.Name]++
			case r.Code == http.StatusCreated:
				got[m.Name+": create "+r.Name]++
			}
			content := fmt.Sprintf("%s %s %v", r.Verb, r.Object(), r.Body)
			before, again := last[content]
			last[content] = r
			if again && k.done(m, before, r) {
				k.w.Errorf("%s: %s: the hub repeats %s", m.Name, r, before)
			}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		k.w.Errorf("creations and deletions (-want +got):\n%s", diff)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, wrong := range k.wrong {
		k.w.Error(wrong)
	}
}

// done reports whether the process of the hub that sent the write next certainly had the result of
// the write before.
func (k *evictionKill) done(m *testenv.Member, before, next testenv.Write) bool {
	if !spine.Heard(before) {
		return false
	}
	sameProcess := before.Order > k.dead[m.Name] || next.Order <= k.dead[m.Name]
	return sameProcess || before.Ended.Before(k.killed.Add(-recorded))
}

// placedOnlyIn returns an error unless all workloads are available in one member and gone from
// another one, and their bindings name the former alone, without an eviction task.
func placedOnlyIn(w *spine.World, in, out *testenv.Member) error {
	there, err := in.ListKind(w.Context(), "apps/v1", "Deployment", w.Namespace)
	if err != nil {
		return err
	}
	left, err := out.ListKind(w.Context(), "apps/v1", "Deployment", w.Namespace)
	if err != nil {
		return err
	}
	bindings, err := w.Hub.ListKind(w.Context(), "work.orrery.dev/v1alpha2", "ResourceBinding", w.Namespace)
	if err != nil {
		return err
	}
	available, placed := 0, 0
	for _, d := range there {
		if spine.AvailableReplicas(&d) == 1 {
			available++
		}
	}
	for _, b := range bindings {
		kind, _, _ := unstructured.NestedString(b.Object, "spec", "resource", "kind")
		clusters, _, _ := unstructured.NestedSlice(b.Object, "spec", "clusters")
		tasks, _, err := unstructured.NestedSlice(b.Object, "spec", "gracefulEvictionTasks")
		if kind != "Deployment" || len(clusters) != 1 || len(tasks) > 0 || err != nil {
			continue
		}
		if c, ok := clusters[0].(map[string]any); ok && c["name"] == in.Name {
			placed++
		}
	}
	if available != evictions || len(left) > 0 || placed != evictions {
		return fmt.Errorf("%d are available in %s, %d are in %s, and %d are placed in %s alone", available, in.Name, len(left), out.Name, placed, in.Name)
	}
	return nil
}

// TestEvictionsSurviveKills kills the hub with SIGKILL at random points while many workloads leave
// a cluster because of a taint. Another process of the hub completes the evictions: it forgets none
// and begins none twice. No copy is deleted before its replacement is available.
func TestEvictionsSurviveKills(t *testing.T) {
	kills := testenv.Count(t, "KILLS", 1, 10)
	random := testenv.Rand(t)
	w := spine.Start(t, "eviction-kills")
	t.Cleanup(func() {
		if w.Hub.Running() {
			taint(w, w.Oak)
			taint(w, w.Pine)
		}
	})
	cfg, err := w.Hub.Config()
	w.Must(err)
	d, err := dynamic.NewForConfig(cfg) // usable across restarts of the hub
	w.Must(err)
	bindings := d.Resource(schema.GroupVersionResource{Group: "work.orrery.dev", Version: "v1alpha2", Resource: "resourcebindings"}).Namespace(w.Namespace)

	// The ConfigMap stays in both clusters, so the namespace does as well.
	w.Hub.Apply(t, spine.Policy(w.Namespace, "apps", "{apiVersion: apps/v1, kind: Deployment}", oakThenPine)+
		spine.Policy(w.Namespace, "settings", configMaps, spine.In("oak", "pine")+", "+spine.Tolerating)+spine.ConfigMap(w.Namespace, "settings", "one"))
	for i := range evictions {
		w.Hub.Apply(t, spine.Deployment(w.Namespace, fmt.Sprintf("app-%d", i), 1))
	}
	w.Applied("ConfigMap", "settings")
	w.Eventually("oak has every workload", func() error { return placedOnlyIn(w, w.Oak, w.Pine) })
	w.CaughtUp(0)
	from, to, byEvent := w.Oak, w.Pine, 0
	for i := range kills {
		k := &evictionKill{w: w, from: from, to: to, marks: map[string]int{}, dead: map[string]int{}, burnt: make(chan struct{})}
		if k.run(random, bindings, fmt.Sprintf("example.org/kill-%d", i)) {
			byEvent++
		}
		k.judge()
		if t.Failed() {
			t.Fatalf("that was kill %d", i)
		}
		taint(w, from)
		from, to = to, from
	}
	t.Logf("%d kills, %d of them during evictions", kills, byEvent)
}
