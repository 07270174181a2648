package template

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/testenv"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	testenv.Main(m, 1)
}

// patience is how long a condition may take to come true on a busy machine.
const patience = 3 * time.Minute

// events remembers what subscribers were told.
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

// A kind that comes is watched; one that goes becomes unknown, not absent, and is watched
// again when it comes back.
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
	testenv.Eventually(t, "all are told that the kind is not served", patience, func() error {
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
