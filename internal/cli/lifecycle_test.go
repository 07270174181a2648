package cli

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle"
	"orrery.dev/orrery/internal/lifecycle/host"
)

// spec is a cluster of hosts, given as the members of its groups.
func spec(controlPlanes, workers []string, hosts ...string) *clusterv1alpha1.Provision {
	p := &clusterv1alpha1.Provision{RoleGroups: map[clusterv1alpha1.Role]clusterv1alpha1.HostNames{
		clusterv1alpha1.RoleControlPlane: controlPlanes, clusterv1alpha1.RoleWorker: workers,
	}}
	for _, h := range hosts {
		p.Hosts = append(p.Hosts, clusterv1alpha1.Host{Name: h})
	}
	return p
}

func TestWithHosts(t *testing.T) {
	applied := spec([]string{"n1"}, []string{"n[1:2]"}, "n1", "n2")
	applied.Kubernetes.Version = "v1.36.1"
	file := spec([]string{"n[1:3]"}, []string{"n2", "n4"}, "n1", "n2", "n3", "n4")
	file.Kubernetes.Version = "v1.36.3"
	file.Hosts[0].Password = "new"
	for name, tc := range map[string]struct {
		names     []string
		want      *clusterv1alpha1.Provision
		wantAdded []string
		wantErr   string
	}{
		"All": {
			want:      spec([]string{"n1", "n3"}, []string{"n1", "n2", "n4"}, "n1", "n2", "n3", "n4"),
			wantAdded: []string{"n3", "n4"},
		},
		"Some": {
			names:     []string{"n4"},
			want:      spec([]string{"n1"}, []string{"n1", "n2", "n4"}, "n1", "n2", "n4"),
			wantAdded: []string{"n4"},
		},
		"ThereAlready": {names: []string{"n1"}, wantErr: "host n1 is part of the cluster already"},
		"NotInTheFile": {names: []string{"n9"}, wantErr: "the file has no host n9"},
	} {
		t.Run(name, func(t *testing.T) {
			got, added, err := withHosts(applied, file, tc.names)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Fatalf("error %v, want %q", err, tc.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			// Nothing but the hosts is taken from the file, and of those that are there how they are reached.
			tc.want.Kubernetes.Version, tc.want.Hosts[0].Password = "v1.36.1", "new"
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("spec (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.wantAdded, added); diff != "" {
				t.Errorf("added (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWithoutHosts(t *testing.T) {
	applied := spec([]string{"n[1:2]"}, []string{"n[2:4]"}, "n1", "n2", "n3", "n4")
	for name, tc := range map[string]struct {
		names   []string
		want    *clusterv1alpha1.Provision
		wantErr string
	}{
		"Worker":          {names: []string{"n3"}, want: spec([]string{"n1", "n2"}, []string{"n2", "n4"}, "n1", "n2", "n4")},
		"BothRoles":       {names: []string{"n2"}, want: spec([]string{"n1"}, []string{"n3", "n4"}, "n1", "n3", "n4")},
		"NotThere":        {names: []string{"n9"}, wantErr: "host n9 is not part of cluster oak, which has n1, n2, n3, n4"},
		"NoControlPlanes": {names: []string{"n1", "n2"}, wantErr: "has no control plane"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := withoutHosts("oak", &lifecycle.State{Applied: applied}, tc.names)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Fatalf("error %v, want %q", err, tc.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("spec (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTarget(t *testing.T) {
	secret := &clusterv1alpha1.SecretReference{Namespace: "a", Name: "b"}
	for name, tc := range map[string]struct {
		host    clusterv1alpha1.Host
		want    host.Target
		wantErr string
	}{
		"Direct": {
			host: clusterv1alpha1.Host{
				Name: "n1", Address: "10.0.0.1", Port: 2222, User: "admin", Password: "p", SudoPassword: "s", PrivateKey: "k", PrivateKeyPath: "/k", Timeout: 5,
			},
			want: host.Target{
				Name: "n1", Address: "10.0.0.1", Port: 2222, User: "admin", Password: "p", SudoPassword: "s", PrivateKey: "k", PrivateKeyPath: "/k", Timeout: 5 * time.Second,
			},
		},
		"BastionWithTheHostsCredentials": {
			host: clusterv1alpha1.Host{Name: "n1", Address: "10.0.0.1", User: "admin", PrivateKey: "k", Bastion: &clusterv1alpha1.Bastion{Address: "192.0.2.1", Port: 22}},
			want: host.Target{
				Name: "n1", Address: "10.0.0.1", User: "admin", PrivateKey: "k",
				Bastion: &host.Target{Name: "192.0.2.1", Address: "192.0.2.1", Port: 22, User: "admin", PrivateKey: "k"},
			},
		},
		"BastionWithItsOwn": {
			host: clusterv1alpha1.Host{Name: "n1", Address: "10.0.0.1", Password: "p", Bastion: &clusterv1alpha1.Bastion{Address: "192.0.2.1", User: "jump", PrivateKeyPath: "/j"}},
			want: host.Target{
				Name: "n1", Address: "10.0.0.1", Password: "p",
				Bastion: &host.Target{Name: "192.0.2.1", Address: "192.0.2.1", User: "jump", PrivateKeyPath: "/j"},
			},
		},
		"SecretOfAHub": {
			host:    clusterv1alpha1.Host{Name: "n1", SecretRef: secret},
			wantErr: "secretRef names a Secret",
		},
		"SecretOfAHubForTheBastion": {
			host:    clusterv1alpha1.Host{Name: "n1", Bastion: &clusterv1alpha1.Bastion{SecretRef: secret}},
			wantErr: "bastion.secretRef names a Secret",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := target(t.Context(), tc.host)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Fatalf("error %v, want %q", err, tc.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			// Secrets print as one another: they are compared as what they are.
			same := cmp.Comparer(func(a, b host.Secret) bool { return string(a) == string(b) })
			if diff := cmp.Diff(tc.want, got, same, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("target (-want +got):\n%s", diff)
			}
		})
	}
}

func TestExternalEtcd(t *testing.T) {
	dir := t.TempDir()
	ca := filepath.Join(dir, "ca.crt")
	if err := os.WriteFile(ca, []byte("authority"), 0o600); err != nil {
		t.Fatal(err)
	}
	keys, err := externalEtcd(t.Context(), clusterv1alpha1.ExternalEtcd{CAFile: ca})
	if err != nil {
		t.Fatal(err)
	}
	if string(keys.CA) != "authority" || keys.Key != nil {
		t.Errorf("got authority %q and key %q", keys.CA, keys.Key)
	}
	if _, err := externalEtcd(t.Context(), clusterv1alpha1.ExternalEtcd{KeyFile: filepath.Join(dir, "none")}); err == nil || !strings.Contains(err.Error(), "etcd.external.keyFile") {
		t.Errorf("error %v does not name the field", err)
	}
}

func TestAgentFiles(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH]
	agents, err := findAgents(nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := agents.file(runtime.GOARCH); err != nil || got != self {
		t.Errorf("for this architecture: %q, %v; want %q", got, err, self)
	}
	if _, err := agents.file(other); err == nil || !strings.Contains(err.Error(), "orrery-linux-"+other) || !strings.Contains(err.Error(), "--agent") {
		t.Errorf("for another architecture: error %v does not say how to get one", err)
	}
	given, err := findAgents([]string{self})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := given.file(runtime.GOARCH); err != nil || got != self {
		t.Errorf("given: %q, %v; want %q", got, err, self)
	}
}

func TestFetch(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/net.yaml" {
			http.NotFound(w, r)
			return
		}
		w.Write([]byte("kind: List"))
	}))
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "net.yaml")
	if err := os.WriteFile(file, []byte("kind: List"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct{ location, want, wantErr string }{
		"URL":       {location: server.URL + "/net.yaml", want: "kind: List"},
		"File":      {location: file, want: "kind: List"},
		"NotFound":  {location: strings.Replace(server.URL, "http://", "http://me:hunter2@", 1) + "/none", wantErr: "404"},
		"NoFile":    {location: file + ".none", wantErr: "no such file"},
		"NoNetwork": {location: "http://127.0.0.1:1/net.yaml", wantErr: "name a file of this machine"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := fetch(t.Context(), tc.location)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) || strings.Contains(err.Error(), "hunter2") {
					t.Fatalf("error %v, want %q", err, tc.wantErr)
				}
				return
			}
			if err != nil || string(got) != tc.want {
				t.Errorf("got %q, %v; want %q", got, err, tc.want)
			}
		})
	}
}
