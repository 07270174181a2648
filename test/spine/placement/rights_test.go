package placement

import (
	"errors"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/test/spine"
)

// withRole returns a client of a user whose only right is the hub's role of that name in the
// test's namespace.
func withRole(w *spine.World, name, role string) *testenv.API {
	w.Helper()
	w.Hub.Apply(w, `
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: `+name+`, namespace: `+w.Namespace+`}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: `+role+`}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: `+name+`}]
`)
	cfg, err := w.Hub.Config()
	w.Must(err)
	cfg.Impersonate = rest.ImpersonationConfig{UserName: name}
	api, err := testenv.NewAPI(cfg)
	w.Must(err)
	return api
}

// absent fails if a member has an object.
func absent(w *spine.World, m *testenv.Member, apiVersion, kind, name string) {
	w.Helper()
	if o := w.Lookup(m.API, apiVersion, kind, w.Namespace, name); o != nil {
		w.Errorf("%s has %s %s: %v", m.Name, kind, name, o)
	}
}

// TestTenantsGetNoRightsInMembers tries to raise the rights of administrators and editors of
// one hub namespace in every member.
func TestTenantsGetNoRightsInMembers(t *testing.T) {
	t.Parallel()
	w := spine.Start(t, "tenants")
	w.Hub.MergePatch(t, "v1", "Namespace", "", w.Namespace, `{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"restricted"}}}`)
	alice, bob := withRole(w, "alice", "admin"), withRole(w, "bob", "edit")

	// The override would turn the binding to the role view into a binding to cluster-admin.
	const binding = "rbac.authorization.k8s.io/v1"
	w.Eventually("alice's rights are known", func() error {
		return alice.TryApply(t.Context(), `
apiVersion: policy.orrery.dev/v1alpha1
kind: OverridePolicy
metadata: {name: escalate, namespace: `+w.Namespace+`}
spec:
  resourceSelectors: [{apiVersion: `+binding+`, kind: RoleBinding, name: escalate}]
  overrideRules: [{overriders: {plaintext: [{path: /roleRef/name, operator: replace, value: cluster-admin}]}}]
`)
	})
	alice.Apply(t, `
apiVersion: `+binding+`
kind: RoleBinding
metadata: {name: escalate, namespace: `+w.Namespace+`}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: alice}]
`+spine.Policy(w.Namespace, "escalate", "{apiVersion: "+binding+", kind: RoleBinding, name: escalate}", spine.In("oak")))
	w.Binding("RoleBinding", "escalate", "FullyApplied=False/RenderFailed")
	absent(w, w.Oak, binding, "RoleBinding", "escalate")

	// The hub accepts a privileged pod as a template, but does not apply it in members.
	w.Eventually("bob's rights are known", func() error {
		return bob.TryApply(t.Context(), spine.Policy(w.Namespace, "all", spine.Everything, spine.In("oak")))
	})
	bob.Apply(t, strings.Replace(spine.Deployment(w.Namespace, "root", 1), "containers:", "hostPID: true, containers:", 1))
	w.Binding("Deployment", "root", "FullyApplied=False/PodSecurity")
	bob.Apply(t, spine.ConfigMap(w.Namespace, "settings", "1"))
	w.Applied("ConfigMap", "settings")
	absent(w, w.Oak, "apps/v1", "Deployment", "root")
	w.Eventually("the member's namespace says what the hub's does", func() error {
		n, err := w.Oak.Find(t.Context(), "v1", "Namespace", "", w.Namespace)
		if err == nil && n.GetLabels()["pod-security.kubernetes.io/enforce"] != "restricted" {
			err = errors.New("it does not")
		}
		return err
	})

	// The pod is applied once the administrator allows it in the namespace.
	w.Hub.MergePatch(t, "v1", "Namespace", "", w.Namespace, `{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"privileged"}}}`)
	w.Placed(w.Oak, "apps/v1", "Deployment", "root")
}
