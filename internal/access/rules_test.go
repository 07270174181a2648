package access

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	"orrery.dev/orrery/internal/scheduler"
)

// tenants returns Rules of n namespaces, and a ClusterAccess for each. It requires two labels, and
// all namespaces have one of them.
func tenants(t testing.TB, n int) *Rules {
	t.Helper()
	r := NewRules(None)
	for i := range n {
		r.Namespace(fmt.Sprintf("team-%d", i), labels.Set{"env": "prod", "team": fmt.Sprint(i), "kubernetes.io/metadata.name": fmt.Sprintf("team-%d", i)})
	}
	for i := range n {
		if _, err := r.Access(ofTenant(i, "oak")); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

func ofTenant(i int, clusters ...string) *policyv1alpha1.ClusterAccess {
	a := team(fmt.Sprint(i), clusters...)
	a.Name = fmt.Sprintf("team-%05d", i)
	a.Spec.NamespaceSelector.MatchLabels["env"] = "prod"
	return a
}

// TestStepsOfManyGrants: what a change costs does not depend on the number of ClusterAccesses and
// namespaces, and a start costs a number of comparisons for each.
func TestStepsOfManyGrants(t *testing.T) {
	for _, n := range []int{500, 1000, 3000} {
		r := tenants(t, n)
		if r.compared > 0 {
			t.Errorf("%d tenants: %d comparisons before the first Set", n, r.compared)
		}
		steps := func(what string, most int, do func() []string, want ...string) {
			t.Helper()
			r.compared = 0
			if diff := cmp.Diff(want, do()); diff != "" {
				t.Errorf("%d tenants, %s: changed (-want +got):\n%s", n, what, diff)
			}
			if r.compared > uint64(most) {
				t.Errorf("%d tenants, %s: %d comparisons, want at most %d", n, what, r.compared, most)
			}
		}
		set := func(a *policyv1alpha1.ClusterAccess) func() []string {
			return func() []string {
				changed, err := r.Access(a)
				if err != nil {
					t.Error(err)
				}
				return changed
			}
		}
		steps("start", 2*n, func() []string { r.Set(); return nil })
		steps("the next Set", 0, func() []string { r.Set(); return nil })
		steps("edit", 2, set(ofTenant(7, "oak", "elm")), "team-7")
		steps("the same again", 0, set(ofTenant(7, "oak", "elm")))
		steps("new", 1, set(team("8", "ash")), "team-8")
		steps("removed", 1, func() []string { return r.RemoveAccess(ofTenant(9).Name) }, "team-9")
		steps("labels", 3, func() []string {
			if !r.Namespace("team-3", labels.Set{"env": "prod", "team": "4"}) {
				t.Error("no change")
			}
			return nil
		})
		steps("the same labels", 0, func() []string {
			if r.Namespace("team-3", labels.Set{"env": "prod", "team": "4"}) {
				t.Error("a change")
			}
			return nil
		})
		s := r.Set()
		for namespace, want := range map[string]string{"team-3": "oak", "team-7": "elm oak", "team-8": "ash oak", "team-9": ""} {
			if got := allowed(s, namespace); got != want {
				t.Errorf("%d tenants: %s may use %q, want %q", n, namespace, got, want)
			}
		}
	}
}

// TestWhatGoesIsReleased: ClusterAccesses and namespaces that are gone leave nothing.
func TestWhatGoesIsReleased(t *testing.T) {
	const n = 300
	r := tenants(t, n)
	r.Set()
	if len(r.shared) != n || len(r.users) != n {
		t.Fatalf("%d fences, %d with users, want %d", len(r.shared), len(r.users), n)
	}
	r.Namespace("everyone", labels.Set{"team": "x"})
	for i := range n { // each version of a ClusterAccess makes a fence
		a := team("x", fmt.Sprint(i))
		a.Name = "temporary"
		if _, err := r.Access(a); err != nil {
			t.Fatal(err)
		}
	}
	if len(r.shared) != n+1 {
		t.Errorf("%d fences after %d edits of one ClusterAccess, want %d", len(r.shared), n, n+1)
	}
	r.RemoveAccess("temporary")
	for i := range n {
		if i%2 == 0 {
			r.RemoveAccess(ofTenant(i).Name)
			r.RemoveNamespace(fmt.Sprintf("team-%d", i))
		} else {
			r.RemoveNamespace(fmt.Sprintf("team-%d", i))
			r.RemoveAccess(ofTenant(i).Name)
		}
	}
	r.RemoveNamespace("everyone")
	for what, left := range map[string]int{
		"fences": len(r.fences), "shared fences": len(r.shared), "users of fences": len(r.users),
		"grants": len(r.grants.named), "grants by label": len(r.grants.requiring), "grants without labels": len(r.grants.loose),
		"namespaces": len(r.namespaces.labels), "namespaces by label": len(r.namespaces.having),
	} {
		if left > 0 {
			t.Errorf("%d %s are left", left, what)
		}
	}
}

// TestRulesAreWhatTheySay compares, after random changes, the fence of each namespace and what was
// said to change with all namespaceSelectors applied to all namespaces.
func TestRulesAreWhatTheySay(t *testing.T) {
	const seed = 8
	random := rand.New(rand.NewPCG(seed, seed))
	pick := func(of ...string) string { return of[random.IntN(len(of))] }
	some := func() labels.Set {
		has := labels.Set{}
		for _, key := range []string{"a", "b", "c"} {
			if random.IntN(2) == 0 {
				has[key] = pick("x", "y", "z")
			}
		}
		return has
	}
	access := func() *policyv1alpha1.ClusterAccess {
		a := &policyv1alpha1.ClusterAccess{ObjectMeta: metav1.ObjectMeta{Name: pick("g1", "g2", "g3", "g4", "g5", "g6")}}
		a.Spec.ClusterAffinity = &policyv1alpha1.ClusterAffinity{ClusterNames: []string{pick("oak", "elm", "ash")}}
		if random.IntN(20) == 0 {
			return a // its selector selects nothing
		}
		selector := &metav1.LabelSelector{}
		for range random.IntN(3) {
			r := metav1.LabelSelectorRequirement{Key: pick("a", "b", "c"), Operator: metav1.LabelSelectorOperator(pick("In", "NotIn", "Exists", "DoesNotExist", "Like"))}
			if r.Operator == metav1.LabelSelectorOpIn || r.Operator == metav1.LabelSelectorOpNotIn {
				r.Values = []string{pick("x", "y", "z"), pick("x", "y", "z")}
			}
			selector.MatchExpressions = append(selector.MatchExpressions, r)
		}
		if random.IntN(2) == 0 {
			selector.MatchLabels = some()
		}
		a.Spec.NamespaceSelector = selector
		return a
	}
	r := NewRules(Default(pick("all", "none")))
	namespaces, grants := map[string]labels.Set{}, map[string]*policyv1alpha1.ClusterAccess{}
	// want is what each namespace is selected by: the name of each ClusterAccess and its clusters.
	want := func() map[string]string {
		all := map[string]string{}
		for name, has := range namespaces {
			var by []string
			for _, a := range grants {
				if compile(a).namespaces.Matches(has) {
					by = append(by, fmt.Sprint(a.Name, a.Spec.ClusterAffinity.ClusterNames))
				}
			}
			slices.Sort(by)
			all[name] = strings.Join(by, " ")
		}
		return all
	}
	for step := range 3000 {
		if step == 20 {
			r.Set() // the changes before are of a start
		}
		before := want()
		var changed, differ []string
		switch random.IntN(6) {
		case 0, 1:
			a := access()
			grants[a.Name] = a
			changed, _ = r.Access(a)
		case 2:
			name := pick("g1", "g2", "g3", "g4", "g5", "g6")
			delete(grants, name)
			changed = r.RemoveAccess(name)
		case 3, 4:
			name, has := pick("n1", "n2", "n3", "n4", "n5"), some()
			namespaces[name] = has
			if r.Namespace(name, has) {
				changed = []string{name}
			}
		default:
			name := pick("n1", "n2", "n3", "n4", "n5")
			delete(namespaces, name)
			r.RemoveNamespace(name)
		}
		if step < 20 {
			continue
		}
		s, after := r.Set(), want()
		distinct := map[string]*Fence{}
		for name, by := range after {
			f := s.Fence(name)
			var got []string
			if f != nil {
				for _, g := range f.grants {
					got = append(got, fmt.Sprint(g.name, g.spec.ClusterAffinity.ClusterNames))
				}
			}
			if strings.Join(got, " ") != by {
				t.Fatalf("seed %d, step %d: namespace %s with %v has %v, want %s", seed, step, name, namespaces[name], got, by)
			}
			if other, ok := distinct[by]; ok && other != f {
				t.Fatalf("seed %d, step %d: two fences for %s", seed, step, by)
			}
			if distinct[by] = f; before[name] != by {
				differ = append(differ, name)
			}
			if _, known := before[name]; !known && by == "" {
				differ = append(differ, name)
			}
		}
		delete(distinct, "")
		if len(r.shared) != len(distinct) || len(r.users) != len(distinct) {
			t.Fatalf("seed %d, step %d: %d shared fences, %d with users, want %d", seed, step, len(r.shared), len(r.users), len(distinct))
		}
		slices.Sort(differ)
		// An edit that leaves the clusters as they are may be a change all the same.
		for _, name := range differ {
			if !slices.Contains(changed, name) {
				t.Fatalf("seed %d, step %d: the change of %s is not told: %v", seed, step, name, changed)
			}
		}
	}
}

// BenchmarkClusterAccesses measures 3,000 ClusterAccesses of as many namespaces: until the first
// Set of a start, and an edit of one until the next Set.
func BenchmarkClusterAccesses(b *testing.B) {
	const n = 3000
	oak := &scheduler.Cluster{Name: "oak"}
	b.Run("Start", func(b *testing.B) {
		for b.Loop() {
			if s := tenants(b, n).Set(); !s.Allowed("team-2999", oak) {
				b.Fatal("it is closed")
			}
		}
	})
	b.Run("Edit", func(b *testing.B) {
		r := tenants(b, n)
		r.Set()
		for i := 0; b.Loop(); i++ {
			if changed, err := r.Access(ofTenant(i%n, "oak", fmt.Sprint(i))); err != nil || len(changed) != 1 {
				b.Fatal(changed, err)
			}
			r.Set()
		}
	})
}
