package spine

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"

	"orrery.dev/orrery/internal/testenv"
)

// balancerIdle is after how long a balancer drops a connection on which nothing passes.
const balancerIdle = time.Minute

// dialled are members whose agents dial the hub through networks.
type dialled struct {
	*placements

	network map[*testenv.Member]*testenv.Network
	agent   map[*testenv.Member]*testenv.Agent
	value   int
}

// TestAgentsInTrouble has all that can happen between a hub and agents happen while workloads with overrides are placed and changed in the clusters of
// those agents, and one that the hub dials. Nothing is written there in an older version than before, without its override or twice, but for what was on its
// way; nothing moves, nothing is deleted; the cluster that the hub dials notices nothing; and each has everything as it is wanted once the trouble ends, with no help.
func TestAgentsInTrouble(t *testing.T) {
	w := start(t, "agents")
	program, err := testenv.BuildAgent(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	d := &dialled{
		placements: w.placing(1, members.List...), network: map[*testenv.Member]*testenv.Network{}, agent: map[*testenv.Member]*testenv.Agent{},
	}
	agents := []*testenv.Member{w.oak, w.pine}
	for _, m := range agents {
		d.network[m] = testenv.NewNetwork(t, w.hub.Listener(t), balancerIdle)
		w.hub.JoinByAgent(t, m, d.network[m])
		d.agent[m] = m.StartAgent(t, program)
	}
	for _, m := range agents {
		w.eventually(m.Name+" is dialled by its agent", func() error {
			c, err := w.hub.Find(t.Context(), "cluster.orrery.dev/v1alpha1", "Cluster", "", m.Name)
			if err != nil {
				return err
			}
			if mode, _, _ := unstructured.NestedString(c.Object, "spec", "syncMode"); mode != "Pull" {
				return errorf("it is %s", mode)
			}
			return nil
		})
		w.ready(m)
	}
	d.change()
	d.put(0, "app-0", "conf-0")
	d.have(members.List...)
	d.told()
	all := len(d.wanted())
	for _, m := range members.List {
		d.exactly(m, all)
	}
	phase := func(name string, do func(t *testing.T)) {
		t.Helper()
		whole := w.T
		began := time.Now()
		if !t.Run(name, func(t *testing.T) {
			w.T = t
			defer func() { w.T = whole }()
			do(t)
			d.have(members.List...)
			d.told()
			w.moved("ResourceBinding", "app-0-deployment", clusterNames...)
			d.close()
		}) {
			t.FailNow() // it may have left a fleet that is not whole
		}
		t.Logf("%s took %s", name, time.Since(began).Round(time.Second))
	}

	phase("ResetInTheMidst", func(t *testing.T) {
		network := d.network[w.oak]
		// Of an exec: whoever runs it is told, and the next one works.
		d.shell(w.oak)
		for range 2 {
			session := d.exec(t, w.oak)
			session.echoes("before")
			network.Reset()
			if err := session.wait(); err == nil {
				t.Error("an exec ended well whose connection was reset")
			}
		}
		d.exec(t, w.oak).echoes("after")
		// Of lists: each has everything, or fails.
		stop := make(chan struct{})
		var resets sync.WaitGroup
		resets.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(70 * time.Millisecond):
					network.Reset()
				}
			}
		})
		for range 8 {
			out, err := w.hub.Kubectl("--context=oak", "get", "configmaps,secrets,clusterroles", "-n", w.ns, "-o", "name")
			if err == nil && (!contains(out, "configmap/conf-0\n") || !contains(out, "secret/app-0\n") || !contains(out, "/cluster-admin\n") || !contains(out, "/view\n")) {
				t.Errorf("a list that was cut off passed for whole:\n%s", out)
			}
		}
		close(stop)
		resets.Wait()
		// Of applies.
		var mu sync.Mutex
		cut := 0
		w.oak.OnWrite(func(r testenv.Write) {
			mu.Lock()
			defer mu.Unlock()
			if r.Namespace == w.ns && r.Impersonated == "" && cut < 3 {
				cut++
				network.Reset()
			}
		})
		d.change()
		d.have(members.List...)
		w.oak.OnWrite(nil)
		d.told()
		d.exactly(w.birch, all)
		d.exactly(w.pine, all)
		d.atMost(w.oak, all+3*atOnce)
	})

	phase("HubKilledWhileItWrites", func(*testing.T) {
		hit, killed := make(chan struct{}), make(chan struct{})
		var once sync.Once
		w.oak.OnWrite(func(r testenv.Write) {
			if r.Namespace == w.ns {
				once.Do(func() { close(hit) })
				<-killed
			}
		})
		d.change()
		<-hit
		w.hub.Kill()
		w.oak.OnWrite(nil)
		close(killed)
		w.restart()
		d.restarted()
		d.have(members.List...)
		d.told()
		for _, m := range members.List {
			d.atMost(m, 2*all)
		}
	})

	phase("Swallowed", func(*testing.T) {
		for _, m := range agents {
			d.network[m].Swallow()
		}
		d.change()
		d.have(members.List...)
		d.told()
		d.exactly(w.birch, all)
		for _, m := range agents {
			d.atMost(m, 2*all)
		}
	})

	phase("HalfOpen", func(*testing.T) {
		d.network[w.oak].HalfOpen(true)
		d.network[w.pine].HalfOpen(false)
		d.change()
		d.have(members.List...)
		d.told()
		d.exactly(w.birch, all)
		for _, m := range agents {
			d.atMost(m, 2*all)
		}
	})

	phase("AgentKilledInTheDark", func(*testing.T) {
		d.network[w.oak].Dark(true)
		d.agent[w.oak].Kill()
		d.change()
		w.lost(w.oak)
		d.have(w.birch, w.pine)
		w.binding("Deployment", "app-0", "FullyApplied=False/ClusterUnreachable")
		w.moved("ResourceBinding", "app-0-deployment", clusterNames...)
		d.exactly(w.birch, all)
		d.exactly(w.pine, all)
		d.exactly(w.oak, 0)
		d.agent[w.oak] = w.oak.StartAgent(t, program) // for the rest of the test
		d.network[w.oak].Dark(false)
		d.have(w.oak)
		d.told()
		d.exactly(w.oak, all)
	})

	for _, m := range agents {
		if n := d.network[m].Dropped(); n > 0 {
			t.Errorf("%d connections of %s said nothing for %s", n, m.Name, balancerIdle)
		}
	}
	before := map[*testenv.Member]content{}
	for _, m := range members.List {
		before[m] = w.content(m)
		w.must(w.hub.Unjoin(m))
	}
	for _, m := range members.List {
		w.stays(m, before[m])
		if d.agent[m] == nil {
			continue
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		if err := d.agent[m].Wait(ctx); err != nil {
			t.Errorf("the agent of %s, which has left: %v", m.Name, err)
		}
		cancel()
		w.eventually("the hub's account in "+m.Name+" is gone", func() error {
			_, err := m.Find(t.Context(), "v1", "ServiceAccount", "orrery-system", "orrery")
			if apierrors.IsNotFound(err) {
				return nil
			}
			return errors.Join(err, errors.New("it is there"))
		})
	}
}

// change has each copy written anew.
func (d *dialled) change() {
	d.Helper()
	d.value++
	d.override(0, d.value)
}

// shell makes a pod in which cat can be run: its node's kubelet is this test.
func (d *dialled) shell(m *testenv.Member) {
	d.Helper()
	kubelet := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/exec/") {
			http.NotFound(w, r)
			return
		}
		_ = testenv.ServeSession(w, r, func(in io.Reader, out io.Writer) metav1.Status {
			_, _ = io.Copy(out, in)
			return metav1.Status{Status: metav1.StatusSuccess}
		})
	}))
	d.Cleanup(kubelet.Close)
	_, port, err := net.SplitHostPort(kubelet.Listener.Addr().String())
	d.must(err)
	number, err := strconv.ParseInt(port, 10, 32)
	d.must(err)
	nodes := kubernetes.NewForConfigOrDie(m.DirectConfig()).CoreV1().Nodes()
	_, err = nodes.Create(d.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "shell"}}, metav1.CreateOptions{})
	d.must(err)
	d.Cleanup(func() { m.Remove(d, "v1", "Node", "", "shell") })
	m.Apply(d, "apiVersion: v1\nkind: Pod\nmetadata: {name: shell, namespace: default}\nspec: {nodeName: shell, tolerations: [{operator: Exists}], containers: [{name: cat, image: cat}]}\n")
	d.Cleanup(func() { m.Remove(d, "v1", "Pod", "default", "shell") })
	d.eventually("the pod can be reached", func() error {
		// Whoever simulates nodes writes it, too, when it is new.
		node, err := nodes.Get(d.Context(), "shell", metav1.GetOptions{})
		if err != nil {
			return err
		}
		node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
		node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(number)
		if _, err := nodes.UpdateStatus(d.Context(), node, metav1.UpdateOptions{}); err != nil {
			return err
		}
		_, err = d.hub.Kubectl("--context="+m.Name, "exec", "-i", "-n", "default", "shell", "--", "cat")
		return err
	})
}

// session is an exec of cat.
type session struct {
	t      *testing.T
	in     io.WriteCloser
	out    *bufio.Reader
	cmd    *exec.Cmd
	errors strings.Builder
}

func (d *dialled) exec(t *testing.T, m *testenv.Member) *session {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	s := &session{t: t, cmd: exec.CommandContext(ctx, testenv.KubeBinary(), "kubectl", "--context="+m.Name, "exec", "-i", "-n", "default", "shell", "--", "cat")}
	s.cmd.Env = append(os.Environ(), "KUBECONFIG="+d.hub.Kubeconfig())
	s.cmd.Stderr = &s.errors
	var err error
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.out = bufio.NewReader(out)
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return s
}

// echoes has the command say something back.
func (s *session) echoes(text string) {
	s.t.Helper()
	_, err := io.WriteString(s.in, text+"\n")
	line := ""
	if err == nil {
		line, err = s.out.ReadString('\n')
	}
	if err != nil || line != text+"\n" {
		_ = s.in.Close()
		s.t.Fatalf("exec says %q: %v; it ended: %v\n%s", line, err, s.cmd.Wait(), s.errors.String())
	}
}

// wait waits until the command has ended.
func (s *session) wait() error { return s.cmd.Wait() }
