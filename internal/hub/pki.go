package hub

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
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"slices"
	"time"
)

const (
	authorityLifetime = 10 * 365 * 24 * time.Hour
	leafLifetime      = 365 * 24 * time.Hour
	// clockSkew is how much the clock of a client may be late.
	clockSkew = 5 * time.Minute
)

// Authorities. They are separate because each vouches for something else: who signs in
// with a certificate of the server CA must not thereby be a user.
const (
	serverCA     = "server-ca"
	clientCA     = "client-ca"
	frontProxyCA = "front-proxy-ca"
)

// Leaf certificates.
const (
	apiserverCert         = "apiserver"
	fleetCert             = "fleet"
	frontProxyCert        = "front-proxy"
	adminCert             = "admin"  // the user's kubeconfig
	orreryCert            = "orrery" // ours
	controllerManagerCert = "kube-controller-manager"
)

// administrators is the group that RBAC always lets do everything.
const administrators = "system:masters"

// leaf says what a certificate must be.
type leaf struct {
	name, authority string
	subject         pkix.Name
	dnsNames        []string // for servers
	ips             []net.IP // for servers
}

func (l leaf) usage() x509.ExtKeyUsage {
	if l.authority == serverCA {
		return x509.ExtKeyUsageServerAuth
	}
	return x509.ExtKeyUsageClientAuth
}

// leaves are the certificates that the hub needs.
func leaves(o Options) []leaf {
	fleet := leaf{
		name: fleetCert, authority: serverCA, subject: pkix.Name{CommonName: fleetServerName},
		dnsNames: []string{fleetServerName, o.FleetAdvertiseHost}, ips: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	if o.external() {
		return []leaf{fleet}
	}
	client := func(name, user string) leaf {
		return leaf{name: name, authority: clientCA, subject: pkix.Name{CommonName: user, Organization: []string{administrators}}}
	}
	return []leaf{
		fleet,
		{
			name: apiserverCert, authority: serverCA, subject: pkix.Name{CommonName: "kube-apiserver"},
			dnsNames: []string{loopbackName, "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"},
			ips:      serverIPs(o.BindAddress),
		},
		{name: frontProxyCert, authority: frontProxyCA, subject: pkix.Name{CommonName: frontProxyCert}},
		client(adminCert, "admin"),
		client(orreryCert, "orrery"),
		// All controllers use its own identity, so it must be allowed what they do.
		client(controllerManagerCert, "system:kube-controller-manager"),
	}
}

// serverIPs are the addresses by which clients reach a server that is bound to address.
func serverIPs(address string) []net.IP {
	bound := net.ParseIP(address)
	ips := []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback, net.ParseIP(serviceIP), bound}
	if !bound.IsUnspecified() {
		return ips
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return ips // then they are not vouched for, which their users are told
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && !n.IP.IsLoopback() {
			ips = append(ips, n.IP)
		}
	}
	return ips
}

// pki keeps the hub's authorities, keys and certificates in files.
//
// A certificate and its key are one file: so both are replaced by one rename, and nobody
// ever reads a pair that does not match.
type pki struct {
	dir    dataDir
	leaves []leaf
	now    func() time.Time
}

func (d dataDir) authority(name string) string    { return d.pki(name + ".crt") }
func (d dataDir) authorityKey(name string) string { return d.pki(name + ".key") }
func (d dataDir) leaf(name string) string         { return d.pki(name + ".pem") }
func (d dataDir) serviceAccountKey() string       { return d.pki("service-account.key") }

// ensure makes what is missing and replaces what does not fit or has less than a third
// of its life left. It returns the names of the certificates that it wrote.
func (p *pki) ensure() ([]string, error) {
	authorities := map[string]*tls.Certificate{}
	var written []string
	for _, l := range p.leaves {
		ca, ok := authorities[l.authority]
		if !ok {
			var err error
			if ca, err = p.ensureAuthority(l.authority); err != nil {
				return written, err
			}
			authorities[l.authority] = ca
		}
		if p.fits(l, ca.Leaf) {
			continue
		}
		if err := p.issue(l, ca); err != nil {
			return written, err
		}
		written = append(written, l.name)
	}
	return written, nil
}

func (p *pki) ensureAuthority(name string) (*tls.Certificate, error) {
	certFile, keyFile := p.dir.authority(name), p.dir.authorityKey(name)
	if _, err := os.Stat(certFile); errors.Is(err, fs.ErrNotExist) {
		return p.makeAuthority(name)
	}
	ca, err := tls.LoadX509KeyPair(certFile, keyFile)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read authority %s: %w; restore %s and %s from a backup", name, err, certFile, keyFile)
	case p.now().After(ca.Leaf.NotAfter):
		return nil, fmt.Errorf("authority %s expired at %s: remove %s and start again; users then need the new kubeconfig", name, ca.Leaf.NotAfter.Format(time.DateOnly), certFile)
	}
	return &ca, nil
}

func (p *pki) makeAuthority(name string) (*tls.Certificate, error) {
	key, err := newKey()
	if err != nil {
		return nil, fmt.Errorf("make authority %s: %w", name, err)
	}
	now := p.now()
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "orrery-" + name},
		NotBefore:             now.Add(-clockSkew),
		NotAfter:              now.Add(authorityLifetime),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	cert, err := sign(template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make authority %s: %w", name, err)
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return nil, fmt.Errorf("make authority %s: %w", name, err)
	}
	// The key first: where there is a certificate, there is its key.
	if err := writeFile(p.dir.authorityKey(name), keyPEM); err != nil {
		return nil, err
	}
	if err := writeFile(p.dir.authority(name), cert); err != nil {
		return nil, err
	}
	ca, err := tls.X509KeyPair(cert, keyPEM)
	return &ca, err
}

// fits tells whether the file holds what l asks for, for a while yet.
func (p *pki) fits(l leaf, ca *x509.Certificate) bool {
	pair, err := tls.LoadX509KeyPair(p.dir.leaf(l.name), p.dir.leaf(l.name))
	if err != nil {
		return false
	}
	cert, now := pair.Leaf, p.now()
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{l.usage()}}); err != nil {
		return false
	}
	if cert.NotAfter.Sub(now) < cert.NotAfter.Sub(cert.NotBefore)/3 {
		return false
	}
	return cert.Subject.CommonName == l.subject.CommonName &&
		slices.Equal(cert.Subject.Organization, l.subject.Organization) &&
		!slices.ContainsFunc(l.dnsNames, func(name string) bool { return !slices.Contains(cert.DNSNames, name) }) &&
		!slices.ContainsFunc(l.ips, func(ip net.IP) bool { return !slices.ContainsFunc(cert.IPAddresses, ip.Equal) })
}

func (p *pki) issue(l leaf, ca *tls.Certificate) error {
	key, err := newKey()
	if err != nil {
		return fmt.Errorf("issue certificate %s: %w", l.name, err)
	}
	now := p.now()
	end := now.Add(leafLifetime)
	if end.After(ca.Leaf.NotAfter) {
		end = ca.Leaf.NotAfter
	}
	cert, err := sign(&x509.Certificate{
		Subject:     l.subject,
		NotBefore:   now.Add(-clockSkew),
		NotAfter:    end,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{l.usage()},
		DNSNames:    l.dnsNames,
		IPAddresses: l.ips,
	}, ca.Leaf, key.Public(), ca.PrivateKey)
	if err != nil {
		return fmt.Errorf("issue certificate %s: %w", l.name, err)
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return fmt.Errorf("issue certificate %s: %w", l.name, err)
	}
	return writeFile(p.dir.leaf(l.name), slices.Concat(cert, keyPEM))
}

// ensureServiceAccountKey makes the key that signs service accounts' tokens. It is never
// replaced: that would end every token.
func (d dataDir) ensureServiceAccountKey() error {
	if _, err := os.Stat(d.serviceAccountKey()); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	key, err := newKey()
	if err != nil {
		return fmt.Errorf("make service account key: %w", err)
	}
	text, err := encodeKey(key)
	if err != nil {
		return fmt.Errorf("make service account key: %w", err)
	}
	return writeFile(d.serviceAccountKey(), text)
}

func newKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	// SEC 1 rather than PKCS 8: the service account key's readers know it by this header.
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

func sign(template, parent *x509.Certificate, public crypto.PublicKey, by crypto.PrivateKey) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("make serial number: %w", err)
	}
	template.SerialNumber = serial
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, by)
	if err != nil {
		return nil, fmt.Errorf("sign: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

// splitPEM separates the certificates of a leaf's file from its key.
func splitPEM(text []byte) (certs, key []byte) {
	var c, k bytes.Buffer
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		to := &k
		if block.Type == "CERTIFICATE" {
			to = &c
		}
		to.Write(pem.EncodeToMemory(block))
	}
	return c.Bytes(), k.Bytes()
}
