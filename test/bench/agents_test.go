//go:build bench

package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/remotecommand"

	"orrery.dev/orrery/internal/testenv"
)

// dialled is a hub and a member of one API server. The agents of the member dial the hub
// through a network that can be disturbed. A pod runs commands in the member, on a node with a
// fake kubelet.
type dialled struct {
	*testenv.Member
	b       *testing.B
	hub     *testenv.Hub
	network *testenv.Network
	agents  map[string]*testenv.Agent // by replica
	direct  *kubernetes.Clientset     // bypasses the hub
	cfg     *rest.Config              // of the hub
	by      *rest.Config              // through the hub, to the cluster
	fleet   *lister
	made    int
}

func program(name string) string { return filepath.Join(testenv.Root(), "bin", name) }

func startAgentHub(b *testing.B) *testenv.Hub {
	b.Helper()
	hub, err := testenv.StartHub(b.TempDir(), program("orrery"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = hub.Stop() })
	return hub
}

// startDialled starts the hub, the member, the kubelet and one agent, and waits until an exec
// works.
func startDialled(b *testing.B) *dialled {
	b.Helper()
	server := testenv.StartServer(b)
	hub := startAgentHub(b)
	d := &dialled{
		Member: server.Member(b, "oak"), b: b, hub: hub, network: testenv.NewNetwork(b, hub.Listener(b), 0), agents: map[string]*testenv.Agent{},
		direct: clientset(b, server.Config()),
	}
	testenv.StartKubelet(b, server.Config(), "n1")
	d.Apply(b, `
apiVersion: v1
kind: Namespace
metadata: {name: bench}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: default, namespace: bench}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: bench}
spec: {nodeName: n1, containers: [{name: web, image: web}]}
`)
	hub.JoinByAgent(b, d.Member, d.network)
	d.agent("one")
	var err error
	if d.cfg, err = hub.Config(); err != nil {
		b.Fatal(err)
	}
	if d.fleet, err = newLister(d.cfg); err != nil {
		b.Fatal(err)
	}
	poll(b, time.Minute, "the hub's kubeconfig to name the cluster", func(context.Context) (bool, error) {
		d.by, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
			&clientcmd.ClientConfigLoadingRules{ExplicitPath: hub.Kubeconfig()}, &clientcmd.ConfigOverrides{CurrentContext: "oak"}).ClientConfig()
		return err == nil, nil
	})
	d.settled()
	return d
}

// agent starts an agent with that replica name.
func (d *dialled) agent(replica string) {
	d.b.Helper()
	d.agents[replica] = d.StartAgent(d.b, program("orrery-agent-linux-"+runtime.GOARCH), replica)
}

// settled waits until the cluster is ready, all of its agents are connected, and an exec works.
func (d *dialled) settled() {
	d.b.Helper()
	testenv.Eventually(d.b, "the cluster to be ready", 2*time.Minute, func() error {
		c, err := d.hub.Find(context.Background(), "cluster.orrery.dev/v1alpha1", "Cluster", "", d.Name)
		if err != nil {
			return err
		}
		replicas, _, _ := unstructured.NestedInt64(c.Object, "status", "agent", "replicas")
		conditions, _, _ := unstructured.NestedSlice(c.Object, "status", "conditions")
		ready := slices.ContainsFunc(conditions, func(c any) bool {
			m, _ := c.(map[string]any)
			return m["type"] == "Ready" && m["status"] == "True"
		})
		if !ready || replicas != int64(len(d.agents)) {
			return fmt.Errorf("%d agents are connected; ready: %t", replicas, ready)
		}
		return nil
	})
	d.recovers(d.b, time.Now())
}

// exec runs a command in the pod, through the hub.
func (d *dialled) exec(ctx context.Context, command string, in io.Reader, out io.Writer) error {
	c, err := kubernetes.NewForConfig(d.by)
	if err != nil {
		return err
	}
	to := c.CoreV1().RESTClient().Get().Namespace("bench").Resource("pods").Name("web").SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: "web", Command: []string{command}, Stdin: in != nil, Stdout: true}, scheme.ParameterCodec).URL()
	e, err := remotecommand.NewWebSocketExecutor(d.by, http.MethodGet, to.String())
	if err != nil {
		return err
	}
	return e.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: in, Stdout: out})
}

// recovers measures two times from since on: until an exec succeeds, which is repeated when it
// fails, and until the fleet lists a ConfigMap that recovers creates now. It fails b after 2
// minutes.
func (d *dialled) recovers(b *testing.B, since time.Time) (answers, mirrored time.Duration) {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	d.made++
	name := fmt.Sprint("made-", d.made)
	again := func(check func() error) (time.Duration, error) {
		for {
			err := check()
			if err == nil {
				return time.Since(since), nil
			}
			if ctx.Err() != nil {
				return 0, err
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	var g errgroup.Group
	g.Go(func() (err error) {
		answers, err = again(func() error {
			var out bytes.Buffer
			err := d.exec(ctx, "echo", nil, &out)
			if err == nil && out.String() != "echo in bench/web/web\n" {
				err = fmt.Errorf("it says %q", out.String())
			}
			return err
		})
		return err
	})
	g.Go(func() (err error) {
		o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := d.direct.CoreV1().ConfigMaps("bench").Create(ctx, o, metav1.CreateOptions{}); err != nil {
			return err
		}
		mirrored, err = again(func() error {
			list, err := d.fleet.list(url.Values{"names": {name}, "onlyMetadata": {"true"}})
			if err == nil && len(list.Items) == 0 {
				err = errors.New("the fleet does not show it")
			}
			return err
		})
		return err
	})
	if err := g.Wait(); err != nil {
		b.Fatal(err)
	}
	return answers, mirrored
}

// fault is a fault of a hub, of an agent or of the network between them.
type fault struct {
	name string
	do   func(round int)
	// repair runs while the recovery is measured, after runs then. Both may be nil.
	repair, after func()
}

// BenchmarkAgentRecovery causes each fault ROUNDS (10) times. It measures how long after the
// fault an exec answers, and the mirror has an object that is created in the cluster: median
// and longest.
func BenchmarkAgentRecovery(b *testing.B) {
	repetitions := number(b, "ROUNDS", 10)
	d := startDialled(b)
	for _, f := range []fault{
		{name: "Reset", do: func(int) { d.network.Reset() }},
		{name: "AgentKilledAndStarted", do: func(int) { d.agents["one"].Kill() }, repair: func() { d.agent("one") }},
		{name: "HubKilledAndStarted", do: func(int) { d.hub.Kill() }, repair: func() { d.startHub(b) }},
		{name: "Swallowed", do: func(int) { d.network.Swallow() }},
		{name: "HalfOpen", do: func(round int) { d.network.HalfOpen(round%2 == 0) }},
		{name: "OneOfTwoAgentsKilled", do: func(int) { d.agents["two"].Kill() }, after: func() { d.agent("two") }},
	} {
		b.Run(f.name, func(b *testing.B) {
			if f.after != nil {
				f.after()
			}
			for range b.N {
				d.measure(b, f, repetitions)
			}
		})
	}
}

func (d *dialled) measure(b *testing.B, f fault, repetitions int) {
	b.Helper()
	var answers, mirrored, repaired, answersThen, mirroredThen []time.Duration
	for round := range repetitions {
		d.settled()
		// The fault may come at any time between two probes of the agent.
		time.Sleep(time.Second + rand.N(4*time.Second))
		start := time.Now()
		f.do(round)
		var repair sync.WaitGroup
		if f.repair != nil {
			repair.Go(func() {
				f.repair()
				repaired = append(repaired, time.Since(start))
			})
		}
		a, m := d.recovers(b, start)
		repair.Wait()
		answers, mirrored = append(answers, a), append(mirrored, m)
		if f.repair != nil {
			answersThen, mirroredThen = append(answersThen, max(0, a-repaired[round])), append(mirroredThen, max(0, m-repaired[round]))
		}
		if f.after != nil {
			f.after()
		}
	}
	spread(b, "exec", answers)
	spread(b, "mirror", mirrored)
	if f.repair != nil {
		spread(b, "repaired", repaired)
		spread(b, "exec-once-repaired", answersThen)
		spread(b, "mirror-once-repaired", mirroredThen)
	}
}

func (d *dialled) startHub(b *testing.B) {
	if err := d.hub.Start(); err != nil {
		b.Error(err)
	}
}

// spread reports the median and the maximum of the durations.
func spread(b *testing.B, what string, took []time.Duration) {
	b.Helper()
	b.Log(what, took)
	slices.Sort(took)
	b.ReportMetric(took[len(took)/2].Seconds(), "s-"+what+"-p50")
	b.ReportMetric(took[len(took)-1].Seconds(), "s-"+what+"-max")
}

// BenchmarkAgentLatency measures how long an object takes from its creation on the hub to a
// cluster that the hub dials, and to a cluster whose agent dials the hub. It creates 10 objects
// a second for SECONDS (30), in each cluster alternately, twice. For comparison, a client
// creates objects in the cluster directly.
func BenchmarkAgentLatency(b *testing.B) {
	seconds := number(b, "SECONDS", 30)
	hub := startAgentHub(b)
	by := map[string]*rest.Config{}
	for _, name := range []string{"push", "agent"} {
		server := testenv.StartServer(b)
		by[name] = server.Config()
		m := server.Member(b, name)
		m.Apply(b, "apiVersion: v1\nkind: Namespace\nmetadata: {name: direct}\n")
		if name == "push" {
			if err := hub.Join(m); err != nil {
				b.Fatal(err)
			}
		} else {
			hub.JoinByAgent(b, m, nil)
			m.StartAgent(b, program("orrery-agent-linux-"+runtime.GOARCH), "one")
		}
		hub.Apply(b, fmt.Sprintf(`
apiVersion: v1
kind: Namespace
metadata: {name: %[1]s}
---
apiVersion: policy.orrery.dev/v1alpha1
kind: PropagationPolicy
metadata: {name: all, namespace: %[1]s}
spec:
  resourceSelectors: [{apiVersion: apps/v1, kind: Deployment}]
  placement: {clusterAffinity: {clusterNames: [%[1]s]}}
`, name))
	}
	cfg, err := hub.Config()
	if err != nil {
		b.Fatal(err)
	}
	cfg.QPS = -1
	both := &fleet{cfg: cfg, members: []*rest.Config{by["push"], by["agent"]}}
	creating := func(c *kubernetes.Clientset, ns string) func(string) error {
		return func(name string) error {
			_, err := c.AppsV1().Deployments(ns).Create(context.Background(), deployment(ns, name), metav1.CreateOptions{})
			return err
		}
	}
	for n := range b.N {
		both.still(b)
		took := map[string][]time.Duration{}
		for round := range 2 {
			for _, name := range []string{"push", "agent"} {
				one := &fleet{members: []*rest.Config{by[name]}}
				prefix := fmt.Sprintf("n%d-%d-", n, round)
				took[name+"-direct"] = append(took[name+"-direct"], one.latencies(b, prefix, 100, creating(clientset(b, by[name]), "direct"))...)
				took[name] = append(took[name], one.latencies(b, prefix, 10*seconds, creating(clientset(b, cfg), name))...)
			}
		}
		for name, all := range took {
			slices.Sort(all)
			report(b, milliseconds(all[len(all)/2]), "ms-"+name+"-p50")
			report(b, milliseconds(all[len(all)*99/100]), "ms-"+name+"-p99")
		}
		push, agent := took["push"], took["agent"]
		report(b, float64(agent[len(agent)/2])/float64(push[len(push)/2]), "times-push-p50")
		report(b, float64(agent[len(agent)*99/100])/float64(push[len(push)*99/100]), "times-push-p99")
	}
}

// BenchmarkAgentMemory measures the memory of an idle agent, and of an agent with ten open
// execs after each exec has passed 10 MB in both directions.
func BenchmarkAgentMemory(b *testing.B) {
	const execs, messages = 10, 640
	d := startDialled(b)
	for range b.N {
		d.settled()
		report(b, d.resident("VmRSS"), "MiB-RSS")
		var open, echoes errgroup.Group
		var ends []io.Closer
		for range execs {
			in, send := io.Pipe()
			ends = append(ends, send)
			receive, out := io.Pipe()
			open.Go(func() error {
				err := d.exec(context.Background(), "cat", in, out)
				_ = out.CloseWithError(io.ErrUnexpectedEOF)
				return err
			})
			echoes.Go(func() error {
				message, answer := make([]byte, 16<<10), make([]byte, 16<<10)
				for range messages {
					if _, err := send.Write(message); err != nil {
						return err
					}
					if _, err := io.ReadFull(receive, answer); err != nil {
						return err
					}
				}
				return nil
			})
		}
		if err := echoes.Wait(); err != nil {
			b.Fatal(err)
		}
		report(b, d.resident("VmRSS"), "MiB-RSS-with-execs")
		report(b, d.resident("VmHWM"), "MiB-RSS-at-most")
		for _, end := range ends {
			_ = end.Close()
		}
		if err := open.Wait(); err != nil {
			b.Fatal(err)
		}
	}
}

// resident returns, in MiB, the field what of /proc/PID/status of the agent.
func (d *dialled) resident(what string) float64 {
	d.b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.agents["one"].PID()))
	if err != nil {
		d.b.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); f[0] == what+":" {
			kb, err := strconv.Atoi(f[1])
			if err != nil {
				d.b.Fatal(err)
			}
			return float64(kb) / 1024
		}
	}
	d.b.Fatalf("the agent's status does not tell %s", what)
	return 0
}

// BenchmarkAgentFaults finds leaks: it counts the goroutines and file descriptors of the hub
// and of an agent before and after RESETS (1,000) resets of all connections, and FAULTS (20)
// times each other fault. The agent prints its goroutines only when it is ended.
func BenchmarkAgentFaults(b *testing.B) {
	resets, faults := number(b, "RESETS", 1000), number(b, "FAULTS", 20)
	d := startDialled(b)
	before := d.least(b, time.Minute, held{})
	without := d.goroutines(b)
	for _, f := range []fault{
		{name: "Reset", do: func(int) { d.network.Reset() }},
		{name: "Swallowed", do: func(int) { d.network.Swallow() }},
		{name: "HalfOpen", do: func(round int) { d.network.HalfOpen(round%2 == 0) }},
		{name: "Dark", do: func(int) { d.network.Dark(true); time.Sleep(8 * time.Second); d.network.Dark(false) }},
		{name: "AgentKilled", do: func(int) { d.agents["one"].Kill() }, repair: func() { d.agent("one") }},
		{name: "HubKilled", do: func(int) { d.hub.Kill() }, repair: func() { d.startHub(b) }},
	} {
		b.Run(f.name, func(b *testing.B) {
			for range b.N {
				for round := range faults {
					if f.name == "Reset" {
						for range resets/faults - 1 {
							had := d.network.Count()
							f.do(round)
							poll(b, time.Minute, "a connection to come", func(context.Context) (bool, error) { return d.network.Count() > had, nil })
							// The reset may come at any time while a connection is being
							// established.
							time.Sleep(rand.N(200 * time.Millisecond))
						}
					}
					f.do(round)
					if f.repair != nil {
						f.repair()
					}
					d.recovers(b, time.Now())
				}
				after := d.least(b, 3*time.Minute, before)
				b.Logf("before: %+v; after: %+v", before, after)
				b.ReportMetric(float64(after.hubGoroutines-before.hubGoroutines), "goroutines-more-in-the-hub")
				b.ReportMetric(float64(after.hubDescriptors-before.hubDescriptors), "descriptors-more-in-the-hub")
				b.ReportMetric(float64(after.agentDescriptors-before.agentDescriptors), "descriptors-more-in-the-agent")
				b.ReportMetric(float64(d.goroutines(b)-without), "goroutines-more-in-the-agent")
			}
		})
	}
}

// goroutines ends the agent, returns the number of its goroutines, and starts another agent.
func (d *dialled) goroutines(b *testing.B) int {
	b.Helper()
	stacks := d.agents["one"].Quit()
	n := strings.Count(stacks, "\ngoroutine ")
	b.Logf("the agent has %d goroutines", n)
	if n == 0 {
		b.Fatalf("the agent does not tell its goroutines: %s", stacks)
	}
	d.agent("one")
	d.settled()
	return n
}

// held counts what the hub and the agent hold.
type held struct{ hubGoroutines, hubDescriptors, agentDescriptors int }

// least returns the minimum of each count within the duration, because abandoned connections
// are closed with a delay. It returns early when no count exceeds before.
func (d *dialled) least(b *testing.B, within time.Duration, before held) held {
	b.Helper()
	d.settled()
	var least held
	for end := time.Now().Add(within); ; time.Sleep(time.Second) {
		now := d.holds(b)
		if least == (held{}) {
			least = now
		}
		least.hubGoroutines, least.hubDescriptors = min(least.hubGoroutines, now.hubGoroutines), min(least.hubDescriptors, now.hubDescriptors)
		least.agentDescriptors = min(least.agentDescriptors, now.agentDescriptors)
		flat := least.hubGoroutines <= before.hubGoroutines && least.hubDescriptors <= before.hubDescriptors && least.agentDescriptors <= before.agentDescriptors
		if flat || time.Now().After(end) {
			return least
		}
	}
}

func (d *dialled) holds(b *testing.B) (h held) {
	b.Helper()
	text, err := clientset(b, d.cfg).Discovery().RESTClient().Get().AbsPath("/apis/fleet.orrery.dev/v1alpha1/metrics").DoRaw(context.Background())
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, _ := strconv.ParseFloat(value, 64)
		switch name {
		case "go_goroutines":
			h.hubGoroutines = int(n)
		case "process_open_fds":
			h.hubDescriptors = int(n)
		}
	}
	descriptors, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.agents["one"].PID()))
	if err != nil {
		b.Fatal(err)
	}
	h.agentDescriptors = len(descriptors)
	return h
}
