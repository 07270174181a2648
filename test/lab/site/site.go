// Package site gives tests a lab, internal/lab, with what its users have: the command line with
// its state, a catalogue, the file of a cluster, and a hub. Tests build clusters only with
// these, as users do.
package site

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
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"text/template"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lab"
	"orrery.dev/orrery/internal/lifecycle/catalog"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/testenv"
)

// Main runs the tests of a package with one lab at a time unless -parallel is set: in make
// test, beside other tests, the components of two labs would starve one another. In make
// lab-test, without other tests, one lab works while the other waits.
func Main(m *testing.M) {
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

// awaitSlot waits until fewer than -parallel labs run on this machine, in all packages of tests
// together. The test that waits first is the next. Without that, a package whose tests follow
// one another at once would always win.
func awaitSlot(t *testing.T) {
	t.Helper()
	atOnce, err := strconv.Atoi(flag.Lookup("test.parallel").Value.String())
	if err != nil {
		t.Fatal(err)
	}
	next, err := os.OpenFile(filepath.Join(os.TempDir(), "orrery-lab-next.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close() // lets the next test wait
	poll := func(take func() (bool, error)) {
		for {
			taken, err := take()
			if err != nil {
				t.Fatal(err)
			}
			if taken {
				return
			}
			select {
			case <-t.Context().Done():
				t.Fatal("no lab of another test ended in time")
			case <-time.After(100 * time.Millisecond):
			}
		}
	}
	poll(func() (bool, error) { return lock(next) })
	poll(func() (bool, error) {
		slot, err := takeSlot(os.TempDir(), atOnce)
		if slot != nil {
			t.Cleanup(func() { slot.Close() })
		}
		return slot != nil, err
	})
}

// lock locks a file until it is closed or this process ends. It returns false if the file is
// locked.
func lock(f *os.File) (bool, error) {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err != nil && !errors.Is(err, syscall.EWOULDBLOCK) {
		return false, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return err == nil, nil
}

// takeSlot locks one of atOnce files in a directory until the returned file is closed or this
// process ends. It returns nil if all of them are locked.
func takeSlot(dir string, atOnce int) (*os.File, error) {
	for i := range atOnce {
		f, err := os.OpenFile(filepath.Join(dir, fmt.Sprintf("orrery-lab-%d.lock", i)), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, err
		}
		if taken, err := lock(f); taken {
			return f, nil
		} else if f.Close(); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// patience is the timeout for expected states.
const patience = 10 * time.Minute

// Site is a lab with the state of the command line, and with a file that describes the wanted
// cluster.
type Site struct {
	*lab.Lab

	T testing.TB
	// Dir has all files that are not on hosts. State is the directory in it for the command
	// line.
	Dir, State string
	// Catalog is the file of the catalogue.
	Catalog string

	cache string
}

// cache is the directory of release files. The tests share it, as commands on one machine do.
var cache = sync.OnceValue(func() string { return filepath.Join(testenv.Root(), "bin", "lab-files") })

// pinned is the catalogue of the lab's mirror. It has the digests of the files, because they
// come over plain HTTP.
var pinned = sync.OnceValues(func() (string, error) {
	base := filepath.Join(testenv.Root(), "test", "lab", "site", "testdata", "catalog.yaml")
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

// New starts a lab with that many hosts, which ends with the test.
func New(t testing.TB, hosts int) *Site {
	t.Helper()
	testenv.Programs()
	if test, ok := t.(*testing.T); ok { // a benchmark runs alone, and may have several labs
		awaitSlot(test)
	}
	l, err := lab.Start(t.Context(), lab.Options{Hosts: hosts, Artifacts: filepath.Join(testenv.Root(), "bin", "lab")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	s := &Site{Lab: l, T: t, Dir: t.TempDir(), cache: cache()}
	s.Catalog = filepath.Join(s.Dir, "catalog.yaml")
	text, err := pinned()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.Catalog, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s.State = filepath.Join(s.Dir, "state")
	return s
}

// Layout says which hosts have which role.
type Layout struct {
	Hosts                 []*lab.Host
	ControlPlanes, Worker []string
	Extra                 string // more fields of provision
	Kubernetes            string // more fields of kubernetes in it
	Memory                string // that a kubelet keeps free; empty: as without a configuration
	Timeout               int    // seconds that orrery waits for the sshd of a host; 0: 60
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
      timeout: {{or $.Timeout 60}}
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

// File writes the file of a cluster.
func (s *Site) File(o Layout) string {
	s.T.Helper()
	var b bytes.Buffer
	err := clusterFile.Execute(&b, struct {
		Layout

		Mirror, Registry string
	}{o, s.Mirror(), s.Registry()})
	if err != nil {
		s.T.Fatal(err)
	}
	path := filepath.Join(s.Dir, "oak.yaml")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		s.T.Fatal(err)
	}
	return path
}

// binaryVariable is the variable with the path of another orrery, to compare benchmarks of two
// commits.
const binaryVariable = "LAB_ORRERY"

// Command returns a command of orrery, with the flags that every command of a lab requires.
func (s *Site) Command(ctx context.Context, args ...string) *exec.Cmd {
	args = append(args, "--state-dir", s.State)
	asksHosts := args[0] == "cluster" && args[1] != "kubeconfig" && (args[1] != "certs" || args[2] != "list")
	if asksHosts || args[0] == "operation" && args[1] == "resume" {
		args = append(args, "--catalog", s.Catalog, "--cache", s.cache)
	}
	cmd := testenv.Program(ctx, cmp.Or(os.Getenv(binaryVariable), filepath.Join(testenv.Root(), "bin", "orrery")), args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	cmd.Env = append(os.Environ(), "KUBECONFIG=", "SSH_AUTH_SOCK=", "HOME="+s.Dir)
	return cmd
}

// Orrery runs a command that must succeed and returns what it printed.
func (s *Site) Orrery(args ...string) string {
	s.T.Helper()
	out, err := s.Try(args...)
	if err != nil {
		s.T.Fatalf("orrery %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// Try runs a command and returns what it printed to both streams.
func (s *Site) Try(args ...string) (string, error) {
	s.T.Helper()
	var out bytes.Buffer
	cmd := s.Command(s.T.Context(), args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	start := time.Now()
	err := cmd.Run()
	s.T.Logf("orrery %s: %v in %s", strings.Join(args, " "), err, time.Since(start).Round(time.Millisecond))
	if time.Since(start) > slow {
		s.T.Log(s.slowSteps())
	}
	return out.String(), err
}

// slow and slowStep are durations of a command and of a step. The test logs what took longer.
const slow, slowStep = time.Minute, 8 * time.Second

// slowSteps lists the slow steps of the last operation.
func (s *Site) slowSteps() string {
	paths, err := filepath.Glob(filepath.Join(s.State, "oak", "operations", "*.yaml"))
	if err != nil || len(paths) == 0 {
		return "no operation is recorded"
	}
	op := s.Operation(strings.TrimSuffix(filepath.Base(paths[len(paths)-1]), ".yaml"))
	var b strings.Builder
	for _, step := range op.Status.Steps {
		if took := step.Finished.Sub(step.Started.Time); took > slowStep {
			fmt.Fprintf(&b, "%s %s %s: from %s, %s\n", step.Host, step.ID, step.State, step.Started.Format(time.TimeOnly), took)
		}
	}
	return b.String()
}

// Kubeconfig returns the path of the cluster's kubeconfig.
func (s *Site) Kubeconfig() string { return filepath.Join(s.State, "oak", "kubeconfig") }

// Config returns the config of a client of the cluster: at its endpoint, or, unless h is nil,
// at the API server of that host.
func (s *Site) Config(h *lab.Host) *rest.Config {
	s.T.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", s.Kubeconfig())
	if err != nil {
		s.T.Fatal(err)
	}
	if h != nil {
		cfg.Host = "https://" + h.Address + ":6443"
	}
	cfg.Timeout = 15 * time.Second
	return cfg
}

// Client returns a client with Config.
func (s *Site) Client(h *lab.Host) kubernetes.Interface {
	s.T.Helper()
	cs, err := kubernetes.NewForConfig(s.Config(h))
	if err != nil {
		s.T.Fatal(err)
	}
	return cs
}

// Kubectl runs kubectl on the cluster. It must succeed.
func (s *Site) Kubectl(stdin string, args ...string) string {
	s.T.Helper()
	return s.answered("kubectl "+strings.Join(args, " "), func() (string, error) {
		cmd := exec.CommandContext(s.T.Context(), testenv.KubeBinary(), append([]string{"kubectl", "--kubeconfig", s.Kubeconfig()}, args...)...)
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		return string(out), err
	})
}

// momentary matches errors of kubectl while a server does not answer for a moment.
var momentary = regexp.MustCompile(`connection refused|connection reset|i/o timeout|TLS handshake timeout|unexpected EOF|` +
	`deadline exceeded|Timeout exceeded|etcdserver: |unable to handle the request|ServiceUnavailable|too many requests`)

// answered runs a command that must succeed, and repeats it while a server does not answer.
func (s *Site) answered(what string, run func() (out string, err error)) string {
	s.T.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Second) {
		out, err := run()
		if err == nil {
			return out
		}
		if !momentary.MatchString(out) || time.Now().After(end) {
			s.T.Fatalf("%s: %v\n%s", what, err, out)
		}
	}
}

// Eventually waits until check returns nil.
func (s *Site) Eventually(what string, check func(ctx context.Context) error) {
	s.T.Helper()
	ctx, cancel := context.WithTimeout(s.T.Context(), patience)
	defer cancel()
	for {
		err := check(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			s.T.Fatalf("%s: %v\n%s", what, err, s.diagnosis())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// diagnosis returns the state of the cluster, to explain why an expected state is not reached.
func (s *Site) diagnosis() string {
	var said strings.Builder
	for _, args := range [][]string{
		{"get", "nodes,pods", "-A", "-o", "wide"},
		{"get", "events", "-A", "--field-selector", "type=Warning", "--sort-by", ".lastTimestamp"},
	} {
		cmd := exec.Command(testenv.KubeBinary(), append([]string{"kubectl", "--kubeconfig", s.Kubeconfig()}, args...)...)
		out, err := cmd.CombinedOutput()
		fmt.Fprintf(&said, "%s (%v)\n", out, err)
	}
	return said.String()
}

// WebManifest returns a workload of a real image behind a Service, and a Job that finds it by
// name.
func (s *Site) WebManifest(replicas int) string {
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
        # A pod that answers late, on a busy machine, stays ready.
        readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1, timeoutSeconds: 30, failureThreshold: 30}
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

// Operation returns the command line's record of an operation of the cluster.
func (s *Site) Operation(name string) *lifecyclev1alpha1.Operation {
	s.T.Helper()
	op := &lifecyclev1alpha1.Operation{}
	if err := yaml.Unmarshal([]byte(s.Orrery("operation", "show", name, "-o", "yaml")), op); err != nil {
		s.T.Fatal(err)
	}
	return op
}
