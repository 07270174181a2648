package pki

import (
	"bytes"
	"encoding/pem"
)

// Authority is what vouches under one name: an authority of certificates, or a key without a certificate. It is a list, the newest
// first: the newest signs, and all are trusted.
type Authority []KeyPair

// Authorities are all that a cluster has, by name.
type Authorities map[string]Authority

// Pair is the authority as what uses it has it: the key that signs, and all that is trusted, the newest first. Of one with one
// member it is that member.
func (a Authority) Pair() KeyPair {
	if len(a) == 0 {
		return KeyPair{}
	}
	certs := make([][]byte, 0, len(a))
	for _, member := range a {
		certs = append(certs, member.Cert)
	}
	return KeyPair{Cert: bytes.Join(certs, nil), Key: a[0].Key}
}

// Pairs are all authorities as what uses them has them.
func (a Authorities) Pairs() Bundle {
	pairs := Bundle{}
	for name, authority := range a {
		pairs[name] = authority.Pair()
	}
	return pairs
}

// Signer is the pair without what is only trusted: of several certificates, the first. Where a program wants the certificate that
// belongs to the key, it is this.
func (k KeyPair) Signer() KeyPair {
	block, rest := pem.Decode(k.Cert)
	if block == nil {
		return k
	}
	if next, _ := pem.Decode(rest); next == nil {
		return k
	}
	return KeyPair{Cert: pem.EncodeToMemory(block), Key: k.Key}
}
