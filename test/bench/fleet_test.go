//go:build bench

// Package bench measures the figures of docs/benchmarks.md with the real binary and real API
// servers. The figures are counts, or ratios to a plain client in the same run. The files need
// -tags bench, so that a run of all tests does not link them.
package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"orrery.dev/orrery/internal/hub"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/process"
	"orrery.dev/orrery/internal/sandbox"
	"orrery.dev/orrery/internal/testenv"
)

// fleet is a hub, run as its users run it, and members that are only API servers.
type fleet struct {
	dir     string
	args    []string // more flags of the server
	server  *exec.Cmd
	cfg     *rest.Config
	hub     client.WithWatch
	members []*rest.Config
}

// startServer starts `orrery server` and returns how long it took to be ready.
func (f *fleet) startServer(b *testing.B) time.Duration {
	b.Helper()
	ready := filepath.Join(f.dir, "ready")
	if err := os.Remove(ready); err != nil && !errors.Is(err, os.ErrNotExist) {
		b.Fatal(err)
	}
	log, err := os.OpenFile(filepath.Join(f.dir, "server.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		b.Fatal(err)
	}
	defer log.Close()
	f.server = exec.Command(filepath.Join(testenv.Root(), "bin", "orrery"), "server",
		"--data-dir="+filepath.Join(f.dir, "hub"), "--secure-port=0", "--fleet-port=0", "--ready-file="+ready)
	f.server.Args = append(f.server.Args, f.args...)
	if address := os.Getenv("ORRERY_PROFILING_ADDRESS"); address != "" {
		f.server.Args = append(f.server.Args, "--profiling-address="+address)
	}
	f.server.Stderr = log
	start := time.Now()
	if err := f.server.Start(); err != nil {
		b.Fatal(err)
	}
	poll(b, 2*time.Minute, "the hub to be ready", func(context.Context) (bool, error) {
		_, err := os.Stat(ready)
		return err == nil, nil
	})
	took := time.Since(start)
	if f.cfg, err = clientcmd.BuildConfigFromFlags("", filepath.Join(f.dir, "hub", "kubeconfig")); err != nil {
		b.Fatal(err)
	}
	f.cfg.QPS = -1
	if f.hub, err = client.NewWithWatch(f.cfg, client.Options{Scheme: hub.Scheme()}); err != nil {
		b.Fatal(err)
	}
	return took
}

func (f *fleet) stopServer(b *testing.B) {
	b.Helper()
	if err := f.server.Process.Signal(syscall.SIGTERM); err != nil {
		b.Fatal(err)
	}
	if err := f.server.Wait(); err != nil {
		b.Logf("server: %v", err)
	}
}

// startFleet starts a hub with n members.
func startFleet(b *testing.B, n int) *fleet {
	b.Helper()
	f := &fleet{dir: b.TempDir()}
	names := []string{"oak", "pine"}[:n]
	members, err := sandbox.Prepare(sandbox.Options{Dir: filepath.Join(f.dir, "members"), KubeBinary: testenv.KubeBinary(), Tier: sandbox.APIOnly}, names...)
	if err != nil {
		b.Fatal(err)
	}
	s, err := process.New(process.Plan{Name: "members", Parallelism: 2, Processes: members.Processes()},
		process.Options{Dir: filepath.Join(f.dir, "processes"), Log: logr.Discard()})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- s.Run(ctx) }()
	b.Cleanup(func() {
		if f.server.ProcessState == nil { // the server is running
			f.stopServer(b)
		}
		cancel()
		if err := errors.Join(<-stopped, members.Close()); err != nil {
			b.Error(err)
		}
	})
	f.startServer(b)
	select {
	case <-s.Ready():
	case err := <-stopped:
		b.Fatal(err)
	}
	var system corev1.Namespace
	if err := f.hub.Get(ctx, types.NamespacedName{Name: metav1.NamespaceSystem}, &system); err != nil {
		b.Fatal(err)
	}
	for _, m := range members.List() {
		kubeconfig, err := os.ReadFile(m.Kubeconfig())
		if err != nil {
			b.Fatal(err)
		}
		if _, err := member.Join(ctx, f.hub, member.JoinOptions{Name: m.Name, Kubeconfig: kubeconfig, HubID: string(system.UID)}); err != nil {
			b.Fatal(err)
		}
		if _, err := member.WaitReady(ctx, f.hub, m.Name); err != nil {
			b.Fatal(err)
		}
		cfg, err := m.Config()
		if err != nil {
			b.Fatal(err)
		}
		f.members = append(f.members, cfg)
	}
	return f
}

// writes counts the successful write requests to an API server so far, by verb and resource. It
// skips reviews and Leases, such as the Lease of the API server's own identity.
func writes(b *testing.B, cfg *rest.Config) map[string]int {
	b.Helper()
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		b.Fatal(err)
	}
	text, err := c.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(context.Background())
	if err != nil {
		b.Fatal(err)
	}
	count := map[string]int{}
	scan := bufio.NewScanner(bytes.NewReader(text))
	scan.Buffer(nil, 1<<20)
	for scan.Scan() {
		line := scan.Text()
		if !strings.HasPrefix(line, "apiserver_request_total{") {
			continue
		}
		verb, resource, code := label(line, "verb"), label(line, "resource"), label(line, "code")
		if !slices.Contains([]string{"POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"}, verb) || resource == "leases" ||
			strings.HasSuffix(resource, "reviews") || !strings.HasPrefix(code, "2") {
			continue
		}
		n, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		if err != nil {
			b.Fatal(err)
		}
		if sub := label(line, "subresource"); sub != "" {
			resource += "/" + sub
		}
		count[verb+" "+resource] += int(n)
	}
	return count
}

func label(line, name string) string {
	_, rest, _ := strings.Cut(line, name+`="`)
	value, _, _ := strings.Cut(rest, `"`)
	return value
}

// since returns the number of writes that after has more than before, and describes them.
func since(before, after map[string]int) (total int, what string) {
	var parts []string
	for k, n := range after {
		if d := n - before[k]; d > 0 {
			total += d
			parts = append(parts, fmt.Sprintf("%d %s", d, k))
		}
	}
	return total, strings.Join(parts, ", ")
}

// poll waits until check returns true. It fails b when the time is over.
func poll(b *testing.B, within time.Duration, what string, check func(context.Context) (bool, error)) {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	if err := wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, check); err != nil {
		b.Fatalf("wait for %s: %v", what, err)
	}
}

// pss adds up the proportional set sizes of a process and its descendants, in bytes.
func pss(b *testing.B, pid int) (total int, each []string) {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.SplitSeq(string(text), "\n") {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "Pss:" {
			kb, err := strconv.Atoi(f[1])
			if err != nil {
				b.Fatal(err)
			}
			total = kb << 10
		}
	}
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		b.Fatal(err)
	}
	words := strings.Split(string(cmdline), "\x00")
	each = append(each, fmt.Sprintf("%s %s: %d MiB", filepath.Base(words[0]), words[1], total>>20))
	children, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		b.Fatal(err)
	}
	for _, file := range children {
		pids, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended
		}
		for p := range strings.FieldsSeq(string(pids)) {
			n, err := strconv.Atoi(p)
			if err != nil {
				b.Fatal(err)
			}
			more, names := pss(b, n)
			total += more
			each = append(each, names...)
		}
	}
	return total, each
}
