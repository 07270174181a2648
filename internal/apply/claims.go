package apply

import (
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

// requestsStorage reports whether a manifest is a PersistentVolumeClaim that requests storage.
func requestsStorage(manifest *unstructured.Unstructured) bool {
	if manifest.GroupVersionKind().GroupKind() != (schema.GroupKind{Kind: "PersistentVolumeClaim"}) {
		return false
	}
	_, ok := storage(manifest)
	return ok
}

// storage returns the storage that a PersistentVolumeClaim requests; false if it requests none,
// or the value is no valid quantity.
func storage(o *unstructured.Unstructured) (resource.Quantity, bool) {
	text, found, err := unstructured.NestedString(o.Object, "spec", "resources", "requests", "storage")
	if !found || err != nil {
		return resource.Quantity{}, false
	}
	q, err := resource.ParseQuantity(text)
	return q, err == nil
}

// withStorageOf returns a manifest that requests the same storage as the claim in the cluster
// (live), if it is a PersistentVolumeClaim without a request. The API server refuses such a claim.
// Every other manifest is returned as it is. Neither argument is changed.
func withStorageOf(manifest, live *unstructured.Unstructured) *unstructured.Unstructured {
	if manifest.GroupVersionKind().GroupKind() != (schema.GroupKind{Kind: "PersistentVolumeClaim"}) || requestsStorage(manifest) {
		return manifest
	}
	text, found, err := unstructured.NestedString(live.Object, "spec", "resources", "requests", "storage")
	if !found || err != nil {
		return manifest
	}
	manifest = &unstructured.Unstructured{Object: runtime.DeepCopyJSON(manifest.Object)}
	if unstructured.SetNestedField(manifest.Object, text, "spec", "resources", "requests", "storage") != nil {
		return manifest // the parent is no object: the API server reports that
	}
	return manifest
}

// withGrownStorage returns a manifest without the requested storage if the claim in the cluster
// requests more, because a claim never shrinks. Otherwise it returns the manifest itself. If only
// the hub owns the field, because an earlier template asked for more, the manifest gets the value
// of the claim instead: the API server refuses a claim without the field. It is pure and changes
// neither argument.
func withGrownStorage(manifest, live *unstructured.Unstructured) *unstructured.Unstructured {
	if !requestsStorage(manifest) {
		return manifest
	}
	wanted, _ := storage(manifest)
	is, ok := storage(live)
	if !ok || is.Cmp(wanted) <= 0 {
		return manifest
	}
	manifest = &unstructured.Unstructured{Object: runtime.DeepCopyJSON(manifest.Object)}
	requests, _, _ := unstructured.NestedFieldNoCopy(manifest.Object, "spec", "resources", "requests")
	fields, _ := requests.(map[string]any)
	by := owners(live, "f:spec", "f:resources", "f:requests", "f:storage")
	if len(by) == 1 && by[0] == workv1alpha2.FieldManager {
		fields["storage"], _, _ = unstructured.NestedString(live.Object, "spec", "resources", "requests", "storage")
		return manifest
	}
	delete(fields, "storage")
	return manifest
}
