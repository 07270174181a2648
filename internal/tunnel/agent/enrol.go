package agent

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"orrery.dev/orrery/internal/tunnel"
)

// Paths, times and limits of the enrolment. secretsPath is the path of Secrets in the agent's
// namespace, tokenPath that for tokens of the hub's ServiceAccount.
const (
	secretsPath = "/api/v1/namespaces/" + tunnel.Namespace + "/secrets/"
	tokenPath   = "/api/v1/namespaces/" + tunnel.Namespace + "/serviceaccounts/" + HubAccount + "/token"
	// tokenLife is the life that the agent requests for a token of the hub. The cluster may grant
	// less.
	tokenLife = 24 * time.Hour
	// hubTimeout limits one redemption or report, because the hub tries the credentials before it
	// answers.
	hubTimeout = 90 * time.Second
)

// secret reads the Secret with this name in the agent's namespace. It returns nil, without an
// error, if the Secret does not exist.
func (c *cluster) secret(ctx context.Context, name string) (*secret, error) {
	s := &secret{}
	err := c.do(ctx, http.MethodGet, secretsPath+name, nil, s)
	if answered(err, http.StatusNotFound) {
		return nil, nil //nolint:nilnil // that is what it says
	}
	return s, err
}

// keep patches the Secret with the key and certificate that the agents share, from which s was
// read. A key with a nil value is removed, and keys that data does not have stay. If another agent
// has changed the Secret since s was read, the error is an *apiError with the status 409.
func (c *cluster) keep(ctx context.Context, s state, data map[string]any) error {
	return c.do(ctx, http.MethodPatch, secretsPath+Name, map[string]any{
		"metadata": map[string]any{"resourceVersion": s.version}, "data": data,
	}, nil)
}

// credentials creates a token of the hub's ServiceAccount. It returns the token with the address
// and the authorities of the API server, which the agent sends to the hub. Each call creates
// another token.
func (c *cluster) credentials(ctx context.Context) (tunnel.Credentials, error) {
	var answer struct {
		Status struct {
			Token   string    `json:"token"`
			Expires time.Time `json:"expirationTimestamp"`
		} `json:"status"`
	}
	err := c.do(ctx, http.MethodPost, tokenPath, map[string]any{
		"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
		"spec": map[string]any{"expirationSeconds": int(tokenLife / time.Second)},
	}, &answer)
	if err != nil {
		return tunnel.Credentials{}, err
	}
	return tunnel.Credentials{
		Endpoint: c.access.endpoint.String(), TLSServerName: c.access.serverName, CA: c.access.ca,
		Token: answer.Status.Token, Expires: answer.Status.Expires,
	}, nil
}

// at returns a hash of the API server's address, server name and authorities, which the hub must
// know. If it differs from the last reported hash, the agent sends a report.
func (c *cluster) at() [sha256.Size]byte {
	return sha256.Sum256(bytes.Join([][]byte{[]byte(c.access.endpoint.String()), []byte(c.access.serverName), c.access.ca}, []byte{0}))
}

// request creates a certificate request with the key of the agents, for the named cluster: PKCS #10
// in DER. s.key must not be nil.
func (s state) request(cluster string) ([]byte, error) {
	return x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: cluster}}, s.key)
}

// granted returns an error unless der is a certificate for the key of the agents. It does not
// verify who issued the certificate.
func (s state) granted(der []byte) error {
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return fmt.Errorf("read the certificate that the hub sent: %w", err)
	}
	if !fits(certificate, s.key) {
		return errors.New("the certificate that the hub sent is for another key")
	}
	return nil
}

// refused is the error when the hub refuses a redemption or a report. why is the hub's reason.
type refused struct{ why string }

// Error implements error.
func (e refused) Error() string { return "the hub refuses: " + e.why }

// redeem exchanges the token in the join Secret (v.join) for the agents' certificate, and stores
// the certificate in the agents' Secret. With the token it sends credentials of the hub for the
// cluster. The error is of type refused if the hub rejects the token.
func (r *runner) redeem(ctx context.Context, c *cluster, v view) error {
	given, err := c.credentials(ctx)
	if err != nil {
		return err
	}
	request, err := v.state.request(v.join.cluster)
	if err != nil {
		return err
	}
	sealed, err := tunnel.Seal(v.join.key, v.join.cluster, tunnel.Proof{Token: v.join.token, Credentials: given})
	if err != nil {
		return err
	}
	receipt, err := r.post(ctx, v.join, tunnel.Redemption{Cluster: v.join.cluster, Request: request, Sealed: sealed})
	if err != nil {
		return err
	}
	if err := v.state.granted(receipt.Certificate); err != nil {
		return err
	}
	return c.keep(ctx, v.state, map[string]any{certificateKey: receipt.Certificate, joinKey: []byte(v.join.hash())})
}

// post sends a Redemption to the hub at the URL in j, and returns the hub's Receipt. The error is
// tunnel.ErrGone if the cluster has left the fleet, and has type refused if the hub refuses the
// Redemption. A hub that is busy or fails is another error, and the agent tries again.
func (r *runner) post(ctx context.Context, j *join, what tunnel.Redemption) (tunnel.Receipt, error) {
	var receipt tunnel.Receipt
	body, err := json.Marshal(what)
	if err != nil {
		return receipt, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, j.at("https", tunnel.RedeemPath), bytes.NewReader(body))
	if err != nil {
		return receipt, err
	}
	request.Header.Set("Content-Type", "application/json")
	transport := &http.Transport{Proxy: r.options.Proxy, TLSClientConfig: j.trust(), DisableKeepAlives: true}
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := client.Do(request)
	if err != nil {
		return receipt, err
	}
	defer response.Body.Close() //nolint:errcheck // it is only read
	text, err := io.ReadAll(io.LimitReader(response.Body, tunnel.MaxReport))
	if err != nil {
		return receipt, fmt.Errorf("read the hub's answer: %w", err)
	}
	switch {
	case json.Unmarshal(text, &receipt) != nil:
		return receipt, fmt.Errorf("%s answers %s, and not as a hub does", request.URL.Host, response.Status)
	case receipt.Gone:
		return receipt, tunnel.ErrGone
	case receipt.Refused != "" && (response.StatusCode == http.StatusTooManyRequests || response.StatusCode >= http.StatusInternalServerError):
		return receipt, errors.New("the hub cannot answer now: " + receipt.Refused)
	case receipt.Refused != "":
		return receipt, refused{receipt.Refused}
	}
	return receipt, nil
}

// report sends new credentials for the cluster to the hub. If a third of the certificate's life is
// over, it also requests a new certificate, and stores it in the agents' Secret. It stores the
// certificate even if the hub refuses the credentials; the error then wraps a refused. renewal is
// when a third of the token's life is over, so that the agent must report again. It is zero if the
// hub did not answer.
func (r *runner) report(ctx context.Context, c *cluster, v view) (renewal time.Time, err error) {
	now := time.Now()
	given, err := c.credentials(ctx)
	if err != nil {
		return time.Time{}, err
	}
	var what tunnel.Report
	if what.Sealed, err = tunnel.Seal(v.join.key, v.join.cluster, given); err != nil {
		return time.Time{}, err
	}
	if v.state.due(now) {
		if what.Request, err = v.state.request(v.join.cluster); err != nil {
			return time.Time{}, err
		}
	}
	receipt, err := r.dialer(v.join, v.state.identity).Report(ctx, v.join.at("wss", tunnel.ReportPath), what)
	if err != nil {
		return time.Time{}, err
	}
	// The certificate is valid even if the credentials are refused.
	if len(what.Request) > 0 && (receipt.Refused == "" || len(receipt.Certificate) > 0) {
		if err = v.state.granted(receipt.Certificate); err == nil {
			err = c.keep(ctx, v.state, map[string]any{certificateKey: receipt.Certificate})
		}
	}
	if receipt.Refused != "" {
		err = errors.Join(refused{receipt.Refused}, err)
	}
	return third(now, given.Expires), err
}
