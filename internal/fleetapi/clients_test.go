package fleetapi

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"golang.org/x/net/websocket"
	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/testenv"
)

// kubelet serves a pod with a container web as a kubelet does: logs, and commands over
// WebSockets. It returns the address.
func kubelet(t *testing.T) *net.TCPAddr {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s says hello\n", r.PathValue("pod"))
	})
	mux.Handle("GET /exec/{namespace}/{pod}/{container}", websocket.Server{
		Handshake: func(config *websocket.Config, _ *http.Request) error {
			config.Protocol = []string{"v5.channel.k8s.io"}
			return nil
		},
		Handler: func(conn *websocket.Conn) {
			conn.PayloadType = websocket.BinaryFrame
			fmt.Fprintf(conn, "\x01%s runs %s\n", conn.Request().PathValue("pod"), strings.Join(conn.Request().URL.Query()["command"], " "))
			fmt.Fprint(conn, "\x03"+`{"kind":"Status","apiVersion":"v1","status":"Success"}`)
			_ = conn.WriteClose(1000)
			_, _ = io.Copy(io.Discard, conn) // until the client disconnects
		},
	})
	server := httptest.NewTLSServer(mux)
	t.Cleanup(server.Close)
	address, ok := server.Listener.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatal(server.Listener.Addr())
	}
	return address
}

// busy adds a pod on a node, types of its own, and metrics of nodes and pods to a cluster.
func busy(t *testing.T, config *rest.Config) (namespace string, c client.Client) {
	t.Helper()
	namespace = testenv.Namespace(t, config)
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	at := kubelet(t)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n-" + namespace}}
	create(t, c, node)
	status := corev1.NodeStatus{
		Addresses:        []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: at.IP.String()}},
		DaemonEndpoints:  corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(at.Port)}},
		DeclaredFeatures: []string{"ExtendWebSocketsToKubelet"},
	}
	testenv.Eventually(t, "the node's status", testenv.Patience, func() error {
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(node), node); err != nil {
			return err
		}
		node.Status = status
		return c.Status().Update(t.Context(), node)
	})
	create(t, c, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"},
		Spec:       corev1.PodSpec{NodeName: node.Name, Containers: []corev1.Container{{Name: "web", Image: "nginx"}}},
	})
	define := func(group, plural, kind string, scope apiextensionsv1.ResourceScope, properties map[string]apiextensionsv1.JSONSchemaProps) {
		t.Helper()
		anything := properties == nil
		definition := &apiextensionsv1.CustomResourceDefinition{
			ObjectMeta: metav1.ObjectMeta{Name: plural + "." + group, Annotations: map[string]string{"api-approved.kubernetes.io": "unapproved, a test"}},
			Spec: apiextensionsv1.CustomResourceDefinitionSpec{
				Group: group, Scope: scope, Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Kind: kind},
				Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
					Name: "v1beta1", Served: true, Storage: true,
					Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
						Type: "object", XPreserveUnknownFields: &anything, Properties: properties,
					}},
				}},
			},
		}
		if !anything {
			definition.Spec.Versions[0].Schema.OpenAPIV3Schema.XPreserveUnknownFields = nil
		}
		create(t, c, definition)
	}
	define("sky.example.org", "orbits", "Orbit", apiextensionsv1.NamespaceScoped, map[string]apiextensionsv1.JSONSchemaProps{
		"spec": {Type: "object", Description: "What the orbit is to be.", Properties: map[string]apiextensionsv1.JSONSchemaProps{
			"radius": {Type: "integer", Description: "Half of the long way across."},
		}},
	})
	define("metrics.k8s.io", "nodes", "NodeMetrics", apiextensionsv1.ClusterScoped, nil)
	define("metrics.k8s.io", "pods", "PodMetrics", apiextensionsv1.NamespaceScoped, nil)
	usage := map[string]any{"cpu": "250m", "memory": "64Mi"}
	for _, o := range []map[string]any{
		{"apiVersion": "sky.example.org/v1beta1", "kind": "Orbit", "metadata": map[string]any{"namespace": namespace, "name": "mars"}},
		{"apiVersion": "metrics.k8s.io/v1beta1", "kind": "NodeMetrics", "metadata": map[string]any{"name": node.Name}, "usage": usage},
		{
			"apiVersion": "metrics.k8s.io/v1beta1", "kind": "PodMetrics", "metadata": map[string]any{"namespace": namespace, "name": "web"},
			"containers": []any{map[string]any{"name": "web", "usage": usage}},
		},
	} {
		create(t, c, &unstructured.Unstructured{Object: o})
	}
	return namespace, c
}

// TestClients: clients of Kubernetes work through the hub's real API server, for the fleet and
// for one cluster.
func TestClients(t *testing.T) {
	namespace, _ := busy(t, testenv.Config(0))
	w := newWorld(t)
	w.eventually(t, "--context fleet get orbits -A", "mars")
	w.eventually(t, "--context fleet get pods -n "+namespace, "web")
	w.eventually(t, "--context fleet get --raw /apis/metrics.k8s.io/v1beta1/pods", `"kind":"PodMetricsList"`)
	w.eventually(t, "--context fleet get nodes", "n-"+namespace)
	inOak := " --server " + w.hub.Config().Host + fleetv1alpha1.FleetPath + "/clusters/oak"
	for name, c := range map[string]struct {
		args  string
		works bool
		says  string
	}{
		"Logs":               {"--context oak logs web -n " + namespace, true, "web says hello"},
		"Exec":               {"--context oak exec web -n " + namespace + " -- date -u", true, "web runs date -u"},
		"LogsOfTheFleet":     {"--context fleet logs web -n " + namespace, false, "kubectl --context"},
		"TopInOak":           {"--context oak top pods -n " + namespace, true, "250m"},
		"TopPods":            {"--context fleet top pods -n " + namespace, true, "250m"},
		"TopPodsOfAll":       {"--context fleet top pods -A", true, "64Mi"},
		"TopNodes":           {"--context fleet top nodes", true, "250m"},
		"TopQualified":       {"--context fleet-qualified top pods -n " + namespace + "@oak", true, "250m"},
		"TopOfTheCluster":    {"--context fleet" + inOak + " top pods -n " + namespace, true, "250m"},
		"Explain":            {"--context fleet explain orbits.spec.radius", true, "Half of the long way across"},
		"ExplainMetadata":    {"--context fleet explain orbits.metadata.labels", true, "map[string]string"},
		"ExplainKind":        {"--context fleet explain orbits", true, "What the orbit is to be"},
		"ExplainOfTheHub":    {"--context fleet explain clusters.cluster.orrery.dev", false, "doesn't have a resource type"},
		"ExplainInOak":       {"--context fleet" + inOak + " explain orbits.spec", true, "radius"},
		"ExplainBuiltIn":     {"--context fleet" + inOak + " explain pods.spec.nodeName", true, "FIELD: nodeName"},
		"ExplainQualified":   {"--context fleet-qualified explain orbits.spec", true, "radius"},
		"DocumentsOfNoOne":   {"--context hub get --raw " + fleetv1alpha1.FleetPath + "/clusters/oka/openapi/v3", false, "NotFound"},
		"DocumentsAreRights": {"--as eve --context fleet" + inOak + " explain orbits", false, "Forbidden"},
		"CanI":               {"--context fleet auth can-i list orbits.sky.example.org", true, "yes"},
		"Events":             {"--context fleet get events.v1.events.k8s.io -A", true, ""},
		"OlderVersion":       {"--context fleet get horizontalpodautoscalers.v1.autoscaling -A", true, ""},
	} {
		if !t.Run(name, func(t *testing.T) {
			w.says(t, c.args, c.works, c.says, func(string) {})
		}) {
			t.FailNow() // each case waits long for its answer
		}
	}
	t.Run("Helm", func(t *testing.T) { w.helm(t, namespace) })
	t.Run("WebSocket", func(t *testing.T) { w.webSocket(t, namespace) })
	t.Run("Reviews", w.selfReviews)
}

// helm installs a release in oak through the hub, and reads it there. The fleet shows no
// release, because its mirror has no data of Secrets.
func (w *world) helm(t *testing.T, namespace string) {
	of := func(context string) *action.Configuration {
		flags := genericclioptions.NewConfigFlags(false)
		kubeconfig := w.hub.KubeconfigPath()
		flags.KubeConfig, flags.Context, flags.Namespace = &kubeconfig, &context, &namespace
		c := &action.Configuration{}
		if err := c.Init(flags, namespace, "secret", func(string, ...any) {}); err != nil {
			t.Fatal(err)
		}
		return c
	}
	install := action.NewInstall(of("oak"))
	install.ReleaseName, install.Namespace = "web", namespace
	if _, err := install.RunWithContext(t.Context(), &chart.Chart{
		Metadata:  &chart.Metadata{APIVersion: chart.APIVersionV2, Name: "settings", Version: "1.2.3"},
		Templates: []*chart.File{{Name: "templates/a.yaml", Data: []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n")}},
	}, map[string]any{"size": "big"}); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "the release is read", testenv.Patience, func() error {
		for _, context := range []string{"oak", "fleet"} {
			releases, err := action.NewList(of(context)).Run()
			if want := map[string]int{"oak": 1}[context]; err != nil || len(releases) != want {
				return fmt.Errorf("%s: list: %v %w", context, releases, err)
			}
		}
		release, err := action.NewStatus(of("oak")).Run("web")
		if err != nil || release.Info.Status != "deployed" {
			return fmt.Errorf("status: %v %w", release, err)
		}
		values, err := action.NewGetValues(of("oak")).Run("web")
		if err != nil || values["size"] != "big" {
			return fmt.Errorf("values: %v %w", values, err)
		}
		history, err := action.NewHistory(of("oak")).Run("web")
		if err != nil || len(history) != 1 {
			return fmt.Errorf("history: %v %w", history, err)
		}
		return nil
	})
}

// webSocket watches the fleet through the hub's API server as Headlamp does.
func (w *world) webSocket(t *testing.T, namespace string) {
	credentials, err := rest.TLSConfigFor(w.hub.Config())
	if err != nil {
		t.Fatal(err)
	}
	credentials.NextProtos = []string{"http/1.1"}
	host := w.hub.Config().Host
	config, err := websocket.NewConfig("wss"+strings.TrimPrefix(host, "https")+fleetv1alpha1.FleetPath+"/api/v1/namespaces/"+namespace+"/pods?watch=1", host)
	if err != nil {
		t.Fatal(err)
	}
	config.TlsConfig, config.Protocol = credentials, []string{"base64.binary.k8s.io"}
	testenv.Eventually(t, "a watch by WebSocket begins", testenv.Patience, func() error {
		conn, err := config.DialContext(t.Context())
		if err != nil {
			return err
		}
		defer conn.Close()
		var event struct {
			Type   string
			Object corev1.Pod
		}
		if err := websocket.JSON.Receive(conn, &event); err != nil || event.Type != "ADDED" || event.Object.Name != "web" {
			return fmt.Errorf("%w %+v", err, event)
		}
		return nil
	})
	nobody, err := websocket.NewConfig(config.Location.String(), host)
	if err != nil {
		t.Fatal(err)
	}
	nobody.TlsConfig = &tls.Config{RootCAs: credentials.RootCAs, NextProtos: []string{"http/1.1"}}
	if _, err := nobody.DialContext(t.Context()); err == nil {
		t.Error("who nobody is watches")
	}
}

// selfReviews sends the reviews that k9s and Headlamp send before they show something: in
// protobuf and JSON, for the fleet and for one cluster.
func (w *world) selfReviews(t *testing.T) {
	w.grant(t, "see-pods", "", rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list", "watch"}}, "robin")
	w.grant(t, "ask-fleet", "", rbacv1.PolicyRule{
		APIGroups: []string{"fleet.orrery.dev"}, Resources: []string{"resources/proxy"}, Verbs: []string{"get", "create"},
	}, "robin")
	for _, root := range []string{"", "/clusters/oak"} {
		for _, contentType := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
			config := rest.CopyConfig(w.hub.Config())
			config.Host += fleetv1alpha1.FleetPath + root
			config.ContentType = contentType
			config.Impersonate.UserName = "robin"
			c, err := kubernetes.NewForConfig(config)
			if err != nil {
				t.Fatal(err)
			}
			for verb, want := range map[string]bool{"get": true, "list": true, "watch": true, "delete": false} {
				testenv.Eventually(t, "robin may "+verb, testenv.Patience, func() error {
					review, err := c.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), &authorizationv1.SelfSubjectAccessReview{
						Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Resource: "pods"}},
					}, metav1.CreateOptions{})
					if err == nil && review.Status.Allowed != want {
						err = fmt.Errorf("%+v", review.Status)
					}
					return err
				})
			}
			testenv.Eventually(t, "robin's rules", testenv.Patience, func() error {
				rules, err := c.AuthorizationV1().SelfSubjectRulesReviews().Create(t.Context(), &authorizationv1.SelfSubjectRulesReview{
					Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: "default"},
				}, metav1.CreateOptions{})
				if err != nil {
					return err
				}
				if text, err := json.Marshal(rules.Status.ResourceRules); err != nil || !strings.Contains(string(text), `"pods"`) {
					return fmt.Errorf("%w %s", err, text)
				}
				return nil
			})
		}
	}
}
