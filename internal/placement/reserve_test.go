package placement

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/fleet"
	"orrery.dev/orrery/internal/scheduler"
)

const insufficient = workv1alpha2.ReasonInsufficient

// byCapacity returns a policy that divides Deployments by free capacity.
func (w *world) byCapacity() *policyv1alpha1.PropagationPolicy {
	p := w.policy("p", deployments())
	p.Spec.Placement.ReplicaScheduling = divided(&policyv1alpha1.ClusterPreferences{DynamicWeight: policyv1alpha1.DynamicWeightByAvailableReplicas})
	return p
}

// burst creates Deployments, all at once.
func (w *world) burst(prefix string, n int, replicas int32) {
	w.t.Helper()
	var creating sync.WaitGroup
	for i := range n {
		d := deployment(fmt.Sprint(prefix, "-", i), replicas, nil)
		d.Namespace = w.namespace
		creating.Go(func() {
			if err := w.client.Create(w.ctx, d); err != nil {
				w.t.Error(err)
			}
		})
	}
	creating.Wait()
	w.t.Cleanup(func() { // a policy of the whole hub, in another test, would claim them
		if err := w.client.DeleteAllOf(context.WithoutCancel(w.ctx), &appsv1.Deployment{}, client.InNamespace(w.namespace)); err != nil {
			w.t.Error(err)
		}
	})
}

// decided waits until every Deployment of a burst is decided. It returns the replicas of all
// bindings by the cluster's letter, and how many Deployments of the burst have no cluster.
func (w *world) decided(prefix string, n int) (placed map[string]int, nowhere int) {
	w.t.Helper()
	for i := range n {
		name := fmt.Sprintf("%s-%d-deployment", prefix, i)
		w.eventually("decision on "+name, func() error {
			b := w.binding(name)
			if b == nil {
				return fmt.Errorf("no binding")
			}
			o, ok := w.controller.Outcome(b.UID)
			if !ok || o.Reason != scheduled && o.Reason != insufficient {
				return fmt.Errorf("outcome %+v", o)
			}
			return nil
		})
		if len(w.binding(name).Spec.Clusters) == 0 {
			nowhere++
		}
	}
	placed = map[string]int{}
	for _, b := range w.all() {
		for _, t := range b.Spec.Clusters {
			placed[t.Name[len(w.namespace)+1:]] += int(*t.Replicas)
		}
	}
	return placed, nowhere
}

func (w *world) setCapacity(n int64) {
	w.change(func(f *fakeFleet) {
		for _, c := range w.clusters {
			f.capacity[c] = n
		}
	})
	for _, c := range w.clusters {
		w.seen("its capacity", func(c *fleet.Cluster) bool { return c != nil && c.FreeCapacity != nil }, c)
	}
}

// appear makes the pods of every binding appear. They take n of the capacity of each cluster.
func (w *world) appear(n int64) {
	w.t.Helper()
	bindings := w.all()
	w.change(func(f *fakeFleet) {
		for _, b := range bindings {
			for _, t := range b.Spec.Clusters {
				f.pods[copyOf{b.UID, t.Name}] = int64(*t.Replicas)
			}
		}
		for _, c := range w.clusters {
			f.capacity[c] -= n
		}
	})
	w.fleet.mu.Lock()
	observers := w.fleet.observers
	w.fleet.mu.Unlock()
	for _, b := range bindings {
		for _, t := range b.Spec.Clusters {
			for _, f := range observers {
				f(t.Name, b.UID)
			}
		}
	}
}

// TestBurstKeepsWithinTheCapacity: many Deployments at once do not get the same capacity twice. No
// cluster gets more than fits, although no pods exist yet.
func TestBurstKeepsWithinTheCapacity(t *testing.T) {
	w := newWorld(t, 3)
	w.setCapacity(10)
	w.create(w.byCapacity())
	w.burst("web", 40, 1)
	placed, nowhere := w.decided("web", 40)
	if diff := cmp.Diff(map[string]int{"a": 10, "b": 10, "c": 10}, placed); diff != "" || nowhere != 10 {
		t.Errorf("%d are placed nowhere, want 10; the clusters have (-want +got):\n%s", nowhere, diff)
	}

	// The pods appear, and count once: capacity that becomes free is free.
	w.appear(10)
	w.change(func(f *fakeFleet) { f.capacity[w.clusters[1]] = 20 })
	w.burst("api", 12, 1)
	if placed, _ = w.decided("api", 12); placed["b"] < 22 || placed["a"] != 10 || placed["c"] != 10 {
		t.Errorf("the clusters have %v, want all that were created last in b", placed)
	}
}

// TestReservationsAreWhatIsMissing: a scaled-up Deployment reserves only its new replicas. Objects
// that are placed without regard to capacity reserve capacity, too.
func TestReservationsAreWhatIsMissing(t *testing.T) {
	w := newWorld(t, 1)
	w.setCapacity(10)
	w.create(w.byCapacity())
	web := deployment("web", 4, nil)
	w.create(web)
	w.waitPlaced("web-deployment", "a=4", scheduled)
	w.appear(4)
	update(w, web, func(d *appsv1.Deployment) { d.Spec.Replicas = new(int32(6)) })
	w.waitPlaced("web-deployment", "a=6", scheduled)
	whole := w.policy("whole", policyv1alpha1.ResourceSelector{APIVersion: "apps/v1", Kind: "Deployment", Name: "whole"})
	w.create(whole)
	w.create(deployment("whole", 1, nil))
	w.waitPlaced("whole-deployment", "a=1", scheduled)
	w.create(deployment("large", 4, nil)) // 3 are left
	w.waitPlaced("large-deployment", "a=3", insufficient)
	w.create(deployment("late", 1, nil))
	w.waitPlaced("late-deployment", "", insufficient)
}

// TestDeletedFreesItsCapacity: the capacity of a deleted Deployment is free at once, while its
// copies still exist.
func TestDeletedFreesItsCapacity(t *testing.T) {
	w := newWorld(t, 1)
	w.setCapacity(3)
	w.create(w.byCapacity())
	first := deployment("first", 3, nil)
	first.Namespace = w.namespace
	if err := w.client.Create(w.ctx, first); err != nil {
		t.Fatal(err)
	}
	b := w.waitPlaced("first-deployment", "a=3", scheduled)
	w.delete(first)
	w.eventually("deletion of its binding", func() error {
		if b := w.binding("first-deployment"); b != nil && b.DeletionTimestamp.IsZero() {
			return fmt.Errorf("it is not deleted")
		}
		return nil
	})
	w.create(deployment("second", 3, nil))
	w.waitPlaced("second-deployment", "a=3", scheduled)
	w.release(b)
}

// TestReservationsAfterARestart: reservations are not stored. After a restart they follow from the
// bindings and the copies.
func TestReservationsAfterARestart(t *testing.T) {
	w := newWorld(t, 2)
	w.setCapacity(5)
	w.create(w.byCapacity())
	w.burst("web", 8, 1)
	if placed, _ := w.decided("web", 8); placed["a"]+placed["b"] != 8 {
		t.Fatalf("the clusters have %v, want 8", placed)
	}
	w.stop()
	w.change(func(f *fakeFleet) { f.listed = true })
	w.start()
	w.setCapacity(5)
	w.create(deployment("large", 3, nil))
	w.waitPlaced("large-deployment", "a=1 b=1", insufficient)
	w.create(deployment("late", 1, nil))
	w.waitPlaced("late-deployment", "", insufficient)
	// A refused write counts at first.
	w.eventually("two writes to bindings after the restart", func() error {
		if got := w.recorder.of("/resourcebindings"); len(got) != 2 {
			return fmt.Errorf("writes: %v", got)
		}
		return nil
	})
}

// ledger records the calls of reservations.
type ledger struct {
	reserved, objects map[string]int64
	doubts            map[string]int
	snapshot          *fleet.Snapshot
}

func (l *ledger) Reserve(cluster string, _ *scheduler.Claim, replicas, objects int64) {
	l.reserved[cluster] += replicas
	l.objects[cluster] += objects
}
func (l *ledger) Doubt(cluster string, n int) { l.doubts[cluster] += n }
func (l *ledger) Snapshot() *fleet.Snapshot   { return l.snapshot }

// says returns the reservations: "a=2* b?" for two replicas in a of one object that is not in a
// yet, and doubt about b.
func (l *ledger) says() string {
	s := ""
	for _, c := range []string{"a", "b"} {
		if n := l.reserved[c]; n != 0 {
			s += fmt.Sprintf(" %s=%d%s", c, n, strings.Repeat("*", int(l.objects[c])))
		} else if l.objects[c] != 0 {
			s += fmt.Sprintf(" %s has %d objects", c, l.objects[c])
		}
		if l.doubts[c] != 0 {
			s += fmt.Sprintf(" %s?", c)
		}
	}
	return s
}

func TestReservations(t *testing.T) {
	type state struct {
		*reservations
		pods    *fakeFleet
		refuses int64
		b       *workv1alpha2.ResourceBinding
		undo    func()
	}
	k := binding.Template{GroupKind: schema.GroupKind{Group: "apps", Kind: "Deployment"}, Namespace: "shop", Name: "web"}
	decide := func(s *state, where string) {
		want := placedBinding(policyv1alpha1.Divided, 0, in(), where)
		s.undo = s.take(k, s.b, demand{}, &want.Spec)
		want.UID, want.Generation, want.Spec.Resource = "binding", 1, workv1alpha2.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}
		if s.b != nil {
			want.Generation = s.b.Generation + 1
		}
		s.b = want
	}
	write := func(where string) func(*state) {
		return func(s *state) { decide(s, where); s.written(k, s.b) }
	}
	pods := func(cluster string, n int64) func(*state) {
		return func(s *state) {
			s.pods.pods[copyOf{"binding", cluster}] = n
			s.observed(cluster, "binding")
		}
	}
	later := func(d time.Duration) func(*state) { return func(s *state) { s.refresh(time.Now().Add(d)) } }
	cases := map[string]struct {
		off  bool // nothing is active
		do   []func(*state)
		want []string // after each
	}{
		"New":            {do: []func(*state){write("a=2 b=1"), pods("a", 1), pods("a", 2), pods("b", 1)}, want: []string{" a=2* b=1*", " a=1 b=1*", " b=1*", ""}},
		"NobodyAsks":     {off: true, do: []func(*state){write("a=2")}, want: []string{""}},
		"Grows":          {do: []func(*state){write("a=2"), pods("a", 2), write("a=5"), pods("a", 4)}, want: []string{" a=2*", "", " a=3", " a=1"}},
		"Wakes":          {do: []func(*state){write("a=0"), write("a=2"), pods("a", 1)}, want: []string{"", " a=2", " a=1"}},
		"GrowsUnseen":    {do: []func(*state){write("a=2"), write("a=5"), pods("a", 5)}, want: []string{" a=2*", " a=5*", ""}},
		"Shrinks":        {do: []func(*state){write("a=5"), pods("a", 1), write("a=2"), write("a=1")}, want: []string{" a=5*", " a=4", " a=1", ""}},
		"Moves":          {do: []func(*state){write("a=5"), write("b=5")}, want: []string{" a=5*", " b=5*"}},
		"PodsGo":         {do: []func(*state){write("a=5"), pods("a", 3), pods("a", 2), pods("a", 5), pods("a", 0)}, want: []string{" a=5*", " a=2", " a=3", "", ""}},
		"Forgotten":      {do: []func(*state){write("a=5"), func(s *state) { s.forget("binding") }, pods("a", 0)}, want: []string{" a=5*", "", ""}},
		"OthersGo":       {do: []func(*state){write("a=5"), func(s *state) { s.forget("another") }}, want: []string{" a=5*", " a=5*"}},
		"NotWritten":     {do: []func(*state){write("a=2"), func(s *state) { decide(s, "a=5 b=1") }, func(s *state) { s.undo() }}, want: []string{" a=2*", " a=5* b=1*", " a=2*"}},
		"FirstUnwritten": {do: []func(*state){func(s *state) { decide(s, "a=5") }, func(s *state) { s.undo() }}, want: []string{" a=5*", ""}},
		"MadeAnew": {
			do:   []func(*state){write("a=5"), func(s *state) { s.b = nil; decide(s, "a=2"); s.b.UID = "second"; s.written(k, s.b) }, func(s *state) { s.forget("binding") }},
			want: []string{" a=5*", " a=2*", " a=2*"},
		},
		"NeverComes": {do: []func(*state){write("a=5"), later(reservationLimit - time.Minute), later(reservationLimit + time.Minute)}, want: []string{" a=5*", " a=5*", ""}},
		"Refused": {
			do: []func(*state){
				write("a=5 b=1"), func(s *state) { s.refuses = 1; s.answered("another") }, func(s *state) { s.answered("binding") }, write("a=6 b=2"),
			},
			want: []string{" a=5* b=1*", " a=5* b=1*", " b=1*", " a=1 b=2*"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			l := &ledger{reserved: map[string]int64{}, objects: map[string]int64{}, doubts: map[string]int{}, snapshot: fleet.NewSnapshot(1, fine("a"), fine("b"))}
			s := &state{pods: &fakeFleet{pods: map[copyOf]int64{}}}
			s.reservations = newReservations(l, s.pods, func(_ types.UID, cluster string) int64 {
				if cluster == "a" {
					return s.refuses
				}
				return 0
			})
			s.active = !tc.off
			for i, do := range tc.do {
				do(s)
				if got := l.says(); got != tc.want[i] {
					t.Errorf("reserved after step %d:%s, want%s", i, got, tc.want[i])
				}
			}
			s.forget("binding")
			s.forget("second")
			if got := l.says(); got != "" || len(s.held)+len(s.owners)+len(s.in) > 0 {
				t.Errorf("in the end%s is reserved, and %d are held", got, len(s.held))
			}
		})
	}
}

// TestReservationsInDoubt: copies of an earlier process are in doubt until they are known. Then
// their missing pods are reserved. After a while, unknown copies no longer delay decisions.
func TestReservationsInDoubt(t *testing.T) {
	b := placedBinding(policyv1alpha1.Divided, 5, in(), "a=3 b=2")
	going := placedBinding(policyv1alpha1.Divided, 5, in(), "a=3")
	now := metav1.Now()
	going.UID, going.Name, going.DeletionTimestamp = "going", "going", &now
	whole := placedBinding("", 0, in(), "a b")
	whole.UID, whole.Name = "whole", "whole"
	begin := func(doubt time.Time, pods map[copyOf]int64) (*reservations, *ledger, *fakeFleet) {
		silent := but("b", func(c *fleet.Cluster) { c.Reachable = false })
		l := &ledger{reserved: map[string]int64{}, objects: map[string]int64{}, doubts: map[string]int{}, snapshot: fleet.NewSnapshot(1, fine("a"), silent)}
		f := &fakeFleet{pods: pods}
		r := newReservations(l, f, nil)
		r.activate(func() []*workv1alpha2.ResourceBinding { return []*workv1alpha2.ResourceBinding{b, going, whole} },
			func(*workv1alpha2.ResourceBinding) demand { return demand{} }, doubt)
		return r, l, f
	}
	step := func(what string, l *ledger, want string) {
		t.Helper()
		if got := l.says(); got != want {
			t.Errorf("%s: reserved%s, want%s", what, got, want)
		}
	}
	soon := time.Now().Add(time.Minute)

	r, l, f := begin(soon, map[copyOf]int64{})
	step("at first", l, " a? b?")
	r.refresh(time.Now())
	step("still not known", l, " a? b?")
	f.pods[copyOf{"binding", "a"}] = 1
	r.observed("a", "")
	r.refresh(time.Now().Add(doubtLook))
	step("a is known", l, " a=2 b?")
	r.refresh(soon)
	step("b stays silent", l, " a=2")
	r.refresh(soon.Add(reservationLimit))
	step("much later", l, "")

	_, l, _ = begin(time.Now(), map[copyOf]int64{{"binding", "a"}: 3, {"binding", "b"}: 0})
	step("known from the start", l, " b=2*")
	_, l, _ = begin(time.Now(), map[copyOf]int64{{"binding", "a"}: 3})
	step("long after the start", l, "")
}
