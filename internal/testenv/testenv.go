// Package testenv provides real Kubernetes API servers for tests, started once for each test
// package. etcd and kube-apiserver come from the multicall binary that kube/ builds.
package testenv

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
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

// GOGC is the setting for the API servers, etcds and other Kubernetes components that tests
// start. They start faster than those of a demonstration, and take more memory.
const GOGC = 400

var servers []*Server

// Main starts n API servers, runs the package's tests and exits. Before it exits, it stops the
// servers, and the databases that tests have started.
func Main(m *testing.M, n int) {
	code, err := run(m, n)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testenv:", err)
		code = 1
	}
	os.Exit(code)
}

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
				servers[i] = s // a server that failed to start has stopped already
			}
			return err
		})
	}
	if err := starting.Wait(); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// Server is an API server with its own etcd.
type Server struct {
	dir        string
	clusters   *sandbox.Clusters // reserve the port
	cfg        *rest.Config
	kubeconfig []byte
	plan       []process.Process // etcd, then the API server
	etcd, api  *running
}

// running is a process with its own supervisor, so that an API server that a test has killed
// stays down until the test restarts it.
type running struct {
	stop    context.CancelFunc
	stopped chan error
}

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

// run starts a process and waits until it is ready.
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

func (s *Server) processDir(name string) string { return filepath.Join(s.dir, "processes", name) }

func (r *running) end() error {
	if r == nil {
		return nil
	}
	r.stop()
	return <-r.stopped
}

// stop kills the processes. Their last output is not needed.
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

// StartServer starts an API server for one test, with additional flags. The test may signal it.
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

// Config returns a configuration of an administrator for the server, without client-side rate
// limit.
func (s *Server) Config() *rest.Config { return rest.CopyConfig(s.cfg) }

// Kubeconfig returns the content of an administrator's kubeconfig for the server.
func (s *Server) Kubeconfig() []byte { return s.kubeconfig }

// Signal sends a signal to the kube-apiserver, such as SIGSTOP or SIGCONT. After SIGKILL it
// stays down until Restart.
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

// Config returns a configuration of an administrator for server i.
func Config(i int) *rest.Config {
	kubeDigest()
	return servers[i].Config()
}

// Kubeconfig returns the content of an administrator's kubeconfig for server i.
func Kubeconfig(i int) []byte {
	kubeDigest()
	return servers[i].Kubeconfig()
}

// InstallCRDs installs the named CustomResourceDefinitions of Orrery, such as
// clusters.cluster.orrery.dev, or all of them without names. They are embedded in the test
// binary, so that Go's cache of test results depends on their content and not on the time of a
// file.
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
		// Installing changes the definitions that it gets.
		crds := make([]*apiextensionsv1.CustomResourceDefinition, 0, len(wanted))
		for _, d := range wanted {
			crds = append(crds, d.DeepCopy())
		}
		_, err := envtest.InstallCRDs(cfg, envtest.CRDInstallOptions{CRDs: crds, MaxTime: Patience})
		return err
	})
}

// definitions returns the CustomResourceDefinitions of Orrery.
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

// Programs must be called by each test that starts bin/orrery, or another program of this tree
// whose packages the test does not import. Go takes the result of a test from its cache until
// an environment variable that the test has read changes. hack/test.sh sets ORRERY_PROGRAMS to
// the digest of these programs. Go does not see variables that TestMain reads, so a call from
// there has no effect.
func Programs() {
	_ = os.Getenv("ORRERY_PROGRAMS")
	usesPrograms.Store(true)
}

// Program returns the command that runs a program of bin. It runs the program through env(1):
// if a test starts a file of the project itself, Go's cache depends on the size and time of
// that file, which differ in each build. Programs makes the cache depend on the digest instead.
func Program(ctx context.Context, path string, args ...string) *exec.Cmd {
	Programs()
	return exec.CommandContext(ctx, "/usr/bin/env", append([]string{path}, args...)...)
}

// kubeDigest makes Go's cache of test results depend on bin/orrery-kube, as Programs does for
// the other programs.
func kubeDigest() { _ = os.Getenv("ORRERY_KUBE_DIGEST") }

// KubeBinary returns the path of the multicall binary of the Kubernetes components: of a symbolic
// link outside of the project. Go's cache of test results records path, size and time of a program
// of the project that a test starts, and would not serve a checkout in another directory.
func KubeBinary() string {
	kubeDigest()
	return kubeLink()
}

var kubeLink = sync.OnceValue(func() string {
	binary := filepath.Join(Root(), "bin", "orrery-kube")
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("orrery-kube-%08x", crc32.ChecksumIEEE([]byte(binary))))
	link := filepath.Join(dir, "orrery-kube")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		panic(err)
	}
	if err := os.Symlink(binary, link); err != nil && !errors.Is(err, fs.ErrExist) {
		panic(err)
	}
	return link
})

// Root returns the directory of the project: the closest parent of the working directory with a
// go.mod.
func Root() string { return root() }

// root asks the kernel for the working directory and for go.mod. Go's cache of test results records
// the variable PWD, which os.Getwd reads, and the path of a file that os.Stat looks at: the results
// would not serve a checkout in another directory.
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
