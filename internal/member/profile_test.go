package member

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/testenv"
)

// TestBounded: each type has the namespaces in which the hub may read it.
func TestBounded(t *testing.T) {
	api := func(group, resource string, namespaced bool) API {
		return API{GroupVersionKind: schema.GroupVersionKind{Group: group, Version: "v1", Kind: resource}, Resource: resource, Namespaced: namespaced, Verbs: []string{"list", "watch"}}
	}
	apis := newAPIs([]API{api("", "nodes", false), api("", "pods", true), api("", "secrets", true), api("x", "gears", true), api("x", "wheels", false)}, nil, "")
	rule := func(groups, resources, verbs, names []string) authorizationv1.ResourceRule {
		return authorizationv1.ResourceRule{APIGroups: groups, Resources: resources, Verbs: verbs, ResourceNames: names}
	}
	core, all := []string{""}, []string{"*"}
	for name, tc := range map[string]struct {
		rules      []authorizationv1.ResourceRule
		namespaces []string
		want       map[string]string
	}{
		"Placement": {
			[]authorizationv1.ResourceRule{rule(core, []string{"nodes", "pods"}, []string{"get", "list", "watch"}, nil)},
			[]string{"shop", "lab"},
			map[string]string{"nodes": "all", "pods": "all", "secrets": "lab shop", "gears": "lab shop", "wheels": ""},
		},
		"Mirror": {
			[]authorizationv1.ResourceRule{rule(core, []string{"nodes", "pods"}, all, nil), rule([]string{"x"}, all, []string{"list", "watch"}, nil)},
			nil,
			map[string]string{"nodes": "all", "pods": "all", "secrets": "", "gears": "all", "wheels": "all"},
		},
		"NotEnough": {
			[]authorizationv1.ResourceRule{rule(core, all, []string{"list"}, nil), rule(all, []string{"gears"}, all, []string{"one"}), rule(core, []string{"nodes"}, []string{"watch"}, nil)},
			nil,
			map[string]string{"nodes": "all", "pods": "", "secrets": "", "gears": "", "wheels": ""},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := map[string]string{}
			for _, a := range apis.bounded(tc.rules, tc.namespaces).All() {
				got[a.Resource] = strings.Join(a.Within, " ")
				if a.Within == nil {
					got[a.Resource] = "all"
				}
				if a.Readable() != (got[a.Resource] != "") {
					t.Errorf("%s readable: %t", a.Resource, a.Readable())
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("within (-want +got):\n%s", diff)
			}
		})
	}
	if before := apis.All()[0]; before.Within != nil {
		t.Error("the list that was bounded has changed")
	}
}

// reading returns the rules of an agent that lets the hub read a cluster, except Secrets.
func reading() []rbacv1.PolicyRule {
	verbs := []string{"get", "list", "watch"}
	return []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"configmaps", "namespaces", "nodes", "pods"}, Verbs: verbs},
		{APIGroups: []string{"apiextensions.k8s.io", "apiregistration.k8s.io", "apps"}, Resources: []string{"*"}, Verbs: verbs},
		{NonResourceURLs: []string{"*"}, Verbs: []string{"get"}},
	}
}

// TestProfilesNeedLess: a cluster whose agent gives the hub fewer permissions is a member
// nevertheless. Administrators are not bound in it, and its status says what is missing.
func TestProfilesNeedLess(t *testing.T) {
	f, site := startPull(t, Options{})
	one := testenv.Config(1)
	namespace := testenv.Namespace(t, one)
	api := clientset(t, one)
	// Other tests of this package may have bound the administrators.
	if err := api.RbacV1().ClusterRoleBindings().Delete(t.Context(), fleetv1alpha1.AdminsGroup, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	name := account(t, one, "reader", reading()...)
	c := f.pull(t, "oak", &clusterv1alpha1.Agent{Profile: clusterv1alpha1.AgentProfilePlacement, Namespaces: []string{namespace}})
	site.Run("oak", "a", hostOf(one))
	if err := f.offer(t, c, offered(t, one, name), true); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it says what is missing", func() (bool, string) {
		said := meta.FindStatusCondition(f.cluster(t, "oak").Status.Conditions, reachable)
		return said != nil && strings.Contains(said.Message, "in namespace "+namespace) && strings.Contains(said.Message, "Placement") && strings.Contains(said.Message, "rejoin"), ""
	})
	// The permissions come after the agent. Its offer is tried again.
	role := &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "orrery"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}}},
	}
	if _, err := api.RbacV1().Roles(namespace).Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: role.ObjectMeta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceDefault, Name: name}},
	}
	if _, err := api.RbacV1().RoleBindings(namespace).Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	f.until(t, "oak", readyNow, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
	within := func(resource schema.GroupVersionResource) string {
		a, _ := f.member(t, "oak").APIs().Resource(resource)
		if a.Within == nil {
			return "all"
		}
		return strings.Join(a.Within, " ")
	}
	core := corev1.SchemeGroupVersion
	for resource, want := range map[schema.GroupVersionResource]string{
		core.WithResource("secrets"): namespace, core.WithResource("configmaps"): "all", core.WithResource("persistentvolumes"): "",
	} {
		if got := within(resource); got != want {
			t.Errorf("%s may be read in %q, want %q", resource.Resource, got, want)
		}
	}

	// Fewer permissions for a joined cluster take effect without another join.
	wider := f.cluster(t, "oak")
	patched := wider.DeepCopy()
	patched.Spec.Agent = &clusterv1alpha1.Agent{Profile: clusterv1alpha1.AgentProfileMirror}
	if err := f.hub.Patch(t.Context(), patched, client.MergeFrom(wider)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "Secrets are not to be read any more", func() (bool, string) {
		got := within(core.WithResource("secrets"))
		return got == "", got
	})
	f.until(t, "oak", readyNow, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
	if _, err := api.RbacV1().ClusterRoleBindings().Get(t.Context(), fleetv1alpha1.AdminsGroup, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the hub's administrators are bound where the hub may not: %v", err)
	}
	if err := Unjoin(t.Context(), f.hub, "oak", false); err != nil {
		t.Fatal(err)
	}
	f.waitGone(t, "oak")
}
