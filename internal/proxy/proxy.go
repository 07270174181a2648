// Package proxy forwards requests to the API servers of member clusters.
//
// The proxy impersonates the user whom the hub authenticated, and the member's own RBAC
// authorizes the request. Headers in which the client states an identity (Authorization,
// Impersonate-*, X-Remote-*) are dropped, since the member would trust them. Bodies are streamed
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

// retryAfter is the number of seconds after which a client may repeat a request to a cluster that
// did not answer, but is not known to be unreachable.
const retryAfter = 5

// answerTimeout is how long a cluster that counts as reachable may take to start its answer to a
// read that is not a stream.
const answerTimeout = 15 * time.Second

var errNoAnswer = fmt.Errorf("no answer within %s", answerTimeout)

// Member is the part of a member cluster that the proxy uses.
type Member interface {
	// Cluster returns the last known Cluster object.
	Cluster() *clusterv1alpha1.Cluster
	// Passage returns the transports to the member, with credentials that may impersonate users.
	Passage() *member.Passage
	// Reachable is false if the cluster has not answered for a while.
	Reachable() bool
}

// Proxy forwards requests to members.
type Proxy struct {
	find     func(name string) (Member, bool)
	patience time.Duration
}

// New returns a proxy to the members that find returns.
func New(find func(name string) (Member, bool)) *Proxy {
	return &Proxy{find: find, patience: answerTimeout}
}

// Serve forwards a request to a path of the API server of a cluster. The path is escaped. The
// request's context must hold the user. A returned error means that no answer was written.
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

// HasDots reports whether a path has a segment . or .., escaped any number of times. Behind a front
// end that cleans paths and serves several clusters, such a path could lead to another cluster. The
// time is linear in the length of the path.
func HasDots(path string) bool {
	for segment := range strings.FieldsFuncSeq(unescape(path), func(r rune) bool { return r == '/' || r == '\\' }) {
		if name, _, _ := strings.Cut(segment, ";"); name == "." || name == ".." {
			return true
		}
	}
	return false
}

// unescape replaces the escapes of a path, and those that they are a part of, until none is left.
// Each byte is looked at once when it is read, and once when it completes an escape.
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

var errLedAway = errors.New("it answers with a redirect that leads out of the cluster, which is refused")

// redirect rewrites a redirect of the cluster so that it leads through the proxy, at mount. A
// redirect to another server is an error: clients would follow it with their own credentials.
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

// isQuick reports whether an API server starts its answer to the request soon: a GET or HEAD
// that is no watch, no followed log, no upgrade, and is not forwarded to a pod or a node. Writes
// may wait for webhooks, and their outcome must not be guessed.
func isQuick(r *http.Request, path string) bool {
	if r.Method != http.MethodGet && r.Method != http.MethodHead || r.Header.Get("Upgrade") != "" {
		return false
	}
	isTrue := func(value string) bool { return value == "true" || value == "1" }
	query := r.URL.Query()
	return !isTrue(query.Get("watch")) && !isTrue(query.Get("follow")) &&
		!strings.Contains(path, "/watch/") && !strings.Contains(path+"/", "/proxy/")
}

// dropIdentity removes all headers in which a client could state an identity, and cookies, which
// browsers send to every port of a host: members set none, so they are for others.
func dropIdentity(h http.Header) {
	h.Del("Authorization")
	h.Del("Cookie")
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
