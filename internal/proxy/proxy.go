// Package proxy forwards requests to the API servers of member clusters.
//
// The proxy impersonates the user whom the hub authenticated, and the member's own RBAC
// authorizes the request. Headers in which the client states an identity (Authorization,
// Impersonate-*, X-Remote-*, tokens in WebSocket subprotocols) are dropped, since the member would
// trust them. Bodies are streamed
// in both directions, and upgrades (exec, attach and port-forward, over SPDY or WebSocket) are
// forwarded. Headers of answers that affect more than the answer are dropped; see Confine.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
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

// retryAfter is the Retry-After header, 5 seconds, of the answer for a cluster that counts as
// reachable and did not answer a request.
const retryAfter = 5

// answerTimeout is how long a cluster that counts as reachable may take to begin its answer to a
// request for which isQuick is true: 15 seconds.
const answerTimeout = 15 * time.Second

// errNoAnswer is the cause with which a request is canceled after answerTimeout.
var errNoAnswer = fmt.Errorf("no answer within %s", answerTimeout)

// Member is a member cluster, as the proxy needs it. member.Registry has them.
type Member interface {
	// Cluster returns the Cluster as it was last read from the hub. The proxy does not change it.
	Cluster() *clusterv1alpha1.Cluster
	// Passage returns the transports to the member's API server, with credentials that may impersonate
	// users.
	Passage() *member.Passage
	// Reachable is false if the cluster does not answer, refuses the hub's credentials, or is another
	// cluster than the one that joined.
	Reachable() bool
}

// Proxy forwards requests of the hub's users to the API servers of member clusters. It may be used
// from several goroutines.
type Proxy struct {
	find     func(name string) (Member, bool)
	patience time.Duration
}

// New returns a proxy to the members that find returns by name; false means that there is no such
// cluster. find is called for each request, from several goroutines.
func New(find func(name string) (Member, bool)) *Proxy {
	return &Proxy{find: find, patience: answerTimeout}
}

// Serve forwards a request to the API server of a cluster, as the user in the request's context. It
// returns when the answer or the upgraded connection has ended. path is the escaped path at that
// API server, and must be the end of the request's own path.
//
// An error is an API status for the client and means that Serve has written no answer; it may have
// set headers. It is Unauthorized without a user, NotFound for an unknown cluster, and
// ServiceUnavailable for an unreachable one. It is Forbidden if the user cannot have an identity in
// members, or if the profile of the cluster's agent allows no users. It is BadRequest for an
// invalid path or one with the segments "." or "..". Serve answers all later failures itself and
// returns nil.
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
			pr.Out.URL.RawQuery = pr.In.URL.RawQuery // unchanged
			pr.SetURL(passage.Base)
			dropIdentity(pr.Out.Header)
			pr.Out.Header["X-Forwarded-For"] = pr.In.Header["X-Forwarded-For"]
			pr.SetXForwarded()
		},
		Transport:     Confine(transport.NewImpersonatingRoundTripper(as, through)),
		FlushInterval: -1, // flush at once, for watches and logs
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

// HasDots reports whether a path has a segment . or .., with any number of escapings and with
// parameters after a semicolon. Backslashes count as slashes. Such a path is refused: a front end
// that cleans paths could lead it to another cluster than the one that was authorized. The time is
// linear in the length of the path.
func HasDots(path string) bool {
	for segment := range strings.FieldsFuncSeq(unescape(path), func(r rune) bool { return r == '/' || r == '\\' }) {
		if name, _, _ := strings.Cut(segment, ";"); name == "." || name == ".." {
			return true
		}
	}
	return false
}

// unescape returns a path without percent-escapes, also those that appear when another escape is
// replaced, as in %252e. Invalid escapes stay.
func unescape(path string) string {
	if !strings.Contains(path, "%") {
		return path
	}
	out := make([]byte, 0, len(path))
	for i := range len(path) {
		out = append(out, path[i])
		for n := len(out) - 3; n >= 0 && out[n] == '%'; n = len(out) - 3 {
			b, err := strconv.ParseUint(string(out[n+1:]), 16, 8)
			if err != nil {
				break
			}
			out = append(out[:n], byte(b))
		}
	}
	return string(out)
}

// errLedAway is the error of redirect for a cluster's redirect to another server or out of the
// cluster's API. Serve answers 502 with it.
var errLedAway = errors.New("it answers with a redirect that leads out of the cluster, which is refused")

// redirect rewrites the Location header of a redirect from a cluster, so that the client follows it
// through the proxy. base is the URL of the cluster's API server, mount the path of the proxy at
// which it begins. Answers that are no redirects stay unchanged. A redirect to another server or
// path is errLedAway: clients would follow it with the credentials for the hub.
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

// isQuick reports whether an API server should begin its answer to a request soon. It is true for a
// GET or HEAD, with exceptions: watches, followed logs, upgrades, and requests that are forwarded
// to a pod, a service or a node. Writes are not quick: they may wait for webhooks, and after a
// timeout their outcome would be unknown. path is the unescaped path at the cluster.
func isQuick(r *http.Request, path string) bool {
	if r.Method != http.MethodGet && r.Method != http.MethodHead || r.Header.Get("Upgrade") != "" {
		return false
	}
	isTrue := func(value string) bool { return value == "true" || value == "1" }
	query := r.URL.Query()
	return !isTrue(query.Get("watch")) && !isTrue(query.Get("follow")) &&
		!strings.Contains(path, "/watch/") && !strings.Contains(path+"/", "/proxy/")
}

// dropIdentity removes the headers in which a client could claim an identity, because members trust
// the hub. It also removes cookies. Browsers send those to every port of a host, and members set
// none, so they are meant for other servers.
func dropIdentity(h http.Header) {
	h.Del("Authorization")
	h.Del("Cookie")
	DropTokens(h)
	for name := range h {
		if strings.HasPrefix(name, "Impersonate-") || strings.HasPrefix(name, "X-Remote-") {
			delete(h, name)
		}
	}
}

// tokenProtocol is the prefix of a WebSocket subprotocol in which API servers accept a bearer
// token.
const tokenProtocol = "base64url.bearer.authorization.k8s.io." //nolint:gosec // it is a name

// DropTokens removes bearer tokens from the WebSocket subprotocols in h. If no other subprotocol
// remains, it deletes the header. The API server that authenticated the client leaves the token in
// place if it used another credential of the client, such as a certificate.
func DropTokens(h http.Header) {
	var kept []string
	for _, values := range h["Sec-Websocket-Protocol"] {
		for protocol := range strings.SplitSeq(values, ",") {
			if protocol = strings.TrimSpace(protocol); protocol != "" && !strings.HasPrefix(strings.ToLower(protocol), tokenProtocol) {
				kept = append(kept, protocol)
			}
		}
	}
	delete(h, "Sec-Websocket-Protocol")
	if len(kept) > 0 {
		h.Set("Sec-WebSocket-Protocol", strings.Join(kept, ", "))
	}
}

// unavailable returns an API status 503 with a message and the header Retry-After, for a cluster
// that counts as reachable but did not answer.
func unavailable(message string) error {
	err := apierrors.NewServiceUnavailable(message)
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: retryAfter}
	return err
}
