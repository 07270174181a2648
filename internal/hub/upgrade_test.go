package hub

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"orrery.dev/orrery/internal/testenv"
)

// TestUpgrade starts a hub on an API server with a definition that an older hub wrote and
// another client changed. New fields are added and removed ones are deleted. The client's
// changes of the hub's fields are repaired, and its additions stay.
func TestUpgrade(t *testing.T) {
	d, err := dynamic.NewForConfig(testenv.Config(0))
	if err != nil {
		t.Fatal(err)
	}
	all, err := definitions()
	if err != nil {
		t.Fatal(err)
	}
	const name = "clusters.cluster.orrery.dev"
	older := all[slices.IndexFunc(all, func(o *unstructured.Unstructured) bool { return o.GetName() == name })].DeepCopy()
	fields := specFields(t, older)
	delete(fields, "region")
	fields["retired"] = map[string]any{"type": "string"}
	if _, err := d.Resource(crds).Apply(t.Context(), name, older, metav1.ApplyOptions{FieldManager: fieldManager, Force: true}); err != nil {
		t.Fatal(err)
	}
	edit := []byte(`{"metadata":{"labels":{"team":"fleet"}},"spec":{"names":{"categories":["edited"]}}}`)
	const merge = "application/merge-patch+json"
	if _, err := d.Resource(crds).Patch(t.Context(), name, merge, edit, metav1.PatchOptions{FieldManager: "somebody"}); err != nil {
		t.Fatal(err)
	}

	kubeconfig := filepath.Join(t.TempDir(), "external")
	if err := os.WriteFile(kubeconfig, testenv.Kubeconfig(0), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, Options{DataDir: filepath.Join(t.TempDir(), "hub"), Kubeconfig: kubeconfig})

	now, err := d.Resource(crds).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	fields = specFields(t, now)
	if fields["region"] == nil || fields["retired"] != nil {
		t.Errorf("fields after the upgrade: region is %v, retired is %v", fields["region"], fields["retired"])
	}
	categories, _, _ := unstructured.NestedStringSlice(now.Object, "spec", "names", "categories")
	if !slices.Equal(categories, []string{"orrery"}) || now.GetLabels()["team"] != "fleet" {
		t.Errorf("categories %v, labels %v", categories, now.GetLabels())
	}
}

// specFields returns the properties of the spec in the first version of a definition.
func specFields(t *testing.T, definition *unstructured.Unstructured) map[string]any {
	t.Helper()
	at := definition.Object["spec"].(map[string]any)["versions"].([]any)[0]
	for _, key := range []string{"schema", "openAPIV3Schema", "properties", "spec", "properties"} {
		next, ok := at.(map[string]any)[key]
		if !ok {
			t.Fatalf("the definition has no %s", key)
		}
		at = next
	}
	return at.(map[string]any)
}

// TestDowngradeIsRefused starts a hub on an API server with definitions of a newer server. None
// of them is changed.
func TestDowngradeIsRefused(t *testing.T) {
	d, err := dynamic.NewForConfig(testenv.Config(0))
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(t.TempDir(), "external")
	if err := os.WriteFile(kubeconfig, testenv.Kubeconfig(0), 0o600); err != nil {
		t.Fatal(err)
	}
	o := Options{DataDir: filepath.Join(t.TempDir(), "hub"), Kubeconfig: kubeconfig}
	_, stop := run(t, o)
	stop()

	const name = "clusters.cluster.orrery.dev"
	mark := func(version string) string {
		t.Helper()
		patch := []byte(`{"metadata":{"annotations":{"orrery.dev/schema-version":"` + version + `"}}}`)
		marked, err := d.Resource(crds).Patch(context.WithoutCancel(t.Context()), name, "application/merge-patch+json", patch, metav1.PatchOptions{FieldManager: fieldManager})
		if err != nil {
			t.Fatal(err)
		}
		return marked.GetResourceVersion()
	}
	there, err := d.Resource(crds).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ours := there.GetAnnotations()["orrery.dev/schema-version"]
	t.Cleanup(func() { mark(ours) })
	for version, says := range map[string][]string{
		"999":   {name, "schema version 999", "this one has version " + ours, "newer one", "backup"},
		"later": {name, `"later"`, "set it to"},
	} {
		t.Run(version, func(t *testing.T) {
			before := mark(version)
			_, err := Start(t.Context(), o, logr.Discard())
			if err == nil {
				t.Fatal("the hub has started")
			}
			for _, words := range says {
				if !strings.Contains(err.Error(), words) {
					t.Errorf("it does not say %q: %v", words, err)
				}
			}
			now, err := d.Resource(crds).Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if now.GetResourceVersion() != before {
				t.Error("it was written to")
			}
		})
	}
}
