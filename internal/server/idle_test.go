package server_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/hub"
	"orrery.dev/orrery/internal/testenv"
)

// everywhere returns a namespace with a policy that places pairs.
func everywhere(ns string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Namespace
metadata: {name: %[1]s}
---
apiVersion: policy.orrery.dev/v1alpha1
kind: PropagationPolicy
metadata: {name: everything, namespace: %[1]s}
spec:
  resourceSelectors: [{apiVersion: v1, kind: ConfigMap}, {apiVersion: apps/v1, kind: Deployment}]
  placement: {}
`, ns)
}

// pair returns a Deployment with its ConfigMap.
func pair(ns, name string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: ConfigMap
metadata: {name: %[1]s, namespace: %[2]s}
data: {value: one}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s, namespace: %[2]s}
spec:
  replicas: 2
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      containers: [{name: web, image: nginx, envFrom: [{configMapRef: {name: %[1]s}}]}]
`, name, ns)
}

// readyAt waits until the server is ready and returns the time at which it was.
func (r *replica) readyAt(t *testing.T) time.Time {
	t.Helper()
	r.ready(t)
	var at time.Time
	testenv.Eventually(t, "the time of the ready file", testenv.Patience, func() error {
		text, err := os.ReadFile(filepath.Join(r.dir, "ready"))
		if err != nil {
			return err
		}
		at, err = time.Parse(time.RFC3339Nano, string(text))
		return err
	})
	return at
}

// other returns, as text, the writes that changed something and that the test does not expect.
func other(writes []testenv.Write, expected func(testenv.Write) bool) []string {
	var out []string
	for _, w := range writes {
		// The Lease keeps two servers apart and is renewed all the time.
		if w.Changed() && w.Resource != "leases" && !expected(w) {
			out = append(out, w.String())
		}
	}
	return out
}

// TestWritesOfAServer checks each write of a server to its hub. Once the server is ready, it
// writes only because of changes: for a Deployment the binding, the status of the binding and
// that of the Deployment, for a ConfigMap the binding and its status. A restart writes nothing.
func TestWritesOfAServer(t *testing.T) {
	target, ns := external(t), "writes-"+rand.String(8)
	api, err := testenv.NewAPI(target)
	if err != nil {
		t.Fatal(err)
	}
	hubClient, err := client.New(target, client.Options{Scheme: hub.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	oak, err := testenv.NewMember(t.TempDir(), "oak", testenv.Config(0))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = oak.Close() })
	inOak, err := kubernetes.NewForConfig(testenv.Config(0))
	if err != nil {
		t.Fatal(err)
	}

	// settled waits until a pair is placed and runs, and its statuses say so.
	settled := func(name string) {
		t.Helper()
		testenv.Eventually(t, name+" is settled", testenv.Patience, func() error {
			d, err := inOak.AppsV1().Deployments(ns).Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if d.Status.ObservedGeneration != d.Generation {
				d.Status = appsv1.DeploymentStatus{
					ObservedGeneration: d.Generation, Replicas: 2, UpdatedReplicas: 2, ReadyReplicas: 2, AvailableReplicas: 2,
				}
				if _, err := inOak.AppsV1().Deployments(ns).UpdateStatus(t.Context(), d, metav1.UpdateOptions{}); err != nil {
					return err
				}
			}
			for _, kind := range []string{"configmap", "deployment"} {
				b := &workv1alpha2.ResourceBinding{}
				if err := hubClient.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: name + "-" + kind}, b); err != nil {
					return err
				}
				for _, c := range []string{workv1alpha2.ConditionFullyApplied, workv1alpha2.ConditionHealthy} {
					if !meta.IsStatusConditionTrue(b.Status.Conditions, c) {
						return fmt.Errorf("%s is not %s: %v", b.Name, c, b.Status.Conditions)
					}
				}
			}
			template := &appsv1.Deployment{}
			if err := hubClient.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: name}, template); err != nil {
				return err
			}
			if template.Status.ReadyReplicas != 2 {
				return errors.New("the Deployment on the hub is not ready")
			}
			return nil
		})
	}

	// events returns the events of the hub by name, with the object that each is about.
	events := func() map[string]string {
		t.Helper()
		var list eventsv1.EventList
		testenv.Eventually(t, "list the events", testenv.Patience, func() error { return hubClient.List(t.Context(), &list) })
		about := map[string]string{}
		for _, e := range list.Items {
			about[e.Name] = fmt.Sprintf("%s %s: %s %s", e.Regarding.Kind, e.Regarding.Name, e.Reason, e.Note)
		}
		return about
	}

	// readySince returns since when oak is ready. The time changes if oak did not answer for a
	// moment.
	readySince := func() (at metav1.Time) {
		t.Helper()
		testenv.Eventually(t, "oak answers", testenv.Patience, func() error {
			cluster := &clusterv1alpha1.Cluster{}
			if err := hubClient.Get(t.Context(), client.ObjectKey{Name: "oak"}, cluster); err != nil {
				return err
			}
			ready := meta.FindStatusCondition(cluster.Status.Conditions, clusterv1alpha1.ConditionReady)
			if ready == nil || ready.Status != metav1.ConditionTrue {
				return fmt.Errorf("oak is not ready: %v", cluster.Status.Conditions)
			}
			at = ready.LastTransitionTime
			return nil
		})
		return at
	}

	// The first start. Events are written for the join and for what is placed.
	server := startReplica(t, target)
	ready := server.readyAt(t)
	joins(t, api, hubClient, oak)
	api.Apply(t, everywhere(ns))
	api.Apply(t, pair(ns, "first"))
	settled("first")
	names := func(w testenv.Write) bool {
		_, found, err := unstructured.NestedString(w.Body, "metadata", "annotations", clusterv1alpha1.NamesAnnotation)
		return found && err == nil && w.Verb == "patch" && w.Resource == "namespaces" && w.Changed()
	}
	testenv.Eventually(t, "the names of the clusters are written", testenv.Patience, func() error {
		if !slices.ContainsFunc(server.Writes(0), names) {
			return errors.New("they are not")
		}
		return nil
	})
	late := slices.DeleteFunc(server.Writes(0), func(w testenv.Write) bool { return w.Time.Before(ready) })
	unexpected := other(late, func(w testenv.Write) bool {
		return w.Namespace == ns || w.Resource == "clusters" || w.Resource == "events" || names(w)
	})
	if len(unexpected) > 0 {
		t.Errorf("writes after the server was ready that nothing asked for:\n%s", strings.Join(unexpected, "\n"))
	}
	// The join writes the names of the clusters once. Nothing writes them after it.
	var namings []map[string]any
	for _, w := range server.Writes(0) {
		if names(w) {
			namings = append(namings, w.Body)
		}
	}
	naming := map[string]any{"metadata": map[string]any{"annotations": map[string]any{clusterv1alpha1.NamesAnnotation: "oak"}}}
	if diff := cmp.Diff([]map[string]any{naming}, namings); diff != "" {
		t.Errorf("writes of the names of the clusters (-want +got):\n%s", diff)
	}

	// The writes for a pair. The number of status writes depends on the times between the
	// answers of clusters. So this test checks the kinds of writes, and the benchmark counts
	// them.
	const count = 20
	mark := server.Mark()
	for i := range count {
		api.Apply(t, pair(ns, fmt.Sprintf("web-%d", i)))
	}
	for i := range count {
		settled(fmt.Sprintf("web-%d", i))
	}
	kinds := map[string]bool{}
	for _, w := range server.Writes(mark) {
		_, of, _ := strings.Cut(w.Name, "-") // web-1-deployment
		_, of, _ = strings.Cut(of, "-")
		// A policy counts the objects that it places, once a second at most. A cluster may
		// still be listed.
		if w.Changed() && !slices.Contains([]string{"leases", "events", "clusters", "propagationpolicies"}, w.Resource) {
			kinds[strings.TrimSpace(fmt.Sprintf("%s %s/%s %s", w.Verb, w.Resource, w.Subresource, of))] = true
		}
	}
	want := map[string]bool{
		"create resourcebindings/ configmap": true, "update resourcebindings/status configmap": true,
		"create resourcebindings/ deployment": true, "update resourcebindings/status deployment": true, "patch deployments/status": true,
	}
	if diff := cmp.Diff(want, kinds); diff != "" {
		t.Errorf("kinds of writes (-want +got):\n%s", diff)
	}

	// A restart. When another pair is settled, the server has written everything that it would
	// write because of the restart. On a busy machine oak may not answer for a moment, and that
	// is written. Then another restart is examined.
	var (
		inMember int
		before   map[string]string
	)
	for attempt := 1; ; attempt++ {
		server.signal(t, syscall.SIGTERM)
		if code := server.end(t); code != 0 {
			t.Fatalf("exit code %d", code)
		}
		mark, inMember, before = server.Mark(), oak.Mark(), events()
		answers := readySince()
		server.start(t)
		ready = server.readyAt(t)
		last := fmt.Sprintf("last-%d", attempt)
		api.Apply(t, pair(ns, last))
		settled(last)
		if now := readySince(); now.Equal(&answers) {
			break
		}
		if attempt == 3 {
			t.Fatalf("condition Ready of oak changed at each of %d restarts", attempt)
		}
		settled("first")
		for i := range count {
			settled(fmt.Sprintf("web-%d", i))
		}
	}
	ofLast := func(w testenv.Write) bool {
		// Events are created as protobuf, which the recorder does not read. They are checked
		// below.
		return strings.HasPrefix(w.Name, "last-") || w.Resource == "propagationpolicies" || w.Resource == "events" && w.Verb == "create"
	}
	// Before it is ready, the server applies its own definitions, which changes nothing.
	unexpected = other(server.Writes(mark), func(w testenv.Write) bool { return ofLast(w) || w.Verb == "apply" && w.Time.Before(ready) })
	if len(unexpected) > 0 {
		t.Errorf("the restart wrote to the hub:\n%s", strings.Join(unexpected, "\n"))
	}
	for name, about := range events() {
		if _, old := before[name]; !old && !strings.Contains(about, " last-") {
			t.Errorf("the restart made an event about %s", about)
		}
	}
	if unexpected = other(oak.Writes(inMember), ofLast); len(unexpected) > 0 {
		t.Errorf("the restart wrote to a member:\n%s", strings.Join(unexpected, "\n"))
	}
}
