package pki

import (
	"bytes"
	"encoding/pem"
)

// Authority is a certificate authority, or a key without a certificate, under one name. It is a
// list, the newest first: the newest signs, and all are trusted.
type Authority []KeyPair

// Authorities are all authorities of a cluster, by name.
type Authorities map[string]Authority

// Pair returns the authority in the form for its users: the key that signs, and all trusted
// certificates, the newest first. An empty Authority gives the zero value.
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

// Pairs returns Pair of all authorities, by name.
func (a Authorities) Pairs() Bundle {
	pairs := Bundle{}
	for name, authority := range a {
		pairs[name] = authority.Pair()
	}
	return pairs
}

// Signer returns the pair with only the first certificate, which belongs to the key. Some programs
// do not accept further trusted certificates.
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
