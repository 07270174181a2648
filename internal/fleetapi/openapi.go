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

// passed are the headers of a request for an OpenAPI document that the server passes on to the hub:
// the format of the document, and whether it has changed. No other header is passed on, because
// these requests have the rights of an administrator.
var passed = []string{"Accept", "Accept-Encoding", "If-None-Match", "If-Modified-Since"}

// openAPI answers requests for OpenAPI documents of the fleet. Custom types are described by the
// CustomResourceDefinitions of the clusters. All other types are Kubernetes' own: for them, and for
// the older OpenAPI v2, it passes on the documents of the hub's API server.
type openAPI struct {
	search    *search.Search
	hub       http.Handler
	transport http.RoundTripper
	server    *url.URL
}

// newOpenAPI returns an openAPI that reads documents of the hub with the configuration hub. It
// sends no request.
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

// noDocuments logs err, with which a request for an OpenAPI document of the hub failed. It returns
// the error for the client (503), without err.
func noDocuments(ctx context.Context, err error) error {
	logr.FromContextOrDiscard(ctx).V(1).Info("OpenAPI documents of the hub cannot be had", "error", err.Error())
	return apierrors.NewServiceUnavailable("the hub's OpenAPI documents cannot be had now: ask again in a moment")
}

// isOpenAPI parses path, which is relative to the root of the fleet. document is the path of an
// OpenAPI document, such as /openapi/v3/apis/apps/v1. cluster is the cluster that the document
// describes; "": all clusters. ok is false if path is not that of an OpenAPI document; the other
// results are then meaningless.
func isOpenAPI(path string) (cluster, document string, ok bool) {
	if rest, in := strings.CutPrefix(path, "/clusters/"); in {
		cluster, path, _ = strings.Cut(rest, "/")
		path = "/" + path
	}
	return cluster, path, path == "/openapi/v2" || path == "/openapi/v3" || strings.HasPrefix(path, "/openapi/v3/")
}

// serve answers with an OpenAPI document of one cluster; "": of all clusters. document is the path
// from isOpenAPI. It is an error if the caller must not know the cluster. If serve returns an
// error, nothing was written.
func (o *openAPI) serve(w http.ResponseWriter, r *http.Request, cluster, document string) error {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return apierrors.NewMethodNotSupported(schema.GroupResource{Resource: "openapi"}, r.Method)
	}
	// The hub is asked with the rights of an administrator. If a server in front of the hub cleaned
	// the path, the hub would answer with any object.
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

// index answers with the list of OpenAPI v3 documents: those of the hub, and those of the custom
// group versions. For one cluster, the hub's documents are restricted to the group versions in all,
// which that cluster serves.
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

// pathOf returns the path of the OpenAPI v3 document of a group version, relative to /openapi/v3/.
func pathOf(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "api/" + gv.Version
	}
	return "apis/" + gv.String()
}

// complete adds the schemas of Kubernetes' common types, such as ObjectMeta, to described, an
// OpenAPI document of custom types that refers to them. It takes them from one of the smallest
// documents of the hub.
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

// get reads the document at a path of the hub, as JSON, into the variable to which into points. The
// error is for the client.
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
