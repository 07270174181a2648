package fleetapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	requestauthenticator "k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/kubernetes"

	"orrery.dev/orrery/internal/answer"
)

// authenticationConfig is the ConfigMap in kube-system in which every kube-apiserver publishes what
// aggregated API servers need to authenticate requests: authorities of client certificates, and the
// names of the headers with the user.
const authenticationConfig = "extension-apiserver-authentication"

// authenticator identifies the user of a request: from headers that the kube-apiserver of the hub
// sets, or from a client certificate of the hub. It works while run runs.
type authenticator struct {
	proxyCA, clientCA *dynamiccertificates.ConfigMapCAController
	headers           *headerrequest.RequestHeaderAuthRequestController
	requests          requestauthenticator.Request
}

// newAuthenticator returns an authenticator that reads ConfigMap authenticationConfig of the hub
// once run runs.
func newAuthenticator(hub kubernetes.Interface) (*authenticator, error) {
	proxyCA, err := dynamiccertificates.NewDynamicCAFromConfigMapController(
		"front-proxy", metav1.NamespaceSystem, authenticationConfig, "requestheader-client-ca-file", hub)
	if err != nil {
		return nil, fmt.Errorf("watch front proxy CA: %w", err)
	}
	clientCA, err := dynamiccertificates.NewDynamicCAFromConfigMapController(
		"client", metav1.NamespaceSystem, authenticationConfig, "client-ca-file", hub)
	if err != nil {
		return nil, fmt.Errorf("watch client CA: %w", err)
	}
	headers := headerrequest.NewRequestHeaderAuthRequestController(authenticationConfig, metav1.NamespaceSystem, hub,
		"requestheader-username-headers", "requestheader-uid-headers", "requestheader-group-headers",
		"requestheader-extra-headers-prefix", "requestheader-allowed-names")
	provider := func(f func() []string) headerrequest.StringSliceProvider {
		return headerrequest.StringSliceProviderFunc(f)
	}
	return &authenticator{
		proxyCA: proxyCA, clientCA: clientCA, headers: headers,
		requests: group.NewAuthenticatedGroupAdder(union.New(
			headerrequest.NewDynamicVerifyOptionsSecure(proxyCA.VerifyOptions, provider(headers.AllowedClientNames),
				provider(headers.UsernameHeaders), provider(headers.UIDHeaders),
				provider(headers.GroupHeaders), provider(headers.ExtraHeaderPrefixes)),
			x509.NewDynamic(clientCA.VerifyOptions, x509.CommonNameUserConversion),
		)),
	}, nil
}

// run watches ConfigMap authenticationConfig until ctx ends, and blocks until then.
func (a *authenticator) run(ctx context.Context) {
	go a.proxyCA.Run(ctx, 1)
	go a.clientCA.Run(ctx, 1)
	a.headers.Run(ctx, 1)
}

// ready returns an error until the ConfigMap was read that is needed to authenticate requests of
// the kube-apiserver.
func (a *authenticator) ready() error {
	if _, ok := a.proxyCA.VerifyOptions(); !ok || len(a.headers.UsernameHeaders()) == 0 {
		return errors.New("the hub's front proxy is not known yet: ConfigMap kube-system/" + authenticationConfig + " was not read, or the hub has no --requestheader flags")
	}
	return nil
}

// withUser returns a middleware that adds the authenticated user to the context of a request, and
// refuses unauthenticated requests with 401. Requests to /livez and /readyz are passed on without a
// user.
func (a *authenticator) withUser(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isProbe(r.URL.Path) {
			next.ServeHTTP(w, r)
			return
		}
		who, ok, err := a.requests.AuthenticateRequest(r)
		if err != nil || !ok {
			if err != nil {
				logr.FromContextOrDiscard(r.Context()).V(1).Info("request not authenticated", "error", err.Error())
			}
			answer.Error(w, r, apierrors.NewUnauthorized("come through the hub's kube-apiserver, or with a client certificate of the hub"))
			return
		}
		next.ServeHTTP(w, r.WithContext(request.WithUser(r.Context(), who.User)))
	})
}
