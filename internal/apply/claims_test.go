package apply

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

func TestGrownStorage(t *testing.T) {
	claim := func(kind, storage string, owners ...string) *unstructured.Unstructured {
		o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": kind, "spec": map[string]any{"accessModes": []any{"ReadWriteOnce"}}}}
		if storage != "" {
			o.Object["spec"].(map[string]any)["resources"] = map[string]any{"requests": map[string]any{"storage": storage}}
		}
		var fields []metav1.ManagedFieldsEntry
		for _, owner := range owners {
			fields = append(fields, metav1.ManagedFieldsEntry{
				Manager: owner, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:resources":{"f:requests":{"f:storage":{}}}}}`),
			})
		}
		o.SetManagedFields(fields)
		return o
	}
	const kind, ours = "PersistentVolumeClaim", workv1alpha2.FieldManager
	for name, tc := range map[string]struct {
		manifest, live *unstructured.Unstructured
		want           string // storage that is sent; empty: none
	}{
		"Equal":              {claim(kind, "1Gi"), claim(kind, "1024Mi", ours), "1Gi"},
		"GrownThere":         {claim(kind, "1Gi"), claim(kind, "5Gi", "kubectl"), ""},
		"GrownThereWithUs":   {claim(kind, "1Gi"), claim(kind, "5Gi", ours, "kubectl"), ""},
		"GrownOnTheHub":      {claim(kind, "9Gi"), claim(kind, "5Gi", "kubectl"), "9Gi"},
		"SmallerOnTheHub":    {claim(kind, "1Gi"), claim(kind, "5Gi", ours), "5Gi"},
		"NoQuantity":         {claim(kind, "much"), claim(kind, "5Gi", "kubectl"), "much"},
		"NothingThere":       {claim(kind, "1Gi"), claim(kind, ""), "1Gi"},
		"NothingRequested":   {claim(kind, ""), claim(kind, "5Gi", "kubectl"), ""},
		"SomethingElse":      {claim("Claim", "1Gi"), claim("Claim", "5Gi", "kubectl"), "1Gi"},
		"ClaimOfAnEmptyCopy": {claim(kind, "1Gi"), &unstructured.Unstructured{Object: map[string]any{}}, "1Gi"},
	} {
		t.Run(name, func(t *testing.T) {
			before := tc.manifest.DeepCopy().Object
			got, _, err := unstructured.NestedString(retained(tc.manifest, tc.live).Object, "spec", "resources", "requests", "storage")
			if err != nil || got != tc.want {
				t.Errorf("%q is sent (%v), want %q", got, err, tc.want)
			}
			if diff := cmp.Diff(before, tc.manifest.Object); diff != "" {
				t.Errorf("the manifest was changed (-before +after):\n%s", diff)
			}
		})
	}
}
