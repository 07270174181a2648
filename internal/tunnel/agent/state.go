package agent

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"orrery.dev/orrery/internal/tunnel"
)

// secret is a Secret as the API server returns it.
type secret struct {
	Metadata metadata          `json:"metadata"`
	Data     map[string][]byte `json:"data"`
}

// join is the content of the join Secret.
type join struct {
	url        *url.URL
	ca         []byte // PEM; empty: the system's authorities
	cluster    string
	token      string
	key        []byte
	replace    bool // the agents create a new key
	profile    string
	namespaces []string
}

// readJoin parses the join Secret. The error names the invalid key, and quotes no value.
func readJoin(s *secret) (*join, error) {
	fail := func(key, what string) (*join, error) {
		return nil, fmt.Errorf("secret %s/%s: %s %s; apply the manifest that orrery cluster rejoin prints", tunnel.Namespace, tunnel.JoinSecret, key, what)
	}
	u, err := url.Parse(string(s.Data[tunnel.JoinURL]))
	if err != nil || u.Scheme != "https" || u.Host == "" {
		return fail(tunnel.JoinURL, "is not a URL with https")
	}
	j := &join{
		url: u, ca: s.Data[tunnel.JoinCA], cluster: string(s.Data[tunnel.JoinCluster]), token: string(s.Data[tunnel.JoinToken]),
		key: s.Data[tunnel.JoinKey], replace: string(s.Data[tunnel.JoinReplace]) == "true", profile: string(s.Data[ProfileKey]),
	}
	if names := string(s.Data[NamespacesKey]); names != "" {
		j.namespaces = strings.Split(names, ",")
	}
	switch {
	case j.cluster == "":
		return fail(tunnel.JoinCluster, "is missing")
	case j.token == "":
		return fail(tunnel.JoinToken, "is missing")
	case len(j.key) == 0:
		return fail(tunnel.JoinKey, "is missing")
	case !slices.Contains([]string{profileAll, profilePlacement, profileMirror}, j.profile):
		return fail(ProfileKey, "is none of All, Placement and Mirror")
	case len(j.ca) > 0 && !x509.NewCertPool().AppendCertsFromPEM(j.ca):
		return fail(tunnel.JoinCA, "has no certificate in PEM")
	}
	return j, nil
}

// trust returns the TLS configuration that verifies the hub.
func (j *join) trust() *tls.Config {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if len(j.ca) > 0 {
		config.RootCAs = x509.NewCertPool()
		config.RootCAs.AppendCertsFromPEM(j.ca)
	}
	return config
}

// at returns the URL of a path of the hub's listener.
func (j *join) at(scheme, path string) string {
	u := j.url.JoinPath(path)
	u.Scheme = scheme
	return u.String()
}

// hash identifies the token of the join without revealing it.
func (j *join) hash() string {
	sum := sha256.Sum256([]byte(j.token))
	return hex.EncodeToString(sum[:])
}

// rights identifies the rights of the hub.
func (j *join) rights() string { return j.profile + " " + strings.Join(j.namespaces, ",") }

// Keys of the Secret with the identity that the agents of a cluster share.
const (
	keyKey         = "tls.key" // PKCS #8, DER
	certificateKey = "tls.der" // for the key; missing: the token is not redeemed yet
	joinKey        = "join"    // hash of the token that was redeemed, or is to be with a new key
	goneKey        = "gone"    // present: the cluster has left the fleet; removal is running
)

// state is the identity of the agents of a cluster, from their Secret.
type state struct {
	version     string // resourceVersion of the Secret
	key         *ecdsa.PrivateKey
	certificate *x509.Certificate
	join        string
	gone        bool
}

// readState parses the agents' Secret. A key or certificate that is invalid, or that does not match
// the other, is left out. The agent then creates it again, which the hub allows as long as the
// token is valid.
func readState(s *secret) state {
	st := state{version: s.Metadata.ResourceVersion, join: string(s.Data[joinKey]), gone: len(s.Data[goneKey]) > 0}
	if parsed, err := x509.ParsePKCS8PrivateKey(s.Data[keyKey]); err == nil {
		st.key, _ = parsed.(*ecdsa.PrivateKey)
	}
	if certificate, err := x509.ParseCertificate(s.Data[certificateKey]); err == nil && fits(certificate, st.key) {
		st.certificate = certificate
	}
	return st
}

// fits reports whether the certificate is for the key.
func fits(certificate *x509.Certificate, key *ecdsa.PrivateKey) bool {
	return key != nil && key.PublicKey.Equal(certificate.PublicKey)
}

// Enrolled reports whether the data of the agents' Secret has a certificate that was issued for the
// token.
func Enrolled(data map[string][]byte, token string) bool {
	s := readState(&secret{Data: data})
	return s.certificate != nil && s.join == (&join{token: token}).hash()
}

// identity returns the certificate and key that authenticate the agent.
func (s state) identity() (tls.Certificate, error) {
	if s.key == nil || s.certificate == nil {
		return tls.Certificate{}, errors.New("the agent has no certificate yet")
	}
	return tls.Certificate{Certificate: [][]byte{s.certificate.Raw}, PrivateKey: s.key}, nil
}

// newKey creates a private key for the agents, as PKCS #8 in DER.
func newKey() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	return x509.MarshalPKCS8PrivateKey(key)
}

// third returns the moment when a third of the time between from and to is over: the time of
// renewal.
func third(from, to time.Time) time.Time { return from.Add(to.Sub(from) / 3) }

// told is what the leading agent did since it began to lead.
type told struct {
	at      [sha256.Size]byte // of the reported access; zero: not reported
	renewal time.Time         // of the token
	rights  string            // rights of the join for which other rights were removed
	refused string            // hash of the join whose token the hub refused; empty: none
}

// step is an action of the leading agent.
type step int

// The steps of the leading agent.
const (
	stepNone    step = iota // nothing to do
	stepApply               // a user must apply the manifest first
	stepExpired             // the certificate expired; only ErrGone can still arrive
	stepKey                 // create a key for the token
	stepRedeem              // exchange the token for a certificate
	stepPrune               // remove rights that the profile does not include
	stepReport              // send new credentials to the hub
	stepRemove              // the cluster has left the fleet: remove everything
)

// next decides the next step of the leading agent. Each step changes one thing; afterwards
// everything is read and decided again. So an agent can be killed between any two steps.
func next(now time.Time, j *join, s state, t told, at [sha256.Size]byte) step {
	switch {
	case s.gone && (j == nil || j.hash() == s.join):
		return stepRemove
	case j == nil:
		return stepApply
	case s.key == nil || s.join != j.hash() && (j.replace || s.gone):
		return stepKey
	case s.certificate == nil || s.join != j.hash() && t.refused != j.hash():
		// Until then, and if the token is refused, the agents use the certificate that they have.
		return stepRedeem
	case t.rights != j.rights():
		return stepPrune
	case now.After(s.certificate.NotAfter):
		return stepExpired
	case t.at != at || !now.Before(t.renewal) || s.due(now):
		return stepReport
	}
	return stepNone
}

// due reports whether the certificate should be renewed.
func (s state) due(now time.Time) bool {
	return !now.Before(third(s.certificate.NotBefore, s.certificate.NotAfter))
}
