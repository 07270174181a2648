//go:build bench

package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"orrery.dev/orrery/internal/testenv"
)

// BenchmarkGet measures `kubectl get pods -A` of the PODS pods (10,000) of one member,
// alternately with the fleet's context and with the member's own.
func BenchmarkGet(b *testing.B) {
	pods := number(b, "PODS", 10_000)
	const namespaces, samples = 20, 7
	f := startFleet(b, 1)
	k, err := kubernetes.NewForConfig(f.members[0])
	if err != nil {
		b.Fatal(err)
	}
	ctx := context.Background()
	for n := range namespaces {
		name := fmt.Sprintf("bench-%02d", n)
		if _, err := k.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			b.Fatal(err)
		}
		if _, err := k.CoreV1().ServiceAccounts(name).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
			b.Fatal(err)
		}
	}
	var g errgroup.Group
	g.SetLimit(32)
	for i := range pods {
		g.Go(func() error {
			name := fmt.Sprintf("web-%05d", i)
			_, err := k.CoreV1().Pods(fmt.Sprintf("bench-%02d", i%namespaces)).Create(ctx, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "web", "team": fmt.Sprint("team-", i%100)}},
				Spec: corev1.PodSpec{
					AutomountServiceAccountToken: new(bool),
					Containers:                   []corev1.Container{{Name: "web", Image: "registry.example.com/web:v1"}},
				},
			}, metav1.CreateOptions{})
			return err
		})
	}
	if err := g.Wait(); err != nil {
		b.Fatal(err)
	}
	get := func(args ...string) (time.Duration, int) {
		cmd := exec.Command(testenv.KubeBinary(), append([]string{"kubectl", "get", "pods", "-A", "--no-headers"}, args...)...)
		var errs strings.Builder
		cmd.Env, cmd.Stderr = append(os.Environ(), "HOME="+f.dir), &errs
		start := time.Now()
		out, err := cmd.Output()
		if err != nil {
			b.Fatal(err, errs.String())
		}
		return time.Since(start), strings.Count(string(out), "\n")
	}
	fleet := []string{"--kubeconfig", filepath.Join(f.dir, "hub", "kubeconfig"), "--context", "fleet"}
	member := []string{"--kubeconfig", filepath.Join(f.dir, "members", "oak", "kubeconfig")}
	poll(b, 5*time.Minute, "the fleet to have all pods", func(context.Context) (bool, error) {
		_, n := get(fleet...)
		return n == pods, nil
	})
	for range b.N {
		var took [2][]time.Duration
		for range samples {
			for i, args := range [][]string{member, fleet} {
				d, n := get(args...)
				if n != pods {
					b.Fatalf("%v: %d pods", args, n)
				}
				took[i] = append(took[i], d)
			}
		}
		slices.Sort(took[0])
		slices.Sort(took[1])
		own, ours := took[0][samples/2].Seconds(), took[1][samples/2].Seconds()
		report(b, own, "s-by-the-member")
		report(b, ours, "s-by-the-fleet")
		report(b, ours/own, "times-the-member")
	}
}
