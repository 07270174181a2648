// Package agent builds a cluster on a host that joins by its agents, as docs/operating.md
// describes, and opens it in the console. It is separate from the other tests of clusters on
// hosts, which depend neither on documents nor on the console.
package agent

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"orrery.dev/orrery/internal/lab"
	"orrery.dev/orrery/internal/pki"
	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/test/lab/site"
)

func TestMain(m *testing.M) { site.Main(m) }

// testbed adds the steps and checks of this package to a site.
type testbed struct{ *site.Site }

// shellPod is a pod with a shell and tar, from the static busybox of the host. Its main process
// echoes its input.
const shellPod = `
apiVersion: v1
kind: Pod
metadata: {name: shell, namespace: default}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: shell
    image: %s/web:1
    stdin: true
    command: [/tools/sh, -c, 'echo ready; while read line; do echo "heard $line"; done; sleep 3600']
    env: [{name: PATH, value: /tools}]
    volumeMounts: [{name: busybox, mountPath: /tools/sh}, {name: busybox, mountPath: /tools/tar}, {name: busybox, mountPath: /tools/cat}, {name: busybox, mountPath: /tools/sleep}, {name: data, mountPath: /data}]
  volumes:
  - {name: busybox, hostPath: {path: /bin/busybox, type: File}}
  - {name: data, emptyDir: {}}
`

// nginx writes a configuration of nginx that ends TLS at an address, with a certificate of its
// own, and connects to the hub's listener with TLS again, as docs/operating.md describes. It
// returns the file with the CA of that certificate.
func (s *testbed) nginx(address, listener, hubCA string) (ca string) {
	s.T.Helper()
	dir := filepath.Join(s.Dir, "nginx")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		s.T.Fatal(err)
	}
	host, _, _ := net.SplitHostPort(address)
	authority, err := pki.NewAuthority("balancer", time.Now())
	if err != nil {
		s.T.Fatal(err)
	}
	leaf, err := authority.Issue(pki.Leaf{Name: "nginx", CommonName: host, Server: true, IPs: []string{host}}, time.Now())
	if err != nil {
		s.T.Fatal(err)
	}
	config := fmt.Sprintf(`
daemon off; user root; worker_processes 2; pid %[1]s/pid; error_log stderr warn;
events { worker_connections 4096; }
http {
access_log off; client_body_temp_path %[1]s; proxy_temp_path %[1]s; fastcgi_temp_path %[1]s; uwsgi_temp_path %[1]s; scgi_temp_path %[1]s;
%[2]s}
`, dir, s.documented("nginx", map[string]string{
		"listen 443": "listen " + address, "orrery.example.com": host, "10.0.0.5:7443": listener,
		"/etc/nginx/orrery.crt": dir + "/tls.crt", "/etc/nginx/orrery.key": dir + "/tls.key", "/etc/nginx/hub-ca.crt": hubCA,
	}))
	for name, content := range map[string]string{"tls.crt": string(leaf.Cert), "tls.key": string(leaf.Key), "ca.crt": string(authority.Cert), "nginx.conf": config} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			s.T.Fatal(err)
		}
	}
	return filepath.Join(dir, "ca.crt")
}

// documented returns the only block of that language in docs/operating.md, with values of this
// machine.
func (s *testbed) documented(language string, values map[string]string) string {
	s.T.Helper()
	text, err := os.ReadFile(filepath.Join(testenv.Root(), "docs", "operating.md"))
	if err != nil {
		s.T.Fatal(err)
	}
	_, block, found := strings.Cut(string(text), "\n```"+language+"\n")
	block, _, closed := strings.Cut(block, "```")
	if !found || !closed || strings.Contains(block, "`") {
		s.T.Fatalf("docs/operating.md has no block of %s", language)
	}
	for there, here := range values {
		if !strings.Contains(block, there) {
			s.T.Fatalf("the block of %s in docs/operating.md does not say %s", language, there)
		}
		block = strings.ReplaceAll(block, there, here)
	}
	return block
}

// fleet runs a command that does not concern hosts, and must succeed.
func (s *testbed) fleet(args ...string) {
	s.T.Helper()
	cmd := testenv.Program(s.T.Context(), filepath.Join(testenv.Root(), "bin", "orrery"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG=", "HOME="+s.Dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		s.T.Fatalf("orrery %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// run starts a program that ends with the test. If the test fails, run logs the program's
// output.
func (s *testbed) run(name string, args ...string) {
	s.T.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(s.T.Context()), name, args...)
	var log strings.Builder
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := cmd.Start(); err != nil {
		s.T.Fatal(err)
	}
	s.T.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait() // ended by that signal
		if s.T.Failed() {
			s.T.Logf("%s:\n%s", name, log.String())
		}
	})
}

// TestByAgent: a cluster whose API server the hub does not dial joins by agents. They run in
// the cluster from an image and connect through nginx, which ends TLS. Users reach the kubelets
// on this path.
func TestByAgent(t *testing.T) {
	t.Parallel()
	s := &testbed{site.New(t, 1)}
	h := s.Host("host-1")
	file := s.File(site.Layout{Hosts: []*lab.Host{h}, ControlPlanes: []string{"host-1"}, Worker: []string{"host-1"}})
	s.Orrery("cluster", "create", "-f", file, "--yes")

	listener, public := s.FreeAddress(), s.FreeAddress()
	hubCA := filepath.Join(s.Dir, "hub", "pki", "server-ca.crt")
	ca := s.nginx(public, listener, hubCA)
	hub, _ := s.StartHub("--public-address", listener, "--public-url", "https://"+public, "--public-ca-file", ca)
	s.run("nginx", "-c", filepath.Join(s.Dir, "nginx", "nginx.conf"))
	s.Eventually("the listener answers through nginx", func(ctx context.Context) error {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+public+"/healthz", nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s", resp.Status)
		}
		return nil
	})

	built := s.ours()
	const image = "orrery.test/agent:v1"
	archive := filepath.Join(h.Root(), "tmp", "agent.tar")
	s.fleet("agent-image", "--image", image, "--output", archive)
	if out, err := h.Run(t.Context(), "/opt/orrery/bin/ctr", "-n", "k8s.io", "images", "import", "/tmp/agent.tar"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s.fleet("cluster", "join", "oak", "--pull", "--agent-image", image, "--apply-with-kubeconfig", s.Kubeconfig(), "--kubeconfig", hub, "--timeout", "5m")
	if mode := s.MustHubctl(hub, "", "get", "cluster", "oak", "-o", "jsonpath={.spec.syncMode} {.spec.apiEndpoint}"); mode != "Pull https://kubernetes.default.svc" {
		t.Errorf("the cluster is dialled as %s", mode)
	}
	s.PlacedOn(hub)
	s.Eventually("both replicas are connected", func(context.Context) error {
		out, err := s.Hubctl(hub, "", "get", "cluster", "oak", "-o", "jsonpath={.status.agent.replicas}")
		if err == nil && out != "2" {
			err = fmt.Errorf("%q are", out)
		}
		return err
	})

	oak := func(ctx context.Context, args ...string) *exec.Cmd {
		return exec.CommandContext(ctx, testenv.KubeBinary(), append([]string{"kubectl", "--kubeconfig", hub, "--context", "oak"}, args...)...)
	}
	must := func(stdin string, args ...string) string {
		t.Helper()
		cmd := oak(t.Context(), args...)
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	s.Kubectl(fmt.Sprintf(shellPod, s.Registry()), "apply", "-f", "-")
	s.Kubectl(s.WebManifest(1), "apply", "-f", "-")
	s.Kubectl("", "wait", "--for=condition=Ready", "pod/shell", "--timeout=20m")
	s.Kubectl("", "rollout", "status", "deployment/web", "--timeout=20m")

	if out := must("", "exec", "shell", "--", "sh", "-c", "echo from the pod"); out != "from the pod\n" {
		t.Errorf("exec: %q", out)
	}
	if out := must("a\nb\n", "exec", "-i", "shell", "--", "cat"); out != "a\nb\n" {
		t.Errorf("exec with input: %q", out)
	}
	given := filepath.Join(s.Dir, "given")
	if err := os.WriteFile(given, []byte(strings.Repeat("0123456789abcdef", 1<<16)), 0o600); err != nil {
		t.Fatal(err)
	}
	must("", "cp", given, "shell:/data/given")
	must("", "cp", "shell:/data/given", given+"-back")
	before, err := os.ReadFile(given)
	if err != nil {
		t.Fatal(err)
	}
	if after, err := os.ReadFile(given + "-back"); err != nil || string(after) != string(before) {
		t.Errorf("cp: %d bytes came back of %d, %v", len(after), len(before), err)
	}

	// The log is followed while a user is attached and writes.
	following, lines := s.lines(oak(t.Context(), "logs", "-f", "shell"))
	s.says(lines, "ready")
	attached, _ := s.lines(oak(t.Context(), "attach", "-i", "shell"))
	if _, err := io.WriteString(attached, "you\n"); err != nil {
		t.Fatal(err)
	}
	s.says(lines, "heard you")
	_ = following.Close()

	_, forwarded := s.lines(oak(t.Context(), "port-forward", "deployment/web", ":8080"))
	line := s.says(forwarded, "Forwarding from 127.0.0.1:")
	port, _, _ := strings.Cut(strings.TrimPrefix(line, "Forwarding from 127.0.0.1:"), " ")
	resp, err := http.Get("http://127.0.0.1:" + port + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || !strings.HasPrefix(string(body), "web-") {
		t.Errorf("port-forward: %q, %v", body, err)
	}

	t.Run("Console", func(t *testing.T) { s.readInBrowser(t, hub) })

	// An agent that learns that the cluster has left removes itself. Workloads stay.
	s.fleet("cluster", "unjoin", "oak", "--kubeconfig", hub, "--timeout=10m")
	s.Eventually("the agent is gone", func(context.Context) error {
		if left := s.ours(); left != built {
			return fmt.Errorf("there is\n%s\nand was before\n%s", left, built)
		}
		return nil
	})
	s.Kubectl("", "get", "configmap", "greeting")
}

// ours returns the names of Orrery's cluster-wide objects in the cluster.
func (s *testbed) ours() string {
	s.T.Helper()
	var names strings.Builder
	for name := range strings.Lines(s.Kubectl("", "get", "clusterrole,clusterrolebinding", "-o", "name")) {
		if strings.Contains(name, "orrery") {
			names.WriteString(name)
		}
	}
	return names.String()
}

// lines starts a command and sends each line of its output. The command is killed when the test
// ends.
func (s *testbed) lines(cmd *exec.Cmd) (stdin io.WriteCloser, lines <-chan string) {
	s.T.Helper()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		s.T.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		s.T.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.T.Fatal(err)
	}
	s.T.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // ended by that kill
	})
	said := make(chan string, 100)
	go func() {
		defer close(said)
		for scan := bufio.NewScanner(out); scan.Scan(); {
			said <- scan.Text()
		}
	}()
	return stdin, said
}

// says waits until a command prints a line that begins with want, and returns that line.
func (s *testbed) says(lines <-chan string, want string) string {
	s.T.Helper()
	patience := time.NewTimer(testenv.Patience)
	defer patience.Stop()
	for {
		select {
		case line, ok := <-lines:
			if !ok {
				s.T.Fatalf("it ended before it said %q", want)
			}
			if strings.HasPrefix(line, want) {
				return line
			}
		case <-patience.C:
			s.T.Fatalf("it did not say %q", want)
		}
	}
}
