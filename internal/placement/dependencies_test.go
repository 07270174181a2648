package placement

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/fleet"
)

// dependentOn returns a binding in some clusters whose template depends on Secrets.
func dependentOn(name string, generation int64, clusters string, secrets ...string) *workv1alpha2.ResourceBinding {
	b := placedBinding(policyv1alpha1.Duplicated, 1, in(), clusters)
	b.Name, b.UID, b.Generation = name, types.UID(name), generation
	b.Spec.Resource = workv1alpha2.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: name}
	b.Spec.PropagateDeps = true
	for _, s := range secrets {
		b.Spec.Dependencies = append(b.Spec.Dependencies, workv1alpha2.DependencyReference{Kind: "Secret", Name: s})
	}
	return b
}

func secret(name string) binding.Template {
	return binding.Template{GroupKind: schema.GroupKind{Kind: "Secret"}, Namespace: "shop", Name: name}
}

// TestDependencyIndex: the newest generations of the bindings determine which templates depend on a
// template. A template is returned for a new decision only if a change affects it.
func TestDependencyIndex(t *testing.T) {
	index := newDependencyIndex()
	expect := func(what string, got []binding.Template, want string) {
		t.Helper()
		var names []string
		for _, k := range got {
			names = append(names, k.Name)
		}
		slices.Sort(names)
		if strings.Join(names, " ") != want {
			t.Errorf("%s concerns %q, want %q", what, names, want)
		}
	}
	who := func(name, want string) {
		t.Helper()
		var names []string
		for by := range index.who(secret(name)) {
			names = append(names, by.Name)
		}
		slices.Sort(names)
		if strings.Join(names, " ") != want {
			t.Errorf("%s is needed by %q, want %q", name, names, want)
		}
	}
	forget := func(b *workv1alpha2.ResourceBinding) []binding.Template {
		index.retire(b)
		return index.settle(binding.TemplateOf(b))
	}
	expect("the first", index.set(dependentOn("web", 1, "a", "x", "y")), "x y")
	expect("the same", index.set(dependentOn("web", 1, "a", "x", "y")), "")
	expect("a template without dependencies", index.set(dependentOn("other", 1, "a")), "")
	expect("another cluster", index.set(dependentOn("web", 2, "a b", "x", "y")), "x y")
	expect("what is older", index.set(dependentOn("web", 1, "a", "z")), "")
	expect("one less", index.set(dependentOn("web", 3, "a b", "x")), "y")
	who("y", "")
	urgent := dependentOn("api", 1, "a b", "x")
	urgent.Spec.SchedulePriority = &workv1alpha2.SchedulePriority{Priority: 5}
	expect("one that says the same but for its priority", index.set(urgent), "x")
	if p, ok := index.priority(secret("x")); p != 5 || !ok {
		t.Errorf("priority is %d, %v", p, ok)
	}
	if _, ok := index.priority(secret("y")); ok {
		t.Error("what nobody needs has a priority")
	}
	who("x", "api web")
	for i := range mostDependents - 1 {
		expect("one of the first", index.set(dependentOn(fmt.Sprint("b", i), 1, "a b", "x")), "x")
	}
	expect("one more of those that say the same", index.set(dependentOn("last", 1, "a b", "x")), "")
	expect("one that says something else", index.set(dependentOn("later", 1, "c", "x")), "x")
	if got := index.who(secret("x")); len(got) < mostDependents+1 || len(got) > mostDependents+3 || got[types.NamespacedName{Namespace: "shop", Name: "later"}] == nil {
		t.Errorf("it is needed by %d, want the first and one for each that says something else", len(got))
	}
	expect("its end", forget(dependentOn("later", 1, "c", "x")), "x")
	expect("the end of one that nobody names", forget(dependentOn("last", 1, "a b", "x")), "")
	expect("one that does not propagate any more", index.set(func() *workv1alpha2.ResourceBinding {
		b := dependentOn("api", 2, "a b", "x")
		b.Spec.PropagateDeps = false
		return b
	}()), "x")
	again := dependentOn("b0", 1, "a b", "x")
	again.UID = "another"
	expect("another of its name that says the same", index.set(again), "")
	expect("the end of its predecessor", forget(dependentOn("b0", 1, "a b", "x")), "")
	forget(again)
	for i := range mostDependents - 1 {
		forget(dependentOn(fmt.Sprint("b", i), 1, "a b", "x"))
	}
	index.retire(dependentOn("web", 3, "a b", "x"))
	who("x", "web") // until its template is decided again
	expect("the last", forget(dependentOn("web", 3, "a b", "x")), "x")
	if len(index.of)+len(index.by)+len(index.gone) > 0 {
		t.Errorf("what is gone is remembered: %v, %v, %v", index.of, index.by, index.gone)
	}
}

// TestManyNeedOne: the binding of a dependency of thousands is written only a few times. 5,000
// dependents in any order cause at most 150 decisions on it, and at most 200 KB of writes.
// Otherwise its binding would be written 5,000 times, with up to 5,000 names.
func TestManyNeedOne(t *testing.T) {
	const many = 5000
	o := workload("Secret", nil)
	o.SetAPIVersion("v1")
	o.SetName("x")
	s := fleet.NewSnapshot(1, fine("a"), fine("b"), fine("c"))
	index := newDependencyIndex()
	var b *workv1alpha2.ResourceBinding
	decisions, writes, written := 0, 0, 0
	look := func(concerned []binding.Template) {
		for range concerned {
			var required []Dependent
			for _, by := range index.who(secret("x")) {
				required = append(required, Dependent{Binding: by})
			}
			slices.SortFunc(required, func(a, b Dependent) int { return strings.Compare(a.Binding.Name, b.Binding.Name) })
			decisions++
			spec := Decide(s, Template{Object: o, RequiredBy: required}, CurrentState{Binding: b}).Spec
			if b == nil || !equality.Semantic.DeepEqual(b.Spec, *spec) {
				text, err := json.Marshal(spec)
				if err != nil {
					t.Fatal(err)
				}
				writes, written = writes+1, written+len(text)
				b = &workv1alpha2.ResourceBinding{Spec: *spec}
			}
		}
	}
	d := rand.New(rand.NewPCG(1, 2))
	for _, i := range d.Perm(many) {
		where := "a"
		if i == 4711 {
			where = "b"
		}
		look(index.set(dependentOn(fmt.Sprintf("web-%04d", i), 1, where, "x")))
	}
	if got := where(b.Spec.DeepCopy()); got != "a b" {
		t.Errorf("it is placed in %q", got)
	}
	var first []workv1alpha2.BindingSnapshot
	for i := range mostDependents {
		first = append(first, workv1alpha2.BindingSnapshot{Namespace: "shop", Name: fmt.Sprintf("web-%04d", i)})
	}
	if diff := cmp.Diff(first, b.Spec.RequiredBy); diff != "" {
		t.Errorf("required by (-want +got):\n%s", diff)
	}
	t.Logf("%d decisions, %d writes, %d bytes", decisions, writes, written)
	if decisions > 150 || writes > decisions || written > 200<<10 {
		t.Errorf("%d need one: %d decisions, %d writes of %d bytes in all", many, decisions, writes, written)
	}

	// A move of one dependent causes one decision, not thousands.
	decisions = 0
	look(index.set(dependentOn("web-4711", 2, "c", "x")))
	if got := where(b.Spec.DeepCopy()); decisions != 1 || got != "a c -b" {
		t.Errorf("%d decisions lead to %q", decisions, got)
	}
}

// TestAttachedIsNotOwn: a cluster that an object is in only as a dependency is not its own. It
// does not count as the cluster that the object's policy chose, and the object leaves it with
// its dependents.
func TestAttachedIsNotOwn(t *testing.T) {
	o := workload("ConfigMap", nil)
	o.SetAPIVersion("v1")
	s := fleet.NewSnapshot(1, fine("a"), fine("b"))
	one := in("a", "b")
	one.SpreadConstraints = []policyv1alpha1.SpreadConstraint{{MaxGroups: 1}}
	tmpl := ofPolicy(o, one)
	b := placedBinding("", 0, one, "")
	for _, other := range []struct{ own, attached string }{{"a", "b"}, {"b", "a"}} {
		b.Spec.Clusters = []workv1alpha2.TargetCluster{{Name: other.own}}
		tmpl.RequiredBy = []Dependent{{Binding: dependentOn("web", 1, other.attached, "x")}}
		for range 3 { // repeated decisions change nothing
			b.Spec.Clusters = Decide(s, tmpl, CurrentState{Binding: b}).Spec.Clusters
			if diff := cmp.Diff([]workv1alpha2.TargetCluster{{Name: "a", Attached: other.attached == "a"}, {Name: "b", Attached: other.attached == "b"}}, b.Spec.Clusters); diff != "" {
				t.Errorf("its own cluster is %s: placed (-want +got):\n%s", other.own, diff)
			}
		}
		tmpl.RequiredBy = nil
		if got := where(Decide(s, tmpl, CurrentState{Binding: b}).Spec); got != other.own+" -"+other.attached {
			t.Errorf("after those that need it: %q", got)
		}
	}

	// A cluster that both the policy and a dependent choose is the object's own.
	both := ofPolicy(o, in("a"))
	both.RequiredBy = []Dependent{{Binding: dependentOn("web", 1, "a", "x")}}
	b.Spec.Clusters = []workv1alpha2.TargetCluster{{Name: "a", Attached: true}}
	if got := Decide(s, both, CurrentState{Binding: b}).Spec.Clusters; len(got) != 1 || got[0].Attached {
		t.Errorf("placed %+v", got)
	}
}
