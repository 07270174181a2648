package fleetapi

import (
	"context"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/explanation"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/proxy"
	"orrery.dev/orrery/internal/search"
)

// verdict answers access reviews for resources with may; nil: with allowed, as all others.
type verdict struct {
	authorizationclient.SubjectAccessReviewInterface

	allowed bool
	may     func(authorizationv1.ResourceAttributes) bool
}

func (v verdict) Create(_ context.Context, r *authorizationv1.SubjectAccessReview, _ metav1.CreateOptions) (*authorizationv1.SubjectAccessReview, error) {
	r.Status.Allowed = v.allowed
	if v.may != nil && r.Spec.ResourceAttributes != nil {
		r.Status.Allowed = v.may(*r.Spec.ResourceAttributes)
	}
	return r, nil
}

// onePod is a mirror of Pods of one cluster.
type onePod struct{ search.Mirror }

func (onePod) Types() []mirror.Type {
	return mirror.GroupTypes(func(yield func(string, member.API) bool) {
		yield("oak", member.API{GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, Resource: "pods", Namespaced: true})
	})
}

// served is an API with a hub that allows everything or nothing. It has no store: nothing is read.
func served(allowed bool) *api { return servedBy(verdict{allowed: allowed}) }

// servedBy is an API with a hub that gives a verdict. It has no store: nothing is read.
func servedBy(v verdict) *api {
	a := newAuthorizer(v, nil, true)
	s := search.New(search.Options{
		Mirror: onePod{}, Ready: func() bool { return true }, Clusters: func() []string { return []string{"oak"} }, Authorize: a.resource,
		Namespaces: func(context.Context, authorizationv1.ResourceAttributes) ([]string, error) { return nil, nil },
		Live:       func(string) (search.Live, bool) { return nil, false },
		Version:    func() (*version.Info, error) { return &version.Info{}, nil },
	})
	return &api{
		authorizer: a, search: s, reviews: &reviews{authorizer: a}, openAPI: &openAPI{search: s, hub: http.NotFoundHandler()}, explainer: explanation.New(explanation.Options{}),
		proxy:  proxy.New(func(string) (proxy.Member, bool) { return nil, false }),
		mirror: func(string) (fleetv1alpha1.ClusterMirror, bool) { return fleetv1alpha1.ClusterMirror{}, false },
		link: func(user.Info) (fleetv1alpha1.ConsoleLinkStatus, error) {
			return fleetv1alpha1.ConsoleLinkStatus{}, nil
		},
		metrics: http.NotFoundHandler(), ready: func() error { return nil }, menus: newMenus(),
	}
}

// exchange is the method of a request, and its path after that of the kind.
type exchange struct{ method, rest string }

// within has requests that need a right on the hub, for each kind with paths below its own.
var within = map[string][]exchange{
	"clusters/proxy":  {{http.MethodGet, "/api"}, {http.MethodPost, "/api"}, {http.MethodPut, "/%2525"}},
	"resources/proxy": ofFleet,
}

// authorized has requests that need a right on the hub, for each path without a kind. A path with
// nil answers all authenticated users, and answers every request the same.
var authorized = map[string][]exchange{
	metricsPath:       {{http.MethodGet, ""}},
	metricsThroughHub: {{http.MethodGet, ""}},

	"/livez": nil, "/readyz": nil, "/openapi/v2": nil, "/openapi/v3": nil, documentPath: nil,
	"/apis": nil, "/apis/fleet.orrery.dev": nil, "/apis/fleet.orrery.dev/v1alpha1": nil,
}

// ofFleet are requests below the root of the fleet. Those for objects are in package search.
var ofFleet = []exchange{
	{http.MethodGet, "/api/v1/pods"},
	{http.MethodGet, "/api/v1/namespaces/shop@oak/pods"},
	{http.MethodGet, "/search"},
	{http.MethodGet, "/graph"},
	{http.MethodGet, "/clusters/oak/version"},
	{http.MethodGet, "/clusters/oak/openapi/v3"},
	{http.MethodGet, "/clusters/oak/openapi/v2"},
	{http.MethodPost, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"},
	{http.MethodPost, "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"},
	{http.MethodPost, "/apis/authentication.k8s.io/v1/selfsubjectreviews"},
	{http.MethodPost, "/clusters/oak/apis/authentication.k8s.io/v1/selfsubjectreviews"},
}

// unread is a body that records whether it was read.
type unread struct{ was bool }

func (u *unread) Read([]byte) (int, error) {
	u.was = true
	return 0, io.EOF
}

// TestEndpointsAuthorizeFirst: no endpoint reads the body or the parameters of a request before its
// caller is authorized. A new path without a kind, and a new kind with paths below its own, fail
// the test until they have a row.
func TestEndpointsAuthorizeFirst(t *testing.T) {
	if rows, served := sets.KeySet(authorized), sets.KeySet(paths); !rows.Equal(served) {
		t.Errorf("paths without a row: %v; rows without a path: %v", sets.List(served.Difference(rows)), sets.List(rows.Difference(served)))
	}
	all := maps.Clone(authorized)
	all[fleetv1alpha1.ClustersPath+"/none/proxy"] = within["clusters/proxy"]
	for path, resource := range samples() {
		k, _, _ := match(path)
		all[path] = within[resource]
		if k.below != (all[path] != nil) {
			t.Errorf("%s has paths below: %t; it has a row: %t", resource, k.below, all[path] != nil)
		}
		for method, verb := range methods {
			if method != http.MethodOptions && slices.Contains(k.verbs, verb) && !k.authorizes {
				all[path] = append(slices.Clip(all[path]), exchange{method, ""})
			}
		}
	}
	closed := served(false)
	for path, exchanges := range all {
		want := http.StatusForbidden
		if exchanges == nil {
			exchanges, want = []exchange{{http.MethodGet, ""}}, http.StatusOK
		}
		for _, e := range exchanges {
			body := &unread{}
			r := httptest.NewRequestWithContext(request.WithUser(t.Context(), &user.DefaultInfo{Name: "nobody"}), e.method,
				path+e.rest+"?labelSelector=%28%28&q=%22&of=%2F&nonsense=1&nonsense=2&continue=%7B", body)
			w := httptest.NewRecorder()
			closed.ServeHTTP(w, r)
			if w.Code != want {
				t.Errorf("%s %s: %d %s, want %d", e.method, path+e.rest, w.Code, w.Body, want)
			}
			if body.was {
				t.Errorf("%s %s: the body was read", e.method, path+e.rest)
			}
		}
	}
}

// TestRequestsAreLinear: a path or a body that is twice as long costs at most about twice as much,
// for callers with and without rights.
func TestRequestsAreLinear(t *testing.T) {
	reviewBody := func(inside string) func(n int) string {
		return func(n int) string {
			return `{"apiVersion":"fleet.orrery.dev/v1alpha1","kind":"Other","spec":{"object":` + strings.Repeat(inside, n/len(inside))
		}
	}
	for name, c := range map[string]struct {
		method, path string
		rest, body   func(n int) string
	}{
		"EscapedEscapes":      {method: http.MethodGet, path: fleetv1alpha1.FleetPath + "/openapi/v3/", rest: func(n int) string { return "%" + strings.Repeat("25", n/2) }},
		"EscapesInARow":       {method: http.MethodGet, path: fleetv1alpha1.FleetPath + "/openapi/v3/", rest: func(n int) string { return strings.Repeat("%2525", n/5) }},
		"DocumentOfACluster":  {method: http.MethodGet, path: fleetv1alpha1.FleetPath + "/clusters/oak/openapi/v3/", rest: func(n int) string { return strings.Repeat("..%3b", n/5) }},
		"Segments":            {method: http.MethodGet, path: fleetv1alpha1.FleetPath, rest: func(n int) string { return strings.Repeat("/a", n/2) }},
		"EmptySegments":       {method: http.MethodGet, path: fleetv1alpha1.QualifiedPath, rest: func(n int) string { return strings.Repeat("/", n) }},
		"QualifiedNames":      {method: http.MethodGet, path: fleetv1alpha1.QualifiedPath + "/api/v1/namespaces/", rest: func(n int) string { return strings.Repeat("a@", n/2) + "/pods" }},
		"Proxy":               {method: http.MethodGet, path: fleetv1alpha1.ClustersPath + "/oak/proxy/", rest: func(n int) string { return "%" + strings.Repeat("25", n/2) }},
		"Unknown":             {method: http.MethodGet, path: "/", rest: func(n int) string { return strings.Repeat("a/", n/2) }},
		"ManyParameters":      {method: http.MethodGet, path: fleetv1alpha1.PlacementsPath + "?of=a", rest: func(n int) string { return strings.Repeat("&of=b", n/5) }},
		"Of":                  {method: http.MethodGet, path: fleetv1alpha1.WorksPath + "?of=", rest: func(n int) string { return strings.Repeat("/", n) }},
		"AccessReview":        {method: http.MethodPost, path: fleetv1alpha1.FleetPath + "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body: func(n int) string { return strings.Repeat("[", n) }},
		"AccessReviewAsYAML":  {method: http.MethodPost, path: fleetv1alpha1.FleetPath + "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body: func(n int) string { return strings.Repeat("a: &a [*a]\n", n/11) }},
		"RulesReview":         {method: http.MethodPost, path: fleetv1alpha1.FleetPath + "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", body: func(n int) string { return strings.Repeat(`{"a":`, n/5) }},
		"SelfReview":          {method: http.MethodPost, path: fleetv1alpha1.FleetPath + "/apis/authentication.k8s.io/v1/selfsubjectreviews", body: func(n int) string { return "k8s\x00" + strings.Repeat("\x0a\x01", n/2) }},
		"ConsoleLink":         {method: http.MethodPost, path: fleetv1alpha1.ConsoleLinksPath, body: func(n int) string { return strings.Repeat(`{"metadata":`, n/12) }},
		"PlacementReview":     {method: http.MethodPost, path: fleetv1alpha1.PlacementReviewsPath, body: reviewBody(`{"a":`)},
		"PlacementReviewList": {method: http.MethodPost, path: fleetv1alpha1.PlacementReviewsPath, body: reviewBody(`[`)},
	} {
		for _, allowed := range []bool{true, false} {
			a := served(allowed)
			cost := func(n int) uint64 {
				least := ^uint64(0)
				for range 3 {
					path, body := c.path, ""
					if c.rest != nil {
						path += c.rest(n)
					}
					if c.body != nil {
						body = c.body(n)
					}
					r := httptest.NewRequestWithContext(request.WithUser(t.Context(), &user.DefaultInfo{Name: "ann"}), c.method, path, strings.NewReader(body))
					var before, after runtime.MemStats
					runtime.ReadMemStats(&before)
					a.ServeHTTP(httptest.NewRecorder(), r)
					runtime.ReadMemStats(&after)
					least = min(least, after.TotalAlloc-before.TotalAlloc)
				}
				return least
			}
			for _, n := range []int{4000, search.LongestURL / 4} {
				const noise = 256 << 10
				if once, twice := cost(n), cost(2*n); twice > 5*once/2+noise {
					t.Errorf("%s, allowed %t: %d bytes at %d, and %d at %d", name, allowed, once, n, twice, 2*n)
				}
			}
		}
	}
}

// TestLongRequestsAreRefused: the limits of package search apply to every endpoint, except
// those that members serve.
func TestLongRequestsAreRefused(t *testing.T) {
	a := served(true)
	for _, path := range slices.Concat(slices.Collect(maps.Keys(samples())), slices.Collect(maps.Keys(paths))) {
		r := httptest.NewRequestWithContext(request.WithUser(t.Context(), &user.DefaultInfo{Name: "ann"}), http.MethodGet, path+"?a="+strings.Repeat("a", search.LongestURL), nil)
		w := httptest.NewRecorder()
		a.ServeHTTP(w, r)
		k, _, _ := match(path)
		if refused := strings.Contains(w.Body.String(), "at most 65536 are read"); refused == (k != nil && k.foreign) {
			t.Errorf("%s: %d %.300s", path, w.Code, w.Body)
		}
	}
}
