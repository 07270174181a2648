package apply

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// ownedBy sets the managedFields of an object: the fields of the hub's server-side apply, and
// those of another manager.
func ownedBy(o *unstructured.Unstructured, ours, theirs string) {
	entry := func(manager string, operation metav1.ManagedFieldsOperationType, fields string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{
			Manager: manager, Operation: operation, APIVersion: o.GetAPIVersion(), FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields),
		}
	}
	o.SetManagedFields([]metav1.ManagedFieldsEntry{
		entry("orrery", metav1.ManagedFieldsOperationApply, ours), entry("someone", metav1.ManagedFieldsOperationUpdate, theirs),
	})
}

// mergedCopy, which is for objects that are written whole, returns what an apply would produce.
func TestMergedCopy(t *testing.T) {
	const head = "apiVersion: example.com/v1\nkind: Gadget\n"
	for name, tc := range map[string]struct{ manifest, live, ours, theirs, want string }{
		"AFieldIsSet":          {`spec: {a: 2}`, `spec: {a: 1}`, `{"f:spec":{"f:a":{}}}`, `{}`, `spec: {a: 2}`},
		"AFieldIsDropped":      {`spec: {a: 1}`, `spec: {a: 1, b: 1}`, `{"f:spec":{"f:a":{},"f:b":{}}}`, `{}`, `spec: {a: 1}`},
		"AFieldOfOthersStays":  {`spec: {a: 1}`, `spec: {a: 1, b: 1}`, `{"f:spec":{"f:a":{}}}`, `{"f:spec":{"f:b":{}}}`, `spec: {a: 1, b: 1}`},
		"ASharedFieldStays":    {`spec: {a: 1}`, `spec: {a: 1, b: 1}`, `{"f:spec":{"f:a":{},"f:b":{}}}`, `{"f:spec":{"f:b":{}}}`, `spec: {a: 1, b: 1}`},
		"AStructIsDropped":     {`spec: {a: 1}`, `spec: {a: 1, b: {c: 1, d: 1}}`, `{"f:spec":{"f:a":{},"f:b":{"f:c":{}}}}`, `{"f:spec":{"f:b":{"f:d":{}}}}`, `spec: {a: 1, b: {d: 1}}`},
		"AWholeMapIsReplaced":  {`spec: {m: {a: x}}`, `spec: {m: {a: x, b: x}}`, `{"f:spec":{"f:m":{}}}`, `{}`, `spec: {m: {a: x}}`},
		"AWholeListIsReplaced": {`spec: {l: [a, c]}`, `spec: {l: [a, b]}`, `{"f:spec":{"f:l":{}}}`, `{}`, `spec: {l: [a, c]}`},
		"DuplicatesAreWritten": {
			`spec: {env: [{name: A, value: "1"}, {name: A, value: "2"}]}`, `spec: {env: [{name: A, value: "1"}]}`,
			`{"f:spec":{"f:env":{"k:{\"name\":\"A\"}":{".":{},"f:name":{},"f:value":{}}}}}`, `{}`, `spec: {env: [{name: A, value: "1"}, {name: A, value: "2"}]}`,
		},
		"AnElementOfOthersStays": {
			`spec: {c: [{name: web, image: b}]}`, `spec: {c: [{name: side, image: s}, {name: web, image: a, policy: Always}]}`,
			`{"f:spec":{"f:c":{"k:{\"name\":\"web\"}":{".":{},"f:name":{},"f:image":{}}}}}`, `{"f:spec":{"f:c":{"k:{\"name\":\"side\"}":{".":{},"f:name":{},"f:image":{}}}}}`,
			`spec: {c: [{name: web, image: b, policy: Always}, {name: side, image: s}]}`,
		},
		"AnElementIsDropped": {
			`spec: {c: [{name: web}]}`, `spec: {c: [{name: web}, {name: old}]}`,
			`{"f:spec":{"f:c":{"k:{\"name\":\"web\"}":{".":{},"f:name":{}},"k:{\"name\":\"old\"}":{".":{},"f:name":{}}}}}`, `{}`, `spec: {c: [{name: web}]}`,
		},
		"AListIsDropped": {
			`spec: {a: 1}`, `spec: {a: 1, c: [{name: ours}, {name: theirs}]}`,
			`{"f:spec":{"f:a":{},"f:c":{"k:{\"name\":\"ours\"}":{".":{},"f:name":{}}}}}`, `{"f:spec":{"f:c":{"k:{\"name\":\"theirs\"}":{".":{},"f:name":{}}}}}`,
			`spec: {a: 1, c: [{name: theirs}]}`,
		},
		"WhatTheClusterSetsStays": {`spec: {a: 1}`, `spec: {a: 1, address: x}`, `{"f:spec":{"f:a":{}}}`, `{}`, `spec: {a: 1, address: x}`},
	} {
		t.Run(name, func(t *testing.T) {
			manifest, live := parsed(t, head+tc.manifest), parsed(t, head+tc.live)
			ownedBy(live, tc.ours, tc.theirs)
			beforeManifest, beforeLive := manifest.DeepCopy(), live.DeepCopy()
			got := mergedCopy(manifest, live)
			if diff := cmp.Diff(parsed(t, head+tc.want).Object["spec"], got.Object["spec"]); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if diff := cmp.Diff(beforeManifest.Object, manifest.Object) + cmp.Diff(beforeLive.Object, live.Object); diff != "" {
				t.Errorf("the arguments were changed:\n%s", diff)
			}
		})
	}
}

// managersOf returns the fields of entries by manager, operation, version and subresource.
func managersOf(t *testing.T, entries []metav1.ManagedFieldsEntry) map[string]any {
	t.Helper()
	all := map[string]any{}
	for _, e := range entries {
		var fields any
		if err := json.Unmarshal(e.FieldsV1.GetRawBytes(), &fields); err != nil {
			t.Fatal(err)
		}
		all[e.Manager+" "+string(e.Operation)+" "+e.APIVersion+" "+e.Subresource] = fields
	}
	return all
}

// Entries of another version of the group move to the version of the object, with the fields
// that exist there. Entries of another group stay.
func TestInVersion(t *testing.T) {
	o := parsed(t, "apiVersion: example.com/v1\nkind: Gadget\nspec: {a: 1, b: 1, c: [{name: x}]}\nstatus: {ready: true}")
	entry := func(manager, version, subresource, fields string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{
			Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: version, Subresource: subresource,
			FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields), Time: &metav1.Time{Time: time.Unix(1, 0)},
		}
	}
	o.SetManagedFields([]metav1.ManagedFieldsEntry{
		entry("one", "example.com/v1alpha1", "", `{"f:spec":{"f:a":{},"f:gone":{},"f:c":{"k:{\"name\":\"x\"}":{".":{},"f:name":{}},"k:{\"name\":\"y\"}":{".":{}}}}}`),
		entry("one", "example.com/v1", "", `{"f:spec":{"f:b":{}}}`),
		entry("two", "example.com/v1alpha1", "status", `{"f:status":{"f:ready":{}}}`),
		entry("three", "autoscaling/v1", "scale", `{"f:spec":{"f:replicas":{}}}`),
	})
	entries, changed := inVersion(o)
	want := map[string]any{
		"one Update example.com/v1 ": map[string]any{"f:spec": map[string]any{
			"f:a": map[string]any{}, "f:b": map[string]any{},
			"f:c": map[string]any{`k:{"name":"x"}`: map[string]any{".": map[string]any{}, "f:name": map[string]any{}}},
		}},
		"two Update example.com/v1 status":  map[string]any{"f:status": map[string]any{"f:ready": map[string]any{}}},
		"three Update autoscaling/v1 scale": map[string]any{"f:spec": map[string]any{"f:replicas": map[string]any{}}},
	}
	if diff := cmp.Diff(want, managersOf(t, entries)); diff != "" || !changed || len(entries) != len(want) {
		t.Errorf("changed: %t, %d entries, -want +got:\n%s", changed, len(entries), diff)
	}
	o.SetManagedFields(entries)
	if _, changed := inVersion(o); changed {
		t.Error("it is changed again")
	}
}
