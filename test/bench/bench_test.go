package bench

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/testenv"
)

// BenchmarkHub measures a hub alone: ready from an empty directory, memory when idle, and
// the writes of an idle minute.
func BenchmarkHub(b *testing.B) {
	for range b.N {
		f := &fleet{dir: b.TempDir()}
		took := f.startServer(b)
		b.ReportMetric(took.Seconds(), "s-to-ready")
		before := writes(b, f.cfg)
		time.Sleep(time.Minute) // an idle minute is what is measured
		n, what := since(before, writes(b, f.cfg))
		b.ReportMetric(float64(n), "writes-in-an-idle-minute")
		b.Log("writes:", what)
		total, each := pss(b, f.server.Process.Pid)
		b.ReportMetric(float64(total)/(1<<20), "MiB-PSS-idle")
		b.Log(each)
		f.stopServer(b)
	}
}

// BenchmarkDemo measures the demo from built binaries to the sample ready.
func BenchmarkDemo(b *testing.B) {
	for range b.N {
		dir := b.TempDir()
		orrery := filepath.Join(testenv.Root(), "bin", "orrery")
		start := time.Now()
		out, err := exec.Command(orrery, "demo", "up", "--detach", "--data-dir", dir).CombinedOutput()
		took := time.Since(start)
		if err != nil {
			b.Fatalf("%v\n%s", err, out)
		}
		b.ReportMetric(took.Seconds(), "s-to-sample-ready")
		if out, err := exec.Command(orrery, "demo", "down", "--data-dir", dir).CombinedOutput(); err != nil {
			b.Fatalf("%v\n%s", err, out)
		}
	}
}

// BenchmarkLatency creates 10 objects a second for a minute and measures, for each, the
// time from its creation on the hub until the later of two members shows it.
func BenchmarkLatency(b *testing.B) {
	f := startFleet(b, 2)
	ctx := context.Background()
	hub := clientset(b, f.cfg)
	namespace(b, hub, "latency")
	f.policy(b, "latency")
	for range b.N {
		const count = 600
		var mu sync.Mutex
		seen := map[string][]time.Time{}
		for _, cfg := range f.members {
			c := clientset(b, cfg)
			w, err := c.AppsV1().Deployments(metav1.NamespaceAll).Watch(ctx, metav1.ListOptions{})
			if err != nil {
				b.Fatal(err)
			}
			defer w.Stop()
			go func() {
				for e := range w.ResultChan() {
					if d, ok := e.Object.(*appsv1.Deployment); ok && e.Type == "ADDED" {
						mu.Lock()
						seen[d.Name] = append(seen[d.Name], time.Now())
						mu.Unlock()
					}
				}
			}()
		}
		created := map[string]time.Time{}
		tick := time.NewTicker(100 * time.Millisecond)
		for i := range count {
			<-tick.C
			name := fmt.Sprintf("l%04d", i)
			created[name] = time.Now()
			if _, err := hub.AppsV1().Deployments("latency").Create(ctx, deployment("latency", name), metav1.CreateOptions{}); err != nil {
				b.Fatal(err)
			}
		}
		tick.Stop()
		poll(b, time.Minute, "every object in both members", func(context.Context) (bool, error) {
			mu.Lock()
			defer mu.Unlock()
			for name := range created {
				if len(seen[name]) < len(f.members) {
					return false, nil
				}
			}
			return true, nil
		})
		var took []time.Duration
		for name, at := range created {
			took = append(took, slices.MaxFunc(seen[name], time.Time.Compare).Sub(at))
		}
		slices.Sort(took)
		b.ReportMetric(float64(took[count/2].Milliseconds()), "ms-p50")
		b.ReportMetric(float64(took[count*99/100].Milliseconds()), "ms-p99")
		b.ReportMetric(float64(took[count-1].Milliseconds()), "ms-max")
	}
}

// BenchmarkThousand places 1,000 Deployments in two members and compares with a plain
// client-go loop of 32 workers that creates the same 2,000 objects there: A B A B. After
// that it counts the bytes that a placement costs and the writes of a restart.
func BenchmarkThousand(b *testing.B) {
	f := startFleet(b, 2)
	hub := clientset(b, f.cfg)
	for range b.N {
		const count = 1000
		var ratios []float64
		for round := range 2 {
			plain := fmt.Sprintf("plain-%d", round)
			start := time.Now()
			for _, cfg := range f.members {
				namespace(b, clientset(b, cfg), plain)
			}
			var g errgroup.Group
			for _, cfg := range f.members {
				g.Go(func() error { return createAll(cfg, plain, count, 16) })
			}
			if err := g.Wait(); err != nil {
				b.Fatal(err)
			}
			direct := time.Since(start)
			// The mirror sees these too; the second measurement begins when it has.
			f.mirrored(b, plain, 2*count)

			placed := fmt.Sprintf("placed-%d", round)
			namespace(b, hub, placed)
			f.policy(b, placed)
			start = time.Now()
			created := make(chan error, 1)
			go func() { created <- createAll(f.cfg, placed, count, 32) }()
			for _, cfg := range f.members {
				f.present(b, cfg, placed, count)
			}
			through := time.Since(start)
			if err := <-created; err != nil {
				b.Fatal(err)
			}
			b.Logf("round %d: plain client %s, placed %s", round, direct, through)
			ratios = append(ratios, through.Seconds()/direct.Seconds())
			f.settled(b, placed, count)
		}
		b.ReportMetric(slices.Max(ratios), "times-a-plain-client")

		b.ReportMetric(f.bytesPerPlacement(b, "placed-1", count), "etcd-bytes/object/cluster")

		f.stopServer(b)
		before := []map[string]int{writes(b, f.members[0]), writes(b, f.members[1])}
		f.startServer(b)
		own := writes(b, f.cfg)
		time.Sleep(30 * time.Second) // what a restart writes, it writes by then
		for i, cfg := range f.members {
			n, what := since(before[i], writes(b, cfg))
			b.ReportMetric(float64(n), fmt.Sprintf("writes-to-member-%d-by-restart", i))
			b.Log("member:", what)
		}
		// The API server's counters begin with the restart; what it writes before the hub is
		// ready is its own.
		n, what := since(own, writes(b, f.cfg))
		b.ReportMetric(float64(n), "writes-to-hub-by-restart")
		b.Log("hub:", what)
	}
}

func deployment(namespace, name string) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(2)),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "nginx"}}},
			},
		},
	}
}

func clientset(b *testing.B, cfg *rest.Config) *kubernetes.Clientset {
	b.Helper()
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		b.Fatal(err)
	}
	return c
}

func namespace(b *testing.B, c *kubernetes.Clientset, name string) {
	b.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := c.CoreV1().Namespaces().Create(context.Background(), ns, metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
}

// createAll creates count Deployments with a number of workers.
func createAll(cfg *rest.Config, ns string, count, workers int) error {
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	var g errgroup.Group
	g.SetLimit(workers)
	for i := range count {
		g.Go(func() error {
			_, err := c.AppsV1().Deployments(ns).Create(context.Background(), deployment(ns, fmt.Sprintf("d%04d", i)), metav1.CreateOptions{})
			return err
		})
	}
	return g.Wait()
}

// policy places the Deployments of a namespace in every cluster.
func (f *fleet) policy(b *testing.B, ns string) {
	b.Helper()
	p := &policyv1alpha1.PropagationPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "all"},
		Spec: policyv1alpha1.PropagationSpec{
			ResourceSelectors: []policyv1alpha1.ResourceSelector{{APIVersion: "apps/v1", Kind: "Deployment"}},
		},
	}
	if err := f.hub.Create(context.Background(), p); err != nil {
		b.Fatal(err)
	}
}

// present waits until a member has count Deployments in a namespace.
func (f *fleet) present(b *testing.B, cfg *rest.Config, ns string, count int) {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	c := clientset(b, cfg)
	w, err := c.AppsV1().Deployments(ns).Watch(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		b.Fatal(err)
	}
	defer w.Stop()
	seen := map[types.UID]bool{}
	for e := range w.ResultChan() {
		if d, ok := e.Object.(*appsv1.Deployment); ok {
			seen[d.UID] = true
		}
		if len(seen) == count {
			return
		}
	}
	b.Fatalf("%s: %d of %d objects are present after 5 minutes", ns, len(seen), count)
}

// mirrored waits until the fleet API shows count Deployments of a namespace.
func (f *fleet) mirrored(b *testing.B, ns string, count int) {
	b.Helper()
	cfg := rest.CopyConfig(f.cfg)
	cfg.Host += "/apis/fleet.orrery.dev/v1alpha1/resources/fleet/proxy"
	c := clientset(b, cfg)
	poll(b, time.Minute, "the mirror", func(ctx context.Context) (bool, error) {
		l, err := c.AppsV1().Deployments(ns).List(ctx, metav1.ListOptions{})
		return err == nil && len(l.Items) == count, nil
	})
}

// settled waits until every binding of a namespace says that it is applied.
func (f *fleet) settled(b *testing.B, ns string, count int) {
	b.Helper()
	poll(b, time.Minute, "every binding to be applied", func(ctx context.Context) (bool, error) {
		var l workv1alpha2.ResourceBindingList
		if err := f.hub.List(ctx, &l, client.InNamespace(ns)); err != nil {
			return false, err
		}
		applied := 0
		for _, binding := range l.Items {
			for _, c := range binding.Status.Conditions {
				if c.Type == workv1alpha2.ConditionFullyApplied && c.Status == metav1.ConditionTrue {
					applied++
				}
			}
		}
		return applied == count, nil
	})
}
