package pki

import (
	"crypto/tls"
	"crypto/x509"
	"testing"
)

// TestAuthority: the newest member signs and all members are trusted. The pair of a single
// member is that member.
func TestAuthority(t *testing.T) {
	older, err := NewAuthority("ca", now)
	if err != nil {
		t.Fatal(err)
	}
	newer, err := NewAuthority("ca", now)
	if err != nil {
		t.Fatal(err)
	}
	if one := (Authority{older}).Pair(); !one.Equal(older) || !one.Signer().Equal(older) {
		t.Error("an authority with one member is not that member")
	}
	both := Authority{newer, older}.Pair()
	if !both.Signer().Equal(newer) {
		t.Error("the newest is not the one that signs")
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(both.Cert) {
		t.Fatal("the certificates cannot be read")
	}
	leaf := leaves()[1]
	for name, by := range map[string]KeyPair{"Both": both, "Older": older, "Newer": newer} {
		pair, err := by.Issue(leaf, now)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := pair.Certificate()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
			t.Errorf("%s: what it signed is not trusted: %v", name, err)
		}
		if fits := pair.Fits(leaf, both); fits != (name != "Older") {
			t.Errorf("%s: what it signed fits: %v", name, fits)
		}
	}
	if _, err := tls.X509KeyPair(both.Cert, both.Key); err != nil {
		t.Error(err)
	}
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	if next, err := NewKey(); err != nil || !(Authority{next, key}).Pair().Signer().Equal(next) {
		t.Errorf("of two keys the newest is not the one that signs: %v", err)
	}
	if !(Authority{}).Pair().Equal(KeyPair{}) {
		t.Error("nobody has a pair")
	}
}
