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

// secret is a Secret as the API server returns it, with decoded data.
type secret struct {
	Metadata metadata          `json:"metadata"`
	Data     map[string][]byte `json:"data"`
}

// join is the content of the join Secret, which comes from the manifest of orrery cluster join
// --pull or rejoin.
type join struct {
	url        *url.URL
	ca         []byte // PEM; empty: the system's authorities
	cluster    string
	token      string
	key        []byte // public key of the hub, for tunnel.Seal
	replace    bool   // the agents must create a new key
	profile    string
	namespaces []string
}

// readJoin parses the join Secret, which the manifest of orrery cluster join --pull or rejoin
// creates. The error names the key of the Secret whose value is missing or invalid, and quotes no
// value. It is no error if the Secret has no certificate authority.
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

// trust returns the TLS configuration that verifies the hub: with the authorities in the join
// Secret, or those of the system.
func (j *join) trust() *tls.Config {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if len(j.ca) > 0 {
		config.RootCAs = x509.NewCertPool()
		config.RootCAs.AppendCertsFromPEM(j.ca)
	}
	return config
}

// at returns the URL of a path of the hub's listener, with this scheme (https or wss).
func (j *join) at(scheme, path string) string {
	u := j.url.JoinPath(path)
	u.Scheme = scheme
	return u.String()
}

// hash returns the SHA-256 of the join's token, in hexadecimal. It identifies the token without
// revealing it.
func (j *join) hash() string {
	sum := sha256.Sum256([]byte(j.token))
	return hex.EncodeToString(sum[:])
}

// rights returns a text that is equal if the hub has equal rights in the cluster. It has the
// profile and its namespaces.
func (j *join) rights() string { return j.profile + " " + strings.Join(j.namespaces, ",") }

// Keys of the Secret with the identity that the agents of a cluster share.
const (
	keyKey         = "tls.key" // PKCS #8, DER
	certificateKey = "tls.der" // certificate for the key, DER; missing: the token is not redeemed yet
	joinKey        = "join"    // hash of the redeemed token; without a certificate: of the next token
	goneKey        = "gone"    // present: the cluster has left the fleet; removal is running
)

// state is the identity that the agents of a cluster share, from their Secret. key and certificate
// are nil if the Secret has no valid one. join is the hash of the token for which they were issued.
// gone is true if the cluster has left the fleet, so that the agents must remove themselves.
type state struct {
	version     string // resourceVersion of the Secret
	key         *ecdsa.PrivateKey
	certificate *x509.Certificate
	join        string
	gone        bool
}

// readState parses the Secret with the key and certificate that the agents share. A key or
// certificate that is invalid is left out, and so is a certificate that does not match the key. The
// agent then creates the missing one again, which the hub allows as long as the token is valid.
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

// fits reports whether the certificate is for the key. It is false for a nil key.
func fits(certificate *x509.Certificate, key *ecdsa.PrivateKey) bool {
	return key != nil && key.PublicKey.Equal(certificate.PublicKey)
}

// Enrolled reports whether the data of the agents' Secret has a valid key, and a certificate for
// that key that was issued for this token of a join. It does not check whether the certificate has
// expired.
func Enrolled(data map[string][]byte, token string) bool {
	s := readState(&secret{Data: data})
	return s.certificate != nil && s.join == (&join{token: token}).hash()
}

// identity returns the certificate and key with which the agent authenticates itself to the hub. It
// is an error if the agents' Secret lacks one of them.
func (s state) identity() (tls.Certificate, error) {
	if s.key == nil || s.certificate == nil {
		return tls.Certificate{}, errors.New("the agent has no certificate yet")
	}
	return tls.Certificate{Certificate: [][]byte{s.certificate.Raw}, PrivateKey: s.key}, nil
}

// newKey creates a private key that the agents of a cluster share, as PKCS #8 in DER.
func newKey() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	return x509.MarshalPKCS8PrivateKey(key)
}

// third returns the moment when a third of the time between from and to is over. Agents renew
// certificates and tokens then.
func third(from, to time.Time) time.Time { return from.Add(to.Sub(from) / 3) }

// progress is what the agent did since it began to lead. Another leader starts with the zero value.
type progress struct {
	at      [sha256.Size]byte // hash of the address (cluster.at) that was last reported; zero: none
	renewal time.Time         // when the hub's token must be renewed
	rights  string            // join.rights for which stepPrune was done; empty: not done
	refused string            // hash of the token that the hub refused; empty: none
}

// step is an action of the leading agent, such as redeeming a token or sending a report. next
// chooses it, and runner.do runs it.
type step int

// The steps of the leading agent.
const (
	stepNone    step = iota // nothing to do
	stepApply               // a user must apply the manifest first
	stepExpired             // the certificate expired; a user must apply a new manifest
	stepKey                 // create a key for the token
	stepRedeem              // exchange the token for a certificate
	stepPrune               // remove rights that the profile does not include
	stepReport              // send new credentials to the hub
	stepRemove              // the cluster has left the fleet: remove everything
)

// next chooses the next step of the leading agent, and changes nothing. j is the join Secret; nil:
// there is none. s is the agents' Secret. p is what this agent has done, and at is the hash of the
// API server's present address (cluster.at). Each step changes one thing. Then the agent reads
// everything again and calls next. So an agent can be killed between any two steps.
func next(now time.Time, j *join, s state, p progress, at [sha256.Size]byte) step {
	switch {
	case s.gone && (j == nil || j.hash() == s.join):
		return stepRemove
	case j == nil:
		return stepApply
	case s.key == nil || s.join != j.hash() && (j.replace || s.gone):
		return stepKey
	case s.certificate == nil || s.join != j.hash() && p.refused != j.hash():
		// Until the token is redeemed, and if the hub refuses it, the agents use the certificate that
		// they have.
		return stepRedeem
	case p.rights != j.rights():
		return stepPrune
	case now.After(s.certificate.NotAfter):
		return stepExpired
	case p.at != at || !now.Before(p.renewal) || s.due(now):
		return stepReport
	}
	return stepNone
}

// due reports whether the certificate of the agents should be renewed: a third of its life is over.
// The certificate must not be nil.
func (s state) due(now time.Time) bool {
	return !now.Before(third(s.certificate.NotBefore, s.certificate.NotAfter))
}
