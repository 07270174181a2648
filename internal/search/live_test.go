package search

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/store"
	"orrery.dev/orrery/internal/testenv"
)

// liveCluster is a cluster that is asked directly.
type liveCluster struct {
	away   bool
	serves presence.Presence
	get    getter
}

// getter answers requests for a path: with a real API server, or with fixed answers.
type getter func(ctx context.Context, path string) (*http.Response, error)

func (c liveCluster) Reachable() bool                                      { return !c.away }
func (c liveCluster) Serves(schema.GroupVersionResource) presence.Presence { return c.serves }

func (c liveCluster) Get(ctx context.Context, path string) (*http.Response, error) {
	return c.get(ctx, path)
}

// asks returns a getter that asks the server of a configuration.
func asks(t *testing.T, config *rest.Config) getter {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return func(ctx context.Context, path string) (*http.Response, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+path, nil)
		if err != nil {
			return nil, err
		}
		return client.Do(req)
	}
}

// says returns a getter that answers with a status code and a text.
func says(code int, text string) getter {
	return func(context.Context, string) (*http.Response, error) {
		return &http.Response{StatusCode: code, Body: io.NopCloser(strings.NewReader(text))}, nil
	}
}

// podMetrics returns a PodMetricsList of pods in the namespace shop.
func podMetrics(names ...string) string {
	items := make([]string, len(names))
	for i, name := range names {
		items[i] = fmt.Sprintf(`{"metadata":{"name":%q,"namespace":"shop"},"containers":[]}`, name)
	}
	return `{"kind":"PodMetricsList","apiVersion":"metrics.k8s.io/v1beta1","metadata":{},"items":[` + strings.Join(items, ",") + `]}`
}

// metered creates metrics of nodes and pods in a real API server, as a metrics server has them,
// in a namespace of the test. It returns the namespace and a getter of the server.
func metered(t *testing.T) (namespace string, server getter) {
	t.Helper()
	config := testenv.Config(0)
	scheme := known
	typed, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	disco, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	c, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	namespace = testenv.Namespace(t, config)
	anything := true
	for _, api := range metricsTypes {
		scope := apiextensionsv1.ClusterScoped
		if api.Namespaced {
			scope = apiextensionsv1.NamespaceScoped
		}
		definition := &apiextensionsv1.CustomResourceDefinition{
			ObjectMeta: metav1.ObjectMeta{
				Name: api.Resource + "." + metricsVersion.Group, Annotations: map[string]string{"api-approved.kubernetes.io": "unapproved, a test"},
			},
			Spec: apiextensionsv1.CustomResourceDefinitionSpec{
				Group: metricsVersion.Group, Scope: scope,
				Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: api.Resource, Kind: api.GroupVersionKind.Kind},
				Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
					Name: metricsVersion.Version, Served: true, Storage: true,
					Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &anything}},
				}},
			},
		}
		if err := typed.Create(t.Context(), definition); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			testenv.Eventually(t, "delete the definition", testenv.Patience, func() error {
				return client.IgnoreNotFound(typed.Delete(context.Background(), definition))
			})
		})
		served(t, disco, api.GroupVersionKind)
	}
	for _, one := range []struct{ resource, name, namespace string }{{"nodes", "n-" + namespace, ""}, {"pods", "web", namespace}, {"pods", "db", namespace}} {
		kind := metricsTypes[slices.IndexFunc(metricsTypes, func(a member.API) bool { return a.Resource == one.resource })].GroupVersionKind
		o := newObject(kind, one.namespace, one.name, "label:app="+one.name)
		o.SetResourceVersion("")
		o.Object["timestamp"], o.Object["window"] = "2026-01-01T00:00:00Z", "15s"
		usage := map[string]any{"cpu": "250m", "memory": "64Mi"}
		if one.resource == "nodes" {
			o.Object["usage"] = usage
		} else {
			o.Object["containers"] = []any{map[string]any{"name": "web", "usage": usage}}
		}
		testenv.Eventually(t, "metrics of "+one.name, testenv.Patience, func() error {
			_, err := c.Resource(metricsVersion.WithResource(one.resource)).Namespace(one.namespace).Create(t.Context(), o, metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) { // by an attempt whose answer was lost
				return nil
			}
			return err
		})
	}
	return namespace, asks(t, config)
}

// eventually repeats a check of answers that come from the clusters: a busy cluster may exceed
// the time limit of a question, and then gets no question for a while.
func eventually(t *testing.T, check func() error) {
	t.Helper()
	testenv.Eventually(t, "the clusters answer", testenv.Patience, check)
}

// TestMetrics: metrics, which are never mirrored, are requested from the clusters, for callers
// that may see them. Clusters that do not answer are left out.
func TestMetrics(t *testing.T) {
	namespace, server := metered(t)
	broken := asks(t, &rest.Config{Host: "http://127.0.0.1:1"})
	f := newFleet(t, "ash", "elm", "fir", "oak", "yew")
	node := schema.GroupVersionKind{Version: "v1", Kind: "Node"}
	f.serve(podKind, "pods", true, "elm", "oak")
	f.serve(node, "nodes", false, "oak")
	capacity := newObject(node, "", "n-"+namespace)
	capacity.Object["status"] = map[string]any{"allocatable": map[string]any{"cpu": "1", "memory": "128Mi"}}
	f.put(t, "oak", "nodes", capacity)
	f.live = map[string]Live{
		"ash": liveCluster{serves: presence.Present, get: broken}, "elm": liveCluster{serves: presence.Present, get: server},
		"fir": liveCluster{serves: presence.Present, away: true}, "oak": liveCluster{serves: presence.Present, get: server},
		"yew": liveCluster{serves: presence.Absent},
	}
	const pods = "/apis/metrics.k8s.io/v1beta1/pods"
	db, web := namespace+"/db", namespace+"/web"
	for name, c := range map[string]struct {
		path string
		want []string
		says string // a part of a warning; "": there is no warning
	}{
		"All":          {pods + "?namespaces=" + namespace, []string{"elm/" + db, "elm/" + web, "oak/" + db, "oak/" + web}, "cluster ash is left out: it did not answer"},
		"Unreachable":  {pods + "?namespaces=" + namespace, []string{"elm/" + db, "elm/" + web, "oak/" + db, "oak/" + web}, "cluster fir is left out: it is unreachable"},
		"WithoutOne":   {pods + "?namespaces=" + namespace, []string{"elm/" + db, "elm/" + web, "oak/" + db, "oak/" + web}, "no metrics server in yew"},
		"OneCluster":   {"/clusters/oak" + pods + "?namespaces=" + namespace, []string{"oak/" + db, "oak/" + web}, ""},
		"ByClusters":   {pods + "?clusters=oak&limit=500", []string{"oak/" + db, "oak/" + web}, ""},
		"ByNamespace":  {"/clusters/oak/apis/metrics.k8s.io/v1beta1/namespaces/" + namespace + "/pods?labelSelector=app%3Dweb", []string{"oak/" + web}, ""},
		"ByField":      {pods + "?clusters=oak&fieldSelector=metadata.name%3Ddb", []string{"oak/" + db}, ""},
		"OtherSpace":   {"/clusters/oak/apis/metrics.k8s.io/v1beta1/namespaces/default/pods", []string{}, ""},
		"Nodes":        {"/apis/metrics.k8s.io/v1beta1/nodes?clusters=oak", []string{"oak//n-" + namespace}, ""},
		"OnlyMetadata": {pods + "?clusters=oak&onlyMetadata=true", []string{"oak/" + db, "oak/" + web}, ""},
	} {
		if !t.Run(name, func(t *testing.T) {
			eventually(t, func() error {
				resp, body := f.ask(t, http.MethodGet, c.path, "")
				warnings := strings.Join(resp.Header.Values("Warning"), " ")
				if diff := cmp.Diff(c.want, found(body)); diff != "" || !strings.Contains(warnings, c.says) || c.says == "" && warnings != "" {
					return fmt.Errorf("%s: %v %s", diff, body["message"], warnings)
				}
				return nil
			})
		}) {
			t.FailNow() // each other case would wait as long
		}
	}
	for name, c := range map[string]struct {
		path string
		code int
		says string
	}{
		"Watch":         {pods + "?watch=true", 400, "not watched"},
		"Order":         {pods + "?orderby=name", 400, "not watched, ordered"},
		"NobodyAnswers": {pods + "?clusters=ash,fir", 503, "cluster ash is left out"},
		"NobodyServes":  {"/clusters/yew" + pods, 404, "no cluster asked for has a metrics server"},
		"NamesTwice":    {"/clusters/oak/apis/metrics.k8s.io/v1beta1/nodes/a?names=b", 400, "names the object already"},
		"SpaceTwice":    {"/apis/metrics.k8s.io/v1beta1/namespaces/a/pods?namespaces=b", 400, "names the namespace already"},
		"NoField":       {pods + "?fieldSelector=containers%5B%5D.imag%3Da", 400, "there is no field"},
		"Counted":       {pods + "?withRemainingCount=true", 400, "counted"},
		"NoName":        {pods + "?namespaces=a%2Fpods", 400, "is no name"},
		"NoCluster":     {pods + "?clusters=none", 400, "not a cluster"},
		"InTwo":         {"/apis/metrics.k8s.io/v1beta1/namespaces/" + namespace + "/pods/web", 409, "elm, oak"},
		"None":          {"/clusters/oak/apis/metrics.k8s.io/v1beta1/namespaces/" + namespace + "/pods/none", 404, "not found"},
		"NodesInSpace":  {"/apis/metrics.k8s.io/v1beta1/namespaces/a/nodes", 404, "in a namespace"},
		"Delete":        {"/apis/metrics.k8s.io/v1beta1/nodes/x", 405, "read-only"},
	} {
		if !t.Run(name, func(t *testing.T) {
			method := http.MethodGet
			if c.code == http.StatusMethodNotAllowed {
				method = http.MethodDelete
			}
			eventually(t, func() error {
				resp, body := f.ask(t, method, c.path, "")
				if message := fmt.Sprint(body["message"]); resp.StatusCode != c.code || !strings.Contains(message, c.says) {
					return fmt.Errorf("%d %s", resp.StatusCode, message)
				}
				return nil
			})
		}) {
			t.FailNow() // each other case would wait as long
		}
	}
	t.Run("Qualified", func(t *testing.T) {
		client, err := dynamic.NewForConfig(&rest.Config{Host: strings.Replace(f.url, "/resources/fleet/", "/resources/qualified/", 1)})
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, func() error {
			list, err := client.Resource(metricsVersion.WithResource("pods")).Namespace(namespace+"@oak").List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.namespace=" + namespace + "@oak"})
			if err != nil || len(list.Items) != 2 || list.Items[0].GetNamespace() != namespace+"@oak" {
				return fmt.Errorf("%v %w", list, err)
			}
			one, err := client.Resource(metricsVersion.WithResource("nodes")).Get(t.Context(), "n-"+namespace+"@oak", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if cpu, _, _ := unstructured.NestedString(one.Object, "usage", "cpu"); cpu != "250m" {
				return fmt.Errorf("%v", one)
			}
			return nil
		})
	})
	t.Run("Kubectl", func(t *testing.T) {
		for args, want := range map[string]string{
			"top pods -n " + namespace:                 "web|250m|64Mi",
			"top node n-" + namespace:                  "",
			"get pods.metrics.k8s.io -n " + namespace:  "oak|web|",
			"top pods --no-headers -l app=db -A":       "db|250m|64Mi",
			"api-resources --api-group=metrics.k8s.io": "pods|metrics.k8s.io/v1beta1|true|PodMetrics",
		} {
			eventually(t, func() error {
				stdout, stderr, err := f.kubectl(t, strings.Fields(args)...)
				right := err == nil && strings.Contains(spaces.ReplaceAllString(stdout, "|"), want)
				if want == "" { // the node is in two clusters
					right = err != nil && strings.Contains(stderr, "elm, oak")
				}
				if !right {
					return fmt.Errorf("kubectl %s: %w %s%s", args, err, stdout, stderr)
				}
				return nil
			})
		}
		f.url += "/clusters/oak"
		defer func() { f.url = strings.TrimSuffix(f.url, "/clusters/oak") }()
		eventually(t, func() error {
			stdout, stderr, err := f.kubectl(t, "top", "nodes", "--no-headers")
			if want := "n-" + namespace + "|250m|25%|64Mi|50%"; err != nil || !strings.Contains(spaces.ReplaceAllString(stdout, "|"), want) {
				return fmt.Errorf("%w %s%s", err, stdout, stderr)
			}
			return nil
		})
	})
	t.Run("Rights", func(t *testing.T) {
		f.denied = func(a authorizationv1.ResourceAttributes) bool {
			return a.Group == metricsVersion.Group && a.Namespace == ""
		}
		f.some, f.closed = []string{namespace}, map[string][]string{namespace: {"elm"}}
		defer func() { f.denied, f.some, f.closed = nil, nil, nil }()
		eventually(t, func() error {
			resp, body := f.ask(t, http.MethodGet, pods, "")
			if strings.Contains(fmt.Sprint(resp.Header), "elm") {
				t.Fatalf("a cluster is named that is closed: %v", resp.Header)
			}
			if diff := cmp.Diff([]string{"oak/" + db, "oak/" + web}, found(body)); diff != "" || !strings.Contains(fmt.Sprint(resp.Header), "only pods.metrics.k8s.io in the namespaces") {
				return fmt.Errorf("%s %v", diff, resp.Header)
			}
			return nil
		})
		if resp, body := f.ask(t, http.MethodGet, "/apis/metrics.k8s.io/v1beta1/nodes", ""); resp.StatusCode != http.StatusForbidden {
			t.Errorf("%d %v", resp.StatusCode, body)
		}
		if resp, body := f.ask(t, http.MethodGet, "/clusters/elm/apis/metrics.k8s.io/v1beta1/namespaces/"+namespace+"/pods", ""); resp.StatusCode != http.StatusNotFound {
			t.Errorf("%d %v", resp.StatusCode, body)
		}
	})
}

// TestMetricsNotKnown: unknown metrics are not reported as missing, and the answer of one
// cluster does not affect those of others.
func TestMetricsNotKnown(t *testing.T) {
	const pods = "/apis/metrics.k8s.io/v1beta1/pods"
	oak := liveCluster{serves: presence.Present, get: func(ctx context.Context, path string) (*http.Response, error) {
		switch path {
		case pods:
			return says(200, podMetrics("web", "db"))(ctx, path)
		case "/apis/metrics.k8s.io/v1beta1/namespaces/shop/pods":
			return says(200, podMetrics("web"))(ctx, path)
		default:
			return says(500, "")(ctx, path)
		}
	}}
	const web, none = "/apis/metrics.k8s.io/v1beta1/namespaces/shop/pods/web", "/apis/metrics.k8s.io/v1beta1/namespaces/shop/pods/none"
	both := []string{"oak/shop/db", "oak/shop/web"}
	for name, c := range map[string]struct {
		ash  liveCluster
		says string // about ash, in the warnings of a list
		code int    // status of web and none because of ash; 0: that of oak
	}{
		"NeverSeen":   {liveCluster{away: true}, "cluster ash is left out: it is unreachable", 503},
		"NotYetAsked": {liveCluster{get: says(404, "404 page not found")}, "no metrics server in ash", 0},
		"Down":        {liveCluster{serves: presence.Unknown, get: says(503, "service unavailable")}, "cluster ash is left out: it answers with 503", 503},
		"Forbidden":   {liveCluster{serves: presence.Present, get: says(403, "{}")}, "cluster ash is left out: it answers with 403 Forbidden", 503},
		"NoList":      {liveCluster{serves: presence.Present, get: says(200, `{"kind":"Status"}`)}, "cluster ash is left out: its answer is no list of PodMetrics", 503},
		"NoJSON":      {liveCluster{serves: presence.Present, get: says(200, "<html>")}, "cluster ash is left out: its answer is no PodMetrics", 503},
		"CutOff":      {liveCluster{serves: presence.Present, get: says(200, podMetrics("cut")[:120])}, "cluster ash is left out: its answer is no PodMetrics", 503},
		"Part": {
			liveCluster{serves: presence.Present, get: says(200, strings.Replace(podMetrics("part"), `"metadata":{},`, `"metadata":{"continue":"x"},`, 1))},
			"cluster ash is left out: its answer is a part", 503,
		},
		"BadAnnotation": {
			liveCluster{serves: presence.Present, get: says(200, strings.Replace(podMetrics("bad"), `"namespace"`, `"annotations":{"a":1},"namespace"`, 1))},
			"cluster ash is left out: an object of its answer is no PodMetrics", 503,
		},
		"Large": {liveCluster{serves: presence.Present, get: says(200, podMetrics(strings.Repeat("x", 4<<10)))}, "cluster ash is left out: its answer is too large", 503},
		"Panics": {
			liveCluster{serves: presence.Present, get: func(context.Context, string) (*http.Response, error) { panic("of the transport") }},
			"cluster ash is left out: its answer cannot be read", 503,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, "ash", "oak")
			f.search.asker.most.answer = 4 << 10
			f.live = map[string]Live{"ash": c.ash, "oak": oak}
			for _, accept := range []string{"", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"} {
				resp, body := f.ask(t, http.MethodGet, pods, accept)
				if diff := cmp.Diff(both, found(body)); diff != "" || !strings.Contains(strings.Join(resp.Header.Values("Warning"), " "), c.says) {
					t.Errorf("%s %v %v", diff, body["message"], resp.Header)
				}
			}
			for path, known := range map[string]int{web: 200, none: 404} {
				want := max(c.code, known)
				if c.code == 0 {
					want = known
				}
				if resp, body := f.ask(t, http.MethodGet, path, ""); resp.StatusCode != want || want == 503 && !strings.Contains(fmt.Sprint(body["message"]), "cluster ash is left out") {
					t.Errorf("%s: %d %v, want %d", path, resp.StatusCode, body["message"], want)
				}
			}
			_, groups := f.ask(t, http.MethodGet, "/clusters/ash/apis", "")
			if !strings.Contains(fmt.Sprint(groups["groups"]), "metrics.k8s.io") {
				t.Errorf("clients are told that there is none: %v", groups)
			}
		})
	}
}

// TestMetricsAreNeverMirrored: one cluster with mirrored metrics does not hide those of the
// others.
func TestMetricsAreNeverMirrored(t *testing.T) {
	f := newFleet(t, "elm", "oak")
	f.serve(metricsVersion.WithKind("PodMetrics"), "pods", true, "elm")
	f.live = map[string]Live{
		"elm": liveCluster{serves: presence.Present, get: says(200, podMetrics("a"))}, "oak": liveCluster{serves: presence.Present, get: says(200, podMetrics("b"))},
	}
	_, body := f.ask(t, http.MethodGet, "/apis/metrics.k8s.io/v1beta1/pods", "")
	if diff := cmp.Diff([]string{"elm/shop/a", "oak/shop/b"}, found(body)); diff != "" {
		t.Errorf("%s %v", diff, body["message"])
	}
	_, list := f.ask(t, http.MethodGet, "/apis/metrics.k8s.io/v1beta1", "")
	if text := fmt.Sprint(list["resources"]); !strings.Contains(text, "NodeMetrics") || !strings.Contains(text, "PodMetrics") {
		t.Errorf("discovery: %s", text)
	}
}

// TestMetricsOfFewNamespaces: for a caller with rights in few namespaces, a cluster is not
// asked for all namespaces.
func TestMetricsOfFewNamespaces(t *testing.T) {
	f := newFleet(t, "oak")
	var asked atomic.Value
	f.live = map[string]Live{"oak": liveCluster{serves: presence.Present, get: func(ctx context.Context, path string) (*http.Response, error) {
		asked.Store(path)
		return says(200, podMetrics("web"))(ctx, path)
	}}}
	f.denied = func(a authorizationv1.ResourceAttributes) bool { return a.Namespace == "" }
	f.some = []string{"shop"}
	resp, body := f.ask(t, http.MethodGet, "/apis/metrics.k8s.io/v1beta1/pods", "")
	if diff := cmp.Diff([]string{"oak/shop/web"}, found(body)); diff != "" || asked.Load() != "/apis/metrics.k8s.io/v1beta1/namespaces/shop/pods" {
		t.Errorf("%s %d %v, asked %v", diff, resp.StatusCode, body["message"], asked.Load())
	}
}

// meter is a cluster that counts questions.
type meter struct {
	answer           getter
	asked            atomic.Int32
	onTheirWay, most atomic.Int32
}

func (m *meter) get(ctx context.Context, path string) (*http.Response, error) {
	m.asked.Add(1)
	m.most.Store(max(m.most.Load(), m.onTheirWay.Add(1)))
	defer m.onTheirWay.Add(-1)
	return m.answer(ctx, path)
}

// hangs does not answer until the request is canceled.
func hangs(ctx context.Context, _ string) (*http.Response, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// askerOf returns an asker of clusters that have metrics.
func askerOf(clusters map[string]*meter) *asker {
	return newAsker(func(name string) (Live, bool) {
		m, ok := clusters[name]
		if !ok {
			return nil, false
		}
		return liveCluster{serves: presence.Present, get: m.get}, true
	})
}

func podsOf(cluster, namespace string) question {
	return question{cluster: cluster, api: &metricsTypes[1], namespace: namespace}
}

// TestAskOnce: a question that many callers have at about the same time is asked once. A
// cluster that fails is not asked for a while.
func TestAskOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slowly := func(ctx context.Context, path string) (*http.Response, error) {
			time.Sleep(time.Second)
			return says(200, podMetrics("web"))(ctx, path)
		}
		oak, ash := &meter{answer: slowly}, &meter{answer: says(503, "")}
		a := askerOf(map[string]*meter{"oak": oak, "ash": ash})
		for range 3 {
			var all []*inquiry
			for range 10 {
				all = append(all, a.ask(t.Context(), podsOf("oak", "")))
			}
			for _, r := range all {
				if rows, err := a.wait(t.Context(), r); err != nil || len(rows) != 1 {
					t.Errorf("%d rows, %v", len(rows), err)
				}
			}
		}
		if n := oak.asked.Load(); n != 1 {
			t.Errorf("asked %d times", n)
		}
		time.Sleep(liveFresh + 1)
		if held := a.held.Load(); held != 0 || len(a.inquiries) > 0 {
			t.Errorf("%d bytes are held, and %d inquiries", held, len(a.inquiries))
		}
		if _, err := a.wait(t.Context(), a.ask(t.Context(), podsOf("oak", ""))); err != nil || oak.asked.Load() != 2 {
			t.Errorf("%v, asked %d times", err, oak.asked.Load())
		}
		for i := range 20 { // two questions a second, all different
			if _, err := a.wait(t.Context(), a.ask(t.Context(), podsOf("ash", fmt.Sprint(i)))); err == nil || !strings.Contains(err.Error(), "503") {
				t.Errorf("error %v", err)
			}
			time.Sleep(time.Second / 2)
		}
		if n := ash.asked.Load(); n != 2 {
			t.Errorf("a cluster that does not cope was asked %d times in ten seconds", n)
		}
	})
}

// TestAskFewAtOnce: a cluster that hangs gets few questions and takes no slots from others.
// Errors distinguish questions that were not asked from those without an answer.
func TestAskFewAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ash, oak := &meter{answer: hangs}, &meter{answer: says(200, podMetrics("web"))}
		a := askerOf(map[string]*meter{"ash": ash, "oak": oak})
		a.slots = make(chan struct{}, livePerCluster+1)
		var all []*inquiry
		for i := range 10 {
			all = append(all, a.ask(t.Context(), podsOf("ash", fmt.Sprint(i))))
		}
		synctest.Wait()
		if _, err := a.wait(t.Context(), a.ask(t.Context(), podsOf("oak", ""))); err != nil {
			t.Error(err)
		}
		start := time.Now()
		for _, r := range all {
			if _, err := a.wait(t.Context(), r); !errors.Is(err, errUnanswered) {
				t.Errorf("error %v", err)
			}
		}
		if most, took := ash.most.Load(), time.Since(start); most != livePerCluster || ash.asked.Load() != livePerCluster || took != liveTime {
			t.Errorf("%d were on their way at once, %d asked in %s", most, ash.asked.Load(), took)
		}

		time.Sleep(liveRest)
		impatient, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		all = nil
		for i := range livePerCluster + 1 {
			all = append(all, a.ask(impatient, podsOf("ash", fmt.Sprint(i))))
			synctest.Wait()
		}
		for i, want := range []error{errLate, errLate, errNotAsked} {
			if _, err := a.wait(impatient, all[i]); !errors.Is(err, want) {
				t.Errorf("error %v, want %v", err, want)
			}
		}
		synctest.Wait()
		if n := ash.onTheirWay.Load(); n != 0 || len(a.slots) != 0 {
			t.Errorf("%d questions are on their way for which nobody waits, and %d turns taken", n, len(a.slots))
		}
		if c, ok := a.clusters["ash"]; ok {
			t.Errorf("that nobody waited is taken for the cluster's fault: %v", c.why)
		}
	})
}

// TestAskNames: single objects are looked up in the list of the namespace, which is requested
// once for all names.
func TestAskNames(t *testing.T) {
	f := newFleet(t, "oak")
	var paths sync.Map
	f.live = map[string]Live{"oak": liveCluster{serves: presence.Present, get: func(ctx context.Context, path string) (*http.Response, error) {
		paths.Store(path, true)
		return says(200, podMetrics("web", "db"))(ctx, path)
	}}}
	for name, code := range map[string]int{"web": 200, "db": 200, "none": 404, "other": 404} {
		if resp, body := f.ask(t, http.MethodGet, "/apis/metrics.k8s.io/v1beta1/namespaces/shop/pods/"+name, ""); resp.StatusCode != code {
			t.Errorf("%s: %d %v", name, resp.StatusCode, body["message"])
		}
	}
	var asked []any
	paths.Range(func(path, _ any) bool {
		asked = append(asked, path)
		return true
	})
	if diff := cmp.Diff([]any{"/apis/metrics.k8s.io/v1beta1/namespaces/shop/pods"}, asked); diff != "" {
		t.Error(diff)
	}
}

// TestAskShares: a user with as many questions as possible leaves a share for others, of each
// cluster and of all clusters. A question without a free place is refused at once.
func TestAskShares(t *testing.T) {
	as := func(t *testing.T, name string) context.Context {
		return request.WithUser(t.Context(), &user.DefaultInfo{Name: name})
	}
	const most = 16
	for name, c := range map[string]struct {
		inAll int
		of    func(i int) question
	}{
		"OneCluster":  {liveWaitingAll, func(i int) question { return podsOf("ash", fmt.Sprint(i)) }},
		"AllClusters": {most, func(i int) question { return podsOf(fmt.Sprint(i), "") }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newAsker(func(string) (Live, bool) { return liveCluster{serves: presence.Present, get: hangs}, true })
				a.places.most = c.inAll
				most := min(c.inAll, liveWaiting)
				var all []*inquiry
				refused := func(r *inquiry) bool {
					all = append(all, r)
					select {
					case <-r.done:
						return errors.Is(r.err, errBusy)
					default:
						return false
					}
				}
				for i := range most {
					if got := refused(a.ask(as(t, "greedy"), c.of(i))); got != (i >= most/2) {
						t.Errorf("question %d: refused %t", i, got)
					}
				}
				for i := range most / 4 {
					if refused(a.ask(as(t, "modest"), c.of(most+i))) {
						t.Errorf("question %d of another user is refused", i)
					}
				}
				if refused(a.ask(as(t, "other"), c.of(0))) {
					t.Error("a question is refused that is asked already")
				}
				for _, r := range all {
					if _, err := a.wait(t.Context(), r); err == nil {
						t.Error("an answer of a cluster that hangs")
					}
				}
				time.Sleep(liveRest + 1)
				synctest.Wait()
				if a.places.taken != 0 || len(a.places.of) != 0 || len(a.clusters) != 0 || len(a.inquiries) != 0 {
					t.Errorf("%d places are taken, %d clusters and %d inquiries known when all was answered", a.places.taken, len(a.clusters), len(a.inquiries))
				}
			})
		})
	}
}

// TestAskLittle: the memory for answers is limited, for each request and for all together.
func TestAskLittle(t *testing.T) {
	f := newFleet(t)
	text := podMetrics(strings.Repeat("x", 4<<10))
	size := int64(len(text))
	f.search.asker.most = bounds{answer: size, request: 4 * size, together: 100 * size}
	var clusters []string
	f.live = map[string]Live{}
	for i := range 5 {
		clusters = append(clusters, fmt.Sprint("c", i))
		f.live[clusters[i]] = liveCluster{serves: presence.Present, get: says(200, text)}
	}
	g := f.search.askClusters(t.Context(), &metricsTypes[1], store.Query{Resource: "pods", Clusters: clusters})
	if len(g.rows) != 4 || len(g.failed) != 1 || !strings.Contains(g.failed[0], errTooMuch.Error()) || g.size > 4*size {
		t.Errorf("%d rows of %d bytes, %v", len(g.rows), g.size, g.failed)
	}
	f.search.asker = newAsker(f.search.Live)
	f.search.asker.most.together = size - 1
	g = f.search.askClusters(t.Context(), &metricsTypes[1], store.Query{Resource: "pods", Clusters: clusters, Namespaces: []string{"shop"}})
	if len(g.rows) != 0 || len(g.failed) != 5 || !strings.Contains(g.failed[0], errFull.Error()) || f.search.asker.held.Load() != 0 {
		t.Errorf("%d rows of %d bytes, %v", len(g.rows), g.size, g.failed)
	}
}
