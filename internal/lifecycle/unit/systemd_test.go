package unit

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"orrery.dev/orrery/internal/lifecycle/plan"
)

var update = flag.Bool("update", false, "write the golden files")

// definitions has units that must match the golden files and pass the check of systemd.
func definitions() map[string]plan.Unit {
	return map[string]plan.Unit{
		"plain": {Name: "orrery-plain", Description: "Plain", Command: []string{"/bin/true"}},
		"etcd": {
			Name: "orrery-etcd", Description: "etcd of Orrery's cluster", Notify: true, LimitNOFILE: 65536,
			Command: []string{"/bin/true", "--name=host-1", "--initial-cluster=host-1=https://10.0.0.1:2380"},
			Env:     map[string]string{"ETCD_UNSUPPORTED_ARCH": "arm64", "A": "b"},
			Mounts:  []string{"/var/lib/etcd", "/data/100%"}, Data: "/var/lib/etcd/member/wal/*.wal", Established: "/etc/kubernetes/etcd.env",
		},
		"containerd": {
			Name: "orrery-containerd", Description: "containerd", Notify: true, KillMode: "process", Delegate: true, LimitNOFILE: 1 << 20,
			Command: []string{"/bin/true", "--config", "/etc/containerd/config.toml"},
		},
		"kubelet": {
			Name: "orrery-kubelet", Description: "kubelet", Command: []string{"/bin/true", "--v=2"}, InputHash: "abc",
			After: []string{"orrery-containerd", "orrery-loadbalancer"}, KillMode: "process",
		},
		"odd": {
			Name: "orrery-odd", Description: " 100% of\nsomething \\", Env: map[string]string{"ODD": "50% of $A \"and\"\n\\"},
			Command: []string{"/bin/true", "", "two words", "$HOME", "%n", `"`, `\`, ";", "#", "a\tb\n"},
		},
	}
}

func TestDefinition(t *testing.T) {
	t.Parallel()
	for name, u := range definitions() {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join("testdata", name+".service")
			got := definition(u)
			if *update {
				if err := os.WriteFile(path, got, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("definition (-want +got):\n%s", diff)
			}
			if got := definitionHash(want); got != Hash(u) {
				t.Errorf("hash in the file: got %q, want %q", got, Hash(u))
			}
		})
	}
}

func TestSystemdAnalyzeVerify(t *testing.T) {
	t.Parallel()
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Fatalf("%v; it is in the package systemd", err)
	}
	dir := t.TempDir()
	argv := []string{"verify", "--man=no", "--recursive-errors=no"}
	for _, u := range definitions() {
		path := filepath.Join(dir, service(u.Name))
		if err := os.WriteFile(path, definition(u), 0o600); err != nil {
			t.Fatal(err)
		}
		argv = append(argv, path)
	}
	output, err := exec.Command(analyze, argv...).CombinedOutput()
	// systemd also reports problems of other units of this machine.
	for line := range strings.Lines(string(output)) {
		if strings.Contains(line, dir) || strings.Contains(line, "orrery-") {
			t.Errorf("systemd-analyze verify: %s", line)
		}
	}
	if err != nil && !t.Failed() {
		t.Errorf("systemd-analyze verify: %v\n%s", err, output)
	}
}

// machine is a host with systemd as PID 1, in its own namespaces and its own file system. Of this
// machine it sees only /usr, read-only.
type machine struct {
	pid  int // of systemd, on this machine
	root string
}

func boot(t *testing.T) *machine {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can run systemd in namespaces: make lab-test")
	}
	if _, err := os.Stat(systemdPath); err != nil {
		t.Fatalf("%v; it is in the package systemd", err)
	}
	group := newGroup(t)
	root := t.TempDir()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(self(t), play, roleBoot, root, self(t), group)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWNET,
		Pdeathsig:  syscall.SIGKILL, Setsid: true,
	}
	runtime.LockOSThread() // Pdeathsig acts when this thread ends
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // all its processes end too
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		if t.Failed() {
			content, _ := os.ReadFile(log.Name())
			t.Logf("systemd:\n%s", content)
		}
	})
	m := &machine{pid: cmd.Process.Pid, root: fmt.Sprintf("/proc/%d/root", cmd.Process.Pid)}
	eventually(t, "systemd is up", func() bool {
		select {
		case <-ended:
			t.Fatal("systemd has ended")
		default:
		}
		// Before the machine has its own root, a command would run on this machine.
		if _, err := os.Stat(m.root + "/units"); err != nil {
			return false
		}
		state, _ := m.run(t.Context(), []string{"systemctl", "is-active", "multi-user.target", "systemd-journald.service"})
		return slices.Equal(strings.Fields(state), []string{"active", "active"})
	})
	return m
}

// run runs a command on the machine. Its manager uses it as Runner.
func (m *machine) run(ctx context.Context, argv []string) (string, error) {
	target := strconv.Itoa(m.pid)
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"-t", target, "-m", "-p", "-u", "-i", "-n", "--"}, argv...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

func (m *machine) runs(pid int) bool {
	stat, err := os.ReadFile(filepath.Join(m.root, "proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z")
}

func (m *machine) host() *host {
	return &host{
		Manager:    NewSystemd(m.root, m.run),
		self:       testBinary,
		definition: func(name string) string { return filepath.Join(m.root, "etc/systemd/system", service(name)) },
		runs:       m.runs,
		kill: func(t *testing.T, pid int, sig syscall.Signal) {
			t.Helper()
			if _, err := m.run(t.Context(), []string{"kill", "-" + strconv.Itoa(int(sig)), strconv.Itoa(pid)}); err != nil {
				t.Fatal(err)
			}
		},
	}
}

func TestSystemdConforms(t *testing.T) {
	m := boot(t)
	h := m.host()
	before := files(t, filepath.Join(m.root, "etc"))
	conform(t, h)
	if diff := cmp.Diff(before, files(t, filepath.Join(m.root, "etc"))); diff != "" {
		t.Errorf("files in /etc after all units were removed (-before +after):\n%s", diff)
	}
	output, err := m.run(t.Context(), []string{"systemctl", "list-units", "--all", "--no-legend", "--plain", "orrery-*"})
	if err != nil || output != "" {
		t.Errorf("units that systemd still knows: %q, %v", output, err)
	}
}

// systemd itself checks the definitions.
func TestSystemdUnderstands(t *testing.T) {
	m := boot(t)
	h := m.host()
	u := h.unit("orrery-properties", rolePolite)
	u.Delegate, u.LimitNOFILE, u.KillMode, u.After = true, 5000, "process", []string{"orrery-other"}
	h.run(t, u)
	names := []string{
		"Description", "UnitFileState", "Restart", "RestartUSec", "StartLimitIntervalUSec", "Type", "KillMode", "Delegate", "LimitNOFILE",
		"TasksMax", "NeedDaemonReload",
	}
	output, err := m.run(t.Context(), []string{"systemctl", "show", "--property=" + strings.Join(names, ","), service(u.Name)})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for line := range strings.Lines(output) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		got[name] = value
	}
	want := map[string]string{
		"Description": "Test of 100%", "UnitFileState": "enabled", "Restart": "always", "RestartUSec": "1s", "StartLimitIntervalUSec": "0",
		"Type": "exec", "KillMode": "process", "Delegate": "yes", "LimitNOFILE": "5000", "TasksMax": "infinity", "NeedDaemonReload": "no",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("properties (-want +got):\n%s", diff)
	}

	// A disabled unit would not start after a reboot.
	if _, err := m.run(t.Context(), []string{"systemctl", "disable", service(u.Name)}); err != nil {
		t.Fatal(err)
	}
	if s := h.status(t, u.Name); !s.Installed || s.DefinitionHash != "" || !s.Running {
		t.Errorf("disabled: got %+v, want it to run, without a hash", s)
	}
}

// A unit with Notify is ready when it notifies systemd. Restart does not wait for that, because
// etcd is only ready when other hosts are.
func TestSystemdDoesNotWaitForReadiness(t *testing.T) {
	h := boot(t).host()
	u := h.unit("orrery-notify", rolePolite) // never notifies
	u.Notify = true
	first := h.run(t, u)
	if second := h.restart(t, u.Name); second.PID == first.PID || h.runs(first.PID) {
		t.Errorf("restarted: got PID %d after %d", second.PID, first.PID)
	}
}

// Each command that fails gives an error with its cause. A second attempt then succeeds.
func TestSystemdCommandsFail(t *testing.T) {
	m := boot(t)
	u := m.host().unit("orrery-faults", rolePolite)
	ctx := t.Context()
	for n := 0; ; n++ {
		calls := 0
		faulty := NewSystemd(m.root, func(ctx context.Context, argv []string) (string, error) {
			if calls++; calls == n+1 {
				return "", errors.New("injected")
			}
			return m.run(ctx, argv)
		})
		do := func() error {
			if err := faulty.Install(ctx, u); err != nil {
				return err
			}
			if err := faulty.Restart(ctx, u.Name); err != nil {
				return err
			}
			if err := faulty.Reload(ctx, u.Name); err != nil {
				return err
			}
			if _, err := faulty.Log(ctx, u.Name, 1); err != nil {
				return err
			}
			return faulty.Remove(ctx, u.Name)
		}
		err := do()
		if calls <= n {
			if err != nil || n < 5 {
				t.Errorf("undisturbed, of %d commands: %v", calls, err)
			}
			return
		}
		if err == nil || !strings.Contains(err.Error(), "injected") {
			t.Errorf("command %d fails: got %v", n, err)
		}
		if err := do(); err != nil {
			t.Errorf("again after command %d failed: %v", n, err)
		}
	}
}

// One daemon-reload is enough for all installed units.
func TestSystemdReloadsOnce(t *testing.T) {
	m := boot(t)
	var reloads int
	h := m.host()
	h.Manager = NewSystemd(m.root, func(ctx context.Context, argv []string) (string, error) {
		if argv[1] == "daemon-reload" {
			reloads++
		}
		return m.run(ctx, argv)
	})
	names := []string{"orrery-a", "orrery-b", "orrery-c"}
	for _, name := range names {
		h.install(t, h.unit(name, rolePolite))
	}
	for _, name := range names {
		h.restart(t, name)
	}
	if reloads != 1 {
		t.Errorf("got %d reloads for %d units, want 1", reloads, len(names))
	}
}

const (
	systemdPath = "/usr/lib/systemd/systemd"
	testBinary  = "/unit.test"
	// groupName is in the hierarchy of control groups that systemd uses.
	groupName = "orrery-unit-test-"
)

// newGroup makes a control group for a machine. It becomes the root of the only hierarchy that the
// machine sees.
func newGroup(t *testing.T) string {
	t.Helper()
	parent := "/sys/fs/cgroup"
	if _, err := os.Stat(parent + "/cgroup.controllers"); err != nil { // version 1
		parent += "/systemd"
	}
	group, err := os.MkdirTemp(parent, groupName)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		eventually(t, "the control group is empty", func() bool {
			var dirs []string
			_ = filepath.WalkDir(group, func(path string, d os.DirEntry, err error) error {
				if err == nil && d.IsDir() {
					dirs = append(dirs, path)
				}
				return nil
			})
			for _, dir := range slices.Backward(dirs) {
				_ = os.Remove(dir)
			}
			_, err := os.Stat(group)
			return os.IsNotExist(err)
		})
	})
	return group
}

// bootInside makes the file system of the machine at root and becomes its systemd. It runs as PID 1
// in its own namespaces.
func bootInside(root, self, group string) error {
	runtime.LockOSThread()
	if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte("0"), 0); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return err
	}
	// The following mounts are not visible outside.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	mount := func(source, target, kind string, flags uintptr, data string) error {
		target = filepath.Join(root, target)
		if err := os.MkdirAll(target, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(source, target, kind, flags, data); err != nil {
			return fmt.Errorf("mount %s: %w", target, err)
		}
		return nil
	}
	bind := func(source, target string) error {
		target = filepath.Join(root, target)
		f, err := os.Create(target)
		if err != nil {
			return err
		}
		f.Close()
		if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s: %w", target, err)
		}
		return nil
	}
	errs := []error{
		mount("tmpfs", "/", "tmpfs", 0, "mode=0755"),
		mount("/usr", "/usr", "", unix.MS_BIND, ""),
		mount("", "/usr", "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""),
		mount("proc", "/proc", "proc", 0, ""),
		mount("/proc/sys", "/proc/sys", "", unix.MS_BIND, ""),
		mount("", "/proc/sys", "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""),
		mount("sysfs", "/sys", "sysfs", unix.MS_RDONLY, ""),
		mount("tmpfs", "/dev", "tmpfs", 0, "mode=0755"),
		mount("tmpfs", "/run", "tmpfs", 0, "mode=0755"),
		bind(self, testBinary),
	}
	if strings.HasPrefix(group, "/sys/fs/cgroup/systemd/") {
		errs = append(errs, mount("tmpfs", "/sys/fs/cgroup", "tmpfs", 0, "mode=0755"),
			mount("cgroup", "/sys/fs/cgroup/systemd", "cgroup", 0, "none,name=systemd"),
			// Otherwise systemd mounts the hierarchies of the controllers too, where it has no group of its
			// own.
			mount("", "/sys/fs/cgroup", "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	} else {
		errs = append(errs, mount("cgroup2", "/sys/fs/cgroup", "cgroup2", 0, ""))
	}
	for _, device := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		errs = append(errs, bind("/dev/"+device, "/dev/"+device))
	}
	for _, dir := range []string{"bin", "sbin", "lib", "lib64"} {
		if _, err := os.Stat("/usr/" + dir); err == nil {
			errs = append(errs, os.Symlink("usr/"+dir, filepath.Join(root, dir)))
		}
	}
	for path, content := range map[string]string{
		"etc/passwd":                    "root:x:0:0::/root:/bin/sh\n",
		"etc/group":                     "root:x:0:\n",
		"etc/machine-id":                "0123456789abcdef0123456789abcdef\n",
		"etc/os-release":                "ID=test\n",
		"etc/systemd/system/.keep":      "",
		"tmp/.keep":                     "",
		"var/log/.keep":                 "",
		"units/sysinit.target":          "[Unit]\nDefaultDependencies=no\nWants=systemd-journald.service\n",
		"units/basic.target":            "[Unit]\nRequires=sysinit.target\nAfter=sysinit.target\n",
		"units/multi-user.target":       "[Unit]\nRequires=basic.target\nAfter=basic.target\n",
		"units/network-online.target":   "[Unit]\n",
		"units/shutdown.target":         "[Unit]\nDefaultDependencies=no\n",
		"units/systemd-journald.socket": "[Unit]\nDefaultDependencies=no\n[Socket]\nListenStream=/run/systemd/journal/stdout\nListenDatagram=/run/systemd/journal/socket\n",
		"units/systemd-journald.service": "[Unit]\nDefaultDependencies=no\nRequires=systemd-journald.socket\nAfter=systemd-journald.socket\n" +
			"[Service]\nType=notify\nExecStart=/usr/lib/systemd/systemd-journald\nStandardOutput=null\n",
	} {
		path = filepath.Join(root, path)
		errs = append(errs, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o600))
	}
	old := filepath.Join(root, "old")
	errs = append(errs, os.Mkdir(old, 0o700))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := errors.Join(unix.PivotRoot(root, old), os.Chdir("/"), unix.Unmount("/old", unix.MNT_DETACH), os.Remove("/old")); err != nil {
		return err
	}
	// No other unit of systemd may run. Units that set up a machine would change this machine.
	return unix.Exec(systemdPath, []string{systemdPath, "--system", "--unit=multi-user.target", "--log-target=console", "--show-status=0"},
		[]string{"container=test", "SYSTEMD_UNIT_PATH=/etc/systemd/system:/units", "SYSTEMD_GENERATOR_PATH=/none", "PATH=/usr/sbin:/usr/bin"})
}
