package placement

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	"orrery.dev/orrery/internal/binding"
)

// class creates a PriorityClass of the test.
func (w *world) class(name string, value int32) *schedulingv1.PriorityClass {
	return &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: w.namespace + "-" + name}, Value: value}
}

// urgent sets a PriorityClass of the test in a policy.
func (w *world) urgent(p *policyv1alpha1.PropagationPolicy, class string) *policyv1alpha1.PropagationPolicy {
	p.Spec.SchedulePriority = &policyv1alpha1.SchedulePriority{
		PriorityClassSource: policyv1alpha1.KubePriorityClass, PriorityClassName: w.namespace + "-" + class,
	}
	return p
}

// TestPriority: the last capacity goes to the highest priority, in any order of creation. This
// holds for a cluster that gets capacity, and for a hub that starts. All decisions are made by
// priority.
func TestPriority(t *testing.T) {
	const each = 5
	w := newWorld(t, 1)
	w.setCapacity(0)
	w.create(w.class("high", 100))
	w.create(w.class("low", -100))
	priorities := map[string]int32{"high": 100, "none": 0, "low": -100}
	for tier := range priorities {
		p := w.byCapacity()
		p.Name = tier
		p.Spec.ResourceSelectors[0].LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"tier": tier}}
		if tier != "none" {
			w.urgent(p, tier)
		}
		w.create(p)
	}
	tiers := map[string]string{}
	more := func(prefix string) {
		for _, tier := range []string{"low", "none", "high"} { // the most urgent come last
			for i := range each {
				name := fmt.Sprint(prefix, "-", tier, "-", i)
				w.create(deployment(name, 1, map[string]string{"tier": tier}))
				tiers[name] = tier
			}
		}
	}
	// placed waits until the wanted number of Deployments of each tier is placed.
	placed := func(want map[string]int) {
		t.Helper()
		w.eventually("the most urgent to be placed", func() error {
			got := map[string]int{}
			for _, b := range w.all() {
				if len(b.Spec.Clusters) > 0 {
					got[tiers[b.Spec.Resource.Name]]++
				}
			}
			if diff := gocmp.Diff(want, got); diff != "" {
				return fmt.Errorf("placed (-want +got):\n%s", diff)
			}
			return nil
		})
	}
	// sequence waits until all were decided after a moment, and checks that they were decided by
	// priority.
	sequence := func(since time.Time) {
		t.Helper()
		type made struct {
			name string
			at   time.Time
		}
		var first []made
		w.eventually("decisions on all", func() error {
			first = nil
			for name := range tiers {
				for _, d := range w.records.of(name) {
					if d.Time.After(since) {
						first = append(first, made{name, d.Time})
						break
					}
				}
			}
			if len(first) < len(tiers) {
				return fmt.Errorf("%d of %d were decided on", len(first), len(tiers))
			}
			return nil
		})
		slices.SortFunc(first, func(a, b made) int { return a.at.Compare(b.at) })
		if !slices.IsSortedFunc(first, func(a, b made) int { return cmp.Compare(priorities[tiers[b.name]], priorities[tiers[a.name]]) }) {
			t.Errorf("the sequence of decisions is %v", first)
		}
	}

	more("web")
	for name := range tiers {
		w.waitPlaced(name+"-deployment", "", insufficient)
	}
	if b := w.binding("web-low-0-deployment"); b.Spec.Priority() != -100 || w.binding("web-none-0-deployment").Spec.SchedulePriority != nil {
		t.Errorf("the bindings have other priorities: %+v", b.Spec.SchedulePriority)
	}
	// A pending decision would otherwise be the first after that moment.
	w.eventually("no decision is due", func() error {
		w.controller.mu.RLock()
		defer w.controller.mu.RUnlock()
		if n := w.controller.queue.Len(); n > 0 || w.controller.dispatchOrder.any() {
			return fmt.Errorf("%d are, or are being made", n)
		}
		return nil
	})
	since := time.Now()
	w.setCapacity(each)
	placed(map[string]int{"high": each})
	sequence(since) // templates without capacity may still be decided
	// Their replicas are reserved. After a restart the reservations follow from the bindings.
	w.stop()

	more("api") // while the hub is down
	w.change(func(f *fakeFleet) { f.listed = true })
	w.fleet.capacity[w.clusters[0]] = 3 * each
	since = time.Now()
	w.start()
	placed(map[string]int{"high": 2 * each, "none": each})
	sequence(since)
}

// TestPriorityClasses: while a policy's PriorityClass does not exist, placed objects stay and
// follow their template, and others wait. Dependencies have the priority of the templates that need
// them.
func TestPriorityClasses(t *testing.T) {
	w := newWorld(t, 1)
	p := w.urgent(w.policy("p", deployments()), "class")
	p.Spec.PropagateDeps = true
	w.create(p)
	web := deployment("web", 1, nil)
	uses(web, "conf")
	w.create(web)
	w.create(configMap("conf"))
	missing := map[string]string{"Ready": policyv1alpha1.ReasonNoPriorityClass, "Claimed": policyv1alpha1.ReasonNoPriorityClass}
	w.waitStatus(p, 1, missing, "the hub has no PriorityClass "+w.namespace+"-class: create it, or name another")
	w.waitEvents(p, policyv1alpha1.ReasonNoPriorityClass)
	if b := w.binding("web-deployment"); b != nil {
		t.Fatalf("it is placed: %+v", b.Spec)
	}

	priority := func(name string, want int32) {
		t.Helper()
		w.eventually("priority of "+name, func() error {
			if b := w.binding(name); b == nil || b.Spec.SchedulePriority == nil || b.Spec.SchedulePriority.Priority != want {
				return fmt.Errorf("the binding is %v, want priority %d", b, want)
			}
			return nil
		})
	}
	class := w.class("class", 7)
	if err := w.client.Create(w.ctx, class); err != nil {
		t.Fatal(err)
	}
	w.waitPlaced("web-deployment", "a=1", scheduled)
	priority("web-deployment", 7)
	priority("conf-configmap", 7)
	w.waitStatus(p, 1, map[string]string{"Ready": policyv1alpha1.ReasonReady})

	w.delete(class)
	w.waitStatus(p, 1, missing)
	update(w, web, func(d *appsv1.Deployment) { d.Spec.Replicas = new(int32(2)) })
	w.waitPlaced("web-deployment", "a=2", scheduled)
	priority("web-deployment", 7)
	w.create(deployment("late", 1, nil))
	w.waitStatus(p, 2, missing)
	if b := w.binding("late-deployment"); b != nil {
		t.Fatalf("it is placed: %+v", b.Spec)
	}
	w.create(w.class("class", 8))
	w.waitPlaced("late-deployment", "a=1", scheduled)
	priority("web-deployment", 8)
	priority("conf-configmap", 8)

	update(w, p, func(p *policyv1alpha1.PropagationPolicy) { p.Spec.SchedulePriority = nil })
	w.eventually("no priority", func() error {
		for _, name := range []string{"web-deployment", "conf-configmap"} {
			if s := w.binding(name).Spec.SchedulePriority; s != nil {
				return fmt.Errorf("%s has %d", name, s.Priority)
			}
		}
		return nil
	})
}

func named(names ...string) (all []binding.Template) {
	for _, name := range names {
		all = append(all, binding.Template{Name: name})
	}
	return all
}

// TestDispatchOrder: a template waits for all that were dequeued earlier, and for no other. It
// waits for none once it has passed.
func TestDispatchOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dispatchOrder := newDispatchOrder()
		keys := named("a", "b", "c", "d")
		for _, k := range keys {
			dispatchOrder.take(k)
		}
		var order []string
		for _, k := range []binding.Template{keys[3], keys[2], keys[1]} {
			go func() {
				dispatchOrder.wait(k)
				order = append(order, k.Name)
				dispatchOrder.pass(k)
			}()
			synctest.Wait()
		}
		dispatchOrder.wait(keys[0]) // none was dequeued earlier
		if len(order) > 0 {
			t.Fatalf("%v did not wait", order)
		}
		dispatchOrder.pass(keys[0])
		synctest.Wait()
		if diff := gocmp.Diff([]string{"b", "c", "d"}, order); diff != "" {
			t.Errorf("order (-want +got):\n%s", diff)
		}
		dispatchOrder.take(keys[0])
		dispatchOrder.wait(keys[1]) // returns at once: b has passed
		dispatchOrder.pass(keys[0])
		if len(dispatchOrder.numbers) > 0 {
			t.Errorf("%v are remembered", dispatchOrder.numbers)
		}
	})
}

// TestRetryQueue: templates with the same delay are requeued together, in order of arrival, each
// once.
func TestRetryQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		looked := map[time.Duration][]string{}
		r := newRetryQueue(func(keys ...binding.Template) {
			for _, k := range keys {
				looked[time.Since(start)] = append(looked[time.Since(start)], k.Name)
			}
		})
		keys := named("b", "a", "c")
		r.add(keys[0], 5*time.Second)
		time.Sleep(time.Second)
		r.add(keys[1], 5*time.Second)
		r.add(keys[0], 5*time.Second)
		r.add(keys[2], 2*time.Second)
		time.Sleep(5 * time.Second)
		r.add(keys[1], 5*time.Second)
		time.Sleep(time.Minute)
		want := map[time.Duration][]string{3 * time.Second: {"c"}, 5 * time.Second: {"b", "a"}, 11 * time.Second: {"a"}}
		if diff := gocmp.Diff(want, looked); diff != "" {
			t.Errorf("looked at (-want +got):\n%s", diff)
		}
	})
}

// TestBarrier: no template passes before all inputs are known. Then all waiting templates are
// requeued in one call.
func TestBarrier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		known := false
		var looked []binding.Template
		g := &barrier{every: time.Second, known: func() bool { return known }, look: func(keys ...binding.Template) { looked = append(looked, keys...) }}
		keys := named("b", "a")
		for _, k := range append(keys, keys...) {
			if g.passes(k) {
				t.Fatalf("%s passes", k.Name)
			}
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if len(looked) > 0 {
			t.Fatalf("%v are looked at before anything is known", looked)
		}
		known = true
		if g.passes(keys[0]) {
			t.Fatal("one passes ahead of the others")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if diff := gocmp.Diff(keys, looked); diff != "" {
			t.Errorf("looked at (-want +got):\n%s", diff)
		}
		if !g.passes(keys[0]) {
			t.Error("the barrier is closed again")
		}
	})
}
