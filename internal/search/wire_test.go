package search

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	clientfeatures "k8s.io/client-go/features"
	clientfeaturestesting "k8s.io/client-go/features/testing"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/store"
)

// get requests an encoding and returns the answer without decoding it.
func (f *fleet) get(t testing.TB, path, accept string) (resp *http.Response, body []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", accept)
	if resp, err = http.DefaultClient.Do(req); err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err = io.ReadAll(resp.Body); err != nil {
		t.Fatal(err)
	}
	return resp, body
}

// asJSON decodes an answer with the decoders of clients.
func asJSON(t *testing.T, mediaType string, body []byte) map[string]any {
	t.Helper()
	var o map[string]any
	var err error
	switch mediaType {
	case mediaYAML:
		err = yaml.Unmarshal(body, &o)
	case mediaCBOR:
		var u unstructured.Unstructured
		_, _, err = cbor.NewSerializer(known, known).Decode(body, nil, &u)
		if err == nil {
			body, err = json.Marshal(u.Object)
		}
		if err == nil {
			err = json.Unmarshal(body, &o)
		}
	case mediaProtobuf:
		var typed runtime.Object
		if typed, _, err = protobufs.Decode(body, nil, nil); err == nil {
			body, err = json.Marshal(typed)
		}
		if err == nil {
			err = json.Unmarshal(body, &o)
		}
	default:
		err = json.Unmarshal(body, &o)
	}
	if err != nil {
		t.Fatalf("%s: %v: %q", mediaType, err, body)
	}
	return o
}

// TestEncodings: an answer is the same in each encoding: whole lists, pages and single objects,
// in each form.
func TestEncodings(t *testing.T) {
	kinds(t)
	f := newFleet(t, "elm", "oak")
	f.fill(t, func(string, *unstructured.Unstructured) bool { return true }, "elm", "oak")
	const table, partial = ";as=Table;v=v1;g=meta.k8s.io", ";as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
	for name, c := range map[string]struct {
		path, as string
		protobuf bool
	}{
		"List":             {"/api/v1/pods", "", true},
		"Page":             {"/apis/apps/v1/deployments?limit=1", "", true},
		"Empty":            {"/api/v1/pods?names=none", "", true},
		"Get":              {"/clusters/oak/api/v1/namespaces/shop/pods/running", "", true},
		"Events":           {"/api/v1/events", "", true},
		"Definitions":      {"/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "", true},
		"Custom":           {"/apis/example.org/v1/widgets", "", false},
		"Table":            {"/api/v1/pods", table, false},
		"EmptyTable":       {"/api/v1/pods?names=none", table, false},
		"OneTable":         {"/clusters/oak/api/v1/namespaces/shop/pods/running", table, false},
		"Metadata":         {"/apis/apps/v1/deployments", partial, true},
		"OneMetadata":      {"/clusters/oak/api/v1/namespaces/shop/pods/running", partial, true},
		"OlderMetadata":    {"/api/v1/nodes", strings.Replace(partial, "v=v1", "v=v1beta1", 1), true},
		"MetadataOfCustom": {"/apis/example.org/v1/widgets", partial, true},
		"ByParameter":      {"/apis/example.org/v1/widgets?onlyMetadata=true", "", true},
		"Collection":       {"/apis/clusterpedia.io/v1beta1/collectionresources/workloads", "", false},
		"Search":           {"/search?q=kind:Pod", "", false},
		"Counts":           {"/api/v1/pods?group=cluster", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			_, body := f.get(t, c.path, mediaJSON+c.as)
			want := asJSON(t, mediaJSON, body)
			for _, mediaType := range []string{mediaYAML, mediaCBOR, mediaProtobuf} {
				resp, body := f.get(t, c.path, mediaType+c.as)
				if mediaType == mediaProtobuf && !c.protobuf {
					if resp.StatusCode != http.StatusNotAcceptable || !strings.Contains(string(body), "application/json") {
						t.Errorf("%s: %d %s", mediaType, resp.StatusCode, body)
					}
					resp, body = f.get(t, c.path, mediaType+c.as+","+mediaJSON+c.as)
					mediaType = mediaJSON
				}
				if got := resp.Header.Get("Content-Type"); resp.StatusCode != http.StatusOK || got != mediaType {
					t.Fatalf("%s: %d %s: %s", mediaType, resp.StatusCode, got, body)
				}
				got, want := asJSON(t, mediaType, body), want
				if mediaType == mediaProtobuf {
					got, want = throughTypes(t, got), throughTypes(t, want)
				}
				if diff := cmp.Diff(ageless(want), ageless(got)); diff != "" {
					t.Errorf("%s (-JSON, +it):\n%s", mediaType, diff)
				}
			}
		})
	}
}

// TestTextsInYAML: a text of any characters is the same in YAML, and cannot be read as fields
// that the object does not have. Such a text in one object does not damage a list.
func TestTextsInYAML(t *testing.T) {
	f := newFleet(t, "oak")
	kind := schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
	f.serve(kind, "configmaps", true, "oak")
	texts := []string{
		"a\nb\u2028reason: Forged", "a\nb\u2029- c", "a\nb\u2028c", "\u2028", "a\nb\u0085c: d", "a\u0085b", "\u007f", "a\u0080\u009fb", "\ufffe", "\ufeffa", "a\u0000b",
		"\r", "a\r\nb", "\ta", " a\n", "\n", "\U0001f600", "---\n...\n", "no", "0x1f", "1:30", "~", "- a", "a: b #c", strings.Repeat("long ", 60), "a\n" + strings.Repeat("x", 200) + "\n\n",
	}
	long := strings.Repeat("k", 2000)
	for i, text := range texts {
		o := newObject(kind, "shop", fmt.Sprintf("c-%02d", i))
		o.Object["data"] = map[string]any{"text": text, long: "of a long key", text: "of the text"}
		o.Object["after"] = []any{text, map[string]any{"deep": text}}
		f.put(t, "oak", "configmaps", o)
	}
	paths := []string{"/api/v1/configmaps", "/api/v1/namespaces/shop/configmaps/c-00"}
	for i := range texts {
		paths = append(paths, fmt.Sprintf("/api/v1/configmaps?names=c-%02d", i), fmt.Sprintf("/api/v1/namespaces/shop/configmaps/c-%02d", i))
	}
	for _, path := range paths {
		_, body := f.get(t, path, mediaJSON)
		want := asJSON(t, mediaJSON, body)
		resp, body := f.get(t, path, mediaYAML)
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %d %s", path, resp.StatusCode, body)
		}
		if diff := cmp.Diff(want, asJSON(t, mediaYAML, body)); diff != "" {
			t.Errorf("%s (-JSON, +YAML):\n%s", path, diff)
		}
	}
}

// ageless returns an answer without the ages in tables, which change every second.
func ageless(o map[string]any) string {
	raw, err := yaml.Marshal(o)
	if err != nil {
		return err.Error()
	}
	return passing.ReplaceAllString(string(raw), "age")
}

// throughTypes returns the fields that the types of Kubernetes have in protobuf, where items of
// lists have no kind.
func throughTypes(t *testing.T, o map[string]any) map[string]any {
	t.Helper()
	raw, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	read, err := inProtobuf.typed(raw)
	if err != nil {
		t.Fatal(err)
	}
	if meta.IsListType(read) {
		if err := meta.EachListItem(read, func(item runtime.Object) error {
			item.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	var out map[string]any
	if raw, err = json.Marshal(read); err == nil {
		raw = bytes.Replace(raw, []byte(`"items":null`), []byte(`"items":[]`), 1)
		err = json.Unmarshal(raw, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestNegotiation: the answer has the best encoding that the client accepts, as API servers
// rank them.
func TestNegotiation(t *testing.T) {
	f := threeClusters(t)
	f.serve(gadgetV1, "gadgets", true, "oak")
	for name, c := range map[string]struct{ path, accept, want string }{
		"Order":                {"/api/v1/pods", "application/yaml,application/json", mediaYAML},
		"Quality":              {"/api/v1/pods", "application/yaml;q=0.5,application/json", mediaJSON},
		"Refused":              {"/api/v1/pods", "application/json;q=0,application/cbor", mediaCBOR},
		"WildcardsAreLast":     {"/api/v1/pods", "*/*,application/cbor", mediaCBOR},
		"Wildcard":             {"/api/v1/pods", "text/html,*/*;q=0.1", mediaJSON},
		"Protobuf":             {"/api/v1/pods", "application/vnd.kubernetes.protobuf,application/json", mediaProtobuf},
		"ProtobufOfCustom":     {"/apis/example.org/v1/gadgets", "application/vnd.kubernetes.protobuf,application/json", mediaJSON},
		"ProtobufTable":        {"/api/v1/pods", "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io,application/cbor", mediaCBOR},
		"Sequence":             {"/api/v1/pods?watch=1&timeoutSeconds=1", "application/cbor", mediaCBORSequence},
		"WatchInYAML":          {"/api/v1/pods?watch=1&timeoutSeconds=1", "application/yaml,application/json", mediaJSON},
		"WatchInProtobuf":      {"/api/v1/pods?watch=1&timeoutSeconds=1", "application/vnd.kubernetes.protobuf;stream=watch", mediaProtobuf + ";stream=watch"},
		"WatchCustom":          {"/apis/example.org/v1/gadgets?watch=1&timeoutSeconds=1", "application/vnd.kubernetes.protobuf,application/json", mediaJSON},
		"OnlyProtobufOfCustom": {"/apis/example.org/v1/gadgets", mediaProtobuf, "406"},
		"OnlyYAMLWatch":        {"/api/v1/pods?watch=1&timeoutSeconds=1", mediaYAML, "406"},
		"Unknown":              {"/api/v1/pods", "text/html", "406"},
	} {
		t.Run(name, func(t *testing.T) {
			resp, _ := f.get(t, c.path, c.accept)
			got := resp.Header.Get("Content-Type")
			if resp.StatusCode != http.StatusOK {
				got = fmt.Sprint(resp.StatusCode)
			}
			if got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// TestClientsInEachEncoding: Kubernetes' own clients list, get, watch and read errors in
// protobuf and CBOR.
func TestClientsInEachEncoding(t *testing.T) {
	f := threeClusters(t)
	f.serve(gadgetV1, "gadgets", true, "oak")
	f.put(t, "oak", "gadgets", newObject(gadgetV1, "shop", "g", "spec.size=big"))
	config := &rest.Config{Host: f.url}
	inProtobuf := rest.CopyConfig(config)
	inProtobuf.ContentType, inProtobuf.AcceptContentTypes = mediaProtobuf, mediaProtobuf
	clientfeaturestesting.SetFeatureDuringTest(t, clientfeatures.ClientsAllowCBOR, true)
	clientfeaturestesting.SetFeatureDuringTest(t, clientfeatures.ClientsPreferCBOR, true)
	inCBOR := rest.CopyConfig(config)
	inCBOR.AcceptContentTypes = mediaCBOR
	pods := schema.GroupVersionResource{Version: "v1", Resource: "pods"}

	typed, err := kubernetes.NewForConfig(inProtobuf)
	if err != nil {
		t.Fatal(err)
	}
	loose, err := dynamic.NewForConfig(inCBOR)
	if err != nil {
		t.Fatal(err)
	}
	bare, err := metadata.NewForConfig(inProtobuf)
	if err != nil {
		t.Fatal(err)
	}
	type client struct {
		list  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error)
		watch func(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error)
		get   func(ctx context.Context, namespace, name string) error
	}
	for name, c := range map[string]client{
		"Protobuf": {
			list: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return typed.CoreV1().Pods("").List(ctx, o)
			},
			watch: typed.CoreV1().Pods("").Watch,
			get: func(ctx context.Context, namespace, name string) error {
				_, err := typed.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
				return err
			},
		},
		"CBOR": {
			list: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return loose.Resource(pods).List(ctx, o)
			},
			watch: loose.Resource(pods).Watch,
			get: func(ctx context.Context, namespace, name string) error {
				_, err := loose.Resource(pods).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
				return err
			},
		},
		"Metadata": {
			list: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return bare.Resource(pods).List(ctx, o)
			},
			watch: bare.Resource(pods).Watch,
			get: func(ctx context.Context, namespace, name string) error {
				_, err := bare.Resource(pods).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
				return err
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			list, err := c.list(t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
			if err != nil {
				t.Fatal(err)
			}
			var have []string
			if err := meta.EachListItem(list, func(o runtime.Object) error {
				have = append(have, where(o))
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			if want := []string{"elm/shop/web", "oak/shop/web"}; !slices.Equal(have, want) {
				t.Errorf("%v, want %v", have, want)
			}
			if err := c.get(t.Context(), "shop", "db"); err != nil {
				t.Error(err)
			}
			if err := c.get(t.Context(), "shop", "none"); !apierrors.IsNotFound(err) {
				t.Error(err)
			}
			version := list.(metav1.ListInterface).GetResourceVersion()
			if _, err := c.watch(t.Context(), metav1.ListOptions{ResourceVersion: "1"}); !apierrors.IsResourceExpired(err) {
				t.Error(err)
			}
			w, err := c.watch(t.Context(), metav1.ListOptions{ResourceVersion: version, LabelSelector: "app=web"})
			if err != nil {
				t.Fatal(err)
			}
			defer w.Stop()
			f.put(t, "ash", "pods", newObject(podKind, "shop", "new", "label:app=web"))
			if e := <-w.ResultChan(); e.Type != apiwatch.Added || where(e.Object) != "ash/shop/new" {
				t.Errorf("%s %s", e.Type, where(e.Object))
			}
			f.remove(t, "ash", "pods", "shop", "new")
			if e := <-w.ResultChan(); e.Type != apiwatch.Deleted || where(e.Object) != "ash/shop/new" {
				t.Errorf("%s %s", e.Type, where(e.Object))
			}
			if err := f.store.DropCluster(t.Context(), "ash"); err != nil {
				t.Fatal(err)
			}
		})
	}
	custom, err := loose.Resource(gadgetV1.GroupVersion().WithResource("gadgets")).Namespace("shop").Get(t.Context(), "g", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if size, _, _ := unstructured.NestedString(custom.Object, "spec", "size"); size != "big" {
		t.Errorf("%v", custom)
	}
}

// where returns the place of an object as cluster/namespace/name.
func where(o runtime.Object) string {
	m, err := meta.Accessor(o)
	if err != nil {
		return fmt.Sprintf("%v: %+v", err, o)
	}
	return m.GetAnnotations()[fleetv1alpha1.ClusterAnnotation] + "/" + m.GetNamespace() + "/" + m.GetName()
}

// TestListsInProtobuf: for every list type of Kubernetes, a list that is written item by item
// can be decoded.
func TestListsInProtobuf(t *testing.T) {
	lists := 0
	for gvk := range known.AllKnownTypes() {
		kind, ok := strings.CutSuffix(gvk.Kind, "List")
		item := gvk.GroupVersion().WithKind(kind)
		if !ok || !known.Recognizes(item) || !(form{wire: inProtobuf}).can(item) || gvk.Version == runtime.APIVersionInternal {
			continue
		}
		if empty, err := known.New(gvk); err != nil {
			t.Fatal(err)
		} else if _, ok := empty.(metav1.ListInterface); !ok {
			continue // a type of discovery
		}
		lists++
		one, err := known.New(item)
		if err != nil {
			t.Fatal(err)
		}
		one.GetObjectKind().SetGroupVersionKind(item)
		if m, err := meta.Accessor(one); err == nil {
			m.SetName("a")
		}
		raw, err := json.Marshal(one)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		e := encoder{wire: inProtobuf, list: map[string]any{"apiVersion": gvk.GroupVersion().String(), "kind": gvk.Kind}, items: "items", item: func(store.Row) (any, error) {
			return json.RawMessage(raw), nil
		}}
		var left omissions
		encoded, err := e.encoded(t.Context(), make([]store.Row, 2), &left)
		if err != nil {
			t.Fatal(err)
		}
		if later, err := e.write(t.Context(), bufio.NewWriter(&out), encoded, nothingMore{}); err != nil || len(left.first) > 0 || len(later.first) > 0 {
			t.Fatalf("%s: %v %v", gvk, err, left)
		}
		list, read, err := protobufs.Decode(out.Bytes(), nil, nil)
		if err != nil || *read != gvk {
			t.Fatalf("%s: %v %v", gvk, read, err)
		}
		items, err := meta.ExtractList(list)
		if err != nil || len(items) != 2 || list.(metav1.ListInterface).GetResourceVersion() != "5" {
			t.Errorf("%s: %v %v", gvk, items, err)
		}
		for _, i := range items {
			one.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
			i.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
			if !reflect.DeepEqual(i, one) {
				t.Errorf("%s: %s", gvk, cmp.Diff(one, i))
			}
		}
	}
	if lists < 50 {
		t.Errorf("%d kinds of lists", lists)
	}
}

type nothingMore struct{}

func (nothingMore) next(context.Context) (store.Page, error) { return store.Page{}, nil }

func (nothingMore) tail() (metav1.ListMeta, map[string]any) {
	return metav1.ListMeta{ResourceVersion: "5"}, nil
}

// TestFieldsThatTheHubDoesNotKnow: fields of a newer Kubernetes are not lost if the client
// accepts another encoding, even if it prefers protobuf. A client that accepts only protobuf
// gets a warning.
func TestFieldsThatTheHubDoesNotKnow(t *testing.T) {
	const partial = ";as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
	const either = mediaProtobuf + "," + mediaJSON
	for name, c := range map[string]struct {
		path, accept, mediaType string
		newer, warned           bool
	}{
		"List":         {"/api/v1/pods", either, mediaJSON, true, false},
		"Get":          {"/clusters/oak/api/v1/namespaces/shop/pods/web", either, mediaJSON, true, false},
		"YAML":         {"/api/v1/pods?limit=5", mediaProtobuf + "," + mediaYAML, mediaYAML, true, false},
		"Known":        {"/api/v1/pods?names=db", either, mediaProtobuf, false, false},
		"Only":         {"/api/v1/pods", mediaProtobuf, mediaProtobuf, false, true},
		"OnlyGet":      {"/clusters/oak/api/v1/namespaces/shop/pods/web", mediaProtobuf, mediaProtobuf, false, true},
		"OnlyKnown":    {"/api/v1/pods?names=db", mediaProtobuf, mediaProtobuf, false, false},
		"Metadata":     {"/api/v1/pods?names=web", mediaProtobuf + partial + "," + mediaJSON + partial, mediaProtobuf, false, false},
		"InMetadata":   {"/api/v1/pods", mediaProtobuf + partial + "," + mediaJSON + partial, mediaJSON, true, false},
		"OnlyMetadata": {"/api/v1/pods", mediaProtobuf + partial, mediaProtobuf, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, "oak")
			f.serve(podKind, "pods", true, "oak")
			f.put(t, "oak", "pods", newObject(podKind, "shop", "db"), newObject(podKind, "shop", "web", "spec.newer=yes"), newObject(podKind, "shop", "zoo", "metadata.newer=yes"))
			resp, body := f.get(t, c.path, c.accept)
			if got := resp.Header.Get("Content-Type"); resp.StatusCode != http.StatusOK || got != c.mediaType {
				t.Fatalf("%d %s: %s", resp.StatusCode, got, body)
			}
			asJSON(t, c.mediaType, body)
			if got := bytes.Contains(body, []byte("newer")); got != c.newer {
				t.Errorf("%s", body)
			}
			if w := strings.Join(resp.Header.Values("Warning"), " "); strings.Contains(w, "pods are without fields") != c.warned {
				t.Errorf("%s", w)
			}
		})
	}
	f := newFleet(t, "oak")
	f.serve(podKind, "pods", true, "oak")
	config := &rest.Config{Host: f.url, ContentConfig: rest.ContentConfig{ContentType: mediaProtobuf, AcceptContentTypes: either}}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	version := f.version(t, "/api/v1/pods")
	w, err := client.CoreV1().Pods("").Watch(t.Context(), metav1.ListOptions{ResourceVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	f.put(t, "oak", "pods", newObject(podKind, "shop", "db"))
	e := <-w.ResultChan()
	if where(e.Object) != "oak/shop/db" {
		t.Fatalf("%v", e)
	}
	f.put(t, "oak", "pods", newObject(podKind, "shop", "later", "spec.newer=yes"))
	if e, more := <-w.ResultChan(); more {
		t.Fatalf("%v", e)
	}
	if w, err = client.CoreV1().Pods("").Watch(t.Context(), metav1.ListOptions{ResourceVersion: e.Object.(*corev1.Pod).ResourceVersion}); err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if e := <-w.ResultChan(); e.Type != apiwatch.Added || where(e.Object) != "oak/shop/later" {
		t.Fatalf("%v", e)
	}
	for accept, mediaType := range map[string]string{either: mediaJSON, mediaProtobuf: mediaProtobuf + ";stream=watch"} {
		resp, body := f.get(t, "/api/v1/pods?watch=1&timeoutSeconds=1", accept)
		if got := resp.Header.Get("Content-Type"); got != mediaType || bytes.Contains(body, []byte("newer")) != (mediaType == mediaJSON) || !bytes.Contains(body, []byte("later")) {
			t.Errorf("%s: %s %q", accept, got, body)
		}
		if w := strings.Join(resp.Header.Values("Warning"), " "); strings.Contains(w, "pods are without fields") != (mediaType != mediaJSON) {
			t.Errorf("%s: %s", accept, w)
		}
	}
}

// TestLongListInProtobuf: a list that is too long to be kept in memory needs pages, or another
// encoding.
func TestLongListInProtobuf(t *testing.T) {
	f := newFleet(t, "oak")
	f.serve(podKind, "pods", true, "oak")
	fill := strings.Repeat("x", 1<<20)
	for i := range mostInProtobuf>>20 + 2 {
		f.put(t, "oak", "pods", newObject(podKind, "shop", fmt.Sprintf("web-%03d", i), "spec.nodeName="+fill))
	}
	if resp, body := f.get(t, "/api/v1/pods", mediaProtobuf); resp.StatusCode != http.StatusNotAcceptable || !strings.Contains(string(body), "in pages") {
		t.Errorf("%d %.200s", resp.StatusCode, body)
	}
	resp, body := f.get(t, "/api/v1/pods", mediaProtobuf+","+mediaJSON)
	if items := asJSON(t, mediaJSON, body)["items"].([]any); resp.Header.Get("Content-Type") != mediaJSON || len(items) != mostInProtobuf>>20+2 {
		t.Errorf("%s of %d", resp.Header.Get("Content-Type"), len(items))
	}
	config := &rest.Config{Host: f.url, ContentConfig: rest.ContentConfig{ContentType: mediaProtobuf, AcceptContentTypes: mediaProtobuf}}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	var pods []corev1.Pod
	o := metav1.ListOptions{Limit: 10}
	for {
		list, err := client.CoreV1().Pods("").List(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		pods = append(pods, list.Items...)
		if o.Continue = list.Continue; o.Continue == "" {
			break
		}
	}
	if len(pods) != mostInProtobuf>>20+2 {
		t.Errorf("%d pods", len(pods))
	}
}
