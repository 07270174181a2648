package process

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

func TestProbe(t *testing.T) {
	dir := t.TempDir()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/moved":
			http.Redirect(w, r, "/ok", http.StatusFound)
		case "/created":
			w.WriteHeader(http.StatusCreated)
		case "/unavailable":
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()
	// No process listens on a reserved port.
	closed := net.JoinHostPort(loopback, strconv.Itoa(reserve(t, 0).Number))
	touch(t, filepath.Join(dir, "exists"))
	inPlace := Process{Dir: dir, Env: map[string]string{"FILE": "exists"}}

	cases := map[string]struct {
		probe Probe
		ready bool
	}{
		"HTTPOK":          {probe: Probe{HTTP: &HTTPProbe{URL: server.URL + "/ok"}}, ready: true},
		"HTTPCreated":     {probe: Probe{HTTP: &HTTPProbe{URL: server.URL + "/created"}}, ready: true},
		"HTTPUnavailable": {probe: Probe{HTTP: &HTTPProbe{URL: server.URL + "/unavailable"}}},
		"HTTPRedirect":    {probe: Probe{HTTP: &HTTPProbe{URL: server.URL + "/moved"}}},
		"HTTPRefused":     {probe: Probe{HTTP: &HTTPProbe{URL: "http://" + closed}}},
		"HTTPNoCAFile":    {probe: Probe{HTTP: &HTTPProbe{URL: server.URL, CAFile: filepath.Join(dir, "absent")}}},
		"HTTPEmptyCAFile": {probe: Probe{HTTP: &HTTPProbe{URL: server.URL, CAFile: filepath.Join(dir, "exists")}}},
		"TCPAccepts":      {probe: Probe{TCP: &TCPProbe{Address: server.Listener.Addr().String()}}, ready: true},
		"TCPRefused":      {probe: Probe{TCP: &TCPProbe{Address: closed}}},
		"FileExists":      {probe: Probe{File: &FileProbe{Path: filepath.Join(dir, "exists")}}, ready: true},
		"FileAbsent":      {probe: Probe{File: &FileProbe{Path: filepath.Join(dir, "absent")}}},
		"ExecSucceeds":    {probe: Probe{Exec: &ExecProbe{Command: []string{"sh", "-c", "test -e $FILE"}}}, ready: true},
		"ExecFails":       {probe: Probe{Exec: &ExecProbe{Command: []string{"false"}}}},
		"ExecNoBinary":    {probe: Probe{Exec: &ExecProbe{Command: []string{filepath.Join(dir, "absent")}}}},
	}
	th := newThread()
	defer th.close()
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			p := inPlace
			p.Ready = &tc.probe
			if tc.ready { // on a busy machine an attempt may take too long
				eventually(t, "the probe succeeds", func() bool { return p.probe(t.Context(), th) == nil })
				return
			}
			if err := p.probe(t.Context(), th); err == nil {
				t.Error("probe: got no error")
			}
		})
	}
}

func TestExecProbeIsKilledWhenItHangs(t *testing.T) {
	th := newThread()
	defer th.close()
	p := actor("a", roleStubborn, "")
	p.Ready = &Probe{Exec: &ExecProbe{Command: p.Command}}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := p.probe(ctx, th); err == nil {
		t.Error("probe that hangs: got no error")
	}
}

// TestFileProbeOfAnEarlierRun: a file from an earlier run does not make the process ready.
func TestFileProbeOfAnEarlierRun(t *testing.T) {
	dir := t.TempDir()
	p := withReadyFile(actor("a", rolePolite, ""), dir)
	touch(t, p.Ready.File.Path)
	r := start(t, dir, Plan{Processes: []Process{p}})
	r.waitLog("a", "polite")
	if _, err := os.Stat(p.Ready.File.Path); !os.IsNotExist(err) {
		t.Errorf("the readiness file after the start: %v, want it gone", err)
	}
}

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{key: key}
	a.cert = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.cert.Raw = a.sign(t, a.cert, key)
	return a
}

func (a *authority) sign(t *testing.T, cert *x509.Certificate, key *ecdsa.PrivateKey) []byte {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, cert, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// leaf returns a certificate for localhost and for clients, and its key.
func (a *authority) leaf(t *testing.T) (certPEM, keyPEM []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der := a.sign(t, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "leaf"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, key)
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
}

func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

func TestHTTPProbeFollowsRotatedFiles(t *testing.T) {
	dir := t.TempDir()
	ca, other := newAuthority(t), newAuthority(t)
	put := func(name string, content []byte) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	certPEM, keyPEM := ca.leaf(t)
	serving, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM(ca.pem())
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // the handshakes that must fail
	server.TLS = &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{serving},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients,
	}
	server.StartTLS()
	defer server.Close()

	foreignCert, foreignKey := other.leaf(t)
	p := Process{Ready: &Probe{HTTP: &HTTPProbe{
		URL: server.URL, CAFile: put("ca.crt", other.pem()),
		CertFile: put("tls.crt", foreignCert), KeyFile: put("tls.key", foreignKey),
	}}}
	if err := p.probe(t.Context(), nil); err == nil {
		t.Error("probe with another authority: got no error")
	}
	put("ca.crt", ca.pem())
	if err := p.probe(t.Context(), nil); err == nil {
		t.Error("probe with a client certificate of another authority: got no error")
	}
	put("tls.crt", certPEM)
	put("tls.key", keyPEM)
	// On a busy machine an attempt may take too long.
	eventually(t, "the probe ends in time", func() bool {
		err = p.probe(t.Context(), nil)
		slow, ok := errors.AsType[net.Error](err)
		return !ok || !slow.Timeout()
	})
	if err != nil {
		t.Errorf("probe with the right files: %v", err)
	}
}
