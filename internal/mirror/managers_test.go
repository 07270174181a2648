package mirror

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"orrery.dev/orrery/internal/store"
	"orrery.dev/orrery/internal/testenv"
)

// TestManagersAreKept: a row keeps who changed its object last, as the API server does, but not
// which fields, since these are most of an entry.
func TestManagersAreKept(t *testing.T) {
	cfg := testenv.Config(0)
	maps, namespace := clientset(t, cfg).CoreV1(), testenv.Namespace(t, cfg)
	must[*corev1.ConfigMap](t)(maps.ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "kept"}, Data: map[string]string{"a": "1"},
	}, metav1.CreateOptions{FieldManager: "carol"}))
	s := openStore(t)
	_, stop := start(t, s, newFleet(newSource(t, "east", cfg, "configmaps")))
	defer stop()
	by := func() (names []string, o corev1.ConfigMap) {
		t.Helper()
		row, ok := rows(t, s, store.Query{Resource: "configmaps", Namespaces: []string{namespace}})["east/"+namespace+"/kept"]
		if !ok {
			return nil, o
		}
		if err := json.Unmarshal(row.Body, &o); err != nil {
			t.Fatal(err)
		}
		for _, m := range o.ManagedFields {
			if m.FieldsV1 != nil || m.FieldsType != "" || m.Time == nil || m.APIVersion != "v1" || m.Operation != metav1.ManagedFieldsOperationUpdate {
				t.Fatalf("an entry is %v", m)
			}
			names = append(names, m.Manager)
		}
		return names, o
	}
	eventually(t, "the creator is mirrored", func() bool {
		names, _ := by()
		return slices.Equal(names, []string{"carol"})
	})
	must[*corev1.ConfigMap](t)(maps.ConfigMaps(namespace).Patch(t.Context(), "kept", types.MergePatchType, []byte(`{"data":{"b":"2"}}`), metav1.PatchOptions{FieldManager: "dave"}))
	eventually(t, "who changed it is mirrored", func() bool {
		names, o := by()
		return slices.Contains(names, "dave") && o.Data["b"] == "2"
	})
}

func TestManagers(t *testing.T) {
	const (
		early = "{manager: a, operation: Apply, apiVersion: v1, time: '2026-11-20T10:00:00Z', fieldsType: FieldsV1, fieldsV1: {f:spec: {}}}"
		late  = "{manager: b, operation: Update, apiVersion: v1, time: '2026-11-20T10:00:01Z', fieldsType: FieldsV1, fieldsV1: {f:spec: {}}}"
		same  = "{manager: c, operation: Update, apiVersion: v1, time: '2026-11-20T10:00:01Z', subresource: status}"
		beta  = "{manager: d, operation: Update, apiVersion: v1beta1, time: '2020-11-20T10:00:00Z'}"
		none  = "{manager: e, operation: Update, apiVersion: v1}"
	)
	for name, c := range map[string]struct {
		entries []string
		want    []string
	}{
		"Newest":       {[]string{early, late}, []string{"b"}},
		"OfOneSecond":  {[]string{early, late, same}, []string{"b", "c"}},
		"OtherVersion": {[]string{beta, late}, []string{"d", "b"}},
		"WithoutTime":  {[]string{none}, []string{"e"}},
		"Nobody":       {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var entries []any
			for _, text := range c.entries {
				var entry map[string]any
				if err := yaml.Unmarshal([]byte(text), &entry); err != nil {
					t.Fatal(err)
				}
				entries = append(entries, entry)
			}
			before := must[[]byte](t)(json.Marshal(entries))
			var got []string
			for _, kept := range managers(entries, "v1") {
				entry, _ := kept.(map[string]any)
				manager, _ := entry["manager"].(string)
				if got = append(got, manager); entry["fieldsV1"] != nil || entry["fieldsType"] != nil {
					t.Errorf("it is %v", entry)
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want, +got):\n%s", diff)
			}
			if after := must[[]byte](t)(json.Marshal(entries)); string(after) != string(before) {
				t.Errorf("the object is changed: %s", after)
			}
		})
	}
}
