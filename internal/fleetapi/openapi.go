package fleetapi

import (
	"fmt"
	"net/http"
	"net/http/httputil"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"orrery.dev/orrery/internal/answer"
)

// passed are the headers by which clients and the hub agree on the form of a document, and whether it is news. No other goes to the hub,
// which is asked as an administrator.
var passed = []string{"Accept", "Accept-Encoding", "If-None-Match", "If-Modified-Since"}

// newOpenAPI answers with the documents of the hub's API server. Of the kinds that Kubernetes has, and of those that the hub has a
// CustomResourceDefinition of, they say what the fleet's objects are, too.
func newOpenAPI(hub *rest.Config) (http.Handler, error) {
	transport, err := rest.TransportFor(hub)
	if err != nil {
		return nil, fmt.Errorf("create transport to the hub: %w", err)
	}
	server, _, err := rest.DefaultServerUrlFor(hub)
	if err != nil {
		return nil, fmt.Errorf("read the URL of the hub: %w", err)
	}
	return &httputil.ReverseProxy{
		Transport: transport,
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
			logr.FromContextOrDiscard(r.Context()).V(1).Info("OpenAPI documents of the hub cannot be had", "error", err.Error())
			answer.Error(w, r, apierrors.NewServiceUnavailable("the hub's OpenAPI documents cannot be had now: ask again in a moment"))
		},
	}, nil
}
