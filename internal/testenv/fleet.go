package testenv

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"orrery.dev/orrery/internal/process"
	"orrery.dev/orrery/internal/sandbox"
)

// Member is a cluster with real controllers and scheduler and simulated nodes. Everything
// that a hub does there is recorded; the embedded API goes around the recorder.
type Member struct {
	*API
	*Recorder
	// Name of the cluster, by which it is joined.
	Name       string
	cfg        *rest.Config
	kubeconfig string
	processes  string // the directory of their pidfiles
}

// Members are clusters on this machine.
type Members struct {
	List []*Member
	stop func() error
}

// StartMembers starts clusters, each with the number of nodes.
func StartMembers(dir string, nodes int, names ...string) (_ *Members, err error) {
	clusters, err := sandbox.Prepare(
		sandbox.Options{Dir: filepath.Join(dir, "members"), KubeBinary: KubeBinary(), Tier: sandbox.Simulated, GOGC: GOGC}, names...,
	)
	if err != nil {
		return nil, err
	}
	processes := filepath.Join(dir, "processes")
	s, err := process.New(process.Plan{Name: "members", Parallelism: 4, Processes: clusters.Processes()},
		process.Options{Dir: processes, Log: logr.Discard()})
	if err != nil {
		return nil, errors.Join(err, clusters.Close())
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- s.Run(ctx) }()
	m := &Members{}
	m.stop = sync.OnceValue(func() error {
		var errs []error
		for _, one := range m.List {
			errs = append(errs, one.Close())
		}
		cancel()
		return errors.Join(append(errs, <-stopped, clusters.Close())...)
	})
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("start members: %w", err), m.stop())
		}
	}()
	select {
	case <-s.Ready():
	case err := <-stopped:
		stopped <- nil
		return nil, err
	}
	for _, c := range clusters.List() {
		if err := c.AddNodes(ctx, nodes); err != nil {
			return nil, err
		}
		cfg, err := c.Config()
		if err != nil {
			return nil, err
		}
		one, err := NewMember(dir, c.Name, cfg)
		if err != nil {
			return nil, err
		}
		one.processes = processes
		m.List = append(m.List, one)
	}
	return m, nil
}

// NewMember puts a recorder before an API server that runs already. Its kubeconfig is kept in a
// directory. Who calls this closes the recorder.
func NewMember(dir, name string, cfg *rest.Config) (*Member, error) {
	m := &Member{Name: name, cfg: cfg, kubeconfig: filepath.Join(dir, name+".kubeconfig")}
	var err error
	if m.API, err = NewAPI(cfg); err != nil {
		return nil, err
	}
	if m.Recorder, err = NewRecorder(cfg); err != nil {
		return nil, err
	}
	if err := os.WriteFile(m.kubeconfig, m.Kubeconfig(), 0o600); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// Member is the server as a cluster that can be joined, with no recorder before it.
func (s *Server) Member(t testing.TB, name string) *Member {
	t.Helper()
	m := &Member{Name: name, cfg: s.Config(), kubeconfig: filepath.Join(t.TempDir(), name+".kubeconfig")}
	var err error
	if m.API, err = NewAPI(m.cfg); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(m.kubeconfig, s.Kubeconfig(), 0o600); err != nil {
		t.Fatal(err)
	}
	return m
}

// Stop stops the clusters.
func (m *Members) Stop() error { return m.stop() }

// Named returns the member of a name.
func (m *Members) Named(name string) *Member {
	for _, one := range m.List {
		if one.Name == name {
			return one
		}
	}
	return nil
}

// DirectConfig goes around the recorder.
func (m *Member) DirectConfig() *rest.Config { return rest.CopyConfig(m.cfg) }

// Hub is an `orrery server`, run as its users run it, with a data directory of its own.
type Hub struct {
	*API
	// Dir is its data directory.
	Dir    string
	binary string
	ports  []*process.Port // of the API server, the fleet API and the public listener; also while the hub is down
	log    string
	flags  []string
	cmd    *exec.Cmd
	exited chan struct{}
}

// BuildOrrery builds the orrery binary of this tree into a directory. Tests that run under the race detector get one that
// does. Linking takes ten seconds and Go keeps no result of it, so the binary is built in bin/test, where it stays: the next
// caller builds nothing unless the source has changed, and a stale binary is never used.
func BuildOrrery(dir string) (binary string, err error) {
	name, args, cgo := "orrery", []string{"build"}, "0"
	if RaceDetector {
		name, args, cgo = "orrery-race", append(args, "-race"), "1"
	}
	kept := filepath.Join(Root(), "bin", "test")
	if err := os.MkdirAll(kept, 0o755); err != nil {
		return "", fmt.Errorf("build orrery: %w", err)
	}
	unlock, err := lockFile(filepath.Join(kept, "lock"))
	if err != nil {
		return "", fmt.Errorf("build orrery: %w", err)
	}
	defer func() { err = errors.Join(err, unlock()) }()
	cmd := exec.Command("go", append(args, "-ldflags=-s -w", "-o", filepath.Join(kept, name), "./cmd/orrery")...)
	cmd.Dir = Root()
	cmd.Env = append(os.Environ(), "CGO_ENABLED="+cgo)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build orrery: %w\n%s", err, out)
	}
	// The caller has a file of its own: the next build replaces the one in bin/test.
	binary = filepath.Join(dir, "orrery")
	if out, err := exec.Command("cp", "--reflink=auto", filepath.Join(kept, name), binary).CombinedOutput(); err != nil {
		return "", fmt.Errorf("build orrery: %w\n%s", err, out)
	}
	return binary, nil
}

// lockFile waits until no other process has the lock of a file. It makes the system calls itself: Go's cache of test results
// would depend on a file that os opens.
func lockFile(path string) (unlock func() error, err error) {
	fd, err := syscall.Open(path, syscall.O_RDWR|syscall.O_CREAT|syscall.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	unlock = func() error { return syscall.Close(fd) }
	for {
		switch err := syscall.Flock(fd, syscall.LOCK_EX); {
		case err == nil:
			return unlock, nil
		case !errors.Is(err, syscall.EINTR):
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), unlock())
		}
	}
}

// StartHub starts a hub whose data directory is hub in dir. The flags are for `orrery server`, each time it starts.
func StartHub(dir, binary string, flags ...string) (*Hub, error) {
	h := &Hub{Dir: filepath.Join(dir, "hub"), binary: binary, log: filepath.Join(dir, "hub.log"), flags: flags}
	return h, h.Start()
}

// hubAddress is where a hub listens.
const hubAddress = "127.0.0.1"

// Start starts the server and waits until it is ready. Its ports stay reserved until the test
// process ends, so that a hub that was stopped finds them free.
func (h *Hub) Start() error {
	for len(h.ports) < 3 {
		port, err := process.ReservePort(hubAddress, 0)
		if err != nil {
			return err
		}
		h.ports = append(h.ports, port)
	}
	number := func(i int) string { return strconv.Itoa(h.ports[i].Number) }
	ready := filepath.Join(filepath.Dir(h.Dir), "ready")
	if err := os.Remove(ready); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	log, err := os.OpenFile(h.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	h.cmd = exec.Command(h.binary, append([]string{
		"server", "--data-dir", h.Dir, "--kube-binary", KubeBinary(),
		"--secure-port=" + number(0), "--fleet-port=" + number(1), "--public-address=" + net.JoinHostPort(hubAddress, number(2)),
		"--unsafe-no-fsync", "-v=1", "--ready-file", ready,
	}, h.flags...)...)
	h.cmd.Stdout, h.cmd.Stderr = log, log
	// A test that is killed leaves no server behind.
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := StartFromLastingThread(h.cmd); err != nil {
		return err
	}
	exited := make(chan struct{})
	h.exited = exited
	go func(cmd *exec.Cmd) { _ = cmd.Wait(); close(exited) }(h.cmd)
	err = poll(3*time.Minute, func() error {
		select {
		case <-exited:
			return nil
		default:
		}
		_, err := os.Stat(ready)
		return err
	})
	if _, missing := os.Stat(ready); err != nil || missing != nil {
		h.Kill()
		return fmt.Errorf("start hub: %w; its log ends:\n%s", errors.Join(err, missing), h.LogTail(30))
	}
	cfg, err := h.Config()
	if err != nil {
		return err
	}
	h.API, err = NewAPI(cfg)
	return err
}

// StartFromLastingThread starts a process that is killed when this process ends, and not
// before: the kernel counts the thread as its parent.
func StartFromLastingThread(cmd *exec.Cmd) error {
	lasting.Do(func() { go lastingThread() })
	done := make(chan error)
	starts <- func() { done <- cmd.Start() }
	return <-done
}

// Kubeconfig is an administrator's.
func (h *Hub) Kubeconfig() string { return filepath.Join(h.Dir, "kubeconfig") }

// Config is an administrator's access to the hub.
func (h *Hub) Config() (*rest.Config, error) {
	return clientcmd.BuildConfigFromFlags("", h.Kubeconfig())
}

// Running is true until the server has ended.
func (h *Hub) Running() bool {
	if h.cmd == nil {
		return false
	}
	select {
	case <-h.exited:
		return false
	default:
		return true
	}
}

// Stop ends the server as an operator does.
func (h *Hub) Stop() error {
	if !h.Running() {
		return nil
	}
	if err := h.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-h.exited:
		return nil
	case <-time.After(Patience):
		h.Kill()
		return errors.New("stop hub: it did not end, and was killed")
	}
}

// Kill ends the server with SIGKILL.
func (h *Hub) Kill() {
	if h.Running() {
		_ = h.cmd.Process.Kill()
		<-h.exited
	}
}

// Signal sends a signal to a process of the hub: etcd, kube-apiserver or
// kube-controller-manager. One that is not running now is no error.
func (h *Hub) Signal(name string, sig syscall.Signal) error {
	return signalPidfile(filepath.Join(h.Dir, "*", name+".pid"), sig)
}

// SignalAPIServer sends a signal to the member's kube-apiserver.
func (m *Member) SignalAPIServer(sig syscall.Signal) error {
	return signalPidfile(filepath.Join(m.processes, m.Name+"-apiserver.pid"), sig)
}

func signalPidfile(pattern string, sig syscall.Signal) error {
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		return err
	}
	text, err := os.ReadFile(files[0])
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	words := strings.Fields(string(text))
	if len(words) == 0 {
		return nil // it is being written
	}
	pid, err := strconv.Atoi(words[0])
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}

// Backup copies etcd's data away. The hub must be stopped.
func (h *Hub) Backup(to string) error {
	return os.CopyFS(to, os.DirFS(filepath.Join(h.Dir, "etcd", "data")))
}

// Restore puts etcd's data back, as an operator restores a backup: everything else in the
// data directory stays. The hub must be stopped.
func (h *Hub) Restore(from string) error {
	data := filepath.Join(h.Dir, "etcd", "data")
	if err := os.RemoveAll(data); err != nil {
		return err
	}
	if err := os.CopyFS(data, os.DirFS(from)); err != nil {
		return err
	}
	return os.Chmod(data, 0o700)
}

// LogTail is the end of the server's log.
func (h *Hub) LogTail(lines int) string {
	text, err := os.ReadFile(h.log)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// LogSize is how much the server has logged so far, for LogSince.
func (h *Hub) LogSize() int64 {
	info, err := os.Stat(h.log)
	if err != nil {
		return 0
	}
	return info.Size()
}

// LogSince is what the server has logged since then.
func (h *Hub) LogSince(size int64) string {
	text, err := os.ReadFile(h.log)
	if err != nil {
		return err.Error()
	}
	return string(text[min(int(size), len(text)):])
}

// Crash returns the part of a server's log that begins where it says that the Go program ended by a fault of its own, or that
// the race detector found one. It is empty if the log says neither.
func Crash(log string) string {
	if at := crash.FindStringIndex(log); at != nil {
		return log[at[0]:min(len(log), at[0]+crashBytes)]
	}
	return ""
}

// crashBytes are enough for the stacks of what met.
const crashBytes = 8 << 10

var crash = regexp.MustCompile(`(?m)^(panic: |fatal error: |WARNING: DATA RACE)`)

// Orrery runs an orrery command against the hub.
func (h *Hub) Orrery(args ...string) (string, error) {
	return h.run(h.binary, args...)
}

// Kubectl runs kubectl against the hub.
func (h *Hub) Kubectl(args ...string) (string, error) {
	return h.run(KubeBinary(), append([]string{"kubectl"}, args...)...)
}

func (h *Hub) run(binary string, args ...string) (string, error) {
	cmd := exec.Command(binary, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+h.Kubeconfig())
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %s", filepath.Base(binary), strings.Join(args, " "), err, out)
	}
	return string(out), err
}

// Join joins a member and returns when it is ready.
func (h *Hub) Join(m *Member, args ...string) error {
	_, err := h.Orrery(append([]string{"cluster", "join", m.Name, "--cluster-kubeconfig", m.kubeconfig}, args...)...)
	return err
}

// Unjoin takes a member out of the fleet and returns when it has left. Its workloads stay.
func (h *Hub) Unjoin(m *Member, args ...string) error {
	_, err := h.Orrery(append([]string{"cluster", "unjoin", m.Name}, args...)...)
	return err
}

// Joined is true when the hub has a Cluster of the member's name.
func (h *Hub) Joined(t testing.TB, m *Member) bool {
	t.Helper()
	joined := false
	Eventually(t, "list clusters", Patience, func() error {
		clusters, err := h.ListKind(context.Background(), "cluster.orrery.dev/v1alpha1", "Cluster", "")
		for _, c := range clusters {
			joined = joined || c.GetName() == m.Name
		}
		return err
	})
	return joined
}
