package access

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	"orrery.dev/orrery/internal/scheduler"
)

// team returns a ClusterAccess for the namespaces with the label team=NAME, to clusters by name.
func team(name string, clusters ...string) *policyv1alpha1.ClusterAccess {
	return &policyv1alpha1.ClusterAccess{
		ObjectMeta: metav1.ObjectMeta{Name: name + "-in-" + strings.Join(clusters, "-")},
		Spec: policyv1alpha1.ClusterAccessSpec{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": name}},
			ClusterAffinity:   &policyv1alpha1.ClusterAffinity{ClusterNames: clusters},
		},
	}
}

func but(a *policyv1alpha1.ClusterAccess, change func(*policyv1alpha1.ClusterAccessSpec)) *policyv1alpha1.ClusterAccess {
	change(&a.Spec)
	return a
}

var (
	oak  = &scheduler.Cluster{Name: "oak", Labels: labels.Set{"env": "prod"}, Provider: "metal", Region: "north", Zones: []string{"n1"}}
	elm  = &scheduler.Cluster{Name: "elm", Labels: labels.Set{"env": "test"}, Provider: "cloud", Region: "south"}
	ash  = &scheduler.Cluster{Name: "ash"}
	gpu  = corev1.Taint{Key: "gpu", Value: "yes", Effect: corev1.TaintEffectNoSchedule}
	slow = corev1.Taint{Key: "slow", Effect: corev1.TaintEffectNoExecute}
)

// rules returns the Rules of the namespaces a and a2 (team a), b (team b) and free (no label).
func rules(t *testing.T, byDefault Default, accesses ...*policyv1alpha1.ClusterAccess) *Rules {
	t.Helper()
	r := NewRules(byDefault)
	for name, l := range map[string]labels.Set{"a": {"team": "a"}, "a2": {"team": "a"}, "b": {"team": "b"}, "free": nil} {
		r.Namespace(name, l)
	}
	for _, a := range accesses {
		_, _ = r.Access(a) // the fences report invalid ones
	}
	return r
}

func allowed(s *Set, namespace string) string {
	var names []string
	for _, c := range []*scheduler.Cluster{ash, elm, oak} {
		if s.Allowed(namespace, c) {
			names = append(names, c.Name)
		}
	}
	return strings.Join(names, " ")
}

func TestAllowed(t *testing.T) {
	const every = "ash elm oak"
	by := func(f func(*policyv1alpha1.ClusterAffinity)) *policyv1alpha1.ClusterAccess {
		return but(team("a"), func(s *policyv1alpha1.ClusterAccessSpec) { f(s.ClusterAffinity) })
	}
	field := func(key string, values ...string) func(*policyv1alpha1.ClusterAffinity) {
		return func(a *policyv1alpha1.ClusterAffinity) {
			a.FieldSelector = &policyv1alpha1.FieldSelector{MatchExpressions: []policyv1alpha1.FieldSelectorRequirement{
				{Key: key, Operator: metav1.LabelSelectorOpIn, Values: values},
			}}
		}
	}
	wrongNamespaces := but(team("a", "oak"), func(s *policyv1alpha1.ClusterAccessSpec) {
		s.NamespaceSelector.MatchLabels = map[string]string{"team": "not a label"}
	})
	wrongNamespaces.Name = "wrong"
	cases := map[string]struct {
		byDefault Default
		accesses  []*policyv1alpha1.ClusterAccess
		want      map[string]string // clusters by namespace
	}{
		"Nothing":        {want: map[string]string{"a": every, "b": every, "free": every, "unheard-of": every, "": every}},
		"NothingByFlag":  {byDefault: None, want: map[string]string{"a": "", "free": "", "unheard-of": "", "": every}},
		"One":            {accesses: []*policyv1alpha1.ClusterAccess{team("a", "oak")}, want: map[string]string{"a": "oak", "a2": "oak", "b": every, "free": every, "unheard-of": "", "": every}},
		"OneByFlag":      {byDefault: None, accesses: []*policyv1alpha1.ClusterAccess{team("a", "oak")}, want: map[string]string{"a": "oak", "b": "", "free": ""}},
		"TwoAddUp":       {accesses: []*policyv1alpha1.ClusterAccess{team("a", "oak"), team("a", "elm")}, want: map[string]string{"a": "elm oak", "b": every}},
		"ApartForEach":   {accesses: []*policyv1alpha1.ClusterAccess{team("a", "oak"), team("b", "elm", "ash")}, want: map[string]string{"a": "oak", "b": "ash elm"}},
		"UnknownCluster": {accesses: []*policyv1alpha1.ClusterAccess{team("a", "yew")}, want: map[string]string{"a": ""}},
		"NoAffinity": {
			accesses: []*policyv1alpha1.ClusterAccess{but(team("a"), func(s *policyv1alpha1.ClusterAccessSpec) { s.ClusterAffinity = nil })},
			want:     map[string]string{"a": every},
		},
		"EveryNamespace": {
			accesses: []*policyv1alpha1.ClusterAccess{but(team("a", "oak"), func(s *policyv1alpha1.ClusterAccessSpec) {
				s.NamespaceSelector = &metav1.LabelSelector{}
			})},
			want: map[string]string{"a": "oak", "b": "oak", "free": "oak", "unheard-of": "", "": every},
		},
		"ByLabel": {
			accesses: []*policyv1alpha1.ClusterAccess{by(func(a *policyv1alpha1.ClusterAffinity) {
				a.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"env": "test"}}
			})},
			want: map[string]string{"a": "elm"},
		},
		"ByProvider": {accesses: []*policyv1alpha1.ClusterAccess{by(field("provider", "cloud"))}, want: map[string]string{"a": "elm"}},
		"ByRegion":   {accesses: []*policyv1alpha1.ClusterAccess{by(field("region", "north", "west"))}, want: map[string]string{"a": "oak"}},
		"ByZone":     {accesses: []*policyv1alpha1.ClusterAccess{by(field("zone", "n1"))}, want: map[string]string{"a": "oak"}},
		"Excluded": {
			accesses: []*policyv1alpha1.ClusterAccess{by(func(a *policyv1alpha1.ClusterAffinity) { a.ExcludeClusters = []string{"oak"} })},
			want:     map[string]string{"a": "ash elm"},
		},
		// An invalid selector admits no namespace, and other ClusterAccesses still do.
		"NamespacesUnread": {accesses: []*policyv1alpha1.ClusterAccess{wrongNamespaces, team("b", "elm")}, want: map[string]string{"a": "", "b": "elm", "free": "", "": every}},
		"ClustersUnread":   {accesses: []*policyv1alpha1.ClusterAccess{by(field("planet", "x"))}, want: map[string]string{"a": "", "b": every}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := rules(t, tc.byDefault, tc.accesses...).Set()
			got := map[string]string{}
			for namespace := range tc.want {
				got[namespace] = allowed(s, namespace)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("clusters (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTolerates(t *testing.T) {
	granting := func(a *policyv1alpha1.ClusterAccess, tolerations ...corev1.Toleration) *policyv1alpha1.ClusterAccess {
		a.Spec.ClusterTolerations = tolerations
		return a
	}
	exists := corev1.Toleration{Key: "gpu", Operator: corev1.TolerationOpExists}
	cases := map[string]struct {
		accesses []*policyv1alpha1.ClusterAccess
		cluster  *scheduler.Cluster
		taint    corev1.Taint
		want     bool
	}{
		"NoFence":        {nil, oak, gpu, true},
		"NotGranted":     {[]*policyv1alpha1.ClusterAccess{team("a", "oak")}, oak, gpu, false},
		"Granted":        {[]*policyv1alpha1.ClusterAccess{granting(team("a", "oak"), exists)}, oak, gpu, true},
		"AnotherTaint":   {[]*policyv1alpha1.ClusterAccess{granting(team("a", "oak"), exists)}, oak, slow, false},
		"AnotherValue":   {[]*policyv1alpha1.ClusterAccess{granting(team("a", "oak"), corev1.Toleration{Key: "gpu", Value: "no"})}, oak, gpu, false},
		"AnotherTeam":    {[]*policyv1alpha1.ClusterAccess{team("a", "oak"), granting(team("b", "oak"), exists)}, oak, gpu, false},
		"AnotherCluster": {[]*policyv1alpha1.ClusterAccess{team("a", "oak"), granting(team("a", "elm"), exists)}, oak, gpu, false},
		"AddedUp":        {[]*policyv1alpha1.ClusterAccess{team("a", "oak", "elm"), granting(team("a", "oak"), exists)}, oak, gpu, true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := rules(t, All, tc.accesses...).Set().Fence("a").Tolerates(tc.cluster, &tc.taint); got != tc.want {
				t.Errorf("%v, want %v", got, tc.want)
			}
		})
	}
}

// TestChanged: only namespaces whose clusters changed are returned.
func TestChanged(t *testing.T) {
	r := rules(t, All)
	said := func(what string, want []string, got []string) {
		t.Helper()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: changed (-want +got):\n%s", what, diff)
		}
	}
	set := func(a *policyv1alpha1.ClusterAccess) []string {
		t.Helper()
		changed, err := r.Access(a)
		if err != nil {
			t.Error(err)
		}
		return changed
	}
	before := r.Set()
	a, b := team("a", "oak"), team("b", "elm")
	said("a new one", []string{"a", "a2"}, set(a))
	said("the same again", nil, set(a.DeepCopy()))
	said("another team's", []string{"b"}, set(b))
	wider := a.DeepCopy()
	wider.Spec.ClusterAffinity.ClusterNames = []string{"oak", "ash"}
	said("an edit", []string{"a", "a2"}, set(wider))
	for name, want := range map[string]bool{"a": false, "free": true, "new": true} {
		if got := r.Namespace(name, labels.Set{"team": "a", "other": "label"}); got != want {
			t.Errorf("namespace %s: changed %v, want %v", name, got, want)
		}
	}
	if got := allowed(r.Set(), "free"); got != "ash oak" {
		t.Errorf("free may use %q", got)
	}
	r.RemoveNamespace("new")
	said("one that goes", []string{"a", "a2", "free"}, r.RemoveAccess(wider.Name))
	said("one that is not there", nil, r.RemoveAccess("nobody"))
	if got := allowed(r.Set(), "a"); got != "ash elm oak" {
		t.Errorf("a may use %q", got)
	}
	if got := allowed(before, "b"); got != "ash elm oak" {
		t.Errorf("a set changed: b may use %q", got)
	}
}

// TestMessages: a fence names its ClusterAccesses.
func TestMessages(t *testing.T) {
	wrong := but(team("a", "oak"), func(s *policyv1alpha1.ClusterAccessSpec) {
		s.NamespaceSelector = &metav1.LabelSelector{
			MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "team", Operator: "Like"}},
		}
	})
	cases := map[string]struct {
		byDefault Default
		accesses  []*policyv1alpha1.ClusterAccess
		namespace string
		want      string
	}{
		"One":     {All, []*policyv1alpha1.ClusterAccess{team("a", "oak")}, "a", "ClusterAccess a-in-oak lets"},
		"Two":     {All, []*policyv1alpha1.ClusterAccess{team("a", "oak"), team("a", "elm")}, "a", "ClusterAccess a-in-elm, a-in-oak lets"},
		"Many":    {All, []*policyv1alpha1.ClusterAccess{team("a", "1"), team("a", "2"), team("a", "3"), team("a", "4")}, "a", "a-in-3, 1 more lets"},
		"None":    {None, nil, "a", "no ClusterAccess selects its namespace"},
		"Unknown": {None, nil, "unheard-of", "not known yet"},
		"Wrong":   {All, []*policyv1alpha1.ClusterAccess{wrong}, "free", "spec.namespaceSelector"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			f := rules(t, tc.byDefault, tc.accesses...).Set().Fence(tc.namespace)
			if got := f.Closed(); !strings.Contains(got, tc.want) {
				t.Errorf("%q lacks %q", got, tc.want)
			}
			if f.Known() != (name != "Unknown") {
				t.Errorf("known %v", f.Known())
			}
		})
	}
	if f := Unknown().Fence("a"); f.Known() || f.Allows(oak) {
		t.Error("a cluster is open while nothing is known")
	}
}

func TestDefault(t *testing.T) {
	var d Default
	if d.String() != "all" {
		t.Errorf("the default is %q", d.String())
	}
	if err := d.Set("none"); err != nil || d != None {
		t.Errorf("%q %v", d, err)
	}
	if err := d.Set("some"); err == nil {
		t.Error("some is taken")
	}
}
