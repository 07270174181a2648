package fleetapi

import (
	"compress/gzip"
	"net/http"
	"strings"

	"github.com/klauspost/compress/gzhttp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/answer"
	"orrery.dev/orrery/internal/explanation"
	"orrery.dev/orrery/internal/proxy"
	"orrery.dev/orrery/internal/search"
)

// api is the HTTP handler of the aggregated API server, without authentication.
type api struct {
	authorizer *authorizer
	proxy      *proxy.Proxy
	search     *search.Search
	reviews    *reviews
	openAPI    *openAPI
	menus      []menu
	explainer  *explanation.Explainer
	mirror     func(cluster string) (fleetv1alpha1.ClusterMirror, bool)
	link       func(user.Info) (fleetv1alpha1.ConsoleLinkStatus, error)
	metrics    http.Handler
	ready      func() error
}

// isProbe reports whether a path is that of a health check. The process that starts the server
// requests it, without authentication.
func isProbe(path string) bool { return path == "/livez" || path == "/readyz" }

// ServeHTTP serves a request with the kind or the function for its path. It does not use
// http.ServeMux, which would clean and redirect paths: those below a proxy belong to the member.
func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer.Func(a.route).ServeHTTP(w, r)
}

// paths are all paths that the server serves besides those of kinds, and the functions that answer
// them. A test has a row for each, with the right that the caller needs.
var paths = map[string]func(a *api, w http.ResponseWriter, r *http.Request) error{
	"/livez": func(_ *api, w http.ResponseWriter, _ *http.Request) error { return answer.Text(w, "ok") },
	"/readyz": func(a *api, w http.ResponseWriter, _ *http.Request) error {
		if err := a.ready(); err != nil {
			return apierrors.NewServiceUnavailable(err.Error())
		}
		return answer.Text(w, "ok")
	},
	metricsPath:       (*api).serveMetrics,
	metricsThroughHub: (*api).serveMetrics,
	// The kube-apiserver of the hub requests /openapi/v2, and repeats the request while the path does
	// not exist. Clients read OpenAPI v3, so the document of v2 is empty.
	"/openapi/v2": document(map[string]any{
		"swagger": "2.0", "info": map[string]string{"title": "Orrery fleet", "version": fleetv1alpha1.GroupVersion.Version}, "paths": map[string]any{},
	}),
	"/openapi/v3": document(map[string]any{"paths": map[string]any{
		pathOf(fleetv1alpha1.GroupVersion): map[string]any{"serverRelativeURL": documentPath},
	}}),
	documentPath: document(openAPIDocument()),
	"/apis": document(metav1.APIGroupList{
		TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: []metav1.APIGroup{apiGroup()},
	}),
	"/apis/" + fleetv1alpha1.GroupVersion.Group: func(_ *api, w http.ResponseWriter, _ *http.Request) error {
		g := apiGroup()
		g.TypeMeta = metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}
		return answer.JSON(w, http.StatusOK, g)
	},
	groupPath: document(apiResources()),
}

// document returns a function for paths that answers with d as JSON, for every caller.
func document(d any) func(*api, http.ResponseWriter, *http.Request) error {
	return func(_ *api, w http.ResponseWriter, _ *http.Request) error {
		return answer.JSON(w, http.StatusOK, d)
	}
}

// route serves a request with the kind or the function that has its path. The error is for the
// client; it is a 404 if nothing has the path.
func (a *api) route(w http.ResponseWriter, r *http.Request) error {
	path := r.URL.EscapedPath()
	if k, name, rest := match(path); k != nil {
		return k.answer(a, w, r, name, rest)
	}
	serve, ok := paths[path]
	if !ok {
		return noPath(r)
	}
	if err := search.CheckSize(r); err != nil {
		return err
	}
	return serve(a, w, r)
}

// noPath returns the error (404) for a request whose path nothing serves.
func noPath(r *http.Request) error {
	return apierrors.NewGenericServerResponse(http.StatusNotFound, r.Method, schema.GroupResource{}, "", "", 0, true)
}

// serveMetrics serves the metrics to callers that may get the path /metrics on the hub.
func (a *api) serveMetrics(w http.ResponseWriter, r *http.Request) error {
	if err := a.authorizer.path(r.Context(), metricsPath); err != nil {
		return err
	}
	a.metrics.ServeHTTP(w, r)
	return nil
}

// Paths of the metrics. Both require the right to get metricsPath. metricsThroughHub is reached
// through the API server of the hub, with any authentication that is valid there.
const (
	metricsPath       = "/metrics"
	metricsThroughHub = "/apis/fleet.orrery.dev/v1alpha1/metrics"
)

// roots are the names of resources/proxy, and which names are in the answers below them.
var roots = map[string]search.Names{"fleet": search.Merged, "qualified": search.Qualified}

// compressed returns a handler that compresses answers of 128 KiB and more, as API servers do, for
// clients that accept compression.
var compressed = func() func(http.Handler) http.HandlerFunc {
	wrap, err := gzhttp.NewWrapper(gzhttp.MinSize(128<<10), gzhttp.CompressionLevel(gzip.BestSpeed))
	if err != nil {
		panic(err)
	}
	return wrap
}()

// serveFleet answers a request about the mirrored objects of all clusters: an OpenAPI document, a
// question of callers about themselves, or a search. root is a key of roots; others are a 404. path
// is relative to that root and escaped. The caller needs the rights for what path names.
func (a *api) serveFleet(w http.ResponseWriter, r *http.Request, root, path string) error {
	names, ok := roots[root]
	if !ok {
		return noPath(r)
	}
	if cluster, document, ok := isOpenAPI(path); ok {
		return a.openAPI.serve(w, r, cluster, document)
	}
	asked := path // path in the API; the questions are the same below a single cluster
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

// serveMirror answers what is mirrored from a cluster, and how old that data is.
func (a *api) serveMirror(w http.ResponseWriter, _ *http.Request, cluster, _ string) error {
	described, found := a.mirror(cluster)
	if !found {
		return apierrors.NewNotFound(clusters.GroupResource(), cluster)
	}
	return answer.JSON(w, http.StatusOK, described)
}

// serveProxy passes a request to the API server of a cluster. path is the path there, escaped.
func (a *api) serveProxy(w http.ResponseWriter, r *http.Request, cluster, path string) error {
	return a.proxy.Serve(w, r, cluster, path)
}

// below returns the part of path after root, such as /b for /a/b and root /a. ok is false if path
// is neither root nor below it.
func below(path, root string) (string, bool) {
	rest, ok := strings.CutPrefix(path, root)
	return rest, ok && (rest == "" || rest[0] == '/')
}
