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

// roles is the RBAC of the hub, kept current by informers.
type roles struct {
	*access.Roles

	synced []toolscache.InformerSynced
}

// newRoles returns roles that the informers update once they run. It calls changed after each
// change, with the subjects whose rights change.
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
		// Only verdicts depend on these, and the hub makes the verdicts.
		follow(ctx, r, informers, &rbacv1.ClusterRoleBinding{}, func(name types.NamespacedName, o *rbacv1.ClusterRoleBinding) {
			if o == nil {
				o = &rbacv1.ClusterRoleBinding{}
			}
			changed(bound.set(name, o.RoleRef, access.Subjects(o.Subjects, "")))
		}),
	)
}

// follow calls set with each object of a kind after each change, and with nil when it is
// deleted.
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

// known is false until the initial state of the hub was read.
func (r *roles) known() bool {
	return !slices.ContainsFunc(r.synced, func(synced toolscache.InformerSynced) bool { return !synced() })
}
