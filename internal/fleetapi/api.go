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

// api is what the server serves.
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

// isProbe says whether a path is for whoever starts the server, who has no identity.
func isProbe(path string) bool { return path == "/livez" || path == "/readyz" }

// ServeHTTP routes by hand: the paths below a proxy belong to the member, and a
// ServeMux would clean and redirect them.
func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer.Func(a.route).ServeHTTP(w, r)
}

func (a *api) route(w http.ResponseWriter, r *http.Request) error {
	path := r.URL.EscapedPath()
	if rest, ok := below(path, fleetv1alpha1.ClustersPath); ok {
		if cluster, ok := strings.CutSuffix(strings.TrimPrefix(rest, "/"), "/mirror"); ok && !strings.Contains(cluster, "/") {
			return a.serveMirror(w, r, cluster)
		}
		return a.serveProxy(w, r, rest)
	}
	if rest, ok := below(path, fleetv1alpha1.FleetPath); ok {
		return a.serveFleet(w, r, rest, search.Merged)
	}
	if rest, ok := below(path, fleetv1alpha1.QualifiedPath); ok {
		return a.serveFleet(w, r, rest, search.Qualified)
	}
	if answered, err := a.serveQuestion(w, r, path); answered {
		return err
	}
	switch path {
	case "/livez":
		return answer.Text(w, "ok")
	case "/readyz":
		if err := a.ready(); err != nil {
			return apierrors.NewServiceUnavailable(err.Error())
		}
		return answer.Text(w, "ok")
	case metricsPath, metricsThroughHub:
		if err := a.authorizer.path(r.Context(), metricsPath); err != nil {
			return err
		}
		a.metrics.ServeHTTP(w, r)
		return nil
	case fleetv1alpha1.ConsoleLinksPath:
		return a.serveConsoleLinks(w, r)
	case "/openapi/v2": // the hub's kube-apiserver asks, and asks again while there is none
		return answer.JSON(w, http.StatusOK, map[string]any{
			"swagger": "2.0", "info": map[string]string{"title": "Orrery fleet", "version": fleetv1alpha1.GroupVersion.Version}, "paths": map[string]any{},
		})
	case "/openapi/v3":
		return answer.JSON(w, http.StatusOK, map[string]any{"paths": map[string]any{}})
	case "/apis":
		return answer.JSON(w, http.StatusOK, metav1.APIGroupList{
			TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: []metav1.APIGroup{apiGroup()},
		})
	case "/apis/" + fleetv1alpha1.GroupVersion.Group:
		g := apiGroup()
		g.TypeMeta = metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}
		return answer.JSON(w, http.StatusOK, g)
	case "/apis/" + fleetv1alpha1.GroupVersion.String():
		return answer.JSON(w, http.StatusOK, apiResources())
	default:
		return apierrors.NewGenericServerResponse(http.StatusNotFound, r.Method, schema.GroupResource{}, "", "", 0, true)
	}
}

// The metrics are served to those who may get the first of these paths. By the second they are reached through the hub's API
// server, with whatever it takes to authenticate there.
const (
	metricsPath       = "/metrics"
	metricsThroughHub = "/apis/fleet.orrery.dev/v1alpha1/metrics"
)

// compressed compresses answers, from the size on from which API servers do, for clients that take that.
var compressed = func() func(http.Handler) http.HandlerFunc {
	wrap, err := gzhttp.NewWrapper(gzhttp.MinSize(128<<10), gzhttp.CompressionLevel(gzip.BestSpeed))
	if err != nil {
		panic(err)
	}
	return wrap
}()

// serveFleet answers below the root of the fleet, path is relative to it and escaped.
func (a *api) serveFleet(w http.ResponseWriter, r *http.Request, path string, names search.Names) error {
	if cluster, document, ok := isOpenAPI(path); ok {
		return a.openAPI.serve(w, r, cluster, document)
	}
	asked := path // of a cluster the same may be seen, as far as the hub's roles say
	if rest, ok := strings.CutPrefix(path, "/clusters/"); ok {
		if _, inside, ok := strings.Cut(rest, "/"); ok {
			asked = "/" + inside
		}
	}
	if answered, err := a.reviews.answer(w, r, asked); answered {
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

// serveMirror says what is mirrored of a cluster. Who may not get the Cluster is told nothing of it, not even whether it is there.
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

// proxyVerb is the verb that kube-apiservers make of a method; "" if there is none.
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

// below returns what follows a root in a path, at a segment's end.
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

// apiResources of the group. They can be got at, but have no list, watch or delete, so that
// generic controllers of the hub let them be.
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
