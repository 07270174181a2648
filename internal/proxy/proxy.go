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
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/answer"
)

// retryAfter is the number of seconds after which an unreachable cluster may be asked
// again.
const retryAfter = 5

// answerTimeout is how long a cluster that is not known to be away may take to begin an answer to a read that is no stream.
const answerTimeout = 15 * time.Second

var errNoAnswer = fmt.Errorf("no answer within %s", answerTimeout)

// Member is what the proxy needs of a member cluster.
type Member interface {
	// Cluster is the cluster's object as last seen.
	Cluster() *clusterv1alpha1.Cluster
	// Impersonator has the credentials that may impersonate users.
	Impersonator() *rest.Config
	// Reachable is false once the cluster has not answered for a while.
	Reachable() bool
}

// Proxy passes requests on to members.
type Proxy struct {
	find       func(name string) (Member, bool)
	transports transports
	patience   time.Duration
}

// New returns a proxy to the members that find knows.
func New(find func(name string) (Member, bool)) *Proxy {
	return &Proxy{find: find, transports: transports{of: map[string]*pair{}}, patience: answerTimeout}
}

// Forget drops the connections to a cluster. It must be called after the cluster's
// address or credentials changed, or it left.
func (p *Proxy) Forget(cluster string) { p.transports.forget(cluster) }

// Serve passes a request on to path, which is escaped, in the API server of a cluster. The
// request's context must hold the user.
func (p *Proxy) Serve(w http.ResponseWriter, r *http.Request, cluster, path string) error {
	caller, ok := request.UserFrom(r.Context())
	if !ok {
		return apierrors.NewUnauthorized("the request has no user")
	}
	member, ok := p.find(cluster)
	if !ok {
		return apierrors.NewNotFound(schema.GroupResource{Group: clusterv1alpha1.GroupVersion.Group, Resource: "clusters"}, cluster)
	}
	w.Header().Set(fleetv1alpha1.ProxiedHeader, cluster)
	if !member.Reachable() {
		return unreachable(member.Cluster())
	}
	plain, err := url.PathUnescape(path)
	if err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("path %q: %v", path, err))
	}
	to, err := p.transports.get(cluster, member)
	if err != nil {
		return fmt.Errorf("connect to cluster %s: %w", cluster, err)
	}
	through := to.requests
	if r.Header.Get("Upgrade") != "" {
		through = to.upgrades
	}
	answered := func() bool { return true }
	if isQuick(r, plain) {
		ctx, cancel := context.WithCancelCause(r.Context())
		defer cancel(nil)
		answered = time.AfterFunc(p.patience, func() { cancel(errNoAnswer) }).Stop
		r = r.WithContext(ctx)
	}
	(&httputil.ReverseProxy{
		ModifyResponse: func(*http.Response) error { answered(); return nil },
		Rewrite: func(pr *httputil.ProxyRequest) {
			pr.Out.URL.Path, pr.Out.URL.RawPath = plain, path
			pr.Out.URL.RawQuery = pr.In.URL.RawQuery // as the client wrote it
			pr.SetURL(to.base)
			dropIdentity(pr.Out.Header)
			pr.Out.Header["X-Forwarded-For"] = pr.In.Header["X-Forwarded-For"]
			pr.SetXForwarded()
		},
		Transport:     transport.NewImpersonatingRoundTripper(impersonation(caller), through),
		FlushInterval: -1, // watches and logs
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if cause := context.Cause(r.Context()); errors.Is(cause, errNoAnswer) {
				err = cause
			}
			if !errors.Is(err, context.Canceled) {
				logr.FromContextOrDiscard(r.Context()).V(1).Info("cluster did not answer", "cluster", cluster, "error", err.Error())
			}
			answer.Error(w, r, unavailable(fmt.Sprintf("cluster %q does not answer: %v", cluster, err)))
		},
	}).ServeHTTP(w, r)
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

func impersonation(u user.Info) transport.ImpersonationConfig {
	return transport.ImpersonationConfig{
		UserName: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups(), Extra: u.GetExtra(),
	}
}

// unreachable says since when and why a cluster does not answer.
func unreachable(cluster *clusterv1alpha1.Cluster) error {
	message := fmt.Sprintf("cluster %q is unreachable", cluster.Name)
	if c := meta.FindStatusCondition(cluster.Status.Conditions, clusterv1alpha1.ConditionReachable); c != nil && c.Status != "True" {
		message += fmt.Sprintf(" since %s: %s", c.LastTransitionTime.UTC().Format(time.RFC3339), c.Message)
	}
	return unavailable(message)
}

func unavailable(message string) error {
	err := apierrors.NewServiceUnavailable(message)
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: retryAfter}
	return err
}
