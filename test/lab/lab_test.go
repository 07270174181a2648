// Package lab builds clusters on hosts: namespaces of this machine with an sshd of their own, in which real etcd, API
// servers, kubelets and containerd run. Everything is done with the command line or the hub, as users do it.
package lab

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"text/template"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"orrery.dev/orrery/internal/lab"
	"orrery.dev/orrery/internal/lifecycle/catalog"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/testenv"
)

// TestMain runs one lab at a time unless -parallel says otherwise: beside other tests, as in make test, the components of two would
// starve one another. Alone, as in make lab-test, two fill each other's waiting.
func TestMain(m *testing.M) {
	flag.Parse()
	asked := false
	flag.Visit(func(f *flag.Flag) { asked = asked || f.Name == "test.parallel" })
	if !asked {
		if err := flag.Set("test.parallel", "1"); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// patience is how long a test waits for something that must come.
const patience = 3 * time.Minute

// site is a lab with the state that the command line keeps, and a file that says what the cluster is to be.
type site struct {
	*lab.Lab

	t     testing.TB
	dir   string
	state string
	cache string
	// catalog is the file of the catalogue.
	catalog string
}

// cache of release files, which the tests share as a machine would.
var cache = sync.OnceValue(func() string { return filepath.Join(testenv.Root(), "bin", "lab-files") })

// pinned is the catalogue of the lab's mirror with the digests of its files, which come over plain HTTP.
var pinned = sync.OnceValues(func() (string, error) {
	base := filepath.Join(testenv.Root(), "test", "lab", "testdata", "catalog.yaml")
	known, err := catalog.Load(base)
	if err != nil {
		return "", err
	}
	files, err := known.Files("v1.36.3", runtime.GOARCH, plan.FileNames...)
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(base)
	if err != nil {
		return "", err
	}
	text = append(text, "digests:\n"...)
	for _, f := range files {
		_, path, _ := strings.Cut(f.URL, "://")
		content, err := os.Open(filepath.Join(testenv.Root(), "bin", "lab", "mirror", path))
		if err != nil {
			return "", err
		}
		sum := sha256.New()
		_, err = io.Copy(sum, content)
		if err := errors.Join(err, content.Close()); err != nil {
			return "", err
		}
		text = fmt.Appendf(text, "  %s: sha256:%x\n", f.Key(), sum.Sum(nil))
	}
	return string(text), nil
})

func newSite(t testing.TB, hosts int) *site {
	t.Helper()
	testenv.Programs()
	l, err := lab.Start(t.Context(), lab.Options{Hosts: hosts})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	s := &site{Lab: l, t: t, dir: t.TempDir(), cache: cache()}
	s.catalog = filepath.Join(s.dir, "catalog.yaml")
	text, err := pinned()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.catalog, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s.state = filepath.Join(s.dir, "state")
	return s
}

// layout says which hosts do what.
type layout struct {
	Hosts                 []*lab.Host
	ControlPlanes, Worker []string
	Extra                 string // further fields of provision
	Kubernetes            string // and of kubernetes in it
	Memory                string // that a kubelet keeps free; empty: as without a configuration
}

var clusterFile = template.Must(template.New("cluster").Parse(`apiVersion: cluster.orrery.dev/v1alpha1
kind: Cluster
metadata:
  name: oak
spec:
  provision:
    source: {{.Mirror}}
    hosts:
{{- range .Hosts}}
    - name: {{.Name}}
      address: {{.Address}}
      timeout: 10
      privateKeyPath: {{.SSH.KeyFile}}
{{- end}}
    roleGroups:
      control-plane: [{{range .ControlPlanes}}{{.}}, {{end}}]
{{- if .Worker}}
      worker: [{{range .Worker}}{{.}}, {{end}}]
{{- end}}
    kubernetes:
      version: v1.36.3
      kubeletConfiguration:
        # The hosts have the disk of the machine that the tests run on, however full it is: no pod is to go for that.
        imageGCHighThresholdPercent: 100
        evictionHard: {nodefs.available: 1Mi, imagefs.available: 1Mi, memory.available: {{or .Memory "100Mi"}}}
      {{.Kubernetes}}
    registry:
      privateRegistry: {{.Registry}}
      insecureRegistries: ["{{.Registry}}"]
{{.Extra}}
`))

// file writes the file of a cluster.
func (s *site) file(o layout) string {
	s.t.Helper()
	var b bytes.Buffer
	err := clusterFile.Execute(&b, struct {
		layout

		Mirror, Registry string
	}{o, s.Mirror(), s.Registry()})
	if err != nil {
		s.t.Fatal(err)
	}
	path := filepath.Join(s.dir, "oak.yaml")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return path
}

// binaryVariable names another orrery than that of bin, to compare benchmarks with those of another commit.
const binaryVariable = "LAB_ORRERY"

// command is orrery with the flags that every command of a lab needs.
func (s *site) command(ctx context.Context, args ...string) *exec.Cmd {
	args = append(args, "--state-dir", s.state)
	asksHosts := args[0] == "cluster" && args[1] != "kubeconfig" && (args[1] != "certs" || args[2] != "list")
	if asksHosts || args[0] == "operation" && args[1] == "resume" {
		args = append(args, "--catalog", s.catalog, "--cache", s.cache)
	}
	cmd := exec.CommandContext(ctx, cmp.Or(os.Getenv(binaryVariable), filepath.Join(testenv.Root(), "bin", "orrery")), args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	cmd.Env = append(os.Environ(), "KUBECONFIG=", "SSH_AUTH_SOCK=", "HOME="+s.dir)
	return cmd
}

// orrery runs a command that must succeed and returns what it printed.
func (s *site) orrery(args ...string) string {
	s.t.Helper()
	out, err := s.try(args...)
	if err != nil {
		s.t.Fatalf("orrery %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// try runs a command and returns what it printed to both streams.
func (s *site) try(args ...string) (string, error) {
	s.t.Helper()
	var out bytes.Buffer
	cmd := s.command(s.t.Context(), args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	start := time.Now()
	err := cmd.Run()
	s.t.Logf("orrery %s: %v in %s", strings.Join(args, " "), err, time.Since(start).Round(time.Millisecond))
	if time.Since(start) > slow {
		s.t.Log(s.slowSteps())
	}
	return out.String(), err
}

// slow is how long a command and a step may take before a test says what took so long.
const slow, slowStep = time.Minute, 8 * time.Second

// slowSteps of the last operation.
func (s *site) slowSteps() string {
	paths, err := filepath.Glob(filepath.Join(s.state, "oak", "operations", "*.yaml"))
	if err != nil || len(paths) == 0 {
		return "no operation is recorded"
	}
	op := s.operation(strings.TrimSuffix(filepath.Base(paths[len(paths)-1]), ".yaml"))
	var b strings.Builder
	for _, step := range op.Status.Steps {
		if took := step.Finished.Sub(step.Started.Time); took > slowStep {
			fmt.Fprintf(&b, "%s %s %s: from %s, %s\n", step.Host, step.ID, step.State, step.Started.Format(time.TimeOnly), took)
		}
	}
	return b.String()
}

// kubeconfig is the path of the cluster's kubeconfig.
func (s *site) kubeconfig() string { return filepath.Join(s.state, "oak", "kubeconfig") }

// config of a client of the cluster: at its endpoint, or at another host's API server.
func (s *site) config(h *lab.Host) *rest.Config {
	s.t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", s.kubeconfig())
	if err != nil {
		s.t.Fatal(err)
	}
	if h != nil {
		cfg.Host = "https://" + h.Address + ":6443"
	}
	cfg.Timeout = 15 * time.Second
	return cfg
}

func (s *site) client(h *lab.Host) kubernetes.Interface {
	s.t.Helper()
	cs, err := kubernetes.NewForConfig(s.config(h))
	if err != nil {
		s.t.Fatal(err)
	}
	return cs
}

// kubectl runs kubectl on the cluster; it must succeed.
func (s *site) kubectl(stdin string, args ...string) string {
	s.t.Helper()
	cmd := exec.CommandContext(s.t.Context(), testenv.KubeBinary(), append([]string{"kubectl", "--kubeconfig", s.kubeconfig()}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// eventually waits until check returns nil.
func (s *site) eventually(what string, check func(ctx context.Context) error) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	for {
		err := check(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			s.t.Fatalf("%s: %v\n%s", what, err, s.diagnosis())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// diagnosis is what helps to understand why something does not come.
func (s *site) diagnosis() string {
	var said strings.Builder
	for _, args := range [][]string{
		{"get", "nodes,pods", "-A", "-o", "wide"},
		{"get", "events", "-A", "--field-selector", "type=Warning", "--sort-by", ".lastTimestamp"},
	} {
		cmd := exec.Command(testenv.KubeBinary(), append([]string{"kubectl", "--kubeconfig", s.kubeconfig()}, args...)...)
		out, err := cmd.CombinedOutput()
		fmt.Fprintf(&said, "%s (%v)\n", out, err)
	}
	return said.String()
}

// rolledOut waits until the pods of Deployment web are what it says.
func (s *site) rolledOut() {
	s.t.Helper()
	cs := s.client(nil)
	s.eventually("Deployment web has rolled out", func(ctx context.Context) error {
		d, err := cs.AppsV1().Deployments("default").Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return err
		}
		want := *d.Spec.Replicas
		if st := d.Status; st.ObservedGeneration != d.Generation || st.UpdatedReplicas != want || st.AvailableReplicas != want || st.Replicas != want {
			return fmt.Errorf("generation %d, status %+v", d.Generation, st)
		}
		return nil
	})
}

// snapshots of all hosts.
func (s *site) snapshots() map[string]lab.Snapshot {
	s.t.Helper()
	all := map[string]lab.Snapshot{}
	for _, h := range s.Hosts() {
		all[h.Name] = s.snapshot(h)
	}
	return all
}

func (s *site) snapshot(h *lab.Host) lab.Snapshot {
	s.t.Helper()
	snap, err := h.Snapshot(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return snap
}

// readyNodes are the names of the nodes that are ready.
func readyNodes(ctx context.Context, cs kubernetes.Interface) ([]string, error) {
	nodes, err := cs.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var ready []string
	for _, n := range nodes.Items {
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				ready = append(ready, n.Name)
			}
		}
	}
	return ready, nil
}

// webManifest is a workload of a real image behind a Service, and a Job that finds it by its name.
func (s *site) webManifest(replicas int) string {
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: default}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: web
        image: %[1]s/web:1
        ports: [{containerPort: 8080}]
        readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec:
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
---
apiVersion: batch/v1
kind: Job
metadata: {name: ask, namespace: default}
spec:
  backoffLimit: 20
  template:
    spec:
      restartPolicy: OnFailure
      containers:
      - name: ask
        image: %[1]s/web:1
        args: [get, "http://web.default.svc.cluster.local/"]
`, s.Registry(), replicas)
}

// serves checks that the workload answers through its Service, that another pod finds it by DNS, and that logs and exec
// reach it.
func (s *site) serves(replicas int) {
	s.t.Helper()
	s.kubectl(s.webManifest(replicas), "apply", "-f", "-")
	cs := s.client(nil)
	s.eventually("the Job that asks the Service by its DNS name succeeds", func(ctx context.Context) error {
		job, err := cs.BatchV1().Jobs("default").Get(ctx, "ask", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if job.Status.Succeeded == 0 {
			return fmt.Errorf("job status %+v", job.Status)
		}
		return nil
	})
	svc, err := cs.CoreV1().Services("default").Get(s.t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	nodes, err := readyNodes(s.t.Context(), cs)
	if err != nil {
		s.t.Fatal(err)
	}
	s.eventually("the Service answers on each host", func(ctx context.Context) error {
		for _, name := range nodes {
			if _, err := s.Host(name).Run(ctx, "timeout", "3", "bash", "-c", `exec 3<>/dev/tcp/`+svc.Spec.ClusterIP+`/80 && printf "GET / HTTP/1.0\r\n\r\n" >&3 && grep -q "200 OK" <&3`); err != nil {
				return err
			}
		}
		return nil
	})
	if out := s.kubectl("", "logs", "job/ask"); !strings.Contains(out, "web-") {
		s.t.Errorf("the log of the Job does not have the name of a pod of web: %q", out)
	}
}

// killWhenItSays starts a command and kills it with SIGKILL as soon as it prints a line with the text. It reports whether
// it did.
func (s *site) killWhenItSays(text string, args ...string) bool {
	s.t.Helper()
	return s.killWhen(func(output string) string {
		if strings.Contains(output, text) {
			return text
		}
		return ""
	}, args...) != ""
}

// killWhen starts a command and kills it with SIGKILL as soon as what it has printed is found to have something, which it
// returns; empty: the command ended well before.
func (s *site) killWhen(find func(output string) string, args ...string) string {
	s.t.Helper()
	cmd := s.command(s.t.Context(), args...)
	read, write := io.Pipe()
	cmd.Stdout, cmd.Stderr = write, write
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	killed := make(chan string, 1)
	var all bytes.Buffer
	go func() {
		found := ""
		buffer := make([]byte, 4096)
		for {
			n, err := read.Read(buffer)
			all.Write(buffer[:n])
			if found == "" {
				if found = find(all.String()); found != "" {
					cmd.Process.Kill()
				}
			}
			if err != nil {
				killed <- found
				return
			}
		}
	}()
	err := cmd.Wait()
	write.Close()
	found := <-killed
	if err != nil && found == "" {
		s.t.Fatalf("orrery %s: %v\n%s", strings.Join(args, " "), err, all.String())
	}
	return found
}
