package fleetapi

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"orrery.dev/orrery/internal/answer"
	"orrery.dev/orrery/internal/proxy"
	"orrery.dev/orrery/internal/search"
)

// passed are the headers that control the format of a document, and whether it has changed. No
// other header is passed on to the hub, because these requests have the rights of an
// administrator.
var passed = []string{"Accept", "Accept-Encoding", "If-None-Match", "If-Modified-Since"}

// openAPI answers with OpenAPI documents. Custom types are described by the
// CustomResourceDefinitions of the clusters. All other types are Kubernetes' own: for them, and
// for the older OpenAPI v2, the documents of the API server of the hub are served.
type openAPI struct {
	search    *search.Search
	hub       http.Handler
	transport http.RoundTripper
	server    *url.URL
}

func newOpenAPI(hub *rest.Config, s *search.Search) (*openAPI, error) {
	transport, err := rest.TransportFor(hub)
	if err != nil {
		return nil, fmt.Errorf("create transport to the hub: %w", err)
	}
	server, _, err := rest.DefaultServerUrlFor(hub)
	if err != nil {
		return nil, fmt.Errorf("read the URL of the hub: %w", err)
	}
	return &openAPI{search: s, transport: transport, server: server, hub: &httputil.ReverseProxy{
		Transport: proxy.Confine(transport),
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(server)
			headers := http.Header{}
			for _, name := range passed {
				if values := r.In.Header.Values(name); len(values) > 0 {
					headers[name] = values
				}
			}
			r.Out.Header = headers
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			answer.Error(w, r, noDocuments(r.Context(), err))
		},
	}}, nil
}

func noDocuments(ctx context.Context, err error) error {
	logr.FromContextOrDiscard(ctx).V(1).Info("OpenAPI documents of the hub cannot be had", "error", err.Error())
	return apierrors.NewServiceUnavailable("the hub's OpenAPI documents cannot be had now: ask again in a moment")
}

// isOpenAPI returns the document for a path relative to the root of the fleet, and the cluster
// ("": all).
func isOpenAPI(path string) (cluster, document string, ok bool) {
	if rest, in := strings.CutPrefix(path, "/clusters/"); in {
		cluster, path, _ = strings.Cut(rest, "/")
		path = "/" + path
	}
	return cluster, path, path == "/openapi/v2" || path == "/openapi/v3" || strings.HasPrefix(path, "/openapi/v3/")
}

// serve answers with a document of one cluster ("": all).
func (o *openAPI) serve(w http.ResponseWriter, r *http.Request, cluster, document string) error {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return apierrors.NewMethodNotSupported(schema.GroupResource{Resource: "openapi"}, r.Method)
	}
	// The hub is asked with the rights of an administrator. Behind a front end that cleans
	// paths, it would answer with any object.
	if proxy.HasDots(document) {
		return apierrors.NewBadRequest(fmt.Sprintf("path %q: segments . and .. are refused: they lead out of the documents", document))
	}
	all, custom, err := o.search.Versions(r.Context(), cluster)
	if err != nil {
		return err
	}
	if document == "/openapi/v3" {
		return o.index(w, r, cluster, all, custom)
	}
	gv, err := schema.ParseGroupVersion(strings.TrimPrefix(document, "/openapi/v3/apis/"))
	if err == nil && slices.Contains(custom, gv) {
		described, err := o.search.Definitions(r.Context(), cluster, gv)
		if err != nil {
			return err
		}
		if described != nil {
			if err := o.complete(r.Context(), described); err != nil {
				return err
			}
			return answer.Tagged(w, r, "application/json", described)
		}
	}
	http.StripPrefix(strings.TrimSuffix(r.URL.EscapedPath(), document), o.hub).ServeHTTP(w, r)
	return nil
}

// index answers with the list of documents: those of the hub, and those of custom types. For one
// cluster they are restricted to the types that it serves.
func (o *openAPI) index(w http.ResponseWriter, r *http.Request, cluster string, all, custom []schema.GroupVersion) error {
	var index struct {
		Paths map[string]any `json:"paths"`
	}
	if err := o.get(r.Context(), "/openapi/v3", &index); err != nil {
		return err
	}
	if cluster != "" {
		maps.DeleteFunc(index.Paths, func(path string, _ any) bool {
			return !slices.ContainsFunc(all, func(gv schema.GroupVersion) bool { return path == pathOf(gv) })
		})
	}
	for _, gv := range custom {
		index.Paths[pathOf(gv)] = map[string]any{"serverRelativeURL": "/openapi/v3/" + pathOf(gv)}
	}
	return answer.Tagged(w, r, "application/json", index)
}

func pathOf(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "api/" + gv.Version
	}
	return "apis/" + gv.String()
}

// complete adds the schemas that documents refer to, from one of the smallest documents of the
// hub.
func (o *openAPI) complete(ctx context.Context, described map[string]any) error {
	var leases struct {
		Components struct {
			Schemas map[string]any `json:"schemas"`
		} `json:"components"`
	}
	if err := o.get(ctx, "/openapi/v3/apis/coordination.k8s.io/v1", &leases); err != nil {
		return err
	}
	schemas, _ := described["components"].(map[string]any)["schemas"].(map[string]any)
	for name, one := range leases.Components.Schemas {
		if strings.HasPrefix(name, "io.k8s.apimachinery.pkg.apis.meta.v1.") {
			schemas[name] = one
		}
	}
	return nil
}

// get reads a document of the hub.
func (o *openAPI) get(ctx context.Context, path string, into any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, o.server.JoinPath(path).String(), nil)
	if err != nil {
		return err
	}
	request.Header.Set("Accept", "application/json")
	resp, err := o.transport.RoundTrip(request)
	if err != nil {
		return noDocuments(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }() // it was read
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", path, resp.Status)
	}
	if err == nil {
		err = json.Unmarshal(body, into)
	}
	if err != nil {
		return noDocuments(ctx, err)
	}
	return nil
}
