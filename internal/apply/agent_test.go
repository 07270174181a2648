package apply

import (
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/internal/tunnel"
	"orrery.dev/orrery/internal/tunnel/tunneltest"
)

// door is a proxy in front of an API server. It records the requests.
type door struct {
	*httptest.Server

	mu    sync.Mutex
	asked []string // METHOD PATH
}

func newDoor(t *testing.T, cfg *rest.Config) *door {
	t.Helper()
	target, err := url.Parse(cfg.Host)
	if err != nil {
		t.Fatal(err)
	}
	through, err := rest.TransportFor(rest.AnonymousClientConfig(cfg))
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }, Transport: through, FlushInterval: -1}
	d := &door{}
	d.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d.mu.Lock()
		d.asked = append(d.asked, r.Method+" "+r.URL.Path)
		d.mu.Unlock()
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(d.Close)
	return d
}

// unless returns the recorded requests that are not allowed.
func (d *door) unless(allowed func(method, path string) bool) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(d.asked), func(asked string) bool {
		method, path, _ := strings.Cut(asked, " ")
		return allowed(method, path)
	})
}

// pull joins oak by an agent that connects through d, and returns when oak is ready. The agent
// is a ServiceAccount with the rules and, if profile is not nil, with all rights in those of
// its namespaces that exist.
func (f *fleet) pull(site *tunneltest.Site, d *door, profile *clusterv1alpha1.Agent, rules []rbacv1.PolicyRule) *tunneltest.Agent {
	f.t.Helper()
	ctx := f.t.Context()
	api, err := kubernetes.NewForConfig(testenv.Config(oakServer))
	f.must(err)
	must := func(_ any, err error) {
		f.t.Helper()
		if err != nil && !apierrors.IsAlreadyExists(err) {
			f.t.Fatal(err)
		}
	}
	name := strings.ToLower(strings.ReplaceAll(f.t.Name(), "/", "-"))
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceDefault, Name: name}}
	about := metav1.ObjectMeta{Name: name}
	must(api.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Create(ctx, &corev1.ServiceAccount{ObjectMeta: about}, metav1.CreateOptions{}))
	must(api.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: about, Rules: rules}, metav1.CreateOptions{}))
	must(api.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: about, Subjects: subjects, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
	}, metav1.CreateOptions{}))
	if profile != nil {
		for _, namespace := range profile.Namespaces {
			if _, err := api.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{}); apierrors.IsNotFound(err) {
				continue // the test is about a namespace that is missing
			}
			must(api.RbacV1().Roles(namespace).Create(ctx, &rbacv1.Role{
				ObjectMeta: about, Rules: []rbacv1.PolicyRule{{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}}},
			}, metav1.CreateOptions{}))
			must(api.RbacV1().RoleBindings(namespace).Create(ctx, &rbacv1.RoleBinding{
				ObjectMeta: about, Subjects: subjects, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
			}, metav1.CreateOptions{}))
		}
	}
	token, err := api.CoreV1().ServiceAccounts(metav1.NamespaceDefault).CreateToken(ctx, name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	f.must(err)
	c := &clusterv1alpha1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: "oak"}, Spec: clusterv1alpha1.ClusterSpec{SyncMode: clusterv1alpha1.Pull, Agent: profile},
	}
	if err := f.hub.Get(ctx, client.ObjectKeyFromObject(c), &clusterv1alpha1.Cluster{}); err == nil {
		f.unjoin("oak") // an earlier test joined it
	}
	f.must(f.hub.Create(ctx, c))
	f.must(f.registry.Offer(ctx, c.Name, c.UID, tunnel.Credentials{
		Endpoint: "https://oak.invalid", TLSServerName: "example.com", Token: token.Status.Token,
		CA: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: d.Certificate().Raw}),
	}, true))
	agent := site.Run("oak", "a", strings.TrimPrefix(d.URL, "https://"))
	f.eventually("oak is ready", func() error {
		f.must(f.hub.Get(ctx, client.ObjectKeyFromObject(c), c))
		if !meta.IsStatusConditionTrue(c.Status.Conditions, clusterv1alpha1.ConditionReady) {
			return fmt.Errorf("it says %v", c.Status.Conditions)
		}
		return nil
	})
	return agent
}

func secretTemplate(namespace, name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"stringData": map[string]any{"key": "hidden"}}}
	o.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	o.SetNamespace(namespace)
	o.SetName(name)
	o.SetUID(types.UID("template-" + name))
	return o
}

// TestByAgent places by an agent. While the agent is disconnected, nothing is deleted, and
// nothing counts as deleted.
func TestByAgent(t *testing.T) {
	f := newFleet(t)
	f.loses = true
	site := tunneltest.New(t)
	f.tunnel = site.Gateway
	f.start()
	site.OnChange(f.registry.AgentsChanged)
	everything := []rbacv1.PolicyRule{
		{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}}, {NonResourceURLs: []string{"*"}, Verbs: []string{"*"}},
	}
	d := newDoor(t, testenv.Config(oakServer))
	agent := f.pull(site, d, nil, everything)
	oak := f.client(testenv.Config(oakServer))
	ns := testenv.Namespace(t, testenv.Config(hubServer))
	f.policy(ns)
	b := f.bind(configMap(ns, "web", "1"), nil, "oak")
	f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
	copied := f.data(oak, ns, "web", "1")
	f.eventually("it is mirrored", func() error { return f.presence("oak", ns, "web", presence.Present) })

	agent.Stop()
	f.eventually("oak is lost", func() error {
		if f.reachable("oak") == nil {
			return errors.New("it is reachable")
		}
		return nil
	})
	if err := f.presence("oak", ns, "web", presence.Unknown); err != nil {
		t.Error(err)
	}
	if err := f.placed(b, "oak", 1); err != nil {
		t.Error(err)
	}
	f.must(f.hub.Delete(t.Context(), b))
	f.eventually("the binding waits for the cluster", func() error {
		if err := f.hub.Get(t.Context(), client.ObjectKeyFromObject(b), b); err != nil {
			return err
		}
		if b.DeletionTimestamp.IsZero() || f.applier.Gone(b.UID, "oak") {
			return errors.New("it does not")
		}
		return nil
	})
	f.untouched(oak, copied)

	site.Run("oak", "b", strings.TrimPrefix(d.URL, "https://"))
	f.gone(oak, copied)
	f.gone(f.hub, b)
	f.unjoin("oak")
}

// TestPlacementProfile: the profile of the agent lets the hub place in one namespace only. The
// hub reads Secrets nowhere else, writes nowhere else, and creates no namespace.
func TestPlacementProfile(t *testing.T) {
	f := newFleet(t)
	site := tunneltest.New(t)
	f.tunnel = site.Gateway
	f.start()
	site.OnChange(f.registry.AgentsChanged)
	oak := f.client(testenv.Config(oakServer))
	inside, outside := testenv.Namespace(t, testenv.Config(hubServer)), testenv.Namespace(t, testenv.Config(hubServer))
	missing := testenv.Namespace(t, testenv.Config(hubServer))
	for _, name := range []string{inside, outside} {
		f.must(oak.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	}
	f.policy(inside)
	read := []string{"get", "list", "watch"}
	d := newDoor(t, testenv.Config(oakServer))
	agent := &clusterv1alpha1.Agent{Profile: clusterv1alpha1.AgentProfilePlacement, Namespaces: []string{inside}}
	f.pull(site, d, agent, []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"configmaps", "namespaces", "nodes", "pods", "services"}, Verbs: read},
		{APIGroups: []string{"apiextensions.k8s.io", "apiregistration.k8s.io", "apps"}, Resources: []string{"*"}, Verbs: read},
		{NonResourceURLs: []string{"*"}, Verbs: []string{"get"}},
	})

	config := f.bind(configMap(inside, "web", "1"), nil, "oak")
	secret := f.bind(secretTemplate(inside, "key"), nil, "oak")
	f.result(config, "oak", workv1alpha2.ReasonFullyApplied)
	f.result(secret, "oak", workv1alpha2.ReasonFullyApplied)
	f.data(oak, inside, "web", "1")
	f.eventually("the Secret is mirrored", func() error {
		if is, _ := f.mirror.Lookup("oak", secretResource, inside, "key"); is != presence.Present {
			return fmt.Errorf("it is %v", is)
		}
		return nil
	})
	if is, _ := f.mirror.Lookup("oak", secretResource, outside, "key"); is != presence.Unknown {
		t.Errorf("a Secret that the hub may not read is %v", is)
	}

	r := f.result(f.bind(configMap(outside, "web", "1"), nil, "oak"), "oak", workv1alpha2.ReasonRejected)
	if !strings.Contains(r.Message, "Placement") || !strings.Contains(r.Message, inside) {
		t.Errorf("it says %q", r.Message)
	}
	// The hub does not create a namespace that the profile allows and the cluster lacks.
	c := &clusterv1alpha1.Cluster{}
	f.eventually("the profile is widened", func() error {
		f.must(f.hub.Get(t.Context(), client.ObjectKey{Name: "oak"}, c))
		c.Spec.Agent.Namespaces = []string{inside, missing}
		return f.hub.Update(t.Context(), c)
	})
	f.eventually("the cluster says what is missing", func() error {
		f.must(f.hub.Get(t.Context(), client.ObjectKey{Name: "oak"}, c))
		joined := meta.FindStatusCondition(c.Status.Conditions, clusterv1alpha1.ConditionJoined)
		if joined == nil || !strings.Contains(joined.Message, missing) {
			return fmt.Errorf("it says %v", joined)
		}
		return nil
	})

	written := d.unless(func(method, path string) bool {
		return method == http.MethodGet || strings.Contains(path, "selfsubject") || strings.HasPrefix(path, "/api/v1/namespaces/"+inside+"/")
	})
	if len(written) > 0 {
		t.Errorf("it was written elsewhere: %v", written)
	}
	secrets := d.unless(func(_, path string) bool {
		return !strings.Contains(path, "/secrets") || strings.HasPrefix(path, "/api/v1/namespaces/"+inside+"/secrets")
	})
	if len(secrets) > 0 {
		t.Errorf("Secrets of others were asked for: %v", secrets)
	}

	// What was placed is deleted, as in any cluster.
	f.eventually("the profile is as it was", func() error {
		f.must(f.hub.Get(t.Context(), client.ObjectKey{Name: "oak"}, c))
		c.Spec.Agent.Namespaces = []string{inside}
		return f.hub.Update(t.Context(), c)
	})
	f.must(f.hub.Delete(t.Context(), config))
	f.must(f.hub.Delete(t.Context(), secret))
	f.gone(f.hub, config)
	f.gone(f.hub, secret)
	f.gone(oak, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: inside, Name: "web"}})
	f.unjoin("oak")
}
