package pki

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var (
	now         = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	authorities = []string{"ca", "etcd-ca"}
	keys        = []string{"sa"}
)

func leaves() []Leaf {
	return []Leaf{
		{Name: "a/apiserver", Authority: "ca", CommonName: "kube-apiserver", DNSNames: []string{"kubernetes", "a"}, IPs: []string{"10.0.0.1", "fd00::1"}, Server: true},
		{Name: "a/kubelet", Authority: "ca", CommonName: "system:node:a", Organization: []string{"system:nodes", "b"}, Client: true},
		{Name: "a/etcd", Authority: "etcd-ca", CommonName: "a", IPs: []string{"10.0.0.1"}, Client: true, Server: true},
	}
}

func minted(t *testing.T) Bundle {
	t.Helper()
	b := Bundle{}
	changed, err := b.Ensure(Bundle{}, now, authorities, keys, leaves())
	if err != nil || !changed {
		t.Fatal(changed, err)
	}
	return b
}

func TestCertificatesAreWhatWasAskedFor(t *testing.T) {
	b := minted(t)
	for _, l := range leaves() {
		cert, err := b[l.Name].Certificate()
		if err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(b[l.Authority].Cert)
		for usage, want := range map[x509.ExtKeyUsage]bool{x509.ExtKeyUsageClientAuth: l.Client, x509.ExtKeyUsageServerAuth: l.Server} {
			_, err := cert.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage}})
			if (err == nil) != want {
				t.Errorf("%s is good for usage %d: %v, want %v", l.Name, usage, err, want)
			}
		}
		for _, name := range slices.Concat(l.DNSNames, l.IPs) {
			if err := cert.VerifyHostname(name); err != nil {
				t.Errorf("%s: %v", l.Name, err)
			}
		}
		if diff := cmp.Diff(l.Organization, cert.Subject.Organization, sorted); diff != "" || cert.Subject.CommonName != l.CommonName {
			t.Errorf("%s: %s %s", l.Name, cert.Subject, diff)
		}
		got := []time.Duration{now.Sub(cert.NotBefore), cert.NotAfter.Sub(now)}
		if diff := cmp.Diff([]time.Duration{5 * time.Minute, 365 * 24 * time.Hour}, got); diff != "" {
			t.Errorf("%s lives: %s", l.Name, diff)
		}
	}
}

func TestServiceAccountKeyHasItsPublicHalf(t *testing.T) {
	pair := minted(t)["sa"]
	private, _ := pem.Decode(pair.Key)
	public, _ := pem.Decode(pair.Cert)
	key, err := x509.ParseECPrivateKey(private.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	half, err := x509.ParsePKIXPublicKey(public.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if !key.PublicKey.Equal(half.(*ecdsa.PublicKey)) {
		t.Error("it is that of another key")
	}
}

func TestEnsure(t *testing.T) {
	for name, c := range map[string]struct {
		change func(b Bundle, l []Leaf) []Leaf
		now    time.Time
		want   []string // the names of new pairs
	}{
		"NothingToDo":        {func(_ Bundle, l []Leaf) []Leaf { return l }, now, nil},
		"OrderOfNames":       {func(_ Bundle, l []Leaf) []Leaf { slices.Reverse(l[0].DNSNames); slices.Reverse(l[0].IPs); return l }, now, nil},
		"AnotherSpelling":    {func(_ Bundle, l []Leaf) []Leaf { l[0].IPs[1] = "fd00:0::1"; return l }, now, nil},
		"LeavesHaveEnded":    {func(_ Bundle, l []Leaf) []Leaf { return l }, now.Add(2 * LeafLifetime), []string{"a/apiserver", "a/kubelet", "a/etcd"}},
		"LeavesEndSoon":      {func(_ Bundle, l []Leaf) []Leaf { return l[:1] }, now.Add(LeafLifetime - RenewBefore + time.Minute), []string{"a/apiserver"}},
		"LeavesEndLater":     {func(_ Bundle, l []Leaf) []Leaf { return l }, now.Add(LeafLifetime - RenewBefore - time.Minute), nil},
		"NotAskedFor":        {func(_ Bundle, l []Leaf) []Leaf { return l[1:] }, now, nil},
		"NewHost":            {func(_ Bundle, l []Leaf) []Leaf { return append(l, Leaf{Name: "b/etcd", Authority: "etcd-ca"}) }, now, []string{"b/etcd"}},
		"NameAdded":          {func(_ Bundle, l []Leaf) []Leaf { l[0].DNSNames = append(l[0].DNSNames, "b"); return l }, now, []string{"a/apiserver"}},
		"NameRemoved":        {func(_ Bundle, l []Leaf) []Leaf { l[0].DNSNames = l[0].DNSNames[1:]; return l }, now, []string{"a/apiserver"}},
		"AddressAdded":       {func(_ Bundle, l []Leaf) []Leaf { l[2].IPs = append(l[2].IPs, "10.0.0.9"); return l }, now, []string{"a/etcd"}},
		"AddressRemoved":     {func(_ Bundle, l []Leaf) []Leaf { l[0].IPs = l[0].IPs[:1]; return l }, now, []string{"a/apiserver"}},
		"AnotherUser":        {func(_ Bundle, l []Leaf) []Leaf { l[1].CommonName = "system:node:b"; return l }, now, []string{"a/kubelet"}},
		"AnotherGroup":       {func(_ Bundle, l []Leaf) []Leaf { l[1].Organization = []string{"system:nodes"}; return l }, now, []string{"a/kubelet"}},
		"AnotherUse":         {func(_ Bundle, l []Leaf) []Leaf { l[2].Client = false; return l }, now, []string{"a/etcd"}},
		"AnotherAuthority":   {func(_ Bundle, l []Leaf) []Leaf { l[1].Authority = "etcd-ca"; return l }, now, []string{"a/kubelet"}},
		"LeafIsGarbled":      {func(b Bundle, l []Leaf) []Leaf { b["a/etcd"] = KeyPair{Cert: []byte("x")}; return l }, now, []string{"a/etcd"}},
		"KeyOfAnother":       {func(b Bundle, l []Leaf) []Leaf { b["a/etcd"] = KeyPair{b["a/etcd"].Cert, b["ca"].Key}; return l }, now, []string{"a/etcd"}},
		"LeafIsMissing":      {func(b Bundle, l []Leaf) []Leaf { delete(b, "a/etcd"); return l }, now, []string{"a/etcd"}},
		"ServiceAccountKey":  {func(b Bundle, l []Leaf) []Leaf { delete(b, "sa"); return l }, now, []string{"sa"}},
		"AuthorityWasUnused": {func(b Bundle, l []Leaf) []Leaf { delete(b, "etcd-ca"); return l[:2] }, now, []string{"etcd-ca"}},
	} {
		t.Run(name, func(t *testing.T) {
			b, next := minted(t), Bundle{}
			ask := c.change(b, leaves())
			before := maps.Clone(b)
			changed, err := b.Ensure(next, c.now, authorities, keys, ask)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for name, pair := range b.With(next) {
				if !pair.Equal(before[name]) {
					got = append(got, name)
				}
			}
			if diff := cmp.Diff(c.want, got, sorted); diff != "" || changed != (len(c.want) > 0) {
				t.Errorf("changed %v: %s", changed, diff)
			}
			for name := range next {
				if !b[name].Equal(before[name]) {
					t.Errorf("%s, which hosts have, was replaced", name)
				}
			}
			if again, err := b.Ensure(next, c.now, authorities, keys, ask); err != nil || again {
				t.Errorf("once more: %v %v", again, err)
			}
		})
	}
}

// TestSuccessors: a successor stays until it is in use, or is no longer needed.
func TestSuccessors(t *testing.T) {
	b, next := minted(t), Bundle{}
	late := now.Add(LeafLifetime - RenewBefore + time.Second)
	if _, err := b.Ensure(next, late, authorities, keys, leaves()); err != nil || len(next) != len(leaves()) {
		t.Fatalf("%d successors: %v", len(next), err)
	}
	first := maps.Clone(next)
	if changed, err := b.Ensure(next, late.Add(time.Hour), authorities, keys, leaves()); err != nil || changed || !maps.EqualFunc(first, next, KeyPair.Equal) {
		t.Errorf("an hour later there are others: %v %v", changed, err)
	}
	if changed, err := b.Ensure(next, now, authorities, keys, leaves()); err != nil || !changed || len(next) != 0 {
		t.Errorf("what is not due has successors: %v %v %v", changed, err, next)
	}
	b = b.With(first)
	if changed, err := b.Ensure(next, late, authorities, keys, leaves()); err != nil || changed {
		t.Errorf("what was renewed is due: %v %v", changed, err)
	}
}

// TestDue: a certificate that ends with its authority is not renewed again and again.
func TestDue(t *testing.T) {
	ca, err := NewAuthority("ca", now)
	if err != nil {
		t.Fatal(err)
	}
	end := now.Add(AuthorityLifetime)
	for name, c := range map[string]struct {
		issued, at time.Time
		want       bool
	}{
		"Fresh":              {now, now, false},
		"BeforeTheWindow":    {now, now.Add(LeafLifetime - RenewBefore - time.Second), false},
		"InTheWindow":        {now, now.Add(LeafLifetime - RenewBefore + time.Second), true},
		"Ended":              {now, now.Add(2 * LeafLifetime), true},
		"AsLongAsAuthority":  {end.Add(-90 * 24 * time.Hour), end.Add(-time.Hour), false},
		"AuthorityEndsLater": {end.Add(-LeafLifetime - 30*24*time.Hour), end.Add(-50 * 24 * time.Hour), true},
		"AuthorityHasEnded":  {end.Add(-90 * 24 * time.Hour), end.Add(time.Hour), false},
	} {
		t.Run(name, func(t *testing.T) {
			l := Leaf{Name: "a/kubelet", Authority: "ca", Client: true}
			pair, err := ca.Issue(l, c.issued)
			if err != nil {
				t.Fatal(err)
			}
			if got := pair.Due(ca, c.at); got != c.want {
				t.Errorf("due: %v, want %v", got, c.want)
			}
			list := Bundle{"ca": ca, l.Name: pair}.Expiries([]Leaf{l})
			for _, e := range list {
				if want := c.want && e.Name == l.Name; e.Due(c.at) != want {
					t.Errorf("expiry of %s is due: %v, want %v", e.Name, e.Due(c.at), want)
				}
			}
			if names := []string{list[0].Name, list[1].Name}; !slices.Equal(names, []string{l.Name, "ca"}) && c.want {
				t.Errorf("the order is %v", names)
			}
		})
	}
}

func TestEnsureRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		change func(b Bundle) []Leaf
		now    time.Time
		want   string
	}{
		"AuthorityIsGarbled":  {func(b Bundle) []Leaf { b["ca"] = KeyPair{Cert: []byte("x")}; return leaves() }, now, "authority ca"},
		"AuthorityWithoutKey": {func(b Bundle) []Leaf { b["ca"] = KeyPair{Cert: b["ca"].Cert}; return leaves() }, now, "restore the keys"},
		"AuthorityIsLost":     {func(b Bundle) []Leaf { delete(b, "ca"); return leaves() }, now, "authority ca is missing"},
		"AuthorityExpired":    {func(Bundle) []Leaf { return []Leaf{{Name: "new", Authority: "ca"}} }, now.Add(AuthorityLifetime), "expired at 2036-10-29"},
		"UnknownAuthority":    {func(Bundle) []Leaf { return []Leaf{{Name: "new", Authority: "x"}} }, now, `certificate new: there is no authority "x"`},
		"NoAddress":           {func(Bundle) []Leaf { return []Leaf{{Name: "new", Authority: "ca", IPs: []string{"host-1"}}} }, now, `certificate new: "host-1" is not an IP address`},
	} {
		t.Run(name, func(t *testing.T) {
			b := minted(t)
			ask := c.change(b)
			before := maps.Clone(b)
			// A key that could be created, but must not be if the rest fails.
			ask = append([]Leaf{{Name: "other", Authority: "etcd-ca"}}, ask...)
			next := Bundle{}
			changed, err := b.Ensure(next, c.now, authorities, keys, ask)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want one with %q", err, c.want)
			}
			if changed || len(next) > 0 || !maps.EqualFunc(b, before, KeyPair.Equal) {
				t.Error("the bundle changed")
			}
		})
	}
}

func TestLeafDoesNotOutliveItsAuthority(t *testing.T) {
	b := minted(t)
	late := now.Add(AuthorityLifetime - time.Hour)
	if _, err := b.Ensure(Bundle{}, late, authorities, nil, []Leaf{{Name: "late", Authority: "ca"}}); err != nil {
		t.Fatal(err)
	}
	cert, err := b["late"].Certificate()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(now.Add(AuthorityLifetime), cert.NotAfter); diff != "" {
		t.Error(diff)
	}
}

func TestBundleIsJSON(t *testing.T) {
	b := minted(t)
	text, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	var back Bundle
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if changed, err := back.Ensure(Bundle{}, now, authorities, keys, leaves()); err != nil || changed {
		t.Error(changed, err)
	}
}

func TestKeysAreNotPrinted(t *testing.T) {
	b := minted(t)
	var out strings.Builder
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "pair", b["ca"], "bundle", b)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		fmt.Fprintf(&out, verb, b["ca"])
		fmt.Fprintf(&out, verb, b)
	}
	for _, part := range []string{"BEGIN", "45 45 45 66", "2d2d2d", "0x2d"} {
		if strings.Contains(out.String(), part) {
			t.Errorf("there is %q in %s", part, out.String())
		}
	}
}

func TestSplit(t *testing.T) {
	pair := minted(t)["a/etcd"]
	if diff := cmp.Diff(pair, Split(slices.Concat(pair.Cert, pair.Key)), cmp.Transformer("strings", func(k KeyPair) [2]string {
		return [2]string{string(k.Cert), string(k.Key)}
	})); diff != "" {
		t.Error(diff)
	}
	if _, err := tls.X509KeyPair(pair.Cert, pair.Key); err != nil {
		t.Error(err)
	}
}

var sorted = cmp.Options{cmpopts.SortSlices(strings.Compare), cmpopts.EquateEmpty()}
