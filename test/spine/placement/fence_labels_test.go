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

// TestFenceByLabels: a ClusterAccess selects clusters by label. When the labels of a Cluster
// change, a tenant's watch of the fleet gets or loses the objects at once. It does not wait
// until the watch checks its rights again, which happens every 30 s.
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
		got, err := found(w, dora, w.Namespace)
		if err == nil && (len(got) != 1 || got[0] != "oak/there") {
			err = fmt.Errorf("%v", got)
		}
		return err
	})

	config := rest.CopyConfig(dora.config)
	config.Host += fleetv1alpha1.FleetPath
	client, err := dynamic.NewForConfig(config)
	w.Must(err)
	inFleet := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace(w.Namespace)
	// On a busy machine a change may arrive late, and a watch may end. Then the test changes
	// the labels again. If only the watch's own check found changes, every attempt would be
	// late, because the second change comes just after the first has arrived.
	next := func(events <-chan watch.Event, want watch.EventType) error {
		t.Helper()
		began := time.Now()
		select {
		case e, open := <-events:
			o, ok := e.Object.(*unstructured.Unstructured)
			ok = ok && o.GetKind() == "ConfigMap"
			if ok && (o.GetName() != "there" || e.Type != want) {
				t.Fatalf("%s %v, want %s of ConfigMap there", e.Type, e.Object, want)
			}
			if took := time.Since(began); !open || !ok || took > 20*time.Second {
				return fmt.Errorf("%s %v after %s, want %s", e.Type, e.Object, took, want)
			}
		case <-time.After(spine.Patience):
			t.Fatalf("no event arrives, want %s", want)
		}
		return nil
	}
	watched := func(events <-chan watch.Event) error {
		if err := next(events, watch.Added); err != nil {
			return err
		}
		label("null")
		if err := next(events, watch.Deleted); err != nil {
			return err
		}
		label(`"dora"`)
		return next(events, watch.Added)
	}
	attempts := 0
	w.Eventually("changes of labels arrive at once", func() error {
		label(`"dora"`)
		events, err := inFleet.Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=there"})
		if err != nil {
			return err
		}
		defer events.Stop()
		err = watched(events.ResultChan())
		if attempts++; err != nil && attempts == 3 {
			t.Fatal(err)
		}
		return err
	})
}
