package mirror

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/interpreter"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/scheduler"
	"orrery.dev/orrery/internal/store"
	"orrery.dev/orrery/internal/testenv"
)

var configmaps = corev1.SchemeGroupVersion.WithResource("configmaps")

// placedMap returns a ConfigMap with the label and annotation that apply sets.
func placedMap(namespace, name, binding, digest string, data map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{
			"namespace": namespace, "name": name,
			"labels":      map[string]any{workv1alpha2.BindingLabel: binding},
			"annotations": map[string]any{workv1alpha2.DigestAnnotation: digest},
		},
		"data": data,
	}}
}

func applyMap(t testing.TB, cfg *rest.Config, o *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	c := must[*dynamic.DynamicClient](t)(dynamic.NewForConfig(cfg))
	return must[*unstructured.Unstructured](t)(c.Resource(configmaps).Namespace(o.GetNamespace()).
		Apply(t.Context(), o.GetName(), o, metav1.ApplyOptions{FieldManager: workv1alpha2.FieldManager, Force: true}))
}

func clientset(t testing.TB, cfg *rest.Config) *kubernetes.Clientset {
	t.Helper()
	return must[*kubernetes.Clientset](t)(kubernetes.NewForConfig(cfg))
}

// recorder records events.
type recorder struct {
	mu     sync.Mutex
	events []Event
}

func (r *recorder) record(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

func (r *recorder) has(e Event) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Contains(r.events, e)
}

func TestMirror(t *testing.T) {
	cfg := testenv.Config(0)
	namespace := testenv.Namespace(t, cfg)
	k := clientset(t, cfg)
	s := openStore(t)
	east := newSource(t, "east", cfg)
	fleet := newFleet(east)
	m, _ := start(t, s, fleet)
	seen := &recorder{}
	m.Subscribe(seen.record)
	cm := configmaps.GroupResource()
	synced(t, m, "east")

	t.Run("PlacedObject", func(t *testing.T) {
		o := applyMap(t, cfg, placedMap(namespace, "placed", "b1", "d1", map[string]any{"a": "1"}))
		eventually(t, "placed", func() bool { p, _ := m.Lookup("east", cm, namespace, "placed"); return p == presence.Present })
		_, got := m.Lookup("east", cm, namespace, "placed")
		want := Object{
			Cluster: "east", Resource: configmaps, Namespace: namespace, Name: "placed", UID: o.GetUID(), ResourceVersion: o.GetResourceVersion(),
			Binding: "b1", Digest: "d1", Fields: OwnedFields(o), Health: got.Health, Status: got.Status,
			Replicas: 1, Available: 1,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		if got.Fields == 0 {
			t.Error("no hash of the fields we own")
		}
		if diff := cmp.Diff([]Object{want}, m.Placed("b1")); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]Object{want}, m.PlacedIn("east")); diff != "" {
			t.Error(diff)
		}
		eventually(t, "an event tells of it", func() bool {
			return seen.has(Event{Type: Changed, Cluster: "east", Resource: cm, Namespace: namespace, Name: "placed", Binding: "b1"})
		})
	})

	t.Run("ForeignEditTakesFields", func(t *testing.T) {
		_, before := m.Lookup("east", cm, namespace, "placed")
		must[*corev1.ConfigMap](t)(k.CoreV1().ConfigMaps(namespace).Patch(t.Context(), "placed", types.MergePatchType,
			[]byte(`{"data":{"a":"2"}}`), metav1.PatchOptions{FieldManager: "somebody"}))
		eventually(t, "other fields are owned", func() bool {
			_, now := m.Lookup("east", cm, namespace, "placed")
			return now.Fields != before.Fields && now.Digest == before.Digest
		})
	})

	t.Run("MarkTakenOff", func(t *testing.T) {
		must[*corev1.ConfigMap](t)(k.CoreV1().ConfigMaps(namespace).Patch(t.Context(), "placed", types.MergePatchType,
			[]byte(`{"metadata":{"labels":{"work.orrery.dev/binding":"b2"}}}`), metav1.PatchOptions{}))
		eventually(t, "it is of another binding", func() bool { return len(m.Placed("b1")) == 0 && len(m.Placed("b2")) == 1 })
		must[*corev1.ConfigMap](t)(k.CoreV1().ConfigMaps(namespace).Patch(t.Context(), "placed", types.MergePatchType,
			[]byte(`{"metadata":{"labels":null}}`), metav1.PatchOptions{}))
		eventually(t, "it is not placed any more", func() bool { return len(m.Placed("b2")) == 0 && len(m.PlacedIn("east")) == 0 })
		if p, _ := m.Lookup("east", cm, namespace, "placed"); p != presence.Present {
			t.Errorf("it is %s", p)
		}
	})

	t.Run("StoredObject", func(t *testing.T) {
		o := &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{
				Name: "stored", Labels: map[string]string{"app": "x"},
				Annotations: map[string]string{corev1.LastAppliedConfigAnnotation: "{}", "keep": "me"},
			},
			Data: map[string]string{"k": "v"},
		}
		o = must[*corev1.ConfigMap](t)(k.CoreV1().ConfigMaps(namespace).Create(t.Context(), o, metav1.CreateOptions{}))
		q := store.Query{Resource: "configmaps", Names: []string{"stored"}}
		id := "east/" + namespace + "/stored"
		eventually(t, "stored", func() bool { return rows(t, s, q)[id].Name != "" })
		row := rows(t, s, q)[id]
		var body map[string]any
		if err := json.Unmarshal(row.Body, &body); err != nil {
			t.Fatal(err)
		}
		want := map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "data": map[string]any{"k": "v"},
			"metadata": map[string]any{
				"name": "stored", "namespace": namespace, "uid": string(o.UID), "resourceVersion": o.ResourceVersion,
				"creationTimestamp": o.CreationTimestamp.UTC().Format("2006-01-02T15:04:05Z"),
				"labels":            map[string]any{"app": "x"}, "annotations": map[string]any{"keep": "me"},
				"managedFields": []any{map[string]any{
					"manager": o.ManagedFields[0].Manager, "operation": "Update", "apiVersion": "v1", "time": o.CreationTimestamp.UTC().Format("2006-01-02T15:04:05Z"),
				}},
			},
		}
		if diff := cmp.Diff(want, body); diff != "" {
			t.Error(diff)
		}
		if row.UID != o.UID || row.ResourceVersion != o.ResourceVersion || row.Labels["app"] != "x" || !row.Created.Equal(o.CreationTimestamp.Time) {
			t.Errorf("row %+v", row)
		}
		if err := k.CoreV1().ConfigMaps(namespace).Delete(t.Context(), "stored", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "deleted", func() bool { return len(rows(t, s, q)) == 0 })
		if p, _ := m.Lookup("east", cm, namespace, "stored"); p != presence.Absent {
			t.Errorf("presence %v, want Absent", p)
		}
	})

	t.Run("SecretsWithoutData", func(t *testing.T) {
		must[*corev1.Secret](t)(k.CoreV1().Secrets(namespace).Apply(t.Context(), corev1ac.Secret("s", namespace).
			WithLabels(map[string]string{workv1alpha2.BindingLabel: "b3"}).WithStringData(map[string]string{"password": "hunter2"}),
			metav1.ApplyOptions{FieldManager: workv1alpha2.FieldManager}))
		q := store.Query{Resource: "secrets", Namespaces: []string{namespace}}
		eventually(t, "stored", func() bool { return len(rows(t, s, q)) == 1 })
		body := string(rows(t, s, q)["east/"+namespace+"/s"].Body)
		if strings.Contains(body, `"data"`) || strings.Contains(body, "aHVudGVyMg") || !strings.Contains(body, `"kind":"Secret"`) || !strings.Contains(body, `"apiVersion":"v1"`) {
			t.Error(body)
		}
		if len(m.Placed("b3")) != 1 {
			t.Error("it is not placed")
		}
	})

	t.Run("Types", func(t *testing.T) {
		got := map[string]Type{}
		for _, typ := range m.Types() {
			got[typ.GroupVersionResource().GroupResource().String()] = typ
		}
		for _, name := range []string{"events.events.k8s.io", "leases.coordination.k8s.io", "endpoints", "bindings", "componentstatuses"} {
			if _, ok := got[name]; ok {
				t.Errorf("%s is mirrored", name)
			}
		}
		for _, name := range []string{"pods", "secrets", "events", "deployments.apps", "customresourcedefinitions.apiextensions.k8s.io", "ingresses.networking.k8s.io"} {
			if diff := cmp.Diff([]string{"east"}, got[name].Clusters); diff != "" {
				t.Errorf("%s: %s", name, diff)
			}
		}
		if diff := cmp.Diff([]string{"deploy"}, got["deployments.apps"].ShortNames); diff != "" {
			t.Error(diff)
		}
		if m.Synced("east", schema.GroupResource{Resource: "endpoints"}) || m.Synced("west", cm) || !m.Synced("east", cm) {
			t.Error("Synced is wrong")
		}
	})

	t.Run("Namespaces", func(t *testing.T) {
		must[*corev1.Namespace](t)(k.CoreV1().Namespaces().Patch(t.Context(), namespace, types.MergePatchType,
			[]byte(`{"metadata":{"labels":{"work.orrery.dev/created-by":"hub"}}}`), metav1.PatchOptions{}))
		eventually(t, "marked", func() bool {
			marked, synced := m.Namespaces("east")
			return synced && cmp.Equal(map[string]string{namespace: "hub"}, marked)
		})
		eventually(t, "an event tells of it", func() bool {
			return seen.has(Event{Type: Changed, Cluster: "east", Resource: namespaces, Name: namespace})
		})
	})

	t.Run("CustomResourcesComeAndGo", func(t *testing.T) { customResources(t, cfg, m, s) })

	t.Run("Capacity", func(t *testing.T) { capacityOfCluster(t, k, namespace, m, fleet) })
}

func customResources(t *testing.T, cfg *rest.Config, m *Mirror, s *store.Store) {
	crd := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "gears.mirror.test"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "mirror.test", Scope: apiextensionsv1.ClusterScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "gears", Singular: "gear", Kind: "Gear", ListKind: "GearList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}},
			}},
		},
	}
	crds := must[*apiextensions.Clientset](t)(apiextensions.NewForConfig(cfg)).ApiextensionsV1().CustomResourceDefinitions()
	must[*apiextensionsv1.CustomResourceDefinition](t)(crds.Create(t.Context(), crd, metav1.CreateOptions{}))
	gears := schema.GroupVersionResource{Group: "mirror.test", Version: "v1", Resource: "gears"}
	eventually(t, "gears are mirrored", func() bool { return m.Synced("east", gears.GroupResource()) })
	c := must[*dynamic.DynamicClient](t)(dynamic.NewForConfig(cfg))
	must[*unstructured.Unstructured](t)(c.Resource(gears).Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "mirror.test/v1", "kind": "Gear", "metadata": map[string]any{"name": "g"},
	}}, metav1.CreateOptions{}))
	q := store.Query{Group: "mirror.test", Resource: "gears"}
	eventually(t, "the gear is stored", func() bool { return len(rows(t, s, q)) == 1 })
	if err := crds.Delete(t.Context(), crd.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "gears are forgotten", func() bool {
		p, _ := m.Lookup("east", gears.GroupResource(), "", "g")
		return p == presence.Unknown && len(rows(t, s, q)) == 0
	})
}

func capacityOfCluster(t *testing.T, k *kubernetes.Clientset, namespace string, m *Mirror, fleet *testFleet) {
	node := func(name string, ready corev1.ConditionStatus, unschedulable bool) {
		n := must[*corev1.Node](t)(k.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{Unschedulable: unschedulable},
		}, metav1.CreateOptions{}))
		t.Cleanup(func() { // other tests see the same nodes
			if err := k.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				t.Error(err)
			}
		})
		n.Spec.Taints = nil // without the not-ready taint that the API server sets
		n = must[*corev1.Node](t)(k.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{}))
		n.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("4"), "memory": resource.MustParse("8Gi"), "pods": resource.MustParse("10")}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
		must[*corev1.Node](t)(k.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{}))
	}
	pod := func(name, node, cpu string) {
		must[*corev1.Pod](t)(k.CoreV1().Pods(namespace).Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PodSpec{
				NodeName: node, AutomountServiceAccountToken: new(false),
				InitContainers: []corev1.Container{{Name: "init", Image: "i", Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{"memory": resource.MustParse("1Gi")},
				}}},
				Containers: []corev1.Container{{Name: "c", Image: "i", Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{"cpu": resource.MustParse(cpu), "memory": resource.MustParse("128Mi")},
				}}},
			},
		}, metav1.CreateOptions{}))
	}
	if _, err := k.CoreV1().ServiceAccounts(namespace).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	node("n1", corev1.ConditionTrue, false)
	node("n2", corev1.ConditionTrue, false)
	node("away", corev1.ConditionUnknown, false)
	node("cordoned", corev1.ConditionTrue, true)
	pod("p1", "n1", "1")
	pod("p2", "n1", "500m")
	pod("waits", "", "2")
	pod("done", "n2", "4")
	must[*corev1.Pod](t)(k.CoreV1().Pods(namespace).Patch(t.Context(), "done", types.MergePatchType,
		[]byte(`{"status":{"phase":"Succeeded"}}`), metav1.PatchOptions{}, "status"))

	say := func(l corev1.ResourceList) string {
		cpu, memory, pods := l["cpu"], l["memory"], l["pods"]
		return fmt.Sprintf("cpu %s memory %s pods %s", &cpu, &memory, &pods)
	}
	var got Capacity
	eventually(t, "the pods are counted", func() bool {
		c, known := m.Capacity("east")
		got = c
		return known && c.Nodes == 4 && c.ReadyNodes == 3 && say(c.Allocated) == "cpu 1500m memory 2Gi pods 2" && say(c.Allocating) == "cpu 2 memory 1Gi pods 1"
	})
	if s := say(got.Allocatable); s != "cpu 8 memory 16Gi pods 20" {
		t.Errorf("allocatable %s", s)
	}
	for name, tc := range map[string]struct {
		request corev1.ResourceList
		want    int64
	}{
		// The pod without a node fits on n1.
		"CPU":       {corev1.ResourceList{"cpu": resource.MustParse("1500m")}, 0 + 2},
		"Memory":    {corev1.ResourceList{"memory": resource.MustParse("3Gi")}, 1 + 2},
		"Nothing":   {nil, 7 + 10},
		"Unoffered": {corev1.ResourceList{"example.com/gpu": resource.MustParse("1")}, 0},
	} {
		free, known := m.FreeCapacity("east")
		if !known {
			t.Fatalf("the free capacity of %s is not known", name)
		}
		if n, _ := free.Fits(requesting(tc.request), false); n != tc.want {
			t.Errorf("%s: %d replicas fit, known %v, want %d", name, n, known, tc.want)
		}
	}
	quotaOfCluster(t, k, namespace, m)
	o := m.Observation("east")
	if o.Nodes == nil || o.Nodes.Total != 4 || o.Nodes.Ready != 3 || o.Resources == nil || say(o.Resources.Allocated) != say(got.Allocated) {
		t.Errorf("observation %+v", o)
	}
	if err := errors.Join(
		k.CoreV1().Pods(namespace).Delete(t.Context(), "p1", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}),
		k.CoreV1().Nodes().Delete(t.Context(), "n2", metav1.DeleteOptions{}),
	); err != nil {
		t.Fatal(err)
	}
	eventually(t, "pod and node are discounted", func() bool {
		c, _ := m.Capacity("east")
		return say(c.Allocated) == "cpu 500m memory 1Gi pods 1" && say(c.Allocatable) == "cpu 4 memory 8Gi pods 10"
	})
	fleet.mu.Lock()
	defer fleet.mu.Unlock()
	if fleet.refreshed["east"] == 0 {
		t.Error("the registry was not notified")
	}
}

// TestRestart: the first lists after a start find what happened while the mirror was down.
// Unchanged objects are not written again.
func TestRestart(t *testing.T) {
	cfg := testenv.Config(0)
	namespace := testenv.Namespace(t, cfg)
	k := clientset(t, cfg).CoreV1().ConfigMaps(namespace)
	create := func(name string) {
		must[*corev1.ConfigMap](t)(k.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}))
	}
	remove := func(name string) {
		if err := k.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	s := openStore(t)
	q := store.Query{Resource: "configmaps", Namespaces: []string{namespace}}
	fleet := newFleet(newSource(t, "east", cfg, "configmaps"))
	_, stop := start(t, s, fleet)
	for _, name := range []string{"stays", "goes", "returns"} {
		create(name)
	}
	eventually(t, "three are stored", func() bool { return len(rows(t, s, q)) == 3 })
	stop()
	before := rows(t, s, q)
	remove("goes")
	remove("returns")
	create("returns")
	create("new")

	m, stop := start(t, s, fleet)
	synced(t, m, "east")
	eventually(t, "the store has what the cluster has", func() bool {
		now := rows(t, s, q)
		id := "east/" + namespace + "/"
		return len(now) == 3 && now[id+"new"].Name != "" && now[id+"stays"].UID == before[id+"stays"].UID &&
			now[id+"returns"].UID != "" && now[id+"returns"].UID != before[id+"returns"].UID
	})
	stop()

	// A cluster that is unreachable at the next start can still be searched.
	east := newSource(t, "east", cfg, "configmaps")
	east.reachable, east.apis = false, nil
	m, _ = start(t, s, newFleet(east))
	eventually(t, "the types are known", func() bool { return len(m.Types()) > 0 })
	if _, stale := m.Stale("east"); !stale || m.Synced("east", configmaps.GroupResource()) || len(rows(t, s, q)) != 3 {
		t.Error("it is not stale, or not kept")
	}
	if p, _ := m.Lookup("east", configmaps.GroupResource(), namespace, "none"); p != presence.Unknown {
		t.Errorf("presence %v, want Unknown", p)
	}
}

func TestLeave(t *testing.T) {
	cfg := testenv.Config(0)
	namespace := testenv.Namespace(t, cfg)
	s := openStore(t)
	east, west := newSource(t, "east", cfg, "configmaps"), newSource(t, "west", cfg, "configmaps")
	fleet := newFleet(east, west)
	m, _ := start(t, s, fleet)
	synced(t, m, "east")
	synced(t, m, "west")
	applyMap(t, cfg, placedMap(namespace, "placed", "leave", "d", nil))
	eventually(t, "placed in both", func() bool { return len(m.Placed("leave")) == 2 })
	q := store.Query{Resource: "configmaps", Namespaces: []string{namespace}}
	eventually(t, "stored of both", func() bool { return len(rows(t, s, q)) == 2 })

	if err := m.Drop("east"); err != nil {
		t.Fatal(err)
	}
	fleet.notify(member.Event{Type: member.Changed, Name: "east"}) // its Cluster still exists
	if got := m.Placed("leave"); len(got) != 1 || got[0].Cluster != "west" || m.PlacedIn("east") != nil {
		t.Errorf("placed %v", got)
	}
	if now := rows(t, s, q); len(now) != 1 {
		t.Errorf("rows %v", now)
	}
	for _, typ := range m.Types() {
		if cmp.Equal(typ.Clusters, []string{"east", "west"}) {
			t.Errorf("%s is still mirrored of both", typ.Resource)
		}
	}

	again := newSource(t, "east", cfg, "configmaps")
	again.cluster.UID = "another"
	fleet.mu.Lock()
	fleet.sources["east"] = again
	fleet.mu.Unlock()
	fleet.notify(member.Event{Type: member.Left, Name: "east"})
	fleet.notify(member.Event{Type: member.Joined, Name: "east"})
	eventually(t, "placed in both again", func() bool { return len(m.Placed("leave")) == 2 && len(rows(t, s, q)) == 2 })
}

// TestOutage kills and hangs an API server. No object counts as deleted meanwhile, and the
// mirror continues when the server is back.
func TestOutage(t *testing.T) {
	server := testenv.StartServer(t)
	cfg := server.Config()
	namespace := testenv.Namespace(t, cfg)
	s := openStore(t)
	east := newSource(t, "east", cfg, "configmaps")
	fleet := newFleet(east)
	m, _ := start(t, s, fleet)
	synced(t, m, "east")
	cm := configmaps.GroupResource()
	q := store.Query{Resource: "configmaps", Namespaces: []string{namespace}}
	applyMap(t, cfg, placedMap(namespace, "first", "outage", "d", nil))
	eventually(t, "stored", func() bool { return len(rows(t, s, q)) == 1 })
	seen := &recorder{}
	m.Subscribe(seen.record)

	unknown := func(t *testing.T) {
		t.Helper()
		p, o := m.Lookup("east", cm, namespace, "first")
		if p != presence.Unknown || o.Binding != "outage" {
			t.Errorf("presence %v of %v, want presence.Unknown of the last object", p, o)
		}
		if _, stale := m.Stale("east"); !stale || m.Synced("east", cm) || len(m.Placed("outage")) == 0 || len(rows(t, s, q)) == 0 {
			t.Error("it is not kept as it was")
		}
	}
	kept := func(t *testing.T) {
		t.Helper()
		seen.mu.Lock()
		defer seen.mu.Unlock()
		for _, e := range seen.events {
			if e.Type == Deleted {
				t.Errorf("event %+v", e)
			}
		}
	}
	t.Run("Killed", func(t *testing.T) {
		server.Signal(t, syscall.SIGKILL)
		fleet.setReachable(east, false)
		unknown(t)
		server.Restart(t)
		applyMap(t, cfg, placedMap(namespace, "second", "outage", "d", nil))
		unknown(t)
		fleet.setReachable(east, true)
		eventually(t, "second is mirrored", func() bool { return len(m.Placed("outage")) == 2 && len(rows(t, s, q)) == 2 })
		kept(t)
	})
	t.Run("KilledUnnoticed", func(t *testing.T) {
		server.Signal(t, syscall.SIGKILL)
		server.Restart(t)
		applyMap(t, cfg, placedMap(namespace, "third", "outage", "d", nil))
		eventually(t, "third is mirrored", func() bool { return len(m.Placed("outage")) == 3 && len(rows(t, s, q)) == 3 })
		kept(t)
	})
	t.Run("Hung", func(t *testing.T) {
		server.Signal(t, syscall.SIGSTOP)
		fleet.setReachable(east, false)
		unknown(t)
		server.Signal(t, syscall.SIGCONT)
		fleet.setReachable(east, true)
		applyMap(t, cfg, placedMap(namespace, "fourth", "outage", "d", nil))
		eventually(t, "fourth is mirrored", func() bool { return len(m.Placed("outage")) == 4 && len(rows(t, s, q)) == 4 })
		kept(t)
	})
	t.Run("DeletedMeanwhile", func(t *testing.T) {
		fleet.setReachable(east, false)
		if err := clientset(t, cfg).CoreV1().ConfigMaps(namespace).Delete(context.Background(), "first", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		unknown(t)
		fleet.setReachable(east, true)
		eventually(t, "first is gone", func() bool {
			p, _ := m.Lookup("east", cm, namespace, "first")
			return p == presence.Absent && len(m.Placed("outage")) == 3 && len(rows(t, s, q)) == 3
		})
	})
}

// TestStartsAndStops: a cluster becomes unreachable and reachable, leaves and joins, gets other
// policies and loses its store, all concurrently and while its objects change. In the end it is
// mirrored correctly.
func TestStartsAndStops(t *testing.T) {
	cfg := testenv.Config(0)
	s := openStore(t)
	sources := duplicateSources(cfg)
	fleet := newFleet(sources...)
	m, stop := start(t, s, fleet)
	defer stop()
	l := newLoad(t, cfg, 2)
	var running sync.WaitGroup
	for _, source := range sources {
		for _, what := range []func(){
			func() { fleet.setReachable(source, false); fleet.setReachable(source, true) },
			func() {
				fleet.notify(member.Event{Type: member.Left, Name: source.cluster.Name})
				fleet.notify(member.Event{Type: member.Joined, Name: source.cluster.Name})
			},
			func() { m.Require(configmaps.GroupVersion().WithKind("ConfigMap")); m.setPolicy("none", nil) },
			m.storeLost,
		} {
			running.Go(func() {
				for range 20 {
					for range 5 {
						<-l.changed
					}
					what()
				}
			})
		}
	}
	running.Wait()
	l.stop()
	for _, name := range duplicates {
		synced(t, m, name)
	}
	asClusters(t, s, m, cfg, duplicates...)
}

// slowDrop is a database whose DropCluster waits until the test closes goOn.
type slowDrop struct {
	database

	begun, goOn chan struct{}
}

func (d *slowDrop) DropCluster(ctx context.Context, cluster string) error {
	close(d.begun)
	<-d.goOn
	return d.database.DropCluster(ctx, cluster)
}

// TestJoinsWhileItsPredecessorIsDropped: a cluster joins with the name of a cluster whose rows
// are still being deleted. Its own rows are not deleted with these.
func TestJoinsWhileItsPredecessorIsDropped(t *testing.T) {
	cfg := testenv.Config(0)
	s := openStore(t)
	db := &slowDrop{database: s, begun: make(chan struct{}), goOn: make(chan struct{})}
	east := newSource(t, "east", cfg, "configmaps")
	fleet := newFleet(east)
	m, _ := start(t, db, fleet)
	synced(t, m, "east")

	east.mu.Lock()
	east.cluster = east.cluster.DeepCopy()
	east.cluster.UID = "another"
	east.mu.Unlock()
	fleet.notify(member.Event{Type: member.Left, Name: "east"})
	<-db.begun
	fleet.notify(member.Event{Type: member.Joined, Name: "east"})
	if m.cluster("east") != nil {
		t.Error("a cluster is mirrored while its predecessor's rows are being deleted")
	}
	close(db.goOn)
	synced(t, m, "east")
	asClusters(t, s, m, cfg, "east")
}

// quotaOfCluster checks that a ResourceQuota of the cluster limits what fits in its namespace
// while the quota exists.
func quotaOfCluster(t *testing.T, k *kubernetes.Clientset, namespace string, m *Mirror) {
	quotas := k.CoreV1().ResourceQuotas(namespace)
	q := must[*corev1.ResourceQuota](t)(quotas.Create(t.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}}, metav1.CreateOptions{}))
	q.Status = corev1.ResourceQuotaStatus{
		Hard: corev1.ResourceList{"requests.cpu": resource.MustParse("5"), "services": resource.MustParse("1")},
		Used: corev1.ResourceList{"requests.cpu": resource.MustParse("3500m"), "services": resource.MustParse("1")},
	}
	must[*corev1.ResourceQuota](t)(quotas.UpdateStatus(t.Context(), q, metav1.UpdateOptions{}))
	claim := func(namespace string) *scheduler.Claim {
		return scheduler.NewClaim(&interpreter.Requirements{Namespace: namespace, Requests: corev1.ResourceList{"cpu": resource.MustParse("500m")}})
	}
	fits := func(namespace string, want int64, wantQuota string) func() bool {
		return func() bool {
			free, known := m.FreeCapacity("east")
			if !known {
				return false
			}
			n, quota := free.Fits(claim(namespace), false)
			return n == want && quota == wantQuota
		}
	}
	m.Require(quotaKind)
	eventually(t, "the quota counts", fits(namespace, 3, namespace+"/q"))
	if !fits("elsewhere", 9, "")() {
		t.Error("it counts in another namespace")
	}
	if err := quotas.Delete(t.Context(), "q", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the quota is gone", fits(namespace, 9, ""))
}
