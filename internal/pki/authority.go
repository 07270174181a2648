package pki

import (
	"bytes"
	"encoding/pem"
)

// Authority is a certificate authority of a cluster with its predecessors, the newest first. The
// newest signs certificates; all are trusted, so that an authority can be replaced. It may also be
// a key without a certificate, such as that of service accounts.
type Authority []KeyPair

// Authorities has all authorities of a cluster by name, such as ca or etcd-ca.
type Authorities map[string]Authority

// Pair joins an Authority to one KeyPair, as programs read it: the newest key, which signs, and the
// certificates of all, the newest first. For an empty Authority it returns the zero value.
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

// Pairs returns the KeyPair of each authority, by name, as Authority.Pair joins it. The result is
// never nil.
func (a Authorities) Pairs() Bundle {
	pairs := Bundle{}
	for name, authority := range a {
		pairs[name] = authority.Pair()
	}
	return pairs
}

// Signer returns the pair without the certificates that follow the first. They are older
// authorities that are still trusted, and some programs accept only the certificate of the signing
// key. A pair with one or no certificate is returned as it is.
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
