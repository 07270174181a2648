// Package testenv gives tests real Kubernetes API servers: etcd and kube-apiserver from
// the multicall binary that kube/ builds, once for each test package.
package testenv

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

var servers []*Server

// Main starts n API servers, runs the package's tests, stops the servers and exits.
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
		for _, s := range servers {
			err = errors.Join(err, s.env.Stop())
		}
	}()
	for range n {
		s, err := start()
		if err != nil {
			return 1, err
		}
		servers = append(servers, s)
	}
	return m.Run(), nil
}

// Server is one API server with an etcd of its own.
type Server struct {
	env *envtest.Environment
	cfg *rest.Config
}

func start() (*Server, error) {
	env := &envtest.Environment{
		BinaryAssetsDirectory:    filepath.Join(Root(), "bin", "assets"),
		ControlPlaneStartTimeout: 120 * time.Second,
		ControlPlaneStopTimeout:  20 * time.Second,
	}
	cfg, err := env.Start()
	if err != nil {
		return nil, fmt.Errorf("start API server (is bin/orrery-kube built? run make kube): %w", err)
	}
	cfg.QPS = -1
	return &Server{env: env, cfg: cfg}, nil
}

// StartServer starts an API server for one test, which may signal it.
func StartServer(t testing.TB) *Server {
	t.Helper()
	s, err := start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.signal(syscall.SIGCONT)
		if err := s.env.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Config is an administrator's access to the server, without client-side rate limit.
func (s *Server) Config() *rest.Config { return rest.CopyConfig(s.cfg) }

// Kubeconfig is an administrator's kubeconfig file for the server.
func (s *Server) Kubeconfig() []byte { return s.env.KubeConfig }

// Signal sends a signal, such as SIGSTOP, SIGCONT or SIGKILL, to the kube-apiserver.
func (s *Server) Signal(t testing.TB, sig syscall.Signal) {
	t.Helper()
	if err := s.signal(sig); err != nil {
		t.Fatal(err)
	}
}

// Restart starts the kube-apiserver again after it was killed, on the same address.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	if err := s.env.ControlPlane.APIServer.Start(); err != nil {
		t.Fatal(err)
	}
}

func (s *Server) signal(sig syscall.Signal) error {
	pids, err := listeners(strings.TrimPrefix(s.cfg.Host, "https://"))
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, sig); err != nil {
			return err
		}
	}
	return nil
}

// listeners finds the kube-apiserver processes whose command line names the port.
func listeners(address string) ([]int, error) {
	_, port, err := net.SplitHostPort(strings.TrimSuffix(address, "/"))
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, e := range entries {
		var pid int
		if _, err := fmt.Sscanf(e.Name(), "%d", &pid); err != nil {
			continue
		}
		cmdline, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil {
			continue // gone
		}
		if strings.Contains(string(cmdline), "kube-apiserver") && strings.Contains(string(cmdline), "--secure-port="+port+"\x00") {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// Config is an administrator's access to server i.
func Config(i int) *rest.Config { return servers[i].Config() }

// Kubeconfig is an administrator's kubeconfig file for server i.
func Kubeconfig(i int) []byte { return servers[i].Kubeconfig() }

// InstallCRDs installs Orrery's kinds.
func InstallCRDs(cfg *rest.Config) error {
	_, err := envtest.InstallCRDs(cfg, envtest.CRDInstallOptions{
		Paths:              []string{filepath.Join(Root(), "config", "crd")},
		ErrorIfPathMissing: true,
	})
	return err
}

// Namespace creates a namespace for one test and returns its name.
func Namespace(t testing.TB, cfg *rest.Config) string {
	t.Helper()
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ns, err := c.CoreV1().Namespaces().Create(context.Background(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return ns.Name
}

// KubeBinary is the multicall binary of Kubernetes components.
func KubeBinary() string { return filepath.Join(Root(), "bin", "orrery-kube") }

// Root is the folder of the project.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(filepath.Dir(filepath.Dir(file)))
}
