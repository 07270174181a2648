package search

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
)

var (
	podKind       = schema.GroupVersionKind{Version: "v1", Kind: "Pod"}
	namespaceKind = schema.GroupVersionKind{Version: "v1", Kind: "Namespace"}
	secretKind    = schema.GroupVersionKind{Version: "v1", Kind: "Secret"}
	gadgetV1      = schema.GroupVersionKind{Group: "example.org", Version: "v1", Kind: "Gadget"}
	gadgetV2      = schema.GroupVersionKind{Group: "example.org", Version: "v2", Kind: "Gadget"}
)

func newObject(gvk schema.GroupVersionKind, namespace, name string, fields ...string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{}}
	o.SetGroupVersionKind(gvk)
	o.SetNamespace(namespace)
	o.SetName(name)
	o.SetResourceVersion("7")
	o.SetAnnotations(map[string]string{"note": "a <b>"})
	for _, f := range fields {
		path, value, _ := strings.Cut(f, "=")
		if label, ok := strings.CutPrefix(path, "label:"); ok {
			o.SetLabels(map[string]string{label: value})
			continue
		}
		_ = unstructured.SetNestedField(o.Object, value, strings.Split(path, ".")...)
	}
	return o
}

// threeClusters returns a fleet with pod shop/web in elm and oak, blog/press in elm and shop/db
// in oak. ash has no objects.
func threeClusters(t testing.TB) *fleet {
	t.Helper()
	f := newFleet(t, "ash", "elm", "oak")
	f.serve(podKind, "pods", true, "ash", "elm", "oak")
	f.serve(namespaceKind, "namespaces", false, "ash", "elm", "oak")
	f.put(t, "oak", "pods",
		newObject(podKind, "shop", "web", "label:app=web", "status.phase=Running"),
		newObject(podKind, "shop", "db", "label:app=db", "status.phase=Pending"))
	f.put(t, "elm", "pods",
		newObject(podKind, "shop", "web", "label:app=web", "status.phase=Running"),
		newObject(podKind, "blog", "press", "status.phase=Running"))
	f.put(t, "oak", "namespaces", newObject(namespaceKind, "", "shop"))
	return f
}

// found returns the objects of a list, as cluster/namespace/name.
func found(body map[string]any) []string {
	items, _ := body["items"].([]any)
	names := make([]string, 0, len(items))
	for _, i := range items {
		o := unstructured.Unstructured{Object: i.(map[string]any)}
		names = append(names, o.GetAnnotations()[fleetv1alpha1.ClusterAnnotation]+"/"+o.GetNamespace()+"/"+o.GetName())
	}
	return names
}

func TestList(t *testing.T) {
	f := threeClusters(t)
	for name, c := range map[string]struct {
		path string
		want []string
	}{
		"Everywhere":            {"/api/v1/pods", []string{"elm/blog/press", "elm/shop/web", "oak/shop/db", "oak/shop/web"}},
		"OneNamespace":          {"/api/v1/namespaces/blog/pods", []string{"elm/blog/press"}},
		"OneCluster":            {"/clusters/oak/api/v1/pods", []string{"oak/shop/db", "oak/shop/web"}},
		"EmptyCluster":          {"/clusters/ash/api/v1/pods", []string{}},
		"NamespaceOfOneCluster": {"/clusters/elm/api/v1/namespaces/shop/pods", []string{"elm/shop/web"}},
		"Clusters":              {"/api/v1/pods?clusters=ash,oak", []string{"oak/shop/db", "oak/shop/web"}},
		"Namespaces":            {"/api/v1/pods?namespaces=blog,none", []string{"elm/blog/press"}},
		"Names":                 {"/api/v1/pods?names=web,%20press", []string{"elm/blog/press", "elm/shop/web", "oak/shop/web"}},
		"Labels":                {"/api/v1/pods?labelSelector=app+in+(web,x)", []string{"elm/shop/web", "oak/shop/web"}},
		"Fields":                {"/api/v1/pods?fieldSelector=status.phase=Running,metadata.namespace!=blog", []string{"elm/shop/web", "oak/shop/web"}},
		"FieldNobodyHas":        {"/api/v1/pods?fieldSelector=spec.nodeName%3Dn7", []string{}},
		"FieldOfALabel":         {"/api/v1/pods?fieldSelector=metadata.labels.app%3Ddb", []string{"oak/shop/db"}},
		"FieldOfAQuantity":      {"/api/v1/pods?fieldSelector=spec.overhead.cpu%3D1", []string{}},
		"FieldOfEverything":     {"/api/v1/pods?fieldSelector=kind%3DPod&names=db", []string{"oak/shop/db"}},
		"NameField":             {"/api/v1/pods?fieldSelector=metadata.name=db", []string{"oak/shop/db"}},
		"Nothing":               {"/api/v1/pods?labelSelector=app=none&limit=500&resourceVersion=0&watch=false", []string{}},
		"ClusterScoped":         {"/api/v1/namespaces", []string{"oak//shop"}},
	} {
		t.Run(name, func(t *testing.T) {
			resp, body := f.ask(t, http.MethodGet, c.path, "")
			if resp.StatusCode != http.StatusOK {
				t.Fatalf("%d: %v", resp.StatusCode, body)
			}
			if diff := cmp.Diff(c.want, found(body)); diff != "" {
				t.Errorf("objects (-want, +got):\n%s", diff)
			}
			if warnings := resp.Header.Values("Warning"); len(warnings) > 0 {
				t.Errorf("warnings: %v", warnings)
			}
		})
	}
}

func TestObjectsAreWhole(t *testing.T) {
	f := threeClusters(t)
	_, body := f.ask(t, http.MethodGet, "/api/v1/pods?names=db", "")
	want := newObject(podKind, "shop", "db", "label:app=db", "status.phase=Pending")
	now := (&unstructured.UnstructuredList{Object: body}).GetResourceVersion()
	want.SetAnnotations(map[string]string{"note": "a <b>", fleetv1alpha1.ClusterAnnotation: "oak", fleetv1alpha1.ResourceVersionAnnotation: want.GetResourceVersion()})
	items, _ := body["items"].([]any)
	changed := (&unstructured.Unstructured{Object: items[0].(map[string]any)}).GetResourceVersion()
	if changed >= now || len(changed) != len(now) {
		t.Errorf("the object changed at %s, and it is %s", changed, now)
	}
	want.SetResourceVersion(changed)
	if diff := cmp.Diff(map[string]any{
		"kind": "PodList", "apiVersion": "v1", "metadata": map[string]any{"resourceVersion": now}, "items": []any{want.Object},
	}, body); diff != "" {
		t.Errorf("list (-want, +got):\n%s", diff)
	}
	_, body = f.ask(t, http.MethodGet, "/api/v1/namespaces/shop/pods/db", "")
	if diff := cmp.Diff(want.Object, body); diff != "" {
		t.Errorf("object (-want, +got):\n%s", diff)
	}
}

// TestPages: for every size of a page, all pages together are the list.
func TestPages(t *testing.T) {
	f := newFleet(t, "elm", "oak")
	f.serve(podKind, "pods", true, "elm", "oak")
	want := make([]string, 0, 2*(pageSize+10))
	for _, cluster := range []string{"elm", "oak"} {
		pods := make([]*unstructured.Unstructured, 0, pageSize+10)
		for i := range pageSize + 10 {
			pods = append(pods, newObject(podKind, "shop", fmt.Sprintf("p%04d", i)))
			want = append(want, cluster+"/shop/"+pods[i].GetName())
		}
		f.put(t, cluster, "pods", pods...)
	}
	for _, limit := range []int{0, 7, pageSize, pageSize + 3, 2*pageSize + 19, 2*pageSize + 20, 5000} {
		t.Run(fmt.Sprintf("Limit%d", limit), func(t *testing.T) {
			var got []string
			for next := ""; ; {
				_, body := f.ask(t, http.MethodGet, fmt.Sprintf("/api/v1/pods?limit=%d&continue=%s", limit, next), "")
				page := found(body)
				if limit > 0 && len(page) > limit {
					t.Fatalf("a page has %d objects", len(page))
				}
				got = append(got, page...)
				if next, _, _ = unstructured.NestedString(body, "metadata", "continue"); next == "" {
					break
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("objects (-want, +got):\n%s", diff)
			}
		})
	}
}

func TestGet(t *testing.T) {
	f := threeClusters(t)
	for name, c := range map[string]struct {
		path   string
		code   int
		reason string
		says   []string
	}{
		"InOneCluster":       {"/api/v1/namespaces/blog/pods/press", 200, "", []string{`"press"`}},
		"ClusterNamed":       {"/clusters/oak/api/v1/namespaces/shop/pods/web", 200, "", []string{`"oak"`}},
		"ClusterByParameter": {"/api/v1/namespaces/shop/pods/web?clusters=elm", 200, "", []string{`"elm"`}},
		"InSeveral":          {"/api/v1/namespaces/shop/pods/web", 409, "Conflict", []string{"elm, oak", "kubectl --context elm get pods web"}},
		"InNone":             {"/api/v1/namespaces/shop/pods/none", 404, "NotFound", []string{`pods "none" not found`}},
		"NotInThatCluster":   {"/clusters/oak/api/v1/namespaces/blog/pods/press", 404, "NotFound", []string{`pods "press" not found`}},
		"ANamespace":         {"/api/v1/namespaces/shop", 200, "", []string{`"shop"`}},
		"WithoutNamespace":   {"/api/v1/pods/web", 404, "NotFound", nil},
	} {
		t.Run(name, func(t *testing.T) {
			resp, body := f.ask(t, http.MethodGet, c.path, "")
			text, _ := json.Marshal(body)
			reason, _ := body["reason"].(string)
			if resp.StatusCode != c.code || reason != c.reason {
				t.Errorf("%d %s, want %d %s", resp.StatusCode, reason, c.code, c.reason)
			}
			for _, s := range c.says {
				if !strings.Contains(strings.ReplaceAll(string(text), `\"`, `"`), s) {
					t.Errorf("does not say %q: %s", s, text)
				}
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	f := threeClusters(t)
	for name, c := range map[string]struct {
		method, path, accept string
		code                 int
		reason               metav1.StatusReason
		says                 string
	}{
		"Create":              {"POST", "/api/v1/namespaces/shop/pods", "", 405, "MethodNotAllowed", "kubectl --context CLUSTER"},
		"DeleteInOneCluster":  {"DELETE", "/clusters/oak/api/v1/namespaces/shop/pods/web", "", 405, "MethodNotAllowed", "kubectl --context oak"},
		"DeleteADocument":     {"DELETE", "/apis", "", 405, "MethodNotAllowed", "read-only"},
		"Logs":                {"GET", "/api/v1/namespaces/shop/pods/web/log", "", 405, "MethodNotAllowed", "subresources"},
		"NamespaceStatus":     {"GET", "/api/v1/namespaces/shop/status", "", 405, "MethodNotAllowed", "subresources"},
		"UnknownParameter":    {"GET", "/api/v1/pods?sortBy=name", "", 400, "BadRequest", "labelSelector"},
		"ParameterTwice":      {"GET", "/api/v1/pods?limit=1&limit=2", "", 400, "BadRequest", "limit"},
		"UnknownCluster":      {"GET", "/api/v1/pods?clusters=oak,oka", "", 400, "BadRequest", `"oka"`},
		"EmptyName":           {"GET", "/api/v1/pods?names=a,,b", "", 400, "BadRequest", "names"},
		"ClusterTwice":        {"GET", "/clusters/oak/api/v1/pods?clusters=elm", "", 400, "BadRequest", "clusters"},
		"NamespaceTwice":      {"GET", "/api/v1/namespaces/shop/pods?namespaces=blog", "", 400, "BadRequest", "namespaces"},
		"Labels":              {"GET", "/api/v1/pods?labelSelector=a%20b", "", 400, "BadRequest", "labelSelector"},
		"Fields":              {"GET", "/api/v1/pods?fieldSelector=status.phase%3E3", "", 400, "BadRequest", "fieldSelector"},
		"ListField":           {"GET", "/api/v1/pods?fieldSelector=spec.containers[x].name=a", "", 400, "BadRequest", "brackets"},
		"Limit":               {"GET", "/api/v1/pods?limit=x", "", 400, "BadRequest", "limit"},
		"Continue":            {"GET", "/api/v1/pods?continue=x", "", 400, "BadRequest", "continue"},
		"ResourceVersion":     {"GET", "/api/v1/pods?resourceVersion=12", "", 410, "Expired", "list again"},
		"IncludeObject":       {"GET", "/api/v1/pods?includeObject=All", "", 400, "BadRequest", "Metadata"},
		"NotAcceptable":       {"GET", "/api/v1/pods", "text/html", 406, "NotAcceptable", "application/json"},
		"UnknownType":         {"GET", "/apis/apps/v1/deployments", "", 404, "NotFound", "deployments of apps/v1"},
		"UnknownVersion":      {"GET", "/api/v2/pods", "", 404, "NotFound", "pods of v2"},
		"UnknownGroup":        {"GET", "/apis/none", "", 404, "NotFound", "none"},
		"UnknownGroupVersion": {"GET", "/apis/none/v1", "", 404, "NotFound", "none/v1"},
		"UnknownClusterPath":  {"GET", "/clusters/oka/api/v1/pods", "", 404, "NotFound", `"oka"`},
		"UnknownPath":         {"GET", "/openapi/v3", "", 404, "NotFound", "openapi"},
		"EmptySegment":        {"GET", "/api//v1", "", 404, "NotFound", ""},
		"ManyLabels":          {"GET", "/api/v1/pods?labelSelector=a!%3Db" + strings.Repeat(",a!%3Db", 9000), "", 400, "BadRequest", "at most 100"},
		"ManyFields":          {"GET", "/api/v1/pods?fieldSelector=status.phase!%3Db" + strings.Repeat(",status.phase!%3Db", 1000), "", 400, "BadRequest", "at most 100"},
		"NoSuchField":         {"GET", "/api/v1/pods?fieldSelector=spec.foo%3Dx", "", 400, "BadRequest", `there is no field "foo"`},
		"NoSuchMetadata":      {"GET", "/api/v1/pods?fieldSelector=metadata.foo%3Dx", "", 400, "BadRequest", `there is no field "foo"`},
		"FieldBelowAValue":    {"GET", "/api/v1/pods?fieldSelector=status.phase.a%3Dx", "", 400, "BadRequest", `there is no field "a"`},
		"FieldBelowATime":     {"GET", "/api/v1/pods?fieldSelector=metadata.creationTimestamp.a%3Dx", "", 400, "BadRequest", `there is no field "a"`},
		"FieldIsAnObject":     {"GET", "/api/v1/pods?fieldSelector=metadata.labels%3Dx", "", 400, "BadRequest", "not one value"},
		"FieldInAList":        {"GET", "/api/v1/pods?fieldSelector=spec.containers.name%3Dx", "", 400, "BadRequest", "of a list"},
		"NodesInANamespace":   {"GET", "/api/v1/namespaces/shop/namespaces", "", 404, "NotFound", "namespace"},
	} {
		t.Run(name, func(t *testing.T) {
			resp, body := f.ask(t, c.method, c.path, c.accept)
			message, _ := body["message"].(string)
			if body["kind"] != "Status" || resp.StatusCode != c.code || body["reason"] != string(c.reason) || !strings.Contains(message, c.says) {
				t.Errorf("%d %v, want %d %s %q", resp.StatusCode, body, c.code, c.reason, c.says)
			}
		})
	}
}

// TestAuthorization: the hub decides about all rights. It is asked exactly for what the caller
// wants to see: before the parameters are parsed, and again for what the parameters select.
func TestAuthorization(t *testing.T) {
	f := threeClusters(t)
	f.denied = func(what authorizationv1.ResourceAttributes) bool { return what.Namespace != "blog" }
	pods := func(verb, namespace, name string) authorizationv1.ResourceAttributes {
		return authorizationv1.ResourceAttributes{Verb: verb, Version: "v1", Resource: "pods", Namespace: namespace, Name: name}
	}
	for name, c := range map[string]struct {
		path  string
		code  int
		asked []authorizationv1.ResourceAttributes
	}{
		"Everywhere": {"/api/v1/pods", 403, []authorizationv1.ResourceAttributes{pods("list", "", "")}},
		"OneCluster": {"/clusters/oak/api/v1/pods", 403, []authorizationv1.ResourceAttributes{pods("list", "", "")}},
		"Namespace": {
			"/api/v1/namespaces/blog/pods", 200,
			[]authorizationv1.ResourceAttributes{pods("list", "", ""), pods("list", "blog", ""), pods("list", "", ""), pods("list", "blog", "")},
		},
		"OtherNamespace": {"/api/v1/namespaces/shop/pods", 403, []authorizationv1.ResourceAttributes{pods("list", "", ""), pods("list", "shop", "")}},
		"NamespaceParameter": {
			"/api/v1/pods?namespaces=blog", 200,
			[]authorizationv1.ResourceAttributes{pods("list", "", ""), pods("list", "blog", ""), pods("list", "", ""), pods("list", "blog", "")},
		},
		"NamespacesOneDenied": {
			"/api/v1/pods?namespaces=blog,shop", 403,
			[]authorizationv1.ResourceAttributes{pods("list", "", ""), pods("list", "blog", ""), pods("list", "", ""), pods("list", "blog", ""), pods("list", "shop", "")},
		},
		"Field": {"/api/v1/pods?fieldSelector=metadata.namespace=blog", 403, []authorizationv1.ResourceAttributes{pods("list", "", "")}},
		"Get": {
			"/api/v1/namespaces/blog/pods/press", 200,
			[]authorizationv1.ResourceAttributes{pods("get", "", "press"), pods("get", "blog", "press"), pods("get", "", "press"), pods("get", "blog", "press")},
		},
		"Namespace itself": {"/api/v1/namespaces/shop", 403, []authorizationv1.ResourceAttributes{
			{Verb: "get", Version: "v1", Resource: "namespaces", Name: "shop"},
			{Verb: "get", Version: "v1", Resource: "namespaces", Namespace: "shop", Name: "shop"},
		}},
	} {
		t.Run(strings.ReplaceAll(name, " ", ""), func(t *testing.T) {
			f.asked = nil
			resp, body := f.ask(t, http.MethodGet, c.path, "")
			if resp.StatusCode != c.code {
				t.Errorf("%d %v, want %d", resp.StatusCode, body, c.code)
			}
			if diff := cmp.Diff(c.asked, f.asked); diff != "" {
				t.Errorf("asked the hub (-want, +got):\n%s", diff)
			}
		})
	}
}

// TestUnread: a list that includes a cluster about which nothing is known has a warning. A list
// of this cluster alone fails; it is not empty.
func TestUnread(t *testing.T) {
	f := newFleet(t, "elm", "oak")
	f.serve(podKind, "pods", true, "elm")
	f.put(t, "elm", "pods", newObject(podKind, "shop", "web"))
	warned := func(resp reply) bool {
		return strings.Contains(strings.Join(resp.Header.Values("Warning"), " "), "nothing is known yet of oak")
	}
	for _, path := range []string{"/api/v1/pods", "/api/v1/pods?clusters=oak,elm", "/api/v1/namespaces/shop/pods"} {
		if resp, body := f.ask(t, http.MethodGet, path, ""); resp.StatusCode != http.StatusOK || !warned(resp) || len(found(body)) != 1 {
			t.Errorf("%s: %d %v %v", path, resp.StatusCode, resp.Header, body)
		}
	}
	if resp, _ := f.ask(t, http.MethodGet, "/api/v1/pods?clusters=elm", ""); warned(resp) {
		t.Error("a cluster that was not asked for is warned of")
	}
	for _, path := range []string{"/api/v1/pods?clusters=oak", "/clusters/oak/api/v1/pods", "/clusters/oak/api/v1/namespaces/shop/pods/web"} {
		if resp, body := f.ask(t, http.MethodGet, path, ""); resp.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("%s: %d %v", path, resp.StatusCode, body)
		}
	}
	f.denied, f.closed = func(what authorizationv1.ResourceAttributes) bool { return what.Namespace == "" }, map[string][]string{"shop": {"oak"}}
	if resp, body := f.ask(t, http.MethodGet, "/api/v1/namespaces/shop/pods", ""); resp.StatusCode != http.StatusOK || warned(resp) {
		t.Errorf("who may not use the cluster is told of it: %d %v %v", resp.StatusCode, resp.Header, body)
	}
	f.closed = map[string][]string{"shop": {"elm"}}
	if resp, body := f.ask(t, http.MethodGet, "/api/v1/namespaces/shop/pods", ""); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("nothing is known of the only cluster that the caller may use: %d %v", resp.StatusCode, body)
	}
}

// TestStarting: until all clusters and types are known, every request fails with status 503. No
// answer says that something does not exist.
func TestStarting(t *testing.T) {
	f := threeClusters(t)
	f.starting = true
	for _, path := range []string{
		"", "/apis", "/api/v1", "/api/v1/pods", "/api/v1/pods?watch=true", "/api/v1/pods?clusters=none", "/clusters/none/api/v1/pods",
		"/clusters/oak/api/v1/namespaces/shop/pods/web", "/apis/none/v1/nothing", "/search?q=cluster:none", "/api/v1/pods?history=true",
	} {
		resp, body := f.ask(t, http.MethodGet, path, "")
		if resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(fmt.Sprint(body["message"]), "ask again in a moment") {
			t.Errorf("%s: %d %v", path, resp.StatusCode, body)
		}
	}
}

// TestFence: a right in a namespace shows the namespace in the clusters that it may use. It
// does not show that the other clusters exist. A right in all namespaces shows all clusters.
func TestFence(t *testing.T) {
	f := threeClusters(t)
	f.put(t, "elm", "namespaces", newObject(namespaceKind, "", "shop"))
	f.put(t, "oak", "pods", newObject(podKind, "blog", "archive"))
	f.closed = map[string][]string{"shop": {"elm", "ash"}, "blog": {"oak"}}
	f.mirror.behind["ash"] = true
	f.mirror.stale["elm"] = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	tenant := func(what authorizationv1.ResourceAttributes) bool { return what.Namespace == "" }
	for name, c := range map[string]struct {
		denied   func(authorizationv1.ResourceAttributes) bool
		path     string
		code     int
		want     []string
		warnings int
	}{
		"Tenant":              {tenant, "/api/v1/namespaces/shop/pods", 200, []string{"oak/shop/db", "oak/shop/web"}, 0},
		"Administrator":       {nil, "/api/v1/namespaces/shop/pods", 200, []string{"elm/shop/web", "oak/shop/db", "oak/shop/web"}, 2},
		"AdministratorOfAll":  {nil, "/api/v1/pods", 200, []string{"elm/blog/press", "elm/shop/web", "oak/blog/archive", "oak/shop/db", "oak/shop/web"}, 2},
		"TwoNamespaces":       {tenant, "/api/v1/pods?namespaces=shop,blog", 200, []string{"elm/blog/press", "oak/shop/db", "oak/shop/web"}, 2},
		"OneOpenCluster":      {tenant, "/clusters/oak/api/v1/namespaces/shop/pods", 200, []string{"oak/shop/db", "oak/shop/web"}, 0},
		"OneClosedCluster":    {tenant, "/clusters/elm/api/v1/namespaces/shop/pods", 404, nil, 0},
		"ClosedClusterByName": {tenant, "/api/v1/namespaces/shop/pods?clusters=oak,elm", 400, nil, 0},
		"ClosedClusterObject": {tenant, "/clusters/elm/api/v1/namespaces/shop/pods/web", 404, nil, 0},
		// If elm were visible, the name would be ambiguous (409).
		"OneOfTwoIsClosed":   {tenant, "/api/v1/namespaces/shop/pods/web", 200, nil, 0},
		"TheNamespace":       {tenant, "/api/v1/namespaces/shop", 200, nil, 0},
		"TheClosedNamespace": {tenant, "/clusters/elm/api/v1/namespaces/shop", 404, nil, 0},
		"BothNamespaces":     {nil, "/api/v1/namespaces/shop", 409, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			f.denied = c.denied
			resp, body := f.ask(t, http.MethodGet, c.path, "")
			if resp.StatusCode != c.code {
				t.Errorf("%d %v, want %d", resp.StatusCode, body, c.code)
			}
			if diff := cmp.Diff(c.want, found(body), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("objects (-want, +got):\n%s", diff)
			}
			if warnings := resp.Header.Values("Warning"); c.code == 200 && len(warnings) != c.warnings {
				t.Errorf("warnings: %v", warnings)
			}
		})
	}
	// The answer about a closed cluster is that about a cluster that does not exist.
	f.denied = tenant
	_, closed := f.ask(t, http.MethodGet, "/clusters/elm/api/v1/namespaces/shop/pods", "")
	_, unknown := f.ask(t, http.MethodGet, "/clusters/yew/api/v1/namespaces/shop/pods", "")
	if want := strings.ReplaceAll(fmt.Sprint(unknown), "yew", "elm"); fmt.Sprint(closed) != want {
		t.Errorf("of a closed cluster it says %v, of one that is not there %s", closed, want)
	}
}

// TestSomeNamespaces: a caller that may see some namespaces and asks for all gets those, in the
// clusters that each of them may use, and a warning about it.
func TestSomeNamespaces(t *testing.T) {
	f := threeClusters(t)
	f.put(t, "elm", "namespaces", newObject(namespaceKind, "", "shop"))
	f.put(t, "oak", "pods", newObject(podKind, "blog", "archive"))
	f.closed = map[string][]string{"shop": {"elm", "ash"}, "blog": {"oak"}}
	f.denied = func(what authorizationv1.ResourceAttributes) bool { return what.Namespace == "" }
	for name, c := range map[string]struct {
		some []string
		path string
		code int
		want []string
	}{
		"One":              {[]string{"shop"}, "/api/v1/pods", 200, []string{"oak/shop/db", "oak/shop/web"}},
		"Two":              {[]string{"shop", "blog"}, "/api/v1/pods", 200, []string{"elm/blog/press", "oak/shop/db", "oak/shop/web"}},
		"Page":             {[]string{"shop", "blog"}, "/api/v1/pods?limit=2", 200, []string{"elm/blog/press", "oak/shop/db"}},
		"OneThatIsNowhere": {[]string{"yard"}, "/api/v1/pods", 200, nil},
		"None":             {nil, "/api/v1/pods", 403, nil},
		"Cluster":          {[]string{"shop", "blog"}, "/clusters/oak/api/v1/pods", 200, []string{"oak/shop/db", "oak/shop/web"}},
		"ClosedCluster":    {[]string{"shop"}, "/clusters/elm/api/v1/pods", 404, nil},
		"ClosedByName":     {[]string{"shop"}, "/api/v1/pods?clusters=elm", 400, nil},
		"Namespaces":       {[]string{"shop"}, "/api/v1/namespaces", 403, nil},
		"OneByName":        {[]string{"shop"}, "/api/v1/nodes/n-1", 403, nil},
		"InNoNamespace":    {[]string{"shop"}, "/api/v1/nodes", 403, nil},
	} {
		t.Run(name, func(t *testing.T) {
			f.some = c.some
			f.serve(schema.GroupVersionKind{Version: "v1", Kind: "Node"}, "nodes", false, "oak", "elm")
			resp, body := f.ask(t, http.MethodGet, c.path, "")
			if resp.StatusCode != c.code {
				t.Errorf("%d %v, want %d", resp.StatusCode, body, c.code)
			}
			if diff := cmp.Diff(c.want, found(body), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("objects (-want, +got):\n%s", diff)
			}
			hasWarning := strings.Contains(strings.Join(resp.Header.Values("Warning"), " "), "only pods in the namespaces")
			if hasWarning != (c.code == http.StatusOK) {
				t.Errorf("warnings: %v", resp.Header.Values("Warning"))
			}
		})
	}
}

// TestClustersAreKnownToThoseWhoMaySeeThem: a caller that may see nothing learns nothing about
// clusters, not even whether a cluster with a given name exists.
func TestClustersAreKnownToThoseWhoMaySeeThem(t *testing.T) {
	nothing := func(authorizationv1.ResourceAttributes) bool { return true }
	clusterOf := func(name string) func(authorizationv1.ResourceAttributes) bool {
		return func(what authorizationv1.ResourceAttributes) bool {
			return what.Verb != "get" || what.Group != "cluster.orrery.dev" || what.Resource != "clusters" || what.Name != name
		}
	}
	podsOnly := func(what authorizationv1.ResourceAttributes) bool {
		return what.Verb != "list" || what.Resource != "pods"
	}
	for name, c := range map[string]struct {
		denied       func(authorizationv1.ResourceAttributes) bool
		path         string // CLUSTER stands for the name
		known, other int    // status for a cluster of the fleet, and for an unknown one
	}{
		"Parameter":                 {nothing, "/api/v1/pods?clusters=CLUSTER", 403, 403},
		"OneObjectByParameter":      {nothing, "/api/v1/namespaces/shop/pods/web?clusters=CLUSTER", 403, 403},
		"Path":                      {nothing, "/clusters/CLUSTER/api/v1/pods", 403, 403},
		"TypeThatIsNowhere":         {nothing, "/clusters/CLUSTER/api/v1/nothings", 403, 403},
		"Root":                      {nothing, "/clusters/CLUSTER", 403, 403},
		"Version":                   {nothing, "/clusters/CLUSTER/version", 403, 403},
		"Discovery":                 {nothing, "/clusters/CLUSTER/apis", 403, 403},
		"DiscoveryOfAGroup":         {nothing, "/clusters/CLUSTER/api/v1", 403, 403},
		"DiscoveryByTheCluster":     {clusterOf("oak"), "/clusters/CLUSTER/api/v1", 200, 403},
		"DiscoveryOfAnotherCluster": {clusterOf("elm"), "/clusters/CLUSTER/api/v1", 403, 403},
		"ObjectsByTheCluster":       {clusterOf("oak"), "/clusters/CLUSTER/api/v1/pods", 403, 403},
		"DiscoveryByAType":          {podsOnly, "/clusters/CLUSTER/api/v1", 200, 404},
		"ParameterByAType":          {podsOnly, "/api/v1/pods?clusters=CLUSTER", 200, 400},
		"WholeFleet":                {nothing, "/apis", 200, 200},
	} {
		t.Run(name, func(t *testing.T) {
			f := threeClusters(t)
			f.denied = c.denied
			for cluster, want := range map[string]int{"oak": c.known, "oka": c.other} {
				resp, body := f.ask(t, http.MethodGet, strings.ReplaceAll(c.path, "CLUSTER", cluster), "")
				if resp.StatusCode != want {
					t.Errorf("%s: %d %v, want %d", cluster, resp.StatusCode, body, want)
				}
			}
		})
	}
}

// TestLastSeen: tables and objects say since when rows are stale. If no row is stale, the table
// has no column for it.
func TestLastSeen(t *testing.T) {
	f := threeClusters(t)
	table := func() (last string, cells []any) {
		_, body := f.ask(t, http.MethodGet, "/api/v1/namespaces/shop/pods?names=web", tableAccept)
		heads, _, _ := unstructured.NestedSlice(body, "columnDefinitions")
		rows, _, _ := unstructured.NestedSlice(body, "rows")
		last, _, _ = unstructured.NestedString(heads[len(heads)-1].(map[string]any), "name")
		for _, row := range rows {
			own := row.(map[string]any)["cells"].([]any)
			cells = append(cells, own[len(own)-1])
		}
		return last, cells
	}
	if last, _ := table(); last == "Last Seen" {
		t.Error("nothing is stale, and there is a column for it")
	}
	seen := time.Now().Add(-3 * time.Hour)
	f.mirror.stale["elm"] = seen
	last, cells := table()
	if diff := cmp.Diff([]any{"3h", "now"}, cells); diff != "" || last != "Last Seen" {
		t.Errorf("column %s (-want, +got):\n%s", last, diff)
	}
	_, body := f.ask(t, http.MethodGet, "/api/v1/namespaces/shop/pods?names=web", "")
	items, _, _ := unstructured.NestedSlice(body, "items")
	got := map[string]string{}
	for _, item := range items {
		o := unstructured.Unstructured{Object: item.(map[string]any)}
		got[o.GetAnnotations()[fleetv1alpha1.ClusterAnnotation]] = o.GetAnnotations()[fleetv1alpha1.LastSeenAnnotation]
	}
	if diff := cmp.Diff(map[string]string{"elm": seen.UTC().Format(time.RFC3339), "oak": ""}, got); diff != "" {
		t.Errorf("annotations (-want, +got):\n%s", diff)
	}
}

func TestWarnings(t *testing.T) {
	f := threeClusters(t)
	f.mirror.stale["oak"] = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	f.mirror.behind["ash"] = true
	f.mirror.stale["fir"], f.mirror.lost["fir"] = f.mirror.stale["oak"], true
	f.serve(schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, "configmaps", true, "fir")
	f.serve(schema.GroupVersionKind{Group: "metrics.example.org", Version: "v1", Kind: "Load"}, "loads", true, "elm")
	f.serve(schema.GroupVersionKind{Group: "metrics.example.org", Version: "v1", Kind: "Sum"}, "sums", true, "elm")
	f.mirror.problems = map[string]string{
		"elm/sums.metrics.example.org": "conversion webhook failed", "elm/loads.metrics.example.org": "the watch is forbidden",
	}
	f.mirror.silent["elm/loads.metrics.example.org"] = f.mirror.stale["oak"]
	f.mirror.parts["elm/secrets"] = true
	f.serve(gadgetV1, "gadgets", true, "oak")
	f.serve(gadgetV1, "gadgets", false, "elm")
	f.serve(gadgetV2, "gadgets", true, "ash")
	f.serve(secretKind, "secrets", true, "elm")
	f.put(t, "oak", "gadgets", newObject(gadgetV1, "shop", "a"))
	f.put(t, "elm", "gadgets", newObject(gadgetV1, "", "b"))
	f.put(t, "ash", "gadgets", newObject(gadgetV2, "shop", "c"))
	const oak = `299 - "cluster oak is unreachable since 2026-01-02T03:04:05Z: its objects are the last known"`
	for name, c := range map[string]struct {
		path     string
		objects  []string
		warnings []string
	}{
		"StaleAndBehind": {"/api/v1/pods?names=db", []string{"oak/shop/db"}, []string{
			`299 - "cluster ash: pods are still being read, some may be missing"`, oak,
		}},
		"NotAsked": {"/clusters/elm/api/v1/namespaces/blog/pods", []string{"elm/blog/press"}, nil},
		"Versions": {"/apis/example.org/v2/gadgets", []string{"ash/shop/c"}, []string{
			`299 - "cluster ash: gadgets.example.org are still being read, some may be missing"`,
			`299 - "gadgets.example.org of elm, oak are left out: they are in version v1, ask for gadgets.v1.example.org"`,
		}},
		"VersionsAndScopes": {"/apis/example.org/v1/gadgets", []string{"elm//b", "oak/shop/a"}, []string{
			oak,
			`299 - "gadgets.example.org of ash are left out: they are in version v2, ask for gadgets.v2.example.org"`,
			`299 - "gadgets.example.org are namespaced in oak but not in elm"`,
		}},
		"StaleAndLost": {"/api/v1/configmaps", []string{}, []string{
			`299 - "cluster fir is unreachable since 2026-01-02T03:04:05Z, and its last known objects were lost: some or all are missing until it answers"`,
		}},
		"Secrets": {"/api/v1/secrets", []string{}, []string{
			`299 - "of some or all secrets of elm only the metadata is mirrored: read their data in the cluster's own context"`,
			`299 - "secrets of elm are mirrored in part, by namespaces or labels: the rest is not shown"`,
		}},
		"MetadataOfSecrets": {"/api/v1/secrets?onlyMetadata=true", []string{}, []string{
			`299 - "secrets of elm are mirrored in part, by namespaces or labels: the rest is not shown"`,
		}},
		"CannotList": {"/apis/metrics.example.org/v1/sums", []string{}, []string{
			`299 - "cluster elm cannot list sums.metrics.example.org, so its objects are missing or the last known: conversion webhook failed"`,
		}},
		"TypeThatIsStale": {"/apis/metrics.example.org/v1/loads", []string{}, []string{
			`299 - "cluster elm does not tell of loads.metrics.example.org since 2026-01-02T03:04:05Z (the watch is forbidden): its objects are the last known"`,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			resp, body := f.ask(t, http.MethodGet, c.path, "")
			if diff := cmp.Diff(c.objects, found(body)); diff != "" {
				t.Errorf("objects (-want, +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.warnings, resp.Header.Values("Warning"), cmpopts.SortSlices(strings.Compare)); diff != "" {
				t.Errorf("warnings (-want, +got):\n%s", diff)
			}
		})
	}
}

// TestRowsOfAnotherVersion: rows that the store still has in the version that a cluster served
// before are not returned as objects of the version that it serves now.
func TestRowsOfAnotherVersion(t *testing.T) {
	f := newFleet(t, "ash", "oak")
	f.serve(gadgetV2, "gadgets", true, "ash", "oak")
	f.put(t, "ash", "gadgets", newObject(gadgetV1, "shop", "old"))
	f.put(t, "oak", "gadgets", newObject(gadgetV2, "shop", "new"))
	_, body := f.ask(t, http.MethodGet, "/apis/example.org/v2/gadgets", "")
	if diff := cmp.Diff([]string{"oak/shop/new"}, found(body)); diff != "" {
		t.Errorf("objects (-want, +got):\n%s", diff)
	}
}

// TestFieldsOfSecretsAndCustomResources: a field selector is refused if no object can have the
// field, according to the definitions in the clusters.
func TestFieldsOfSecretsAndCustomResources(t *testing.T) {
	f := newFleet(t, "ash", "elm")
	crd := schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}
	f.serve(secretKind, "secrets", true, "ash")
	f.serve(gadgetV1, "gadgets", true, "ash", "elm")
	f.serve(crd, "customresourcedefinitions", false, "ash", "elm")
	define := func(cluster, spec string) {
		o := newObject(crd, "", "gadgets.example.org")
		var parsed any
		properties := `{"type":"object","properties":{"spec":` + spec + `,"status":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}`
		if err := json.Unmarshal([]byte(`{"versions":[{"name":"v1","schema":{"openAPIV3Schema":`+properties+`}}]}`), &parsed); err != nil {
			t.Fatal(err)
		}
		o.Object["spec"] = parsed
		f.put(t, cluster, "customresourcedefinitions", o)
	}
	define("ash", `{"type":"object","properties":{"size":{"type":"integer"},"tags":{"type":"array"},"more":{"type":"object","additionalProperties":{"type":"string"}}}}`)
	define("elm", `{"type":"object","properties":{"colour":{"type":"string"}}}`)
	for name, c := range map[string]struct {
		path string
		code int
	}{
		"SecretType":     {"/api/v1/secrets?fieldSelector=type%3DOpaque", 400},
		"SecretName":     {"/api/v1/secrets?fieldSelector=metadata.name%3Da", 200},
		"Known":          {"/apis/example.org/v1/gadgets?fieldSelector=spec.size%3D3", 200},
		"InOneCluster":   {"/apis/example.org/v1/gadgets?fieldSelector=spec.colour%3Dred", 200},
		"NotInThisOne":   {"/clusters/ash/apis/example.org/v1/gadgets?fieldSelector=spec.colour%3Dred", 400},
		"InNone":         {"/apis/example.org/v1/gadgets?fieldSelector=spec.weight%3D3", 400},
		"Map":            {"/apis/example.org/v1/gadgets?fieldSelector=spec.more.a%3D3", 200},
		"BelowAMap":      {"/apis/example.org/v1/gadgets?fieldSelector=spec.more.a.b%3D3", 400},
		"List":           {"/apis/example.org/v1/gadgets?fieldSelector=spec.tags%3D3", 400},
		"UnknownAllowed": {"/apis/example.org/v1/gadgets?fieldSelector=status.what.ever%3D3", 200},
	} {
		t.Run(name, func(t *testing.T) {
			if resp, body := f.ask(t, http.MethodGet, c.path, ""); resp.StatusCode != c.code {
				t.Errorf("%d %v, want %d", resp.StatusCode, body, c.code)
			}
		})
	}
}

// TestDamagedStore: a search that finds the store damaged says that it cannot answer, in words
// for users and not those of SQL. The next search works.
func TestDamagedStore(t *testing.T) {
	f := threeClusters(t)
	for _, suffix := range []string{"", "-wal"} {
		if err := os.WriteFile(filepath.Join(f.dir, "mirror.db"+suffix), []byte(strings.Repeat("garbage ", 1<<15)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	resp, body := f.ask(t, http.MethodGet, "/api/v1/pods", "")
	message, _ := body["message"].(string)
	if resp.StatusCode != http.StatusServiceUnavailable || body["reason"] != string(metav1.StatusReasonServiceUnavailable) ||
		!strings.Contains(message, "ask again") || strings.Contains(message, "SQL") || strings.Contains(message, "malformed") || resp.Header.Get("Retry-After") == "" {
		t.Errorf("%d %v", resp.StatusCode, body)
	}
	if resp, body := f.ask(t, http.MethodGet, "/api/v1/pods", ""); resp.StatusCode != http.StatusOK || len(found(body)) != 0 {
		t.Errorf("%d %v, want what was written since: nothing", resp.StatusCode, body)
	}
}

func TestForms(t *testing.T) {
	f := threeClusters(t)
	const kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"
	partialOf := func(o map[string]any) map[string]any {
		return map[string]any{"kind": o["kind"], "apiVersion": o["apiVersion"], "spec": o["spec"], "status": o["status"]}
	}
	metadata := map[string]any{"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "spec": nil, "status": nil}
	older := map[string]any{"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1beta1", "spec": nil, "status": nil}
	whole := map[string]any{"kind": "Pod", "apiVersion": "v1", "spec": nil, "status": map[string]any{"phase": "Pending"}}
	for name, c := range map[string]struct {
		query, accept, kind string
		want                map[string]any // nil: none
	}{
		"Plain":             {"", "application/json", "PodList", whole},
		"Anything":          {"", "*/*", "PodList", whole},
		"NoTableInProtobuf": {"", "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io,application/json", "PodList", whole},
		"Table":             {"", kubectl, "Table", metadata},
		"TableWithNone":     {"&includeObject=None", kubectl, "Table", nil},
		"TableWithObjects":  {"&includeObject=Object", kubectl, "Table", whole},
		"Metadata":          {"", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", "PartialObjectMetadataList", metadata},
		"OldTable":          {"", "application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json", "Table", older},
		"OldestTableFallsBack": {
			"", "application/json;as=Table;v=v1alpha1;g=meta.k8s.io,application/json", "PodList", whole,
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, body := f.ask(t, http.MethodGet, "/api/v1/pods?names=db"+c.query, c.accept)
			if body["kind"] != c.kind {
				t.Fatalf("kind %v, want %s", body["kind"], c.kind)
			}
			var got map[string]any
			if rows, ok := body["rows"].([]any); ok {
				if o, ok := rows[0].(map[string]any)["object"].(map[string]any); ok {
					got = partialOf(o)
				}
			} else {
				got = partialOf(body["items"].([]any)[0].(map[string]any))
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("object (-want, +got):\n%s", diff)
			}
		})
	}
}

func TestDiscovery(t *testing.T) {
	f := threeClusters(t)
	f.serve(gadgetV1, "gadgets", false, "oak")
	f.serve(gadgetV1, "gadgets", true, "elm")
	f.serve(gadgetV2, "gadgets", true, "ash")
	for name, c := range map[string]struct {
		path string
		want []string
	}{
		"Fleet":      {"/apis", []string{"clusterpedia.io v1beta1: collectionresources", "example.org v2: gadgets namespaced", "example.org v1: gadgets namespaced"}},
		"Core":       {"/api", []string{" v1: namespaces", " v1: pods namespaced"}},
		"OneCluster": {"/clusters/oak/apis", []string{"clusterpedia.io v1beta1: collectionresources", "example.org v1: gadgets"}},
	} {
		t.Run(name, func(t *testing.T) {
			// Aggregated discovery has the same types as the separate documents.
			resp, body := f.ask(t, http.MethodGet, c.path, aggregated+",application/json")
			if got := resp.Header.Get("Content-Type"); got != aggregated {
				t.Errorf("content type %q", got)
			}
			if diff := cmp.Diff(c.want, inOneDocument(body)); diff != "" {
				t.Errorf("aggregated (-want, +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.want, f.inMany(t, c.path)); diff != "" {
				t.Errorf("legacy (-want, +got):\n%s", diff)
			}
		})
	}
}

func inOneDocument(body map[string]any) []string {
	var all []string
	groups, _ := body["items"].([]any)
	for _, g := range groups {
		group := g.(map[string]any)
		name, _, _ := unstructured.NestedString(group, "metadata", "name")
		for _, v := range group["versions"].([]any) {
			version := v.(map[string]any)
			for _, r := range version["resources"].([]any) {
				resource := r.(map[string]any)
				all = append(all, line(name, version["version"], resource["resource"], resource["scope"] == "Namespaced"))
			}
		}
	}
	return all
}

func line(group string, version, resource any, namespaced bool) string {
	s := fmt.Sprintf("%s %s: %s", group, version, resource)
	if namespaced {
		s += " namespaced"
	}
	return s
}

func (f *fleet) inMany(t *testing.T, path string) []string {
	t.Helper()
	var gvs []string
	_, body := f.ask(t, http.MethodGet, path, "application/json")
	versions, _ := body["versions"].([]any)
	for _, v := range versions {
		gvs = append(gvs, v.(string))
	}
	groups, _ := body["groups"].([]any)
	for _, g := range groups {
		for _, v := range g.(map[string]any)["versions"].([]any) {
			gvs = append(gvs, v.(map[string]any)["groupVersion"].(string))
		}
	}
	var all []string
	for _, gv := range gvs {
		_, body := f.ask(t, http.MethodGet, path+"/"+gv, "application/json")
		for _, r := range body["resources"].([]any) {
			resource := r.(map[string]any)
			parsed, err := schema.ParseGroupVersion(gv)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, line(parsed.Group, parsed.Version, resource["name"], resource["namespaced"] == true))
		}
	}
	return all
}

func FuzzLocate(f *testing.F) {
	for _, path := range []string{
		"", "/", "/api/v1/pods", "/apis/apps/v1/namespaces/shop/deployments/web", "/clusters/oak/api/v1/watch/pods",
		"/api/v1/namespaces/shop/status", "/api/v1/namespaces/a%2Fb/pods/c%3Ad", "/version", "/%zz",
	} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		at, ok := locate(path)
		if !ok {
			return
		}
		// Each part that locate returns is a whole segment of the path.
		segments, _ := split(path)
		for _, part := range []string{at.cluster, at.document, at.Group, at.Version, at.Resource, at.namespace, at.name, at.subresource} {
			if part != "" && !slices.Contains(segments, part) {
				t.Errorf("%q: %q is not a segment", path, part)
			}
		}
	})
}
