package console

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// rightsInterval is how often the rights to an open request are checked again. API servers check
// them only once, at the start.
const rightsInterval = 5 * time.Second

var errRights = errors.New("the right to it was taken away")

// infos parses requests as API servers do.
var infos = request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}

// infoOf parses a request to a path of the hub as API servers do, without its label selector: no
// right depends on it, and its parser takes quadratic time for invalid values.
func infoOf(r *http.Request, path string) (*request.RequestInfo, error) {
	query := r.URL.Query()
	query.Del("labelSelector")
	return infos.NewRequestInfo(&http.Request{Method: r.Method, Header: r.Header, URL: &url.URL{Path: path, RawQuery: query.Encode()}})
}

// watchRights calls end when the session's user may no longer make the request to that path of the
// hub. A failed check does not end the request. It returns when ctx ends.
func (c *Console) watchRights(ctx context.Context, s *Session, r *http.Request, path string, end func(cause error)) {
	info, err := infoOf(r, path)
	if err != nil || !info.IsResourceRequest || c.options.Authorize == nil {
		return // not about a resource
	}
	tick := time.NewTicker(c.rightsInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := c.options.Authorize(request.WithUser(ctx, s.User()), authorizationv1.ResourceAttributes{
			Namespace: info.Namespace, Verb: info.Verb, Group: info.APIGroup, Version: info.APIVersion,
			Resource: info.Resource, Subresource: info.Subresource, Name: info.Name,
		}); apierrors.IsForbidden(err) {
			end(errRights)
			return
		}
	}
}
