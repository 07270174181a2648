// Package pki creates authorities, keys and certificates of the hub, and of the clusters that
// Orrery builds.
//
// All keys are ECDSA P-256. An authority is valid for ten years, a certificate for one year or as
// long as its authority.
package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"slices"
	"time"
)

const (
	// AuthorityLifetime is how long an authority is valid.
	AuthorityLifetime = 10 * 365 * 24 * time.Hour
	// LeafLifetime is how long a certificate is valid, unless its authority expires earlier.
	LeafLifetime = 365 * 24 * time.Hour
	// RenewBefore is how long before its expiry a certificate should be renewed.
	RenewBefore = 60 * 24 * time.Hour
	// clockSkew is how far a client's clock may be behind.
	clockSkew = 5 * time.Minute
)

const certificateBlock = "CERTIFICATE"

// KeyPair is a private key with its certificate, both as PEM.
type KeyPair struct {
	// Cert is the certificate. For a key without one, such as that of service accounts, it is the
	// public key.
	Cert []byte `json:"cert"`
	// Key is the private key.
	Key []byte `json:"key"`
}

// Format prints no key, for every verb.
func (KeyPair) Format(s fmt.State, _ rune) { _, _ = s.Write([]byte("[key pair]")) }

// Equal reports whether two pairs are the same.
func (k KeyPair) Equal(other KeyPair) bool {
	return bytes.Equal(k.Cert, other.Cert) && bytes.Equal(k.Key, other.Key)
}

// Leaf is the specification of a certificate.
type Leaf struct {
	// Name of the certificate, which is not part of its content.
	Name string
	// Authority is the name of the authority that signs it.
	Authority string
	// CommonName is the user name of a client.
	CommonName string
	// Organization has the groups of a client.
	Organization []string
	// DNSNames of a server.
	DNSNames []string
	// IPs has the addresses of a server.
	IPs []string
	// Client and Server say for which side of TLS it is valid.
	Client, Server bool
}

func (l Leaf) usages() []x509.ExtKeyUsage {
	var usages []x509.ExtKeyUsage
	if l.Client {
		usages = append(usages, x509.ExtKeyUsageClientAuth)
	}
	if l.Server {
		usages = append(usages, x509.ExtKeyUsageServerAuth)
	}
	return usages
}

func (l Leaf) addresses() ([]net.IP, error) {
	addresses := make([]net.IP, 0, len(l.IPs))
	for _, text := range l.IPs {
		ip := net.ParseIP(text)
		if ip == nil {
			return nil, fmt.Errorf("certificate %s: %q is not an IP address", l.Name, text)
		}
		addresses = append(addresses, ip)
	}
	return addresses, nil
}

// NewAuthority creates an authority.
func NewAuthority(name string, now time.Time) (KeyPair, error) {
	key, err := newKey()
	if err != nil {
		return KeyPair{}, fmt.Errorf("make authority %s: %w", name, err)
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "orrery-" + name},
		NotBefore:             now.Add(-clockSkew),
		NotAfter:              now.Add(AuthorityLifetime),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	pair, err := sign(template, template, key, key)
	if err != nil {
		return KeyPair{}, fmt.Errorf("make authority %s: %w", name, err)
	}
	return pair, nil
}

// NewKey creates a key without a certificate.
func NewKey() (KeyPair, error) {
	key, err := newKey()
	if err != nil {
		return KeyPair{}, err
	}
	text, err := encodeKey(key)
	if err != nil {
		return KeyPair{}, err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return KeyPair{}, fmt.Errorf("encode public key: %w", err)
	}
	return KeyPair{Cert: pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), Key: text}, nil
}

// Issue creates a certificate for l with a new key. k is the authority.
func (k KeyPair) Issue(l Leaf, now time.Time) (KeyPair, error) {
	ca, by, err := k.parse()
	if err != nil {
		return KeyPair{}, fmt.Errorf("issue certificate %s: authority %s: %w", l.Name, l.Authority, err)
	}
	if !now.Before(ca.NotAfter) {
		return KeyPair{}, fmt.Errorf("issue certificate %s: authority %s expired at %s; what it signs is trusted by nobody", l.Name, l.Authority, ca.NotAfter.Format(time.DateOnly))
	}
	addresses, err := l.addresses()
	if err != nil {
		return KeyPair{}, err
	}
	key, err := newKey()
	if err != nil {
		return KeyPair{}, fmt.Errorf("issue certificate %s: %w", l.Name, err)
	}
	end := leafEnd(ca.NotAfter, now)
	pair, err := sign(&x509.Certificate{
		Subject:     pkix.Name{CommonName: l.CommonName, Organization: l.Organization},
		NotBefore:   now.Add(-clockSkew),
		NotAfter:    end,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: l.usages(),
		DNSNames:    l.DNSNames,
		IPAddresses: addresses,
	}, ca, key, by)
	if err != nil {
		return KeyPair{}, fmt.Errorf("issue certificate %s: %w", l.Name, err)
	}
	return pair, nil
}

// Certify creates a certificate for a client's own key, in DER. It expires after life, or with the
// authority k.
func (k KeyPair) Certify(subject pkix.Name, public *ecdsa.PublicKey, life time.Duration, now time.Time) ([]byte, error) {
	ca, by, err := k.parse()
	if err != nil {
		return nil, fmt.Errorf("certify a key: authority: %w", err)
	}
	if !now.Before(ca.NotAfter) {
		return nil, fmt.Errorf("certify a key: the authority expired at %s", ca.NotAfter.Format(time.DateOnly))
	}
	end := now.Add(life).Truncate(time.Second)
	if end.After(ca.NotAfter) {
		end = ca.NotAfter
	}
	template := &x509.Certificate{
		Subject: subject, NotBefore: now.Add(-clockSkew), NotAfter: end,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if template.SerialNumber, err = newSerial(); err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca, public, by)
	if err != nil {
		return nil, fmt.Errorf("certify a key: %w", err)
	}
	return der, nil
}

// Certificate parses the certificate, and checks that the key belongs to it.
func (k KeyPair) Certificate() (*x509.Certificate, error) {
	cert, _, err := k.parse()
	return cert, err
}

// Fits reports whether k is a certificate for l, signed by the authority. It may have more names
// than l. Its validity in time is ignored.
func (k KeyPair) Fits(l Leaf, authority KeyPair) bool {
	cert, err := k.Certificate()
	if err != nil {
		return false
	}
	ca, err := authority.Certificate()
	if err != nil {
		return false
	}
	addresses, err := l.addresses()
	if err != nil {
		return false
	}
	return cert.CheckSignatureFrom(ca) == nil &&
		cert.Subject.CommonName == l.CommonName &&
		sameSet(cert.Subject.Organization, l.Organization) &&
		slices.Equal(cert.ExtKeyUsage, l.usages()) &&
		!slices.ContainsFunc(l.DNSNames, func(name string) bool { return !slices.Contains(cert.DNSNames, name) }) &&
		!slices.ContainsFunc(addresses, func(ip net.IP) bool { return !slices.ContainsFunc(cert.IPAddresses, ip.Equal) })
}

// Due reports whether a certificate should be renewed: it expires within RenewBefore, and a new one
// would expire later. An invalid certificate is due.
func (k KeyPair) Due(authority KeyPair, now time.Time) bool {
	cert, err := k.Certificate()
	if err != nil {
		return true
	}
	ca, err := authority.Certificate()
	if err != nil {
		return false
	}
	return due(cert.NotAfter, ca.NotAfter, now)
}

func due(end, limit, now time.Time) bool {
	return now.Add(RenewBefore).After(end) && leafEnd(limit, now).After(end)
}

// leafEnd returns the expiry of a certificate that is signed now by an authority that expires at
// limit.
func leafEnd(limit, now time.Time) time.Time {
	end := now.Add(LeafLifetime).Truncate(time.Second) // the precision of certificates
	if end.After(limit) {
		return limit
	}
	return end
}

// hasOnly reports whether the certificate has no names other than those of l.
func (k KeyPair) hasOnly(l Leaf) bool {
	cert, err := k.Certificate()
	if err != nil {
		return false
	}
	addresses, err := l.addresses()
	return err == nil &&
		!slices.ContainsFunc(cert.DNSNames, func(name string) bool { return !slices.Contains(l.DNSNames, name) }) &&
		!slices.ContainsFunc(cert.IPAddresses, func(ip net.IP) bool { return !slices.ContainsFunc(addresses, ip.Equal) })
}

func (k KeyPair) parse() (*x509.Certificate, crypto.PrivateKey, error) {
	pair, err := tls.X509KeyPair(k.Cert, k.Key)
	if err != nil {
		return nil, nil, fmt.Errorf("parse key pair: %w", err)
	}
	return pair.Leaf, pair.PrivateKey, nil
}

// Split separates the certificates in a PEM file from the key.
func Split(text []byte) KeyPair {
	var cert, key bytes.Buffer
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		to := &key
		if block.Type == certificateBlock {
			to = &cert
		}
		to.Write(pem.EncodeToMemory(block))
	}
	return KeyPair{Cert: cert.Bytes(), Key: key.Bytes()}
}

func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate key: %w", err)
	}
	return key, nil
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	// SEC 1 and not PKCS 8: readers of service account keys recognize this header.
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

func sign(template, parent *x509.Certificate, key *ecdsa.PrivateKey, by crypto.PrivateKey) (KeyPair, error) {
	serial, err := newSerial()
	if err != nil {
		return KeyPair{}, err
	}
	template.SerialNumber = serial
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), by)
	if err != nil {
		return KeyPair{}, fmt.Errorf("sign: %w", err)
	}
	text, err := encodeKey(key)
	if err != nil {
		return KeyPair{}, err
	}
	return KeyPair{Cert: pem.EncodeToMemory(&pem.Block{Type: certificateBlock, Bytes: der}), Key: text}, nil
}

func newSerial() (*big.Int, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("make serial number: %w", err)
	}
	return serial, nil
}

func sameSet(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}
