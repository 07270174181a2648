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

// Member is a cluster that can join a hub, with real controllers and scheduler and simulated nodes.
// Its kubeconfig leads through the Recorder, which records all requests of the hub. The embedded
// API is for the test, and bypasses the Recorder.
type Member struct {
	*API
	*Recorder
	// Name with which the cluster joins.
	Name       string
	cfg        *rest.Config
	kubeconfig string
	processes  string // directory of the pidfiles
}

// Members is a set of clusters that StartMembers has started on this machine.
type Members struct {
	List []*Member
	stop func() error
}

// StartMembers starts clusters with these names, each with this number of nodes, and waits until
// they are ready. Their files are in dir. The caller calls Stop.
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
		if err := poll(Patience, func() error { return c.AddNodes(ctx, nodes) }); err != nil {
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

// NewMember returns an API server that is running as a Member, and starts a recorder in front of
// it. cfg is the configuration of an administrator. The kubeconfig of the Member is stored in dir.
// The caller closes the recorder.
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

// Member returns the server as a Member that can join a hub under this name. It has no recorder:
// the hub's requests go to the server directly.
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

// Stop stops the clusters and their recorders. Later calls do nothing and return the same error.
func (m *Members) Stop() error { return m.stop() }

// Named returns the member with the name; nil if there is none.
func (m *Members) Named(name string) *Member {
	for _, one := range m.List {
		if one.Name == name {
			return one
		}
	}
	return nil
}

// DirectConfig returns a configuration of an administrator for the cluster that bypasses the
// recorder.
func (m *Member) DirectConfig() *rest.Config { return rest.CopyConfig(m.cfg) }

// Hub is a process of `orrery server` with its own data directory.
type Hub struct {
	*API
	// Dir is the data directory.
	Dir    string
	binary string
	// Ports of the API server, the fleet API and the public listener. They stay reserved while
	// the hub is down.
	ports  []*process.Port
	log    string
	flags  []string
	cmd    *exec.Cmd
	exited chan struct{}
}

// BuildOrrery builds the orrery program of this tree into dir and returns its path. It has the race
// detector if the tests have it.
//
// Linking takes ten seconds, and Go does not cache its result. The program is therefore built in
// bin/test, stays there, and is copied to dir. Go builds it again only if the source has changed,
// so a stale program is never used.
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
	// The caller gets its own copy: the next build replaces the file in bin/test.
	binary = filepath.Join(dir, "orrery")
	if out, err := exec.Command("cp", "--reflink=auto", filepath.Join(kept, name), binary).CombinedOutput(); err != nil {
		return "", fmt.Errorf("build orrery: %w\n%s", err, out)
	}
	return binary, nil
}

// lockFile waits until it has locked the file at path, which it creates if it is missing. It uses
// system calls directly, because Go's cache of a test's result would depend on a file that package
// os opens.
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

// StartHub starts a hub with the data directory DIR/hub and waits until it is ready. binary is the
// path of orrery. flags are more flags for `orrery server`, and hold for each start. The returned
// Hub is valid also with an error.
func StartHub(dir, binary string, flags ...string) (*Hub, error) {
	h := &Hub{Dir: filepath.Join(dir, "hub"), binary: binary, log: filepath.Join(dir, "hub.log"), flags: flags}
	return h, h.Start()
}

// hubAddress is the address at which hubs of tests listen.
const hubAddress = "127.0.0.1"

// Start starts the server, for the first time or after Stop or Kill, and waits until it is ready.
// Its ports stay reserved until the test process ends, so that each start uses the same ones.
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
	// The kernel kills the server when the test process is killed.
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := StartFromLastingThread(h.cmd); err != nil {
		return err
	}
	exited := make(chan struct{})
	h.exited = exited
	go func(cmd *exec.Cmd) { _ = cmd.Wait(); close(exited) }(h.cmd)
	err = poll(Patience, func() error {
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

// StartFromLastingThread starts a process whose SysProcAttr.Pdeathsig is set. The kernel sends that
// signal when the thread that started the process ends. Here this is a thread that ends only with
// this process.
func StartFromLastingThread(cmd *exec.Cmd) error {
	lasting.Do(func() { go lastingThread() })
	done := make(chan error)
	starts <- func() { done <- cmd.Start() }
	return <-done
}

// Kubeconfig returns the path of an administrator's kubeconfig for the hub.
func (h *Hub) Kubeconfig() string { return filepath.Join(h.Dir, "kubeconfig") }

// Config returns a configuration of an administrator for the hub.
func (h *Hub) Config() (*rest.Config, error) {
	return clientcmd.BuildConfigFromFlags("", h.Kubeconfig())
}

// Running reports whether the server is running.
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

// Stop ends the server with SIGTERM, as an operator does. If the server does not end within
// Patience, Stop kills it and returns an error. It does nothing if the server is not running.
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

// Kill ends the server with SIGKILL. It does nothing if the server is not running.
func (h *Hub) Kill() {
	if h.Running() {
		_ = h.cmd.Process.Kill()
		<-h.exited
	}
}

// Signal sends a signal to a process that the hub runs: etcd, kube-apiserver or
// kube-controller-manager. It does nothing if that process is not running.
func (h *Hub) Signal(name string, sig syscall.Signal) error {
	return signalPidfile(filepath.Join(h.Dir, "*", name+".pid"), sig)
}

// SignalAPIServer sends a signal to the kube-apiserver of a cluster that StartMembers has started.
// It does nothing if that process is not running.
func (m *Member) SignalAPIServer(sig syscall.Signal) error {
	return signalPidfile(filepath.Join(m.processes, m.Name+"-apiserver.pid"), sig)
}

// signalPidfile sends a signal to the process whose pidfile matches the pattern. It does nothing if
// there is no file or no process.
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
		return nil // the pidfile is being written
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

// Backup copies the data of the hub's etcd to the directory to. The hub must be stopped.
func (h *Hub) Backup(to string) error {
	return os.CopyFS(to, os.DirFS(filepath.Join(h.Dir, "etcd", "data")))
}

// Restore replaces the data of the hub's etcd by those that Backup has copied to from. Everything
// else in the data directory stays, as if an operator restored a backup. The hub must be stopped.
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

// LogTail returns the last lines of the server's log; lines is their number. If the log cannot be
// read, it returns the text of the error.
func (h *Hub) LogTail(lines int) string {
	text, err := os.ReadFile(h.log)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// LogSize returns the present size of the server's log in bytes, for LogSince. It is 0 if the
// log cannot be read.
func (h *Hub) LogSize() int64 {
	info, err := os.Stat(h.log)
	if err != nil {
		return 0
	}
	return info.Size()
}

// LogSince returns the part of the server's log that was written since LogSize returned size. It
// returns the text of the error if the log cannot be read.
func (h *Hub) LogSince(size int64) string {
	text, err := os.ReadFile(h.log)
	if err != nil {
		return err.Error()
	}
	return string(text[min(int(size), len(text)):])
}

// Crash returns the part of a server's log that begins with a crash of the Go program or a
// report of the race detector; "" if there is neither.
func Crash(log string) string {
	if at := crash.FindStringIndex(log); at != nil {
		return log[at[0]:min(len(log), at[0]+crashBytes)]
	}
	return ""
}

// crashBytes is the maximum length of the text that Crash returns. It is enough for the stacks of
// the goroutines in a data race.
const crashBytes = 8 << 10

// crash matches the first line of a crash of a Go program or of a report of the race detector.
var crash = regexp.MustCompile(`(?m)^(panic: |fatal error: |WARNING: DATA RACE)`)

// Orrery runs an orrery command as administrator of the hub, and returns its standard output and
// standard error. The error contains them, too.
func (h *Hub) Orrery(args ...string) (string, error) {
	return h.run(h.binary, args...)
}

// Kubectl runs a kubectl command as administrator of the hub, and returns its standard output and
// standard error. The error contains them, too.
func (h *Hub) Kubectl(args ...string) (string, error) {
	return h.run(KubeBinary(), append([]string{"kubectl"}, args...)...)
}

// run runs a program with the kubeconfig of the hub's administrator, and returns its output.
func (h *Hub) run(binary string, args ...string) (string, error) {
	cmd := exec.Command(binary, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+h.Kubeconfig())
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %s", filepath.Base(binary), strings.Join(args, " "), err, out)
	}
	return string(out), err
}

// Join runs `orrery cluster join` for a member, which returns when the member is ready. args are
// more arguments.
func (h *Hub) Join(m *Member, args ...string) error {
	_, err := h.Orrery(append([]string{"cluster", "join", m.Name, "--cluster-kubeconfig", m.kubeconfig}, args...)...)
	return err
}

// Unjoin runs `orrery cluster unjoin` for a member, which returns when the member has left the
// fleet. Its workloads stay. args are more arguments.
func (h *Hub) Unjoin(m *Member, args ...string) error {
	_, err := h.Orrery(append([]string{"cluster", "unjoin", m.Name}, args...)...)
	return err
}

// Joined reports whether the hub has a Cluster with the name of the member. That Cluster need not
// be ready.
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
