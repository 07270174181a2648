package spine

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"orrery.dev/orrery/internal/testenv"
)

const web = "{apiVersion: apps/v1, kind: Deployment, name: web}"

// monotonic fails the test unless the steps of a cluster only rise (or only fall), and end as wanted.
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

// TestMoves changes where a Deployment is. At no write may fewer replicas be left available than
// the release rule allows.
func TestMoves(t *testing.T) {
	type step struct {
		to       map[string]int // weights
		replicas int
	}
	for name, tc := range map[string]struct {
		from, to step
		want     map[string]int64 // 0: none there
	}{
		"DividedFromOneToAnother": {step{map[string]int{"oak": 1}, 6}, step{map[string]int{"pine": 1}, 6}, map[string]int64{"oak": 0, "pine": 6}},
		"TwoIntoOne":              {step{map[string]int{"oak": 1, "pine": 1}, 10}, step{map[string]int{"pine": 1}, 10}, map[string]int64{"oak": 0, "pine": 10}},
		"WeightsAreFlipped":       {step{map[string]int{"oak": 2, "pine": 8}, 10}, step{map[string]int{"oak": 8, "pine": 2}, 10}, map[string]int64{"oak": 8, "pine": 2}},
		"AThirdJoinsIn":           {step{map[string]int{"oak": 1, "pine": 1}, 6}, step{map[string]int{"oak": 1, "pine": 1, "birch": 1}, 6}, map[string]int64{"oak": 2, "pine": 2, "birch": 2}},
		"OneIntoTwoOthers":        {step{map[string]int{"oak": 1}, 8}, step{map[string]int{"pine": 1, "birch": 1}, 8}, map[string]int64{"oak": 0, "pine": 4, "birch": 4}},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t, "move-"+lower(name))
			place := func(s step) { w.hub.Apply(t, policy(w.ns, "web", web, divided(s.to))) }
			before := map[string]int64{}
			place(tc.from)
			w.hub.Apply(t, deployment(w.ns, "web", tc.from.replicas))
			sum := 0
			for _, weight := range tc.from.to {
				sum += weight
			}
			for m, weight := range tc.from.to {
				before[m] = int64(tc.from.replicas * weight / sum)
				w.available(members.Named(m), "web", before[m])
			}
			w.applied("Deployment", "web")
			g := w.guarded("web", int64(tc.to.replicas))
			place(tc.to)
			for m, n := range tc.want {
				if n == 0 {
					w.gone(members.Named(m), "apps/v1", "Deployment", "web")
				} else {
					w.available(members.Named(m), "web", n)
				}
			}
			w.applied("Deployment", "web")
			for m, n := range tc.want {
				end := fmt.Sprint(n)
				if n == 0 {
					end = "-"
				}
				monotonic(t, m, g.sequence(members.Named(m)), n > before[m], end)
			}
		})
	}
}

// TestMoveWhileAnotherIsOnItsWay: what a write takes away that is on its way is no replacement for what moves out of another cluster.
func TestMoveWhileAnotherIsOnItsWay(t *testing.T) {
	w := start(t, "move-meanwhile")
	place := func(weights map[string]int) { w.hub.Apply(t, policy(w.ns, "web", web, divided(weights))) }
	place(map[string]int{"birch": 2, "pine": 3})
	w.hub.Apply(t, deployment(w.ns, "web", 5))
	w.available(w.birch, "web", 2)
	w.available(w.pine, "web", 3)
	w.applied("Deployment", "web")
	g := w.guarded("web", 5)
	letGo := g.hold("pine:2")
	place(map[string]int{"birch": 2, "oak": 1, "pine": 2})
	w.available(w.oak, "web", 1)
	w.eventually("what pine loses is on its way", func() error {
		if steps := g.sequence(w.pine); !slices.Contains(steps, "2") {
			return fmt.Errorf("its writes are %v", steps)
		}
		return nil
	})
	open := w.closed(w.oak)
	place(map[string]int{"birch": 1, "oak": 2, "pine": 2})
	w.eventually("oak asks for two", func() error {
		if steps := g.sequence(w.oak); !slices.Contains(steps, "2") {
			return fmt.Errorf("its writes are %v", steps)
		}
		return nil
	})
	testenv.Never(t, "birch keeps what it has", 3*time.Second, func() error {
		if steps := g.sequence(w.birch); slices.Contains(steps, "1") {
			return fmt.Errorf("its writes are %v", steps)
		}
		return nil
	})
	letGo()
	open()
	w.available(w.birch, "web", 1)
	w.available(w.oak, "web", 2)
	w.available(w.pine, "web", 2)
	w.applied("Deployment", "web")
}

// TestMoveIntoABrokenCluster moves a Deployment into a cluster where no pod becomes ready: what
// serves elsewhere stays until it is mended.
func TestMoveIntoABrokenCluster(t *testing.T) {
	for name, tc := range map[string]struct {
		from, to string
		replicas int
		kept     int64
	}{
		"Duplicated": {in("oak", "pine"), in("oak"), 2, 2},
		"Divided":    {divided(map[string]int{"oak": 1, "pine": 1}), divided(map[string]int{"oak": 1}), 6, 3},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t, "broken-"+lower(name))
			w.hub.Apply(t, policy(w.ns, "web", web, tc.from)+deployment(w.ns, "web", tc.replicas))
			w.available(w.pine, "web", tc.kept)
			w.available(w.oak, "web", tc.kept)
			mend := w.broken(w.oak, "web")
			w.guarded("web", int64(tc.replicas))
			w.hub.Apply(t, policy(w.ns, "web", web, tc.to))
			w.moved("ResourceBinding", "web-deployment", "oak")
			testenv.Never(t, "what serves stays", 5*time.Second, func() error {
				d, err := w.pine.Find(t.Context(), "apps/v1", "Deployment", w.ns, "web")
				if err != nil {
					return err
				}
				if n := replicas(d); n != tc.kept {
					return fmt.Errorf("pine has %d replicas", n)
				}
				return nil
			})
			mend()
			w.gone(w.pine, "apps/v1", "Deployment", "web")
			w.available(w.oak, "web", int64(tc.replicas))
		})
	}
}

// TestEditDuringAMove edits the template while its replicas move: a copy of the old manifest is
// no replacement.
func TestEditDuringAMove(t *testing.T) {
	w := start(t, "edit-move")
	w.hub.Apply(t, policy(w.ns, "web", web, divided(map[string]int{"oak": 1, "pine": 1}))+deployment(w.ns, "web", 6))
	w.available(w.oak, "web", 3)
	w.available(w.pine, "web", 3)
	w.guarded("web", 6)
	w.hub.Apply(t, policy(w.ns, "web", web, divided(map[string]int{"pine": 1})))
	w.hub.MergePatch(t, "apps/v1", "Deployment", w.ns, "web", `{"spec":{"template":{"metadata":{"annotations":{"edited":"yes"}}}}}`)
	w.gone(w.oak, "apps/v1", "Deployment", "web")
	w.available(w.pine, "web", 6)
}

// TestScaleDownIsNoMove scales a divided Deployment down while one cluster hangs: what is to go
// in the other goes at once.
func TestScaleDownIsNoMove(t *testing.T) {
	w := start(t, "scale-down")
	w.hub.Apply(t, policy(w.ns, "web", web, divided(map[string]int{"oak": 1, "pine": 1}))+deployment(w.ns, "web", 10))
	w.available(w.oak, "web", 5)
	w.available(w.pine, "web", 5)
	w.pine.Fail(testenv.Hang)
	w.hub.MergePatch(t, "apps/v1", "Deployment", w.ns, "web", `{"spec":{"replicas":4}}`)
	testenv.Eventually(t, "oak is scaled down", 10*time.Second, func() error {
		d, err := w.oak.Find(t.Context(), "apps/v1", "Deployment", w.ns, "web")
		if err != nil {
			return err
		}
		if n := replicas(d); n != 2 {
			return fmt.Errorf("%d replicas", n)
		}
		return nil
	})
	w.pine.Heal()
	w.available(w.pine, "web", 2)
	w.applied("Deployment", "web")
}

// TestScalingNeverOvershoots scales a divided Deployment that sits in one cluster up.
func TestScalingNeverOvershoots(t *testing.T) {
	w := start(t, "overshoot")
	w.hub.Apply(t, policy(w.ns, "web", web, divided(map[string]int{"oak": 1, "pine": 1}))+deployment(w.ns, "web", 1))
	w.applied("Deployment", "web")
	// In one cluster and then back, five times, for it is a race.
	for range 5 {
		g := w.guarded("web", -1)
		w.hub.MergePatch(t, "apps/v1", "Deployment", w.ns, "web", `{"spec":{"replicas":10}}`)
		w.available(w.oak, "web", 5)
		w.available(w.pine, "web", 5)
		w.applied("Deployment", "web")
		for _, m := range []*testenv.Member{w.oak, w.pine} {
			steps := g.sequence(m)
			if slices.ContainsFunc(steps, func(s string) bool { return s != "5" && s != "0" && s != "1" }) {
				t.Errorf("%s: on the way from 1 to 10 replicas: %v", m.Name, steps)
			}
		}
		w.hub.MergePatch(t, "apps/v1", "Deployment", w.ns, "web", `{"spec":{"replicas":1}}`)
		w.eventually("one replica is left", func() error {
			var sum int64
			for _, m := range []*testenv.Member{w.oak, w.pine} {
				if d, err := m.Find(t.Context(), "apps/v1", "Deployment", w.ns, "web"); err == nil {
					sum += replicas(d)
				}
			}
			if sum != 1 {
				return errorf("%d", sum)
			}
			return nil
		})
		w.applied("Deployment", "web")
	}
}

// TestWhatWorkloadsNeedLeavesAfterThem moves a whole namespace.
func TestWhatWorkloadsNeedLeavesAfterThem(t *testing.T) {
	w := start(t, "needs")
	w.hub.Apply(t, policy(w.ns, "all", everything, in("oak"))+deployment(w.ns, "web", 2)+deployment(w.ns, "worker", 2)+
		configMap(w.ns, "settings", "one")+configMap(w.ns, "unused", "one")+secret(w.ns, "password", "one")+serviceAccount(w.ns, "robot")+service(w.ns, "web")+claim(w.ns, "disk"))
	w.available(w.oak, "web", 2)
	w.available(w.oak, "worker", 2)
	for _, o := range [][3]string{{"v1", "Secret", "password"}, {"v1", "ServiceAccount", "robot"}, {"v1", "Service", "web"}, {"v1", "PersistentVolumeClaim", "disk"}, {"v1", "ConfigMap", "settings"}} {
		w.placed(w.oak, o[0], o[1], o[2])
		w.applied(o[1], o[2])
	}
	before := w.content(w.oak)
	open := w.closed(w.pine)
	mark := w.oak.Mark()
	w.guarded("web", 2)
	w.hub.Apply(t, policy(w.ns, "all", everything, in("pine")))
	for _, o := range [][3]string{{"apps/v1", "Deployment", "web"}, {"v1", "Secret", "password"}, {"v1", "ConfigMap", "settings"}, {"v1", "ServiceAccount", "robot"}} {
		w.placed(w.pine, o[0], o[1], o[2])
	}
	w.quiet(3 * time.Second)
	w.stays(w.oak, before) // no pod is ready in pine

	// What a user deletes goes at once, moving or not.
	w.hub.Remove(t, "v1", "ConfigMap", w.ns, "unused")
	w.gone(w.oak, "v1", "ConfigMap", "unused")
	delete(before, "ConfigMap/unused")
	w.stays(w.oak, before)

	open()
	for _, o := range [][3]string{{"v1", "Secret", "password"}, {"v1", "ConfigMap", "settings"}, {"v1", "ServiceAccount", "robot"}, {"v1", "Service", "web"}, {"v1", "PersistentVolumeClaim", "disk"}} {
		w.gone(w.oak, o[0], o[1], o[2])
	}
	var last, first int
	for _, r := range w.writesSince(w.oak, mark) {
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
		for _, r := range w.writesSince(w.oak, mark) {
			order = append(order, r.String())
		}
		t.Errorf("what the Deployments need was deleted before the last of them:\n%s", cmp.Diff([]string(nil), order))
	}
}

// TestMoveOutOfAHungCluster takes a cluster that hangs out of a placement: what is known to be
// available elsewhere is not counted twice, and nothing of the hung one counts.
func TestMoveOutOfAHungCluster(t *testing.T) {
	w := start(t, "hung-move")
	w.hub.Apply(t, policy(w.ns, "web", web, divided(map[string]int{"oak": 1, "pine": 1}))+deployment(w.ns, "web", 6))
	w.available(w.oak, "web", 3)
	w.available(w.pine, "web", 3)
	w.pine.Fail(testenv.Hang)
	w.lost(w.pine)
	w.guarded("web", 6)
	// From oak and pine to pine and birch: oak's may go only for what is available in birch and
	// was seen in pine.
	w.hub.Apply(t, policy(w.ns, "web", web, divided(map[string]int{"pine": 1, "birch": 1})))
	w.available(w.birch, "web", 3)
	testenv.Never(t, "oak's stay while nobody knows about pine", 3*time.Second, func() error {
		_, err := w.oak.Find(t.Context(), "apps/v1", "Deployment", w.ns, "web")
		return err
	})
	w.pine.Heal()
	w.gone(w.oak, "apps/v1", "Deployment", "web")
	w.available(w.pine, "web", 3)
}
