package template

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/yaml"

	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/testenv"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	testenv.Main(m, 1)
}

// versioned returns an object that an API server has stored.
func versioned(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	encoded, err := yaml.YAMLToJSON([]byte(text))
	if err := errors.Join(err, o.UnmarshalJSON(encoded)); err != nil {
		t.Fatal(err)
	}
	return o
}

// recorded returns the version of a template for the records.
func recorded(o *unstructured.Unstructured) string { return Recorded(o, Version(o)) }

// TestVersion: the version of a template changes with everything that its copies have, and not with
// its status, which the hub writes, also for a kind without generations. A recorded version shows
// which of two states is the later one.
func TestVersion(t *testing.T) {
	const (
		service = `{apiVersion: v1, kind: Service, metadata: {uid: u, name: a, resourceVersion: "5"}, spec: {type: LoadBalancer}, status: {loadBalancer: {}}}`
		secret  = `{apiVersion: v1, kind: Secret, metadata: {uid: u, name: a, resourceVersion: "5"}, data: {a: Yg==}}`
		web     = `{apiVersion: apps/v1, kind: Deployment, metadata: {uid: u, name: a, resourceVersion: "5", generation: 2}, spec: {replicas: 1}, status: {replicas: 1}}`
	)
	for name, tc := range map[string]struct {
		before, after string
		same          bool
		number        uint64 // in the recorded version of after
	}{
		"Status": {
			service, `{apiVersion: v1, kind: Service, metadata: {uid: u, name: a, resourceVersion: "6", managedFields: [{manager: orrery}]}, spec: {type: LoadBalancer},
				status: {loadBalancer: {ingress: [{ip: 192.0.2.1}]}}}`,
			true, 6,
		},
		"Spec": {
			service, `{apiVersion: v1, kind: Service, metadata: {uid: u, name: a, resourceVersion: "6"}, spec: {type: ClusterIP}, status: {loadBalancer: {}}}`,
			false, 6,
		},
		"Annotation": {
			service, `{apiVersion: v1, kind: Service, metadata: {uid: u, name: a, resourceVersion: "6", annotations: {a: b}}, spec: {type: LoadBalancer}, status: {loadBalancer: {}}}`,
			false, 6,
		},
		"Deleted": {
			service, `{apiVersion: v1, kind: Service, metadata: {uid: u, name: a, resourceVersion: "6", deletionTimestamp: "2026-01-02T03:04:05Z"}, spec: {type: LoadBalancer}, status: {loadBalancer: {}}}`,
			false, 6,
		},
		"Another": {
			service, `{apiVersion: v1, kind: Service, metadata: {uid: v, name: a, resourceVersion: "5"}, spec: {type: LoadBalancer}, status: {loadBalancer: {}}}`,
			false, 5,
		},
		"WithoutStatus": {secret, `{apiVersion: v1, kind: Secret, metadata: {uid: u, name: a, resourceVersion: "6"}, data: {a: Yw==}}`, false, 6},
		"StatusOfDeployment": {
			web, `{apiVersion: apps/v1, kind: Deployment, metadata: {uid: u, name: a, resourceVersion: "6", generation: 2}, spec: {replicas: 1}, status: {replicas: 0}}`,
			true, 2,
		},
		"SpecOfDeployment": {
			web, `{apiVersion: apps/v1, kind: Deployment, metadata: {uid: u, name: a, resourceVersion: "6", generation: 3}, spec: {replicas: 2}, status: {replicas: 1}}`,
			false, 3,
		},
	} {
		t.Run(name, func(t *testing.T) {
			before, after := versioned(t, tc.before), versioned(t, tc.after)
			whole := after.DeepCopy()
			if same := Version(before) == Version(after); same != tc.same {
				t.Errorf("the versions are %s and %s, same: %t, want %t", Version(before), Version(after), same, tc.same)
			}
			if same := Same(recorded(before), Version(after)); same != tc.same {
				t.Errorf("%s and %s, same: %t, want %t", recorded(before), Version(after), same, tc.same)
			}
			if uid, number := Number(recorded(after)); uid != after.GetUID() || number != tc.number {
				t.Errorf("in %s is the number %d of %s, want %d", recorded(after), number, uid, tc.number)
			}
			if !reflect.DeepEqual(whole, after) {
				t.Error("the template was changed")
			}
		})
	}
	if Recorded(nil, "") != "" || Same("", Version(versioned(t, secret))) || Same(recorded(versioned(t, service)), "") {
		t.Error("an unknown version is the same as a known one")
	}
}

// patience is the maximum wait for a condition on a busy machine.
const patience = 3 * time.Minute

// events records the events that subscribers received.
type events struct {
	mu  sync.Mutex
	all []Event
}

func (e *events) add(event Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, event)
}

func (e *events) count(event Event) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.all) - len(slices.DeleteFunc(slices.Clone(e.all), func(x Event) bool { return x == event }))
}

func newCache(t *testing.T, before func(*Cache)) (*Cache, client.Client, *events) {
	t.Helper()
	mgr, err := ctrl.NewManager(testenv.Config(0), ctrl.Options{Metrics: metricsserver.Options{BindAddress: "0"}})
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(mgr)
	if err != nil {
		t.Fatal(err)
	}
	heard := &events{}
	c.Subscribe(heard.add)
	before(c)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	direct, err := client.New(testenv.Config(0), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c, direct, heard
}

func is(c *Cache, gvk schema.GroupVersionKind, namespace, name string, want presence.Presence) func() error {
	return func() error {
		if _, got := c.Get(gvk, namespace, name); got != want {
			return fmt.Errorf("%s %s is %d, want %d", gvk.Kind, name, got, want)
		}
		return nil
	}
}

func TestCache(t *testing.T) {
	configMaps := corev1.SchemeGroupVersion.WithKind("ConfigMap")
	secrets := corev1.SchemeGroupVersion.WithKind("Secret")
	namespace := testenv.Namespace(t, testenv.Config(0))
	c, direct, heard := newCache(t, func(c *Cache) {
		if err := c.Watch(configMaps); err != nil {
			t.Fatal(err)
		}
		if _, state := c.Get(configMaps, namespace, "a"); state != presence.Unknown || c.Listed(configMaps) {
			t.Error("something is known before the cache runs")
		}
		if _, state := c.List(configMaps); state != presence.Unknown {
			t.Error("something is listed before the cache runs")
		}
	})
	testenv.Eventually(t, "first list", patience, is(c, configMaps, namespace, "a", presence.Absent))
	if _, state := c.Get(secrets, namespace, "a"); state != presence.Unknown {
		t.Error("something is known of a kind that is not watched")
	}

	o := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "a", Annotations: map[string]string{
			corev1.LastAppliedConfigAnnotation: "{}", "kept": "yes",
		}},
		Data: map[string]string{"k": "v"},
	}
	if err := direct.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "creation", patience, is(c, configMaps, namespace, "a", presence.Present))
	got, _ := c.Get(configMaps, namespace, "a")
	if annotations := got.GetAnnotations(); len(got.GetManagedFields()) > 0 || len(annotations) != 1 || annotations["kept"] != "yes" {
		t.Errorf("metadata is %v", got.Object["metadata"])
	}
	if v, _, _ := unstructured.NestedString(got.Object, "data", "k"); v != "v" {
		t.Errorf("data is %v", got.Object["data"])
	}
	list, state := c.ListIn(configMaps, namespace)
	if state != presence.Present || !slices.ContainsFunc(list, func(o *unstructured.Unstructured) bool { return o.GetName() == "a" }) {
		t.Errorf("list of the namespace is %d objects, state %d", len(list), state)
	}
	if _, state := c.ListIn(configMaps, "nowhere"); state != presence.Absent {
		t.Errorf("list of an empty namespace is %d", state)
	}
	if err := direct.Delete(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "deletion", patience, is(c, configMaps, namespace, "a", presence.Absent))

	testenv.Eventually(t, "events", patience, func() error {
		kind, object := Event{GVK: configMaps}, Event{GVK: configMaps, Namespace: namespace, Name: "a"}
		if k, o := heard.count(kind), heard.count(object); k != 1 || o != 2 {
			return fmt.Errorf("%d of the kind and %d of the object, want 1 and 2", k, o)
		}
		return nil
	})
	if err := c.Watch(schema.GroupVersionKind{Group: "cluster.orrery.dev", Version: "v1alpha1", Kind: "Cluster"}); err == nil {
		t.Error("clusters are watched")
	}
}

// TestStatusOfAnAutoscaler: an API server returns the status of a HorizontalPodAutoscaler of v1 in
// annotations, too. A write of the status does not change the version of the template.
func TestStatusOfAnAutoscaler(t *testing.T) {
	v1 := autoscalingv1.SchemeGroupVersion.WithKind("HorizontalPodAutoscaler")
	namespace := testenv.Namespace(t, testenv.Config(0))
	c, direct, _ := newCache(t, func(c *Cache) {
		if err := c.Watch(v1); err != nil {
			t.Fatal(err)
		}
	})
	o := &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "a", Annotations: map[string]string{"kept": "yes"}},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{Kind: "Deployment", Name: "a", APIVersion: "apps/v1"}, MaxReplicas: 3,
		},
	}
	if err := direct.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	seen := func(resourceVersion string) (template *unstructured.Unstructured) {
		t.Helper()
		testenv.Eventually(t, "resourceVersion "+resourceVersion, patience, func() error {
			if template, _ = c.Get(v1, namespace, "a"); template == nil || template.GetResourceVersion() != resourceVersion {
				return errors.New("it is not in the cache")
			}
			return nil
		})
		return template
	}
	before := seen(o.ResourceVersion)

	usage := int32(50)
	o.Status.CurrentReplicas = 2
	o.Status.Conditions = []autoscalingv2.HorizontalPodAutoscalerCondition{{Type: autoscalingv2.AbleToScale, Status: corev1.ConditionTrue}}
	o.Status.CurrentMetrics = []autoscalingv2.MetricStatus{{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricStatus{
		Name: corev1.ResourceCPU, Current: autoscalingv2.MetricValueStatus{AverageUtilization: &usage, AverageValue: resource.NewQuantity(1, resource.DecimalSI)},
	}}}
	if err := direct.Status().Update(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	after := seen(o.ResourceVersion)
	if was, is := Version(before), Version(after); is != was {
		t.Errorf("the version is %s, was %s; the annotations are %v", is, was, after.GetAnnotations())
	}
	if after.GetAnnotations()["kept"] != "yes" {
		t.Errorf("the annotations are %v", after.GetAnnotations())
	}

	o.Annotations = map[string]string{"kept": "no"}
	if err := direct.Update(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if edited := seen(o.ResourceVersion); Version(edited) == Version(before) {
		t.Error("the version is the same after an edit")
	}
}

// TestKindComesAndGoes: a kind is watched once the hub serves it. When the hub stops serving
// it, its objects are Unknown, not Absent. When it returns, it is watched again.
func TestKindComesAndGoes(t *testing.T) {
	gadgets := schema.GroupVersionKind{Group: "template.example.org", Version: "v1", Kind: "Gadget"}
	namespace := testenv.Namespace(t, testenv.Config(0))
	c, direct, heard := newCache(t, func(c *Cache) {
		if err := c.Watch(gadgets); err != nil {
			t.Fatal(err)
		}
	})
	if err := apiextensionsv1.AddToScheme(direct.Scheme()); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "refusal", patience, func() error {
		if err := c.Watch(gadgets); !meta.IsNoMatchError(err) {
			return fmt.Errorf("it is %w", err)
		}
		return nil
	})
	testenv.Eventually(t, "all are notified that the kind is not served", patience, func() error {
		if heard.count(Event{GVK: gadgets}) == 0 {
			return errors.New("they were not")
		}
		return nil
	})
	crd := func() *apiextensionsv1.CustomResourceDefinition {
		return &apiextensionsv1.CustomResourceDefinition{
			ObjectMeta: metav1.ObjectMeta{Name: "gadgets.template.example.org"},
			Spec: apiextensionsv1.CustomResourceDefinitionSpec{
				Group: gadgets.Group, Scope: apiextensionsv1.NamespaceScoped,
				Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "gadgets", Kind: "Gadget"},
				Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
					Name: "v1", Served: true, Storage: true,
					Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}},
				}},
			},
		}
	}
	for range 2 {
		definition := crd()
		testenv.Eventually(t, "CRD", patience, func() error { return direct.Create(t.Context(), definition) })
		testenv.Eventually(t, "first list", patience, is(c, gadgets, namespace, "g", presence.Absent))
		if err := c.Watch(gadgets); err != nil {
			t.Error(err)
		}
		gadget := &unstructured.Unstructured{}
		gadget.SetGroupVersionKind(gadgets)
		gadget.SetNamespace(namespace)
		gadget.SetName("g")
		testenv.Eventually(t, "gadget", patience, func() error { return direct.Create(t.Context(), gadget) })
		testenv.Eventually(t, "gadget", patience, is(c, gadgets, namespace, "g", presence.Present))
		if err := direct.Delete(t.Context(), definition); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, "end of the kind", patience, is(c, gadgets, namespace, "g", presence.Unknown))
	}
}
