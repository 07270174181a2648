package search

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"orrery.dev/orrery/internal/store"
)

var autoscalerKind = autoscalingv2.SchemeGroupVersion.WithKind("HorizontalPodAutoscaler")

// odd returns an object with an annotation that is not a string, which no API server can have.
func odd(kind schema.GroupVersionKind, name string) *unstructured.Unstructured {
	o := newObject(kind, "shop", name)
	o.Object["metadata"].(map[string]any)["annotations"] = map[string]any{"odd": int64(5)}
	return o
}

// TestLeftOut: an object that cannot be shown in the requested form is left out, and the answer
// names it. The list has all other objects.
func TestLeftOut(t *testing.T) {
	f := newFleet(t, "elm", "oak")
	f.serve(podKind, "pods", true, "elm", "oak")
	f.serve(autoscalerKind, "horizontalpodautoscalers", true, "oak")
	f.put(t, "elm", "pods", newObject(podKind, "shop", "web"))
	broken := newObject(podKind, "shop", "broken")
	broken.Object["status"] = "none"
	f.put(t, "oak", "pods", newObject(podKind, "shop", "web"), odd(podKind, "odd"), broken)
	many := newObject(autoscalerKind, "shop", "many")
	many.Object["spec"] = map[string]any{"maxReplicas": "many"}
	good := newObject(autoscalerKind, "shop", "good")
	good.Object["spec"] = map[string]any{"maxReplicas": int64(2), "scaleTargetRef": map[string]any{"kind": "Deployment", "name": "web"}}
	f.put(t, "oak", "horizontalpodautoscalers", many, good)
	const table, partial = ";as=Table;v=v1;g=meta.k8s.io", ";as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
	for name, c := range map[string]struct {
		path, accept string
		want, left   []string
	}{
		"JSON":      {"/api/v1/pods", mediaJSON, []string{"web", "broken", "web"}, []string{"odd"}},
		"YAML":      {"/api/v1/pods", mediaYAML, []string{"web", "broken", "web"}, []string{"odd"}},
		"CBOR":      {"/api/v1/pods", mediaCBOR, []string{"web", "broken", "web"}, []string{"odd"}},
		"Protobuf":  {"/api/v1/pods", mediaProtobuf, []string{"web", "web"}, []string{"broken", "odd"}},
		"Metadata":  {"/api/v1/pods", mediaProtobuf + partial, []string{"web", "broken", "web"}, []string{"odd"}},
		"Table":     {"/api/v1/pods", mediaJSON + table, []string{"web", "web"}, []string{"broken", "odd"}},
		"Page":      {"/api/v1/pods?limit=2", mediaJSON, []string{"web", "broken"}, nil},
		"Converted": {"/apis/autoscaling/v1/horizontalpodautoscalers", mediaJSON, []string{"good"}, []string{"many"}},
		"Same":      {"/apis/autoscaling/v2/horizontalpodautoscalers", mediaJSON, []string{"good", "many"}, nil},
		"Search":    {"/search?q=kind:Pod", mediaJSON, []string{"web", "broken", "web"}, []string{"odd"}},
		"Searched":  {"/search?q=kind:Pod", mediaJSON + table, []string{"web", "broken", "web"}, []string{"odd"}},
		"Workloads": {collectionPath + "any?resources=pods", mediaJSON, []string{"web", "broken", "web"}, []string{"odd"}},
	} {
		t.Run(name, func(t *testing.T) {
			resp, body := f.get(t, c.path, c.accept)
			if resp.StatusCode != http.StatusOK {
				t.Fatalf("%d %s", resp.StatusCode, body)
			}
			mediaType, _, _ := strings.Cut(c.accept, ";")
			if diff := cmp.Diff(c.want, namesIn(asJSON(t, mediaType, body))); diff != "" {
				t.Error(diff)
			}
			var left []string
			for _, w := range resp.Header.Values("Warning") {
				if _, one, ok := strings.Cut(w, "cannot be shown: "); ok {
					one, _, ok = strings.Cut(one, " of cluster oak: ")
					left = append(left, one[strings.LastIndexByte(one, '/')+1:])
					if !ok || !strings.Contains(one, " shop/") {
						t.Error(w)
					}
				}
			}
			if diff := cmp.Diff(c.left, left); diff != "" {
				t.Error(diff)
			}
		})
	}
	resp, body := f.ask(t, http.MethodGet, "/clusters/oak/api/v1/namespaces/shop/pods/odd", "")
	if resp.StatusCode != http.StatusInternalServerError || !strings.Contains(body["message"].(string), "pods shop/odd of cluster oak") {
		t.Errorf("%d %v", resp.StatusCode, body)
	}
}

// namesIn returns the names of the objects of a list or table.
func namesIn(list map[string]any) (out []string) {
	if rows, ok := list["rows"].([]any); ok {
		for _, row := range rows {
			o := unstructured.Unstructured{Object: row.(map[string]any)["object"].(map[string]any)}
			out = append(out, o.GetName())
		}
		return out
	}
	for _, item := range list["items"].([]any) {
		o := unstructured.Unstructured{Object: item.(map[string]any)}
		out = append(out, o.GetName())
	}
	return out
}

// TestLeftOutLater: objects that are left out after the beginning of a long list was sent are
// named in the trailer.
func TestLeftOutLater(t *testing.T) {
	f := newFleet(t, "oak")
	f.serve(podKind, "pods", true, "oak")
	var pods []*unstructured.Unstructured
	for i := range pageSize + 10 {
		pods = append(pods, newObject(podKind, "shop", fmt.Sprintf("web-%04d", i)))
	}
	f.put(t, "oak", "pods", append(pods, odd(podKind, "zoo"))...)
	for _, mediaType := range []string{mediaJSON, mediaYAML, mediaCBOR, mediaProtobuf} {
		resp, body := f.get(t, "/api/v1/pods", mediaType)
		if got := len(namesIn(asJSON(t, mediaType, body))); got != pageSize+10 {
			t.Errorf("%s: %d", mediaType, got)
		}
		if w := resp.Trailer.Values("Warning"); len(w) != 1 || !strings.Contains(w[0], "pods shop/zoo of cluster oak") {
			t.Errorf("%s: %v", mediaType, w)
		}
	}
}

// manyPages is the number of remaining pages, whose rows cannot be shown.
type manyPages int

func (p *manyPages) next(context.Context) (store.Page, error) {
	if *p == 0 {
		return store.Page{}, nil
	}
	*p--
	rows := make([]store.Row, pageSize)
	for i := range rows {
		rows[i] = store.Row{Cluster: "oak", Resource: "pods", Namespace: "shop", Name: fmt.Sprintf("web-%d-%d", *p, i), Body: []byte("none")}
	}
	return store.Page{Rows: rows}, nil
}

func (p *manyPages) tail() (metav1.ListMeta, map[string]any) { return metav1.ListMeta{}, nil }

// TestLeftOutWithoutEnd: for a long list of objects that cannot be shown, only those that are
// named are kept in memory. The others are counted.
func TestLeftOutWithoutEnd(t *testing.T) {
	pages := manyPages(4)
	first, err := pages.next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	e := encoder{list: map[string]any{}, items: "items", item: func(row store.Row) (any, error) { return object(row, shown{}) }}
	var left omissions
	items, err := e.encoded(t.Context(), first.Rows, &left)
	if err != nil || len(items) != 0 {
		t.Fatalf("%d items, %v", len(items), err)
	}
	var out bytes.Buffer
	later, err := e.write(t.Context(), bufio.NewWriter(&out), items, &pages)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		left omissions
		all  int
	}{{left, pageSize}, {later, 3 * pageSize}} {
		if len(c.left.first) != named || c.left.more != c.all-named {
			t.Errorf("%d are kept and %d counted of %d", len(c.left.first), c.left.more, c.all)
		}
		w := httptest.NewRecorder()
		tellAs(w, "Warning", append(c.left.first, c.left.first...), c.left.more)
		warnings := w.Header().Values("Warning")
		if want := fmt.Sprintf("%d more warnings are left out", c.all-named); len(warnings) != named+1 || !strings.Contains(warnings[named], want) {
			t.Errorf("%v, want %s", warnings, want)
		}
	}
}

// TestLeftOutOfWatches: a watch continues after an object that cannot be shown. Clients that
// had the object get DELETED.
func TestLeftOutOfWatches(t *testing.T) {
	f := newFleet(t, "oak")
	f.serve(podKind, "pods", true, "oak")
	f.put(t, "oak", "pods", newObject(podKind, "shop", "web"), odd(podKind, "bad"))
	w := f.watch(t, "/api/v1/pods?watch=1")
	w.expect("ADDED oak/shop/web")
	f.put(t, "oak", "pods", odd(podKind, "web"))
	f.put(t, "oak", "pods", odd(podKind, "new"))
	f.put(t, "oak", "pods", newObject(podKind, "shop", "web"))
	f.remove(t, "oak", "pods", "shop", "bad")
	f.put(t, "oak", "pods", newObject(podKind, "shop", "last"))
	w.expect("DELETED oak/shop/web", "MODIFIED oak/shop/web", "DELETED oak/shop/bad", "ADDED oak/shop/last")
	again := f.watch(t, "/api/v1/pods?watch=1&resourceVersion="+w.last)
	f.put(t, "oak", "pods", newObject(podKind, "shop", "later"))
	again.expect("ADDED oak/shop/later")
}

// TestVersionsThen: a list at a moment leaves out objects that had another version then than
// the requested one, and names them. Their metadata is shown.
func TestVersionsThen(t *testing.T) {
	f := newFleet(t, "elm", "oak")
	older := autoscalerKind
	older.Version = "v2beta2"
	f.serve(autoscalerKind, "horizontalpodautoscalers", true, "elm", "oak")
	f.put(t, "elm", "horizontalpodautoscalers", newObject(autoscalerKind, "shop", "web"))
	f.put(t, "oak", "horizontalpodautoscalers", newObject(older, "shop", "web"))
	then := now()
	f.put(t, "oak", "horizontalpodautoscalers", newObject(autoscalerKind, "shop", "web"))
	const path = "/apis/autoscaling/v2/horizontalpodautoscalers?"
	for _, mediaType := range []string{mediaJSON, mediaProtobuf} {
		resp, body := f.get(t, path+at(then), mediaType)
		if got := namesIn(asJSON(t, mediaType, body)); !slices.Equal(got, []string{"web"}) {
			t.Errorf("%s: %v", mediaType, got)
		}
		if w := strings.Join(resp.Header.Values("Warning"), " "); !strings.Contains(w, "horizontalpodautoscalers shop/web of cluster oak") || !strings.Contains(w, "v2beta2") {
			t.Errorf("%s: %v", mediaType, w)
		}
	}
	_, body := f.ask(t, http.MethodGet, path+"onlyMetadata=true&"+at(then), "")
	if got := found(body); !slices.Equal(got, []string{"elm/shop/web", "oak/shop/web"}) {
		t.Error(got)
	}
	resp, body := f.ask(t, http.MethodGet, "/clusters/oak/apis/autoscaling/v2/namespaces/shop/horizontalpodautoscalers/web?"+at(then), "")
	if resp.StatusCode != http.StatusNotAcceptable || !strings.Contains(body["message"].(string), "v2beta2") {
		t.Errorf("%d %v", resp.StatusCode, body)
	}
}
