package tunnel

import (
	"crypto/ecdh"
	"crypto/hpke"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Endpoints of the hub for agents, beside the tunnel itself, on the same listener.
const (
	// RedeemPath is the path to which an agent without a certificate posts a Redemption, and gets a
	// Receipt. The status is 200 if the redemption was accepted.
	RedeemPath = "/agent/v1/redeem"
	// ReportPath is the path of a WebSocket for an agent that has a certificate. The agent
	// authenticates as on the tunnel, sends one Report and gets one Receipt. Both are JSON objects in
	// text messages.
	ReportPath = "/agent/v1/report"
	// MaxReport is the maximum size of a Redemption, a Report and a Receipt, in bytes.
	MaxReport = 256 << 10
)

// Credentials let the hub reach the API server of the agent's cluster: the address of the API
// server, its certificate authorities, and a token of the hub's ServiceAccount there. The agent
// sends them to the hub.
type Credentials struct {
	// Endpoint is the URL of the API server inside the cluster, such as
	// https://kubernetes.default.svc. TLSServerName is the name in its certificate, if that is not
	// the host of Endpoint.
	Endpoint      string `json:"endpoint"`
	TLSServerName string `json:"tlsServerName,omitempty"`
	// CA holds the certificate authorities of the API server, in PEM.
	CA []byte `json:"ca"`
	// Token of the service account, and its expiry.
	Token   string    `json:"token"`
	Expires time.Time `json:"expires"`
}

// Redemption is the request of an agent that exchanges the token of a join for the agent's first
// certificate. It also has the first credentials of the hub for the agent's cluster.
type Redemption struct {
	// Cluster that the token is for.
	Cluster string `json:"cluster"`
	// Request is a certificate request: PKCS #10 in DER, signed with the agent's key. Only its key
	// is used.
	Request []byte `json:"request"`
	// Sealed is a Proof, encrypted for the hub; see Seal.
	Sealed []byte `json:"sealed"`
}

// Proof is the secret part of a Redemption: the token of the join, and the credentials of the hub.
// It is encrypted for the hub, so a proxy that ends TLS in front of the hub cannot read it.
type Proof struct {
	// Token of the join.
	Token       string      `json:"token"`
	Credentials Credentials `json:"credentials"`
}

// Report is the request of an agent with a certificate. It has new credentials of the hub for the
// agent's cluster, and may request a new certificate.
type Report struct {
	// Request is a certificate request as in a Redemption, with the key of the present certificate;
	// empty: none is needed.
	Request []byte `json:"request,omitempty"`
	// Sealed are Credentials, encrypted for the hub; see Seal.
	Sealed []byte `json:"sealed"`
}

// Receipt is the hub's answer to a Redemption or a Report: a new certificate of the agent, and the
// reason if the hub refused something.
type Receipt struct {
	// Certificate that was requested, in DER. It is valid even if Refused rejects the credentials
	// of a Report.
	Certificate []byte `json:"certificate,omitempty"`
	// Refused says what was rejected, and why; "" if nothing was.
	Refused string `json:"refused,omitempty"`
	// Gone is true if the cluster has left the fleet. The agent must then remove itself.
	Gone bool `json:"gone,omitempty"`
}

// Keys of the Secret JoinSecret in Namespace of the agent's cluster. The join manifest contains
// that Secret.
const (
	Namespace  = "orrery-system"
	JoinSecret = "orrery-agent-join" //nolint:gosec // a name

	JoinURL     = "url"     // URL of the hub's listener, such as https://orrery.example.com
	JoinCA      = "ca.crt"  // PEM; empty: the system's authorities
	JoinCluster = "cluster" // the name of the Cluster
	JoinToken   = "token"
	JoinKey     = "key"     // public key of the hub, for Seal
	JoinReplace = "replace" // true: the agents create a new key for the token; else they keep theirs
)

// suite returns the algorithms of HPKE (RFC 9180) with which Seal encrypts and Open decrypts:
// X25519, HKDF-SHA256, AES-256-GCM.
func suite() (hpke.KEM, hpke.KDF, hpke.AEAD) {
	return hpke.DHKEM(ecdh.X25519()), hpke.HKDFSHA256(), hpke.AES256GCM()
}

// Seal encrypts value, as JSON, so that only the hub can read it (HPKE, RFC 9180). key is the hub's
// public key, from the agent's manifest. cluster is the name of the cluster; Open requires the same
// name, so another cluster cannot send the result as its own. Each call returns other bytes.
func Seal(key []byte, cluster string, value any) ([]byte, error) {
	kem, kdf, aead := suite()
	public, err := kem.NewPublicKey(key)
	if err != nil {
		return nil, fmt.Errorf("read the key of the hub: %w", err)
	}
	text, err := json.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("encode what is to be sealed: %w", err)
	}
	sealed, err := hpke.Seal(public, kdf, aead, []byte(cluster), text)
	if err != nil {
		return nil, fmt.Errorf("seal: %w", err)
	}
	return sealed, nil
}

// Open decrypts what Seal encrypted for the public key of key and for this cluster. It stores the
// value in the variable to which into points. An error means that sealed is for another key or
// cluster, or is not the JSON of into. Errors are for the agent's log, and do not quote the
// content.
func Open(key hpke.PrivateKey, cluster string, sealed []byte, into any) error {
	_, kdf, aead := suite()
	text, err := hpke.Open(key, kdf, aead, []byte(cluster), sealed)
	if err != nil {
		return errors.New("it is not sealed for this hub and this cluster; apply the manifest that orrery cluster rejoin prints")
	}
	if json.Unmarshal(text, into) != nil {
		return errors.New("what was sealed is not understood")
	}
	return nil
}

// NewSealingKey creates a private key with which the hub decrypts (Open). Agents encrypt with the
// bytes of its public key (Seal).
func NewSealingKey() (hpke.PrivateKey, error) {
	kem, _, _ := suite()
	return kem.GenerateKey()
}

// ReadSealingKey parses the stored bytes of a private key that NewSealingKey created.
func ReadSealingKey(key []byte) (hpke.PrivateKey, error) {
	kem, _, _ := suite()
	return kem.NewPrivateKey(key)
}
