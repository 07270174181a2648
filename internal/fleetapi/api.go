package fleetapi

import (
	"compress/gzip"
	"net/http"
	"strings"

	"github.com/klauspost/compress/gzhttp"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/answer"
	"orrery.dev/orrery/internal/explanation"
	"orrery.dev/orrery/internal/proxy"
	"orrery.dev/orrery/internal/search"
)

// api has the handlers of the server.
type api struct {
	authorizer *authorizer
	proxy      *proxy.Proxy
	search     *search.Search
	reviews    *reviews
	openAPI    *openAPI
	explainer  *explanation.Explainer
	mirror     func(cluster string) (fleetv1alpha1.ClusterMirror, bool)
	link       func(user.Info) (fleetv1alpha1.ConsoleLinkStatus, error)
	metrics    http.Handler
	ready      func() error
}

// isProbe reports whether a path is a probe of the process that starts the server, which has no
// identity.
func isProbe(path string) bool { return path == "/livez" || path == "/readyz" }

// ServeHTTP routes by hand: the paths below a proxy belong to the member, and a ServeMux would
// clean and redirect them.
func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer.Func(a.route).ServeHTTP(w, r)
}

// endpoint is a path that the server serves; with below, also the paths below it. A test has a
// row for each endpoint, with the right that the caller needs. The test checks that no part of
// the request is parsed before that right.
type endpoint struct {
	path  string
	below bool
	// serve gets the rest of the path of the request, escaped.
	serve func(a *api, w http.ResponseWriter, r *http.Request, rest string) error
	// unlimited is true if a member parses the request, with limits of its own.
	unlimited bool
}

// endpoints are all that the server serves.
var endpoints = func() []endpoint {
	all := []endpoint{
		{path: fleetv1alpha1.ClustersPath, below: true, serve: (*api).serveCluster, unlimited: true},
		{path: fleetv1alpha1.FleetPath, below: true, serve: func(a *api, w http.ResponseWriter, r *http.Request, rest string) error {
			return a.serveFleet(w, r, rest, search.Merged)
		}},
		{path: fleetv1alpha1.QualifiedPath, below: true, serve: func(a *api, w http.ResponseWriter, r *http.Request, rest string) error {
			return a.serveFleet(w, r, rest, search.Qualified)
		}},
		{path: fleetv1alpha1.ConsoleLinksPath, serve: func(a *api, w http.ResponseWriter, r *http.Request, _ string) error {
			return a.serveConsoleLinks(w, r)
		}},
		{path: "/livez", serve: func(_ *api, w http.ResponseWriter, _ *http.Request, _ string) error { return answer.Text(w, "ok") }},
		{path: "/readyz", serve: func(a *api, w http.ResponseWriter, _ *http.Request, _ string) error {
			if err := a.ready(); err != nil {
				return apierrors.NewServiceUnavailable(err.Error())
			}
			return answer.Text(w, "ok")
		}},
		{path: metricsPath, serve: (*api).serveMetrics},
		{path: metricsThroughHub, serve: (*api).serveMetrics},
		// The kube-apiserver of the hub requests this, and repeats the request while it does not
		// exist.
		{path: "/openapi/v2", serve: document(map[string]any{
			"swagger": "2.0", "info": map[string]string{"title": "Orrery fleet", "version": fleetv1alpha1.GroupVersion.Version}, "paths": map[string]any{},
		})},
		{path: "/openapi/v3", serve: document(map[string]any{"paths": map[string]any{}})},
		{path: "/apis", serve: document(metav1.APIGroupList{
			TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: []metav1.APIGroup{apiGroup()},
		})},
		{path: "/apis/" + fleetv1alpha1.GroupVersion.Group, serve: func(_ *api, w http.ResponseWriter, _ *http.Request, _ string) error {
			g := apiGroup()
			g.TypeMeta = metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}
			return answer.JSON(w, http.StatusOK, g)
		}},
		{path: "/apis/" + fleetv1alpha1.GroupVersion.String(), serve: document(apiResources())},
	}
	for path := range questions {
		all = append(all, endpoint{path: path, serve: (*api).serveQuestion})
	}
	return all
}()

// document serves a document that is the same for every caller.
func document(d any) func(*api, http.ResponseWriter, *http.Request, string) error {
	return func(_ *api, w http.ResponseWriter, _ *http.Request, _ string) error {
		return answer.JSON(w, http.StatusOK, d)
	}
}

func (a *api) route(w http.ResponseWriter, r *http.Request) error {
	path := r.URL.EscapedPath()
	for _, e := range endpoints {
		rest, ok := below(path, e.path)
		if !ok || rest != "" && !e.below {
			continue
		}
		if !e.unlimited {
			if err := search.CheckSize(r); err != nil {
				return err
			}
		}
		return e.serve(a, w, r, rest)
	}
	return apierrors.NewGenericServerResponse(http.StatusNotFound, r.Method, schema.GroupResource{}, "", "", 0, true)
}

func (a *api) serveMetrics(w http.ResponseWriter, r *http.Request, _ string) error {
	if err := a.authorizer.path(r.Context(), metricsPath); err != nil {
		return err
	}
	a.metrics.ServeHTTP(w, r)
	return nil
}

// serveCluster serves NAME/mirror and NAME/proxy/..., escaped.
func (a *api) serveCluster(w http.ResponseWriter, r *http.Request, path string) error {
	if cluster, ok := strings.CutSuffix(strings.TrimPrefix(path, "/"), "/mirror"); ok && !strings.Contains(cluster, "/") {
		return a.serveMirror(w, r, cluster)
	}
	return a.serveProxy(w, r, path)
}

// The metrics are served to callers that may get the first of these paths. The second one is
// reached through the API server of the hub, with any authentication that is valid there.
const (
	metricsPath       = "/metrics"
	metricsThroughHub = "/apis/fleet.orrery.dev/v1alpha1/metrics"
)

// compressed compresses answers for clients that accept compression, from the same size as API
// servers.
var compressed = func() func(http.Handler) http.HandlerFunc {
	wrap, err := gzhttp.NewWrapper(gzhttp.MinSize(128<<10), gzhttp.CompressionLevel(gzip.BestSpeed))
	if err != nil {
		panic(err)
	}
	return wrap
}()

// serveFleet answers below the root of the fleet; path is relative to it and escaped.
func (a *api) serveFleet(w http.ResponseWriter, r *http.Request, path string, names search.Names) error {
	if cluster, document, ok := isOpenAPI(path); ok {
		return a.openAPI.serve(w, r, cluster, document)
	}
	asked := path // the roles of the hub apply to a single cluster, too
	if rest, ok := strings.CutPrefix(path, "/clusters/"); ok {
		if _, inside, ok := strings.Cut(rest, "/"); ok {
			asked = "/" + inside
		}
	}
	if answered, err := a.reviews.answer(w, r, asked, names); answered {
		return err
	}
	serve := answer.Func(func(w http.ResponseWriter, r *http.Request) error { return a.search.Serve(w, r, path, names) })
	if search.IsWatch(r, path) {
		serve.ServeHTTP(w, r)
	} else {
		compressed(serve).ServeHTTP(w, r)
	}
	return nil
}

// serveMirror answers what is mirrored from a cluster. A caller that may not get the Cluster
// does not learn whether it exists.
func (a *api) serveMirror(w http.ResponseWriter, r *http.Request, cluster string) error {
	clusters := clusterv1alpha1.GroupVersion.WithResource("clusters")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return apierrors.NewMethodNotSupported(schema.GroupResource{Group: fleetv1alpha1.GroupVersion.Group, Resource: "clusters/mirror"}, r.Method)
	}
	if err := a.authorizer.resource(r.Context(), authorizationv1.ResourceAttributes{
		Verb: "get", Group: clusters.Group, Version: clusters.Version, Resource: clusters.Resource, Name: cluster,
	}); err != nil {
		return err
	}
	described, found := a.mirror(cluster)
	if !found {
		return apierrors.NewNotFound(clusters.GroupResource(), cluster)
	}
	return answer.JSON(w, http.StatusOK, described)
}

// serveProxy serves NAME/proxy/..., escaped.
func (a *api) serveProxy(w http.ResponseWriter, r *http.Request, path string) error {
	cluster, rest, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	inside, ok := below("/"+rest, "/proxy")
	if !ok || cluster == "" {
		return apierrors.NewGenericServerResponse(http.StatusNotFound, r.Method, schema.GroupResource{}, "", "", 0, true)
	}
	verb := proxyVerb(r.Method)
	if verb == "" {
		return apierrors.NewMethodNotSupported(schema.GroupResource{Group: fleetv1alpha1.GroupVersion.Group, Resource: "clusters/proxy"}, r.Method)
	}
	if err := a.authorizer.resource(r.Context(), authorizationv1.ResourceAttributes{
		Verb: verb, Group: fleetv1alpha1.GroupVersion.Group, Version: fleetv1alpha1.GroupVersion.Version,
		Resource: "clusters", Subresource: "proxy", Name: cluster,
	}); err != nil {
		return err
	}
	return a.proxy.Serve(w, r, cluster, inside)
}

// proxyVerb returns the verb that kube-apiservers derive from a method; "" if there is none.
func proxyVerb(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return "get"
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodPatch, http.MethodDelete:
		return strings.ToLower(method)
	default:
		return ""
	}
}

// below returns the rest of a path after root. ok is false if root is not a prefix of whole
// segments.
func below(path, root string) (string, bool) {
	rest, ok := strings.CutPrefix(path, root)
	return rest, ok && (rest == "" || rest[0] == '/')
}

func apiGroup() metav1.APIGroup {
	v := metav1.GroupVersionForDiscovery{
		GroupVersion: fleetv1alpha1.GroupVersion.String(), Version: fleetv1alpha1.GroupVersion.Version,
	}
	return metav1.APIGroup{
		Name: fleetv1alpha1.GroupVersion.Group, Versions: []metav1.GroupVersionForDiscovery{v}, PreferredVersion: v,
	}
}

// apiResources returns the resources of the group. They have no list, watch or delete, so that
// generic controllers of the hub ignore them.
func apiResources() metav1.APIResourceList {
	return metav1.APIResourceList{
		TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: fleetv1alpha1.GroupVersion.String(),
		APIResources: []metav1.APIResource{
			{Name: "access", Kind: "FleetAccess", Verbs: []string{"get"}},
			{Name: "clusters/mirror", Kind: "ClusterMirror", Verbs: []string{"get"}},
			{Name: "clusters/proxy", Kind: "ClusterProxyOptions", Verbs: []string{"create", "delete", "get", "patch", "update"}},
			{Name: "consolelinks", SingularName: "consolelink", Kind: "ConsoleLink", Verbs: []string{"create"}},
			{Name: "placementreviews", Kind: "PlacementReview", Verbs: []string{"create"}},
			{Name: "placements", Kind: "PlacementExplanation", Verbs: []string{"get"}},
			{Name: "resources/proxy", Kind: "FleetProxyOptions", Verbs: []string{"create", "get"}},
			{Name: "works", Kind: "WorkList", Verbs: []string{"get"}},
		},
	}
}
