package manifest_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"orrery.dev/orrery/internal/manifest"
	"orrery.dev/orrery/internal/testenv"
)

func parsed(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	all, err := manifest.Parse([]byte(text), yaml.YAMLToJSONStrict)
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	return all[0]
}

func newClient(t *testing.T, o manifest.Options) manifest.Client {
	t.Helper()
	c, err := manifest.NewClient(testenv.Config(0), o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestApply(t *testing.T) {
	ns := testenv.Namespace(t, testenv.Config(0))
	object := func(value string) *unstructured.Unstructured {
		return parsed(t, fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: %s}\ndata: {x: %q}\n", ns, value))
	}
	var called []string
	one := newClient(t, manifest.Options{
		FieldManager: "one", Timeout: time.Minute, Called: func(verb string) { called = append(called, verb) },
	})
	other := newClient(t, manifest.Options{FieldManager: "other"})
	at := manifest.Guessed(object(""))
	value := func() string {
		t.Helper()
		live, err := one.Get(t.Context(), at)
		if err != nil {
			t.Fatal(err)
		}
		value, _, _ := unstructured.NestedString(live.Object, "data", "x")
		return value
	}

	if _, created, err := one.Apply(t.Context(), at, object("1"), false, false); err != nil || !created {
		t.Errorf("apply of what was not there: created %t, %v", created, err)
	}
	if _, created, err := one.Apply(t.Context(), at, object("2"), false, false); err != nil || created {
		t.Errorf("apply of what was there: created %t, %v", created, err)
	}
	if _, _, err := other.Apply(t.Context(), at, object("3"), false, false); !apierrors.IsConflict(err) {
		t.Errorf("apply of another's field: %v, want a conflict", err)
	}
	tried, _, err := other.Apply(t.Context(), at, object("3"), true, true)
	if err != nil || value() != "2" {
		t.Errorf("a dry run: %v, and the value is %s", err, value())
	}
	if got, _, _ := unstructured.NestedString(tried.Object, "data", "x"); got != "3" {
		t.Errorf("a dry run says that the value would be %q", got)
	}
	if _, _, err := other.Apply(t.Context(), at, object("3"), true, false); err != nil || value() != "3" {
		t.Errorf("apply by force: %v, and the value is %s", err, value())
	}
	if diff := cmp.Diff([]string{"apply", "apply", "get", "get"}, called); diff != "" {
		t.Error(diff)
	}
}

// TestListError: the error of a list says which objects could not be listed.
func TestListError(t *testing.T) {
	c := newClient(t, manifest.Options{})
	gone := schema.GroupVersionResource{Group: "gone.example", Version: "v1", Resource: "gadgets"}
	for namespace, want := range map[string]string{
		"":     "list gadgets.gone.example in all namespaces: ",
		"shop": "list gadgets.gone.example in namespace shop: ",
	} {
		if _, err := c.List(t.Context(), gone, namespace); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %s…", err, want)
		}
	}
}

func definition(group, kind string) string {
	plural := strings.ToLower(kind) + "s"
	return fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[2]s.%[1]s}
spec:
  group: %[1]s
  scope: Namespaced
  names: {plural: %[2]s, kind: %[3]s}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
  - {name: v0, served: false, storage: false, schema: {openAPIV3Schema: {type: object}}}
`, group, plural, kind)
}

// TestAwaitServed: after it returns, an object of the kind can be applied. If the name of the
// kind is taken, the error says so.
func TestAwaitServed(t *testing.T) {
	c := newClient(t, manifest.Options{FieldManager: "test"})
	never := func(error) bool { return false }
	define := func(ctx context.Context, text string) error {
		d := parsed(t, text)
		applied, _, err := c.Apply(t.Context(), manifest.Definition(d.GetName()), d, true, false)
		if err != nil {
			t.Fatal(err)
		}
		return c.AwaitServed(ctx, applied, never)
	}
	if err := define(t.Context(), definition("served.example", "Gadget")); err != nil {
		t.Fatal(err)
	}
	o := parsed(t, "apiVersion: served.example/v1\nkind: Gadget\nmetadata: {name: a, namespace: default}\n")
	if _, created, err := c.Apply(t.Context(), manifest.Guessed(o), o, true, false); err != nil || !created {
		t.Errorf("apply of the kind at once: created %t, %v", created, err)
	}

	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	taken := strings.ReplaceAll(definition("served.example", "Other"), "kind: Other", "kind: Gadget")
	if err := define(ctx, taken); err == nil || !strings.Contains(err.Error(), "is already in use") {
		t.Errorf("a kind that is taken: %v", err)
	}
	if err := c.AwaitServed(t.Context(), parsed(t, definition("absent.example", "Nothing")), never); !apierrors.IsNotFound(err) {
		t.Errorf("a definition that is not there: %v", err)
	}
}
