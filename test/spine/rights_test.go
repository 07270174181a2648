package spine

import (
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"orrery.dev/orrery/internal/testenv"
)

// tenant is somebody with the hub's own role of that name in the test's namespace, and no other right.
func (w *world) tenant(name, role string) *testenv.API {
	w.Helper()
	w.hub.Apply(w, `
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: `+name+`, namespace: `+w.ns+`}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: `+role+`}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: `+name+`}]
`)
	cfg, err := w.hub.Config()
	w.must(err)
	cfg.Impersonate = rest.ImpersonationConfig{UserName: name}
	api, err := testenv.NewAPI(cfg)
	w.must(err)
	return api
}

// absent fails if a member has an object.
func (w *world) absent(m *testenv.Member, apiVersion, kind, name string) {
	w.Helper()
	if o, err := m.Find(w.Context(), apiVersion, kind, w.ns, name); !apierrors.IsNotFound(err) {
		w.Errorf("%s has %s %s: %v (%v)", m.Name, kind, name, o, err)
	}
}

// TestTenantsGetNoRightsInMembers is what administrators and editors of one namespace of the hub did to
// become more in every member.
func TestTenantsGetNoRightsInMembers(t *testing.T) {
	w := start(t, "tenants")
	w.hub.MergePatch(t, "v1", "Namespace", "", w.ns, `{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"restricted"}}}`)
	alice, bob := w.tenant("alice", "admin"), w.tenant("bob", "edit")

	// An override that is there first would make the binding to view one to cluster-admin.
	const binding = "rbac.authorization.k8s.io/v1"
	w.eventually("alice's rights are known", func() error {
		return alice.TryApply(t.Context(), `
apiVersion: policy.orrery.dev/v1alpha1
kind: OverridePolicy
metadata: {name: escalate, namespace: `+w.ns+`}
spec:
  resourceSelectors: [{apiVersion: `+binding+`, kind: RoleBinding, name: escalate}]
  overrideRules: [{overriders: {plaintext: [{path: /roleRef/name, operator: replace, value: cluster-admin}]}}]
`)
	})
	alice.Apply(t, `
apiVersion: `+binding+`
kind: RoleBinding
metadata: {name: escalate, namespace: `+w.ns+`}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: alice}]
`+policy(w.ns, "escalate", "{apiVersion: "+binding+", kind: RoleBinding, name: escalate}", in("oak")))
	w.binding("RoleBinding", "escalate", "FullyApplied=False/RenderFailed")
	w.absent(w.oak, binding, "RoleBinding", "escalate")

	// A privileged pod is a template like any other for the hub, and nothing for a member.
	w.eventually("bob's rights are known", func() error {
		return bob.TryApply(t.Context(), policy(w.ns, "all", everything, in("oak")))
	})
	bob.Apply(t, strings.Replace(deployment(w.ns, "root", 1), "containers:", "hostPID: true, containers:", 1))
	w.binding("Deployment", "root", "FullyApplied=False/PodSecurity")
	bob.Apply(t, configMap(w.ns, "settings", "1"))
	w.applied("ConfigMap", "settings")
	w.absent(w.oak, "apps/v1", "Deployment", "root")
	w.eventually("the member's namespace says what the hub's does", func() error {
		n, err := w.oak.Find(t.Context(), "v1", "Namespace", "", w.ns)
		if err == nil && n.GetLabels()["pod-security.kubernetes.io/enforce"] != "restricted" {
			err = errors.New("it does not")
		}
		return err
	})

	// Whom the administrator lets may.
	w.hub.MergePatch(t, "v1", "Namespace", "", w.ns, `{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"privileged"}}}`)
	w.placed(w.oak, "apps/v1", "Deployment", "root")
}
