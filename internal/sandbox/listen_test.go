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
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"orrery.dev/orrery/internal/process"
	"orrery.dev/orrery/internal/sandbox"
	"orrery.dev/orrery/internal/testenv"
)

// TestOnlyAPIServersListen: clients reach the data of the clusters only through the API
// servers, which authenticate them. No other process listens on TCP, except KWOK, which serves
// the logs of simulated containers. Only the owner can enter the directory of etcd's socket.
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
	oak := c.List()[0]
	runPod(t, oak)
	cfg, err := oak.Config()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"oak-apiserver on " + strings.TrimPrefix(cfg.Host, "https://127.0.0.1:")}
	for _, p := range c.Processes() {
		for _, arg := range p.Command {
			if port, ok := strings.CutPrefix(arg, "--node-port="); ok {
				want = append(want, p.Name+" on "+port)
			}
		}
	}
	// KWOK listens some time after it has begun with the pods, and after all others.
	testenv.Eventually(t, "only these processes listen", testenv.Patience, func() error {
		var listening []string
		for _, p := range s.Status() {
			ports, err := tcpPorts(p.PID)
			if err != nil {
				return fmt.Errorf("%s: %w", p.Name, err)
			}
			for _, port := range ports {
				listening = append(listening, fmt.Sprintf("%s on %d", p.Name, port))
			}
		}
		if diff := cmp.Diff(want, listening); diff != "" {
			return errors.New(diff)
		}
		return nil
	})
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

// runPod waits until a pod runs in a cluster. All processes of the cluster take part in that, so
// none of them is still starting.
func runPod(t *testing.T, oak *sandbox.Cluster) {
	t.Helper()
	cfg, err := oak.Config()
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	pods := client.CoreV1().Pods(metav1.NamespaceDefault)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web"}}},
	}
	testenv.Eventually(t, "a pod runs", testenv.Patience, func() error {
		if err := oak.AddNodes(t.Context(), 1); err != nil {
			return err
		}
		// It is refused until the controller manager has created the ServiceAccount.
		if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
		is, err := pods.Get(t.Context(), pod.Name, metav1.GetOptions{})
		if err == nil && is.Status.Phase != corev1.PodRunning {
			err = fmt.Errorf("it is %q on node %q", is.Status.Phase, is.Spec.NodeName)
		}
		return err
	})
}

// tcpPorts returns the ports on which a process listens, sorted. It is an error if the process does
// not run.
func tcpPorts(pid int) ([]int, error) {
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err == nil && len(fds) == 0 {
		err = os.ErrProcessDone
	}
	if err != nil {
		return nil, fmt.Errorf("list the files of process %d: %w", pid, err)
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
			return nil, err
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
				f.Close()
				return nil, err
			}
			ports = append(ports, int(port))
		}
		f.Close()
	}
	slices.Sort(ports)
	return slices.Compact(ports), nil
}
