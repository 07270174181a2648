package placement

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
)

// inGroup returns a binding whose template is in groups.
func inGroup(name string, generation int64, together, apart, where string) *workv1alpha2.ResourceBinding {
	b := placedBinding("", 0, policyv1alpha1.Placement{}, where)
	b.Name, b.UID, b.Generation, b.Spec.Resource.Name = name, types.UID(name), generation, name
	if together != "" || apart != "" {
		b.Spec.WorkloadAffinityGroups = &workv1alpha2.WorkloadAffinityGroups{AffinityGroup: together, AntiAffinityGroup: apart}
	}
	return b
}

func TestPeers(t *testing.T) {
	p := newPeers()
	expect := func(what string, concerned []binding.Template, want string) {
		t.Helper()
		names := sets.New[string]()
		for _, k := range concerned {
			names.Insert(k.Name)
		}
		if got := strings.Join(sets.List(names), " "); got != want {
			t.Errorf("%s: %q are decided on again, want %q", what, got, want)
		}
	}
	others := func(what string, b *workv1alpha2.ResourceBinding, together, apart string) {
		t.Helper()
		x, y := p.others(binding.TemplateOf(b), b.Spec.WorkloadAffinityGroups)
		if got := []string{strings.Join(sets.List(x), " "), strings.Join(sets.List(y), " ")}; !slices.Equal(got, []string{together, apart}) {
			t.Errorf("%s: others are %q, want %q and %q", what, got, together, apart)
		}
	}
	one, two, three := inGroup("one", 1, "app=x", "", "a b"), inGroup("two", 1, "app=x", "tier=y", "c -d"), inGroup("three", 1, "", "tier=y", "")
	expect("the first", p.set(one), "")
	others("the first", one, "", "")
	expect("the second", p.set(two), "one")
	expect("the third", p.set(three), "two")
	others("one", one, "c", "")
	others("two", two, "a b", "")
	others("three", three, "", "c d")
	expect("nothing new", p.set(two), "")
	expect("the end of a move", p.set(inGroup("two", 2, "app=x", "tier=y", "c")), "one three")
	others("three", three, "", "c")
	expect("what is older", p.set(inGroup("two", 1, "app=x", "tier=y", "e")), "")
	others("three", three, "", "c")
	expect("another group", p.set(inGroup("two", 3, "app=z", "tier=y", "c")), "one three")
	others("one", one, "", "")
	expect("no group", p.set(inGroup("two", 4, "", "", "c")), "three")
	others("three", three, "", "")
	other := inGroup("one", 9, "app=x", "", "f")
	other.Namespace = "other"
	expect("another namespace", p.set(other), "")
	others("one", one, "", "")
	expect("the last goes", p.forget(three), "")
	p.forget(one)
	p.forget(other)
	if len(p.entries)+len(p.groups) > 0 {
		t.Errorf("what is gone is remembered: %v", slices.Collect(maps.Keys(p.groups)))
	}
}

func TestGroupsOf(t *testing.T) {
	o := workload("Deployment", nil)
	o.SetLabels(map[string]string{"app": "shop", "empty": ""})
	term := func(key string) *policyv1alpha1.WorkloadAffinityTerm {
		return &policyv1alpha1.WorkloadAffinityTerm{GroupByLabelKey: key}
	}
	for name, tc := range map[string]struct {
		affinity *policyv1alpha1.WorkloadAffinity
		want     *workv1alpha2.WorkloadAffinityGroups
	}{
		"None":         {},
		"NeitherLabel": {affinity: &policyv1alpha1.WorkloadAffinity{Affinity: term("x"), AntiAffinity: term("y")}},
		"Affinity":     {&policyv1alpha1.WorkloadAffinity{Affinity: term("app")}, &workv1alpha2.WorkloadAffinityGroups{AffinityGroup: "app=shop"}},
		"AntiAffinity": {&policyv1alpha1.WorkloadAffinity{AntiAffinity: term("empty")}, &workv1alpha2.WorkloadAffinityGroups{AntiAffinityGroup: "empty="}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, groupsOf(o, tc.affinity)); diff != "" {
				t.Errorf("groups (-want +got):\n%s", diff)
			}
		})
	}
}

// TestApart: objects of an anti-affinity group never share a cluster, even if many are created at
// once, and after a restart. An object without a cluster gets the one that another leaves.
func TestApart(t *testing.T) {
	w := newWorld(t, 3)
	p := w.policy("p", deployments())
	p.Spec.Placement.SpreadConstraints = []policyv1alpha1.SpreadConstraint{{MaxGroups: 1}}
	p.Spec.Placement.WorkloadAffinity = &policyv1alpha1.WorkloadAffinity{AntiAffinity: &policyv1alpha1.WorkloadAffinityTerm{GroupByLabelKey: "group"}}
	w.create(p)
	var all []*appsv1.Deployment
	for i := range 3 {
		d := deployment(fmt.Sprint("web-", i), 1, nil)
		d.Labels = map[string]string{"group": "web"}
		w.create(d)
		all = append(all, d)
	}
	apart := func() {
		t.Helper()
		w.eventually("three clusters", func() error {
			taken := sets.New[string]()
			for _, d := range all {
				b := &workv1alpha2.ResourceBinding{}
				if err := w.client.Get(w.ctx, types.NamespacedName{Namespace: w.namespace, Name: d.Name + "-deployment"}, b); err != nil {
					return err
				}
				for _, c := range b.Spec.Clusters {
					if taken.Has(c.Name) {
						return fmt.Errorf("two are in %s", c.Name)
					}
					taken.Insert(c.Name)
				}
			}
			if len(taken) != 3 {
				return fmt.Errorf("they are in %v", sets.List(taken))
			}
			return nil
		})
	}
	apart()
	w.stop()
	w.start()
	fourth := deployment("fourth", 1, nil)
	fourth.Labels = map[string]string{"group": "web"}
	w.create(fourth)
	w.waitPlaced("fourth-deployment", "", workv1alpha2.ReasonNoClusterFits)
	apart()
	update(w, all[0], func(d *appsv1.Deployment) { d.Labels = nil }) // it leaves the group, and stays
	w.eventually("a place for the fourth", func() error {
		b := &workv1alpha2.ResourceBinding{}
		if err := w.client.Get(w.ctx, types.NamespacedName{Namespace: w.namespace, Name: "fourth-deployment"}, b); err != nil {
			return err
		}
		if len(b.Spec.Clusters) != 1 {
			return fmt.Errorf("it is in %d clusters", len(b.Spec.Clusters))
		}
		return nil
	})
}
