package lab

import (
	"bufio"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// abandonVariable makes the test binary start a lab, print its host's first process and bridge, and
// wait until it is killed.
const abandonVariable = "LAB_TEST_ABANDON"

func abandon() error {
	l, err := Start(context.Background(), Options{Hosts: 1, Dir: os.Getenv(abandonVariable)})
	if err != nil {
		return err
	}
	fmt.Println("READY", l.Host("host-1").PID(), l.network.bridge)
	_, err = os.Stdin.Read(make([]byte, 1)) // it ends with the test at the latest
	return err
}

// traces lists what the machine has of the lab with the bridge and directory.
func traces(t *testing.T, bridge, dir string, pid int) []string {
	t.Helper()
	var found []string
	patterns := []string{
		"/sys/class/net/" + bridge + "*", dir,
		filepath.Join(records, strings.TrimPrefix(bridge, bridgeName(""))),
	}
	for _, g := range lab.groups {
		patterns = append(patterns, filepath.Join(g.Own, bridge))
	}
	for _, pattern := range patterns {
		matches, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, matches...)
	}
	if program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil { // a zombie has none
		found = append(found, program)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, dir) {
			found = append(found, line)
		}
	}
	return found
}

func TestCloseLeavesNothing(t *testing.T) {
	dir := filepath.Join("/var/tmp", fmt.Sprintf("orrery-lab-close-%d", os.Getpid()))
	l, err := Start(t.Context(), Options{Hosts: 2, Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	bridge, pid := l.network.bridge, l.Host("host-1").PID()
	if bridge == lab.network.bridge {
		t.Errorf("two labs have the bridge %s", bridge)
	}
	// Traces of a cluster that was not removed.
	inHost(t, l.Host("host-1"), `mkdir -p /sys/fs/cgroup/pids/kubepods/pod /var/lib/kubelet/pods
mount -t tmpfs x /var/lib/kubelet/pods; mount --bind /var/lib/kubelet /mnt
ip netns add pod
echo 0 >/sys/fs/cgroup/pids/kubepods/pod/cgroup.procs
setsid sleep 4242 >/dev/null 2>&1 &`)
	if len(traces(t, bridge, dir, pid)) == 0 {
		t.Fatal("a running lab has no traces: the test cannot see any")
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string(nil), traces(t, bridge, dir, pid)); diff != "" {
		t.Errorf("the lab left (-want +got):\n%s", diff)
	}
}

// TestKilledLabIsRemoved: the hosts of a lab whose process is killed die with it, and the next lab
// removes the rest.
func TestKilledLabIsRemoved(t *testing.T) {
	dir := filepath.Join("/var/tmp", fmt.Sprintf("orrery-lab-killed-%d", os.Getpid()))
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), abandonVariable+"="+dir)
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	var bridge string
	for lines := bufio.NewScanner(stdout); pid == 0 && lines.Scan(); {
		_, _ = fmt.Sscanf(lines.Text(), "READY %d %s", &pid, &bridge)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if pid == 0 {
		t.Fatal("the other lab did not start")
	}
	if _, err := os.Stat(dir); err != nil {
		t.Fatalf("the killed lab's directory: %v", err)
	}
	next, err := Start(t.Context(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if next.network.bridge != bridge {
		if diff := cmp.Diff([]string(nil), traces(t, bridge, dir, pid)); diff != "" {
			t.Errorf("the killed lab left (-want +got):\n%s", diff)
		}
	}
	if err := next.Close(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string(nil), traces(t, bridge, dir, pid)); diff != "" {
		t.Errorf("the killed lab left (-want +got):\n%s", diff)
	}
	if _, err := lab.Host("host-1").Run(t.Context(), "true"); err != nil {
		t.Errorf("a living lab was taken for a dead one: %v", err)
	}
}

// TestLinksOfADeadLab: a link with a name of a new lab is one of a dead lab, which the kernel has
// not removed yet, because a process is still in the network namespace at its other end. The new
// lab removes it.
func TestLinksOfADeadLab(t *testing.T) {
	holder := exec.Command("sleep", "infinity")
	holder.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = holder.Process.Kill()
		_ = holder.Wait() // the error says that the process was killed
	})
	// No lab takes this number, which is greater than 255.
	n := &network{bridge: bridgeName(strconv.Itoa(256 + os.Getpid())), subnet: netip.MustParsePrefix("10.78.0.0/24"), gateway: netip.MustParseAddr("10.78.0.1")}
	t.Cleanup(func() {
		if err := removeLinks(context.Background(), n.bridge); err != nil {
			t.Error(err)
		}
	})
	links := []string{n.bridge + "h1", n.bridge + "c1"}
	for i, link := range links {
		err := run(t.Context(), "ip", "link", "add", link, "type", "veth", "peer", "name", fmt.Sprintf("eth%d", i), "netns", strconv.Itoa(holder.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := n.make(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, link := range links {
		if err := n.connect(t.Context(), link, holder.Process.Pid, n.address(i+1)); err != nil {
			t.Error(err)
		}
		n.disconnect(link) // the namespace has one eth0
	}
}
