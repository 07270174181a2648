package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// TestCompletions: namespaces are searched by prefix, each is offered once, and the number of
// requests is bounded. A user who may not list namespaces gets those with visible objects.
func TestCompletions(t *testing.T) {
	const namespaces, clusters = 1000, 3
	var asked []string
	forbidden := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		asked = append(asked, q.Get("q"))
		w.Header().Set("Content-Type", "application/json")
		if q.Get("group") != "" {
			_, _ = fmt.Fprint(w, `{"groups":[{"values":["shop"],"objects":2},{"values":["blog"],"objects":1}]}`)
			return
		}
		if forbidden {
			w.WriteHeader(http.StatusForbidden)
			_, _ = fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`)
			return
		}
		prefix := ""
		if _, after, ok := strings.Cut(q.Get("q"), "name:"); ok {
			prefix = strings.TrimSuffix(after, "*")
		}
		list := map[string]any{"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": map[string]any{}}
		var items []any
		for i := range namespaces * clusters {
			name := fmt.Sprintf("ns-%04d", i/clusters)
			if strings.HasPrefix(name, prefix) && name > q.Get("continue") && len(items) < 50*clusters {
				items = append(items, map[string]any{"metadata": map[string]any{"name": name}})
				list["metadata"] = map[string]any{"continue": name}
			}
		}
		if len(items) < 50*clusters {
			list["metadata"] = map[string]any{}
		}
		list["items"] = items
		_ = json.NewEncoder(w).Encode(list)
	}))
	defer server.Close()
	c, err := rest.UnversionedRESTClientFor(&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{NegotiatedSerializer: scheme.Codecs.WithoutConversion()}})
	if err != nil {
		t.Fatal(err)
	}
	f := &searching{}
	complete := func(key, typed string) []string {
		t.Helper()
		asked = nil
		values, err := f.completions(context.Background(), c, key, typed)
		if err != nil {
			t.Fatal(err)
		}
		return values
	}
	if diff := cmp.Diff([]string{"ns-0120", "ns-0121", "ns-0122", "ns-0123", "ns-0124", "ns-0125", "ns-0126", "ns-0127", "ns-0128", "ns-0129"}, complete("namespace", "NS-012")); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"kind:namespaces name:ns-012*"}, asked); diff != "" {
		t.Error(diff)
	}
	if got := complete("namespace", ""); len(got) < mostCompletions || len(got) >= 2*mostCompletions || len(asked) > 5 || !slices.IsSorted(got) {
		t.Errorf("%d names in %d requests", len(got), len(asked))
	}
	counted := []string{"shop", "blog"}
	if diff := cmp.Diff(counted, complete("namespace", `a*" kind:Pod`)); diff != "" || len(asked) != 1 {
		t.Errorf("%s, asked %q", diff, asked)
	}
	forbidden = true
	if diff := cmp.Diff(counted, complete("namespace", "ns")); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(counted, complete("cluster", "ns")); diff != "" {
		t.Error(diff)
	}
}

// TestNamesOfAnotherHub: a search result with fewer columns than this version has is an error.
func TestNamesOfAnotherHub(t *testing.T) {
	var out strings.Builder
	table := &metav1.Table{Rows: []metav1.TableRow{
		{Cells: []any{"Pod", "oak", "shop", "web", "1d", "Running", "v1"}},
		{Cells: []any{"Pod", "oak", "shop", "db", "1d", "Running"}},
	}}
	err := printFoundNames(streams{out: &out, err: &out}, table)
	if err == nil || !strings.Contains(err.Error(), "a row has 6 columns, want 7 or more") || out.String() != "oak pod/web shop\n" {
		t.Errorf("printed %q, %v", out.String(), err)
	}
}
