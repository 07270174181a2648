package member

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/connrotation"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// userAgent is the User-Agent header of the hub's own requests to members.
const userAgent = "orrery"

// Keys of a Secret with the credentials of a cluster.
const (
	keyToken = "token"
	keyCert  = corev1.TLSCertKey
	keyKey   = corev1.TLSPrivateKeyKey
	keyCA    = "ca.crt"
)

// errNoCredentials is the problem of a new member's connection until Registry.connect has read the
// credentials.
var errNoCredentials = errors.New("the credentials were not read yet")

// connection has the transports to the API server of a cluster. It serves while the address and the
// credentials stay the same. A token may change without a new connection. Several goroutines may
// use the transports.
type connection struct {
	base *url.URL
	// problem is why there is no connection: the Secret is missing, not bound or unusable.
	// nil: there is one.
	problem error
	// transport sends the hub's credentials, and shares its connections between all clients.
	transport http.RoundTripper
	// fresh sends them too, but dials for every request.
	fresh http.RoundTripper
	// anonymous sends no credentials, and dials for every request.
	anonymous http.RoundTripper
	// passage is for requests in the name of users.
	passage *Passage
	// grant is the record of the issue and the life of the token of transport and fresh. nil: the
	// token does not belong to the hub's ServiceAccount.
	grant atomic.Pointer[grant]
	// agent means that an agent dials the cluster, and renews the token.
	agent bool
	// welcomes means that the hub gives its administrators all rights in the cluster.
	welcomes bool
	// required are the permissions that a member must grant.
	required []permission
	// ours is the bearer token of transport and fresh, users that of passage. They are the same
	// pointer if the Cluster has one Secret for both.
	ours, users *bearerToken
	// expires is when the client certificate expires; zero: there is none.
	expires time.Time
	// admins is the result of the attempt to give the hub's administrators all rights in the
	// cluster. adminsTried is the time of that attempt. Only the probes use these fields.
	admins      admins
	adminsTried time.Time
	// drop closes all connections of transport, fresh and anonymous. Requests in flight fail;
	// the next request dials again.
	drop func()
	// dialled counts opened connections. Another server may answer on each.
	dialled atomic.Int64
	// key identifies the address and the credentials; stamp identifies the versions of the objects
	// that have them (the Secrets and the Cluster's spec).
	key   [sha256.Size]byte
	stamp string
	fixed [sha256.Size]byte // key without the tokens
}

// Redacted returns an address for messages, with its password replaced by xxxxx. It is "(no
// URL)" for a text that is no URL.
func Redacted(address string) string {
	u, err := url.Parse(address)
	switch {
	case err != nil:
		return "(no URL)"
	case u.User == nil:
		return address
	}
	return u.Redacted()
}

// parseURL parses an address. field is the name of the field that has it, for the error. The error
// does not contain the address, which may have a password.
func parseURL(field, address string) (*url.URL, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("%s is not a URL", field)
	}
	return u, nil
}

// close closes all connections for the hub's own requests, and the idle connections for requests of
// users. Requests of users that are in flight go on.
func (c *connection) close() {
	c.drop()
	c.passage.close()
}

// unavailable is the transport of a cluster without a usable connection. Every request fails with
// the error err.
type unavailable struct{ err error }

// RoundTrip implements http.RoundTripper. It always fails with u.err.
func (u unavailable) RoundTrip(req *http.Request) (*http.Response, error) {
	return nil, errors.Join(u.err, closeBody(req))
}

// CloseIdleConnections does nothing, as the transport has no connections.
func (u unavailable) CloseIdleConnections() {}

// closeBody closes the body of a request, if there is one.
func closeBody(req *http.Request) error {
	if req.Body == nil {
		return nil
	}
	return req.Body.Close()
}

// brokenConnection returns a connection whose requests all fail with problem, for a member whose
// credentials are missing or unusable. If the address of the Cluster is no URL, base is
// https://invalid.
func brokenConnection(cluster *clusterv1alpha1.Cluster, problem error) *connection {
	base, err := parseURL("spec.apiEndpoint", cluster.Spec.APIEndpoint)
	if err != nil {
		// The API refuses such a URL.
		problem = errors.Join(problem, err)
		base = &url.URL{Scheme: "https", Host: "invalid"}
	}
	none := unavailable{err: fmt.Errorf("cluster %s: %w", cluster.Name, problem)}
	return &connection{
		base: base, problem: problem, transport: none, fresh: none, anonymous: none, drop: func() {},
		passage: &Passage{Base: base, Requests: none, Upgrades: none},
	}
}

// newConnection creates the connection for a Cluster with the credentials in secret. It does not
// dial. impersonator has the credentials for requests in the name of users; nil: secret has them,
// too. An error says what is wrong with a Secret or an address.
func newConnection(dial Dial, cluster *clusterv1alpha1.Cluster, secret, impersonator *corev1.Secret) (*connection, error) {
	spec := &cluster.Spec
	config, err := restConfig(spec, secret)
	if err != nil {
		return nil, err
	}
	users := config
	c := &connection{required: permissions(spec), agent: pulls(cluster), welcomes: welcomesAdmins(spec), ours: newBearerToken(config.BearerToken)}
	c.users = c.ours
	c.grant.Store(grantOf(secret))
	if impersonator != nil {
		if users, err = restConfig(spec, impersonator); err != nil {
			return nil, err
		}
		c.users = newBearerToken(users.BearerToken)
	}
	if c.fixed, err = connectionKey(spec, withoutToken(secret), withoutToken(impersonator)); err != nil {
		return nil, err
	}
	if c.passage, err = newPassage(users, dial, c.users); err != nil {
		return nil, err
	}
	if c.base, err = parseURL("spec.apiEndpoint", spec.APIEndpoint); err != nil {
		return nil, err
	}
	// The dialer keeps its connections for drop. Otherwise a hung HTTP/2 connection with open
	// streams would be used until its pings time out.
	dialer := connrotation.NewDialer(func(ctx context.Context, network, address string) (net.Conn, error) {
		c.dialled.Add(1)
		return dial(ctx, network, address)
	})
	c.drop = dialer.CloseAll
	unread := &atomic.Int64{}
	ours := func(config *rest.Config, as manner, token *bearerToken) http.RoundTripper {
		rt, e := newTransport(config, dialer.DialContext, as, token)
		err = errors.Join(err, e)
		return &guarded{next: rt, base: c.base, unread: unread}
	}
	c.transport, c.fresh = ours(config, shared, c.ours), ours(config, fresh, c.ours)
	nobody := rest.AnonymousClientConfig(config)
	c.anonymous = ours(nobody, fresh, newBearerToken(""))
	if err != nil {
		return nil, err
	}
	if len(config.CertData) > 0 {
		c.expires = notAfter(config.CertData)
	}
	return c, nil
}

// restConfig returns the client configuration for the address in spec and the credentials in
// secret. It is an error if secret has neither a token nor a client certificate with its key, or if
// one of them is invalid. A token for a server whose certificate is not verified is an error of the
// type *problem. Errors contain the names of keys, never values. With an agent, spec.proxyURL is
// ignored.
func restConfig(spec *clusterv1alpha1.ClusterSpec, secret *corev1.Secret) (*rest.Config, error) {
	invalid := func(format string, args ...any) error {
		return fmt.Errorf("secret %s/%s: "+format, append([]any{secret.Namespace, secret.Name}, args...)...)
	}
	config := &rest.Config{
		Host: spec.APIEndpoint, QPS: -1, UserAgent: userAgent,
		BearerToken: strings.TrimSpace(string(secret.Data[keyToken])),
		TLSClientConfig: rest.TLSClientConfig{
			CertData: secret.Data[keyCert], KeyData: secret.Data[keyKey],
			ServerName: spec.TLSServerName, Insecure: spec.TLSVerification == clusterv1alpha1.TLSSkip,
		},
	}
	if !config.Insecure {
		config.CAData = secret.Data[keyCA]
	}
	if len(config.CAData) > 0 && !x509.NewCertPool().AppendCertsFromPEM(config.CAData) {
		return nil, invalid("key %q holds no PEM certificate", keyCA)
	}
	switch hasCert, hasKey := len(config.CertData) > 0, len(config.KeyData) > 0; {
	case hasCert != hasKey:
		return nil, invalid("keys %q and %q belong together, but one is missing", keyCert, keyKey)
	case hasCert:
		if _, err := tls.X509KeyPair(config.CertData, config.KeyData); err != nil {
			return nil, invalid("keys %q and %q: %w", keyCert, keyKey, err)
		}
	case config.BearerToken == "":
		return nil, invalid("key %q, or keys %q and %q, must be set", keyToken, keyCert, keyKey)
	}
	if strings.ContainsAny(config.BearerToken, " \t\r\n") {
		return nil, invalid("key %q holds more than one word", keyToken)
	}
	if config.Insecure && config.BearerToken != "" {
		// The server could keep the token. The key of a client certificate does not leave the
		// hub.
		return nil, &problem{reason: clusterv1alpha1.ReasonUnverifiedTLS, err: invalid("a token is never sent to a server whose certificate is not " +
			"verified (tlsVerification Skip); join with a kubeconfig that has certificate-authority-data, or a client certificate instead of a token")}
	}
	if spec.ProxyURL != "" && spec.SyncMode != clusterv1alpha1.Pull {
		proxy, err := parseURL("spec.proxyURL", spec.ProxyURL)
		if err != nil {
			return nil, err
		}
		config.Proxy = http.ProxyURL(proxy)
	}
	return config, nil
}

// notAfter returns when the first PEM client certificate expires. It is zero if the
// certificates cannot be parsed.
func notAfter(certPEM []byte) time.Time {
	certs, err := cert.ParseCertsPEM(certPEM)
	if err != nil {
		return time.Time{}
	}
	return certs[0].NotAfter
}

// connectionKey returns a hash of the address in spec and the credentials in secrets. Two
// connections with equal hashes are interchangeable. New credentials on trial (a candidate) in a
// Secret do not count. Elements of secrets may be nil.
func connectionKey(spec *clusterv1alpha1.ClusterSpec, secrets ...*corev1.Secret) ([sha256.Size]byte, error) {
	parts := []any{spec.SyncMode, rightsOf(spec), spec.APIEndpoint, spec.TLSVerification, spec.TLSServerName, spec.ProxyURL}
	for _, s := range secrets {
		if s == nil {
			continue
		}
		data := present(s)
		parts = append(parts, s.Namespace, s.Name)
		for _, key := range slices.Sorted(maps.Keys(data)) {
			parts = append(parts, key, data[key])
		}
	}
	b, err := json.Marshal(parts)
	if err != nil {
		return [sha256.Size]byte{}, fmt.Errorf("compare credentials: %w", err)
	}
	return sha256.Sum256(b), nil
}

// routed is the transport of the clients that Member.Config configures. It sends each request
// through the member's current connection, within its limit on requests in flight. Watches, streams
// and upgrades are not limited.
type routed struct {
	member *Member
	base   *url.URL // the base for which the client was created
}

// RoundTrip implements http.RoundTripper. It sends the request to the member's current address. It
// waits while the limit on requests in flight is reached, except for watches, streams and upgrades.
func (r *routed) RoundTrip(req *http.Request) (*http.Response, error) {
	c := r.member.current()
	if *c.base != *r.base {
		req = readdress(req, r.base, c.base)
	}
	transport := r.member.registry.options.Fence(c.transport) // behind the limit, where requests wait
	if exempt(req) {
		return transport.RoundTrip(req)
	}
	return r.member.limiter.roundTrip(transport, req)
}

// readdress returns a copy of a request to the API server at from, for the same path of the API
// server at to. The path prefixes of both addresses count.
func readdress(req *http.Request, from, to *url.URL) *http.Request {
	ctx := req.Context()
	req = req.Clone(ctx)
	path := strings.TrimPrefix(req.URL.Path, strings.TrimSuffix(from.Path, "/"))
	req.URL.Scheme, req.URL.Host, req.Host = to.Scheme, to.Host, ""
	req.URL.Path, req.URL.RawPath = strings.TrimSuffix(to.Path, "/")+path, ""
	return req
}

// get sends a GET for path to the API server at base through rt. It does not count in the member's
// limit on requests in flight. header may be nil. It returns a response of any HTTP status. The
// caller must close its body.
func get(ctx context.Context, rt http.RoundTripper, base *url.URL, path string, header http.Header) (*http.Response, error) {
	target := *base
	target.Path = strings.TrimSuffix(base.Path, "/") + path
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("address %s: %w", path, err)
	}
	maps.Copy(req.Header, header)
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", target.Redacted(), err)
	}
	return resp, nil
}
