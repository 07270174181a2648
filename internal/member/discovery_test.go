package member

import (
	"net/http"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/testenv"
)

// recorder records the status codes of discovery requests, by path.
type recorder struct {
	http.RoundTripper

	codes map[string][]int
}

func (r *recorder) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := r.RoundTripper.RoundTrip(req)
	if err == nil {
		r.codes[req.URL.Path] = append(r.codes[req.URL.Path], resp.StatusCode)
	}
	return resp, err
}

func connectionTo(t *testing.T, server int) *connection {
	t.Helper()
	cluster, secret, err := fromKubeconfig(JoinOptions{Name: "one", Kubeconfig: testenv.Kubeconfig(server)})
	if err != nil {
		t.Fatal(err)
	}
	c, err := newConnection(dialDirectly, cluster, secret, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close)
	return c
}

func TestConditionalDiscovery(t *testing.T) {
	c := connectionTo(t, 2)
	answers := &recorder{RoundTripper: c.transport, codes: map[string][]int{}}
	c.transport = answers
	d := &discoverer{connection: c}

	first, err := d.look(t.Context(), &APIs{})
	if err != nil {
		t.Fatal(err)
	}
	second, err := d.look(t.Context(), first)
	if err != nil {
		t.Fatal(err)
	}
	if second != first {
		t.Error("nothing changed, but the list is a new one")
	}
	for _, path := range []string{"/api", "/apis"} {
		if diff := cmp.Diff([]int{http.StatusOK, http.StatusNotModified}, answers.codes[path]); diff != "" {
			t.Errorf("answers to %s (-want +got):\n%s", path, diff)
		}
	}

	// One half of the list changes. The unchanged half must not be lost.
	create(t, 2, apple())
	gvk := schema.GroupVersionKind{Group: "fruit.example.com", Version: "v1", Kind: "Apple"}
	eventually(t, "the new type is listed", func() (bool, string) {
		third, err := d.look(t.Context(), first)
		if err != nil {
			t.Fatal(err)
		}
		_, apple := third.Kind(gvk)
		_, pod := third.Kind(schema.GroupVersionKind{Version: "v1", Kind: "Pod"})
		return apple == presence.Present && pod == presence.Present, apple.String() + " " + pod.String()
	})
}

func TestLegacyDiscoverySaysTheSame(t *testing.T) {
	d := &discoverer{connection: connectionTo(t, 1)}
	modern, err := d.look(t.Context(), &APIs{})
	if err != nil {
		t.Fatal(err)
	}
	legacy, err := d.legacy(&APIs{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(modern.All(), legacy.All()); diff != "" {
		t.Errorf("types (-aggregated +legacy):\n%s", diff)
	}
	if !legacy.Complete() || modern.Hash() != legacy.Hash() {
		t.Errorf("legacy list complete %t with hash %s, want %s", legacy.Complete(), legacy.Hash(), modern.Hash())
	}
}

func group(name string, versions ...apidiscoveryv2.APIVersionDiscovery) apidiscoveryv2.APIGroupDiscovery {
	return apidiscoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: name}, Versions: versions}
}

func versionOf(name string, freshness apidiscoveryv2.DiscoveryFreshness, kinds ...string) apidiscoveryv2.APIVersionDiscovery {
	v := apidiscoveryv2.APIVersionDiscovery{Version: name, Freshness: freshness}
	for _, kind := range kinds {
		gvr, singular := guess(kind)
		v.Resources = append(v.Resources, apidiscoveryv2.APIResourceDiscovery{
			Resource: gvr, SingularResource: singular, Scope: apidiscoveryv2.ScopeCluster,
			ResponseKind: &metav1.GroupVersionKind{Kind: kind}, Verbs: []string{"list", "get"},
		})
	}
	return v
}

func guess(kind string) (plural, singular string) {
	singular = string(kind[0]+'a'-'A') + kind[1:]
	return singular + "s", singular
}

func TestSnapshot(t *testing.T) {
	const (
		fresh = apidiscoveryv2.DiscoveryFreshnessCurrent
		stale = apidiscoveryv2.DiscoveryFreshnessStale
	)
	kind := func(group, version, kind string) schema.GroupVersionKind {
		return schema.GroupVersionKind{Group: group, Version: version, Kind: kind}
	}
	before := []apidiscoveryv2.APIGroupDiscovery{
		group("a", versionOf("v1", fresh, "Pear", "Plum")), group("b", versionOf("v2", fresh, "Fig"), versionOf("v1", fresh, "Fig", "Nut")),
	}
	cases := map[string]struct {
		now         []apidiscoveryv2.APIGroupDiscovery
		unavailable []string
		want        map[schema.GroupVersionKind]presence.Presence
		complete    bool
	}{
		"Same": {
			now: before, complete: true,
			want: map[schema.GroupVersionKind]presence.Presence{
				kind("a", "v1", "Pear"): presence.Present, kind("b", "v1", "Nut"): presence.Present, kind("c", "v1", "Oak"): presence.Absent,
			},
		},
		"TypeRemoved": {
			now:      []apidiscoveryv2.APIGroupDiscovery{group("a", versionOf("v1", fresh, "Pear"))},
			complete: true,
			want:     map[schema.GroupVersionKind]presence.Presence{kind("a", "v1", "Pear"): presence.Present, kind("a", "v1", "Plum"): presence.Absent},
		},
		"StaleAndEmptyKeepsWhatWasThere": {
			now: []apidiscoveryv2.APIGroupDiscovery{group("a", versionOf("v1", stale)), before[1]},
			want: map[schema.GroupVersionKind]presence.Presence{
				kind("a", "v1", "Pear"): presence.Unknown, kind("a", "v1", "Plum"): presence.Unknown,
				kind("b", "v1", "Nut"): presence.Present, kind("c", "v1", "Oak"): presence.Absent,
				kind("a", "v1", "Fig"): presence.Unknown, kind("a", "v2", "Fig"): presence.Unknown, kind("b", "v1", "Pear"): presence.Absent,
			},
		},
		"UnavailableThoughCurrent": {
			now: before, unavailable: []string{"b/v1"},
			want: map[schema.GroupVersionKind]presence.Presence{
				kind("b", "v1", "Nut"): presence.Unknown, kind("b", "v2", "Fig"): presence.Present, kind("c", "v1", "Oak"): presence.Absent,
				kind("b", "v2", "Oak"): presence.Unknown,
			},
		},
		"UnavailableAndNotListed": {
			now: before[:1], unavailable: []string{"b/v1", "b/v2"},
			want: map[schema.GroupVersionKind]presence.Presence{kind("b", "v2", "Fig"): presence.Unknown, kind("a", "v1", "Pear"): presence.Present},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			old, err := snapshot(before, &APIs{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			got, err := snapshot(tc.now, old, tc.unavailable)
			if err != nil {
				t.Fatal(err)
			}
			if got.Complete() != tc.complete {
				t.Errorf("complete is %t, want %t", got.Complete(), tc.complete)
			}
			for gvk, want := range tc.want {
				if _, presence := got.Kind(gvk); presence != want {
					t.Errorf("%s is %s, want %s", gvk, presence, want)
				}
			}
		})
	}
}

// TestFailedDiscovery: after a failed discovery every unlisted type is unknown, in all groups,
// even if few groups were stale before.
func TestFailedDiscovery(t *testing.T) {
	const fresh = apidiscoveryv2.DiscoveryFreshnessCurrent
	before, err := snapshot([]apidiscoveryv2.APIGroupDiscovery{group("a", versionOf("v1", fresh, "Pear"))}, &APIs{}, []string{"metrics.k8s.io/v1beta1"})
	if err != nil {
		t.Fatal(err)
	}
	for name, apis := range map[string]*APIs{"NeverAsked": {}, "FailedAfterAStaleGroup": before.incomplete("connection refused")} {
		t.Run(name, func(t *testing.T) {
			if _, got := apis.Kind(schema.GroupVersionKind{Group: "c", Version: "v1", Kind: "Oak"}); got != presence.Unknown {
				t.Errorf("a kind that is not listed is %s, want Unknown", got)
			}
			if _, got := apis.Resource(schema.GroupVersionResource{Group: "a", Version: "v1", Resource: "plums"}); got != presence.Unknown || apis.Complete() || apis.CompleteIn("a") {
				t.Errorf("a resource that is not listed is %s, complete %t", got, apis.Complete())
			}
		})
	}
	if got := before.incomplete("connection refused").unanswered(); got != "metrics.k8s.io/v1beta1, connection refused" {
		t.Errorf("unanswered %q", got)
	}
	if _, got := before.Kind(schema.GroupVersionKind{Group: "a", Version: "v1", Kind: "Plum"}); got != presence.Absent || !before.CompleteIn("a") || before.CompleteIn("metrics.k8s.io") {
		t.Errorf("a kind of a group that answers is %s while another group is stale, want Absent", got)
	}
}

// TestUnsure: a group that does not answer makes a caller unsure only if it may serve the
// caller's types, judging by what it served before.
func TestUnsure(t *testing.T) {
	const (
		fresh = apidiscoveryv2.DiscoveryFreshnessCurrent
		stale = apidiscoveryv2.DiscoveryFreshnessStale
	)
	list := func(old *APIs, unavailable []string, groups ...apidiscoveryv2.APIGroupDiscovery) *APIs {
		t.Helper()
		apis, err := snapshot(groups, old, unavailable)
		if err != nil {
			t.Fatal(err)
		}
		return apis
	}
	whole := list(&APIs{}, nil, group("a", versionOf("v1", fresh, "Pear")), group("views", versionOf("v1", fresh, "View"), versionOf("v2", fresh, "View")))
	viewsAway := list(whole, nil, group("a", versionOf("v1", fresh, "Pear")), group("views", versionOf("v1", stale), versionOf("v2", stale)))
	cases := map[string]struct {
		apis *APIs
		want string
	}{
		"AllAnswer":          {whole, ""},
		"ViewsAway":          {viewsAway, ""},
		"ViewsStillAway":     {list(viewsAway, []string{"views/v1", "views/v2"}, group("a", versionOf("v1", fresh, "Pear"))), ""},
		"PearsAway":          {list(whole, []string{"a/v1"}, group("views", versionOf("v1", fresh, "View"))), "a/v1"},
		"NeverHeardOf":       {list(whole, []string{"c/v1", "views/v1"}, group("a", versionOf("v1", fresh, "Pear"))), "c/v1"},
		"NewVersionIsAway":   {list(whole, []string{"views/v3"}, group("a", versionOf("v1", fresh, "Pear"))), "views/v3"},
		"NothingIsKnown":     {&APIs{}, "its API list was not read yet"},
		"TheListIsNotTrusty": {viewsAway.incomplete("connection refused"), "views/v1, views/v2, connection refused"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := tc.apis.Unsure(func(a API) bool { return a.GroupVersionKind.Kind == "Pear" }); got != tc.want {
				t.Errorf("unsure because of %q, want %q", got, tc.want)
			}
		})
	}
}

func TestPreferredVersion(t *testing.T) {
	const fresh = apidiscoveryv2.DiscoveryFreshnessCurrent
	apis, err := snapshot([]apidiscoveryv2.APIGroupDiscovery{
		group("b", versionOf("v2", fresh, "Fig"), versionOf("v1", fresh, "Fig", "Nut")),
	}, &APIs{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var preferred []string
	for _, api := range apis.All() {
		if api.Preferred {
			preferred = append(preferred, api.GroupVersionKind.Version+" "+api.Resource)
		}
	}
	slices.Sort(preferred)
	if diff := cmp.Diff([]string{"v1 nuts", "v2 figs"}, preferred); diff != "" {
		t.Errorf("preferred (-want +got):\n%s", diff)
	}
}

func TestHash(t *testing.T) {
	const (
		fresh = apidiscoveryv2.DiscoveryFreshnessCurrent
		stale = apidiscoveryv2.DiscoveryFreshnessStale
	)
	list := func(versions ...apidiscoveryv2.APIVersionDiscovery) *APIs {
		t.Helper()
		apis, err := snapshot([]apidiscoveryv2.APIGroupDiscovery{group("a", versions...)}, &APIs{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return apis
	}
	one := list(versionOf("v1", fresh, "Pear", "Plum"))
	if got := list(versionOf("v1", fresh, "Plum", "Pear")); got.Hash() != one.Hash() || got.fingerprint != one.fingerprint {
		t.Error("the hash depends on the order")
	}
	if got := list(versionOf("v1", stale, "Pear", "Plum")); got.Hash() != one.Hash() || got.fingerprint == one.fingerprint {
		t.Error("staleness must change the fingerprint and not the hash: the list is the same")
	}
	if got := list(versionOf("v1", fresh, "Pear")); got.Hash() == one.Hash() {
		t.Error("a removed type does not change the hash")
	}
}
