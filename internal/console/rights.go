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

// rightsInterval is how often the right to an open request is checked again, 5 seconds. API servers
// check it only at the start of the request.
const rightsInterval = 5 * time.Second

// errRights is the cause with which a request is canceled when its user has lost the right to it.
var errRights = errors.New("the right to it was taken away")

// infos parses the path and method of a request into resource, verb and name, as API servers do.
var infos = request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}

// infoOf parses a request to path of the hub's API server into resource, verb, namespace and name.
// It ignores the label selector: rights do not depend on it, and its parser takes quadratic time
// for invalid values.
func infoOf(r *http.Request, path string) (*request.RequestInfo, error) {
	query := r.URL.Query()
	query.Del("labelSelector")
	return infos.NewRequestInfo(&http.Request{Method: r.Method, Header: r.Header, URL: &url.URL{Path: path, RawQuery: query.Encode()}})
}

// watchRights checks every rightsInterval whether the user of s still has the right to the request
// r to path of the hub. When the right is lost, it calls end with errRights and returns. It also
// returns when ctx ends. A check that fails does not end the request. It returns at once if the
// path is not that of a resource, or if Options.Authorize is nil.
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
