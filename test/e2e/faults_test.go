package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	watchtools "k8s.io/client-go/tools/watch"

	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/test/e2e/demo"
)

// pid reads the pidfile of a process of the demo, and waits while the process is being started
// again. The files of the hub's own processes are under hub/.
func pid(t testing.TB, name string) (found int) {
	t.Helper()
	eventually(t, deadline, func() string {
		if found = readPID(name); found == 0 {
			return fmt.Sprintf("no pidfile of %s under %s", name, demo.Dir())
		}
		return ""
	})
	return found
}

// readPID returns 0 if there is no complete pidfile now.
func readPID(name string) int {
	for _, pattern := range []string{
		filepath.Join(demo.Dir(), "processes", name+".pid"),
		filepath.Join(demo.Dir(), "hub", "*", name+".pid"),
	} {
		files, _ := filepath.Glob(pattern)
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				continue
			}
			words := strings.Fields(string(b))
			if len(words) == 0 {
				continue // it is being written
			}
			n, err := strconv.Atoi(words[0])
			if err == nil {
				return n
			}
		}
	}
	return 0
}

func signal(t testing.TB, name string, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid(t, name), sig); err != nil {
		t.Fatalf("signal %s: %v", name, err)
	}
}

// configMaps returns the manifests of numbered ConfigMaps.
func configMaps(from, to int, ns string) string {
	var b strings.Builder
	for i := from; i < to; i++ {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c%03d, namespace: %s}\ndata: {n: \"%d\"}\n", i, ns, i)
	}
	return b.String()
}

func configMapPolicy(ns string) string {
	return fmt.Sprintf(`
apiVersion: policy.orrery.dev/v1alpha1
kind: PropagationPolicy
metadata: {name: all, namespace: %s}
spec:
  resourceSelectors: [{apiVersion: v1, kind: ConfigMap}]
`, ns)
}

// placedConfigMaps is the label of ConfigMaps that the hub has placed.
const placedConfigMaps = "work.orrery.dev/binding"

// countPlaced counts the placed ConfigMaps of a namespace in a member.
func countPlaced(t testing.TB, member, ns string) (int, error) {
	t.Helper()
	list, err := demo.Client(t, member).CoreV1().ConfigMaps(ns).List(t.Context(), metav1.ListOptions{LabelSelector: placedConfigMaps})
	if err != nil {
		return 0, err
	}
	return len(list.Items), nil
}

func eventuallyPlaced(t testing.TB, member, ns string, want int) {
	t.Helper()
	eventually(t, 3*time.Minute, func() string {
		if n, err := countPlaced(t, member, ns); err != nil || n != want {
			return fmt.Sprintf("%s has %d of %d: %v", member, n, want, err)
		}
		return ""
	})
}

// copies holds the ConfigMaps that the hub has placed in a namespace of all members, as seen by
// watches that begin before the first is placed.
type copies struct {
	mu      sync.Mutex
	present map[string]map[string]types.UID          // by member and name
	created map[string]map[string]map[types.UID]bool // including those that are gone
	ended   []string                                 // members whose watch ended before the test
}

func watchCopies(t testing.TB, ns string) *copies {
	t.Helper()
	c := &copies{present: map[string]map[string]types.UID{}, created: map[string]map[string]map[types.UID]bool{}}
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		group.Wait()
	})
	for _, member := range demo.Clusters {
		c.present[member], c.created[member] = map[string]types.UID{}, map[string]map[types.UID]bool{}
		// The client does not go through the hub.
		cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(demo.Dir(), "members", member, "kubeconfig"))
		if err != nil {
			t.Fatal(err)
		}
		client, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			t.Fatal(err)
		}
		var list *corev1.ConfigMapList
		testenv.Eventually(t, "list what "+member+" has", testenv.Patience, func() (err error) {
			list, err = client.CoreV1().ConfigMaps(ns).List(ctx, metav1.ListOptions{LabelSelector: placedConfigMaps})
			return err
		})
		if len(list.Items) > 0 {
			t.Fatalf("%s has objects of namespace %s already", member, ns)
		}
		// A watch that ends is resumed at its last resourceVersion.
		w, err := watchtools.NewRetryWatcherWithContext(ctx, list.ResourceVersion, &cache.ListWatch{
			WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
				options.LabelSelector = placedConfigMaps
				return client.CoreV1().ConfigMaps(ns).Watch(ctx, options)
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		group.Go(func() {
			for e := range w.ResultChan() {
				c.note(member, e)
			}
			if ctx.Err() == nil {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.ended = append(c.ended, member)
			}
		})
	}
	return c
}

func (c *copies) note(member string, e watch.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o, ok := e.Object.(*corev1.ConfigMap)
	switch {
	case !ok:
		c.ended = append(c.ended, member)
	case e.Type == watch.Deleted:
		delete(c.present[member], o.Name)
	default:
		c.present[member][o.Name] = o.UID
		if c.created[member][o.Name] == nil {
			c.created[member][o.Name] = map[types.UID]bool{}
		}
		c.created[member][o.Name][o.UID] = true
	}
}

// some waits until some member has a copy.
func (c *copies) some(t testing.TB) {
	t.Helper()
	c.eventually(t, "something is placed", func(_, most int) bool { return most > 0 })
}

// each waits until each member has count copies.
func (c *copies) each(t testing.TB, count int) {
	t.Helper()
	c.eventually(t, fmt.Sprintf("each member has %d", count), func(fewest, most int) bool { return fewest == count && most == count })
}

func (c *copies) eventually(t testing.TB, what string, enough func(fewest, most int) bool) {
	t.Helper()
	testenv.Eventually(t, what, 3*time.Minute, func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.ended) > 0 {
			t.Fatalf("the watches of %v have ended", c.ended)
		}
		var counts []int
		for _, member := range demo.Clusters {
			counts = append(counts, len(c.present[member]))
		}
		if !enough(slices.Min(counts), slices.Max(counts)) {
			return fmt.Errorf("%v have %v", demo.Clusters, counts)
		}
		return nil
	})
}

// once fails the test if a member got a copy of a name more than once, also after the copy was
// deleted.
func (c *copies) once(t testing.TB, count int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for member, created := range c.created {
		if len(created) != count {
			t.Errorf("%s had %d objects, want %d", member, len(created), count)
		}
		for name, uids := range created {
			if len(uids) != 1 {
				t.Errorf("%s was created %d times in %s", name, len(uids), member)
			}
		}
	}
}

// TestKillInTheMiddleOf200Placements kills a process of the hub with SIGKILL while objects are
// being placed: one that Seed selects, or each under SOAK. The fleet must converge: no copy is
// missing, none is created twice, none is left after deletion. TestKills of test/spine covers
// writes that are pending when the hub's own process is killed.
func TestKillInTheMiddleOf200Placements(t *testing.T) {
	const count = 200
	demo.Dir() // the seed depends on the programs
	victims := []string{"etcd", "kube-apiserver", "kube-controller-manager"}
	for _, victim := range testenv.Sample(t, len(victims), victims) {
		t.Run(victim, func(t *testing.T) {
			ns := namespace(t, "kill-"+victim)
			placed := watchCopies(t, ns)
			apply(t, "hub", configMapPolicy(ns))
			apply(t, "hub", configMaps(0, count/2, ns))
			// Now some copies exist already, and writes of others are pending.
			placed.some(t)
			signal(t, victim, syscall.SIGKILL)
			eventually(t, deadline, func() string {
				if out, err := demo.TryKubectl("hub", configMaps(count/2, count, ns), "apply", "-f", "-"); err != nil {
					return out
				}
				return ""
			})
			placed.each(t, count)
			placed.once(t, count)

			// One request deletes all objects one by one. That takes longer than the timeout of
			// demo.Client.
			hub, err := kubernetes.NewForConfig(demo.Config(t, "hub"))
			if err != nil {
				t.Fatal(err)
			}
			// The API server ends a request after a minute, and a busy machine may not be done
			// by then.
			eventually(t, 5*time.Minute, func() string {
				if err := hub.CoreV1().ConfigMaps(ns).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
					return err.Error()
				}
				return ""
			})
			placed.each(t, 0)
			absent(t, "hub", "resourcebindings", "-n", ns)
			placed.once(t, count)
		})
	}
}

// TestMemberGoneAndBack makes a member's API server hang, and kills it: its status becomes
// unknown, the fleet shows its last known objects, and objects created meanwhile reach the
// other members without delay. When the demo has started the API server again, the member gets
// all of them and keeps the objects it had.
func TestMemberGoneAndBack(t *testing.T) {
	const member, apiServer = "birch", "birch-apiserver"
	ns := namespace(t, "gone")
	apply(t, "hub", configMapPolicy(ns))
	apply(t, "hub", configMaps(0, 5, ns))
	for _, m := range demo.Clusters {
		eventuallyPlaced(t, m, ns, 5)
	}
	uids := func() map[string]types.UID {
		var list *corev1.ConfigMapList
		testenv.Eventually(t, "list what "+member+" has", testenv.Patience, func() (err error) {
			list, err = demo.Client(t, member).CoreV1().ConfigMaps(ns).List(t.Context(), metav1.ListOptions{LabelSelector: placedConfigMaps})
			return err
		})
		all := map[string]types.UID{}
		for _, o := range list.Items {
			all[o.Name] = o.UID
		}
		return all
	}
	before, hung := uids(), pid(t, apiServer)
	shown := func() string {
		out := demo.Kubectl(t, "fleet", "get", "configmaps", "-n", ns)
		if n := strings.Count(out, member+" "); n < len(before) {
			return fmt.Sprintf("the fleet shows %d objects of %s, want %d or more:\n%s", n, member, len(before), out)
		}
		return ""
	}
	eventually(t, deadline, shown) // so that the mirror has the objects

	signal(t, apiServer, syscall.SIGSTOP)
	eventually(t, deadline, func() string {
		if s := demo.Kubectl(t, "hub", "get", "cluster", member, "-o", "jsonpath={.status.conditions[?(@.type=='Reachable')].status}"); s != "Unknown" {
			return "Reachable is " + s
		}
		if s := demo.Kubectl(t, "hub", "get", "resourcebinding", "c000-configmap", "-n", ns, "-o", "jsonpath={.status.aggregatedStatus[?(@.clusterName=='"+member+"')].health}"); s != "Unknown" {
			return "health in " + member + " is " + s
		}
		return ""
	})
	if missing := shown(); missing != "" {
		t.Errorf("the cluster is unreachable: %s", missing)
	}
	apply(t, "hub", configMaps(5, 10, ns))
	eventuallyPlaced(t, "oak", ns, 10)
	eventuallyPlaced(t, "pine", ns, 10)

	signal(t, apiServer, syscall.SIGKILL)
	eventuallyPlaced(t, member, ns, 10)
	if now := pid(t, apiServer); now == hung {
		t.Errorf("the API server of %s is the process %d that was killed", member, now)
	}
	after := uids()
	for name, uid := range before {
		if after[name] != uid {
			t.Errorf("%s is another object in %s than before", name, member)
		}
	}
	demo.Kubectl(t, "hub", "wait", "--for=condition=Ready", "cluster/"+member, "--timeout=180s")
}

// TestNoOrphansWhenTheDemoIsKilled kills a demo's own process with SIGKILL: every process that
// it started must end.
func TestNoOrphansWhenTheDemoIsKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd := testenv.Program(context.Background(), demo.Orrery(), "demo", "up", "--clusters=1", "--data-dir", dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	// A member's API server starts last. The hub's own children run by then.
	eventually(t, deadline, func() string {
		running := strings.Join(demo.ProcessesOf(dir), "\n")
		for _, p := range []string{"kube-apiserver", "kube-controller-manager", "members/oak"} {
			if !strings.Contains(running, p) {
				return "waiting for " + p + ":\n" + running
			}
		}
		return ""
	})
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	eventually(t, time.Minute, func() string {
		if left := demo.ProcessesOf(dir); len(left) > 0 {
			return "left: " + strings.Join(left, "\n")
		}
		return ""
	})
}

// TestDemoInTheForeground runs a demo as a new user does, and ends it with Ctrl-C.
func TestDemoInTheForeground(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	shown := filepath.Join(t.TempDir(), "shown")
	out, err := os.Create(shown)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd := testenv.Program(context.Background(), demo.Orrery(), "demo", "up", "--clusters=1", "--data-dir", dir)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	text := func() string {
		text, err := os.ReadFile(shown)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	eventually(t, 3*deadline, func() string {
		if !strings.Contains(text(), "Ctrl-C") {
			return "it shows:\n" + text()
		}
		return ""
	})
	for _, want := range []string{
		// Progress is printed line by line.
		"starting a hub", "joining clusters", "waiting until the sample is ready",
		"hello   oak       6          Healthy",
		"kubectl --context fleet get pods -A", "kubectl --context hub -n demo patch website", "orrery cluster describe oak",
	} {
		if !strings.Contains(text(), want) {
			t.Errorf("it does not show %q:\n%s", want, text())
		}
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("Ctrl-C: %v\n%s", err, text())
	}
	if left := demo.ProcessesOf(dir); len(left) > 0 {
		t.Errorf("left: %s", strings.Join(left, "\n"))
	}
}
