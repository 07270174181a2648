package hub

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"orrery.dev/orrery/internal/pki"
)

func TestCertificatesAreRenewed(t *testing.T) {
	const day = 24 * time.Hour
	all := []string{adminCert, apiserverCert, fleetCert, publicCert, frontProxyCert, controllerManagerCert, orreryCert}
	for name, c := range map[string]struct {
		change func(t *testing.T, p *keyring)
		want   []string
	}{
		"NothingToDo":      {func(*testing.T, *keyring) {}, nil},
		"StillAWhile":      {func(_ *testing.T, p *keyring) { p.now = later(240 * day) }, nil},
		"LessThanAThird":   {func(_ *testing.T, p *keyring) { p.now = later(250 * day) }, all},
		"Expired":          {func(_ *testing.T, p *keyring) { p.now = later(400 * day) }, all},
		"Missing":          {func(t *testing.T, p *keyring) { t.Helper(); remove(t, p.dir.leaf(fleetCert)) }, []string{fleetCert}},
		"Garbled":          {func(t *testing.T, p *keyring) { t.Helper(); write(t, p.dir.leaf(fleetCert), "x") }, []string{fleetCert}},
		"AuthorityMissing": {func(t *testing.T, p *keyring) { t.Helper(); remove(t, p.dir.authority(frontProxyCA)) }, []string{frontProxyCert}},
		"AnotherAddress": {func(_ *testing.T, p *keyring) {
			i := slices.IndexFunc(p.leaves, func(l pki.Leaf) bool { return l.Name == apiserverCert })
			p.leaves[i].IPs = append(p.leaves[i].IPs, "192.0.2.1")
		}, []string{apiserverCert}},
	} {
		t.Run(name, func(t *testing.T) {
			p := &keyring{dir: dataDir(t.TempDir()), leaves: leaves(Options{BindAddress: loopbackAddress, PublicAddress: loopbackAddress}), now: time.Now}
			if err := os.MkdirAll(p.dir.pki(""), 0o700); err != nil {
				t.Fatal(err)
			}
			made, err := p.ensure()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(all, made, sorted); diff != "" {
				t.Fatalf("made at first: %s", diff)
			}
			c.change(t, p)
			renewed, err := p.ensure()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, renewed, sorted); diff != "" {
				t.Errorf("renewed: %s", diff)
			}
			if again, err := p.ensure(); err != nil || len(again) > 0 {
				t.Errorf("renewed once more: %v %v", again, err)
			}
			for _, pattern := range []string{"*.key", "*.pem"} {
				files, err := filepath.Glob(p.dir.pki(pattern))
				if err != nil || len(files) == 0 {
					t.Fatal(files, err)
				}
				for _, f := range files {
					info, err := os.Stat(f)
					if err != nil {
						t.Fatal(err)
					}
					if info.Mode().Perm() != 0o600 {
						t.Errorf("%s has mode %v", f, info.Mode())
					}
				}
			}
		})
	}
}

func TestAuthorityIsNotReplacedSilently(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, p *keyring){
		"KeyLost": func(t *testing.T, p *keyring) { t.Helper(); remove(t, p.dir.authorityKey(clientCA)) },
		"Garbled": func(t *testing.T, p *keyring) { t.Helper(); write(t, p.dir.authority(clientCA), "x") },
		"Expired": func(_ *testing.T, p *keyring) { p.now = later(pki.AuthorityLifetime + time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			p := &keyring{dir: dataDir(t.TempDir()), leaves: leaves(Options{BindAddress: loopbackAddress, PublicAddress: loopbackAddress}), now: time.Now}
			if err := os.MkdirAll(p.dir.pki(""), 0o700); err != nil {
				t.Fatal(err)
			}
			if _, err := p.ensure(); err != nil {
				t.Fatal(err)
			}
			change(t, p)
			before, err := os.ReadFile(p.dir.authority(clientCA))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := p.ensure(); err == nil {
				t.Error("there was no error")
			}
			after, err := os.ReadFile(p.dir.authority(clientCA))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(before, after) {
				t.Error("it was replaced")
			}
		})
	}
}

var sorted = cmp.Options{cmpopts.SortSlices(func(a, b string) bool { return a < b }), cmpopts.EquateEmpty()}

func later(d time.Duration) func() time.Time { return func() time.Time { return time.Now().Add(d) } }

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

// TestPublicCertificate: the certificate of the public listener is valid for every host name of
// the listener.
func TestPublicCertificate(t *testing.T) {
	for name, c := range map[string]struct {
		o     Options
		hosts []string
	}{
		"Loopback": {Options{PublicAddress: loopbackAddress}, []string{"127.0.0.1", "::1", "orrery-public"}},
		"Name":     {Options{PublicAddress: "192.0.2.1", PublicHost: "orrery.example.com"}, []string{"192.0.2.1", "orrery.example.com", "orrery-public"}},
		"Address":  {Options{PublicAddress: "0.0.0.0", PublicHost: "198.51.100.7", Kubeconfig: "k"}, []string{"198.51.100.7", "127.0.0.1"}},
	} {
		t.Run(name, func(t *testing.T) {
			k := &keyring{dir: dataDir(t.TempDir()), leaves: leaves(c.o), now: time.Now}
			i := slices.IndexFunc(k.leaves, func(l pki.Leaf) bool { return l.Name == publicCert })
			k.leaves = k.leaves[i : i+1]
			if err := os.MkdirAll(k.dir.pki(""), 0o700); err != nil {
				t.Fatal(err)
			}
			if _, err := k.ensure(); err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(k.dir.leaf(publicCert))
			if err != nil {
				t.Fatal(err)
			}
			certificate, err := (pki.KeyPair{Cert: text, Key: text}).Certificate()
			if err != nil {
				t.Fatal(err)
			}
			for _, host := range c.hosts {
				if err := certificate.VerifyHostname(host); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
