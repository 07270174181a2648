package hub

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"time"

	"orrery.dev/orrery/internal/pki"
)

// Names of the hub's certificate authorities. They are separate because each certifies another
// role: a certificate of the server authority must not identify a user.
const (
	serverCA     = "server-ca"
	clientCA     = "client-ca"
	frontProxyCA = "front-proxy-ca"
)

// Names of the hub's certificates, which the authorities sign.
const (
	apiserverCert         = "apiserver"
	fleetCert             = "fleet"
	publicCert            = "public" // for the public listener
	frontProxyCert        = "front-proxy"
	adminCert             = "admin"  // for the kubeconfig of the user
	orreryCert            = "orrery" // for orrery server
	controllerManagerCert = "kube-controller-manager"
)

// administrators is the group in the client certificates of the hub. The API server allows its
// members everything.
const administrators = "system:masters"

// publicServerName is a name in the certificate of the public listener, at every address. A load
// balancer that opens a new TLS connection to the listener can verify this name. Some load
// balancers cannot verify IP addresses, such as nginx 1.22.
const publicServerName = "orrery-public"

// leaves returns the certificates that the hub needs. With an existing API server these are only
// those of the fleet API and of the public listener.
func leaves(o Options) []pki.Leaf {
	fleet := pki.Leaf{
		Name: fleetCert, Authority: serverCA, CommonName: fleetServerName, Server: true,
		DNSNames: []string{fleetServerName, o.FleetAdvertiseHost}, IPs: []string{loopbackAddress},
	}
	public := pki.Leaf{
		Name: publicCert, Authority: serverCA, CommonName: publicServerName, Server: true,
		DNSNames: []string{publicServerName}, IPs: serverIPs(o.PublicAddress),
	}
	switch {
	case o.PublicHost == "":
	case net.ParseIP(o.PublicHost) == nil:
		public.DNSNames = append(public.DNSNames, o.PublicHost)
	default:
		public.IPs = append(public.IPs, o.PublicHost)
	}
	if o.external() {
		return []pki.Leaf{fleet, public}
	}
	client := func(name, user string) pki.Leaf {
		return pki.Leaf{Name: name, Authority: clientCA, CommonName: user, Organization: []string{administrators}, Client: true}
	}
	return []pki.Leaf{
		fleet,
		public,
		{
			Name: apiserverCert, Authority: serverCA, CommonName: "kube-apiserver", Server: true,
			DNSNames: []string{loopbackName, "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"},
			IPs:      serverIPs(o.BindAddress),
		},
		{Name: frontProxyCert, Authority: frontProxyCA, CommonName: frontProxyCert, Client: true},
		client(adminCert, "admin"),
		client(orreryCert, "orrery"),
		// All controllers use this identity, so it needs all their rights.
		client(controllerManagerCert, "system:kube-controller-manager"),
	}
}

// serverIPs returns the IP addresses for the certificate of a server that listens on address. For
// an unspecified address, such as 0.0.0.0, they include those of all interfaces, unless these
// cannot be read.
func serverIPs(address string) []string {
	ips := []string{loopbackAddress, net.IPv6loopback.String(), serviceIP, address}
	if !net.ParseIP(address).IsUnspecified() {
		return ips
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return ips // clients of the other addresses get a certificate error
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && !n.IP.IsLoopback() {
			ips = append(ips, n.IP.String())
		}
	}
	return ips
}

// keyring creates and renews the hub's certificate authorities, certificates and keys, which are
// files in the data directory. Its methods must not be called concurrently.
//
// A certificate and its key are in one file: one rename replaces both, so that a reader always gets
// a matching pair.
type keyring struct {
	dir    dataDir
	leaves []pki.Leaf
	now    func() time.Time
}

// authority returns the path of the certificate of the authority with this name.
func (d dataDir) authority(name string) string { return d.pki(name + ".crt") }

// authorityKey returns the path of the key of the authority with this name.
func (d dataDir) authorityKey(name string) string { return d.pki(name + ".key") }

// leaf returns the path of the file with the certificate of this name and its key.
func (d dataDir) leaf(name string) string { return d.pki(name + ".pem") }

// serviceAccountKey returns the path of the key that signs tokens of ServiceAccounts.
func (d dataDir) serviceAccountKey() string { return d.pki("service-account.key") }

// ensure creates missing authorities and certificates of the hub. It replaces certificates that are
// invalid, do not match the options or have less than a third of their lifetime left. It returns
// the names of the certificates that it wrote, also after an error. An authority is never replaced:
// an invalid or expired one is an error.
func (k *keyring) ensure() ([]string, error) {
	authorities := map[string]pki.KeyPair{}
	var written []string
	for _, l := range k.leaves {
		ca, ok := authorities[l.Authority]
		if !ok {
			var err error
			if ca, err = k.ensureAuthority(l.Authority); err != nil {
				return written, err
			}
			authorities[l.Authority] = ca
		}
		if k.fits(l, ca) {
			continue
		}
		pair, err := ca.Issue(l, k.now())
		if err != nil {
			return written, err
		}
		if err := writeFile(k.dir.leaf(l.Name), slices.Concat(pair.Cert, pair.Key)); err != nil {
			return written, err
		}
		written = append(written, l.Name)
	}
	return written, nil
}

// ensureAuthority returns the authority with this name and its key. It creates them if the
// certificate does not exist. An invalid or expired authority is an error.
func (k *keyring) ensureAuthority(name string) (pki.KeyPair, error) {
	certFile, keyFile := k.dir.authority(name), k.dir.authorityKey(name)
	cert, err := os.ReadFile(certFile)
	if errors.Is(err, fs.ErrNotExist) {
		return k.makeAuthority(name)
	}
	key, keyErr := os.ReadFile(keyFile)
	ca := pki.KeyPair{Cert: cert, Key: key}
	parsed, parseErr := ca.Certificate()
	switch err := cmp.Or(err, keyErr, parseErr); {
	case err != nil:
		return pki.KeyPair{}, fmt.Errorf("read authority %s: %w; restore %s and %s from a backup", name, err, certFile, keyFile)
	case k.now().After(parsed.NotAfter):
		return pki.KeyPair{}, fmt.Errorf("authority %s expired at %s: remove %s and start again; users then need the new kubeconfig", name, parsed.NotAfter.Format(time.DateOnly), certFile)
	}
	return ca, nil
}

// makeAuthority creates a certificate authority with this name and writes the files of its
// certificate and key.
func (k *keyring) makeAuthority(name string) (pki.KeyPair, error) {
	ca, err := pki.NewAuthority(name, k.now())
	if err != nil {
		return pki.KeyPair{}, err
	}
	// The key is written first: if there is a certificate, there is also its key.
	if err := writeFile(k.dir.authorityKey(name), ca.Key); err != nil {
		return pki.KeyPair{}, err
	}
	return ca, writeFile(k.dir.authority(name), ca.Cert)
}

// fits reports whether the file of the certificate l is valid: it is as l describes, signed by the
// authority, and at least a third of its lifetime is left. It is false for a missing or invalid
// file.
func (k *keyring) fits(l pki.Leaf, authority pki.KeyPair) bool {
	text, err := os.ReadFile(k.dir.leaf(l.Name))
	if err != nil {
		return false
	}
	pair := pki.KeyPair{Cert: text, Key: text}
	if !pair.Fits(l, authority) {
		return false
	}
	cert, err := pair.Certificate()
	now := k.now()
	return err == nil && !now.Before(cert.NotBefore) && cert.NotAfter.Sub(now) >= cert.NotAfter.Sub(cert.NotBefore)/3
}

// ensureServiceAccountKey creates the key that signs tokens of ServiceAccounts, if its file does
// not exist. The key is never replaced, because that would invalidate all tokens. An existing file
// is not checked.
func (d dataDir) ensureServiceAccountKey() error {
	if _, err := os.Stat(d.serviceAccountKey()); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	key, err := pki.NewKey()
	if err != nil {
		return fmt.Errorf("make service account key: %w", err)
	}
	return writeFile(d.serviceAccountKey(), key.Key)
}
