package placement

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/test/spine"
)

// moves are the tests of this file. Half of them run at each commit.
var moves = []string{
	"TestMoves",
	"TestMoveWhileAnotherIsOnItsWay",
	"TestMoveIntoABrokenCluster",
	"TestEditDuringAMove",
	"TestScaleDownIsNoMove",
	"TestScalingNeverOvershoots",
	"TestWhatWorkloadsNeedLeavesAfterThem",
	"TestMoveOutOfAHungCluster",
}

const web = "{apiVersion: apps/v1, kind: Deployment, name: web}"

// monotonic fails the test unless the steps of a cluster only rise, or only fall, and end with
// end.
func monotonic(t *testing.T, cluster string, steps []string, rises bool, end string) {
	t.Helper()
	number := func(s string) int {
		n, err := strconv.Atoi(s)
		if err != nil {
			return 0
		}
		return n
	}
	for i := 1; i < len(steps); i++ {
		if before, now := number(steps[i-1]), number(steps[i]); rises && now < before || !rises && now > before {
			t.Errorf("%s: replicas go to and fro: %v", cluster, steps)
		}
	}
	if len(steps) == 0 || steps[len(steps)-1] != end {
		t.Errorf("%s: the steps are %v, want %s at the end", cluster, steps, end)
	}
}

// TestMoves changes the clusters of a Deployment. After no write may fewer replicas be
// available than the release rule allows.
func TestMoves(t *testing.T) {
	testenv.Rotate(t, 2, moves...)
	type step struct {
		to       map[string]int // weights
		replicas int
	}
	for name, tc := range map[string]struct {
		from, to step
		want     map[string]int64 // by cluster; 0: no Deployment there
	}{
		"DividedFromOneToAnother": {step{map[string]int{"oak": 1}, 6}, step{map[string]int{"pine": 1}, 6}, map[string]int64{"oak": 0, "pine": 6}},
		"TwoIntoOne":              {step{map[string]int{"oak": 1, "pine": 1}, 10}, step{map[string]int{"pine": 1}, 10}, map[string]int64{"oak": 0, "pine": 10}},
		"WeightsAreFlipped":       {step{map[string]int{"oak": 2, "pine": 8}, 10}, step{map[string]int{"oak": 8, "pine": 2}, 10}, map[string]int64{"oak": 8, "pine": 2}},
		"AThirdJoinsIn":           {step{map[string]int{"oak": 1, "pine": 1}, 6}, step{map[string]int{"oak": 1, "pine": 1, "birch": 1}, 6}, map[string]int64{"oak": 2, "pine": 2, "birch": 2}},
		"OneIntoTwoOthers":        {step{map[string]int{"oak": 1}, 8}, step{map[string]int{"pine": 1, "birch": 1}, 8}, map[string]int64{"oak": 0, "pine": 4, "birch": 4}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := spine.Start(t, "move-"+spine.Lower(name))
			place := func(s step) { w.Hub.Apply(t, spine.Policy(w.Namespace, "web", web, spine.Divided(s.to))) }
			before := map[string]int64{}
			place(tc.from)
			w.Hub.Apply(t, spine.Deployment(w.Namespace, "web", tc.from.replicas))
			sum := 0
			for _, weight := range tc.from.to {
				sum += weight
			}
			for m, weight := range tc.from.to {
				before[m] = int64(tc.from.replicas * weight / sum)
				w.Available(spine.Members.Named(m), "web", before[m])
			}
			w.Applied("Deployment", "web")
			g := w.Guarded("web", int64(tc.to.replicas))
			place(tc.to)
			for m, n := range tc.want {
				if n == 0 {
					w.Gone(spine.Members.Named(m), "apps/v1", "Deployment", "web")
				} else {
					w.Available(spine.Members.Named(m), "web", n)
				}
			}
			w.Applied("Deployment", "web")
			for m, n := range tc.want {
				end := fmt.Sprint(n)
				if n == 0 {
					end = "-"
				}
				monotonic(t, m, g.Sequence(spine.Members.Named(m)), n > before[m], end)
			}
		})
	}
}

// TestMoveWhileAnotherIsOnItsWay: replicas that a pending write takes away are no replacement
// for replicas that move out of another cluster.
func TestMoveWhileAnotherIsOnItsWay(t *testing.T) {
	testenv.Rotate(t, 2, moves...)
	w := spine.Start(t, "move-meanwhile")
	place := func(weights map[string]int) {
		w.Hub.Apply(t, spine.Policy(w.Namespace, "web", web, spine.Divided(weights)))
	}
	place(map[string]int{"birch": 2, "pine": 3})
	w.Hub.Apply(t, spine.Deployment(w.Namespace, "web", 5))
	w.Available(w.Birch, "web", 2)
	w.Available(w.Pine, "web", 3)
	w.Applied("Deployment", "web")
	g := w.Guarded("web", 5)
	letGo := g.Hold("pine:2")
	place(map[string]int{"birch": 2, "oak": 1, "pine": 2})
	w.Available(w.Oak, "web", 1)
	w.Eventually("what pine loses is on its way", func() error {
		if steps := g.Sequence(w.Pine); !slices.Contains(steps, "2") {
			return fmt.Errorf("its writes are %v", steps)
		}
		return nil
	})
	open := w.Closed(w.Oak)
	place(map[string]int{"birch": 1, "oak": 2, "pine": 2})
	w.Eventually("oak asks for two", func() error {
		if steps := g.Sequence(w.Oak); !slices.Contains(steps, "2") {
			return fmt.Errorf("its writes are %v", steps)
		}
		return nil
	})
	// Pine is left out: it does nothing else while the write is held, and after 15 seconds the hub
	// reads what the write has done.
	w.Never("birch keeps what it has", 3*time.Second, func() error {
		if steps := g.Sequence(w.Birch); slices.Contains(steps, "1") {
			return fmt.Errorf("its writes are %v", steps)
		}
		return nil
	}, w.Oak, w.Birch)
	letGo()
	open()
	w.Available(w.Birch, "web", 1)
	w.Available(w.Oak, "web", 2)
	w.Available(w.Pine, "web", 2)
	w.Applied("Deployment", "web")
}

// TestMoveIntoABrokenCluster moves a Deployment into a cluster where no pod becomes ready: the
// available replicas elsewhere stay until the cluster is repaired.
func TestMoveIntoABrokenCluster(t *testing.T) {
	testenv.Rotate(t, 2, moves...)
	for name, tc := range map[string]struct {
		from, to string
		replicas int
		kept     int64
	}{
		"Duplicated": {spine.In("oak", "pine"), spine.In("oak"), 2, 2},
		"Divided":    {spine.Divided(map[string]int{"oak": 1, "pine": 1}), spine.Divided(map[string]int{"oak": 1}), 6, 3},
	} {
		t.Run(name, func(t *testing.T) {
			w := spine.Start(t, "broken-"+spine.Lower(name))
			w.Hub.Apply(t, spine.Policy(w.Namespace, "web", web, tc.from)+spine.Deployment(w.Namespace, "web", tc.replicas))
			w.Available(w.Pine, "web", tc.kept)
			w.Available(w.Oak, "web", tc.kept)
			repair := w.Broken(w.Oak, "web")
			w.Guarded("web", int64(tc.replicas))
			w.Hub.Apply(t, spine.Policy(w.Namespace, "web", web, tc.to))
			w.Moved("ResourceBinding", "web-deployment", "oak")
			w.Never("what serves stays", 5*time.Second, func() error {
				d, err := w.Pine.Find(t.Context(), "apps/v1", "Deployment", w.Namespace, "web")
				if err != nil {
					return err
				}
				if n := spine.Replicas(d); n != tc.kept {
					return fmt.Errorf("pine has %d replicas", n)
				}
				return nil
			})
			repair()
			w.Gone(w.Pine, "apps/v1", "Deployment", "web")
			w.Available(w.Oak, "web", int64(tc.replicas))
		})
	}
}

// TestEditDuringAMove edits the template while its replicas move: a copy of the old template is
// no replacement.
func TestEditDuringAMove(t *testing.T) {
	testenv.Rotate(t, 2, moves...)
	t.Parallel()
	w := spine.Start(t, "edit-move")
	w.Hub.Apply(t, spine.Policy(w.Namespace, "web", web, spine.Divided(map[string]int{"oak": 1, "pine": 1}))+spine.Deployment(w.Namespace, "web", 6))
	w.Available(w.Oak, "web", 3)
	w.Available(w.Pine, "web", 3)
	w.Guarded("web", 6)
	w.Hub.Apply(t, spine.Policy(w.Namespace, "web", web, spine.Divided(map[string]int{"pine": 1})))
	w.Hub.MergePatch(t, "apps/v1", "Deployment", w.Namespace, "web", `{"spec":{"template":{"metadata":{"annotations":{"edited":"yes"}}}}}`)
	w.Gone(w.Oak, "apps/v1", "Deployment", "web")
	w.Available(w.Pine, "web", 6)
}

// TestScaleDownIsNoMove scales a divided Deployment down while one cluster does not answer the
// write: the other cluster is scaled down at once.
func TestScaleDownIsNoMove(t *testing.T) {
	testenv.Rotate(t, 2, moves...)
	t.Parallel()
	w := spine.Start(t, "scale-down")
	w.Hub.Apply(t, spine.Policy(w.Namespace, "web", web, spine.Divided(map[string]int{"oak": 1, "pine": 1}))+spine.Deployment(w.Namespace, "web", 10))
	w.Available(w.Oak, "web", 5)
	w.Available(w.Pine, "web", 5)
	w.Applied("Deployment", "web")
	g := w.Guarded("web", -1)
	letGo := g.Hold("pine:2")
	w.Hub.MergePatch(t, "apps/v1", "Deployment", w.Namespace, "web", `{"spec":{"replicas":4}}`)
	w.Eventually("oak is scaled down", func() error {
		d, err := w.Oak.Find(t.Context(), "apps/v1", "Deployment", w.Namespace, "web")
		if err != nil {
			return err
		}
		if n := spine.Replicas(d); n != 2 {
			return fmt.Errorf("%d replicas", n)
		}
		return nil
	})
	if n := spine.Replicas(w.Object(w.Pine.API, "apps/v1", "Deployment", "web")); n != 5 {
		t.Errorf("pine was to answer after oak, and has %d replicas already", n)
	}
	letGo()
	w.Available(w.Pine, "web", 2)
	w.Applied("Deployment", "web")
}

// TestScalingNeverOvershoots scales up a divided Deployment whose replicas are in one cluster.
// No cluster may ever get more replicas than its final share.
func TestScalingNeverOvershoots(t *testing.T) {
	testenv.Rotate(t, 2, moves...)
	t.Parallel()
	w := spine.Start(t, "overshoot")
	w.Hub.Apply(t, spine.Policy(w.Namespace, "web", web, spine.Divided(map[string]int{"oak": 1, "pine": 1}))+spine.Deployment(w.Namespace, "web", 1))
	w.Applied("Deployment", "web")
	// Scale up and down five times, because this is a race.
	for range 5 {
		g := w.Guarded("web", -1)
		w.Hub.MergePatch(t, "apps/v1", "Deployment", w.Namespace, "web", `{"spec":{"replicas":10}}`)
		w.Available(w.Oak, "web", 5)
		w.Available(w.Pine, "web", 5)
		w.Applied("Deployment", "web")
		for _, m := range []*testenv.Member{w.Oak, w.Pine} {
			steps := g.Sequence(m)
			if slices.ContainsFunc(steps, func(s string) bool { return s != "5" && s != "0" && s != "1" }) {
				t.Errorf("%s: on the way from 1 to 10 replicas: %v", m.Name, steps)
			}
		}
		w.Hub.MergePatch(t, "apps/v1", "Deployment", w.Namespace, "web", `{"spec":{"replicas":1}}`)
		w.Eventually("one replica is left", func() error {
			var sum int64
			for _, m := range []*testenv.Member{w.Oak, w.Pine} {
				if d, err := m.Find(t.Context(), "apps/v1", "Deployment", w.Namespace, "web"); err == nil {
					sum += spine.Replicas(d)
				}
			}
			if sum != 1 {
				return fmt.Errorf("%d", sum)
			}
			return nil
		})
		w.Applied("Deployment", "web")
	}
}

// TestWhatWorkloadsNeedLeavesAfterThem moves a whole namespace. Dependencies leave after the
// workloads.
func TestWhatWorkloadsNeedLeavesAfterThem(t *testing.T) {
	testenv.Rotate(t, 2, moves...)
	w := spine.Start(t, "needs")
	w.Hub.Apply(t, spine.Policy(w.Namespace, "all", spine.Everything, spine.In("oak"))+spine.Deployment(w.Namespace, "web", 2)+spine.Deployment(w.Namespace, "worker", 2)+
		spine.ConfigMap(w.Namespace, "settings", "one")+spine.ConfigMap(w.Namespace, "unused", "one")+spine.Secret(w.Namespace, "password", "one")+spine.ServiceAccount(w.Namespace, "robot")+spine.Service(w.Namespace, "web")+spine.Claim(w.Namespace, "disk"))
	w.Available(w.Oak, "web", 2)
	w.Available(w.Oak, "worker", 2)
	for _, o := range [][3]string{{"v1", "Secret", "password"}, {"v1", "ServiceAccount", "robot"}, {"v1", "Service", "web"}, {"v1", "PersistentVolumeClaim", "disk"}, {"v1", "ConfigMap", "settings"}} {
		w.Placed(w.Oak, o[0], o[1], o[2])
		w.Applied(o[1], o[2])
	}
	before := w.Content(w.Oak)
	open := w.Closed(w.Pine)
	mark := w.Oak.Mark()
	w.Guarded("web", 2)
	w.Hub.Apply(t, spine.Policy(w.Namespace, "all", spine.Everything, spine.In("pine")))
	for _, o := range [][3]string{{"apps/v1", "Deployment", "web"}, {"v1", "Secret", "password"}, {"v1", "ConfigMap", "settings"}, {"v1", "ServiceAccount", "robot"}} {
		w.Placed(w.Pine, o[0], o[1], o[2])
	}
	w.CaughtUp(3 * time.Second)
	w.Stays(w.Oak, before) // no pod is ready in pine

	// An object that a user deletes goes at once, also during a move.
	w.Hub.Remove(t, "v1", "ConfigMap", w.Namespace, "unused")
	w.Gone(w.Oak, "v1", "ConfigMap", "unused")
	delete(before, "ConfigMap/unused")
	w.Stays(w.Oak, before)

	open()
	for _, o := range [][3]string{{"v1", "Secret", "password"}, {"v1", "ConfigMap", "settings"}, {"v1", "ServiceAccount", "robot"}, {"v1", "Service", "web"}, {"v1", "PersistentVolumeClaim", "disk"}} {
		w.Gone(w.Oak, o[0], o[1], o[2])
	}
	var last, first int
	for _, r := range w.WritesSince(w.Oak, mark) {
		if r.Verb != "delete" || r.Name == "unused" {
			continue
		}
		if r.Resource == "deployments" {
			last = r.Order
		} else if first == 0 {
			first = r.Order
		}
	}
	if last == 0 || first < last {
		var order []string
		for _, r := range w.WritesSince(w.Oak, mark) {
			order = append(order, r.String())
		}
		t.Errorf("what the Deployments need was deleted before the last of them:\n%s", cmp.Diff([]string(nil), order))
	}
}

// TestMoveOutOfAHungCluster moves a Deployment out of oak while pine, which stays in the
// placement, hangs. Replicas that are known to be available are not counted twice, and those of
// pine do not count.
func TestMoveOutOfAHungCluster(t *testing.T) {
	testenv.Rotate(t, 2, moves...)
	w := spine.Start(t, "hung-move")
	w.Hub.Apply(t, spine.Policy(w.Namespace, "web", web, spine.Divided(map[string]int{"oak": 1, "pine": 1}))+spine.Deployment(w.Namespace, "web", 6))
	w.Available(w.Oak, "web", 3)
	w.Available(w.Pine, "web", 3)
	w.Pine.Fail(testenv.Hang)
	w.Lost(w.Pine)
	w.Guarded("web", 6)
	// From oak and pine to pine and birch: oak's replicas may go only when the replicas in
	// birch are available and those in pine are seen again.
	w.Hub.Apply(t, spine.Policy(w.Namespace, "web", web, spine.Divided(map[string]int{"pine": 1, "birch": 1})))
	w.Available(w.Birch, "web", 3)
	w.Never("oak's stay while nobody knows about pine", 3*time.Second, func() error {
		_, err := w.Oak.Find(t.Context(), "apps/v1", "Deployment", w.Namespace, "web")
		return err
	}, w.Oak, w.Birch)
	w.Pine.Heal()
	w.Gone(w.Oak, "apps/v1", "Deployment", "web")
	w.Available(w.Pine, "web", 3)
}
