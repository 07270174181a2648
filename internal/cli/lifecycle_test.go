package cli

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/host"
	"orrery.dev/orrery/internal/testenv"
)

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
			got, err := environment{}.Target(t.Context(), tc.host)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Fatalf("error %v, want %q", err, tc.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			// All Secrets print alike, so they are compared as strings.
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
	keys, err := environment{}.ExternalEtcd(t.Context(), clusterv1alpha1.ExternalEtcd{CAFile: ca})
	if err != nil {
		t.Fatal(err)
	}
	if string(keys.CA) != "authority" || keys.Key != nil {
		t.Errorf("got authority %q and key %q", keys.CA, keys.Key)
	}
	if _, err := (environment{}).ExternalEtcd(t.Context(), clusterv1alpha1.ExternalEtcd{KeyFile: filepath.Join(dir, "none")}); err == nil || !strings.Contains(err.Error(), "etcd.external.keyFile") {
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
	beside := filepath.Join(filepath.Dir(self), "orrery-agent-linux-"+other)
	if _, err := (environment{agents: agents}).Agent(other); err == nil || !strings.Contains(err.Error(), beside) || !strings.Contains(err.Error(), "--agent") {
		t.Errorf("error %v does not say how to get one", err)
	}
	if err := os.WriteFile(beside, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(beside) })
	if got, err := (environment{agents: agents}).Agent(other); err != nil || got != beside {
		t.Errorf("beside: %q, %v; want %q", got, err, beside)
	}
	testenv.Programs()
	agent := filepath.Join(t.TempDir(), "agent")
	build := exec.Command("go", "build", "-o", agent, "orrery.dev/orrery/cmd/orrery-agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+runtime.GOARCH)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the agent: %v\n%s", err, out)
	}
	given, err := findAgents([]string{agent})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := (environment{agents: given}).Agent(runtime.GOARCH); err != nil || got != agent {
		t.Errorf("given: %q, %v; want %q", got, err, agent)
	}
	if _, err := findAgents([]string{self}); err == nil || !strings.Contains(err.Error(), "is not the agent of hosts") {
		t.Errorf("given another program: %v", err)
	}
}

// TestPathsInFiles: the file of a cluster may name manifests and charts of this machine.
func TestPathsInFiles(t *testing.T) {
	f := engineFlags{stateFlags: stateFlags{dir: t.TempDir()}, hostKeyChecking: acceptNew}
	if e, err := f.engine("oak", newRunProgress(io.Discard, false)); err != nil || !e.Local {
		t.Errorf("paths are refused (%v)", err)
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
	for name, tc := range map[string]struct{ location, want, wantErr string }{
		"URL":       {location: server.URL + "/net.yaml", want: "kind: List"},
		"NotFound":  {location: strings.Replace(server.URL, "http://", "http://me:hunter2@", 1) + "/none", wantErr: "404"},
		"NoNetwork": {location: "http://127.0.0.1:1/net.yaml", wantErr: "name a file of this machine"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := environment{}.Fetch(t.Context(), tc.location)
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

// TestCommandOfPlan: the command printed under a plan repeats it with all flags that the user set.
// Under the plan of a rollback it is a rollback, not an apply of the file with the change.
func TestCommandOfPlan(t *testing.T) {
	for given, want := range map[string]string{
		"cluster apply -f oak.yaml --dry-run":                           "orrery cluster apply -f oak.yaml --plan abc",
		"cluster rollback oak --dry-run -v -o json":                     "orrery cluster rollback oak --plan abc",
		"cluster apply --dry-run --plan old --yes --filename -":         "orrery cluster apply -f - --plan abc",
		"cluster delete-node oak oak-2 --forget-unreachable --dry-run":  "orrery cluster delete-node oak oak-2 --forget-unreachable --plan abc",
		"cluster create -f my$file --join --kubeconfig=hub --dry-run":   "orrery cluster create -f 'my$file' --join --kubeconfig hub --plan abc",
		"cluster create -f oak.yaml --join=false --state-dir it's":      `orrery cluster create -f oak.yaml --join=false --state-dir 'it'\''s' --plan abc`,
		"cluster apply -f a --agent x --agent y,z --catalog c --source": "orrery cluster apply --agent x --agent y,z --catalog c -f a --source '' --plan abc",
		"cluster apply -f a --known-hosts=k --host-key-checking strict": "orrery cluster apply -f a --host-key-checking strict --known-hosts k --plan abc",
		"cluster apply -f a --halt-after 2 --pause-between 90s":         "orrery cluster apply -f a --halt-after 2 --pause-between 1m30s --plan abc",
		"cluster apply -f a --source https://me:secret@mirror/x":        "orrery cluster apply -f a --source https://me:xxxxx@mirror/x --plan abc",
		"cluster add-node -f a --hosts b,c":                             "orrery cluster add-node -f a --hosts b,c --plan abc",
	} {
		args := strings.Split(given, " ")
		if args[len(args)-1] == "--source" {
			args = append(args, "")
		}
		cmd, flags, err := newRoot(streams{}).Find(args)
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.ParseFlags(flags); err != nil {
			t.Fatal(err)
		}
		var more []string
		if cmd.Name() == "add-node" {
			more = []string{"--hosts", "b,c"}
		}
		if got := commandOfPlan(cmd, cmd.CommandPath(), "abc", more...); got != want {
			t.Errorf("after %s the command is %q, want %q", given, got, want)
		}
	}
}
