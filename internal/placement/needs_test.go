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

// needing is a binding of a generation in some clusters whose template has Secrets follow it.
func needing(name string, generation int64, clusters string, secrets ...string) *workv1alpha2.ResourceBinding {
	b := standing(policyv1alpha1.Duplicated, 1, in(), clusters)
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

// Who needs what follows from the newest that the bindings say, and a template is concerned when it is news for it.
func TestNeeds(t *testing.T) {
	n := newNeeds()
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
		for by := range n.who(secret(name)) {
			names = append(names, by.Name)
		}
		slices.Sort(names)
		if strings.Join(names, " ") != want {
			t.Errorf("%s is needed by %q, want %q", name, names, want)
		}
	}
	expect("the first", n.set(needing("web", 1, "a", "x", "y")), "x y")
	expect("the same", n.set(needing("web", 1, "a", "x", "y")), "")
	expect("what is without needs", n.set(needing("other", 1, "a")), "")
	expect("another cluster", n.set(needing("web", 2, "a b", "x", "y")), "x y")
	expect("what is older", n.set(needing("web", 1, "a", "z")), "")
	expect("one less", n.set(needing("web", 3, "a b", "x")), "y")
	who("y", "")
	urgent := needing("api", 1, "a b", "x")
	urgent.Spec.SchedulePriority = &workv1alpha2.SchedulePriority{Priority: 5}
	expect("one that says the same but for its priority", n.set(urgent), "x")
	if p, ok := n.priority(secret("x")); p != 5 || !ok {
		t.Errorf("priority is %d, %v", p, ok)
	}
	if _, ok := n.priority(secret("y")); ok {
		t.Error("what nobody needs has a priority")
	}
	who("x", "api web")
	for i := range mostNeeds - 1 {
		expect("one of the first", n.set(needing(fmt.Sprint("b", i), 1, "a b", "x")), "x")
	}
	expect("one more of those that say the same", n.set(needing("last", 1, "a b", "x")), "")
	expect("one that says something else", n.set(needing("later", 1, "c", "x")), "x")
	if got := n.who(secret("x")); len(got) < mostNeeds+1 || len(got) > mostNeeds+3 || got[types.NamespacedName{Namespace: "shop", Name: "later"}] == nil {
		t.Errorf("it is needed by %d, want the first and one for each that says something else", len(got))
	}
	expect("its end", n.forget(needing("later", 1, "c", "x")), "x")
	expect("the end of one that nobody names", n.forget(needing("last", 1, "a b", "x")), "")
	expect("one that does not propagate any more", n.set(func() *workv1alpha2.ResourceBinding {
		b := needing("api", 2, "a b", "x")
		b.Spec.PropagateDeps = false
		return b
	}()), "x")
	again := needing("b0", 1, "a b", "x")
	again.UID = "another"
	expect("another of its name that says the same", n.set(again), "")
	expect("the end of its predecessor", n.forget(needing("b0", 1, "a b", "x")), "")
	n.forget(again)
	for i := range mostNeeds - 1 {
		n.forget(needing(fmt.Sprint("b", i), 1, "a b", "x"))
	}
	expect("the last", n.forget(needing("web", 3, "a b", "x")), "x")
	if len(n.of)+len(n.by) > 0 {
		t.Errorf("what is gone is remembered: %v, %v", n.of, n.by)
	}
}

// What thousands need is written a few times, however many there are: 5,000 that come in any order lead to fewer than 150 decisions
// on it, and to less than 200 KB. Its binding would otherwise be written 5,000 times, with up to 5,000 names.
func TestManyNeedOne(t *testing.T) {
	const many = 5000
	o := workload("Secret", nil)
	o.SetAPIVersion("v1")
	o.SetName("x")
	s := fleet.NewSnapshot(1, fine("a"), fine("b"), fine("c"))
	n := newNeeds()
	var b *workv1alpha2.ResourceBinding
	decisions, writes, written := 0, 0, 0
	look := func(concerned []binding.Template) {
		for range concerned {
			var required []Need
			for _, by := range n.who(secret("x")) {
				required = append(required, Need{Binding: by})
			}
			slices.SortFunc(required, func(a, b Need) int { return strings.Compare(a.Binding.Name, b.Binding.Name) })
			decisions++
			spec := Decide(s, Template{Object: o, RequiredBy: required}, Standing{Binding: b}).Spec
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
		look(n.set(needing(fmt.Sprintf("web-%04d", i), 1, where, "x")))
	}
	if got := where(b.Spec.DeepCopy()); got != "a b" {
		t.Errorf("it is placed in %q", got)
	}
	var first []workv1alpha2.BindingSnapshot
	for i := range mostNeeds {
		first = append(first, workv1alpha2.BindingSnapshot{Namespace: "shop", Name: fmt.Sprintf("web-%04d", i)})
	}
	if diff := cmp.Diff(first, b.Spec.RequiredBy); diff != "" {
		t.Errorf("required by (-want +got):\n%s", diff)
	}
	t.Logf("%d decisions, %d writes, %d bytes", decisions, writes, written)
	if decisions > 150 || writes > decisions || written > 200<<10 {
		t.Errorf("%d need one: %d decisions, %d writes of %d bytes in all", many, decisions, writes, written)
	}

	// One move is two looks, not thousands.
	decisions = 0
	look(n.set(needing("web-4711", 2, "c", "x")))
	if got := where(b.Spec.DeepCopy()); decisions != 1 || got != "a c -b" {
		t.Errorf("%d decisions lead to %q", decisions, got)
	}
}

// A cluster into which an object only followed is not its own: it neither keeps the object from the cluster that its policy chose,
// nor does the object stay there when those that need it go.
func TestAttachedIsNotOwn(t *testing.T) {
	o := workload("ConfigMap", nil)
	o.SetAPIVersion("v1")
	s := fleet.NewSnapshot(1, fine("a"), fine("b"))
	one := in("a", "b")
	one.SpreadConstraints = []policyv1alpha1.SpreadConstraint{{MaxGroups: 1}}
	tmpl := ofPolicy(o, one)
	b := standing("", 0, one, "")
	for _, other := range []struct{ own, attached string }{{"a", "b"}, {"b", "a"}} {
		b.Spec.Clusters = []workv1alpha2.TargetCluster{{Name: other.own}}
		tmpl.RequiredBy = []Need{{Binding: needing("web", 1, other.attached, "x")}}
		for range 3 { // as often as it is decided on
			b.Spec.Clusters = Decide(s, tmpl, Standing{Binding: b}).Spec.Clusters
			if diff := cmp.Diff([]workv1alpha2.TargetCluster{{Name: "a", Attached: other.attached == "a"}, {Name: "b", Attached: other.attached == "b"}}, b.Spec.Clusters); diff != "" {
				t.Errorf("its own cluster is %s: placed (-want +got):\n%s", other.own, diff)
			}
		}
		tmpl.RequiredBy = nil
		if got := where(Decide(s, tmpl, Standing{Binding: b}).Spec); got != other.own+" -"+other.attached {
			t.Errorf("after those that need it: %q", got)
		}
	}

	// Where both want it, it is its own.
	both := ofPolicy(o, in("a"))
	both.RequiredBy = []Need{{Binding: needing("web", 1, "a", "x")}}
	b.Spec.Clusters = []workv1alpha2.TargetCluster{{Name: "a", Attached: true}}
	if got := Decide(s, both, Standing{Binding: b}).Spec.Clusters; len(got) != 1 || got[0].Attached {
		t.Errorf("placed %+v", got)
	}
}
