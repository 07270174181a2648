package placement

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/policy"
)

// places has the placements of the templates in the namespace by name: clusters with replicas.
type places map[string]string

func targetsOf(all []workv1alpha2.TargetCluster) string {
	text := make([]string, 0, len(all))
	for _, c := range all {
		text = append(text, fmt.Sprintf("%s=%d", c.Name, number(c.Replicas)))
	}
	return strings.Join(text, " ")
}

func (w *world) places() places {
	all := places{}
	for _, b := range w.all() {
		if where := targetsOf(b.Spec.Clusters); where != "" {
			all[b.Spec.Resource.Kind+" "+b.Spec.Resource.Name] = where
		}
	}
	return all
}

// moves returns the moves of a supposition, as soon as the controller knows enough.
func (w *world) moves(what Supposition) (predicted Moves) {
	w.t.Helper()
	w.eventually("moves", func() error {
		if predicted = w.controller.Moves(w.ctx, what); predicted.Early || !predicted.Exact {
			return fmt.Errorf("too early: %+v", predicted)
		}
		return nil
	})
	return predicted
}

// removeOthers removes the bindings that other tests left behind: a supposition about clusters
// covers all bindings of the hub.
func (w *world) removeOthers() {
	w.t.Helper()
	w.eventually("bindings of other tests are gone", func() error {
		var all workv1alpha2.ResourceBindingList
		if err := w.client.List(w.ctx, &all); err != nil {
			return err
		}
		others := slices.DeleteFunc(all.Items, func(b workv1alpha2.ResourceBinding) bool { return b.Namespace == w.namespace })
		for i := range others {
			others[i].Finalizers = nil
			if err := w.client.Update(w.ctx, &others[i]); client.IgnoreNotFound(err) != nil {
				return err
			}
			if err := w.client.Delete(w.ctx, &others[i]); client.IgnoreNotFound(err) != nil {
				return err
			}
		}
		if len(others) > 0 {
			return fmt.Errorf("%d are there", len(others))
		}
		return nil
	})
}

// after returns the placements that would follow from the predicted moves.
func (p places) after(predicted Moves) places {
	next := maps.Clone(p)
	for _, m := range predicted.Moving {
		k := m.Object.GetKind() + " " + m.Object.GetName()
		if next[k] = targetsOf(m.After.Clusters); next[k] == "" {
			delete(next, k)
		}
	}
	return next
}

// edit stores the spec of a policy while the controller writes its status.
func (w *world) edit(p *policyv1alpha1.PropagationPolicy, o ...client.UpdateOption) {
	w.t.Helper()
	spec := p.Spec.DeepCopy()
	w.eventually("edit of "+p.Name, func() error {
		if err := w.client.Get(w.ctx, client.ObjectKeyFromObject(p), p); err != nil {
			return err
		}
		p.Spec = *spec
		return w.client.Update(w.ctx, p, o...)
	})
}

const webs = 8

// held waits until every Deployment of the namespace was decided by the present version of its
// policy, and is placed as wanted.
func (w *world) held(what string, want places, stored *policyv1alpha1.PropagationPolicy) {
	w.t.Helper()
	w.eventually(what, func() error {
		if known, ok := w.controller.policies.Get(policy.Name(stored)); !ok || known.Generation != stored.Generation {
			return fmt.Errorf("the policy is not known yet")
		}
		kind := appsv1.SchemeGroupVersion.WithKind("Deployment")
		for i := range webs {
			o, _ := w.controller.templates.Get(kind, w.namespace, fmt.Sprint("web-", i))
			b, _ := w.controller.bindings.Of(templateOf(o))
			claims := settled(w.controller.policies.Claims(o), b)
			if len(claims) == 0 {
				continue
			}
			if made := w.records.of(o.GetName()); len(made) == 0 || made[len(made)-1].Claimed != claimant(claims[0]) {
				return fmt.Errorf("%s is not decided on yet", o.GetName())
			}
		}
		for _, b := range w.all() {
			if !b.DeletionTimestamp.IsZero() {
				w.release(&b)
				return fmt.Errorf("%s is being deleted", b.Name)
			}
			if known, ok := w.controller.bindings.ByUID(b.UID); !ok || known.Generation != b.Generation {
				return fmt.Errorf("%s is not known as it is", b.Name)
			}
		}
		if diff := cmp.Diff(want, w.places()); diff != "" {
			return fmt.Errorf("(-predicted +is)\n%s", diff)
		}
		return nil
	})
}

// TestMovesAreWhatMoves: random policies are created, edited and deleted. Each time the predicted
// moves come true, and nothing else moves.
func TestMovesAreWhatMoves(t *testing.T) {
	const seed, iterations = 7, 24
	random := rand.New(rand.NewPCG(seed, seed))
	w := newWorld(t, 4)
	w.change(func(f *fakeFleet) {
		for _, c := range w.clusters {
			f.capacity[c] = int64(20 + random.IntN(20))
		}
	})
	for i := range webs {
		config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("config-", i%4)}}
		if i < 4 {
			w.create(config)
		}
		d := deployment(fmt.Sprint("web-", i), int32(1+random.IntN(6)), map[string]string{"a": fmt.Sprint(i % 2), "b": fmt.Sprint(i % 3), "group": fmt.Sprint(i % 4)})
		d.Spec.Template.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: config.Name}}}}
		w.create(d)
	}
	// Watches both kinds.
	w.create(w.policy("none", policyv1alpha1.ResourceSelector{APIVersion: "v1", Kind: "ConfigMap", Name: "none"}, policyv1alpha1.ResourceSelector{APIVersion: "apps/v1", Kind: "Deployment", Name: "none"}))
	var stored []*policyv1alpha1.PropagationPolicy
	predicted := 0
	for round := range iterations {
		var p *policyv1alpha1.PropagationPolicy
		if n := len(stored); n < 3 || n < 5 && random.IntN(3) == 0 {
			p = w.policy(fmt.Sprint("p-", round))
			p.Spec.Priority = int32(random.IntN(3))
			p.Spec.PropagateDeps = random.IntN(2) == 0
		} else {
			p = stored[random.IntN(n)]
		}
		made := p.ResourceVersion == ""
		if made || random.IntN(2) == 0 {
			p.Spec.Placement = w.randomPlacement(random)
			p.Spec.Placement.WorkloadAffinity = nil
			if s := p.Spec.Placement.ReplicaScheduling; s != nil && (s.WeightPreference != nil || s.ReplicaDivisionPreference == policyv1alpha1.Aggregated) {
				// The capacity depends on the order of decisions.
				p.Spec.Placement.ReplicaScheduling = divided(nil)
			}
		}
		if made || random.IntN(2) == 0 {
			key := []string{"a", "b"}[random.IntN(2)]
			p.Spec.ResourceSelectors = []policyv1alpha1.ResourceSelector{{
				APIVersion: "apps/v1", Kind: "Deployment", LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{key: fmt.Sprint(random.IntN(3))}},
			}}
			if random.IntN(4) == 0 {
				p.Spec.ResourceSelectors[0].LabelSelector = nil
			}
		}
		what := Supposition{Policy: policy.Name(p), As: p.DeepCopy()}
		if made {
			if err := w.client.Create(w.ctx, what.As, client.DryRunAll); err != nil {
				t.Fatal(err)
			}
		} else {
			w.edit(what.As, client.DryRunAll)
		}
		before := w.places()
		moves := w.moves(what)
		predicted += len(moves.Moving)
		if made {
			w.create(p)
			stored = append(stored, p)
		} else {
			w.edit(p)
		}
		w.held(fmt.Sprintf("seed %d, round %d, %+v", seed, round, p.Spec), before.after(moves), p)
	}
	if predicted < iterations {
		t.Errorf("only %d moves were predicted in %d iterations", predicted, iterations)
	}
	// The prediction for a deleted policy names the next policy. For the last one, it says that
	// placements stay.
	for len(stored) > 0 {
		p := stored[0]
		before := w.places()
		moves := w.moves(Supposition{Policy: policy.Name(p)})
		w.delete(p)
		if stored = stored[1:]; len(stored) == 0 {
			if len(moves.Moving) > 0 {
				t.Errorf("without any policy something moves: %+v", moves.Moving)
			}
			return
		}
		w.eventually("the policy is gone", func() error {
			if _, ok := w.controller.policies.Get(policy.Name(p)); ok {
				return fmt.Errorf("it is there")
			}
			return nil
		})
		w.held("after "+p.Name, before.after(moves), stored[0])
	}
}

// TestMovesOfClusters: the predicted moves of changed labels, and of a cluster that leaves, come
// true.
func TestMovesOfClusters(t *testing.T) {
	w := newWorld(t, 3)
	w.removeOthers()
	p := w.policy("gold", deployments())
	p.Spec.Placement.ClusterAffinity.LabelSelector.MatchLabels = map[string]string{"test": w.namespace, "tier": "gold"}
	p.Spec.Placement.ReplicaScheduling = divided(nil)
	w.create(p)
	w.create(deployment("web", 6, nil))
	a, b, c := w.clusters[0], w.clusters[1], w.clusters[2]
	w.waitPlaced("web-deployment", "", workv1alpha2.ReasonNoClusterFits)
	gold := map[string]string{"test": w.namespace, "tier": "gold"}
	for _, step := range []struct {
		cluster string
		labels  map[string]string // nil: it leaves
		want    string
	}{
		{a, gold, a + "=6"},
		{b, gold, a + "=3 " + b + "=3"},
		{a, map[string]string{"test": w.namespace}, b + "=6"},
		{c, gold, b + "=3 " + c + "=3"},
		{b, nil, c + "=6"},
	} {
		predicted := w.moves(Supposition{Cluster: step.cluster, Leaves: step.labels == nil, Labels: step.labels})
		if diff := cmp.Diff(step.want, w.places().after(predicted)["Deployment web"]); diff != "" {
			t.Fatalf("%+v: (-want +predicted)\n%s", step, diff)
		}
		cluster := &clusterv1alpha1.Cluster{}
		if err := w.client.Get(w.ctx, types.NamespacedName{Name: step.cluster}, cluster); err != nil {
			t.Fatal(err)
		}
		if step.labels != nil {
			cluster.Labels = step.labels
		} else {
			cluster.Finalizers = []string{"orrery.dev/test"}
		}
		if err := w.client.Update(w.ctx, cluster); err != nil {
			t.Fatal(err)
		}
		if step.labels == nil {
			w.delete(cluster)
		}
		w.eventually(fmt.Sprintf("%+v", step), func() error {
			if is := w.places()["Deployment web"]; is != step.want {
				return fmt.Errorf("it is in %s", is)
			}
			return nil
		})
		if step.labels == nil {
			if err := w.client.Patch(w.ctx, cluster, client.RawPatch(types.MergePatchType, []byte(`{"metadata": {"finalizers": null}}`))); err != nil {
				t.Fatal(err)
			}
		}
	}
	if predicted := w.moves(Supposition{Cluster: "nowhere", Leaves: true}); predicted.Looked != 0 {
		t.Errorf("of a cluster that is not there: %+v", predicted)
	}
}

// TestMovesOfALazyPolicy: moves of a Lazy policy are marked Later. Without time the result is not
// exact. Of two moves that need the same capacity, one gets it.
func TestMovesOfALazyPolicy(t *testing.T) {
	w := newWorld(t, 2)
	w.setCapacity(3)
	p := w.byCapacity()
	w.create(p)
	w.burst("web", 2, 2)
	w.eventually("both are placed, as the controller knows", func() error {
		if known := slices.DeleteFunc(w.controller.bindings.All(), func(b *workv1alpha2.ResourceBinding) bool { return b.Namespace != w.namespace }); len(known) != 2 {
			return fmt.Errorf("%d are", len(known))
		}
		return nil
	})
	known, _ := w.controller.policies.Get(policy.Name(p))
	edited := known.DeepCopy()
	edited.Generation++
	edited.Spec.ActivationPreference = policyv1alpha1.LazyActivation
	edited.Spec.Placement.ReplicaScheduling = nil
	predicted := w.moves(Supposition{Policy: policy.Name(p), As: edited})
	if len(predicted.Moving) != 2 || !predicted.Moving[0].Later || !predicted.Moving[1].Later || len(predicted.Moving[0].After.Clusters) != 2 {
		t.Errorf("%+v", predicted)
	}
	ended, end := context.WithCancel(w.ctx)
	end()
	if cut := w.controller.Moves(ended, Supposition{Policy: policy.Name(p), As: edited}); cut.Exact || cut.Looked != 0 {
		t.Errorf("without any time: %+v", cut)
	}
}
