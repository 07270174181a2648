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
	// RedeemPath accepts a Redemption by POST and answers with a Receipt. The status is 200 if the
	// redemption was accepted.
	RedeemPath = "/agent/v1/redeem"
	// ReportPath accepts a WebSocket of an agent that has a certificate. After the same
	// introduction as on the tunnel, the agent sends one Report and gets one Receipt. Both are JSON
	// objects in text messages.
	ReportPath = "/agent/v1/report"
	// MaxReport bounds a Redemption, a Report and a Receipt, in bytes.
	MaxReport = 256 << 10
)

// Credentials let the hub reach the API server of the agent's cluster, with a token of the service
// account HubAccount.
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

// Redemption exchanges the token of a join for a certificate.
type Redemption struct {
	// Cluster that the token is for.
	Cluster string `json:"cluster"`
	// Request is a certificate request: PKCS #10 in DER, signed with the agent's key. Only its key
	// is used.
	Request []byte `json:"request"`
	// Sealed is a Proof, encrypted for the hub; see Seal.
	Sealed []byte `json:"sealed"`
}

// Proof is the secret part of a Redemption. A proxy that ends TLS in front of the hub cannot read
// it.
type Proof struct {
	// Token of the join.
	Token       string      `json:"token"`
	Credentials Credentials `json:"credentials"`
}

// Report renews the agent's certificate and the hub's credentials.
type Report struct {
	// Request is a certificate request as in a Redemption, with the key of the present certificate;
	// empty: none is needed.
	Request []byte `json:"request,omitempty"`
	// Sealed are Credentials, encrypted for the hub; see Seal.
	Sealed []byte `json:"sealed"`
}

// Receipt is the hub's answer to a Redemption or a Report.
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

// suite returns the algorithms of RFC 9180 that seal secrets: X25519, HKDF-SHA256, AES-256-GCM.
func suite() (hpke.KEM, hpke.KDF, hpke.AEAD) {
	return hpke.DHKEM(ecdh.X25519()), hpke.HKDFSHA256(), hpke.AES256GCM()
}

// Seal encrypts a value, as JSON, for the hub (HPKE, RFC 9180). key is the public key in the
// agent's manifest. The name of the cluster is authenticated: another cluster cannot send the value
// as its own.
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

// Open decrypts what Seal encrypted for a key and cluster, and decodes it into into. Errors do not
// quote the content.
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

// NewSealingKey creates a key for Open. Seal takes its public key.
func NewSealingKey() (hpke.PrivateKey, error) {
	kem, _, _ := suite()
	return kem.GenerateKey()
}

// ReadSealingKey parses the bytes of a private key.
func ReadSealingKey(key []byte) (hpke.PrivateKey, error) {
	kem, _, _ := suite()
	return kem.NewPrivateKey(key)
}
