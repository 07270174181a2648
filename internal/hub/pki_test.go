package hub

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestCertificatesAreRenewed(t *testing.T) {
	const day = 24 * time.Hour
	all := []string{adminCert, apiserverCert, fleetCert, frontProxyCert, controllerManagerCert, orreryCert}
	for name, c := range map[string]struct {
		change func(t *testing.T, p *pki)
		want   []string
	}{
		"NothingToDo":      {func(*testing.T, *pki) {}, nil},
		"StillAWhile":      {func(_ *testing.T, p *pki) { p.now = later(240 * day) }, nil},
		"LessThanAThird":   {func(_ *testing.T, p *pki) { p.now = later(250 * day) }, all},
		"Expired":          {func(_ *testing.T, p *pki) { p.now = later(400 * day) }, all},
		"Missing":          {func(t *testing.T, p *pki) { t.Helper(); remove(t, p.dir.leaf(fleetCert)) }, []string{fleetCert}},
		"Garbled":          {func(t *testing.T, p *pki) { t.Helper(); write(t, p.dir.leaf(fleetCert), "x") }, []string{fleetCert}},
		"AuthorityMissing": {func(t *testing.T, p *pki) { t.Helper(); remove(t, p.dir.authority(frontProxyCA)) }, []string{frontProxyCert}},
		"AnotherAddress": {func(_ *testing.T, p *pki) {
			i := slices.IndexFunc(p.leaves, func(l leaf) bool { return l.name == apiserverCert })
			p.leaves[i].ips = append(p.leaves[i].ips, net.IPv4(192, 0, 2, 1))
		}, []string{apiserverCert}},
	} {
		t.Run(name, func(t *testing.T) {
			p := &pki{dir: dataDir(t.TempDir()), leaves: leaves(Options{BindAddress: loopbackAddress}), now: time.Now}
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
	for name, change := range map[string]func(t *testing.T, p *pki){
		"KeyLost": func(t *testing.T, p *pki) { t.Helper(); remove(t, p.dir.authorityKey(clientCA)) },
		"Garbled": func(t *testing.T, p *pki) { t.Helper(); write(t, p.dir.authority(clientCA), "x") },
		"Expired": func(_ *testing.T, p *pki) { p.now = later(authorityLifetime + time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			p := &pki{dir: dataDir(t.TempDir()), leaves: leaves(Options{BindAddress: loopbackAddress}), now: time.Now}
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
