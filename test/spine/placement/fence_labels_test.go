package placement

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
	"orrery.dev/orrery/test/spine"
)

// TestFenceByLabels: a ClusterAccess selects clusters by their labels, and a tenant watches the fleet. What the labels of a Cluster let the tenant see is told
// and taken back as they change, long before a watch asks for its rights again by itself (after 30 s).
func TestFenceByLabels(t *testing.T) {
	t.Parallel()
	w := spine.Start(t, "fence-labels")
	label := func(value string) {
		w.Hub.MergePatch(t, "cluster.orrery.dev/v1alpha1", "Cluster", "", "oak", fmt.Sprintf(`{"metadata":{"labels":{"example.org/of":%s}}}`, value))
	}
	t.Cleanup(func() {
		w.Hub.Remove(t, "policy.orrery.dev/v1alpha1", "ClusterAccess", "", "fence-labels")
		label("null")
	})
	dora := newUser(w, "fence-dora")
	w.Hub.Apply(t, `---
apiVersion: policy.orrery.dev/v1alpha1
kind: ClusterAccess
metadata: {name: fence-labels}
spec:
  namespaceSelector: {matchLabels: {example.org/tenant: fence-dora}}
  clusterAffinity: {labelSelector: {matchLabels: {example.org/of: dora}}}
`+tenant(w.Namespace, "fence-dora"))
	w.Oak.Apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+w.Namespace+"}\n"+spine.ConfigMap(w.Namespace, "there", "one"))
	label(`"dora"`)
	w.Eventually("dora sees what is in oak", func() error {
		if got := found(w, dora, w.Namespace); len(got) != 1 || got[0] != "oak/there" {
			return fmt.Errorf("%v", got)
		}
		return nil
	})

	config := rest.CopyConfig(dora.config)
	config.Host += fleetv1alpha1.FleetPath
	client, err := dynamic.NewForConfig(config)
	w.Must(err)
	events, err := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace(w.Namespace).
		Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=there"})
	w.Must(err)
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
