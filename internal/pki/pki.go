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
	// AuthorityLifetime is how long an authority is valid: ten years.
	AuthorityLifetime = 10 * 365 * 24 * time.Hour
	// LeafLifetime is how long a certificate is valid, unless its authority expires earlier: one year.
	LeafLifetime = 365 * 24 * time.Hour
	// RenewBefore is how long before its expiry a certificate should be renewed: 60 days.
	RenewBefore = 60 * 24 * time.Hour
	// clockSkew is how far the clock of another machine may be behind, 5 minutes. Certificates are
	// valid from this long before their creation.
	clockSkew = 5 * time.Minute
)

// certificateBlock is the type of PEM blocks that are certificates.
const certificateBlock = "CERTIFICATE"

// KeyPair is a private key with its certificate, both as PEM. Cert may have several certificates;
// the first belongs to the key. A key without a certificate has its public key in Cert.
type KeyPair struct {
	// Cert is the certificate or certificates. For a key without one, such as that of service
	// accounts, it is the public key.
	Cert []byte `json:"cert"`
	// Key is the private key.
	Key []byte `json:"key"`
}

// Format implements fmt.Formatter. It prints "[key pair]" for every verb, so that no key gets
// into a log.
func (KeyPair) Format(s fmt.State, _ rune) { _, _ = s.Write([]byte("[key pair]")) }

// Equal reports whether both pairs have the same bytes of key and certificate.
func (k KeyPair) Equal(other KeyPair) bool {
	return bytes.Equal(k.Cert, other.Cert) && bytes.Equal(k.Key, other.Key)
}

// Leaf specifies a certificate that an authority signs, for a client or a server. Issue creates it,
// and Fits compares an existing certificate with it.
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
	// Client and Server say for which side of a TLS connection the certificate is valid.
	Client, Server bool
}

// usages returns the extended key usages for Client and Server, in this order.
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

// addresses parses l.IPs. A text that is not an IP address is an error.
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

// NewAuthority creates a certificate authority: a key, and its self-signed certificate with the
// common name orrery-NAME, which is valid for AuthorityLifetime from now.
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

// NewKey creates a key without a certificate: Cert of the result is the public key as PEM. The hub
// and clusters sign tokens of service accounts with such a key.
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

// Issue creates a key and a certificate for l, signed by the authority k. The certificate expires
// after LeafLifetime, or with the authority if that is earlier. It is an error if k is invalid or
// has expired, or if an address of l is not an IP address.
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

// Certify signs a TLS client certificate for a public key whose private key only the client has,
// such as that of an agent. k is the authority. The result is DER, not PEM. It expires after life,
// or with the authority if that is earlier. It is an error if k is invalid or has expired.
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

// Certificate parses the first certificate of the pair. It is an error if the pair has no
// certificate or no key, or if the key does not belong to that certificate.
func (k KeyPair) Certificate() (*x509.Certificate, error) {
	cert, _, err := k.parse()
	return cert, err
}

// Fits reports whether k is a certificate that l specifies and that the authority signed. Its user,
// groups and usages must equal those of l; its DNS names and addresses must include those of l.
// Whether it has expired is ignored. The result is false if k, the authority or an address of l is
// invalid.
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

// Due reports whether the certificate k should be renewed at the time now. That is so if it expires
// within RenewBefore and a new one of this authority would expire later. An invalid certificate is
// due. If only the authority is invalid, the result is false.
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

// due reports whether a certificate that expires at end should be renewed: end is within
// RenewBefore, and a new one would expire later. limit is the expiry of its authority.
func due(end, limit, now time.Time) bool {
	return now.Add(RenewBefore).After(end) && leafEnd(limit, now).After(end)
}

// leafEnd returns the expiry of a certificate that is signed at the time now. That is after
// LeafLifetime, or at limit, the expiry of its authority, if that is earlier.
func leafEnd(limit, now time.Time) time.Time {
	end := now.Add(LeafLifetime).Truncate(time.Second) // the precision of certificates
	if end.After(limit) {
		return limit
	}
	return end
}

// hasOnly reports whether all DNS names and addresses of the certificate k are also in l. It is
// false for an invalid certificate or l. Together with Fits it means that the names are equal.
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

// parse returns the first certificate of the pair and its private key. It is an error if one is
// missing or invalid, or if they do not belong together.
func (k KeyPair) parse() (*x509.Certificate, crypto.PrivateKey, error) {
	pair, err := tls.X509KeyPair(k.Cert, k.Key)
	if err != nil {
		return nil, nil, fmt.Errorf("parse key pair: %w", err)
	}
	return pair.Leaf, pair.PrivateKey, nil
}

// Split divides the text of a PEM file into a KeyPair: Cert gets the certificates, Key all other
// blocks. Text outside of blocks is dropped. Nothing is parsed or checked.
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

// newKey creates a private key on the curve P-256.
func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate key: %w", err)
	}
	return key, nil
}

// encodeKey returns a private key as PEM.
func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	// SEC 1 and not PKCS 8: readers of service account keys recognize this header.
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

// sign creates a certificate for key from the template, signed by the key by of the certificate
// parent. It sets the template's serial number, and returns the certificate with its key.
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

// newSerial returns a random serial number of 127 bits.
func newSerial() (*big.Int, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("make serial number: %w", err)
	}
	return serial, nil
}

// sameSet reports whether a and b have the same elements, in any order, each as often.
func sameSet(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}
