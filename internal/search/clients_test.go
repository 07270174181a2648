package search

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/websocket"
	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/seal"
	"orrery.dev/orrery/internal/store"
	"orrery.dev/orrery/internal/testenv"
)

// socket opens a watch over a WebSocket, as Headlamp's backend does.
func (f *fleet) socket(t *testing.T, path, accept string, protocols ...string) *websocket.Conn {
	t.Helper()
	config, err := websocket.NewConfig("ws"+strings.TrimPrefix(f.url, "http")+path, f.url)
	if err != nil {
		t.Fatal(err)
	}
	config.Protocol = protocols
	if accept != "" {
		config.Header = http.Header{"Accept": {accept}}
	}
	conn, err := config.DialContext(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// TestWebSocketWatch: a watch over a WebSocket sends each event as one message, in each
// encoding, and ends when the client disconnects.
func TestWebSocketWatch(t *testing.T) {
	f := threeClusters(t)
	version := f.version(t, "/api/v1/pods")
	path := "/api/v1/pods?watch=1&resourceVersion=" + version
	for name, c := range map[string]struct {
		accept    string
		protocols []string
	}{
		"Plain":    {"", nil},
		"Headlamp": {"", []string{"base64.binary.k8s.io"}},
		"Protobuf": {mediaProtobuf, nil},
		"CBOR":     {mediaCBOR, nil},
	} {
		t.Run(name, func(t *testing.T) {
			before := gauge(t, watches)
			conn := f.socket(t, path, c.accept, c.protocols...)
			f.put(t, "ash", "pods", newObject(podKind, "shop", strings.ToLower(name)))
			var event struct {
				Type   string
				Object struct{ Metadata metav1.ObjectMeta }
			}
			for event.Object.Metadata.Name != strings.ToLower(name) {
				var message []byte
				if err := websocket.Message.Receive(conn, &message); err != nil {
					t.Fatal(err)
				}
				switch c.accept {
				case mediaProtobuf:
					var e metav1.WatchEvent
					if err := e.Unmarshal(message); err != nil {
						t.Fatal(err)
					}
					pod := &corev1.Pod{}
					if _, _, err := protobufs.Decode(e.Object.Raw, nil, pod); err != nil {
						t.Fatal(err)
					}
					event.Type, event.Object.Metadata = e.Type, pod.ObjectMeta
				case mediaCBOR:
					message = fromCBOR(t, message)
					fallthrough
				default:
					if err := json.Unmarshal(message, &event); err != nil {
						t.Fatalf("%v: %q", err, message)
					}
				}
			}
			if event.Type != string(apiwatch.Added) || event.Object.Metadata.Annotations[fleetv1alpha1.ClusterAnnotation] != "ash" {
				t.Errorf("%+v", event)
			}
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
			testenv.Eventually(t, "the watch ends", testenv.Patience, func() error {
				if now := gauge(t, watches); now > before {
					return fmt.Errorf("%v watches", now)
				}
				return nil
			})
		})
	}
	t.Run("Ends", func(t *testing.T) {
		conn := f.socket(t, "/api/v1/namespaces?watch=1&timeoutSeconds=1", "")
		var message string
		if err := websocket.Message.Receive(conn, &message); err != nil || !strings.Contains(message, `"ADDED"`) {
			t.Errorf("%s %v", message, err)
		}
		if err := websocket.Message.Receive(conn, &message); !errors.Is(err, io.EOF) {
			t.Errorf("%s %v", message, err)
		}
	})
	t.Run("Refused", func(t *testing.T) {
		config, err := websocket.NewConfig("ws"+strings.TrimPrefix(f.url, "http")+"/api/v1/pods?watch=1&resourceVersion=1", f.url)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := config.DialContext(t.Context()); err == nil {
			t.Error("a version that is gone is watched")
		}
	})
}

func fromCBOR(t *testing.T, raw []byte) []byte {
	t.Helper()
	var event map[string]any
	if err := direct.Unmarshal(raw, &event); err != nil {
		t.Fatal(err)
	}
	out, err := json.Marshal(event)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestControllerRuntime: the cache of controller-runtime has all objects and follows their
// changes, on the root for programs and on the root of one cluster. The types are built-in ones
// (requested in protobuf), custom resources and metadata. Each change is reported once.
func TestControllerRuntime(t *testing.T) {
	f := threeClusters(t)
	f.serve(gadgetV1, "gadgets", true, "elm", "oak")
	f.put(t, "oak", "gadgets", newObject(gadgetV1, "shop", "g"))
	f.put(t, "elm", "gadgets", newObject(gadgetV1, "shop", "g"))
	for name, c := range map[string]struct {
		root string
		keys map[string][]string // by type
		// another are the pods after one was added in elm and oak, and one removed in elm.
		another []string
	}{
		"Qualified": {
			strings.Replace(f.url, fleetv1alpha1.FleetPath, fleetv1alpha1.QualifiedPath, 1),
			map[string][]string{
				"pods":    {"blog@elm/press", "shop@elm/web", "shop@oak/db", "shop@oak/web"},
				"gadgets": {"shop@elm/g", "shop@oak/g"}, "metadata": {"shop@elm/g", "shop@oak/g"},
			},
			[]string{"blog@elm/press", "shop@elm/new", "shop@oak/db", "shop@oak/new", "shop@oak/web"},
		},
		"OneCluster": {
			f.url + "/clusters/oak",
			map[string][]string{"pods": {"shop/db", "shop/web"}, "gadgets": {"shop/g"}, "metadata": {"shop/g"}},
			[]string{"shop/db", "shop/new", "shop/web"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			followed, err := cache.New(&rest.Config{Host: c.root}, cache.Options{})
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			var running sync.WaitGroup
			running.Go(func() {
				if err := followed.Start(ctx); err != nil {
					t.Error(err)
				}
			})
			defer running.Wait()
			defer stop()
			if !followed.WaitForCacheSync(ctx) {
				t.Fatal("not synced")
			}
			gadgets, metadata := &unstructured.UnstructuredList{}, &metav1.PartialObjectMetadataList{}
			gadgets.SetGroupVersionKind(gadgetV1.GroupVersion().WithKind("GadgetList"))
			metadata.SetGroupVersionKind(gadgetV1.GroupVersion().WithKind("GadgetList"))
			lists := map[string]client.ObjectList{"pods": &corev1.PodList{}, "gadgets": gadgets, "metadata": metadata}
			for of, want := range c.keys {
				if got := keys(t, followed, lists[of]); !slices.Equal(got, want) {
					t.Errorf("%s: %v, want %v", of, got, want)
				}
			}
			informer, err := followed.GetInformer(ctx, &corev1.Pod{})
			if err != nil {
				t.Fatal(err)
			}
			var mu sync.Mutex
			events := map[string]int{}
			count := func(kind string) func(any) {
				return func(o any) {
					key, _ := toolscache.DeletionHandlingMetaNamespaceKeyFunc(o)
					mu.Lock()
					defer mu.Unlock()
					events[kind+" "+key]++
				}
			}
			registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: count("add"), DeleteFunc: count("delete")})
			if err != nil {
				t.Fatal(err)
			}
			if !toolscache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
				t.Fatal("not synced")
			}
			f.put(t, "elm", "pods", newObject(podKind, "shop", "new"))
			f.put(t, "oak", "pods", newObject(podKind, "shop", "new"))
			f.remove(t, "elm", "pods", "shop", "web")
			testenv.Eventually(t, "the cache follows", testenv.Patience, func() error {
				if got := keys(t, followed, &corev1.PodList{}); !slices.Equal(got, c.another) {
					return fmt.Errorf("%v, want %v", got, c.another)
				}
				mu.Lock()
				defer mu.Unlock()
				if n := events["add "+c.another[len(c.another)-2]]; n == 0 {
					return errors.New("there was no event")
				}
				for what, n := range events {
					if n != 1 {
						t.Errorf("%s happens %d times", what, n)
					}
				}
				return nil
			})
			one := &corev1.Pod{}
			namespace, object, _ := strings.Cut(c.another[len(c.another)-1], "/")
			if err := followed.Get(ctx, client.ObjectKey{Namespace: namespace, Name: object}, one); err != nil || one.Annotations[fleetv1alpha1.ClusterAnnotation] != "oak" {
				t.Errorf("%v %v", one, err)
			}
			f.remove(t, "elm", "pods", "shop", "new")
			f.remove(t, "oak", "pods", "shop", "new")
			f.put(t, "elm", "pods", newObject(podKind, "shop", "web"))
		})
	}
}

// keys returns the sorted keys of the objects of a type in a cache.
func keys(t *testing.T, c client.Reader, list client.ObjectList) []string {
	t.Helper()
	if err := c.List(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	var found struct {
		Items []struct{ Metadata metav1.ObjectMeta }
	}
	if err := json.Unmarshal(raw, &found); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, o := range found.Items {
		out = append(out, o.Metadata.Namespace+"/"+o.Metadata.Name)
	}
	slices.Sort(out)
	return out
}

// helm returns Helm's configuration for a namespace of a server. Unless host is an http URL, it
// is that of the real API server.
func helm(t *testing.T, host, namespace string) *action.Configuration {
	t.Helper()
	flags := genericclioptions.NewConfigFlags(false).WithWrapConfigFn(func(*rest.Config) *rest.Config {
		if strings.HasPrefix(host, "http://") {
			return &rest.Config{Host: host}
		}
		return testenv.Config(0)
	})
	flags.Namespace = &namespace
	flags.APIServer = &host
	c := &action.Configuration{}
	if err := c.Init(flags, namespace, "secret", func(string, ...any) {}); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestHelm: Helm's read commands work on the fleet and on one cluster, where Secrets are
// mirrored with data. Without data, lists have a warning.
func TestHelm(t *testing.T) {
	namespace := testenv.Namespace(t, testenv.Config(0))
	installed := helm(t, testenv.Config(0).Host, namespace)
	install := action.NewInstall(installed)
	install.ReleaseName, install.Namespace = "web", namespace
	settings := &chart.Chart{
		Metadata:  &chart.Metadata{APIVersion: chart.APIVersionV2, Name: "settings", Version: "1.2.3"},
		Templates: []*chart.File{{Name: "templates/a.yaml", Data: []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {size: \"{{ .Values.size }}\"}\n")}},
	}
	if _, err := install.RunWithContext(t.Context(), settings, map[string]any{"size": "big"}); err != nil {
		t.Fatal(err)
	}
	upgrade := action.NewUpgrade(installed)
	upgrade.Namespace = namespace
	if _, err := upgrade.RunWithContext(t.Context(), "web", settings, map[string]any{"size": "small"}); err != nil {
		t.Fatal(err)
	}
	member, err := dynamic.NewForConfig(testenv.Config(0))
	if err != nil {
		t.Fatal(err)
	}
	keys, err := seal.Parse([]byte(seal.New()))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	sealed, err := store.Open(t.Context(), dir, store.Sealed(keys))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sealed.Close(); err != nil {
			t.Error(err)
		}
	})
	f := fleetOf(t, sealed, dir, "elm", "oak")
	f.serve(secretKind, "secrets", true, "elm", "oak")
	f.serve(schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, "configmaps", true, "oak")
	for _, resource := range []string{"secrets", "configmaps"} {
		list, err := member.Resource(schema.GroupVersionResource{Version: "v1", Resource: resource}).Namespace(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			f.put(t, "oak", resource, &list.Items[i])
			if bare := list.Items[i].DeepCopy(); resource == "secrets" {
				delete(bare.Object, "data")
				f.put(t, "elm", resource, bare)
			}
		}
	}
	f.mirror.data["oak"] = true
	for _, root := range []string{f.url, f.url + "/clusters/oak", strings.Replace(f.url, fleetv1alpha1.FleetPath, fleetv1alpha1.QualifiedPath, 1)} {
		within := namespace
		if strings.HasSuffix(root, "/qualified/proxy") {
			within += "@oak"
		}
		c := helm(t, root, within)
		releases, err := action.NewList(c).Run()
		if err != nil || len(releases) != 1 || releases[0].Name != "web" || releases[0].Version != 2 {
			t.Fatalf("%s: list: %v %v", root, releases, err)
		}
		if root == f.url {
			// Here the release has an object in elm and one in oak. It can be read only in a
			// cluster.
			continue
		}
		release, err := action.NewStatus(c).Run("web")
		if err != nil || release.Info.Status != "deployed" || !strings.Contains(release.Manifest, "size: \"small\"") {
			t.Errorf("%s: status: %v %v", root, release, err)
		}
		values, err := action.NewGetValues(c).Run("web")
		if err != nil || values["size"] != "small" {
			t.Errorf("%s: values: %v %v", root, values, err)
		}
		history, err := action.NewHistory(c).Run("web")
		if err != nil || len(history) != 2 {
			t.Errorf("%s: history: %v %v", root, history, err)
		}
	}
	releases, err := action.NewList(helm(t, f.url+"/clusters/elm", namespace)).Run()
	if err != nil || len(releases) != 0 {
		t.Errorf("without data: %v %v", releases, err)
	}
	if resp, _ := f.ask(t, http.MethodGet, "/clusters/elm/api/v1/secrets?labelSelector=owner%3Dhelm", ""); !strings.Contains(fmt.Sprint(resp.Header["Warning"]), "only the metadata is mirrored") {
		t.Errorf("%v", resp.Header)
	}
}

// TestUserInterfaces: the requests of Headlamp and k9s, as in their sources, are answered.
func TestUserInterfaces(t *testing.T) {
	kinds(t)
	f := newFleet(t, "elm", "oak")
	f.fill(t, func(cluster string, o *unstructured.Unstructured) bool {
		return cluster == "oak" || o.GetKind() == "CustomResourceDefinition"
	}, "elm", "oak")
	const table = "application/json;as=Table;v=v1;g=meta.k8s.io, application/json;as=Table;v=v1beta1;g=meta.k8s.io, application/json"
	for name, c := range map[string]struct {
		path, accept string
		kind         string
	}{
		"Version":            {"/version", "application/json", "<nil>"},
		"Groups":             {"/apis", "application/json", "APIGroupList"},
		"Core":               {"/api", "application/json", "APIVersions"},
		"CoreTypes":          {"/api/v1", "application/json", "APIResourceList"},
		"Apps":               {"/apis/apps/v1", "application/json", "APIResourceList"},
		"HeadlampList":       {"/api/v1/pods?limit=100", "application/json", "PodList"},
		"HeadlampNamespaced": {"/api/v1/namespaces/shop/pods?labelSelector=app%3Dweb", "", "PodList"},
		"HeadlampEvents":     {"/api/v1/events?limit=2000", "", "EventList"},
		"HeadlampOne":        {"/apis/apiextensions.k8s.io/v1/customresourcedefinitions?fieldSelector=metadata.name%3Dwidgets.example.org", "", "CustomResourceDefinitionList"},
		"HeadlampInvolved":   {"/api/v1/namespaces/shop/events?fieldSelector=involvedObject.kind%3DPod,involvedObject.name%3Drunning", "", "EventList"},
		"K9sTable":           {"/api/v1/namespaces/shop/pods?includeObject=Object", table, "Table"},
		"K9sTableOfAll":      {"/apis/apps/v1/deployments", table, "Table"},
		"K9sTableOfCustom":   {"/apis/example.org/v1/widgets", table, "Table"},
		"K9sNamespaces":      {"/api/v1/namespaces?limit=1", "application/json", "NamespaceList"},
		"K9sPulse":           {"/api/v1/nodes?limit=500&resourceVersion=0", "application/json", "NodeList"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, cluster := range []string{"", "/clusters/oak"} {
				resp, body := f.ask(t, http.MethodGet, cluster+c.path, c.accept)
				if resp.StatusCode != http.StatusOK || fmt.Sprint(body["kind"]) != c.kind {
					t.Errorf("%s: %d %v", cluster+c.path, resp.StatusCode, body)
				}
				if items, ok := body["items"].([]any); ok && len(items) == 0 && name != "HeadlampInvolved" {
					t.Errorf("%s is empty", cluster+c.path)
				}
			}
		})
	}
	t.Run("HeadlampListsAndWatches", func(t *testing.T) {
		_, body := f.ask(t, http.MethodGet, "/apis/apps/v1/deployments", "")
		list := unstructured.UnstructuredList{Object: body}
		conn := f.socket(t, "/apis/apps/v1/deployments?watch=1&resourceVersion="+list.GetResourceVersion(), "", "base64.binary.k8s.io")
		_, deployment := f.ask(t, http.MethodGet, "/clusters/oak/apis/apps/v1/namespaces/shop/deployments/web", "")
		changed := &unstructured.Unstructured{Object: deployment}
		changed.SetLabels(map[string]string{"seen": "true"})
		f.put(t, "oak", "deployments", changed)
		var message string
		if err := websocket.Message.Receive(conn, &message); err != nil || !strings.Contains(message, `"MODIFIED"`) || !strings.Contains(message, `"seen":"true"`) {
			t.Errorf("%s %v", message, err)
		}
	})
}
