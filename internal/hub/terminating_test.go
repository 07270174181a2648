package hub

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
)

func TestWaitsForAPIs(t *testing.T) {
	waits := func() *corev1.Namespace {
		ns := &corev1.Namespace{Spec: corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{corev1.FinalizerKubernetes}}}
		ns.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
		for condition, status := range map[corev1.NamespaceConditionType]corev1.ConditionStatus{
			corev1.NamespaceDeletionDiscoveryFailure: corev1.ConditionTrue, corev1.NamespaceDeletionGVParsingFailure: corev1.ConditionFalse,
			corev1.NamespaceDeletionContentFailure: corev1.ConditionFalse, corev1.NamespaceContentRemaining: corev1.ConditionFalse,
			corev1.NamespaceFinalizersRemaining: corev1.ConditionFalse,
		} {
			ns.Status.Conditions = append(ns.Status.Conditions, corev1.NamespaceCondition{Type: condition, Status: status})
		}
		return ns
	}
	set := func(condition corev1.NamespaceConditionType, status corev1.ConditionStatus) func(*corev1.Namespace) {
		return func(ns *corev1.Namespace) {
			for i := range ns.Status.Conditions {
				if ns.Status.Conditions[i].Type == condition {
					ns.Status.Conditions[i].Status = status
				}
			}
		}
	}
	for name, c := range map[string]struct {
		change func(*corev1.Namespace)
		want   bool
	}{
		"Waits":             {func(*corev1.Namespace) {}, true},
		"NotDeleted":        {func(ns *corev1.Namespace) { ns.DeletionTimestamp = nil }, false},
		"AlreadyFinalized":  {func(ns *corev1.Namespace) { ns.Spec.Finalizers = nil }, false},
		"NobodyLookedYet":   {func(ns *corev1.Namespace) { ns.Status.Conditions = nil }, false},
		"AllAPIsAnswered":   {set(corev1.NamespaceDeletionDiscoveryFailure, corev1.ConditionFalse), false},
		"ObjectsLeft":       {set(corev1.NamespaceContentRemaining, corev1.ConditionTrue), false},
		"FinalizersLeft":    {set(corev1.NamespaceFinalizersRemaining, corev1.ConditionTrue), false},
		"DeletionsFailed":   {set(corev1.NamespaceDeletionContentFailure, corev1.ConditionTrue), false},
		"SomethingUnparsed": {set(corev1.NamespaceDeletionGVParsingFailure, corev1.ConditionTrue), false},
		"OneIsNotSaid":      {func(ns *corev1.Namespace) { ns.Status.Conditions = ns.Status.Conditions[1:] }, false},
	} {
		t.Run(name, func(t *testing.T) {
			ns := waits()
			c.change(ns)
			if got := waitsForAPIs(ns); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

// TestRecovered: the message is that of a namespace on Kubernetes 1.35.
func TestRecovered(t *testing.T) {
	ns := &corev1.Namespace{Status: corev1.NamespaceStatus{Conditions: []corev1.NamespaceCondition{{
		Type: corev1.NamespaceDeletionDiscoveryFailure, Status: corev1.ConditionTrue,
		Message: "Discovery failed for some groups, 2 failing: unable to retrieve the complete list of server APIs: " +
			"a.acme.io/v1: stale GroupVersion discovery: a.acme.io/v1, b.acme.io/v1: stale GroupVersion discovery: b.acme.io/v1",
	}}}}
	version := func(group, version string) apiregistrationv1.APIService {
		return apiregistrationv1.APIService{Spec: apiregistrationv1.APIServiceSpec{Group: group, Version: version}}
	}
	a, b := schema.GroupVersion{Group: "a.acme.io", Version: "v1"}, schema.GroupVersion{Group: "b.acme.io", Version: "v1"}
	registered := []apiregistrationv1.APIService{version("a.acme.io", "v1"), version("b.acme.io", "v1"), version("acme.io", "v1"), version("apps", "v1")}
	for name, c := range map[string]struct {
		failing []schema.GroupVersion
		want    bool
	}{
		"BothFail":     {[]schema.GroupVersion{a, b}, false},
		"OneAnswers":   {[]schema.GroupVersion{b}, true},
		"AllAnswer":    {nil, true},
		"AnotherFails": {[]schema.GroupVersion{a, b, {Group: "c", Version: "v1"}}, false},
	} {
		if got := recovered(ns, registered, c.failing); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

// checkWebhooks checks that a webhook that is a template, as charts bring them, refuses nothing
// on the hub.
func checkWebhooks(t *testing.T, h *Hub) {
	t.Helper()
	c := client(t, h.Config())
	fail, none := admissionregistrationv1.Fail, admissionregistrationv1.SideEffectClassNone
	hook := &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "acme"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "all.acme.io", FailurePolicy: &fail, SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
			ClientConfig: admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Namespace: "acme", Name: "acme"}},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.OperationAll},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
			}},
		}},
	}
	hooks := c.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	if _, err := hooks.Create(t.Context(), hook, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := hooks.Delete(t.Context(), hook.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}()
	if _, err := c.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "webhook-"}}, metav1.CreateOptions{}); err != nil {
		t.Errorf("a write is refused: %v", err)
	}
	// An API server takes a moment to know a webhook. Its metrics count the decisions of each
	// admission controller. Those that call webhooks are among these even before they know one.
	metrics, err := c.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	judges := func(name string) bool {
		return strings.Contains(string(metrics), `apiserver_admission_controller_admission_duration_seconds_count{name="`+name+`",operation="CREATE"`)
	}
	for name, want := range map[string]bool{"ValidatingAdmissionPolicy": true, "ValidatingAdmissionWebhook": false, "MutatingAdmissionWebhook": false} {
		if judges(name) != want {
			t.Errorf("%s judges what is created: %t, want %t", name, !want, want)
		}
	}
}

// TestNamespacesGoBesideAPIServices deletes namespaces while APIServices, as charts bring them,
// do not answer.
func TestNamespacesGoBesideAPIServices(t *testing.T) {
	t.Parallel() // the test waits for long
	h, _ := run(t, embedded(filepath.Join(t.TempDir(), "hub")))
	c := client(t, h.Config())
	services, err := aggregator.NewForConfig(h.Config())
	if err != nil {
		t.Fatal(err)
	}
	// The fleet API is not served here. With its APIService, every namespace would wait.
	if err := services.ApiregistrationV1().APIServices().Delete(t.Context(), "v1alpha1.fleet.orrery.dev", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*corev1.Service{
		{ObjectMeta: metav1.ObjectMeta{Name: "template"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 443}}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "outside"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"}},
	} {
		if _, err := c.CoreV1().Services("default").Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for service, goes := range map[string]bool{"absent": true, "template": true, "outside": false} {
		t.Run(service, func(t *testing.T) {
			registered := &apiregistrationv1.APIService{
				ObjectMeta: metav1.ObjectMeta{Name: "v1beta1.metrics.acme.io"},
				Spec: apiregistrationv1.APIServiceSpec{
					Group: "metrics.acme.io", Version: "v1beta1", GroupPriorityMinimum: 100, VersionPriority: 100, InsecureSkipTLSVerify: true,
					Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: service, Port: new(int32(1))},
				},
			}
			all := services.ApiregistrationV1().APIServices()
			if _, err := all.Create(t.Context(), registered, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			name := "terminating-" + service
			f := &finalizer{client: c, services: services, config: h.Config()}
			eventually(t, "the API does not answer", func() error {
				if failing, err := f.failing(t.Context()); len(failing) != 1 {
					return fmt.Errorf("%v %w", failing, err)
				}
				return nil
			})
			deleteNamespace(t, c, name)
			gone := func() error {
				ns, err := c.CoreV1().Namespaces().Get(t.Context(), name, metav1.GetOptions{})
				switch {
				case apierrors.IsNotFound(err):
					return nil
				case err != nil:
					return err
				default:
					return fmt.Errorf("it is there: %v", ns.Status.Conditions)
				}
			}
			if !goes {
				eventually(t, "the namespace waits for the API", func() error {
					ns, err := c.CoreV1().Namespaces().Get(t.Context(), name, metav1.GetOptions{})
					if err == nil && !waitsForAPIs(ns) {
						err = fmt.Errorf("it does not: %v", ns.Status.Conditions)
					}
					return err
				})
				// The hub checks each state of the namespace with the same function.
				ns, err := c.CoreV1().Namespaces().Get(t.Context(), name, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if done, err := f.finalize(t.Context(), ns); done || err != nil {
					t.Errorf("the namespace goes before its API has answered: %t, %v", done, err)
				}
				if gone() == nil {
					t.Error("the namespace is gone before its API has answered")
				}
			} else {
				eventually(t, "the namespace goes", gone)
			}
			if err := all.Delete(t.Context(), registered.Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the namespace goes with the API", gone)
		})
	}
}

func deleteNamespace(t *testing.T, c kubernetes.Interface, name string) {
	t.Helper()
	if _, err := c.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CoreV1().ConfigMaps(name).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "content"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.CoreV1().Namespaces().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}
