package access

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestRoles adds and removes roles and bindings in any order. Package fleetapi compares the meaning
// of the rules with a real API server.
func TestRoles(t *testing.T) {
	role := types.NamespacedName{Namespace: "shop", Name: "see"}
	see := []rbacv1.PolicyRule{{Verbs: []string{"list"}, APIGroups: []string{""}, Resources: []string{"pods"}}}
	bind := func(namespace, kind, subject string) *rbacv1.RoleBinding {
		return &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "see"},
			RoleRef:    rbacv1.RoleRef{Kind: kind, Name: "see"},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, Name: subject}},
		}
	}
	for name, tc := range map[string]struct {
		do   func(r *Roles)
		want []string
	}{
		"Nothing":         {do: func(*Roles) {}},
		"BindingFirst":    {do: func(r *Roles) { r.SetBinding(role, bind("shop", "Role", "alice")); r.SetRules(role, see) }, want: []string{"shop"}},
		"RoleFirst":       {do: func(r *Roles) { r.SetRules(role, see); r.SetBinding(role, bind("shop", "Role", "alice")) }, want: []string{"shop"}},
		"RoleOfAnother":   {do: func(r *Roles) { r.SetRules(role, see); r.SetBinding(role, bind("blog", "Role", "alice")) }},
		"NotAClusterRole": {do: func(r *Roles) { r.SetRules(role, see); r.SetBinding(role, bind("shop", "ClusterRole", "alice")) }},
		"TwoNamespaces": {do: func(r *Roles) {
			r.SetRules(types.NamespacedName{Name: "see"}, see)
			r.SetBinding(role, bind("shop", "ClusterRole", "alice"))
			r.SetBinding(types.NamespacedName{Namespace: "blog", Name: "see"}, bind("blog", "ClusterRole", "alice"))
		}, want: []string{"blog", "shop"}},
		"RoleGone": {do: func(r *Roles) {
			r.SetRules(role, see)
			r.SetBinding(role, bind("shop", "Role", "alice"))
			r.SetRules(role, nil)
		}},
		"BindingGone": {do: func(r *Roles) {
			r.SetRules(role, see)
			r.SetBinding(role, bind("shop", "Role", "alice"))
			r.SetBinding(role, nil)
		}},
		"ForAnotherNow": {do: func(r *Roles) {
			r.SetRules(role, see)
			r.SetBinding(role, bind("shop", "Role", "alice"))
			r.SetBinding(role, bind("shop", "Role", "bob"))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r := NewRoles()
			tc.do(r)
			got := r.Namespaces("alice", []string{"system:authenticated"}, authorizationv1.ResourceAttributes{Verb: "list", Resource: "pods"})
			if d := cmp.Diff(tc.want, got, cmpopts.EquateEmpty()); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}
