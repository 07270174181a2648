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

const userAgent = "orrery"

// Keys of a Secret with credentials.
const (
	keyToken = "token"
	keyCert  = corev1.TLSCertKey
	keyKey   = corev1.TLSPrivateKeyKey
	keyCA    = "ca.crt"
)

var errNoCredentials = errors.New("the credentials were not read yet")

// connection is used to reach a cluster while its address and credentials stay the same.
type connection struct {
	base *url.URL
	// problem is why there is no connection: the Secret is missing or unusable.
	problem error
	// transport authenticates and shares its connections between all clients.
	transport http.RoundTripper
	// fresh authenticates too, but dials for every request.
	fresh http.RoundTripper
	// anonymous sends no credentials, and dials for every request.
	anonymous http.RoundTripper
	// passage is for requests in the name of users.
	passage *Passage
	// grant is that of the token of transport and fresh; nil: the token does not belong to the
	// hub's account.
	grant atomic.Pointer[grant]
	// agent means that an agent dials the cluster, and renews the token.
	agent bool
	// welcomes means that the hub's administrators get rights in the cluster.
	welcomes bool
	// needs are the permissions that a member must grant.
	needs []permission
	// ours is the bearer token of transport and fresh, users that of passage. They are the same
	// pointer if there is one Secret.
	ours, users *bearerToken
	// expires is when the client certificate expires; zero: there is none.
	expires time.Time
	// admins is the result of binding the hub's administrators, and adminsTried the time of the
	// attempt. Only the probes use them.
	admins      admins
	adminsTried time.Time
	// drop closes all connections. Requests in flight fail; the next request dials again.
	drop func()
	// dialled counts opened connections. Another server may answer on each.
	dialled atomic.Int64
	// key identifies address and credentials; stamp identifies the versions of their objects.
	key   [sha256.Size]byte
	stamp string
	fixed [sha256.Size]byte // key without the tokens
}

// Redacted returns an address for messages, without a password.
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

// parseURL parses an address. Its error does not contain the address, which may have a password.
func parseURL(field, address string) (*url.URL, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("%s is not a URL", field)
	}
	return u, nil
}

func (c *connection) close() {
	c.drop()
	c.passage.close()
}

// unavailable is the transport of a cluster without a connection.
type unavailable struct{ err error }

// RoundTrip implements http.RoundTripper.
func (u unavailable) RoundTrip(req *http.Request) (*http.Response, error) {
	return nil, errors.Join(u.err, closeBody(req))
}

// CloseIdleConnections does nothing, as there are no connections.
func (u unavailable) CloseIdleConnections() {}

func closeBody(req *http.Request) error {
	if req.Body == nil {
		return nil
	}
	return req.Body.Close()
}

// brokenConnection returns a connection whose requests fail with problem.
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

// newConnection creates the connection for a Cluster and its Secrets. impersonator is nil if
// secret serves users, too.
func newConnection(dial Dial, cluster *clusterv1alpha1.Cluster, secret, impersonator *corev1.Secret) (*connection, error) {
	spec := &cluster.Spec
	config, err := restConfig(spec, secret)
	if err != nil {
		return nil, err
	}
	users := config
	c := &connection{needs: permissions(spec), agent: pulls(cluster), welcomes: welcomesAdmins(spec), ours: newBearerToken(config.BearerToken)}
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

// restConfig checks a Secret and returns its client configuration. Errors contain the names of
// keys, never values.
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

// notAfter returns when a PEM client certificate expires; zero: it cannot be parsed.
func notAfter(certPEM []byte) time.Time {
	certs, err := cert.ParseCertsPEM(certPEM)
	if err != nil {
		return time.Time{}
	}
	return certs[0].NotAfter
}

// connectionKey returns a hash that identifies an address and credentials.
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

// routed is the transport of a member's clients. It sends requests through the current
// connection, within the member's limit.
type routed struct {
	member *Member
	base   *url.URL // the base for which the client was created
}

// RoundTrip implements http.RoundTripper.
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

// readdress changes the address of a request to the present one of the cluster.
func readdress(req *http.Request, from, to *url.URL) *http.Request {
	ctx := req.Context()
	req = req.Clone(ctx)
	path := strings.TrimPrefix(req.URL.Path, strings.TrimSuffix(from.Path, "/"))
	req.URL.Scheme, req.URL.Host, req.Host = to.Scheme, to.Host, ""
	req.URL.Path, req.URL.RawPath = strings.TrimSuffix(to.Path, "/")+path, ""
	return req
}

// get sends a GET for one path of the cluster, without the member's limit.
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
