package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/go-logr/logr"

	"orrery.dev/orrery/internal/hub"
	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/test/e2e/demo"
)

// server is an `orrery server` of one test.
type server struct {
	cmd *exec.Cmd
	dir string // its data directory as the test process sees it
	log string // the file with its standard error
}

// serverCommand returns an orrery server with a data directory. With a size, the directory is a
// file system of that size in a mount namespace, which needs no privilege. Only the server and
// its children see it.
func serverCommand(dir, size string, args ...string) *exec.Cmd {
	command := append([]string{demo.Orrery(), "server", "--data-dir", dir, "--kube-binary", testenv.KubeBinary()}, args...)
	if size != "" {
		const mount = `mount -t tmpfs -o mode=700,size="$1" orrery "$2" && shift 2 && exec "$@"`
		command = append([]string{"unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh", size, dir}, command...)
	}
	return testenv.Program(context.Background(), command[0], command[1:]...)
}

// startServer starts an orrery server and waits until it is ready.
func startServer(t *testing.T, size string, args ...string) *server {
	t.Helper()
	dir := t.TempDir()
	s := &server{log: filepath.Join(t.TempDir(), "log")}
	log, err := os.Create(s.log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	s.cmd = serverCommand(dir, size, append(args, "--ready-file", filepath.Join(dir, "ready"))...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(s.cmd.Process.Signal(syscall.SIGTERM), s.cmd.Wait()); err != nil {
			t.Errorf("stop: %v", err)
		}
		if t.Failed() {
			t.Log(s.text(t))
		}
	})
	s.dir = filepath.Join("/proc", fmt.Sprint(s.cmd.Process.Pid), "root", dir)
	eventually(t, deadline, func() string {
		if _, err := os.Stat(filepath.Join(s.dir, "ready")); err != nil {
			return err.Error()
		}
		return ""
	})
	return s
}

func (s *server) text(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(s.log)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// fill leaves no byte free in the server's data directory. The returned function frees the
// space again.
func (s *server) fill(t *testing.T) (empty func()) {
	t.Helper()
	path := filepath.Join(s.dir, "filler")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	for chunk := make([]byte, 1<<20); len(chunk) > 0 && err == nil; {
		if _, err = f.Write(chunk); errors.Is(err, syscall.ENOSPC) {
			chunk, err = chunk[:len(chunk)/2], nil
		}
	}
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

func (s *server) kubectl(stdin string, args ...string) (string, error) {
	cmd := exec.Command(testenv.KubeBinary(), append([]string{"kubectl", "--kubeconfig", filepath.Join(s.dir, "kubeconfig"), "--request-timeout=10s"}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// must runs kubectl until it succeeds. Objects that an earlier attempt has created count as
// created.
func (s *server) must(t *testing.T, stdin string, args ...string) {
	t.Helper()
	eventually(t, deadline, func() string {
		if out, err := s.kubectl(stdin, args...); err != nil && !strings.Contains(out, "(AlreadyExists)") {
			return out
		}
		return ""
	})
}

// until waits until kubectl get prints want.
func (s *server) until(t *testing.T, want string, args ...string) {
	t.Helper()
	eventually(t, deadline, func() string {
		out, err := s.kubectl("", append([]string{"get"}, args...)...)
		if err != nil || !strings.Contains(out, want) {
			return fmt.Sprintf("get %s: want %q, got %q", strings.Join(args, " "), want, out)
		}
		return ""
	})
}

// filling returns about size bytes that hardly compress. They differ for each name.
func filling(name string, size int) string {
	fill := make([]byte, size*3/4)
	_, _ = rand.NewChaCha8(sha256.Sum256([]byte(name))).Read(fill) // it never fails
	return base64.StdEncoding.EncodeToString(fill)
}

func bigConfigMap(name string, size int) string {
	return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: default}\ndata: {fill: %q}\n", name, filling(name, size))
}

// TestExternalAPIServer runs Orrery on an existing API server, with a data directory that
// becomes full and has free space again.
func TestExternalAPIServer(t *testing.T) {
	t.Parallel()
	// The API server stands for one that others run: the test uses only Orrery's code to start
	// it.
	external, err := hub.Start(t.Context(), hub.Options{DataDir: filepath.Join(t.TempDir(), "hub"), KubeBinary: testenv.KubeBinary(), UnsafeNoFsync: true}, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := external.Wait(); err != nil {
			t.Error(err)
		}
	})
	s := startServer(t, "24m", "--kubeconfig", external.KubeconfigPath())
	if _, err := os.Stat(filepath.Join(s.dir, "etcd")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it has an etcd: %v", err)
	}

	oak := testenv.StartServer(t)
	file := filepath.Join(t.TempDir(), "oak.kubeconfig")
	if err := os.WriteFile(file, oak.Kubeconfig(), 0o600); err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(s.dir, "kubeconfig")
	join(t, "oak", "--kubeconfig", kubeconfig, "--cluster-kubeconfig", file)
	for _, manifest := range []string{configMapPolicy("default"), bigConfigMap("first", 10)} {
		s.must(t, manifest, "--context=hub", "apply", "-f", "-")
	}
	s.until(t, "configmap/first", "--context=oak", "configmap", "first", "-n", "default", "-o", "name")
	s.until(t, "oak", "--context=fleet", "configmap", "first", "-n", "default")

	// The mirror cannot write and reports that. Placing continues, and stored objects can be
	// read.
	empty := s.fill(t)
	const count = 30
	for i := range count {
		s.must(t, bigConfigMap(fmt.Sprintf("big-%02d", i), 100_000), "--context=oak", "create", "-f", "-")
	}
	s.until(t, "no space left", "--context=hub", "cluster", "oak", "-o", `jsonpath={.status.conditions[?(@.type=="Mirrored")].message}`)
	s.must(t, bigConfigMap("second", 10), "--context=hub", "apply", "-f", "-")
	s.until(t, "configmap/second", "--context=oak", "configmap", "second", "-n", "default", "-o", "name")
	s.until(t, "oak", "--context=fleet", "configmap", "first", "-n", "default")

	empty()
	s.until(t, "True", "--context=hub", "cluster", "oak", "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
	eventually(t, deadline, func() string {
		out, err := s.kubectl("", "--context=fleet", "get", "configmaps", "-n", "default", "--no-headers")
		if n := strings.Count(out, "big-"); err != nil || n != count || !strings.Contains(out, "second") {
			return fmt.Sprintf("the fleet shows %d of %d: %s", n, count, out)
		}
		return ""
	})
}

// TestServerIsRefused starts servers that cannot run: each prints the reason and changes
// nothing.
func TestServerIsRefused(t *testing.T) {
	t.Parallel()
	newer := t.TempDir()
	if err := os.WriteFile(filepath.Join(newer, "VERSION"), []byte("99\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		dir, size string
		says      []string
	}{
		"InUse":        {filepath.Join(demo.Dir(), "hub"), "", []string{"in use by process", "--data-dir"}},
		"NewerVersion": {newer, "", []string{"layout version 99", "made by a newer orrery", "--data-dir"}},
		"DiskFull":     {t.TempDir(), "20m", []string{"MiB are free", "are needed", "make room"}},
		"NoSpaceAtAll": {t.TempDir(), "4k", []string{"no space left on device"}},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := serverCommand(tc.dir, tc.size, "--secure-port=0")
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			err := cmd.Run()
			if cmd.ProcessState.ExitCode() != 1 {
				t.Errorf("%v, want exit code 1", err)
			}
			for _, word := range append(tc.says, tc.dir) {
				if !strings.Contains(out.String(), word) {
					t.Errorf("it does not say %q:\n%s", word, out.String())
				}
			}
		})
	}
	if left, err := filepath.Glob(filepath.Join(newer, "*")); err != nil || len(left) != 1 {
		t.Errorf("the directory of a newer version has %v, %v", left, err)
	}
	if out, code := demo.Run(t, "demo", "up"); code != 1 || !strings.Contains(out, "already running") {
		t.Errorf("a second demo: exit code %d\n%s", code, out)
	}
}

// TestDiskOfARunningHub fills the disk of a hub with its etcd: writes are refused, no
// acknowledged write is lost, and the hub recovers by itself when there is free space.
func TestDiskOfARunningHub(t *testing.T) {
	t.Parallel()
	s := startServer(t, "200m", "--secure-port=0")
	kept := 0
	create := func() (string, error) {
		out, err := s.kubectl(bigConfigMap(fmt.Sprintf("kept-%03d", kept), 500_000), "--context=hub", "create", "-f", "-")
		if err == nil || strings.Contains(out, "(AlreadyExists)") { // an earlier answer was lost
			kept++
			err = nil
		}
		return out, err
	}
	eventually(t, deadline, func() string {
		if out, err := create(); err != nil {
			return out
		}
		return ""
	})
	empty := s.fill(t)
	// A busy API server also refuses some writes. The log shows whether the disk is the reason.
	eventually(t, deadline, func() string {
		if _, err := create(); err == nil {
			return "writes are still accepted"
		}
		if text := s.text(t); !strings.Contains(text, "no space left on device") {
			return "the log does not say why:\n" + text
		}
		return ""
	})
	empty()
	eventually(t, deadline, func() string {
		// The refused write may have been stored nevertheless.
		out, err := s.kubectl(bigConfigMap("after", 10), "--context=hub", "apply", "-f", "-")
		if err != nil {
			return out
		}
		return ""
	})
	var out string
	eventually(t, deadline, func() string {
		var err error
		if out, err = s.kubectl("", "--context=hub", "get", "configmaps", "-n", "default", "-o", `jsonpath={range .items[*]}{.metadata.name} {.data.fill}{"\n"}{end}`); err != nil {
			return out
		}
		return ""
	})
	for i := range kept {
		name := fmt.Sprintf("kept-%03d", i)
		if !strings.Contains(out, name+" "+filling(name, 500_000)+"\n") {
			t.Errorf("kept-%03d is lost or damaged", i)
		}
	}
	if kept == 0 || s.cmd.ProcessState != nil {
		t.Errorf("%d objects were kept; the server has ended: %v", kept, s.cmd.ProcessState)
	}
}
