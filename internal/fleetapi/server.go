// Package fleetapi is the aggregated API server of the group fleet.orrery.dev. The
// kube-apiserver of the hub forwards requests below /apis/fleet.orrery.dev/v1alpha1. The list kinds
// has the virtual kinds that are served there:
//
//	clusters/NAME/proxy/...        the API server of one cluster (package proxy)
//	clusters/NAME/mirror           what is mirrored from one cluster, and how old it is (package
//	                               mirror), for callers that may also get its Cluster
//	consolelinks                   links that open the console as the user that creates them
//	                               (package console)
//	resources/fleet/proxy/...      the mirrored objects of all clusters (package search)
//	resources/qualified/proxy/...  the same for programs: every namespace names its cluster
//	placements, works              why an object of the hub is placed where it is, and its state
//	                               there (package explanation)
//	placementreviews               where an object would be placed by a policy that need not exist
//	                               (package explanation)
//	access                         what the caller may see and change
//
// # Authentication
//
// Requests come from the kube-apiserver of the hub, which proves its identity with its front
// proxy certificate and names the user, or have a client certificate of the hub. All other
// requests, also anonymous ones, are refused.
//
// # Authorization
//
// The RBAC of the hub decides twice. The kube-apiserver authorizes the outer URL, from which it
// knows only a resource, a name and a subresource: resources/fleet/proxy/api/v1/pods is the
// subresource proxy of the resource named fleet. So a role for users that search has the rule
//
//	apiGroups: [fleet.orrery.dev], resources: [resources/proxy], verbs: [get, create]
//
// (create is for questions about oneself, which are POST requests). To ask why, it also has list
// of placements, works and access, and create of placementreviews. The role must be bound
// cluster-wide even for users that may see one namespace only, because the outer URL has none.
// The role grants nothing by itself and may be given to system:authenticated. A role for work in
// clusters through their proxy has
//
//	apiGroups: [fleet.orrery.dev], resources: [clusters/proxy], verbs: ["*"],
//	resourceNames: [those clusters; left out, all]
//
// This server authorizes requests in the same way, since some do not come through the
// kube-apiserver. The exception is resources/proxy, where that right is only needed for a body or
// parameters that no other right protects. No parameter and no body is parsed before the caller is
// authorized.
//
// For the inner URL, this server sends its own SubjectAccessReview to the hub. To search, the
// caller must be allowed to list the type itself in the namespace of the request, or in all. A
// request for all namespaces by a caller that may list the type in some is answered with those.
// Of a namespace, the caller sees the part in the clusters that the namespace may use, see
// package access. To ask why, the caller must be allowed to get the object, or to create
// policies to review one. To use a proxy, the caller needs the verb on clusters/proxy of that
// name. In the member, its own RBAC decides, because the proxy impersonates the caller.
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

// Options of the aggregated API server. All fields but RBACOnly are required.
type Options struct {
	// Hub is the configuration for clients of the hub with the rights of an administrator.
	Hub *rest.Config
	// Address is the address to serve on, host:port.
	Address string
	// CertFile and KeyFile are the serving certificate. They are read again when they change.
	CertFile, KeyFile string
	// Registry has the clusters.
	Registry *member.Registry
	// Mirror and Store have the mirrored objects.
	Mirror *mirror.Mirror
	Store  *store.Store
	// Fleet decides which clusters the namespaces of the hub may use.
	Fleet *fleet.Cache
	// Explainer explains placements.
	Explainer *explanation.Explainer
	// Informers of the hub.
	Informers cache.Informers
	// ConsoleLink creates a link that opens the console as a user.
	ConsoleLink func(who user.Info) (fleetv1alpha1.ConsoleLinkStatus, error)
	// RBACOnly is true if RBAC is the only authorizer of the hub.
	RBACOnly bool
}

// Server is the aggregated API server of the group fleet.orrery.dev.
type Server struct {
	address       string
	certificate   *dynamiccertificates.DynamicCertKeyPairContent
	authenticator *authenticator
	api           *api
	live          *live.Live
}

// New returns a server that does not serve yet; Run serves. It registers handlers with o.Fleet and
// o.Informers. An error means that the certificate or a configuration is invalid.
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
		if c.What&(fleet.Membership|fleet.Labels) != 0 { // ClusterAccesses select clusters by these
			changes.change()
		}
	})
	authorizer := newAuthorizer(hub.AuthorizationV1().SubjectAccessReviews(), nil, o.RBACOnly)
	changes.telling = authorizer.changes.repeat
	authorizer.roles, err = newRoles(context.Background(), o.Informers, func(of []access.Subject) {
		changes.change() // first, so that a notification at this moment is followed by another
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
			menus:      newMenus(),
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

// throughProxy is the right to get resources/proxy named fleet. The kube-apiserver of the hub
// requires it for requests to the fleet. This server requires it for requests that do not come
// through the kube-apiserver.
var throughProxy = rightsTo("get", fleetv1alpha1.GroupVersion.WithResource("resources/proxy"), nil, "fleet")[0]

// Live returns the handler that sends windows of lists of the fleet to the console, and their
// changes. The context of a request must have the user, and end with the session of the console.
func (s *Server) Live() http.Handler { return s.live }

// Authorize returns nil if the user of ctx may do what on the hub. Otherwise it returns the error
// for the user, which is Forbidden, or Unauthorized if ctx has no user. The console calls it.
func (s *Server) Authorize(ctx context.Context, what authorizationv1.ResourceAttributes) error {
	return s.api.authorizer.resource(ctx, what)
}

// fences returns which clusters the namespaces of the hub may use, for searches. It is an error for
// the client while f has not read that yet.
func fences(f *fleet.Cache) (search.Fence, error) {
	if !f.Synced() {
		return nil, apierrors.NewServiceUnavailable("the hub has just started and is still reading which clusters a namespace may use: try again in a few seconds")
	}
	return f.Snapshot(), nil
}

// liveMember is a cluster that a search asks directly, for types that are not mirrored.
type liveMember struct{ *member.Member }

// Serves implements search.Live. It reports whether the cluster serves the resource, as far as that
// is known.
func (l liveMember) Serves(gvr schema.GroupVersionResource) presence.Presence {
	_, known := l.APIs().Resource(gvr)
	return known
}

// names returns the names of clusters, in their order.
func names(clusters []*fleet.Cluster) []string {
	names := make([]string, 0, len(clusters))
	for _, c := range clusters {
		names = append(names, c.Name)
	}
	return names
}

// Limits of a connection to the fleet API. Bodies and responses are streams and have no limit.
const (
	headerTimeout   = 30 * time.Second
	idleTimeout     = 3 * time.Minute
	shutdownTimeout = 3 * time.Second
	streams         = 1000 // of one HTTP/2 connection; the kube-apiserver opens few connections
)

// Run serves the fleet API at Options.Address until ctx ends, and then returns nil. An error means
// that it cannot listen or serve.
func (s *Server) Run(ctx context.Context) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.address)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", s.address, err)
	}
	return s.serve(ctx, listener)
}

// serve serves connections of listener until ctx ends. Then it waits up to shutdownTimeout for
// requests, and closes the other connections.
func (s *Server) serve(ctx context.Context, listener net.Listener) error {
	log := logr.FromContextOrDiscard(ctx).WithName("fleet")
	certificates := dynamiccertificates.NewDynamicServingCertificateController(&tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2", "http/1.1"},
		ClientAuth: tls.RequestClientCert, // the authenticator verifies it
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
	// Streams end with ctx. Other requests get shutdownTimeout to end.
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if err := server.Shutdown(grace); err != nil {
		return server.Close()
	}
	return nil
}

// handler returns the API with its middleware: metrics, recovery from panics, and authentication.
func (s *Server) handler() http.Handler {
	return withMetrics(withRecovery(s.authenticator.withUser(s.api)))
}
