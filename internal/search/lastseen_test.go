package search

import (
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestLastSeenOfEvents: a table of Events has one column Last Seen, of the event. The column with
// the age of the rows of a stale cluster has another name, and is the last one.
func TestLastSeenOfEvents(t *testing.T) {
	f := threeClusters(t)
	event := schema.GroupVersionKind{Version: "v1", Kind: "Event"}
	f.serve(event, "events", true, "elm")
	f.put(t, "elm", "events", newObject(event, "shop", "web.1"))
	columns := func() (names []string, rows []any) {
		_, body := f.ask(t, http.MethodGet, "/api/v1/namespaces/shop/events", tableAccept)
		heads, _, _ := unstructured.NestedSlice(body, "columnDefinitions")
		for _, h := range heads {
			name, _, _ := unstructured.NestedString(h.(map[string]any), "name")
			names = append(names, name)
		}
		rows, _, _ = unstructured.NestedSlice(body, "rows")
		return names, rows
	}
	before, _ := columns()
	f.mirror.stale["elm"] = time.Now().Add(-3 * time.Hour)
	after, rows := columns()
	if diff := cmp.Diff(append(before, "Cluster Last Seen"), after); diff != "" {
		t.Errorf("columns (-want, +got):\n%s", diff)
	}
	if len(rows) != 1 {
		t.Fatalf("%d rows, want 1", len(rows))
	}
	cells := rows[0].(map[string]any)["cells"].([]any)
	if last := cells[len(cells)-1]; last != "3h" {
		t.Errorf("the cluster was last seen %v ago, want 3h", last)
	}
}
