package facts_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"orrery.dev/orrery/internal/lifecycle/facts"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/presence"
)

// shells are the shells that hosts may have.
var shells = map[string][]string{
	"Dash":    {"dash"},
	"Bash":    {"bash"},
	"BashSh":  {"bash", "--posix"},
	"Busybox": {"busybox", "sh"},
}

// etcdLog is the directory of etcd's write-ahead log in these tests.
const etcdLog = "/var/lib/etcd/member/wal"

// gather runs the script as the engine does, through the standard input of a shell.
func gather(t *testing.T, agent string, argv ...string) plan.Facts {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin = strings.NewReader(facts.Script(agent, etcdLog))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	asked := time.Now()
	output, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", argv, err, stderr.String())
	}
	if stderr.Len() > 0 {
		t.Errorf("%v complains: %s", argv, stderr.String())
	}
	f, err := facts.Parse(output, asked, time.Now())
	if err != nil {
		t.Fatalf("%v: %v\n%s", argv, err, output)
	}
	return f
}

func TestFactsOfThisMachine(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	port := listener.Addr().(*net.TCPAddr).Port
	hostname, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	var uname unix.Utsname
	if err := unix.Uname(&uname); err != nil {
		t.Fatal(err)
	}
	bootID, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	var disk unix.Statfs_t
	if err := unix.Statfs("/var/lib", &disk); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadDir("/var/lib")
	if err != nil {
		t.Fatal(err)
	}
	for name, argv := range shells {
		t.Run(name, func(t *testing.T) {
			f := gather(t, "/nonexistent", argv...)
			type known struct {
				UID                          int
				Hostname, BootID, Arch, Kern string
				CPUs                         int
			}
			want := known{os.Getuid(), hostname, strings.TrimSpace(string(bootID)), runtime.GOARCH, unix.ByteSliceToString(uname.Release[:]), runtime.NumCPU()}
			got := known{f.UID, f.Hostname, f.BootID, f.Arch, f.Kernel, f.CPUs}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if !slices.Contains(f.Listening, port) {
				t.Errorf("port %d is not among those listened on: %v", port, f.Listening)
			}
			if who := f.Listeners[port]; !strings.HasSuffix(who, "(pid "+strconv.Itoa(os.Getpid())+")") {
				t.Errorf("port %d is said to be of %q", port, who)
			}
			i := slices.IndexFunc(f.Links, func(l plan.Link) bool { return l.Name == "lo" })
			if i < 0 || !slices.Contains(f.Links[i].Addresses, "127.0.0.1/8") || f.Links[i].MTU < 1500 {
				t.Errorf("the loopback is not among %v", f.Links)
			}
			if !slices.Contains(f.Tools, "bash") || !slices.Contains(f.Controllers, "memory") || f.CgroupVersion == 0 {
				t.Errorf("tools %v, controllers %v, cgroup version %d", f.Tools, f.Controllers, f.CgroupVersion)
			}
			if f.MemoryBytes < 1<<28 || f.DiskFreeBytes == nil || *f.DiskFreeBytes <= 0 || *f.DiskFreeBytes > int64(disk.Blocks)*disk.Bsize {
				t.Errorf("memory %d, disk %v", f.MemoryBytes, f.DiskFreeBytes)
			}
			if f.Agent != "" || f.AgentError != "" {
				t.Errorf("an agent that is not there says %q %q", f.Agent, f.AgentError)
			}
			if off := f.ClockOffset.Abs(); off > f.RoundTrip/2+10*time.Millisecond {
				t.Errorf("our own clock is off by %s, round trip %s", f.ClockOffset, f.RoundTrip)
			}
		})
	}
	after, err := os.ReadDir("/var/lib")
	if err != nil {
		t.Fatal(err)
	}
	if len(before) != len(after) {
		t.Errorf("/var/lib had %v and has %v", before, after)
	}
}

// altered runs the script in its own namespaces. A preparation may write to /etc, /var/lib and /run
// first.
func altered(t *testing.T, preparation, agent string, argv ...string) plan.Facts {
	t.Helper()
	setup := filepath.Join(t.TempDir(), "setup")
	content := `set -eu
for dir in /var/lib /run /etc; do mount -t tmpfs empty $dir; done
` + preparation + `
exec "$@"
`
	if err := os.WriteFile(setup, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	unshare := []string{"unshare", "--mount", "--pid", "--net", "--uts", "--fork", "--kill-child", "--mount-proc"}
	if os.Getuid() != 0 {
		unshare = append(unshare, "--map-root-user")
	}
	return gather(t, agent, append(append(unshare, "dash", setup), argv...)...)
}

// kept returns a record in the agent's stored form.
func kept(value string) string {
	value = strings.ReplaceAll(value, "\n", "")
	sum := sha256.Sum256([]byte(value))
	return `{"checksum":"sha256:` + hex.EncodeToString(sum[:]) + `","value":` + value + `}`
}

func TestFactsOfAlteredHosts(t *testing.T) {
	dir := t.TempDir()
	agent := filepath.Join(dir, "it's an agent")
	write := func(content string) func(t *testing.T) {
		return func(t *testing.T) {
			t.Helper()
			if err := os.WriteFile(agent, []byte("#!/bin/sh\n"+content), 0o700); err != nil {
				t.Fatal(err)
			}
		}
	}
	blob := strings.Repeat("0123456789abcdef", 4)
	cases := map[string]struct {
		prepare     string
		agent       func(t *testing.T)
		want        plan.Facts
		wantFields  []string
		allLeftover bool
	}{
		"Debian": {
			prepare: `printf 'PRETTY_NAME="Debian"\nVERSION_ID="12"\nID=debian\n' >/etc/os-release
echo 3d1219c7c4c5404aaa1f6d2a48adfda4 >/etc/machine-id; hostname node1`,
			want:       plan.Facts{Hostname: "node1", MachineID: "3d1219c7c4c5404aaa1f6d2a48adfda4", OS: "debian", OSVersion: "12"},
			wantFields: []string{"Hostname", "MachineID", "OS", "OSLike", "OSVersion", "Listening", "Leftovers", "Init", "Firewall"},
		},
		"Rocky": {
			prepare:    `printf 'ID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.4"\n' >/etc/os-release; mkdir -p /run/systemd/system`,
			want:       plan.Facts{OS: "rocky", OSLike: []string{"rhel", "centos", "fedora"}, OSVersion: "9.4", Init: "systemd"},
			wantFields: []string{"OS", "OSLike", "OSVersion", "Init"},
		},
		"Nothing": {
			want:       plan.Facts{},
			wantFields: []string{"MachineID", "Init", "Swaps", "SELinux", "Firewall", "Listening", "Blobs"},
		},
		"Swap": {
			prepare: `printf 'Filename\tType\tSize\tUsed\tPriority\n/dev/sda2 partition 1 0 -2\n/swap\\040file file 1 0 -3\n' >/run/swaps
mount --bind /run/swaps /proc/swaps`,
			want:       plan.Facts{Swaps: []string{"/dev/sda2", `/swap\040file`}},
			wantFields: []string{"Swaps"},
		},
		"Firewall": {
			prepare:    `mkdir /etc/ufw; printf '# on\nENABLED=yes\n' >/etc/ufw/ufw.conf`,
			want:       plan.Facts{Firewall: "ufw"},
			wantFields: []string{"Firewall"},
		},
		"Resolver": {
			prepare:    `echo nameserver 127.0.0.53 >/etc/resolv.conf; mkdir -p /run/systemd/resolve; echo nameserver 10.0.0.1 >/run/systemd/resolve/resolv.conf`,
			want:       plan.Facts{ResolvConf: "/run/systemd/resolve/resolv.conf"},
			wantFields: []string{"ResolvConf"},
		},
		"Leftovers": {
			prepare: `mkdir -p /etc/kubernetes/manifests /etc/kubernetes/pki /var/lib/etcd/member /etc/cni/net.d /opt/orrery/bin 2>/dev/null || :
touch /etc/kubernetes/manifests/etcd.yaml /etc/kubernetes/admin.conf /etc/cni/net.d/10-calico.conflist
cp "$(command -v sleep)" /run/dockerd; mount -o remount,exec /run; /run/dockerd 60 >/dev/null 2>&1 &
until [ "$(cat /proc/$!/comm)" = dockerd ]; do :; done`,
			want: plan.Facts{Leftovers: []string{
				"/etc/cni/net.d/10-calico.conflist", "/etc/kubernetes/admin.conf", "/etc/kubernetes/manifests/etcd.yaml",
				"/etc/kubernetes/pki", "/var/lib/etcd/member", "process dockerd (pid PID, /run/dockerd)",
			}},
			wantFields: []string{"Leftovers"},
		},
		// Files of others beside the agent.
		"StrangersInOpt": {
			prepare:    `mount -t tmpfs empty /opt; mkdir -p /opt/orrery/bin /opt/orrery/notes; touch /opt/orrery/bin/orrery /opt/orrery/bin/orrery.incoming /opt/orrery/bin/tool`,
			want:       plan.Facts{Traces: []string{"/opt/orrery"}, Leftovers: []string{"/opt/orrery/bin/tool", "/opt/orrery/notes"}},
			wantFields: []string{"Leftovers", "Traces"},
		},
		"Ours": {
			prepare: `mkdir -p /etc/kubernetes/pki /var/lib/orrery/node/blobs/sha256; touch /var/lib/orrery/node/blobs/sha256/` + blob + ` /var/lib/orrery/node/blobs/sha256/incoming /var/lib/orrery/node/blobs/sha256/` + blob + `.part`,
			agent: write(`[ "$*" = "node observe" ] && echo a warning >&2 && printf '{"cluster": "alpha",\n"clusterID": "c1",
"steps": [{"id": "kubelet/unit", "hash": "abc", "complete": true}]}'`),
			want: plan.Facts{
				Blobs:   []string{"sha256:" + blob},
				Applied: plan.Applied{Cluster: "alpha", ClusterID: "c1", Steps: []plan.AppliedStep{{ID: "kubelet/unit", Hash: "abc", Complete: true}}},
			},
			wantFields: []string{"Leftovers", "Blobs", "Applied", "AgentError"},
		},
		// The agent reports its digest, so its file is not read each time.
		"AgentThatKnowsItself": {
			agent: write(`echo '{"protocol":7,"agent":"sha256:` + blob + `","cluster":"alpha","clusterID":"c1"}'`),
			want: plan.Facts{Agent: "sha256:" + blob, Applied: plan.Applied{
				Protocol: 7, Agent: "sha256:" + blob, Cluster: "alpha", ClusterID: "c1",
			}},
			wantFields: []string{"Agent", "Applied", "AgentError"},
		},
		"AgentOfANewerProtocol": {
			agent:      write(`echo '{"protocol":7,"clusterID":["c1"]}'`),
			want:       plan.Facts{Applied: plan.Applied{Protocol: 7}},
			wantFields: []string{"Applied"},
		},
		"AgentThatFails": {
			prepare:    `mkdir -p /etc/kubernetes/pki`,
			agent:      write(`echo 'state.json is damaged' >&2; echo '{"cluster": "alpha", "clusterID": "c1"}'; exit 3`),
			want:       plan.Facts{Leftovers: []string{"/etc/kubernetes/pki"}, AgentError: "state.json is damaged"},
			wantFields: []string{"Leftovers", "Applied", "AgentError"},
		},
		"AgentThatRambles": {
			agent:      write(`echo '{"cluster": '`),
			want:       plan.Facts{AgentError: "read what the agent says: unexpected end of JSON input"},
			wantFields: []string{"Applied", "AgentError"},
		},
		"RecordWithoutAgent": {
			prepare: `mount -t tmpfs empty /opt; mkdir -p /etc/kubernetes/pki /var/lib/orrery/node; printf '%s' '` + kept(`{"cluster":"alpha","clusterID":"c1","version":"v1.36.3",
"steps":[{"step":{"id":"kubelet/unit","unit":{"content":"a\nb"}},"hash":"abc","complete":true}],"made":["/opt"]}`) + `' >/var/lib/orrery/node/state.json`,
			want: plan.Facts{
				Recorded: true, Traces: []string{"/var/lib/orrery"},
				Applied: plan.Applied{Cluster: "alpha", ClusterID: "c1", Version: "v1.36.3", Steps: []plan.AppliedStep{
					{ID: "kubelet/unit", Hash: "abc", Complete: true, Drift: "not known: the agent on the host is missing or does not answer"},
				}},
			},
			wantFields: []string{"Leftovers", "Applied", "AgentError", "Recorded", "Traces"},
		},
		"RecordHalfWritten": {
			prepare: `mkdir -p /var/lib/orrery/node; cd /var/lib/orrery/node; echo '{"checksum":"sha256:00","va' >state.json
echo '` + kept(`{"cluster":"alpha","clusterID":"c1"}`) + `' >state.json.bak`,
			want:       plan.Facts{Recorded: true, Applied: plan.Applied{Cluster: "alpha", ClusterID: "c1"}},
			wantFields: []string{"Applied", "AgentError", "Recorded"},
		},
		"RecordDamaged": {
			prepare: `mkdir -p /etc/kubernetes/pki /var/lib/orrery/node; echo '{"checksum":"sha256:00","value":{"cluster":"alpha","clusterID":"c1"}}' >/var/lib/orrery/node/state.json`,
			want: plan.Facts{
				Recorded: true, Leftovers: []string{"/etc/kubernetes/pki"}, AgentError: "read the host's record: its checksum does not fit",
			},
			wantFields: []string{"Leftovers", "Applied", "AgentError", "Recorded"},
		},
		"RecordAndAnAgentThatFails": {
			prepare: `mkdir -p /var/lib/orrery/node; echo '` + kept(`{"cluster":"alpha","clusterID":"c1"}`) + `' >/var/lib/orrery/node/state.json`,
			agent:   write(`echo 'Exec format error' >&2; exit 126`),
			want: plan.Facts{
				Recorded: true, Applied: plan.Applied{Cluster: "alpha", ClusterID: "c1"}, AgentError: "Exec format error",
			},
			wantFields: []string{"Applied", "AgentError", "Recorded"},
		},
		"EtcdLog": {
			prepare: `mkdir -p ` + etcdLog + `; touch ` + etcdLog + `/0000000000000000-0000000000000000.wal`,
			want:    plan.Facts{EtcdLog: presence.Present}, wantFields: []string{"EtcdLog"},
		},
		"EtcdLogEmpty": {
			prepare: `mkdir -p ` + etcdLog + `; touch ` + etcdLog + `/0.tmp`,
			want:    plan.Facts{EtcdLog: presence.Absent}, wantFields: []string{"EtcdLog"},
		},
		// An etcd that fails at its start leaves this.
		"EtcdLogMissing": {
			prepare: `mkdir -p /var/lib/etcd/member/snap`,
			want:    plan.Facts{EtcdLog: presence.Absent}, wantFields: []string{"EtcdLog"},
		},
		"EtcdDirectoryMissing": {want: plan.Facts{EtcdLog: presence.Absent}, wantFields: []string{"EtcdLog"}},
		// It is there, and cannot be entered, as a file system whose server does not answer.
		"EtcdDirectoryUnreadable": {
			prepare: `ln -s /nowhere/etcd /var/lib/etcd`,
			want:    plan.Facts{}, wantFields: []string{"EtcdLog"},
		},
		"HostileValues": {
			prepare:    `printf 'ID="de\tb\033[2J"\nID_LIKE=\nVERSION_ID=$(touch /run/owned)\n' >/etc/os-release; printf 'a\norrery-facts\tend\narch\tvax\n' >/etc/machine-id`,
			want:       plan.Facts{OS: "de b [2J", OSVersion: "$(touch /run/owned)", MachineID: "a", Arch: runtime.GOARCH},
			wantFields: []string{"OS", "OSVersion", "MachineID", "Arch"},
		},
	}
	for name, tc := range cases {
		for shell, argv := range shells {
			t.Run(name+"/"+shell, func(t *testing.T) {
				path := "/nonexistent"
				if tc.agent != nil {
					tc.agent(t)
					path = agent
				}
				got := altered(t, tc.prepare, path, argv...)
				if tc.agent != nil && !strings.HasPrefix(got.Agent, "sha256:") {
					t.Errorf("the digest of the agent is %q", got.Agent)
				}
				for i, leftover := range got.Leftovers {
					if before, after, ok := strings.Cut(leftover, "(pid "); ok {
						_, after, _ = strings.Cut(after, ",")
						got.Leftovers[i] = before + "(pid PID," + after
					}
				}
				only := cmp.FilterPath(func(p cmp.Path) bool {
					field, ok := p.Index(1).(cmp.StructField)
					return ok && !slices.Contains(tc.wantFields, field.Name())
				}, cmp.Ignore())
				if diff := cmp.Diff(tc.want, got, only, cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("-want +got:\n%s", diff)
				}
			})
		}
	}
}

// TestFactsWithoutTools runs the script with only uname and date.
func TestFactsWithoutTools(t *testing.T) {
	bin := t.TempDir()
	for _, tool := range []string{"uname", "date"} {
		path, err := exec.LookPath(tool)
		if err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(bin, tool), content, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	var script strings.Builder
	for line := range strings.Lines(facts.Script("/nonexistent", "")) {
		if strings.HasPrefix(line, "PATH=") {
			line = "PATH=" + bin + "\n"
		}
		script.WriteString(line)
	}
	for name, shell := range map[string]string{"Dash": "/usr/bin/dash", "Bash": "/usr/bin/bash"} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(shell)
			cmd.Stdin = strings.NewReader(script.String())
			output, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, output)
			}
			f, err := facts.Parse(output, time.Now(), time.Now())
			if err != nil {
				t.Fatalf("%v\n%s", err, output)
			}
			if f.Arch != runtime.GOARCH || f.Kernel == "" || f.Hostname == "" || len(f.Tools) != 0 {
				t.Errorf("got %+v", f)
			}
		})
	}
}
