//go:build bench

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
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

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

// BenchmarkLatency creates 10 objects a second for a minute and measures, for each, the time
// from its creation on the hub until both members show it. Before, it measures the same for a
// client that creates the objects in both members at once, while the hub runs.
func BenchmarkLatency(b *testing.B) {
	f := startFleet(b, 2)
	ctx := context.Background()
	hub := clientset(b, f.cfg)
	namespace(b, hub, "latency")
	f.policy(b, "latency", "apps/v1 Deployment")
	var members []*kubernetes.Clientset
	for _, cfg := range f.members {
		c := clientset(b, cfg)
		namespace(b, c, "direct")
		members = append(members, c)
	}
	f.still(b)
	for n := range b.N {
		direct := f.latencies(b, fmt.Sprintf("direct%d-", n), 200, func(name string) error {
			var g errgroup.Group
			for _, c := range members {
				g.Go(func() error {
					_, err := c.AppsV1().Deployments("direct").Create(ctx, deployment("direct", name), metav1.CreateOptions{})
					return err
				})
			}
			return g.Wait()
		})
		placed := f.latencies(b, fmt.Sprintf("placed%d-", n), 600, func(name string) error {
			_, err := hub.AppsV1().Deployments("latency").Create(ctx, deployment("latency", name), metav1.CreateOptions{})
			return err
		})
		for what, took := range map[string][]time.Duration{"direct-": direct, "": placed} {
			report(b, milliseconds(took[len(took)/2]), "ms-"+what+"p50")
			report(b, milliseconds(took[len(took)*99/100]), "ms-"+what+"p99")
			report(b, milliseconds(took[len(took)-1]), "ms-"+what+"max")
		}
	}
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// latencies creates count Deployments, 10 a second. It returns, in ascending order, how long
// each took until the last member showed it.
func (f *fleet) latencies(b *testing.B, prefix string, count int, create func(name string) error) []time.Duration {
	b.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var mu sync.Mutex
	seen := map[string][]time.Time{}
	for _, cfg := range f.members {
		w, err := protobuf(b, cfg).AppsV1().Deployments(metav1.NamespaceAll).Watch(ctx, metav1.ListOptions{})
		if err != nil {
			b.Fatal(err)
		}
		defer w.Stop()
		go func() {
			for e := range w.ResultChan() {
				if d, ok := e.Object.(*appsv1.Deployment); ok && e.Type == watch.Added {
					mu.Lock()
					seen[d.Name] = append(seen[d.Name], time.Now())
					mu.Unlock()
				}
			}
		}()
	}
	created := map[string]time.Time{}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for i := range count {
		<-tick.C
		name := fmt.Sprintf("%s%04d", prefix, i)
		created[name] = time.Now()
		if err := create(name); err != nil {
			b.Fatal(err)
		}
	}
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
	mu.Lock()
	defer mu.Unlock()
	var took []time.Duration
	for name, at := range created {
		took = append(took, slices.MaxFunc(seen[name], time.Time.Compare).Sub(at))
	}
	slices.Sort(took)
	return took
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

// createAll creates count Deployments with that many concurrent workers.
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
