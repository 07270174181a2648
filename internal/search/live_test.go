package search

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/testenv"
)

// liveCluster is one that is asked itself: a real API server, or one that answers otherwise.
type liveCluster struct {
	away   bool
	serves bool
	client dynamic.Interface
}

func (c liveCluster) Reachable() bool                         { return !c.away }
func (c liveCluster) Serves(schema.GroupVersionResource) bool { return c.serves }
func (c liveCluster) Dynamic() dynamic.Interface              { return c.client }

// metered has a real API server whose nodes and pods have metrics, as a metrics server would say, in a namespace of the test's own.
func metered(t *testing.T) (namespace string, c dynamic.Interface) {
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
	if c, err = dynamic.NewForConfig(config); err != nil {
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
			if err := typed.Delete(t.Context(), definition); err != nil && !errors.Is(err, t.Context().Err()) {
				t.Error(err)
			}
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
			return err
		})
	}
	return namespace, c
}

// TestMetrics: what is never mirrored is asked of the clusters, for who may see it, and answered without those that do not answer.
func TestMetrics(t *testing.T) {
	namespace, server := metered(t)
	broken, err := dynamic.NewForConfig(&rest.Config{Host: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	f := newFleet(t, "ash", "elm", "fir", "oak", "yew")
	node := schema.GroupVersionKind{Version: "v1", Kind: "Node"}
	f.serve(podKind, "pods", true, "elm", "oak")
	f.serve(node, "nodes", false, "oak")
	capacity := newObject(node, "", "n-"+namespace)
	capacity.Object["status"] = map[string]any{"allocatable": map[string]any{"cpu": "1", "memory": "128Mi"}}
	f.put(t, "oak", "nodes", capacity)
	f.live = map[string]Live{
		"ash": liveCluster{serves: true, client: broken}, "elm": liveCluster{serves: true, client: server},
		"fir": liveCluster{serves: true, away: true}, "oak": liveCluster{serves: true, client: server}, "yew": liveCluster{},
	}
	const pods = "/apis/metrics.k8s.io/v1beta1/pods"
	db, web := namespace+"/db", namespace+"/web"
	for name, c := range map[string]struct {
		path string
		want []string
		says string // a warning
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
		t.Run(name, func(t *testing.T) {
			resp, body := f.ask(t, http.MethodGet, c.path, "")
			warnings := strings.Join(resp.Header.Values("Warning"), " ")
			if diff := cmp.Diff(c.want, found(body)); diff != "" || !strings.Contains(warnings, c.says) || c.says == "" && warnings != "" {
				t.Errorf("%s: %v %s", diff, body["message"], warnings)
			}
		})
	}
	for name, c := range map[string]struct {
		path string
		code int
		says string
	}{
		"Watch":         {pods + "?watch=true", 400, "not watched"},
		"Order":         {pods + "?orderby=name", 400, "not watched, ordered"},
		"NobodyAnswers": {pods + "?clusters=ash,fir", 503, "cluster ash is left out"},
		"NobodyServes":  {"/clusters/yew" + pods, 404, "not mirrored"},
		"NoCluster":     {pods + "?clusters=none", 400, "not a cluster"},
		"InTwo":         {"/apis/metrics.k8s.io/v1beta1/namespaces/" + namespace + "/pods/web", 409, "elm, oak"},
		"None":          {"/clusters/oak/apis/metrics.k8s.io/v1beta1/namespaces/" + namespace + "/pods/none", 404, "not found"},
		"NodesInSpace":  {"/apis/metrics.k8s.io/v1beta1/namespaces/a/nodes", 404, "in a namespace"},
		"Delete":        {"/apis/metrics.k8s.io/v1beta1/nodes/x", 405, "read-only"},
	} {
		t.Run(name, func(t *testing.T) {
			method := http.MethodGet
			if c.code == http.StatusMethodNotAllowed {
				method = http.MethodDelete
			}
			resp, body := f.ask(t, method, c.path, "")
			if message := fmt.Sprint(body["message"]); resp.StatusCode != c.code || !strings.Contains(message, c.says) {
				t.Errorf("%d %s", resp.StatusCode, message)
			}
		})
	}
	t.Run("Qualified", func(t *testing.T) {
		client, err := dynamic.NewForConfig(&rest.Config{Host: strings.Replace(f.url, "/resources/fleet/", "/resources/qualified/", 1)})
		if err != nil {
			t.Fatal(err)
		}
		list, err := client.Resource(metricsVersion.WithResource("pods")).Namespace(namespace+"@oak").List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.namespace=" + namespace + "@oak"})
		if err != nil || len(list.Items) != 2 || list.Items[0].GetNamespace() != namespace+"@oak" {
			t.Errorf("%v %v", list, err)
		}
		one, err := client.Resource(metricsVersion.WithResource("nodes")).Get(t.Context(), "n-"+namespace+"@oak", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if cpu, _, _ := unstructured.NestedString(one.Object, "usage", "cpu"); cpu != "250m" {
			t.Errorf("%v", one)
		}
	})
	t.Run("Kubectl", func(t *testing.T) {
		for args, want := range map[string]string{
			"top pods -n " + namespace:                 "web|250m|64Mi",
			"top node n-" + namespace:                  "",
			"get pods.metrics.k8s.io -n " + namespace:  "oak|web|",
			"top pods --no-headers -l app=db -A":       "db|250m|64Mi",
			"api-resources --api-group=metrics.k8s.io": "pods|metrics.k8s.io/v1beta1|true|PodMetrics",
		} {
			stdout, stderr, err := f.kubectl(t, strings.Fields(args)...)
			if want == "" { // the node is in two clusters
				if err == nil || !strings.Contains(stderr, "elm, oak") {
					t.Errorf("kubectl %s: %v %s%s", args, err, stdout, stderr)
				}
				continue
			}
			if err != nil || !strings.Contains(spaces.ReplaceAllString(stdout, "|"), want) {
				t.Errorf("kubectl %s: %v %s%s", args, err, stdout, stderr)
			}
		}
		f.url += "/clusters/oak"
		defer func() { f.url = strings.TrimSuffix(f.url, "/clusters/oak") }()
		stdout, stderr, err := f.kubectl(t, "top", "nodes", "--no-headers")
		if want := "n-" + namespace + "|250m|25%|64Mi|50%"; err != nil || !strings.Contains(spaces.ReplaceAllString(stdout, "|"), want) {
			t.Errorf("%v %s%s", err, stdout, stderr)
		}
	})
	t.Run("Rights", func(t *testing.T) {
		f.denied = func(a authorizationv1.ResourceAttributes) bool {
			return a.Group == metricsVersion.Group && a.Namespace == ""
		}
		f.some, f.closed = []string{namespace}, map[string][]string{namespace: {"elm"}}
		defer func() { f.denied, f.some, f.closed = nil, nil, nil }()
		resp, body := f.ask(t, http.MethodGet, pods, "")
		if diff := cmp.Diff([]string{"oak/" + db, "oak/" + web}, found(body)); diff != "" || !strings.Contains(fmt.Sprint(resp.Header), "only pods.metrics.k8s.io in the namespaces") {
			t.Errorf("%s %v", diff, resp.Header)
		}
		if strings.Contains(fmt.Sprint(resp.Header), "elm") {
			t.Errorf("a cluster is named that is closed: %v", resp.Header)
		}
		if resp, body := f.ask(t, http.MethodGet, "/apis/metrics.k8s.io/v1beta1/nodes", ""); resp.StatusCode != http.StatusForbidden {
			t.Errorf("%d %v", resp.StatusCode, body)
		}
		if resp, body := f.ask(t, http.MethodGet, "/clusters/elm/apis/metrics.k8s.io/v1beta1/namespaces/"+namespace+"/pods", ""); resp.StatusCode != http.StatusNotFound {
			t.Errorf("%d %v", resp.StatusCode, body)
		}
	})
}
