// Package tunnel is how clusters are reached that cannot be dialled: an agent in the cluster dials the hub and keeps spare
// connections there; to dial the cluster, the hub takes a spare and says where to. What follows on that connection are the bytes of
// one connection. Nothing is multiplexed, so no stream can hold up another, and TCP alone controls the flow.
//
// A spare is a WebSocket (RFC 6455) over HTTP/1.1, which passes balancers and proxies that pass little else. Its first messages, each
// a JSON object of text, prove who the agent is: the hub's Challenge, the agent's Hello with its certificate and a signature of the
// challenge, and the hub's Welcome. TLS may thus end at a balancer in front of the hub. Then Words pass: probes, by which both sides
// know that the other is there, and one that dials. After the answer to that, binary messages are the connection's bytes.
//
// This package is the agent's side and what both share; the hub's is gateway.
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
	// Path at which the hub accepts agents.
	Path = "/tunnel/v1"
	// Protocol is the WebSocket subprotocol.
	Protocol = "v1.tunnel.orrery.dev"
	// APIServer is the destination that every agent knows: the API server of its cluster.
	APIServer = "apiserver"

	// MaxHello bounds a message of the introduction, in bytes.
	MaxHello = 64 << 10
	// MaxWord bounds a Word, in bytes.
	MaxWord = 4 << 10
	// MaxSpares is the most spares that an agent keeps, and that a hub takes from one.
	MaxSpares = 16
	// minSpares are kept always, so that one is there while another is made.
	minSpares = 2
)

// Challenge is what the hub says first.
type Challenge struct {
	// Nonce, 32 random bytes, is to be signed.
	Nonce []byte `json:"nonce"`
}

// Hello is how an agent answers the challenge.
type Hello struct {
	// Certificate of the agent, in DER.
	Certificate []byte `json:"certificate"`
	// Signature of the nonce; see Prove.
	Signature []byte `json:"signature"`
	// Replica tells the agents of one cluster apart. Version is the agent's.
	Replica string `json:"replica"`
	Version string `json:"version"`
}

// Welcome is the hub's verdict.
type Welcome struct {
	// Refused says why the agent is not taken; empty if it is. It may try again.
	Refused string `json:"refused,omitempty"`
	// Gone is true when the cluster has left the fleet: the agent is to remove itself.
	Gone bool `json:"gone,omitempty"`
}

// Word is what is said on a spare. Exactly one field is set.
type Word struct {
	// Probe is a number that the hub says back.
	Probe uint64 `json:"probe,omitempty"`
	// Dial is the destination to be dialled.
	Dial string `json:"dial,omitempty"`
	// OK: the destination is connected, and what follows are bytes.
	OK bool `json:"ok,omitempty"`
	// Refused says why the destination is not connected. Nothing follows.
	Refused string `json:"refused,omitempty"`
}

// Timing are the intervals of the protocol. The zero value is not usable; see DefaultTiming.
type Timing struct {
	// Probe is how often an agent probes one of its spares, and Silence how long an answer may take until they are replaced.
	Probe, Silence time.Duration
	// Hedge is how long a dial waits for a spare's word until it takes another as well.
	Hedge time.Duration
	// Patience is how long a dial waits for a spare when there is none.
	Patience time.Duration
	// Handshake bounds how long a connection may take to become a spare, and Dial how long an agent may take to dial.
	Handshake, Dial time.Duration
	// Heartbeat is how often a side that writes nothing says that it is there while bytes flow, and Dead how long one that reads
	// waits until it gives the connection up.
	Heartbeat, Dead time.Duration
	// FirstRetry and LastRetry bound the pause of an agent after a failure. Exit is how long it goes on without any connection.
	FirstRetry, LastRetry, Exit time.Duration
}

// DefaultTiming has the intervals for which the protocol was measured: most balancers drop what is idle for 60 s, and each spare is
// probed within 32 s.
func DefaultTiming() Timing {
	return Timing{
		Probe: 2 * time.Second, Silence: 4 * time.Second, Hedge: 500 * time.Millisecond, Patience: 5 * time.Second,
		Handshake: 10 * time.Second, Dial: 5 * time.Second, Heartbeat: 4 * time.Second, Dead: 12 * time.Second,
		FirstRetry: 200 * time.Millisecond, LastRetry: 10 * time.Second, Exit: 10 * time.Minute,
	}
}

// proof is what is signed, so that no signature of an agent means anything else.
func proof(nonce []byte) []byte {
	sum := sha256.Sum256(append([]byte("orrery tunnel v1: agent\x00"), nonce...))
	return sum[:]
}

// Prove signs the nonce of a challenge with the key of the agent's certificate: ECDSA on P-256 over SHA-256.
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

// Proven returns an error unless a nonce was signed with the key of a certificate. It does not judge the certificate.
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
