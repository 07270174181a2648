package sandbox_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"orrery.dev/orrery/internal/process"
	"orrery.dev/orrery/internal/sandbox"
	"orrery.dev/orrery/internal/testenv"
)

// started runs a simulated cluster until the caller calls stop. It fails the test on any error.
func started(t *testing.T, dir string) (c *kubernetes.Clientset, oak *sandbox.Cluster, stop func()) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	clusters, err := sandbox.Prepare(sandbox.Options{Dir: dir, KubeBinary: testenv.KubeBinary(), Tier: sandbox.Simulated, GOGC: testenv.GOGC}, "oak")
	must(err)
	s, err := process.New(process.Plan{Name: "members", Parallelism: 2, Processes: clusters.Processes()},
		process.Options{Dir: filepath.Join(dir, "processes"), Log: logr.Discard()})
	must(err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	<-s.Ready()
	oak = clusters.List()[0]
	cfg, err := oak.Config()
	must(err)
	c, err = kubernetes.NewForConfig(cfg)
	must(err)
	return c, oak, func() {
		t.Helper()
		cancel()
		must(<-ended)
		must(clusters.Close())
	}
}

// TestNodesAreTakenOver: after a restart of a cluster, pods run on its nodes although the
// nodes' leases belong to the previous KWOK process. The containers have a log, and the
// controllers that users expect are enabled.
func TestNodesAreTakenOver(t *testing.T) {
	dir := t.TempDir()
	ctx := t.Context()
	c, oak, stop := started(t, dir)
	testenv.Eventually(t, "add a node", testenv.Patience, func() error { return oak.AddNodes(ctx, 1) })
	lease := func() string {
		t.Helper()
		holder := ""
		testenv.Eventually(t, "the node has a lease", testenv.Patience, func() error {
			l, err := c.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, "oak-1", metav1.GetOptions{})
			if err == nil && l.Spec.HolderIdentity != nil {
				holder = *l.Spec.HolderIdentity
			}
			return err
		})
		return holder
	}
	before := lease()
	stop()

	c, _, stop = started(t, dir)
	defer stop()
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "pods"}, Spec: corev1.ResourceQuotaSpec{
		Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("9")},
	}}
	testenv.Eventually(t, "create a ResourceQuota", testenv.Patience, func() error {
		_, err := c.CoreV1().ResourceQuotas("default").Create(ctx, quota, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
	labels := map[string]string{"app": "web"}
	web := &corev1.ReplicationController{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ReplicationControllerSpec{
		Replicas: new(int32(1)), Selector: labels, Template: &corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web"}}},
		},
	}}
	testenv.Eventually(t, "create a ReplicationController", testenv.Patience, func() error {
		_, err := c.CoreV1().ReplicationControllers("default").Create(ctx, web, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
	testenv.Eventually(t, "its pod is ready", testenv.Patience, func() error {
		rc, err := c.CoreV1().ReplicationControllers("default").Get(ctx, "web", metav1.GetOptions{})
		if err == nil && rc.Status.ReadyReplicas != 1 {
			err = fmt.Errorf("%d are ready", rc.Status.ReadyReplicas)
		}
		return err
	})
	if after := lease(); after == before {
		t.Errorf("the lease of the node is still of %s", before)
	}
	testenv.Eventually(t, "its pod has a log", testenv.Patience, func() error {
		pods, err := c.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(pods.Items) != 1 {
			t.Fatal(pods)
		}
		log, err := c.CoreV1().Pods("default").GetLogs(pods.Items[0].Name, &corev1.PodLogOptions{}).DoRaw(ctx)
		if want := "This container is simulated: no program runs in it.\n"; err == nil && string(log) != want {
			t.Fatalf("the log is %q, want %q", log, want)
		}
		return err
	})
	testenv.Eventually(t, "the quota counts the pod", testenv.Patience, func() error {
		q, err := c.CoreV1().ResourceQuotas("default").Get(ctx, "pods", metav1.GetOptions{})
		if used := q.Status.Used[corev1.ResourcePods]; err == nil && used.Value() != 1 {
			err = fmt.Errorf("it counts %s", used.String())
		}
		return err
	})
}
