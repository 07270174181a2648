package sandbox_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"orrery.dev/orrery/internal/process"
	"orrery.dev/orrery/internal/sandbox"
	"orrery.dev/orrery/internal/testenv"
)

// TestOnlyAPIServersListen: clients reach the data of the clusters only through the API
// servers, which authenticate them. No other process listens on TCP, and only the owner can
// enter the directory of etcd's socket.
func TestOnlyAPIServersListen(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "members")
	c, err := sandbox.Prepare(sandbox.Options{Dir: dir, KubeBinary: testenv.KubeBinary(), Tier: sandbox.Simulated, GOGC: testenv.GOGC}, "oak")
	if err != nil {
		t.Fatal(err)
	}
	processes := filepath.Join(t.TempDir(), "processes")
	s, err := process.New(process.Plan{Name: "members", Processes: c.Processes()}, process.Options{Dir: processes})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	defer func() {
		stop()
		if err := errors.Join(<-ended, c.Close()); err != nil {
			t.Error(err)
		}
	}()
	select {
	case <-s.Ready():
	case <-time.After(testenv.Patience):
		t.Fatal("the cluster is not ready")
	}
	cfg, err := c.List()[0].Config()
	if err != nil {
		t.Fatal(err)
	}
	var listening []string
	for _, p := range s.Status() {
		for _, port := range tcpPorts(t, p.PID) {
			listening = append(listening, fmt.Sprintf("%s on %d", p.Name, port))
		}
	}
	want := []string{"oak-apiserver on " + strings.TrimPrefix(cfg.Host, "https://127.0.0.1:")}
	if diff := cmp.Diff(want, listening); diff != "" {
		t.Error(diff)
	}
	sockets, err := filepath.Glob(filepath.Join(dir, "*", "*.sock*"))
	if err != nil || len(sockets) == 0 {
		t.Fatalf("sockets: %v %v", sockets, err)
	}
	for _, socket := range sockets {
		info, err := os.Stat(filepath.Dir(socket))
		if err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("the directory of %s: %v %v", socket, info.Mode(), err)
		}
	}
}

// tcpPorts returns the ports on which a process listens, sorted.
func tcpPorts(t *testing.T, pid int) []int {
	t.Helper()
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil || len(fds) == 0 {
		t.Fatalf("files of process %d: %v %v", pid, fds, err)
	}
	inodes := map[string]bool{}
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil && strings.HasPrefix(target, "socket:[") {
			inodes[strings.Trim(target, "socket:[]")] = true
		}
	}
	var ports []int
	for _, table := range []string{"tcp", "tcp6"} {
		f, err := os.Open(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		if err != nil {
			t.Fatal(err)
		}
		for lines := bufio.NewScanner(f); lines.Scan(); {
			const local, state, inode, listen = 1, 3, 9, "0A"
			fields := strings.Fields(lines.Text())
			if len(fields) <= inode || fields[state] != listen || !inodes[fields[inode]] {
				continue
			}
			_, text, _ := strings.Cut(fields[local], ":")
			port, err := strconv.ParseInt(text, 16, 32)
			if err != nil {
				t.Fatal(err)
			}
			ports = append(ports, int(port))
		}
		f.Close()
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}
