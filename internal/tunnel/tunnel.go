// Package tunnel reaches clusters that the hub cannot dial. An agent in the cluster dials the hub
// and keeps spare connections there. To connect to the cluster, the hub takes a spare and names the
// destination. The spare then carries the bytes of that one connection. Nothing is multiplexed, so
// no stream can block another, and TCP alone controls the flow.
//
// A spare is a WebSocket (RFC 6455) over HTTP/1.1, which most load balancers and proxies pass. Its
// first messages are JSON objects in text messages that authenticate the agent. The hub sends a
// Challenge, the agent a Hello with its certificate and a signature of the challenge, and the hub a
// Welcome. So TLS may end at a load balancer in front of the hub. Then Words follow: probes, which
// show both sides that the other is there, and one Word that dials. After the answer to that Word,
// binary messages carry the bytes.
//
// This package is the agent's side and the shared protocol. Package gateway is the hub's side.
package tunnel

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"time"
)

const (
	// Path is the path of the hub at which agents open the WebSockets of the tunnel.
	Path = "/tunnel/v1"
	// Protocol is the WebSocket subprotocol of the tunnel.
	Protocol = "v1.tunnel.orrery.dev"
	// APIServer is the name of the destination that every agent can connect to: the API server of its
	// cluster.
	APIServer = "apiserver"

	// MaxHello is the maximum size of a Challenge, Hello or Welcome, in bytes.
	MaxHello = 64 << 10
	// MaxWord is the maximum size of a Word, in bytes.
	MaxWord = 4 << 10
	// MaxSpares is the maximum number of spare connections (open and not in use) of one agent. The
	// agent does not open more, and the hub closes the oldest.
	MaxSpares = 16
	// minSpares is how many spare connections (open and not in use) an agent always keeps, so that one
	// is ready while another is opened.
	minSpares = 2
)

// Challenge is the first message on a new connection of an agent. The hub sends it, with random
// bytes that the agent must sign.
type Challenge struct {
	// Nonce has 32 random bytes, which the agent signs.
	Nonce []byte `json:"nonce"`
}

// Hello is the agent's answer to a Challenge: its certificate, a signature, and the agent's name
// and version.
type Hello struct {
	// Certificate of the agent, in DER.
	Certificate []byte `json:"certificate"`
	// Signature of the nonce; see Prove.
	Signature []byte `json:"signature"`
	// Replica identifies the agent among the agents of the cluster. Version is its version.
	Replica string `json:"replica"`
	Version string `json:"version"`
}

// Welcome is the hub's answer to a Hello. It accepts the agent, or says why the agent is refused.
type Welcome struct {
	// Refused says why the agent is refused; "" if it is accepted. The agent may try again.
	Refused string `json:"refused,omitempty"`
	// Gone is true if the cluster has left the fleet. The agent must then remove itself.
	Gone bool `json:"gone,omitempty"`
}

// Word is a message between hub and agent on a spare, which is an open connection that the hub can
// use. Exactly one field is set.
type Word struct {
	// Probe is a number that the agent sends and the hub returns.
	Probe uint64 `json:"probe,omitempty"`
	// Dial is the name of the destination to which the hub wants to connect.
	Dial string `json:"dial,omitempty"`
	// OK is true in the agent's answer if the destination is connected. Bytes follow.
	OK bool `json:"ok,omitempty"`
	// Refused is the agent's reason why the destination is not connected. Nothing follows.
	Refused string `json:"refused,omitempty"`
}

// Timing has the intervals and time limits of the tunnel, for the hub and the agent. The zero value
// is not usable; see DefaultTiming.
type Timing struct {
	// Probe is the interval between an agent's probes. Silence is how long an answer, or a
	// write, may take before spares are replaced.
	Probe, Silence time.Duration
	// Hedge is how long a dial waits for the answer on one spare before it tries another one as
	// well.
	Hedge time.Duration
	// Patience is how long a dial may take on the hub's side, including the wait for a spare
	// if there is none.
	Patience time.Duration
	// Handshake bounds the time until a new connection is a spare. Dial bounds the time in which
	// an agent connects to a destination.
	Handshake, Dial time.Duration
	// Heartbeat is how often a side that writes nothing sends a heartbeat on a stream. Dead is how
	// long a side that reads waits for a message before it closes the stream.
	Heartbeat, Dead time.Duration
	// FirstRetry and LastRetry bound the pause of an agent after a failure. An agent that had no
	// answer from the hub for Exit ends with ErrSilent.
	FirstRetry, LastRetry, Exit time.Duration
}

// DefaultTiming returns the intervals and time limits of hubs and agents, except in tests. Each
// spare connection is probed within 32 s, since most load balancers drop connections that are idle
// for 60 s.
func DefaultTiming() Timing {
	return Timing{
		Probe: 2 * time.Second, Silence: 4 * time.Second, Hedge: 500 * time.Millisecond, Patience: 5 * time.Second,
		Handshake: 10 * time.Second, Dial: 5 * time.Second, Heartbeat: 4 * time.Second, Dead: 12 * time.Second,
		FirstRetry: 200 * time.Millisecond, LastRetry: 10 * time.Second, Exit: 10 * time.Minute,
	}
}

// proof returns the hash that the agent signs to answer a Challenge: SHA-256 of a fixed prefix and
// the nonce. The prefix makes the signature useless for other purposes.
func proof(nonce []byte) []byte {
	sum := sha256.Sum256(append([]byte("orrery tunnel v1: agent\x00"), nonce...))
	return sum[:]
}

// Prove signs the nonce of a Challenge with the private key of the agent's certificate: ECDSA over
// SHA-256, in ASN.1. Other types of keys are an error. Proven accepts the signature only if the key
// is on P-256.
func Prove(key crypto.Signer, nonce []byte) ([]byte, error) {
	if _, ok := key.Public().(*ecdsa.PublicKey); !ok {
		return nil, fmt.Errorf("the agent's key is a %T, want one of ECDSA", key.Public())
	}
	signature, err := key.Sign(rand.Reader, proof(nonce), crypto.SHA256)
	if err != nil {
		return nil, fmt.Errorf("sign the hub's challenge: %w", err)
	}
	return signature, nil
}

// Proven returns nil if signature is that of Prove for this nonce, with the private key of the
// certificate. That key must be ECDSA on P-256. Proven verifies neither who issued the certificate
// nor whether it has expired.
func Proven(certificate *x509.Certificate, nonce, signature []byte) error {
	key, ok := certificate.PublicKey.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		return errors.New("the certificate's key is not one of ECDSA on P-256")
	}
	if !ecdsa.VerifyASN1(key, proof(nonce), signature) {
		return errors.New("the challenge is not signed with the key of the certificate")
	}
	return nil
}
