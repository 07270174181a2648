package agent

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	clientcmdv1 "k8s.io/client-go/tools/clientcmd/api/v1"
	"sigs.k8s.io/yaml"
)

const (
	// mounted is the directory with the token and the authorities of a pod's ServiceAccount.
	mounted = "/var/run/secrets/kubernetes.io/serviceaccount"
	// inside is the URL under which every cluster's API server is reached from pods. The server's
	// certificate has this name.
	inside = "https://kubernetes.default.svc"
	// requestTimeout limits one request of the agent to the API server of the cluster.
	requestTimeout = 10 * time.Second
	// maxAnswer is the maximum size of an answer of the API server, in bytes.
	maxAnswer = 4 << 20
)

// Source returns the address of the cluster's API server with the agent's credentials. The agent
// calls it before each reconciliation, because authorities and credentials change. It may be called
// again after an error.
type Source func() (*Access, error)

// Access is the address of the API server of the agent's own cluster, with the credentials of the
// agent. It replaces the configuration of client-go, which is a much larger dependency. It is
// immutable.
type Access struct {
	endpoint   *url.URL
	address    string // host:port to dial for endpoint
	serverName string
	ca         []byte // PEM
	client     []byte // client certificate, PEM; empty: none
	clientKey  []byte
	token      string
}

// InCluster is the Source of an agent in a pod. It reads the environment and the mounted files of
// the pod's ServiceAccount. Outside of a pod it returns an error.
func InCluster() (*Access, error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, errors.New("this is no pod of a cluster: name the cluster with --kubeconfig")
	}
	ca, err := os.ReadFile(filepath.Join(mounted, "ca.crt"))
	if err != nil {
		return nil, fmt.Errorf("read the authorities of the cluster: %w", err)
	}
	token, err := os.ReadFile(filepath.Join(mounted, "token"))
	if err != nil {
		return nil, fmt.Errorf("read the token of the ServiceAccount: %w", err)
	}
	endpoint, err := url.Parse(inside)
	if err != nil {
		return nil, err
	}
	return &Access{endpoint: endpoint, address: net.JoinHostPort(host, port), ca: ca, token: strings.TrimSpace(string(token))}, nil
}

// Kubeconfig returns the Source of an agent that runs as a process outside the cluster. path is a
// kubeconfig file, and context one of its contexts; "": the current one. The Source reads the file
// at each call.
func Kubeconfig(path, context string) Source {
	return func() (*Access, error) {
		a, err := readKubeconfig(path, context)
		if err != nil {
			return nil, fmt.Errorf("read kubeconfig %s: %w", path, err)
		}
		return a, nil
	}
}

// readKubeconfig reads a context of the kubeconfig at path, and the files that the kubeconfig
// names. "" is the current context. It returns an error if the agent cannot use the context: the
// credentials come from a program or are a password, the cluster has a proxy, or the server's
// certificate is not verified by an authority in the kubeconfig.
func readKubeconfig(path, context string) (*Access, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var c clientcmdv1.Config
	if err := yaml.Unmarshal(text, &c); err != nil {
		return nil, err
	}
	context = cmp.Or(context, c.CurrentContext)
	chosen := find(c.Contexts, func(n clientcmdv1.NamedContext) (string, *clientcmdv1.Context) { return n.Name, &n.Context }, context)
	if chosen == nil {
		return nil, fmt.Errorf("there is no context %q", context)
	}
	cluster := find(c.Clusters, func(n clientcmdv1.NamedCluster) (string, *clientcmdv1.Cluster) { return n.Name, &n.Cluster }, chosen.Cluster)
	if cluster == nil {
		return nil, fmt.Errorf("there is no cluster %q", chosen.Cluster)
	}
	user := find(c.AuthInfos, func(n clientcmdv1.NamedAuthInfo) (string, *clientcmdv1.AuthInfo) { return n.Name, &n.AuthInfo }, chosen.AuthInfo)
	if user == nil {
		return nil, fmt.Errorf("there is no user %q", chosen.AuthInfo)
	}
	switch {
	case user.Exec != nil || user.AuthProvider != nil || user.Username != "":
		return nil, fmt.Errorf("user %q has no token and no certificate of its own; the agent runs no other program to get one, so give it a kubeconfig that has", chosen.AuthInfo)
	case cluster.InsecureSkipTLSVerify:
		return nil, fmt.Errorf("cluster %q has insecure-skip-tls-verify; the agent tells the hub whom to trust, so give it certificate-authority-data", chosen.Cluster)
	case cluster.ProxyURL != "":
		return nil, fmt.Errorf("cluster %q has a proxy-url; run the agent where it reaches the API server itself", chosen.Cluster)
	}
	a := &Access{serverName: cluster.TLSServerName, token: user.Token}
	if a.endpoint, err = url.Parse(cluster.Server); err != nil || a.endpoint.Scheme != "https" {
		return nil, fmt.Errorf("the server of cluster %q is not a URL with https", chosen.Cluster)
	}
	a.address = net.JoinHostPort(a.endpoint.Hostname(), cmp.Or(a.endpoint.Port(), "443"))
	token := []byte(nil)
	for _, f := range []struct {
		into *[]byte
		data []byte
		file string
	}{
		{&a.ca, cluster.CertificateAuthorityData, cluster.CertificateAuthority},
		{&a.client, user.ClientCertificateData, user.ClientCertificate},
		{&a.clientKey, user.ClientKeyData, user.ClientKey},
		{&token, nil, user.TokenFile},
	} {
		switch {
		case len(f.data) > 0:
			*f.into = f.data
		case f.file != "":
			if !filepath.IsAbs(f.file) {
				f.file = filepath.Join(filepath.Dir(path), f.file)
			}
			if *f.into, err = os.ReadFile(f.file); err != nil {
				return nil, err
			}
		}
	}
	if len(token) > 0 {
		a.token = strings.TrimSpace(string(token))
	}
	if len(a.ca) == 0 {
		return nil, fmt.Errorf("cluster %q has no certificate-authority-data, and the hub is to be told whom to trust", chosen.Cluster)
	}
	if a.token == "" && len(a.client) == 0 {
		return nil, fmt.Errorf("user %q has no token and no certificate", chosen.AuthInfo)
	}
	return a, nil
}

// find returns the element with this name in a list of a kubeconfig; nil if there is none. of
// returns the name and the content of an element.
func find[E, T any](list []E, of func(E) (string, *T), name string) *T {
	for _, e := range list {
		if n, value := of(e); n == name {
			return value
		}
	}
	return nil
}

// fingerprint returns a hash of the address and the credentials. If it is equal, a client for the
// Access can be kept.
func (a *Access) fingerprint() [sha256.Size]byte {
	return sha256.Sum256(bytes.Join([][]byte{
		[]byte(a.endpoint.String()), []byte(a.address), []byte(a.serverName), a.ca, a.client, a.clientKey, []byte(a.token),
	}, []byte{0}))
}

// dial opens a TCP connection to the API server, for the hub. The hub uses its own TLS on the
// connection, so the agent cannot read the traffic.
func (a *Access) dial(ctx context.Context) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", a.address)
	if err != nil {
		return nil, fmt.Errorf("dial the API server of the cluster: %w", err)
	}
	return conn, nil
}

// cluster is a client of the API server of the agent's own cluster, with one address and
// credentials (Access). Several goroutines may use it.
type cluster struct {
	access *Access
	http   *http.Client
}

// newCluster returns a client for a. It sends no request. It is an error if the certificates in a
// cannot be parsed.
func newCluster(a *Access) (*cluster, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(a.ca) {
		return nil, errors.New("the authorities of the cluster are no certificates in PEM")
	}
	config := &tls.Config{RootCAs: pool, ServerName: a.serverName, MinVersion: tls.VersionTLS12}
	if len(a.client) > 0 {
		pair, err := tls.X509KeyPair(a.client, a.clientKey)
		if err != nil {
			return nil, fmt.Errorf("read the client certificate: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	// The connections use no proxy, because the proxy settings of the environment are for the hub.
	return &cluster{a, &http.Client{Timeout: requestTimeout, Transport: &http.Transport{
		TLSClientConfig: config, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return a.dial(ctx) },
	}}}, nil
}

// close closes idle connections. Requests in flight go on.
func (c *cluster) close() { c.http.CloseIdleConnections() }

// apiError is an error status with which the API server answered. Code is the HTTP status, Message
// the server's reason. what is the request, as METHOD PATH.
type apiError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
	what    string
}

// Error implements error.
func (e *apiError) Error() string { return e.what + ": " + e.Message }

// answered reports whether err is an answer of the API server with this HTTP status.
func answered(err error, code int) bool {
	e, ok := errors.AsType[*apiError](err)
	return ok && e.Code == code
}

// do sends a request to the API server, within requestTimeout, and decodes the JSON answer into the
// variable to which into points. A nil into ignores the answer. body is encoded as JSON; nil: no
// body. The body of a PATCH is a merge patch. The error is an *apiError if the server answers with
// an error status.
func (c *cluster) do(ctx context.Context, method, path string, body, into any) error {
	var reader io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("encode for %s: %w", path, err)
		}
		reader = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, c.access.endpoint.String()+path, reader)
	if err != nil {
		return err
	}
	request.Header.Set("Accept", "application/json")
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if method == http.MethodPatch {
		request.Header.Set("Content-Type", "application/merge-patch+json")
	}
	if c.access.token != "" {
		request.Header.Set("Authorization", "Bearer "+c.access.token)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close() //nolint:errcheck // it is only read
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	if response.StatusCode/100 != 2 {
		failed := &apiError{}
		if json.Unmarshal(text, failed) != nil || failed.Message == "" {
			failed.Message = response.Status
		}
		failed.Code, failed.what = response.StatusCode, method+" "+path
		return failed
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%s %s: read the answer: %w", method, path, err)
	}
	return nil
}

// metadata is the part of objects' metadata that the agent reads.
type metadata struct {
	Name            string            `json:"name"`
	Namespace       string            `json:"namespace"`
	UID             string            `json:"uid"`
	ResourceVersion string            `json:"resourceVersion"`
	Labels          map[string]string `json:"labels"`
}
