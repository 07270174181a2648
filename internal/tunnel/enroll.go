package tunnel

import (
	"crypto/ecdh"
	"crypto/hpke"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// What an agent asks of the hub beside the tunnel itself, on the same listener.
const (
	// RedeemPath is where an agent posts its Redemption, and gets a Receipt: with status 200 if it was taken, and any other if not.
	RedeemPath = "/agent/v1/redeem"
	// ReportPath is where an agent that has a certificate opens a WebSocket. After the introduction, which is that of the tunnel, it
	// sends one Report and gets one Receipt, each a JSON object of text.
	ReportPath = "/agent/v1/report"
	// MaxReport bounds a Redemption, a Report and a Receipt, in bytes.
	MaxReport = 256 << 10
)

// Credentials are how the hub is to reach the API server of the agent's cluster: as the service account that the agent makes tokens of.
type Credentials struct {
	// Endpoint is the URL of the API server as the agent's cluster knows it, such as https://kubernetes.default.svc, and TLSServerName
	// the name in its certificate, if that is not the host of Endpoint.
	Endpoint      string `json:"endpoint"`
	TLSServerName string `json:"tlsServerName,omitempty"`
	// CA are the authorities of the API server's certificate, in PEM.
	CA []byte `json:"ca"`
	// Token of the service account, and when it ends.
	Token   string    `json:"token"`
	Expires time.Time `json:"expires"`
}

// Redemption is how an agent turns the token of its join into a certificate.
type Redemption struct {
	// Cluster that the token is for.
	Cluster string `json:"cluster"`
	// Request for the certificate: PKCS #10 in DER, signed with the key that redeems. What it says beside the key is not honoured.
	Request []byte `json:"request"`
	// Sealed is a Proof, for the hub only; see Seal.
	Sealed []byte `json:"sealed"`
}

// Proof is what a Redemption keeps from whoever ends TLS in front of the hub.
type Proof struct {
	// Token of the join.
	Token       string      `json:"token"`
	Credentials Credentials `json:"credentials"`
}

// Report renews what an agent gave and has.
type Report struct {
	// Request for a new certificate, as in a Redemption, with the key that the present one has; empty: none is needed.
	Request []byte `json:"request,omitempty"`
	// Sealed are Credentials, for the hub only; see Seal.
	Sealed []byte `json:"sealed"`
}

// Receipt is the hub's answer to a Redemption and to a Report.
type Receipt struct {
	// Certificate that was asked for, in DER. It is good also where Refused is said of the credentials of a Report.
	Certificate []byte `json:"certificate,omitempty"`
	// Refused says what was not taken, and why; empty if all of it was.
	Refused string `json:"refused,omitempty"`
	// Gone is true when the cluster has left the fleet: the agent is to remove itself.
	Gone bool `json:"gone,omitempty"`
}

// Keys of the Secret JoinSecret in Namespace of the agent's cluster, which the manifest of a join has.
const (
	Namespace  = "orrery-system"
	JoinSecret = "orrery-agent-join" //nolint:gosec // a name

	JoinURL     = "url"     // of the hub's listener, such as https://orrery.example.com
	JoinCA      = "ca.crt"  // PEM; empty: the system's authorities
	JoinCluster = "cluster" // the name of the Cluster
	JoinToken   = "token"
	JoinKey     = "key" // for Seal
)

// suite of RFC 9180 with which secrets are sealed: X25519, HKDF-SHA256, AES-256-GCM.
func suite() (hpke.KEM, hpke.KDF, hpke.AEAD) {
	return hpke.DHKEM(ecdh.X25519()), hpke.HKDFSHA256(), hpke.AES256GCM()
}

// Seal encrypts a value, as JSON, for the hub alone (HPKE, RFC 9180): with the public key that the manifest of the agent has. cluster binds it
// to a cluster: nobody else can pass it on as what another cluster said.
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

// Open reads what was sealed for a key. Its errors quote nothing of it.
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

// NewSealingKey makes a key for Open; its public key is what Seal takes.
func NewSealingKey() (hpke.PrivateKey, error) {
	kem, _, _ := suite()
	return kem.GenerateKey()
}

// ReadSealingKey reads the bytes of a key.
func ReadSealingKey(key []byte) (hpke.PrivateKey, error) {
	kem, _, _ := suite()
	return kem.NewPrivateKey(key)
}
