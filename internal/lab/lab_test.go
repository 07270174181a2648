package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var lab *Lab

func TestMain(m *testing.M) {
	code, err := testMain(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		code = 1
	}
	os.Exit(code)
}

func testMain(m *testing.M) (code int, err error) {
	if os.Getenv(abandonVariable) != "" {
		return 0, abandon()
	}
	if lab, err = Start(context.Background(), Options{Hosts: 2}); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, lab.Close()) }()
	return m.Run(), nil
}

// TestFullLab: a lab that has all its hosts refuses another one, and has no such host.
func TestFullLab(t *testing.T) {
	full := &Lab{network: lab.network, hosts: make([]*Host, maxHosts)}
	if h, err := full.AddHost(t.Context()); err == nil || h != nil {
		t.Errorf("host %v, error %v, want no host and an error", h, err)
	}
	if n := len(full.Hosts()); n != maxHosts {
		t.Errorf("the lab has %d hosts, want %d", n, maxHosts)
	}
}

// inHost runs a shell script in a host.
func inHost(t *testing.T, h *Host, script string) string {
	t.Helper()
	out, err := h.Run(t.Context(), "sh", "-c", script)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// ssh runs a script over ssh with the machine's own client, which knows the host's key. The
// SSH_ASKPASS program supplies the password.
func ssh(t *testing.T, h *Host, user, password, script string) (string, error) {
	t.Helper()
	access := h.SSH()
	dir := t.TempDir()
	key, err := h.HostKey()
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"known_hosts": access.Address + " " + key + "\n",
		"askpass":     "#!/bin/sh\necho '" + password + "'\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	args := []string{
		"-F", "none", "-o", "UserKnownHostsFile=" + filepath.Join(dir, "known_hosts"), "-o", "StrictHostKeyChecking=yes",
		"-o", "NumberOfPasswordPrompts=1", "-o", "ConnectTimeout=60", "-p", fmt.Sprint(access.Port),
	}
	if password == "" {
		args = append(args, "-i", access.KeyFile, "-o", "IdentitiesOnly=yes", "-o", "PasswordAuthentication=no")
	} else {
		args = append(args, "-o", "PubkeyAuthentication=no")
	}
	cmd := exec.CommandContext(t.Context(), "ssh", append(args, user+"@"+access.Address, script)...)
	cmd.Env = append(os.Environ(), "SSH_ASKPASS="+filepath.Join(dir, "askpass"), "SSH_ASKPASS_REQUIRE=force")
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func TestLogin(t *testing.T) {
	h := lab.Host("host-1")
	access := h.SSH()
	cases := map[string]struct {
		user, password, script string
		want                   string
		fails                  bool
	}{
		"RootByKey":            {user: "root", script: "id -un; hostname", want: "root\nhost-1"},
		"RootByPassword":       {user: "root", password: access.Password, script: "id", fails: true},
		"OperatorByKey":        {user: access.Operator, script: "id -un", want: access.Operator},
		"OperatorByPassword":   {user: access.Operator, password: access.Password, script: "id -un", want: access.Operator},
		"WrongPassword":        {user: access.Operator, password: "wrong", script: "id", fails: true},
		"SudoAsksForPassword":  {user: access.Operator, script: "sudo -n true", fails: true},
		"SudoWithPassword":     {user: access.Operator, script: "echo '" + access.Password + "' | sudo -S -p '' id -un", want: "root"},
		"SudoWithWrong":        {user: access.Operator, script: "echo wrong | sudo -S -p '' id -un", fails: true},
		"SuperuserProgramsToo": {user: "root", script: "command -v nft >/dev/null && echo found", want: "found"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := ssh(t, h, c.user, c.password, c.script)
			if (err != nil) != c.fails {
				t.Fatalf("error %v, output %q", err, got)
			}
			if !c.fails && got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// TestIsolation: the other host and the machine do not see what one host does.
func TestIsolation(t *testing.T) {
	one, two := lab.Host("host-1"), lab.Host("host-2")
	own := map[string]string{
		"Hostname":  "hostname",
		"MachineID": "cat /etc/machine-id",
		"BootID":    "cat /proc/sys/kernel/random/boot_id",
		"Address":   "ip -4 -o address show eth0",
		"HostKey":   "cat /etc/ssh/ssh_host_ed25519_key.pub",
	}
	for name, script := range own {
		t.Run(name, func(t *testing.T) {
			if a, b := inHost(t, one, script), inHost(t, two, script); a == b {
				t.Errorf("both hosts have %q", a)
			}
		})
	}
	changes := map[string]struct{ do, see string }{
		"File":        {"echo mark >/etc/mark", "cat /etc/mark"},
		"Private":     {"echo mark >/usr/local/bin/mark", "cat /usr/local/bin/mark"},
		"Mount":       {"mkdir -p /run/mark && mount -t tmpfs mark /run/mark", "grep ' /run/mark ' /proc/mounts"},
		"Link":        {"ip link add mark type bridge", "ip link show mark"},
		"Rule":        {"nft add table inet marked", "nft list table inet marked"},
		"Cgroup":      {"mkdir /sys/fs/cgroup/pids/mark", "ls -d /sys/fs/cgroup/pids/mark"},
		"Process":     {"exec sleep 4242 >/dev/null 2>&1 &", "pgrep -f 'sleep 424[2]'"},
		"NetSysctl":   {"echo 1 >/proc/sys/net/ipv4/ip_forward", "grep 1 /proc/sys/net/ipv4/ip_forward"},
		"WholeSysctl": {"echo 42 >/proc/sys/kernel/panic", "grep 42 /proc/sys/kernel/panic"},
		"Conntrack":   {"echo 4242 >/proc/sys/net/netfilter/nf_conntrack_max", "grep 4242 /proc/sys/net/netfilter/nf_conntrack_max"},
		"Modules":     {"echo 42 >/sys/module/nf_conntrack/parameters/hashsize", "grep '^42$' /sys/module/nf_conntrack/parameters/hashsize"},
	}
	forwards, err := os.ReadFile("/proc/sys/net/ipv4/ip_forward")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range changes {
		t.Run(name, func(t *testing.T) {
			inHost(t, one, c.do)
			inHost(t, one, c.see)
			if out, err := two.Run(t.Context(), "sh", "-c", c.see); err == nil {
				t.Errorf("the other host sees it: %s", out)
			}
			if name == "Process" || name == "NetSysctl" && string(forwards) == "1\n" {
				return // the machine sees the processes in its hosts; it may forward for reasons of its own
			}
			if out, err := exec.CommandContext(t.Context(), "sh", "-c", c.see).CombinedOutput(); err == nil {
				t.Errorf("the machine sees it: %s", out)
			}
		})
	}
}

func TestHostIsBare(t *testing.T) {
	cases := map[string]struct{ script, want string }{
		"NoNetworkConfig": {"ls -d /etc/cni /etc/kubernetes /etc/containerd 2>/dev/null || true", ""},
		"NothingLocal":    {"find /usr/local /opt /var/lib -type f", ""},
		"EmptyTmp":        {"ls -A /tmp", ""},
		"RealDisk":        {"stat -f -c %T /var/lib | grep -c overlay || true", "0"},
		"CgroupRoot":      {"cut -d: -f3 /proc/1/cgroup | grep -vx -e / -e /init.scope || true", ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := inHost(t, lab.Host("host-2"), c.script); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// reachable reports whether one host can connect to another's sshd.
func reachable(ctx context.Context, from, to *Host) bool {
	_, err := from.Run(ctx, "sh", "-c", "timeout 1 bash -c '</dev/tcp/"+to.Address+"/22'")
	return err == nil
}

func TestCutAndReconnect(t *testing.T) {
	one, two := lab.Host("host-1"), lab.Host("host-2")
	if err := until(t.Context(), func() error {
		if !reachable(t.Context(), one, two) {
			return errors.New("hosts do not reach each other")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := two.Cut(t.Context()); err != nil {
		t.Fatal(err)
	}
	if reachable(t.Context(), one, two) || reachable(t.Context(), two, one) {
		t.Error("hosts reach each other across the cut")
	}
	if out := inHost(t, two, "echo alive"); out != "alive" {
		t.Errorf("the host that was cut off says %q", out)
	}
	if err := two.Reconnect(t.Context()); err != nil {
		t.Fatal(err)
	}
	err := until(t.Context(), func() error {
		if !reachable(t.Context(), one, two) {
			return errors.New("hosts do not reach each other after the link was connected again")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestClientNetwork(t *testing.T) {
	network, err := lab.ClientNetwork(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	inside := func(argv ...string) string {
		t.Helper()
		out, err := output(t.Context(), append([]string{"nsenter", "--net=" + network}, argv...)...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	greeting := "exec 3<>/dev/tcp/" + lab.Host("host-1").Address + "/22 && read -r line <&3 && echo $line"
	if out := inside("bash", "-c", greeting); !strings.HasPrefix(out, "SSH-2.0-") {
		t.Errorf("a host answers a client with %q", out)
	}
	if out := inside("ip", "-o", "link"); strings.Count(out, "\n") != 2 {
		t.Errorf("a client has the links\n%swant lo and eth0", out)
	}
}

func TestPowerCut(t *testing.T) {
	h, err := lab.AddHost(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	inHost(t, h, `echo kept >/var/lib/state
echo gone >/run/state; echo gone >/tmp/state
exec sleep 4242 >/dev/null 2>&1 &`)
	boot := inHost(t, h, "cat /proc/sys/kernel/random/boot_id")
	pid := h.PID()
	h.Kill()
	if err := exec.CommandContext(t.Context(), "ps", "-p", fmt.Sprint(pid)).Run(); err == nil {
		t.Error("the host's first process runs after the power was cut")
	}
	if _, err := h.Run(t.Context(), "true"); err == nil {
		t.Error("a host without power runs a program")
	}
	dialer := net.Dialer{Timeout: 2 * time.Second}
	if conn, err := dialer.DialContext(t.Context(), "tcp", net.JoinHostPort(h.Address, "22")); err == nil {
		conn.Close()
		t.Error("a host without power answers")
	}
	if err := h.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := inHost(t, h, "cat /var/lib/state; ls /run/state /tmp/state 2>/dev/null; pgrep -f 'sleep 424[2]' || true")
	if diff := cmp.Diff("kept", got); diff != "" {
		t.Errorf("after the boot (-want +got):\n%s", diff)
	}
	if inHost(t, h, "cat /proc/sys/kernel/random/boot_id") == boot {
		t.Error("the boot ID is that of the last boot")
	}
	if out, err := ssh(t, h, "root", "", "echo hello"); err != nil || out != "hello" {
		t.Errorf("ssh after the boot: %q, %v", out, err)
	}
}

func TestRotateHostKey(t *testing.T) {
	h := lab.Host("host-2")
	before, err := h.HostKey()
	if err != nil {
		t.Fatal(err)
	}
	if err := h.RotateHostKey(t.Context()); err != nil {
		t.Fatal(err)
	}
	after, err := h.HostKey()
	if err != nil {
		t.Fatal(err)
	}
	if before == after {
		t.Error("the key is the same")
	}
	err = until(t.Context(), func() error { // sshd starts again
		_, err := ssh(t, h, "root", "", "true")
		return err
	})
	if err != nil {
		t.Errorf("log in with the new key known: %v", err)
	}
}
