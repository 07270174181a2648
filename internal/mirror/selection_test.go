package mirror

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/testenv"
)

// served has the APIs that the cluster of these tests serves.
var served = []member.API{
	servedAPI("", "v1", "ConfigMap", "configmaps", true),
	servedAPI("", "v1", "Event", "events", true),
	servedAPI("", "v1", "Pod", "pods", true),
	servedAPI("", "v1", "Endpoints", "endpoints", true),
	servedAPI("", "v1", "Binding", "bindings", true, "create"),
	servedAPI("", "v1", "Node", "nodes", true),
	servedAPI("apps", "v1", "Deployment", "deployments", true),
	servedAPI("apps", "v1beta1", "Deployment", "deployments", false),
	servedAPI("apps", "v1beta1", "Old", "olds", false),
	servedAPI("example.org", "v1", "Gear", "gears", true),
	// It supports watch, as if a CustomResourceDefinition defined it.
	servedAPI("metrics.k8s.io", "v1beta1", "PodMetrics", "pods", true),
}

func servedAPI(group, version, kind, resource string, preferred bool, verbs ...string) member.API {
	if len(verbs) == 0 {
		verbs = []string{"get", "list", "watch"}
	}
	return member.API{
		GroupVersionKind: schema.GroupVersionKind{Group: group, Version: version, Kind: kind}, Resource: resource, Preferred: preferred,
		Verbs: verbs, Namespaced: kind != "Node",
	}
}

func selecting(r ...clusterv1alpha1.MirrorResources) clusterv1alpha1.Mirror {
	return clusterv1alpha1.Mirror{Resources: r}
}

func excluding(group string, resources ...string) clusterv1alpha1.Mirror {
	return clusterv1alpha1.Mirror{Exclude: []clusterv1alpha1.MirrorExclusion{{Group: group, Resources: resources}}}
}

// TestDecide: the selection does not depend on the order of its inputs, and every type that is
// not mirrored has a reason.
func TestDecide(t *testing.T) {
	type resources = clusterv1alpha1.MirrorResources
	type said = map[string]clusterv1alpha1.Mirror
	const (
		pods, nodes = "v1/pods: placement needs it", "v1/nodes: placement needs it"
		byDefault   = ": the default"
	)
	kind := func(group, version, kind string) map[schema.GroupVersionKind]bool {
		return map[schema.GroupVersionKind]bool{{Group: group, Version: version, Kind: kind}: true}
	}
	web := &clusterv1alpha1.MirrorLabelSelector{MatchLabels: map[string]clusterv1alpha1.MirrorLabelValue{"app": "web"}}
	for name, tc := range map[string]struct {
		said     said
		required map[schema.GroupVersionKind]bool
		defaults *clusterv1alpha1.Mirror
		custom   map[schema.GroupResource]bool
		want     []string // mirrored, in order
		refused  map[string]string
		problems []string
		unsure   bool
	}{
		"Default": {
			want: []string{nodes, pods, "v1/configmaps" + byDefault, "v1/events" + byDefault + " for 1h0m0s", "apps/v1/deployments" + byDefault, "apps/v1beta1/olds" + byDefault, "example.org/v1/gears" + byDefault},
			refused: map[string]string{
				"endpoints": "it changes all the time and says little: select it by name", "bindings": "it cannot be listed and watched",
				"pods.metrics.k8s.io": "the cluster is asked for it when somebody asks, as kubectl top does",
			},
		},
		"Flag": {
			defaults: &clusterv1alpha1.Mirror{Resources: []resources{{Resources: []string{"configmaps"}}}},
			want:     []string{nodes, pods, "v1/configmaps: selected by --mirror-resources"},
		},
		"FlagGivesWay": {
			said:     said{"a": selecting(resources{Resources: []string{"events"}})},
			defaults: &clusterv1alpha1.Mirror{Resources: []resources{{Resources: []string{"configmaps"}}}},
			want:     []string{nodes, pods, "v1/events: selected by a for 1h0m0s"},
		},
		"ExclusionNarrowsTheDefault": {
			said: said{"a": excluding("", "events", "configmaps"), "b": excluding("apps", "*")},
			want: []string{nodes, pods, "example.org/v1/gears" + byDefault},
			refused: map[string]string{
				"events": "excluded by a", "deployments.apps": "excluded by b",
			},
		},
		"NeededThoughExcluded": {
			said:     said{"a": excluding("*", "*")},
			required: kind("apps", "v1", "Deployment"),
			want: []string{
				"v1/nodes: placement needs it, although a excludes it", "v1/pods: placement needs it, although a excludes it",
				"apps/v1/deployments: placement needs it, although a excludes it",
			},
		},
		"NeededWhole": {
			said: said{"a": selecting(resources{Group: "apps", Resources: []string{"deployments"}, Namespaces: []string{"shop"}},
				resources{Resources: []string{"pods"}, LabelSelector: web})},
			required: kind("apps", "v1", "Deployment"),
			want:     []string{nodes, pods, "apps/v1/deployments: placement needs it"},
			problems: []string{
				"deployments.apps are mirrored whole, whatever namespaces and labels are selected: placement needs them",
				"pods are mirrored whole, whatever namespaces and labels are selected: placement needs them",
			},
		},
		"RequiredVersion": {
			said:     said{"a": selecting(resources{Group: "apps", Versions: []string{"v1"}, Resources: []string{"deployments"}})},
			required: kind("apps", "v1beta1", "Deployment"), want: []string{nodes, pods, "apps/v1beta1/deployments: placement needs it"},
		},
		"RequiredButNotServed": {
			said:     said{"a": selecting(resources{Resources: []string{"configmaps"}})},
			required: kind("batch", "v1", "Job"), want: []string{nodes, pods, "v1/configmaps: selected by a"},
		},
		"SelectionsAddUp": {
			said: said{"a": selecting(resources{Resources: []string{"configmaps"}}), "b": selecting(resources{Group: "apps", Resources: []string{"olds"}}, resources{Resources: []string{"configmaps"}})},
			want: []string{nodes, pods, "v1/configmaps: selected by a, b", "apps/v1beta1/olds: selected by b"},
		},
		"ExclusionWins": {
			said:    said{"a": selecting(resources{Resources: []string{"*"}}), "spec.mirror": selecting(resources{Resources: []string{"configmaps"}}), "c": excluding("*", "configmaps")},
			want:    []string{nodes, pods, "v1/endpoints: selected by a", "v1/events: selected by a for 1h0m0s"},
			refused: map[string]string{"configmaps": "excluded by c"},
		},
		"EveryGroup": {
			said: said{"a": selecting(resources{Group: "*", Resources: []string{"*"}})},
			want: []string{
				nodes, pods, "v1/configmaps: selected by a", "v1/events: selected by a for 1h0m0s", "apps/v1/deployments: selected by a",
				"apps/v1beta1/olds: selected by a", "example.org/v1/gears: selected by a",
			},
		},
		"FirstNamedVersion": {
			said: said{"a": selecting(resources{Group: "apps", Versions: []string{"v1beta1", "v1"}, Resources: []string{"deployments"}}), "b": selecting(resources{Group: "apps", Resources: []string{"deployments"}})},
			want: []string{nodes, pods, "apps/v1beta1/deployments: selected by a, b"},
		},
		"VersionsDisagree": { // the policies differ: the cluster's preferred version
			said: said{"a": selecting(resources{Group: "apps", Versions: []string{"v1beta1"}, Resources: []string{"deployments"}}), "b": selecting(resources{Group: "apps", Versions: []string{"v1"}, Resources: []string{"deployments"}})},
			want: []string{nodes, pods, "apps/v1/deployments: selected by b"},
		},
		"NotServed": {
			said: said{
				"a": selecting(resources{Group: "example.org", Resources: []string{"levers"}}),
				"b": selecting(resources{Group: "apps", Versions: []string{"v2"}, Resources: []string{"deployments"}}, resources{Resources: []string{"nodes"}, Namespaces: []string{"x"}}),
			},
			want: []string{nodes, pods},
			problems: []string{
				"a selects levers.example.org, which the cluster does not serve",
				"b selects deployments.apps in version v2, which the cluster serves in v1, v1beta1",
				"b selects nodes in namespaces, and they have none",
			},
		},
		"FiltersAddUp": {
			said: said{
				"a": selecting(resources{Resources: []string{"configmaps"}, Namespaces: []string{"shop", "bank"}}),
				"b": selecting(resources{Resources: []string{"configmaps"}, LabelSelector: web}),
				"c": selecting(resources{Group: "apps", Resources: []string{"*"}, Namespaces: []string{"shop"}}),
				"d": selecting(resources{Group: "apps", Resources: []string{"olds"}}),
			},
			want: []string{
				nodes, pods, "v1/configmaps: selected by a, b of labels app=web; or namespaces bank, shop",
				"apps/v1/deployments: selected by c of namespaces shop", "apps/v1beta1/olds: selected by c, d",
			},
		},
		"LongestLife": {
			said: said{
				"a": {EventsLife: &metav1.Duration{Duration: 5 * time.Minute}, Resources: []resources{{Resources: []string{"events"}}}},
				"b": {EventsLife: &metav1.Duration{Duration: 20 * time.Minute}},
			},
			want: []string{nodes, pods, "v1/events: selected by a for 20m0s"},
		},
		"CustomResources": {
			said:   said{"a": {CustomResources: clusterv1alpha1.MirrorCustomResourcesAll}},
			custom: map[schema.GroupResource]bool{{Group: "example.org", Resource: "gears"}: true},
			want:   []string{nodes, pods, "example.org/v1/gears: selected by a"},
		},
		"NothingReadable": { // an invalid selector does not select everything
			said: said{"a": selecting(resources{Resources: []string{"configmaps"}, LabelSelector: &clusterv1alpha1.MirrorLabelSelector{
				MatchLabels: map[string]clusterv1alpha1.MirrorLabelValue{"no key": ""},
			}})},
			want: []string{nodes, pods}, problems: []string{"a: resources[0].labelSelector counts for nothing"},
		},
		"CustomResourcesUnknown": {
			said: said{"a": {CustomResources: clusterv1alpha1.MirrorCustomResourcesAll}}, want: []string{nodes, pods}, unsure: true,
		},
		"Unreadable": {
			said: said{"a": selecting(resources{Resources: []string{"events"}}, resources{Resources: []string{"configmaps"}, LabelSelector: &clusterv1alpha1.MirrorLabelSelector{
				MatchLabels: map[string]clusterv1alpha1.MirrorLabelValue{"no key": ""},
			}})},
			want:     []string{nodes, pods, "v1/events: selected by a for 1h0m0s"},
			problems: []string{"a: resources[1].labelSelector counts for nothing"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var said []statement
			for by, m := range tc.said {
				said = append(said, newStatement(by, &m))
			}
			f := facts{apis: served, required: tc.required, defaults: tc.defaults, custom: tc.custom}
			random := testenv.Rand(t)
			for range 4 { // in random orders
				random.Shuffle(len(said), func(i, j int) { said[i], said[j] = said[j], said[i] })
				f.apis = slices.Clone(served)
				random.Shuffle(len(f.apis), func(i, j int) { f.apis[i], f.apis[j] = f.apis[j], f.apis[i] })
				compareSelection(t, decide(said, f), tc.want, tc.refused, tc.problems)
				if got := decide(said, f).unsure; got != tc.unsure {
					t.Errorf("unsure %t, want %t", got, tc.unsure)
				}
			}
		})
	}
}

func compareSelection(t *testing.T, s selection, want []string, refused map[string]string, problems []string) {
	t.Helper()
	var got []string
	for _, d := range s.types {
		gr := resourceOf(d.api).String()
		if !d.mirrored {
			if why, ok := refused[gr]; ok && d.reason != why {
				t.Errorf("%s is refused: %s, want: %s", gr, d.reason, why)
			}
			if d.reason == "" {
				t.Errorf("%s is refused without a reason", gr)
			}
			continue
		}
		text := d.api.GroupVersionKind.GroupVersion().String() + "/" + d.api.Resource + ": " + d.reason
		if d.filter.narrow() {
			text += " of " + d.filter.String()
		}
		if d.life > 0 {
			text += " for " + d.life.String()
		}
		got = append(got, text)
		if _, ok := refused[gr]; ok {
			t.Errorf("%s is mirrored", gr)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("mirrored (-want +got):\n%s", diff)
	}
	if len(problems) != len(s.problems) {
		t.Fatalf("problems %q, want %q", s.problems, problems)
	}
	slices.Sort(problems)
	for i, p := range problems {
		if !strings.HasPrefix(s.problems[i], p) {
			t.Errorf("problem %q, want %q", s.problems[i], p)
		}
	}
}

// TestAsks: the requests to a cluster cover every object that a filter selects. The filter
// drops other objects that they return.
func TestAsks(t *testing.T) {
	in := func(namespaces []string, match map[string]clusterv1alpha1.MirrorLabelValue) scope {
		var selector *clusterv1alpha1.MirrorLabelSelector
		if match != nil {
			selector = &clusterv1alpha1.MirrorLabelSelector{MatchLabels: match}
		}
		s, err := newScope(namespaces, selector)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	type match = map[string]clusterv1alpha1.MirrorLabelValue
	shop, web := []string{"shop"}, match{"app": "web"}
	many := make([]string, mostNamespaces+1)
	for i := range many {
		many[i] = fmt.Sprintf("n%02d", i)
	}
	of := func(namespaces ...string) (out []ask) {
		for _, n := range namespaces {
			out = append(out, ask{namespace: n})
		}
		return out
	}
	for name, tc := range map[string]struct {
		filter filter
		want   []ask
	}{
		"Everything":       {filter{}, of("")},
		"OneIsEverything":  {union([]scope{in(shop, web), in(nil, nil)}), of("")},
		"Namespace":        {union([]scope{in(shop, nil)}), of("shop")},
		"Both":             {union([]scope{in(shop, web)}), []ask{{"shop", "app=web"}}},
		"Namespaces":       {union([]scope{in([]string{"shop", "bank"}, web)}), []ask{{"bank", "app=web"}, {"shop", "app=web"}}},
		"SameTwice":        {union([]scope{in(shop, web), in(shop, web)}), []ask{{"shop", "app=web"}}},
		"OtherLabels":      {union([]scope{in(shop, web), in(shop, match{"app": "db"})}), of("shop")},
		"OtherNamespaces":  {union([]scope{in(shop, web), in([]string{"bank"}, nil)}), []ask{{"bank", ""}, {"shop", "app=web"}}},
		"NothingInCommon":  {union([]scope{in(shop, nil), in(nil, web)}), of("")},
		"NamespaceAndAlso": {union([]scope{in(shop, nil), in([]string{"bank", "shop"}, web)}), []ask{{"bank", "app=web"}, {"shop", ""}}},
		"AsManyAsCanBe":    {union([]scope{in(many[1:], nil)}), of(many[1:]...)},
		"TooMany":          {union([]scope{in(many, web)}), []ask{{"", "app=web"}}},
		"TooManyInAll":     {union([]scope{in(many[1:], web), in(many[:1], nil)}), of("")},
	} {
		t.Run(name, func(t *testing.T) {
			got := tc.filter.asks()
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(ask{})); diff != "" {
				t.Errorf("asked for (-want, +got):\n%s", diff)
			}
			for _, ns := range append([]string{"shop", "bank", "x"}, many...) {
				for _, l := range []map[string]string{nil, {"app": "web"}, {"app": "db"}} {
					sent := slices.ContainsFunc(got, func(a ask) bool {
						parsed, err := labels.Parse(a.selector)
						return err == nil && (a.namespace == "" || a.namespace == ns) && parsed.Matches(labels.Set(l))
					})
					if tc.filter.has(ns, l) && !sent {
						t.Errorf("an object in %s with %v is to be mirrored, and not asked for", ns, l)
					}
				}
			}
		})
	}
}

func TestSelect(t *testing.T) {
	all := clusterv1alpha1.MirrorResources{Group: "apps", Resources: []string{"*"}}
	for name, tc := range map[string]struct {
		types []string
		want  []clusterv1alpha1.MirrorResources
	}{
		"Core":       {[]string{"pods"}, []clusterv1alpha1.MirrorResources{{Resources: []string{"pods"}}}},
		"Group":      {[]string{"ingresses.networking.k8s.io"}, []clusterv1alpha1.MirrorResources{{Group: "networking.k8s.io", Resources: []string{"ingresses"}}}},
		"WholeGroup": {[]string{"*.apps"}, []clusterv1alpha1.MirrorResources{all}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Select(tc.types)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got.Resources); diff != "" {
				t.Errorf("selection (-want +got):\n%s", diff)
			}
		})
	}
	if got, err := Select(nil); got != nil || err != nil {
		t.Errorf("nothing selects %v, %v", got, err)
	}
	for _, name := range []string{"", "apps/v1", "Deployment", ".apps"} {
		if _, err := Select([]string{name}); err == nil || !strings.Contains(err.Error(), strconv.Quote(name)) {
			t.Errorf("%q: %v, want an error that names it", name, err)
		}
	}
}

// TestListsOfAll: at most listsOfAll lists run concurrently. A list that hangs frees its slot
// after slowList.
func TestListsOfAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMirror(nil, newFleet(), logr.Discard())
		begun := make(chan struct{})
		for range listsOfAll + 1 {
			go func() {
				if _, ok := m.listSlot(t.Context()); ok {
					begun <- struct{}{}
				}
			}()
		}
		for range listsOfAll {
			<-begun
		}
		start := time.Now()
		<-begun
		if waited := time.Since(start); waited != slowList {
			t.Errorf("one more list began after %s, want %s", waited, slowList)
		}
		time.Sleep(2 * slowList)
		done, ok := m.listSlot(t.Context())
		if !ok {
			t.Fatal("no list slot is free")
		}
		done()
		done()
		if len(m.listing) != 0 {
			t.Errorf("%d places are taken, want none", len(m.listing))
		}
	})
}

// TestDecideWithin: if the agent of a cluster lets the hub read only some types and namespaces,
// the mirror requests nothing else, for every selection.
func TestDecideWithin(t *testing.T) {
	within := func(api member.API, namespaces ...string) member.API {
		api.Within = append([]string{}, namespaces...)
		return api
	}
	apis := []member.API{
		servedAPI("", "v1", "ConfigMap", "configmaps", true),
		within(servedAPI("", "v1", "Secret", "secrets", true), "lab", "shop"),
		within(servedAPI("", "v1", "Node", "nodes", true)),
		within(servedAPI("example.org", "v1", "Gear", "gears", true), "lab", "shop"),
	}
	many := make([]string, 0, 3*mostNamespaces)
	for i := range cap(many) {
		many = append(many, fmt.Sprintf("n%02d", i))
	}
	for name, tc := range map[string]struct {
		apis  []member.API
		said  *clusterv1alpha1.Mirror
		asked map[string][]ask
	}{
		"Default": {apis, nil, map[string][]ask{"configmaps": {{}}, "secrets": {{"lab", ""}, {"shop", ""}}, "gears": {{"lab", ""}, {"shop", ""}}}},
		"Selected": {apis, new(selecting(
			clusterv1alpha1.MirrorResources{Resources: []string{"secrets"}, Namespaces: []string{"shop", "other"}},
			clusterv1alpha1.MirrorResources{Group: "example.org", Resources: []string{"gears"}, Namespaces: []string{"other"}},
		)), map[string][]ask{"secrets": {{"shop", ""}}}},
		"Labels": {apis, new(selecting(clusterv1alpha1.MirrorResources{
			Resources: []string{"secrets"}, LabelSelector: &clusterv1alpha1.MirrorLabelSelector{MatchLabels: map[string]clusterv1alpha1.MirrorLabelValue{"a": "b"}},
		})), map[string][]ask{"secrets": {{"lab", "a=b"}, {"shop", "a=b"}}}},
		"Many": {[]member.API{within(servedAPI("", "v1", "Secret", "secrets", true), many...)}, nil, map[string][]ask{"secrets": asksOf(many)}},
	} {
		t.Run(name, func(t *testing.T) {
			var said []statement
			if tc.said != nil {
				said = append(said, newStatement("spec.mirror", tc.said))
			}
			asked := map[string][]ask{}
			for _, d := range decide(said, facts{apis: tc.apis, custom: map[schema.GroupResource]bool{}}).types {
				switch {
				case d.mirrored:
					asked[d.api.Resource] = d.filter.asks()
					if d.api.Within != nil && (d.filter.has("elsewhere", map[string]string{"a": "b"}) || d.filter.readable("elsewhere")) {
						t.Errorf("%s of a namespace that may not be read are taken for known", d.api.Resource)
					}
				case d.api.Within != nil && tc.said == nil && !strings.Contains(d.reason, "profile"):
					t.Errorf("%s are not mirrored: %s", d.api.Resource, d.reason)
				}
			}
			if diff := cmp.Diff(tc.asked, asked, cmp.AllowUnexported(ask{})); diff != "" {
				t.Errorf("asked (-want +got):\n%s", diff)
			}
		})
	}
}

func asksOf(namespaces []string) []ask {
	asks := make([]ask, 0, len(namespaces))
	for _, n := range namespaces {
		asks = append(asks, ask{n, ""})
	}
	return asks
}
