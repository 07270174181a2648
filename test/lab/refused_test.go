package lab

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"orrery.dev/orrery/internal/lab"
	"orrery.dev/orrery/test/lab/site"
)

// TestRefusedOnHosts tries to create clusters on unsuitable hosts. Each error names the host
// and what to do, and no host is changed.
func TestRefusedOnHosts(t *testing.T) {
	t.Parallel()
	s := newTestbed(t, 2)
	one, two := s.Host("host-1"), s.Host("host-2")
	single := func() string {
		return s.File(site.Layout{Hosts: []*lab.Host{one}, ControlPlanes: []string{"host-1"}, Worker: []string{"host-1"}})
	}
	pair := func() string {
		return s.File(site.Layout{Hosts: s.Hosts(), ControlPlanes: []string{"host-1"}, Worker: []string{"host-2"}})
	}
	replace := s.replaced
	key := "privateKeyPath: " + one.SSH().KeyFile
	run := func(h *lab.Host, argv ...string) {
		t.Helper()
		if _, err := h.Run(t.Context(), argv...); err != nil {
			t.Fatal(err)
		}
	}
	const wrong = "not-the-password-of-anyone"
	catalogue, err := os.ReadFile(s.Catalog)
	if err != nil {
		t.Fatal(err)
	}
	writeCatalogue := func(content []byte) {
		if err := os.WriteFile(s.Catalog, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}

	cases := map[string]struct {
		file  func() string
		given func()
		undo  func()
		// begun: the problem is found after the agent was installed, and delete removes the
		// agent.
		begun bool
		want  []string
	}{
		"Unreachable": {
			file: func() string {
				return replace(pair(), "timeout: 60", "timeout: 2")
			},
			given: two.Kill,
			undo: func() {
				if err := two.Start(t.Context()); err != nil {
					t.Fatal(err)
				}
			},
			want: []string{"host host-2: unreachable at " + two.Address + ":22: no answer within 2s", "check that the host is up"},
		},
		"WrongPassword": {
			file: func() string { return replace(single(), key, "user: operator\n      password: "+wrong) },
			want: []string{"host host-1: login of operator refused", "give a password or a key that the host accepts"},
		},
		"SudoWithoutPassword": {
			file: func() string { return replace(single(), key, key+"\n      user: operator") },
			want: []string{"host host-1: user operator: sudo asks for a password", "NOPASSWD"},
		},
		"SudoRefused": {
			file: func() string { return replace(single(), key, key+"\n      user: operator\n      sudoPassword: "+wrong) },
			want: []string{"host host-1: user operator: sudo does not accept the password", "correct the sudo password"},
		},
		"WrongArchitecture": {
			file: func() string { return replace(single(), key, key+"\n      arch: arm64") },
			want: []string{"host host-1: the architecture is amd64", "arm64", "correct hosts[].arch"},
		},
		"PortTaken": {
			file:  single,
			given: func() { run(one, "sh", "-c", "busybox httpd -p 6443 -h /tmp") },
			undo:  func() { run(one, "pkill", "-f", "busybox httpd") },
			want:  []string{"host host-1: port 6443, which kube-apiserver needs, is taken by busybox", "spec.provision.controlPlaneEndpoint.port"},
		},
		"NoSpace": {
			file:  single,
			given: func() { run(one, "mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", "/var/lib") },
			undo:  func() { run(one, "umount", "/var/lib") },
			want:  []string{"host host-1: /var/lib has 64 MiB free", "mount a larger file system"},
		},
		"Leftovers": {
			file: single,
			given: func() {
				run(one, "sh", "-c", "mkdir -p /etc/kubernetes/manifests && touch /etc/kubernetes/manifests/etcd.yaml")
			},
			undo: func() { run(one, "rm", "-r", "/etc/kubernetes") },
			want: []string{"host host-1", "/etc/kubernetes/manifests/etcd.yaml", "kubeadm reset"},
		},
		"DigestMismatch": {
			file: single,
			given: func() {
				digest := regexp.MustCompile(`(kubelet/v1\.36\.3/\w+: sha256:)[0-9a-f]{64}`)
				writeCatalogue(digest.ReplaceAll(catalogue, []byte("${1}"+strings.Repeat("0", 64))))
			},
			undo:  func() { writeCatalogue(catalogue) },
			begun: true,
			want:  []string{"kubelet/v1.36.3/", strings.Repeat("0", 64), "the right digest into the catalogue"},
		},
		"UnknownVersion": {
			file: func() string { return replace(single(), "v1.36.3", "v1.99.0") },
			want: []string{"spec.provision.kubernetes.version", "v1.99.0", "the nearest are v1.36", "--catalog"},
		},
		"AncientVersion": {
			file: func() string { return replace(single(), "v1.36.3", "v1.12.1") },
			want: []string{"spec.provision.kubernetes.version", "v1.12.1", "or newer"},
		},
		"PlainHTTPWithoutDigest": {
			file: func() string { return replace(single(), "v1.36.3", "v1.36.999") },
			want: []string{"v1.36.999", s.Mirror() + "/dl.k8s.io/v1.36.999/", "use https", `digests["kubelet/v1.36.999/`},
		},
		"EvenEtcd": {
			file: func() string {
				return s.File(site.Layout{Hosts: s.Hosts(), ControlPlanes: []string{"host-1", "host-2"}})
			},
			want: []string{"spec.provision.roleGroups[etcd]: Invalid value: 2", "add one or leave one out"},
		},
		"OverlappingNetworks": {
			file: func() string {
				return s.File(site.Layout{
					Hosts: []*lab.Host{one}, ControlPlanes: []string{"host-1"}, Worker: []string{"host-1"},
					Extra: "    network: {kubePodsCIDR: 10.96.0.0/12, kubeServiceCIDR: 10.100.0.0/16}\n",
				})
			},
			want: []string{"spec.provision.network", "10.96.0.0/12", "10.100.0.0/16"},
		},
		"DuplicateAddress": {
			file: func() string { return replace(pair(), two.Address, one.Address) },
			want: []string{"spec.provision.hosts[host-2].address", one.Address, "host host-1 too", "give each host its own"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			file := c.file()
			if c.undo != nil {
				defer c.undo()
			}
			if c.given != nil {
				c.given()
			}
			before := s.present()
			out, err := s.Try("cluster", "create", "-f", file, "--yes", "--attempts", "1")
			if err == nil {
				t.Fatalf("it was not refused:\n%s", out)
			}
			for _, want := range c.want {
				if !strings.Contains(out, want) {
					t.Errorf("the message lacks %q:\n%s", want, out)
				}
			}
			s.noSecrets(out, wrong)
			if c.begun {
				s.Orrery("cluster", "delete", "oak", "--yes")
			}
			s.wantAs(before)
			if err := os.RemoveAll(s.State); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// replaced replaces text in the file of a cluster.
func (s *testbed) replaced(file, old, with string) string {
	s.T.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		s.T.Fatal(err)
	}
	if !strings.Contains(string(content), old) {
		s.T.Fatalf("%q is not in the file", old)
	}
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(string(content), old, with)), 0o600); err != nil {
		s.T.Fatal(err)
	}
	return file
}

// present returns snapshots of the hosts that are up.
func (s *testbed) present() map[string]lab.Snapshot {
	all := map[string]lab.Snapshot{}
	for _, h := range s.Hosts() {
		if h.PID() != 0 {
			all[h.Name] = s.snapshot(h)
		}
	}
	return all
}

// noSecrets checks that a secret is neither in the output nor in a record or a log. The state
// and the stored spec may contain secrets.
func (s *testbed) noSecrets(out, secret string) {
	s.T.Helper()
	if strings.Contains(out, secret) {
		s.T.Errorf("the output has a secret:\n%s", out)
	}
	err := filepath.WalkDir(s.State, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Base(path) == "state.json" {
			return err
		}
		content, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(content), secret) {
			s.T.Errorf("%s has a secret", path)
		}
		return err
	})
	if err != nil && !os.IsNotExist(err) {
		s.T.Error(err)
	}
}

// TestHostKeyChanged: the key of a host is trusted when it is first seen. Later, another key is
// refused.
func TestHostKeyChanged(t *testing.T) {
	t.Parallel()
	s := newTestbed(t, 1)
	h := s.Host("host-1")
	file := s.File(site.Layout{Hosts: s.Hosts(), ControlPlanes: []string{"host-1"}, Worker: []string{"host-1"}})
	if out, err := s.Try("cluster", "preflight", "-f", file, "--host-key-checking", "strict"); err == nil || !strings.Contains(out, "host-1") {
		t.Errorf("a key that is not known is not refused: %v\n%s", err, out)
	}
	s.Orrery("cluster", "preflight", "-f", file)
	if err := h.RotateHostKey(t.Context()); err != nil {
		t.Fatal(err)
	}
	out, err := s.Try("cluster", "create", "-f", file, "--yes")
	if err == nil || !strings.Contains(out, "host-1") || !strings.Contains(out, "ssh-keygen") {
		t.Errorf("a changed host key is not refused: %v\n%s", err, out)
	}
}
