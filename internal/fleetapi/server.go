// Package fleetapi is the aggregated API server of the group fleet.orrery.dev. The hub's
// kube-apiserver passes on what is asked below /apis/fleet.orrery.dev/v1alpha1:
//
//	clusters/NAME/proxy/...  the API server of one cluster (package proxy)
//	clusters/NAME/mirror     what is mirrored of one cluster, and how old it is (package mirror), for who may get its Cluster
//	consolelinks             links by which the console is opened as who creates them (package console)
//	resources/fleet/proxy/...      the mirrored objects of all of them (package search)
//	resources/qualified/proxy/...  the same for programs: every namespace names its cluster
//	placements, works              why an object of the hub is where it is, and how it fares there (package explanation)
//	placementreviews               where an object would be placed by a policy that need not exist (package explanation)
//	access                         what the caller may see and change
//
// # Who may come in
//
// Requests are those of the hub's kube-apiserver, which proves itself with its front
// proxy certificate and names the user, or carry a client certificate of the hub. There
// is no other way in, and no anonymous one.
//
// # Who may do what
//
// The hub's RBAC says, twice. The kube-apiserver authorizes the outer URL, in which it
// sees a resource, a name and a subresource and no more: resources/fleet/proxy/api/v1/pods is the
// subresource proxy of the resources named fleet. So a role that lets somebody search has the
// rule
//
//	apiGroups: [fleet.orrery.dev], resources: [resources/proxy], verbs: [get, create]
//
// (create is for questions about oneself, which are posted), and to ask why, list of placements, works and access and create of
// placementreviews. It must be
// bound cluster-wide even for those who may see one namespace only, for the outer URL has
// none; since it opens nothing by itself, it may be given to system:authenticated. A role for
// working in clusters through their proxy has
//
//	apiGroups: [fleet.orrery.dev], resources: [clusters/proxy], verbs: ["*"],
//	resourceNames: [those clusters; left out, all]
//
// A request that did not come through the kube-apiserver is authorized as there where it has a body
// or parameters that no other right guards. No parameter and no body is parsed before the caller is
// authorized.
//
// What lies behind the outer URL this server asks the hub with a SubjectAccessReview of its own: to
// search, the caller must be allowed to list the type itself in the namespace asked for, or
// everywhere; who asks for all namespaces and may list it in some sees these (what is seen of a
// namespace is in the clusters that it may use; see package access); to ask why, to get the object,
// or to create policies where one is reviewed; to use a proxy, the verb on clusters/proxy of that
// name. In the member, its own RBAC decides, for the proxy impersonates the caller.
package fleetapi

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/go-logr/logr"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/access"
	"orrery.dev/orrery/internal/explanation"
	"orrery.dev/orrery/internal/fleet"
	"orrery.dev/orrery/internal/live"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/proxy"
	"orrery.dev/orrery/internal/search"
	"orrery.dev/orrery/internal/store"
)

// Options of the server. All of them are required.
type Options struct {
	// Hub is the configuration of clients of the hub, as an administrator.
	Hub *rest.Config
	// Address is where to serve, host:port.
	Address string
	// CertFile and KeyFile hold the serving certificate. They are read again when they
	// change.
	CertFile, KeyFile string
	// Registry knows the clusters.
	Registry *member.Registry
	// Mirror and Store hold what was seen in them.
	Mirror *mirror.Mirror
	Store  *store.Store
	// Fleet knows which clusters the hub's namespaces may use.
	Fleet *fleet.Cache
	// Explainer says why objects are where they are.
	Explainer *explanation.Explainer
	// Informers of the hub.
	Informers cache.Informers
	// ConsoleLink makes a link by which the console is opened as a user.
	ConsoleLink func(who user.Info) (fleetv1alpha1.ConsoleLinkStatus, error)
	// RBACOnly is true if nothing but RBAC authorizes on the hub.
	RBACOnly bool
}

// Server is the aggregated API server.
type Server struct {
	address       string
	certificate   *dynamiccertificates.DynamicCertKeyPairContent
	authenticator *authenticator
	api           *api
	live          *live.Live
}

// New returns a server that does not serve yet.
func New(o Options) (*Server, error) {
	hub, err := kubernetes.NewForConfig(o.Hub)
	if err != nil {
		return nil, fmt.Errorf("create client of the hub: %w", err)
	}
	certificate, err := dynamiccertificates.NewDynamicServingContentFromFiles("fleet", o.CertFile, o.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("read serving certificate: %w", err)
	}
	authenticator, err := newAuthenticator(hub)
	if err != nil {
		return nil, err
	}
	changes, fenced := newGrants(), newGenerations()
	o.Fleet.SubscribeFences(func(namespaces sets.Set[string]) {
		fenced.changed(namespaces)
		changes.change()
	})
	o.Fleet.Subscribe(func(c fleet.Change) {
		fenced.moved(c)
		if c.What&(fleet.Membership|fleet.Labels) != 0 { // by which fences select
			changes.change()
		}
	})
	authorizer := newAuthorizer(hub.AuthorizationV1().SubjectAccessReviews(), nil, o.RBACOnly)
	changes.telling = authorizer.changes.repeat
	authorizer.roles, err = newRoles(context.Background(), o.Informers, func(of []access.Subject) {
		changes.change() // first: a ring at this moment is followed by another
		authorizer.changes.add(of)
	})
	if err != nil {
		return nil, err
	}
	fleetSearch := search.New(search.Options{
		Mirror: o.Mirror, Store: o.Store,
		Ready:     func() bool { return o.Fleet.Synced() && o.Mirror.Recalled() },
		Clusters:  func() []string { return names(o.Fleet.Snapshot().Clusters()) },
		Authorize: authorizer.resource, Namespaces: authorizer.namespaces,
		Fence:  func() (search.Fence, error) { return fences(o.Fleet) },
		Made:   o.Fleet.Made,
		Grants: changes.wait, UntoldRights: !o.RBACOnly, Generation: fenced.of,
		Live: func(name string) (search.Live, bool) {
			m, ok := o.Registry.Member(name)
			return liveMember{m}, ok
		},
		Version: hub.Discovery().ServerVersion,
	})
	documents, err := newOpenAPI(o.Hub, fleetSearch)
	if err != nil {
		return nil, err
	}
	proxies := proxy.New(func(name string) (proxy.Member, bool) { return o.Registry.Member(name) })
	return &Server{
		address: o.Address, certificate: certificate, authenticator: authenticator,
		api: &api{
			authorizer: authorizer,
			proxy:      proxies,
			search:     fleetSearch,
			reviews:    &reviews{o.Hub, authorizer},
			openAPI:    documents,
			explainer:  o.Explainer,
			mirror:     o.Mirror.Describe,
			link:       o.ConsoleLink,
			metrics:    metrics(),
			ready:      authenticator.ready,
		},
		live: live.New(live.Options{
			Window: func(ctx context.Context, path string, query url.Values, offset, limit int) (search.Window, <-chan struct{}, error) {
				if err := authorizer.resource(ctx, throughProxy); err != nil {
					return search.Window{}, nil, err
				}
				return fleetSearch.Window(ctx, path, query, offset, limit)
			},
			Visible: fleetSearch.Visible, Grants: changes.wait,
			Clusters: func() []string { return names(o.Fleet.Snapshot().Clusters()) }, State: o.Mirror.State,
		}),
	}, nil
}

// throughProxy is what the hub's kube-apiserver asks of who comes to the fleet through it.
var throughProxy = authorizationv1.ResourceAttributes{
	Verb: "get", Group: fleetv1alpha1.GroupVersion.Group, Version: fleetv1alpha1.GroupVersion.Version, Resource: "resources", Subresource: "proxy", Name: "fleet",
}

// Live serves windows of the fleet to browsers, by requests whose context has the user and ends with the session.
func (s *Server) Live() http.Handler { return s.live }

// Authorize returns nil if the user of ctx may do something on the hub, and else what to tell them.
func (s *Server) Authorize(ctx context.Context, what authorizationv1.ResourceAttributes) error {
	return s.api.authorizer.resource(ctx, what)
}

// fences says which clusters the hub's namespaces may use, as soon as that is known.
func fences(f *fleet.Cache) (search.Fence, error) {
	if !f.Synced() {
		return nil, apierrors.NewServiceUnavailable("which clusters the hub's namespaces may use is not known yet: ask again in a moment")
	}
	return f.Snapshot(), nil
}

// liveMember is a cluster that search asks itself.
type liveMember struct{ *member.Member }

// Serves implements search.Live.
func (l liveMember) Serves(gvr schema.GroupVersionResource) presence.Presence {
	_, known := l.APIs().Resource(gvr)
	return known
}

func names(clusters []*fleet.Cluster) []string {
	names := make([]string, 0, len(clusters))
	for _, c := range clusters {
		names = append(names, c.Name)
	}
	return names
}

// Limits of a connection. Bodies and answers have none: they are streams.
const (
	headerTimeout   = 30 * time.Second
	idleTimeout     = 3 * time.Minute
	shutdownTimeout = 3 * time.Second
	streams         = 1000 // of one HTTP/2 connection; the kube-apiserver opens few of these
)

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.address)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", s.address, err)
	}
	return s.serve(ctx, listener)
}

func (s *Server) serve(ctx context.Context, listener net.Listener) error {
	log := logr.FromContextOrDiscard(ctx).WithName("fleet")
	certificates := dynamiccertificates.NewDynamicServingCertificateController(&tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2", "http/1.1"},
		ClientAuth: tls.RequestClientCert, // verified by the authenticator
	}, nil, s.certificate, nil, nil)
	if err := certificates.RunOnce(); err != nil {
		return errors.Join(fmt.Errorf("load serving certificate: %w", err), listener.Close())
	}
	s.certificate.AddListener(certificates)
	go s.certificate.Run(ctx, 1)
	go certificates.Run(1, ctx.Done())
	go s.authenticator.run(ctx)

	server := &http.Server{
		Handler:           s.handler(),
		BaseContext:       func(net.Listener) context.Context { return logr.NewContext(ctx, log) },
		TLSConfig:         &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}, GetConfigForClient: certificates.GetConfigForClient},
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: streams},
		ErrorLog:          errorLog(log),
	}
	done := make(chan error, 1)
	go func() { done <- server.ServeTLS(listener, "", "") }()
	select {
	case err := <-done:
		return fmt.Errorf("serve on %s: %w", s.address, err)
	case <-ctx.Done():
	}
	// Streams have ended with ctx, which is theirs too; what is left gets a moment.
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if err := server.Shutdown(grace); err != nil {
		return server.Close()
	}
	return nil
}

// handler is the chain of middleware around the API, the outermost first.
func (s *Server) handler() http.Handler {
	return withMetrics(withRecovery(s.authenticator.withUser(s.api)))
}
