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

// secret is a Secret as the API server has it.
type secret struct {
	Metadata metadata          `json:"metadata"`
	Data     map[string][]byte `json:"data"`
}

// join is what the Secret of a join says.
type join struct {
	url        *url.URL
	ca         []byte // PEM; empty: the system's authorities
	cluster    string
	token      string
	key        []byte
	profile    string
	namespaces []string
}

// readJoin reads the Secret of a join; its error names what is wrong with it, and quotes none of it.
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
		key: s.Data[tunnel.JoinKey], profile: string(s.Data[ProfileKey]),
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

// trust says whom to take for the hub.
func (j *join) trust() *tls.Config {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if len(j.ca) > 0 {
		config.RootCAs = x509.NewCertPool()
		config.RootCAs.AppendCertsFromPEM(j.ca)
	}
	return config
}

// at is the URL of a path of the hub's listener.
func (j *join) at(scheme, path string) string {
	u := j.url.JoinPath(path)
	u.Scheme = scheme
	return u.String()
}

// hash tells the tokens of joins apart, and says nothing of them.
func (j *join) hash() string {
	sum := sha256.Sum256([]byte(j.token))
	return hex.EncodeToString(sum[:])
}

// rights tells apart what the hub may do.
func (j *join) rights() string { return j.profile + " " + strings.Join(j.namespaces, ",") }

// Keys of the Secret in which the agents of a cluster keep who they are.
const (
	keyKey         = "tls.key" // PKCS #8, DER
	certificateKey = "tls.der" // of it; missing: the token was not redeemed yet
	joinKey        = "join"    // hash of the token that the key is for
	goneKey        = "gone"    // there: the cluster has left the fleet, and the agent is removing itself
)

// state is who the agents of a cluster are.
type state struct {
	version     string // of the Secret
	key         *ecdsa.PrivateKey
	certificate *x509.Certificate
	join        string
	gone        bool
}

// readState reads the agents' Secret. A key or a certificate that cannot be read, or that do not belong together, are none: the agent
// makes them anew, which the hub allows as long as it allows the token.
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

// fits says whether a certificate is for a key.
func fits(certificate *x509.Certificate, key *ecdsa.PrivateKey) bool {
	return key != nil && key.PublicKey.Equal(certificate.PublicKey)
}

// Enrolled says whether the agents' Secret, by its data, has a certificate for which they redeemed a token.
func Enrolled(data map[string][]byte, token string) bool {
	s := readState(&secret{Data: data})
	return s.certificate != nil && s.join == (&join{token: token}).hash()
}

// identity is what the agent proves to be it with.
func (s state) identity() (tls.Certificate, error) {
	if s.key == nil || s.certificate == nil {
		return tls.Certificate{}, errors.New("the agent has no certificate yet")
	}
	return tls.Certificate{Certificate: [][]byte{s.certificate.Raw}, PrivateKey: s.key}, nil
}

// newKey makes the key of agents.
func newKey() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	return x509.MarshalPKCS8PrivateKey(key)
}

// third of what lies between two moments is over at the returned one: when something is renewed.
func third(from, to time.Time) time.Time { return from.Add(to.Sub(from) / 3) }

// told is what the agent that leads has told the hub since it began to.
type told struct {
	at      [sha256.Size]byte // of the authorities and the endpoint; zero: nothing was told
	renewal time.Time         // of the token
	rights  string            // of the join by which others were taken away
}

// step is what is to be done next.
type step int

// The steps of an agent that leads.
const (
	stepNone    step = iota // all is as it should be
	stepApply               // the manifest is to be applied: nothing can be done without it
	stepExpired             // the certificate has ended: only that the cluster has left can still be learned
	stepKey                 // make a key for the token
	stepRedeem              // have the token made a certificate
	stepPrune               // take away rights that the profile does not give
	stepReport              // tell the hub what is new
	stepRemove              // the cluster has left the fleet
)

// next decides what the agent that leads does. Each step changes one thing, and after each all is read and decided anew, so that it may
// be killed between any two.
func next(now time.Time, j *join, s state, t told, at [sha256.Size]byte) step {
	switch {
	case s.gone && (j == nil || j.hash() == s.join):
		return stepRemove
	case j == nil:
		return stepApply
	case s.key == nil || s.join != j.hash():
		return stepKey
	case s.certificate == nil:
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

// due says whether the certificate is to be renewed.
func (s state) due(now time.Time) bool {
	return !now.Before(third(s.certificate.NotBefore, s.certificate.NotAfter))
}
