package node

import (
	"bufio"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"orrery.dev/orrery/internal/disk"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

const (
	// asShim makes this program a shim that runs a container.
	asShim = "ORRERY_TEST_SHIM"
	// within means that this program runs in its own namespaces.
	within = "ORRERY_TEST_NAMESPACES"
)

// inNamespaces runs the test again as a process with its own network, mounts and processes. It
// returns true in that process.
func inNamespaces(t *testing.T) bool {
	t.Helper()
	if os.Getenv(within) != "" {
		for _, m := range []struct {
			kind, at string
			flags    uintptr
		}{{"", "/", unix.MS_REC | unix.MS_PRIVATE}, {"proc", "/proc", 0}, {"tmpfs", "/run", 0}} {
			if err := unix.Mount(m.kind, m.at, m.kind, m.flags, ""); err != nil {
				t.Fatalf("mount %s: %v", m.at, err)
			}
		}
		return true
	}
	if os.Geteuid() != 0 {
		t.Skip("namespaces with links of their own need root: make lab-test")
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), within+"=yes")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("in namespaces: %v\n%s", err, out)
	}
	return false
}

func sh(t *testing.T, script string) string {
	t.Helper()
	out, err := exec.Command("sh", "-ec", script).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return string(out)
}

// TestSweep creates containers, links, rules, mounts and control groups on a host. The sweep must
// remove what was not there before, and nothing else.
func TestSweep(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	group := fmt.Sprintf("orrery-test-%d", time.Now().UnixNano())
	controllers := []string{"pids", "memory"}
	if _, err := os.Stat(cgroupRoot + "/cgroup.controllers"); err == nil {
		controllers = []string{""}
	}
	procs := func(name string) string { return filepath.Join(cgroupRoot, controllers[0], name, "cgroup.procs") }
	swept := plan.Sweep{
		Containers: "/run/containerd.sock", MountsUnder: []string{"/run/kubelet"}, Links: []string{"cni*", "flannel.1"},
		Tables: []string{"ip kube-proxy", "inet there"}, IPTablesPrefixes: []string{"KUBE-", "CNI-"}, Cgroups: []string{group},
		NetworkNamespaces: "cni-", Paths: []string{"/run/flannel"},
	}
	sh(t, `ip link add cni-there type bridge
		nft add table inet there
		iptables -t nat -N KUBE-THERE
		iptables -t nat -A OUTPUT -m comment --comment "-j CNI-FORWARD of the user" -j KUBE-THERE
		mkdir -p /run/kubelet/there /run/netns; mount -t tmpfs there /run/kubelet/there
		ip netns add cni-there`)
	rules := func() string {
		return sh(t, "nft list ruleset | grep -v ^#; iptables-save | grep -v -e ^# -e ^:; ip -o link | cut -d: -f2 | sort")
	}
	before := rules()

	n := Rooted(t.TempDir())
	n.System, n.Root = &Linux{}, ""
	state := t.TempDir()
	n.Root = state
	for _, dir := range []string{"proc", "sys", "run"} {
		if err := os.Symlink("/"+dir, filepath.Join(state, dir)); err != nil {
			t.Fatal(err)
		}
	}
	req := request(plan.Step{ID: "sweep", Sweep: &swept})
	done(t, n, req)

	sh(t, `ip link add cni0 type bridge; ip link set cni0 up
		ip netns add cni-1; ip link add veth1 type veth peer name eth0 netns cni-1; ip link set veth1 master cni0
		ip link add flannel.1 type bridge
		nft add table ip kube-proxy; nft add chain ip kube-proxy services; nft add rule ip kube-proxy services accept
		for t in iptables ip6tables; do
			$t -N KUBE-FORWARD; $t -N KUBE-MARK; $t -A KUBE-FORWARD -g KUBE-MARK; $t -A FORWARD -m comment --comment "kubernetes -j forwarding" -j KUBE-FORWARD
			$t -t mangle -N KUBE-CANARY
		done
		iptables -t nat -N CNI-1; iptables -t nat -A CNI-1 -d 10.0.0.0/8 -j ACCEPT; iptables -t nat -A OUTPUT -s 10.1.0.0/16 -j CNI-1
		mkdir -p /run/kubelet/pods/1 /run/flannel "/run/kubelet/pods/with blank"; touch /run/flannel/subnet.env
		mount -t tmpfs pod /run/kubelet/pods/1; mkdir /run/kubelet/pods/1/inner; mount -t tmpfs pod /run/kubelet/pods/1/inner
		mount -t tmpfs blank "/run/kubelet/pods/with blank"`)
	busy, err := os.Create("/run/kubelet/pods/1/inner/busy")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	for _, c := range controllers {
		dir := filepath.Join(cgroupRoot, c, group, "pod1", "container")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			for ; filepath.Base(dir) != c && dir != cgroupRoot; dir = filepath.Dir(dir) {
				unix.Rmdir(dir)
			}
		})
	}
	contained := start(t, "sleep", "600")
	if err := os.WriteFile(procs(group+"/pod1/container"), []byte(strconv.Itoa(contained.Process.Pid)), 0); err != nil {
		t.Fatal(err)
	}
	shim := filepath.Join(t.TempDir(), "containerd-shim-runc-v2")
	if err := os.Link(os.Args[0], shim); err != nil {
		sh(t, "cp "+os.Args[0]+" "+shim)
	}
	ours, child := startShim(t, shim, "/run/containerd.sock")
	other, otherChild := startShim(t, shim, "/run/other.sock")
	_ = other
	go contained.Wait() // otherwise they stay zombies
	go ours.Wait()

	larger := swept
	larger.Links = append(slices.Clone(larger.Links), "added0")
	sh(t, "ip link add added0 type bridge") // the user's: it exists before the sweep names it
	before = strings.Replace(before, " cni-there\n", " added0\n cni-there\n", 1)
	done(t, n, request(plan.Step{ID: "sweep", Sweep: &larger}))

	done(t, n, removal())
	if diff := cmp.Diff(before, rules()); diff != "" {
		t.Errorf("rules and links (-before +after):\n%s", diff)
	}
	for _, gone := range []string{"/run/flannel", "/run/netns/cni-1", filepath.Dir(procs(group))} {
		if _, err := os.Lstat(gone); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v, want it gone", gone, err)
		}
	}
	mounts, err := (&Linux{}).mountsBelow([]string{"/run/kubelet"})
	if diff := cmp.Diff([]string{"/run/kubelet/there"}, pointsOf(mounts)); diff != "" || err != nil {
		t.Errorf("mounts (-want +got), %v:\n%s", err, diff)
	}
	for pid, want := range map[int]bool{contained.Process.Pid: false, ours.Process.Pid: false, child: false, otherChild: true} {
		if want != alive(pid) && (want || !ends(pid)) {
			t.Errorf("process %d alive: %t, want %t", pid, !want, want)
		}
	}
	if _, err := os.Stat("/run/netns/cni-there"); err != nil {
		t.Error(err)
	}
}

func startShim(t *testing.T, shim, socket string) (*exec.Cmd, int) {
	t.Helper()
	cmd := exec.Command(shim, "-namespace", "k8s.io", "-address", socket)
	cmd.Env = append(os.Environ(), asShim+"=yes")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	return cmd, pid
}

// alive reports whether a process runs and is no zombie.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

// ends waits until a process that was killed does not run any more. It reports whether it ended.
func ends(pid int) bool {
	for deadline := time.Now().Add(3 * time.Minute); alive(pid); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// TestOwnedDirectoryWithMounts removes a directory with a mount whose files must not be removed.
func TestOwnedDirectoryWithMounts(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	n := Rooted(t.TempDir())
	n.System = &Linux{}
	precious := filepath.Join(t.TempDir(), "precious")
	if err := os.Mkdir(precious, 0o755); err != nil {
		t.Fatal(err)
	}
	furnish(t, &Node{Root: precious}, map[string]string{"/data": "of a database"})
	for name, before := range map[string]map[string]string{"Made": nil, "There": {"/var/lib/kubelet/": ""}} {
		furnish(t, n, before)
		done(t, n, request(plan.Step{ID: "d", Directory: &plan.Directory{Path: "/var/lib/kubelet", Mode: "0755", Owned: true}}))
		volume := n.path("/var/lib/kubelet/pods/1/volume")
		if err := os.MkdirAll(volume, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount(precious, volume, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		done(t, n, removal())
		if content, err := os.ReadFile(filepath.Join(precious, "data")); err != nil || string(content) != "of a database" {
			t.Fatalf("%s: the data are %q, %v", name, content, err)
		}
		if _, err := os.Stat(n.path("/var/lib/kubelet/pods")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v, want it gone", name, err)
		}
	}
}

// TestUnmountOfASilentFileSystem unmounts a file system whose server answers no request, as that of
// a volume whose server is gone. A request to the file system would block forever.
func TestUnmountOfASilentFileSystem(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skipf("no file system can be made whose server does not answer: %v", err)
	}
	l := &Linux{}
	for name, unmount := range map[string]func(dir string) error{
		"UnmountBelow": l.UnmountBelow,
		"Clear": func(dir string) error {
			return l.Clear(t.Context(), plan.Sweep{MountsUnder: []string{dir}}, plan.Traces{})
		},
	} {
		dir := filepath.Join("/run", name)
		volume := filepath.Join(dir, "volume")
		if err := os.MkdirAll(volume, 0o755); err != nil {
			t.Fatal(err)
		}
		silent, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { silent.Close() })
		if err := unix.Mount("silent", volume, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", silent.Fd())); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- unmount(dir) }()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s waits for the server of the file system", name)
		}
	}
}

// TestMounts: the type of a mount is that after the optional fields.
func TestMounts(t *testing.T) {
	l := &Linux{Root: t.TempDir()}
	furnish(t, &Node{Root: l.Root}, map[string]string{"/proc/self/mountinfo": `22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw
23 22 0:44 / /var/lib/kubelet/with\040blank rw,relatime shared:2 master:1 - nfs4 10.0.0.1:/a - b rw
24 22 0:45 / /var/lib/kubelet/b rw - cifs //10.0.0.1/b rw
`})
	got, err := l.mountsBelow([]string{"/var/lib/kubelet"})
	if err != nil {
		t.Fatal(err)
	}
	want := []mount{{"/var/lib/kubelet/with blank", "nfs4"}, {"/var/lib/kubelet/b", "cifs"}}
	if !slices.Equal(got, want) {
		t.Errorf("mounts %v, want %v", got, want)
	}
}

func TestSysctl(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	l := &Linux{}
	for _, key := range []string{"net.ipv4.conf.lo.forwarding", "net/ipv4/conf/lo/forwarding"} {
		for _, value := range []string{"1", "0"} {
			if err := l.SetSysctl(key, value); err != nil {
				t.Fatal(err)
			}
			if got, err := l.Sysctl(key); err != nil || got != value {
				t.Errorf("%s is %q, %v, want %s", key, got, err, value)
			}
		}
	}
	if _, err := l.Sysctl("net.ipv4.no_such_key"); err == nil || !strings.Contains(err.Error(), "net.ipv4.no_such_key") {
		t.Errorf("error %v does not name the key", err)
	}
	if err := l.SetSysctl("net.ipv4.no_such_key", "1"); err == nil {
		t.Error("a key that does not exist can be set")
	}
	if got := l.sysctlPath("net.ipv4.conf.eth0/100.forwarding"); got != "/proc/sys/net/ipv4/conf/eth0.100/forwarding" {
		t.Errorf("path %s", got)
	}
}

func TestRun(t *testing.T) {
	l := &Linux{}
	out, err := l.Run(t.Context(), []string{"sh", "-s"}, "echo said; echo warned >&2")
	if err != nil || out != "said\n" {
		t.Errorf("output %q, %v", out, err)
	}
	_, err = l.Run(t.Context(), []string{"sh", "-s"}, "echo said; echo why >&2; exit 3")
	for _, want := range []string{"said", "why", "exit status 3"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
	_, err = l.Run(t.Context(), []string{"sh", "-s"}, "yes | head -c 100000; echo the end; exit 1")
	if err == nil || len(err.Error()) > 2*outputTail || !strings.HasSuffix(err.Error(), "the end") {
		t.Errorf("error has %d bytes, want the tail", len(err.Error()))
	}
	if _, err := l.Run(t.Context(), []string{"no-such-program"}, ""); err == nil || !strings.Contains(err.Error(), "no-such-program") {
		t.Errorf("error %v", err)
	}
}

// TestRunHangs: a program that hangs fails its step.
func TestRunHangs(t *testing.T) {
	_, err := (&Linux{Patience: 5 * time.Second}).Run(t.Context(), []string{"sh", "-s"}, "echo waiting; sleep 600 & wait")
	if err == nil || !strings.Contains(err.Error(), "sh: it did not end within 5s: waiting") {
		t.Errorf("error %v", err)
	}
}

// TestScriptsShell runs scripts with the shell in their first line.
func TestScriptsShell(t *testing.T) {
	cases := map[string]struct{ first, want string }{
		"None":    {"", "sh"},
		"Sh":      {"#!/bin/sh\n", "sh"},
		"Bash":    {"#!/bin/bash\n", "bash"},
		"BashEnv": {"#! /usr/bin/env bash\n", "bash"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			n := Rooted(t.TempDir())
			n.System = &Linux{}
			out := filepath.Join(t.TempDir(), "out")
			script := tc.first + "cat /proc/$$/comm >" + out
			if tc.want == "bash" {
				script += "\nwords=(a b); [[ ${words[1]} == b ]]" // sh may not know this
			}
			done(t, n, request(plan.Step{ID: "hook", Script: &plan.Script{Run: script}}))
			if content, err := os.ReadFile(out); err != nil || strings.TrimSpace(string(content)) != tc.want {
				t.Errorf("%s ran it, error %v; want %s", content, err, tc.want)
			}
		})
	}
}

// TestScriptFails: the output of a user's script is in the host's log, and not in the record of the
// run.
func TestScriptFails(t *testing.T) {
	n := Rooted(t.TempDir())
	n.System = &Linux{Root: n.Root}
	e := failed(t, n, request(plan.Step{ID: "hook", Script: &plan.Script{Run: "echo token=abc; echo password=def >&2; exit 3"}}))
	if strings.Contains(e.Message, "token") || strings.Contains(e.Message, "password") {
		t.Errorf("the message has what the script printed: %s", e.Message)
	}
	if !strings.Contains(e.Message, "exit status 3") || !strings.Contains(e.Message, "log of the run on this host") {
		t.Errorf("the message %q does not say why, and where to look", e.Message)
	}
	if !strings.Contains(e.Output, "token=abc") || !strings.Contains(e.Output, "password=def") {
		t.Errorf("the output is %q", e.Output)
	}
}

// TestScriptTakesTooLong: all processes that the script started are killed.
func TestScriptTakesTooLong(t *testing.T) {
	n := Rooted(t.TempDir())
	n.System = &Linux{}
	pidfile := filepath.Join(t.TempDir(), "pid")
	e := failed(t, n, request(plan.Step{ID: "hook", Script: &plan.Script{
		Run: "sleep 600 & echo $! >" + pidfile + "; wait", Timeout: 5 * time.Second,
	}}))
	if !strings.Contains(e.Message, "did not end within 5s") {
		t.Errorf("message %q", e.Message)
	}
	content, err := os.ReadFile(pidfile)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil {
		t.Fatal(err)
	}
	if !ends(pid) {
		t.Errorf("process %d of the script still runs", pid)
	}
}

func TestProbe(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" {
			http.Error(w, "etcd is not ready", http.StatusInternalServerError)
			return
		}
		io.WriteString(w, `{"health":"true"}`)
	}))
	defer server.Close()
	dir := t.TempDir()
	ca := filepath.Join(dir, "ca.crt")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	socket, err := net.Listen("unix", filepath.Join(dir, "socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	cases := map[string]struct {
		probe plan.Probe
		want  string
	}{
		"URL":          {plan.Probe{URL: server.URL + "/readyz", CAFile: ca}, ""},
		"Contains":     {plan.Probe{URL: server.URL + "/readyz", CAFile: ca, Contains: `"health":"true"`}, ""},
		"ContainsNot":  {plan.Probe{URL: server.URL + "/readyz", CAFile: ca, Contains: "leader"}, `answers without "leader"`},
		"Status":       {plan.Probe{URL: server.URL + "/", CAFile: ca}, "etcd is not ready"},
		"UnknownCA":    {plan.Probe{URL: server.URL + "/readyz"}, "certificate"},
		"NoCA":         {plan.Probe{URL: server.URL, CAFile: filepath.Join(dir, "none")}, "read caFile"},
		"CAIsNoPEM":    {plan.Probe{URL: server.URL, CAFile: "/dev/null"}, "no PEM certificate"},
		"NoClientCert": {plan.Probe{URL: server.URL, CAFile: ca, CertFile: ca, KeyFile: ca}, "load certFile and keyFile"},
		"TCP":          {plan.Probe{TCP: server.Listener.Addr().String()}, ""},
		"TCPRefused":   {plan.Probe{TCP: "127.0.0.1:1"}, "refused"},
		"Socket":       {plan.Probe{TCP: "unix:" + filepath.Join(dir, "socket")}, ""},
		"NoSocket":     {plan.Probe{TCP: "unix:" + filepath.Join(dir, "none")}, "no such file"},
		"Exec":         {plan.Probe{Exec: []string{"true"}}, ""},
		"ExecFails":    {plan.Probe{Exec: []string{"sh", "-c", "echo why; exit 1"}}, "why"},
		"Nothing":      {plan.Probe{}, "asks nothing"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			err := (&Linux{}).Probe(t.Context(), c.probe)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v, want %q in it", err, c.want)
			}
		})
	}
}

func TestModules(t *testing.T) {
	root := t.TempDir()
	furnish(t, &Node{Root: root}, map[string]string{
		"/proc/modules": "overlay 151552 0 - Live 0x0\nnf_conntrack_x 1 0 - Live 0x0\n", "/sys/module/vxlan/": "", "/proc/sys/net/bridge/": "",
	})
	l := &Linux{Root: root}
	for name, want := range map[string]bool{"overlay": true, "vxlan": true, "br_netfilter": true, "br-netfilter": true, "nf_conntrack": false, "ip_vs": false} {
		if l.HasModule(name) != want {
			t.Errorf("has %s: %t", name, !want)
		}
	}
	if !(&Linux{Root: t.TempDir()}).HasModule("ip_vs") {
		t.Error("a kernel that cannot load modules wants one")
	}
}

// fixed is a System whose modules cannot be changed.
type fixed struct{ *Recorder }

func (fixed) HasModule(name string) bool { return name == "overlay" }

func (fixed) LoadModule(_ context.Context, name string) error { return errors.New("no module " + name) }

func TestModuleThatCannotBeLoaded(t *testing.T) {
	n := host(t, nil)
	n.System = fixed{n.System.(*Recorder)}
	step := plan.Step{ID: "m", Modules: &plan.Modules{Path: "/etc/modules-load.d/orrery.conf", Names: []string{"overlay"}}}
	done(t, n, request(step))
	step.Modules = &plan.Modules{Path: step.Modules.Path, Names: []string{"overlay", "ip_vs"}}
	if e := failed(t, n, request(step)); e.Message != "no module ip_vs" {
		t.Errorf("message %q", e.Message)
	}
}

// installer is a System whose packages install others.
type installer struct{ *Recorder }

func (i installer) Install(ctx context.Context, manager string, names []string) error {
	return i.Recorder.Install(ctx, manager, append(slices.Clone(names), "libof-"+names[0]))
}

// TestPackagesBringOthers removes packages that came with others, and keeps earlier and later ones.
func TestPackagesBringOthers(t *testing.T) {
	n := host(t, nil)
	system := installer{n.System.(*Recorder)}
	n.System = system
	for _, err := range []error{system.Recorder.Install(t.Context(), "apt", []string{"nft", "vim"})} {
		if err != nil {
			t.Fatal(err)
		}
	}
	step := plan.Step{ID: "p", Packages: &plan.Packages{Manager: "apt", Names: []string{"nft", "conntrack"}}}
	done(t, n, request(step))
	if err := system.Recorder.Install(t.Context(), "apt", []string{"emacs"}); err != nil {
		t.Fatal(err)
	}
	step.Packages = &plan.Packages{Manager: "apt", Names: []string{"nft", "conntrack", "socat"}}
	done(t, n, request(step))
	done(t, n, removal())
	got, err := system.Packages(t.Context(), "apt")
	if diff := cmp.Diff([]string{"base", "nft", "vim", "emacs"}, got); diff != "" || err != nil {
		t.Errorf("packages (-want +got), %v:\n%s", err, diff)
	}
}

func TestPackageManagers(t *testing.T) {
	l := &Linux{}
	installed, err := l.Packages(t.Context(), "apt")
	if err != nil || !slices.Contains(installed, "dpkg") {
		t.Errorf("dpkg is not among %d packages, %v", len(installed), err)
	}
	if _, err := l.Packages(t.Context(), "pacman"); err == nil || !strings.Contains(err.Error(), "apt, dnf, yum, zypper") {
		t.Errorf("error %v", err)
	}
	if diff := cmp.Diff([]string{"apt", "dnf", "yum", "zypper"}, slices.Sorted(maps.Keys(packageManagers))); diff != "" {
		t.Errorf("managers (-want +got):\n%s", diff)
	}
}

func TestRulesToDeleteChains(t *testing.T) {
	saved := `# Generated
*nat
:PREROUTING ACCEPT [1:2]
:KUBE-SERVICES - [0:0]
:USER - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A PREROUTING -m comment --comment "not -j KUBE-SERVICES really" -j USER
-A KUBE-SERVICES -j USER
COMMIT
*filter
:FORWARD ACCEPT [0:0]
-A FORWARD -j ACCEPT
COMMIT
`
	want := `*nat
-D PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-F KUBE-SERVICES
-X KUBE-SERVICES
COMMIT
`
	if diff := cmp.Diff(want, withoutChains(saved, map[string][]string{"nat": {"KUBE-SERVICES"}})); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
}

// TestOtherFileSystem has the agent's files on another file system than the files that it replaces,
// so that hard links fail. It syncs, and has a restrictive umask.
func TestOtherFileSystem(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	unix.Umask(0o077)
	n := Rooted(t.TempDir())
	n.NoSync = false
	for _, dir := range []string{"/etc", "/opt"} {
		if err := os.MkdirAll(n.path(dir), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("tmpfs", n.path(dir), "tmpfs", 0, "mode=0755"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Unmount(n.path(dir), unix.MNT_DETACH) })
	}
	furnish(t, n, map[string]string{"/etc/a": "of the user", "/etc/b": "->a", "/opt/bin/tool": "of the user"})
	if err := errors.Join(os.Chown(n.path("/etc/a"), 1234, 4321), os.Chmod(n.path("/etc/a"), 0o604)); err != nil {
		t.Fatal(err)
	}
	before := tree(t, n, true)
	done(t, n, request(fileStep("a", "/etc/a", "ours"), fileStep("b", "/etc/b", "ours"), fileStep("c", "/etc/made/c", "ours"), binary("tool")), "tool")
	after := tree(t, n, false)
	for path, want := range map[string]string{
		"/etc/a": "-rw-r--r-- ours", "/etc/b": "-rw-r--r-- ours", "/etc/made": "drwxr-xr-x", "/opt/bin/tool": "-rwxr-xr-x tool",
	} {
		if after[path] != want {
			t.Errorf("%s is %q, want %q", path, after[path], want)
		}
	}
	done(t, n, removal())
	sameTree(t, "after the removal", tree(t, n, true), before)
	var stat unix.Stat_t
	if err := unix.Stat(n.path("/etc/a"), &stat); err != nil || stat.Uid != 1234 || stat.Gid != 4321 {
		t.Errorf("/etc/a belongs to %d:%d, %v", stat.Uid, stat.Gid, err)
	}
}

// TestPrograms checks which programs are called.
func TestPrograms(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	bin := programDirs[0]
	if err := unix.Mount("tmpfs", bin, "tmpfs", 0, "mode=0755"); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(t.TempDir(), "log")
	for _, name := range []string{"apt-get", "dpkg", "dnf", "rpm", "zypper", "modprobe", "restorecon"} {
		// The first installation by apt fails, as with outdated lists.
		script := fmt.Sprintf("#!/bin/sh\necho \"$(basename $0) $*\" >>%s\ncase \"$1\" in install) [ -e %s.tried ] || { touch %[2]s.tried; exit 100; } ;; esac\n", log, log)
		if err := os.WriteFile(filepath.Join(bin, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	root := t.TempDir()
	furnish(t, &Node{Root: root}, map[string]string{"/sys/fs/selinux/enforce": "1"})
	l := &Linux{Root: root}
	ctx, names := t.Context(), []string{"conntrack", "socat"}
	uninstall := func(manager string) error {
		needed, err := l.Uninstall(ctx, manager, names)
		if len(needed) > 0 {
			t.Errorf("%s: needed are %v", manager, needed)
		}
		return err
	}
	for _, err := range []error{
		l.Install(ctx, "apt", names), uninstall("apt"), l.Install(ctx, "dnf", names), uninstall("dnf"), uninstall("zypper"),
		l.LoadModule(ctx, "overlay"), l.Label(ctx, "/opt/bin/tool"), l.Label(ctx),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	got, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	want := `apt-get install -y -q --no-install-recommends -o DPkg::Lock::Timeout=120 conntrack socat
dpkg --configure -a
apt-get update -q
apt-get install -y -q --no-install-recommends -o DPkg::Lock::Timeout=120 conntrack socat
apt-get -s -q purge conntrack socat
apt-get purge -y -q -o DPkg::Lock::Timeout=120 conntrack socat
dnf -y -q --setopt=clean_requirements_on_remove=False install conntrack socat
rpm -e --test conntrack socat
dnf -y -q --setopt=clean_requirements_on_remove=False remove conntrack socat
rpm -e --test conntrack socat
zypper --non-interactive --quiet remove conntrack socat
modprobe overlay
restorecon /opt/bin/tool
`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("programs (-want +got):\n%s", diff)
	}
}

// TestNeededPackages: packages that others need now stay, with the packages that these need.
func TestNeededPackages(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	bin := programDirs[0]
	if err := unix.Mount("tmpfs", bin, "tmpfs", 0, "mode=0755"); err != nil {
		t.Fatal(err)
	}
	// In the output of apt-get and rpm, tool needs lib, and theirs, another user's package, needs
	// tool.
	apt := `#!/bin/sh
[ "$1" = -s ] || { echo "apt-get $*" >>LOG; exit; }
shift 3
echo "Reading package lists..."
for name in "$@"; do
  echo "Purg $name [1.0-1]"
  case $name in lib) echo "Remv tool:amd64 [2.0] []"; echo "Remv theirs [3]" ;; tool) echo "Remv theirs [3]" ;; esac
done
`
	rpm := `#!/bin/sh
if [ "$1" = -q ]; then
  case $5 in tool) echo tool ;; "liblib.so.1()(64bit)") echo lib ;; *) echo "no package provides $5"; exit 1 ;; esac
  exit
fi
shift 2
case " $* " in
*" tool "*) printf 'error: Failed dependencies:\n\ttool >= 2.0 is needed by (installed) theirs-3-1.x86_64\n' >&2; exit 1 ;;
*" lib "*) printf 'error: Failed dependencies:\n\tliblib.so.1()(64bit) is needed by (installed) tool-2.0-1.x86_64\n' >&2; exit 1 ;;
esac
`
	log := filepath.Join(t.TempDir(), "log")
	for name, script := range map[string]string{"apt-get": apt, "rpm": rpm, "dnf": "#!/bin/sh\necho \"dnf $*\" >>LOG\n"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(strings.ReplaceAll(script, "LOG", log)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, tc := range map[string]struct {
		manager      string
		names        []string
		needed, want string
	}{
		"APTNeeded": {"apt", []string{"lib", "socat", "tool"}, "lib tool", "apt-get purge -y -q -o DPkg::Lock::Timeout=120 socat"},
		"APTAll":    {"apt", []string{"tool"}, "tool", ""},
		"APTNone":   {"apt", []string{"socat"}, "", "apt-get purge -y -q -o DPkg::Lock::Timeout=120 socat"},
		"RPMNeeded": {"dnf", []string{"lib", "socat", "tool"}, "tool lib", "dnf -y -q --setopt=clean_requirements_on_remove=False remove socat"},
		"RPMAll":    {"dnf", []string{"tool"}, "tool", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if err := disk.Remove(log); err != nil {
				t.Fatal(err)
			}
			needed, err := (&Linux{}).Uninstall(t.Context(), tc.manager, tc.names)
			if err != nil || strings.Join(needed, " ") != tc.needed {
				t.Errorf("needed are %v, %v; want %s", needed, err, tc.needed)
			}
			said, err := os.ReadFile(log)
			if err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			if got := strings.TrimSpace(string(said)); got != tc.want {
				t.Errorf("it ran %q, want %q", got, tc.want)
			}
		})
	}
}
