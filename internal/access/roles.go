package access

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
)

// Roles holds the Roles, ClusterRoles and RoleBindings of the hub. Its method Namespaces computes
// in which namespaces a user may perform an action, without an access review for each.
// ClusterRoleBindings are not included: their rights hold in every namespace, and callers ask the
// hub for those. The rules are those of RBAC,
// https://kubernetes.io/docs/reference/access-authn-authz/rbac/. Roles is safe for concurrent use.
type Roles struct {
	mu sync.RWMutex
	// rules are those of a Role, or of a ClusterRole if the key has no namespace.
	rules    map[types.NamespacedName][]rbacv1.PolicyRule
	bindings map[types.NamespacedName]*rbacv1.RoleBinding
	granted  map[Subject]sets.Set[types.NamespacedName] // the RoleBindings that name a subject
}

// Subject is a user or a group to which a binding gives rights. A ServiceAccount is the user
// system:serviceaccount:NAMESPACE:NAME.
type Subject struct {
	Group bool
	Name  string
}

// NewRoles returns Roles without rules and bindings.
func NewRoles() *Roles {
	return &Roles{
		rules:    map[types.NamespacedName][]rbacv1.PolicyRule{},
		bindings: map[types.NamespacedName]*rbacv1.RoleBinding{},
		granted:  map[Subject]sets.Set[types.NamespacedName]{},
	}
}

// SetRules sets the rules of a Role, or of a ClusterRole if role has no namespace. Empty rules
// remove the role. The caller must not change them later.
func (r *Roles) SetRules(role types.NamespacedName, rules []rbacv1.PolicyRule) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(rules) == 0 {
		delete(r.rules, role)
		return
	}
	r.rules[role] = rules
}

// SetBinding sets or replaces the RoleBinding with a name; nil removes it. The caller must not
// change the RoleBinding later.
func (r *Roles) SetBinding(name types.NamespacedName, b *rbacv1.RoleBinding) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range subjects(r.bindings[name]) {
		if r.granted[s].Delete(name).Len() == 0 {
			delete(r.granted, s)
		}
	}
	delete(r.bindings, name)
	if b == nil {
		return
	}
	r.bindings[name] = b
	for _, s := range subjects(b) {
		if r.granted[s] == nil {
			r.granted[s] = sets.New[types.NamespacedName]()
		}
		r.granted[s].Insert(name)
	}
}

// subjects returns the subjects of a RoleBinding; none for nil.
func subjects(b *rbacv1.RoleBinding) []Subject {
	if b == nil {
		return nil
	}
	return Subjects(b.Subjects, b.Namespace)
}

// Subjects converts the subjects of a binding. namespace is that of the RoleBinding; "" for a
// ClusterRoleBinding. A ServiceAccount without a namespace is taken from that namespace. Subjects
// of unknown kinds are left out.
func Subjects(of []rbacv1.Subject, namespace string) []Subject {
	all := make([]Subject, 0, len(of))
	for _, s := range of {
		switch s.Kind {
		case rbacv1.UserKind:
			all = append(all, Subject{Name: s.Name})
		case rbacv1.GroupKind:
			all = append(all, Subject{Group: true, Name: s.Name})
		case rbacv1.ServiceAccountKind:
			all = append(all, Subject{Name: "system:serviceaccount:" + cmp.Or(s.Namespace, namespace) + ":" + s.Name})
		}
	}
	return all
}

// Namespaces returns the sorted names of the namespaces in which RoleBindings allow an action to a
// user. groups are all groups of the user. The action is the verb, group, resource and name in
// what; its namespace and subresource are ignored. The namespaces need not exist.
func (r *Roles) Namespaces(user string, groups []string, what authorizationv1.ResourceAttributes) []string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	found := sets.New[string]()
	look := func(s Subject) {
		for name := range r.granted[s] {
			if !found.Has(name.Namespace) && slices.ContainsFunc(r.rulesOf(r.bindings[name]), func(rule rbacv1.PolicyRule) bool { return allows(rule, what) }) {
				found.Insert(name.Namespace)
			}
		}
	}
	look(Subject{Name: user})
	for _, g := range groups {
		look(Subject{Group: true, Name: g})
	}
	return slices.Sorted(maps.Keys(found))
}

// rulesOf returns the rules of the Role or ClusterRole that a binding refers to; none if that role
// is unknown. r.mu must be held.
func (r *Roles) rulesOf(b *rbacv1.RoleBinding) []rbacv1.PolicyRule {
	switch b.RoleRef.Kind {
	case "Role":
		return r.rules[types.NamespacedName{Namespace: b.Namespace, Name: b.RoleRef.Name}]
	case "ClusterRole":
		return r.rules[types.NamespacedName{Name: b.RoleRef.Name}]
	}
	return nil
}

// allows reports whether an RBAC rule allows the action what. It compares verb, group, resource and
// name, and ignores namespace and subresource.
func allows(rule rbacv1.PolicyRule, what authorizationv1.ResourceAttributes) bool {
	has := func(values []string, all, value string) bool {
		return slices.Contains(values, value) || slices.Contains(values, all)
	}
	return has(rule.Verbs, rbacv1.VerbAll, what.Verb) && has(rule.APIGroups, rbacv1.APIGroupAll, what.Group) &&
		has(rule.Resources, rbacv1.ResourceAll, what.Resource) &&
		(len(rule.ResourceNames) == 0 || slices.Contains(rule.ResourceNames, what.Name))
}
