// Package proxy passes requests through to the API servers of member clusters.
//
// The caller, as the hub has authenticated them, is impersonated in the member: the
// member's own RBAC decides what they may do there. Whatever the client itself sends to
// say who it is (Authorization, Impersonate-*, X-Remote-*) is dropped, since the member
// would believe it. Bodies are streamed both ways, and upgrades (exec, attach and
// port-forward, over SPDY or websocket) are passed through.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/transport"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/answer"
	"orrery.dev/orrery/internal/member"
)

// retryAfter is the number of seconds after which a cluster may be asked again that did not
// answer, and is not known to be unreachable.
const retryAfter = 5

// answerTimeout is how long a cluster that is not known to be away may take to begin an answer to a read that is no stream.
const answerTimeout = 15 * time.Second

var errNoAnswer = fmt.Errorf("no answer within %s", answerTimeout)

// Member is what the proxy needs of a member cluster.
type Member interface {
	// Cluster is the cluster's object as last seen.
	Cluster() *clusterv1alpha1.Cluster
	// Passage is how requests get to it, with credentials that may impersonate users.
	Passage() *member.Passage
	// Reachable is false once the cluster has not answered for a while.
	Reachable() bool
}

// Proxy passes requests on to members.
type Proxy struct {
	find     func(name string) (Member, bool)
	patience time.Duration
}

// New returns a proxy to the members that find knows.
func New(find func(name string) (Member, bool)) *Proxy {
	return &Proxy{find: find, patience: answerTimeout}
}

// Serve passes a request on to path, which is escaped, in the API server of a cluster. The
// request's context must hold the user.
func (p *Proxy) Serve(w http.ResponseWriter, r *http.Request, cluster, path string) error {
	caller, ok := request.UserFrom(r.Context())
	if !ok {
		return apierrors.NewUnauthorized("the request has no user")
	}
	to, ok := p.find(cluster)
	if !ok {
		return apierrors.NewNotFound(schema.GroupResource{Group: clusterv1alpha1.GroupVersion.Group, Resource: "clusters"}, cluster)
	}
	w.Header().Set(fleetv1alpha1.ProxiedHeader, cluster)
	as, err := impersonation(caller)
	if err != nil {
		return apierrors.NewForbidden(schema.GroupResource{Group: clusterv1alpha1.GroupVersion.Group, Resource: "clusters"}, cluster, err)
	}
	if profile := to.Cluster().Spec.Profile(); profile != clusterv1alpha1.AgentProfileAll {
		return apierrors.NewForbidden(schema.GroupResource{Group: clusterv1alpha1.GroupVersion.Group, Resource: "clusters"}, cluster,
			fmt.Errorf("the profile %s of its agent lets the hub act for no user there: ask what is mirrored of it at clusters/fleet, use a kubeconfig of the cluster's own, "+
				"or give the agent the profile All with spec.agent of the Cluster and orrery cluster rejoin", profile))
	}
	if !to.Reachable() {
		return unreachable(w, to.Cluster(), path)
	}
	plain, err := url.PathUnescape(path)
	if err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("path %q: %v", path, err))
	}
	if HasDots(plain) {
		return apierrors.NewBadRequest(fmt.Sprintf("path %q: segments . and .. are refused: they could lead out of the cluster", path))
	}
	passage := to.Passage()
	through := passage.Requests
	if r.Header.Get("Upgrade") != "" {
		through = passage.Upgrades
	}
	mount := strings.TrimSuffix(r.URL.EscapedPath(), path)
	answered := func() bool { return true }
	if isQuick(r, plain) {
		ctx, cancel := context.WithCancelCause(r.Context())
		defer cancel(nil)
		answered = time.AfterFunc(p.patience, func() { cancel(errNoAnswer) }).Stop
		r = r.WithContext(ctx)
	}
	(&httputil.ReverseProxy{
		ModifyResponse: func(resp *http.Response) error {
			answered()
			return redirect(resp, passage.Base, mount)
		},
		Rewrite: func(pr *httputil.ProxyRequest) {
			pr.Out.URL.Path, pr.Out.URL.RawPath = plain, path
			pr.Out.URL.RawQuery = pr.In.URL.RawQuery // as the client wrote it
			pr.SetURL(passage.Base)
			dropIdentity(pr.Out.Header)
			pr.Out.Header["X-Forwarded-For"] = pr.In.Header["X-Forwarded-For"]
			pr.SetXForwarded()
		},
		Transport:     transport.NewImpersonatingRoundTripper(as, through),
		FlushInterval: -1, // watches and logs
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if cause := context.Cause(r.Context()); errors.Is(cause, errNoAnswer) {
				err = cause
			}
			if !errors.Is(err, context.Canceled) {
				logr.FromContextOrDiscard(r.Context()).V(1).Info("cluster did not answer", "cluster", cluster, "error", err.Error())
			}
			if errors.Is(err, errLedAway) {
				answer.Error(w, r, apierrors.NewGenericServerResponse(http.StatusBadGateway, r.Method, schema.GroupResource{}, "",
					fmt.Sprintf("cluster %q: %v", cluster, err), 0, true))
				return
			}
			answer.Error(w, r, unavailable(fmt.Sprintf("cluster %q does not answer: %v", cluster, err)))
		},
	}).ServeHTTP(w, r)
	return nil
}

// HasDots is true for a path with a segment . or .., however often it is escaped: behind a front end that cleans paths and
// serves many clusters it would lead to another one.
func HasDots(path string) bool {
	for {
		for _, segment := range strings.FieldsFunc(path, func(r rune) bool { return r == '/' || r == '\\' }) {
			if name, _, _ := strings.Cut(segment, ";"); name == "." || name == ".." {
				return true
			}
		}
		next, err := url.PathUnescape(path)
		if err != nil || next == path {
			return false
		}
		path = next
	}
}

var errLedAway = errors.New("it answers with a redirect that leads out of the cluster, which is refused")

// redirect has a redirect of the cluster lead through the proxy, at mount. One to somewhere else is an error: clients would
// follow it with their own credentials.
func redirect(resp *http.Response, base *url.URL, mount string) error {
	location := resp.Header.Get("Location")
	if location == "" || resp.StatusCode/100 != 3 {
		return nil
	}
	to, err := resp.Request.URL.Parse(location)
	if err != nil {
		return errLedAway
	}
	inside, ok := strings.CutPrefix(to.EscapedPath(), strings.TrimSuffix(base.EscapedPath(), "/"))
	if !ok || to.Scheme != base.Scheme || to.Host != base.Host || to.User != nil || !strings.HasPrefix(inside, "/") || HasDots(inside) {
		return errLedAway
	}
	moved := mount + inside
	if to.RawQuery != "" {
		moved += "?" + to.RawQuery
	}
	if to.Fragment != "" {
		moved += "#" + to.EscapedFragment()
	}
	resp.Header.Set("Location", moved)
	return nil
}

// isQuick is true for a read to which an API server begins its answer soon: no watch, no log that is followed, nothing that
// goes on to a pod or a node, no upgrade. Writes may wait for webhooks, and whether they happened must not be guessed.
func isQuick(r *http.Request, path string) bool {
	if r.Method != http.MethodGet && r.Method != http.MethodHead || r.Header.Get("Upgrade") != "" {
		return false
	}
	isTrue := func(value string) bool { return value == "true" || value == "1" }
	query := r.URL.Query()
	return !isTrue(query.Get("watch")) && !isTrue(query.Get("follow")) &&
		!strings.Contains(path, "/watch/") && !strings.Contains(path+"/", "/proxy/")
}

// dropIdentity removes everything by which a client could tell the member who it is.
func dropIdentity(h http.Header) {
	h.Del("Authorization")
	for name := range h {
		if strings.HasPrefix(name, "Impersonate-") || strings.HasPrefix(name, "X-Remote-") {
			delete(h, name)
		}
	}
}

func unavailable(message string) error {
	err := apierrors.NewServiceUnavailable(message)
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: retryAfter}
	return err
}
