package fleetapi

import (
	"context"
	"errors"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"orrery.dev/orrery/internal/access"
	"orrery.dev/orrery/internal/binding"
)

// roles is the RBAC of the hub (roles and their bindings), kept current by informers.
type roles struct {
	*access.Roles

	synced []toolscache.InformerSynced
}

// newRoles returns roles that the informers keep current once they run. After each change of RBAC
// it calls changed with the subjects (users and groups) whose rights may have changed. There may be
// no subjects, and a subject may occur several times. Several goroutines may call changed at once.
func newRoles(ctx context.Context, informers cache.Informers, changed func(of []access.Subject)) (*roles, error) {
	r, bound := &roles{Roles: access.NewRoles()}, newBoundRoles()
	return r, errors.Join(
		follow(ctx, r, informers, &rbacv1.Role{}, func(name types.NamespacedName, o *rbacv1.Role) {
			if o == nil {
				o = &rbacv1.Role{}
			}
			r.SetRules(name, o.Rules)
			changed(bound.subjects(name))
		}),
		follow(ctx, r, informers, &rbacv1.ClusterRole{}, func(name types.NamespacedName, o *rbacv1.ClusterRole) {
			if o == nil {
				o = &rbacv1.ClusterRole{}
			}
			r.SetRules(name, o.Rules)
			changed(bound.subjects(name))
		}),
		follow(ctx, r, informers, &rbacv1.RoleBinding{}, func(name types.NamespacedName, o *rbacv1.RoleBinding) {
			r.SetBinding(name, o)
			if o == nil {
				o = &rbacv1.RoleBinding{}
			}
			changed(bound.set(name, o.RoleRef, access.Subjects(o.Subjects, name.Namespace)))
		}),
		// ClusterRoleBindings are not stored, because only the answers of the hub depend on them. They
		// only invalidate cached answers.
		follow(ctx, r, informers, &rbacv1.ClusterRoleBinding{}, func(name types.NamespacedName, o *rbacv1.ClusterRoleBinding) {
			if o == nil {
				o = &rbacv1.ClusterRoleBinding{}
			}
			changed(bound.set(name, o.RoleRef, access.Subjects(o.Subjects, "")))
		}),
	)
}

// follow calls set with the name and the new state of each object of a kind after each change, also
// when the informer first reads it. The state is nil when the object was deleted. follow adds the
// informer to r.synced. It returns an error if the informer cannot be started.
func follow[T any, P interface {
	*T
	client.Object
}](ctx context.Context, r *roles, informers cache.Informers, kind P, set func(name types.NamespacedName, o *T)) error {
	as := func(o any) *T {
		t, _ := o.(*T) // o always has this type
		return t
	}
	synced, err := binding.Watch(ctx, informers, kind, as, func(before, after *T) {
		if after != nil {
			before = after
		}
		set(client.ObjectKeyFromObject(P(before)), after)
	})
	r.synced = append(r.synced, synced)
	return err
}

// known reports whether all roles and bindings of the hub were read at least once.
func (r *roles) known() bool {
	return !slices.ContainsFunc(r.synced, func(synced toolscache.InformerSynced) bool { return !synced() })
}
