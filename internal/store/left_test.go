package store

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/selection"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

// TestLeft: an index finds objects of any type with LeftAnnotation, also after an upgrade.
// Objects that have its text elsewhere, or no longer have the annotation, are not found.
func TestLeft(t *testing.T) {
	if LeftAnnotation != workv1alpha2.OrphanAnnotation {
		t.Errorf("%s is not %s", LeftAnnotation, workv1alpha2.OrphanAnnotation)
	}
	onEach(t, func(t *testing.T, at string) {
		s := openStore(t, at)
		object := func(resource, name, metadata string) Row {
			r := pod("a", "x", name, nil, nil)
			r.Resource = resource
			r.Body = []byte(fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"namespace":"x"%s}}`, name, metadata))
			return r
		}
		const mark = `,"annotations":{"work.orrery.dev/orphan":"hub/uid"}`
		for _, resource := range []string{"pods", "secrets", "configmaps"} {
			write(t, s, object(resource, "left", mark), object(resource, "labelled", `,"labels":{"a":"b"}`+mark),
				object(resource, "named", `,"annotations":{"other":"work.orrery.dev/orphan"}`), object(resource, "other", ""))
		}
		find := func(resource string, want ...string) {
			t.Helper()
			for _, operator := range []selection.Operator{selection.Exists, selection.DoesNotExist} {
				q := Query{Resource: resource, Fields: []FieldRequirement{{Path: "metadata.annotations['" + LeftAnnotation + "']", Operator: operator}}}
				if operator == selection.DoesNotExist {
					want = slices.DeleteFunc([]string{"a/x/labelled", "a/x/left", "a/x/named", "a/x/other"}, func(name string) bool { return slices.Contains(want, name) })
				}
				if diff := cmp.Diff(want, listed(t, s, q)); diff != "" {
					t.Errorf("%s %s: %s", resource, operator, diff)
				}
			}
		}
		for _, resource := range []string{"pods", "secrets", "configmaps"} {
			find(resource, "a/x/labelled", "a/x/left")
		}
		// The state that an earlier version wrote, without the index entries.
		for _, text := range []string{"DELETE FROM label WHERE label_key = '.[left]'", "UPDATE object SET terms = '[]'", "UPDATE epoch SET terms = 5"} {
			_, err := s.db.write.ExecContext(t.Context(), text)
			check(t, err)
		}
		check(t, s.Close())
		s = openStore(t, at)
		find("configmaps", "a/x/labelled", "a/x/left")
		write(t, s, object("configmaps", "left", ""))
		find("configmaps", "a/x/labelled")
		if n := rowsOf(t, s, "label WHERE label_key = '.[left]'"); n != 5 {
			t.Errorf("%d objects are in the index, want 5", n)
		}
	})
}
