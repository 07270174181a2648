package search

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"orrery.dev/orrery/internal/testenv"
)

const tableAccept = "application/json;as=Table;v=v1;g=meta.k8s.io"

// TestColumnsAreThoseOfTheAPIServer: tables have the columns and cells of a real API server,
// after a column for the cluster.
func TestColumnsAreThoseOfTheAPIServer(t *testing.T) {
	made := kinds(t)
	f := newFleet(t, "oak")
	f.fill(t, func(string, *unstructured.Unstructured) bool { return true }, "oak")
	config := testenv.Config(0)
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range made {
		if o.GetKind() == "CustomResourceDefinition" {
			continue // the fleet has no columns for them
		}
		t.Run(o.GetKind()+o.GetName(), func(t *testing.T) {
			path := f.path(t, o)
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, strings.TrimSuffix(config.Host, "/")+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			want := cells(t, client, req)
			if req, err = http.NewRequestWithContext(t.Context(), http.MethodGet, f.url+path, nil); err != nil {
				t.Fatal(err)
			}
			got := cells(t, http.DefaultClient, req)
			if diff := cmp.Diff(append([]string{"Cluster: oak"}, want...), got); diff != "" {
				t.Errorf("columns (-API server, +fleet):\n%s", diff)
			}
		})
	}
}

// path returns the path of an object on every API server.
func (f *fleet) path(t *testing.T, o *unstructured.Unstructured) string {
	t.Helper()
	for _, k := range f.mirror.Types() {
		if k.GroupVersionKind != o.GroupVersionKind() {
			continue
		}
		path := "/api/v1"
		if k.GroupVersionKind.Group != "" {
			path = "/apis/" + k.GroupVersionKind.GroupVersion().String()
		}
		if k.Namespaced {
			path += "/namespaces/" + o.GetNamespace()
		}
		return path + "/" + k.Resource + "/" + o.GetName()
	}
	t.Fatalf("%s is not mirrored", o.GroupVersionKind())
	return ""
}

// passing matches ages, which differ between two requests.
var passing = regexp.MustCompile(`\b\d+[smhdy](\d+[smhd])?\b`)

// cells requests a table, which must have one row. It returns the cells, each after its column.
func cells(t *testing.T, client *http.Client, req *http.Request) []string {
	t.Helper()
	req.Header.Set("Accept", tableAccept)
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var table metav1.Table
	if err := json.Unmarshal(body, &table); err != nil || table.Kind != "Table" || len(table.Rows) != 1 {
		t.Fatalf("%s: not a table of one row: %v: %s", req.URL, err, body)
	}
	all := make([]string, 0, len(table.ColumnDefinitions))
	for i, d := range table.ColumnDefinitions {
		name := d.Name
		if d.Format == "name" {
			name += " (name)"
		}
		if d.Priority > 0 {
			name += " (wide)"
		}
		all = append(all, name+": "+passing.ReplaceAllString(fmt.Sprint(table.Rows[0].Cells[i]), "age"))
	}
	return all
}
