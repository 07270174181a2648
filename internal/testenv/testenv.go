// Package testenv provides real Kubernetes API servers for tests, started once for each test
// package. etcd and kube-apiserver come from the multicall binary that kube/ builds.
package testenv

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"

	"orrery.dev/orrery/config/crd"
	"orrery.dev/orrery/internal/process"
	"orrery.dev/orrery/internal/sandbox"
)

// GOGC is the environment variable of the API servers, etcds and other Kubernetes components that
// tests start. They start faster with it than those of the demonstration, and take more memory.
const GOGC = 400

// servers are the API servers that Main has started, for Config and Kubeconfig.
var servers []*Server

// Main starts n API servers, runs the tests of the package and exits with their result. A package
// calls it from TestMain. Before it exits, it stops the servers, and the databases that tests have
// started.
func Main(m *testing.M, n int) {
	code, err := run(m, n)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testenv:", err)
		code = 1
	}
	os.Exit(code)
}

// run does the work of Main and returns the exit code.
func run(m *testing.M, n int) (code int, err error) {
	defer func() {
		var stopping errgroup.Group
		for _, s := range servers {
			if s != nil {
				stopping.Go(s.stop)
			}
		}
		err = errors.Join(err, stopping.Wait(), StopDatabases())
	}()
	servers = make([]*Server, n)
	var starting errgroup.Group
	for i := range servers {
		starting.Go(func() error {
			s, err := start()
			if err == nil {
				servers[i] = s // after an error, start has stopped the server
			}
			return err
		})
	}
	if err := starting.Wait(); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// Server is an API server with its own etcd. It has no controllers and no nodes.
type Server struct {
	dir        string
	clusters   *sandbox.Clusters // reserve the port
	cfg        *rest.Config
	kubeconfig []byte
	plan       []process.Process // etcd, then the API server
	etcd, api  *running
}

// running is a process with a supervisor of its own. A supervisor starts its process again when
// the process ends. After SIGKILL, Signal therefore ends the supervisor of the API server alone, so
// that the API server stays down until the test restarts it.
type running struct {
	stop    context.CancelFunc
	stopped chan error
}

// start starts an API server with its own etcd, with additional flags for kube-apiserver. After an
// error nothing is left.
func start(flags ...string) (_ *Server, err error) {
	s := &Server{}
	if s.dir, err = os.MkdirTemp("", "orrery-test-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("start API server (is bin/orrery-kube built? run make kube): %w", err), s.stop())
		}
	}()
	s.clusters, err = sandbox.Prepare(sandbox.Options{Dir: s.dir, KubeBinary: KubeBinary(), Tier: sandbox.APIOnly, GOGC: GOGC}, "server")
	if err != nil {
		return nil, err
	}
	s.plan = s.clusters.Processes()
	s.plan[1].After = nil
	s.plan[1].Command = append(s.plan[1].Command, flags...)
	c := s.clusters.List()[0]
	if s.cfg, err = c.Config(); err != nil {
		return nil, err
	}
	if s.kubeconfig, err = os.ReadFile(c.Kubeconfig()); err != nil {
		return nil, err
	}
	if s.etcd, err = s.run(s.plan[0]); err != nil {
		return nil, err
	}
	s.api, err = s.run(s.plan[1])
	return s, err
}

// run starts a process of the server and waits until it is ready.
func (s *Server) run(p process.Process) (*running, error) {
	supervisor, err := process.New(
		process.Plan{Name: "test", Processes: []process.Process{p}},
		process.Options{Dir: s.processDir(p.Name)},
	)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{stop: cancel, stopped: make(chan error, 1)}
	go func() { r.stopped <- supervisor.Run(ctx) }()
	select {
	case <-supervisor.Ready():
		return r, nil
	case err := <-r.stopped:
		cancel()
		return nil, err
	}
}

// processDir returns the directory for the supervisor of a process, which has the pidfile.
func (s *Server) processDir(name string) string { return filepath.Join(s.dir, "processes", name) }

// end stops the process, if r is not nil, and waits for its end.
func (r *running) end() error {
	if r == nil {
		return nil
	}
	r.stop()
	return <-r.stopped
}

// stop kills the processes and removes the files of the server.
func (s *Server) stop() error {
	for _, p := range s.plan {
		_ = s.signal(p.Name, syscall.SIGKILL) // a process that is not running has no pidfile
	}
	err := errors.Join(s.api.end(), s.etcd.end())
	if s.clusters != nil {
		err = errors.Join(err, s.clusters.Close())
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}

// StartServer starts an API server for one test, with additional flags for kube-apiserver. It is
// stopped at the end of the test. Unlike the servers of Main, the test may signal and kill it.
func StartServer(t testing.TB, flags ...string) *Server {
	t.Helper()
	s, err := start(flags...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Config returns a client configuration of an administrator for the server, without a client-side
// rate limit.
func (s *Server) Config() *rest.Config { return rest.CopyConfig(s.cfg) }

// Kubeconfig returns the content of an administrator's kubeconfig for the server.
func (s *Server) Kubeconfig() []byte { return s.kubeconfig }

// Signal sends a signal to the kube-apiserver, such as SIGSTOP or SIGCONT. After SIGKILL the
// kube-apiserver stays down until Restart.
func (s *Server) Signal(t testing.TB, sig syscall.Signal) {
	t.Helper()
	if err := s.signal(s.plan[1].Name, sig); err != nil {
		t.Fatal(err)
	}
	if sig == syscall.SIGKILL {
		if err := s.api.end(); err != nil {
			t.Fatal(err)
		}
		s.api = nil
	}
}

// signal sends a signal to the process with this name, from its pidfile.
func (s *Server) signal(name string, sig syscall.Signal) error {
	text, err := os.ReadFile(filepath.Join(s.processDir(name), name+".pid"))
	if err != nil {
		return err
	}
	words := strings.Fields(string(text))
	if len(words) == 0 {
		return fmt.Errorf("the pidfile of %s is empty", name)
	}
	pid, err := strconv.Atoi(words[0])
	if err != nil {
		return err
	}
	return syscall.Kill(pid, sig)
}

// Restart starts a killed kube-apiserver again at the same address, and returns when it is
// ready.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	var err error
	if s.api, err = s.run(s.plan[1]); err != nil {
		t.Fatal(err)
	}
}

// Config returns a client configuration of an administrator for server i of those that Main has
// started, from 0.
func Config(i int) *rest.Config {
	kubeDigest()
	return servers[i].Config()
}

// Kubeconfig returns the content of an administrator's kubeconfig for server i of those that Main
// has started, from 0.
func Kubeconfig(i int) []byte {
	kubeDigest()
	return servers[i].Kubeconfig()
}

// InstallCRDs installs the named CustomResourceDefinitions of Orrery, such as
// clusters.cluster.orrery.dev. Without names it installs all. An unknown name is an error.
//
// The definitions are embedded in the test binary. Go's cache of test results therefore depends on
// their content and not on the time of a file.
func InstallCRDs(cfg *rest.Config, names ...string) error {
	all, err := definitions()
	if err != nil {
		return err
	}
	wanted := slices.DeleteFunc(all, func(d *apiextensionsv1.CustomResourceDefinition) bool {
		return len(names) > 0 && !slices.Contains(names, d.Name)
	})
	if len(wanted) < len(names) {
		return fmt.Errorf("install CustomResourceDefinitions: config/crd does not have all of %v", names)
	}
	return poll(Patience, func() error {
		// envtest changes the definitions that it gets, so each attempt needs copies.
		crds := make([]*apiextensionsv1.CustomResourceDefinition, 0, len(wanted))
		for _, d := range wanted {
			crds = append(crds, d.DeepCopy())
		}
		_, err := envtest.InstallCRDs(cfg, envtest.CRDInstallOptions{CRDs: crds, MaxTime: Patience})
		return err
	})
}

// definitions returns the CustomResourceDefinitions of Orrery, which are embedded in the test
// binary.
func definitions() ([]*apiextensionsv1.CustomResourceDefinition, error) {
	files, err := fs.Glob(crd.Files, "*.yaml")
	if err != nil {
		return nil, err
	}
	all := make([]*apiextensionsv1.CustomResourceDefinition, 0, len(files))
	for _, file := range files {
		text, err := crd.Files.ReadFile(file)
		if err != nil {
			return nil, err
		}
		definition := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(text, definition); err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}
		all = append(all, definition)
	}
	return all, nil
}

// Namespace creates a namespace for one test and returns its name.
func Namespace(t testing.TB, cfg *rest.Config) string {
	t.Helper()
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var ns *corev1.Namespace
	Eventually(t, "create a namespace", Patience, func() (err error) {
		ns, err = c.CoreV1().Namespaces().Create(context.Background(),
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, metav1.CreateOptions{})
		return err
	})
	return ns.Name
}

// Programs makes Go's cache of a test's result depend on the programs of this tree. Each test must
// call it that starts bin/orrery, or another program whose packages the test does not import.
//
// Go uses a cached result until an environment variable that the test has read changes.
// hack/digests.sh sets ORRERY_PROGRAMS to the digest of these programs. Go does not see variables
// that TestMain reads, so a call from there has no effect.
func Programs() {
	_ = os.Getenv("ORRERY_PROGRAMS")
	usesPrograms.Store(true)
}

// Program returns the command that runs a program of this tree, such as bin/orrery. It calls
// Programs.
//
// It runs the program through env(1). If a test starts a file of the project itself, Go's cache
// depends on the size and time of that file. These differ in each build.
func Program(ctx context.Context, path string, args ...string) *exec.Cmd {
	Programs()
	return exec.CommandContext(ctx, "/usr/bin/env", append([]string{path}, args...)...)
}

// kubeDigest makes Go's cache of a test's result depend on the content of bin/orrery-kube. It
// returns the path that hack/digests.sh gives to that content; "": it did not run.
func kubeDigest() string { return os.Getenv("ORRERY_KUBE") }

// KubeBinary returns the path of the multicall binary of the Kubernetes components.
//
// If a test starts a program of the project, Go's cache of its result records path, size and time
// of that file, and the result would not serve another checkout. A symbolic link does not help: Go
// resolves it. So hack/digests.sh keeps the program outside of the project, in a directory named by
// the digest of its content.
func KubeBinary() string {
	return cmp.Or(kubeDigest(), filepath.Join(Root(), "bin", "orrery-kube"))
}

// Root returns the directory of the project: the closest parent of the working directory, or that
// itself, with a go.mod. It panics if there is none.
func Root() string { return root() }

// root returns what Root returns. It asks the kernel for the working directory and for go.mod.
// os.Getwd would read the variable PWD, and os.Stat would be recorded with its path. Go's cache of
// test results would then not serve a checkout in another directory.
var root = sync.OnceValue(func() string {
	dir, err := syscall.Getwd()
	if err != nil {
		panic(err)
	}
	for {
		if err := syscall.Stat(filepath.Join(dir, "go.mod"), new(syscall.Stat_t)); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			panic("no go.mod above the working directory: testenv serves tests of this project only")
		}
		dir = parent
	}
})
