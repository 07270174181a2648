package agent_test

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/internal/tunnel"
	"orrery.dev/orrery/internal/tunnel/agent"
	"orrery.dev/orrery/internal/tunnel/manifest"
)

// token returns a token of a ServiceAccount.
func token(t *testing.T, account string) string {
	t.Helper()
	var token string
	testenv.Eventually(t, "a token", testenv.Patience, func() error {
		request := &clientToken{}
		err := post(t, "/api/v1/namespaces/"+tunnel.Namespace+"/serviceaccounts/"+account+"/token",
			`{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`, request)
		token = request.Status.Token
		return err
	})
	return token
}

type clientToken struct {
	Status struct {
		Token string `json:"token"`
	} `json:"status"`
}

func post(t *testing.T, path, body string, into any) error {
	t.Helper()
	return postAs(t, oak.DirectConfig(), path, body, into)
}

func postAs(t *testing.T, cfg *rest.Config, path, body string, into any) error {
	t.Helper()
	c, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return err
	}
	response, err := c.Post(cfg.Host+path, "application/json", strings.NewReader(body))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode/100 != 2 {
		return fmt.Errorf("%s: %s", response.Status, text)
	}
	return json.Unmarshal(text, into)
}

// check is an access review.
type check struct {
	verb, group, resource, subresource, namespace, name string
	path                                                string
	may                                                 bool
}

// may reports whether a ServiceAccount may perform an action.
func may(t *testing.T, account string, c check) bool {
	t.Helper()
	spec := map[string]any{}
	if c.path != "" {
		spec["nonResourceAttributes"] = map[string]any{"verb": c.verb, "path": c.path}
	} else {
		spec["resourceAttributes"] = map[string]any{
			"verb": c.verb, "group": c.group, "resource": c.resource, "subresource": c.subresource, "namespace": c.namespace, "name": c.name,
		}
	}
	body, err := json.Marshal(map[string]any{"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": spec})
	if err != nil {
		t.Fatal(err)
	}
	cfg := oak.DirectConfig()
	as := rest.AnonymousClientConfig(cfg)
	as.BearerToken = token(t, account)
	var answer struct {
		Status struct {
			Allowed bool `json:"allowed"`
		} `json:"status"`
	}
	if err := postAs(t, as, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", string(body), &answer); err != nil {
		t.Fatal(err)
	}
	return answer.Status.Allowed
}

// TestManifest applies the manifest of each profile to a real API server, and checks the rights of
// the hub and the agent.
func TestManifest(t *testing.T) {
	h := newHub(t)
	t.Cleanup(func() { oak.Remove(t, "v1", "Namespace", "", "shop") })
	const system = tunnel.Namespace
	own := []check{
		{verb: "create", resource: "serviceaccounts", subresource: "token", namespace: system, name: agent.HubAccount, may: true},
		{verb: "create", resource: "serviceaccounts", subresource: "token", namespace: system, name: agent.Name},
		{verb: "create", resource: "serviceaccounts", subresource: "token", namespace: "kube-system", name: "default"},
		{verb: "get", resource: "secrets", namespace: system, name: agent.Name, may: true},
		{verb: "get", resource: "secrets", namespace: system, name: "another"},
		{verb: "list", resource: "secrets", namespace: system},
		{verb: "create", resource: "secrets", namespace: system},
		{verb: "patch", group: "coordination.k8s.io", resource: "leases", namespace: system, name: agent.Name, may: true},
		{verb: "patch", group: "coordination.k8s.io", resource: "leases", namespace: "kube-system", name: agent.Name},
		{verb: "delete", resource: "namespaces", name: "kube-system"},
		{verb: "patch", resource: "namespaces", name: "kube-system"},
		{verb: "list", resource: "pods", namespace: "shop"},
		{verb: "impersonate", resource: "users"},
		{verb: "create", group: rbacv1.GroupName, resource: "clusterrolebindings"},
		{verb: "delete", group: rbacv1.GroupName, resource: "clusterrolebindings", name: "cluster-admin"},
	}
	read := []check{
		{verb: "list", resource: "pods", may: true},
		{verb: "watch", resource: "nodes", may: true},
		{verb: "list", group: "apps", resource: "deployments", may: true},
		{verb: "list", group: "apiextensions.k8s.io", resource: "customresourcedefinitions", may: true},
		{verb: "get", path: "/version", may: true},
		{verb: "get", path: "/metrics"},
		{verb: "list", resource: "secrets"},
		{verb: "get", resource: "secrets", namespace: "kube-system", name: "any"},
		{verb: "create", resource: "serviceaccounts", subresource: "token", namespace: "kube-system"},
		{verb: "create", resource: "pods", subresource: "exec", namespace: "kube-system"},
		{verb: "get", resource: "nodes", subresource: "proxy"},
		{verb: "delete", resource: "pods", namespace: "kube-system"},
		{verb: "create", resource: "namespaces"},
		{verb: "impersonate", resource: "users"},
		{verb: "list", group: "example.com", resource: "gadgets", may: true}, // by the label
	}
	for name, tc := range map[string]struct {
		agent *clusterv1alpha1.Agent
		hub   []check
	}{
		"All": {nil, []check{{verb: "impersonate", resource: "users", may: true}, {verb: "*", group: "*", resource: "*", may: true}}},
		"Placement": {
			&clusterv1alpha1.Agent{Profile: clusterv1alpha1.AgentProfilePlacement, Namespaces: []string{"shop"}},
			append([]check{
				{verb: "*", group: "*", resource: "*", namespace: "shop", may: true},
				{verb: "list", resource: "secrets", namespace: "shop", may: true},
				{verb: "list", resource: "secrets", namespace: "default"},
			}, read...),
		},
		"Mirror": {
			&clusterv1alpha1.Agent{Profile: clusterv1alpha1.AgentProfileMirror},
			append([]check{
				{verb: "create", resource: "configmaps", namespace: "shop"},
				{verb: "list", resource: "secrets", namespace: "shop"},
			}, read...),
		},
	} {
		t.Run(name, func(t *testing.T) {
			apply(t, "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\n"+
				"metadata: {name: gadgets, labels: {rbac.orrery.dev/aggregate-to-mirror: \"true\"}}\n"+
				"rules:\n- {apiGroups: [example.com], resources: [gadgets], verbs: [get, list, watch]}\n")
			t.Cleanup(func() {
				oak.Remove(t, rbacv1.SchemeGroupVersion.String(), "ClusterRole", "", "gadgets")
				// Also deletes the rights that one profile grants in the namespace.
				oak.Remove(t, "v1", "Namespace", "", "shop")
			})
			text := h.manifest("one", func(o *manifest.Options) { o.Agent, o.Image = tc.agent, "registry.example/agent:1" })
			oak.Apply(t, text)
			oak.Apply(t, text) // a second apply changes no immutable field
			for account, checks := range map[string][]check{agent.HubAccount: tc.hub, agent.Name: own} {
				for _, c := range checks {
					testenv.Eventually(t, "rights of "+account, testenv.Patience, func() error {
						if got := may(t, account, c); got != c.may {
							return fmt.Errorf("%+v: it may: %t", c, got)
						}
						return nil
					})
				}
			}
			testenv.Eventually(t, "the pods are made", testenv.Patience, func() error {
				pods, err := oak.ListKind(t.Context(), "v1", "Pod", system)
				if err == nil && len(pods) != 2 {
					err = fmt.Errorf("%d pods", len(pods))
				}
				return err
			})
		})
	}
}

// TestRestricted: the pods meet the strictest Pod Security Standard.
func TestRestricted(t *testing.T) {
	h := newHub(t)
	t.Cleanup(func() { clean(t) })
	oak.Apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: orrery-system, labels: {pod-security.kubernetes.io/enforce: restricted}}\n")
	oak.Apply(t, h.manifest("one", func(o *manifest.Options) { o.Image = "registry.example/agent:1" }))
	testenv.Eventually(t, "the pods are made", testenv.Patience, func() error {
		var pods corev1.PodList
		if err := oak.List(t.Context(), &pods, client.InNamespace(tunnel.Namespace)); err != nil {
			return err
		}
		if len(pods.Items) != 2 {
			return fmt.Errorf("%d pods", len(pods.Items))
		}
		return nil
	})
}
