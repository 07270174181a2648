package spine

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
)

// TestFenceByLabels: a ClusterAccess selects clusters by their labels, and a tenant watches the fleet. What the labels of a Cluster let the tenant see is told
// and taken back as they change, long before a watch asks for its rights again by itself (after 30 s).
func TestFenceByLabels(t *testing.T) {
	w := start(t, "fence-labels")
	label := func(value string) {
		w.hub.MergePatch(t, "cluster.orrery.dev/v1alpha1", "Cluster", "", "oak", fmt.Sprintf(`{"metadata":{"labels":{"example.org/of":%s}}}`, value))
	}
	t.Cleanup(func() {
		w.hub.Remove(t, "policy.orrery.dev/v1alpha1", "ClusterAccess", "", "fence-labels")
		label("null")
	})
	dora := w.user("fence-dora")
	w.hub.Apply(t, `---
apiVersion: policy.orrery.dev/v1alpha1
kind: ClusterAccess
metadata: {name: fence-labels}
spec:
  namespaceSelector: {matchLabels: {example.org/tenant: fence-dora}}
  clusterAffinity: {labelSelector: {matchLabels: {example.org/of: dora}}}
`+tenant(w.ns, "fence-dora"))
	w.oak.Apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+w.ns+"}\n"+configMap(w.ns, "there", "one"))
	label(`"dora"`)
	w.eventually("dora sees what is in oak", func() error {
		if got := w.found(dora, w.ns); len(got) != 1 || got[0] != "oak/there" {
			return errorf("%v", got)
		}
		return nil
	})

	config := rest.CopyConfig(dora.config)
	config.Host += fleetv1alpha1.FleetPath
	client, err := dynamic.NewForConfig(config)
	w.must(err)
	events, err := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace(w.ns).
		Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=there"})
	w.must(err)
	defer events.Stop()
	next := func(want watch.EventType) {
		t.Helper()
		select {
		case e := <-events.ResultChan():
			o, ok := e.Object.(*unstructured.Unstructured)
			if !ok || e.Type != want || o.GetName() != "there" {
				t.Fatalf("%s %v, want %s", e.Type, e.Object, want)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("nothing is told, want %s", want)
		}
	}
	next(watch.Added)
	label("null")
	next(watch.Deleted)
	label(`"dora"`)
	next(watch.Added)
}
