package host

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
)

// serverLine returns the known_hosts line of the server.
func serverLine() string {
	return knownhosts.Line([]string{fmt.Sprintf("127.0.0.1:%d", server.port)}, server.hostKey) + "\n"
}

func read(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func TestTrustOnFirstUse(t *testing.T) {
	cases := map[string]struct{ before, after string }{
		"Absent":          {"", serverLine()},
		"Known":           {serverLine(), serverLine()},
		"LineWithoutEnd":  {"# kept", "# kept\n" + serverLine()},
		"OtherHostsStays": {"# kept\n", "# kept\n" + serverLine()},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "new", "known_hosts")
			if tc.before != "" {
				if err := errors.Join(os.Mkdir(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(tc.before), 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			// Concurrent first dials of independent dialers.
			var wg sync.WaitGroup
			for range 20 {
				wg.Go(func() {
					d := &SSH{KnownHosts: file}
					c, err := d.Dial(t.Context(), server.target("root"))
					if err != nil {
						t.Error(err)
						return
					}
					c.Close()
				})
			}
			wg.Wait()
			if diff := cmp.Diff(tc.after, read(t, file)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			entries, err := os.ReadDir(filepath.Dir(file))
			if err != nil || len(entries) != 1 {
				t.Errorf("left behind: %v, %v", entries, err)
			}
		})
	}
}

func TestStrict(t *testing.T) {
	file := filepath.Join(t.TempDir(), "known_hosts")
	d := &SSH{KnownHosts: file, HostKeys: Strict}
	_, err := d.Dial(t.Context(), server.target("root"))
	var unknown *UnknownHostKey
	if !errors.As(err, &unknown) {
		t.Fatalf("want UnknownHostKey, got %v", err)
	}
	want := &UnknownHostKey{
		Host: "cp-1", File: file, Line: strings.TrimSpace(serverLine()), Got: ssh.FingerprintSHA256(server.hostKey),
	}
	if diff := cmp.Diff(want, unknown); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got := read(t, file); got != "" {
		t.Errorf("recorded %q", got)
	}
	// The advice in the error works.
	if err := os.WriteFile(file, []byte(unknown.Line), 0o600); err != nil {
		t.Fatal(err)
	}
	connect(t, d, server.target("root"))
}

// TestUsersKnownHosts checks that ~/.ssh/known_hosts is read, too, and not written if there is
// another file.
func TestUsersKnownHosts(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	if err := errors.Join(os.Mkdir(home+"/.ssh", 0o700), os.WriteFile(home+"/.ssh/known_hosts", []byte(serverLine()), 0o600)); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "known_hosts")
	connect(t, &SSH{KnownHosts: file, HostKeys: Strict}, server.target("root"))
	if got := read(t, file); got != "" {
		t.Errorf("recorded %q", got)
	}
	connect(t, &SSH{HostKeys: Strict}, server.target("root"))
}

func TestHostKeyChanged(t *testing.T) {
	_, other, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", server.port)
	for name, policy := range map[string]KeyPolicy{"Default": "", "TrustOnFirstUse": TrustOnFirstUse, "Strict": Strict} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "known_hosts")
			content := "# first\n" + knownhosts.Line([]string{address}, other) + "\n"
			if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			d := &SSH{KnownHosts: file, HostKeys: policy}
			_, err := d.Dial(t.Context(), server.target("root"))
			var changed *HostKeyChanged
			if !errors.As(err, &changed) {
				t.Fatalf("want HostKeyChanged, got %v", err)
			}
			want := &HostKeyChanged{
				Host: "cp-1", Address: knownhosts.Normalize(address), File: file, Line: 2,
				Want: ssh.FingerprintSHA256(other), Got: ssh.FingerprintSHA256(server.hostKey),
			}
			if diff := cmp.Diff(want, changed); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if got := read(t, file); got != content {
				t.Errorf("the file is now %q", got)
			}
			// The advice in the error works.
			_, command, _ := strings.Cut(err.Error(), "run: ")
			if out, err := exec.Command("sh", "-c", command).CombinedOutput(); err != nil {
				t.Fatalf("%s: %v: %s", command, err, out)
			}
			if got := read(t, file); got != "# first\n" {
				t.Errorf("the file is now %q", got)
			}
		})
	}
}

// TestKnownKeyPreferred checks that a host with several keys is asked for the known one. The
// library prefers another one.
func TestKnownKeyPreferred(t *testing.T) {
	file := filepath.Join(t.TempDir(), "known_hosts")
	if err := os.WriteFile(file, []byte(serverLine()), 0o600); err != nil {
		t.Fatal(err)
	}
	keys, err := (&SSH{KnownHosts: file}).hostKeys(server.target("root"))
	if err != nil {
		t.Fatal(err)
	}
	algorithms, err := keys.algorithms()
	if err != nil {
		t.Fatal(err)
	}
	plain := slices.DeleteFunc(ssh.SupportedAlgorithms().HostKeys, func(a string) bool { return strings.Contains(a, "-cert-") })
	if algorithms[0] != ssh.KeyAlgoED25519 || len(algorithms) != len(plain) {
		t.Errorf("got %q", algorithms)
	}
}

func TestBrokenKnownHosts(t *testing.T) {
	file := filepath.Join(t.TempDir(), "known_hosts")
	if err := os.WriteFile(file, []byte("\nnonsense\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := (&SSH{KnownHosts: file}).Dial(t.Context(), server.target("root"))
	if err == nil || !strings.Contains(err.Error(), file+":2") || !strings.Contains(err.Error(), "correct or remove that line") {
		t.Errorf("got %v", err)
	}
}

// certified runs an SSH server with a host certificate. It runs no commands.
func certified(t *testing.T, authority ssh.Signer, principal string) (address string, plain ssh.PublicKey) {
	t.Helper()
	private, public, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	key, err := ssh.ParsePrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert := &ssh.Certificate{
		Key: public, CertType: ssh.HostCert, ValidPrincipals: []string{principal}, ValidBefore: ssh.CertTimeInfinity,
	}
	if err := cert.SignCert(rand.Reader, authority); err != nil {
		t.Fatal(err)
	}
	withCert, err := ssh.NewCertSigner(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	config := &ssh.ServerConfig{NoClientAuth: true}
	config.AddHostKey(withCert)
	config.AddHostKey(key)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				if conn, _, requests, err := ssh.NewServerConn(c, config); err == nil {
					go ssh.DiscardRequests(requests)
					_ = conn.Wait()
				}
			}()
		}
	}()
	return listener.Addr().String(), public
}

// TestHostCertificates tests hosts whose sshd shows a certificate first.
func TestHostCertificates(t *testing.T) {
	authority, other := newSigner(t), newSigner(t)
	cases := map[string]struct {
		policy    KeyPolicy
		known     ssh.PublicKey // known authority, if any
		principal string
		err       string
		records   bool
	}{
		"NoAuthorityIsKnown":     {policy: TrustOnFirstUse, principal: "127.0.0.1", records: true},
		"NoAuthorityIsKnownHere": {policy: Strict, principal: "127.0.0.1", err: "is unknown"},
		"Signed":                 {policy: Strict, known: authority.PublicKey(), principal: "127.0.0.1"},
		"SignedPinned":           {policy: Pinned, known: authority.PublicKey(), principal: "127.0.0.1"},
		"AnotherAuthority":       {policy: Strict, known: other.PublicKey(), principal: "127.0.0.1", err: "host cp-1: its certificate is refused: "},
		"AnotherHosts":           {policy: TrustOnFirstUse, known: authority.PublicKey(), principal: "10.0.0.1", err: "host cp-1: its certificate is refused: "},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			address, plain := certified(t, authority, tc.principal)
			before := ""
			if tc.known != nil {
				before = "# ours\n@cert-authority " + knownhosts.Line([]string{address}, tc.known) + "\n"
			}
			file := filepath.Join(t.TempDir(), "known_hosts")
			if err := os.WriteFile(file, []byte(before), 0o600); err != nil {
				t.Fatal(err)
			}
			d := &SSH{KnownHosts: file, HostKeys: tc.policy}
			c, err := d.Dial(t.Context(), at(t, address, before))
			switch {
			case err == nil && tc.err == "":
				c.Close()
			case err == nil || tc.err == "" || !strings.Contains(err.Error(), tc.err):
				t.Fatalf("got %v, want %q", err, tc.err)
			}
			after := before
			if tc.records {
				after += knownhosts.Line([]string{address}, plain) + "\n"
			}
			if diff := cmp.Diff(after, read(t, file)); diff != "" {
				t.Errorf("the file (-want +got):\n%s", diff)
			}
		})
	}
}

// at returns a target with its own known keys.
func at(t *testing.T, address, knownHosts string) Target {
	t.Helper()
	ip, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return Target{
		Name: "cp-1", Address: ip, Port: number, Password: password, KnownHosts: knownHosts, KnownHostsIn: "key known_hosts of the Secret",
		Timeout: patience,
	}
}

func newSigner(t *testing.T) ssh.Signer {
	t.Helper()
	private, _, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.ParsePrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return signer
}

func TestPinned(t *testing.T) {
	address := fmt.Sprintf("127.0.0.1:%d", server.port)
	other := newSigner(t).PublicKey()
	cases := map[string]struct{ known, err string }{
		"Known":        {known: "# ours\n" + serverLine()},
		"Hashed":       {known: knownhosts.HashHostname(knownhosts.Normalize(address)) + strings.TrimPrefix(serverLine(), knownhosts.Normalize(address))},
		"Empty":        {err: fmt.Sprintf("host cp-1: key known_hosts of the Secret has no key of [127.0.0.1]:%d, so it is not dialled", server.port)},
		"AnotherHost":  {known: knownhosts.Line([]string{"10.0.0.1"}, server.hostKey), err: "so it is not dialled"},
		"AnotherKey":   {known: "\n" + knownhosts.Line([]string{address}, other), err: "but key known_hosts of the Secret:2 knows"},
		"Revoked":      {known: serverLine() + "@revoked * " + strings.SplitN(serverLine(), " ", 2)[1], err: "is revoked by key known_hosts of the Secret:2"},
		"NoKnownHosts": {known: "nonsense", err: "key known_hosts of the Secret:1: "},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Setenv("TMPDIR", t.TempDir())
			target := at(t, address, tc.known)
			c, err := (&SSH{HostKeys: Pinned}).Dial(t.Context(), target)
			switch {
			case err == nil && tc.err == "":
				c.Close()
			case err == nil || tc.err == "" || !strings.Contains(err.Error(), tc.err):
				t.Errorf("got %v, want %q", err, tc.err)
			}
			if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
}
