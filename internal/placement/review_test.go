package placement

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/records"
)

// TestReviewIsTheDecision: a review of a new or edited policy predicts the recorded decision, for
// random policies, objects and fleets. Objects keep moving meanwhile, because each fleet differs
// from the last. So a review is compared only if no binding changed in between; else another edit
// is tried.
func TestReviewIsTheDecision(t *testing.T) {
	const seed, edits, tries = 14, 2, 12
	random := rand.New(rand.NewPCG(seed, seed))
	w := newWorld(t, 5)
	bindings := w.follow()
	for round := range 12 {
		w.change(func(f *fakeFleet) {
			for _, c := range w.clusters {
				f.capacity[c] = int64(random.IntN(8))
				f.unreachable[c] = random.IntN(6) == 0
				f.presence[c] = presence.Present
				if random.IntN(8) == 0 {
					f.presence[c] = presence.Absent
				}
			}
		})
		name := fmt.Sprint("web-", round)
		web := deployment(name, int32(random.IntN(9)), map[string]string{"group": fmt.Sprint(random.IntN(2))})
		w.create(web)
		p := w.policy(fmt.Sprint("p-", round), policyv1alpha1.ResourceSelector{APIVersion: "apps/v1", Kind: "Deployment", Name: name})
		compared := 0
		for edit := 0; compared < edits; edit++ {
			if edit == tries {
				t.Fatalf("seed %d, round %d: other bindings changed in each of %d edits", seed, round, tries)
			}
			p.Spec.Placement = w.randomPlacement(random)
			what := fmt.Sprintf("seed %d, round %d, edit %d, %+v", seed, round, edit, p.Spec.Placement)
			if p.ResourceVersion == "" {
				p.Spec.Placement = w.completed(p)
			} else {
				w.edit(p, client.DryRunAll)
			}
			before := w.settled(bindings, name+"-deployment")
			made := w.records.of(name)
			var reviewed Decision
			w.eventually("review of "+what, func() error {
				if reviewed = w.controller.Review(asTemplate(t, web), p); reviewed.Spec == nil {
					return fmt.Errorf("it is too early to say")
				}
				return nil
			})
			if p.ResourceVersion == "" {
				w.create(p)
			} else {
				w.edit(p)
			}
			same := func(a, b records.Decision) string {
				b.Time, b.Snapshot, b.Binding, b.Claimed.Generation = a.Time, a.Snapshot, a.Binding, a.Claimed.Generation
				return cmp.Diff(a, b)
			}
			var decided records.Decision
			moved := false // of itself, by what was decided on the edit before
			w.eventually("decision on "+name, func() error {
				moved = false
				for _, decided = range w.records.of(name)[len(made):] {
					if decided.PlacementHash == hash(p.Spec.Placement) {
						return nil
					}
					moved = moved || len(made) == 0 || same(made[len(made)-1], decided) != ""
				}
				return fmt.Errorf("none yet")
			})
			if moved || !maps.Equal(before, w.settled(bindings, name+"-deployment")) {
				continue
			}
			compared++
			if diff := same(reviewed.Record, decided); diff != "" {
				t.Fatalf("%s: (-review +decision)\n%s", what, diff)
			}
		}
	}
}

// generations records the generations of bindings in a namespace.
type generations struct {
	sync.Mutex
	known map[types.NamespacedName]int64
}

// follow records the generations of bindings after the controller has handled them: subscribers are
// called in order.
func (w *world) follow() *generations {
	g := &generations{known: map[types.NamespacedName]int64{}}
	w.controller.bindings.Subscribe(func(before, after *workv1alpha2.ResourceBinding) {
		g.Lock()
		defer g.Unlock()
		if after == nil {
			delete(g.known, binding.Name(before))
		} else if after.Namespace == w.namespace {
			g.known[binding.Name(after)] = after.Generation
		}
	})
	return g
}

// settled waits until the controller knows all bindings except one as stored, and returns their
// generations.
func (w *world) settled(g *generations, but string) map[types.NamespacedName]int64 {
	w.t.Helper()
	stored := map[types.NamespacedName]int64{}
	w.eventually("the bindings are known", func() error {
		var list workv1alpha2.ResourceBindingList
		if err := w.client.List(w.ctx, &list, client.InNamespace(w.namespace)); err != nil {
			return err
		}
		clear(stored)
		for _, b := range list.Items {
			stored[binding.Name(&b)] = b.Generation
		}
		g.Lock()
		defer g.Unlock()
		if !maps.Equal(stored, g.known) {
			return fmt.Errorf("stored are %v, known are %v", stored, g.known)
		}
		return nil
	})
	delete(stored, types.NamespacedName{Namespace: w.namespace, Name: but})
	return stored
}

// completed returns the placement of a policy with the defaults of the API server, by a dry run.
func (w *world) completed(p *policyv1alpha1.PropagationPolicy) policyv1alpha1.Placement {
	w.t.Helper()
	tried := p.DeepCopy()
	if err := w.client.Create(w.ctx, tried, client.DryRunAll); err != nil {
		w.t.Fatal(err)
	}
	return tried.Spec.Placement
}

func asTemplate(t *testing.T, d *appsv1.Deployment) *unstructured.Unstructured {
	t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(d)
	if err != nil {
		t.Fatal(err)
	}
	o := &unstructured.Unstructured{Object: content}
	o.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("Deployment"))
	return o
}

// randomPlacement returns a random placement in the test's clusters.
func (w *world) randomPlacement(random *rand.Rand) policyv1alpha1.Placement {
	p := policyv1alpha1.Placement{ClusterAffinity: w.here()}
	if random.IntN(3) == 0 {
		p.ClusterAffinity.ExcludeClusters = []string{w.clusters[random.IntN(len(w.clusters))]}
	}
	if random.IntN(4) == 0 {
		p.ClusterAffinity.ClusterNames = append([]string{"nowhere"}, w.clusters[random.IntN(len(w.clusters)):]...)
	}
	switch random.IntN(4) {
	case 0:
		p.ReplicaScheduling = divided(nil)
	case 1:
		p.ReplicaScheduling = divided(&policyv1alpha1.ClusterPreferences{DynamicWeight: policyv1alpha1.DynamicWeightByAvailableReplicas})
	case 2:
		p.ReplicaScheduling = divided(nil)
		p.ReplicaScheduling.ReplicaDivisionPreference = policyv1alpha1.Aggregated
	}
	if random.IntN(3) == 0 {
		p.SpreadConstraints = []policyv1alpha1.SpreadConstraint{{SpreadByField: policyv1alpha1.SpreadByCluster, MinGroups: 1, MaxGroups: int32(1 + random.IntN(3))}}
	}
	if random.IntN(3) == 0 {
		p.WorkloadAffinity = &policyv1alpha1.WorkloadAffinity{AntiAffinity: &policyv1alpha1.WorkloadAffinityTerm{GroupByLabelKey: "group"}}
	}
	return p
}

// TestReviewOfWhatIsNotThere: a review works for an object that the hub does not have, and does not
// store the policy.
func TestReviewOfWhatIsNotThere(t *testing.T) {
	w := newWorld(t, 2)
	p := w.policy("p", deployments())
	p.Spec.Placement.ClusterTolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	w.eventually("the work begins", func() error {
		d := w.controller.Review(asTemplate(t, deployment("web", 3, nil)), p)
		if d.Spec == nil || len(d.Record.Targets) != 2 {
			return fmt.Errorf("%+v", d.Record)
		}
		return nil
	})
	if _, ok := w.controller.policies.Get(client.ObjectKeyFromObject(p)); ok {
		t.Error("the policy that was reviewed is one of the hub's")
	}
	if held := w.controller.placements.read; len(held) > 0 {
		t.Errorf("placements of policies that are not there: %v", held)
	}
	if b := w.binding("web-deployment"); b != nil {
		t.Errorf("binding %s", b.Name)
	}
}
