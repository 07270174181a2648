package member

import (
	"context"
	"fmt"
	"net/http"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	rbacv1client "k8s.io/client-go/kubernetes/typed/rbac/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
)

// Label of the objects that Orrery creates in a member, besides placed ones.
const (
	managedByLabel = "app.kubernetes.io/managed-by"
	managedByUs    = "orrery"
)

// admins is the result of binding the hub's administrators in a cluster.
type admins struct {
	asked   bool
	problem string // why they have no rights
}

// welcomesAdmins reports whether the hub may bind its administrators in the cluster, where they
// act in their own name.
func welcomesAdmins(spec *clusterv1alpha1.ClusterSpec) bool {
	return spec.Profile() == clusterv1alpha1.AgentProfileAll
}

// welcomeAdmins binds the hub's administrators in a member, once for each connection. So a
// cluster that joined earlier gets the binding, too, and one that lost it gets it again.
func (m *Member) welcomeAdmins(ctx context.Context, rt http.RoundTripper, c *connection, found *contact) {
	again := c.admins.problem != "" && time.Since(c.adminsTried) > m.registry.options.DiscoveryInterval
	if found.id != "" && c.welcomes && m.isMember(found.id) && (!c.admins.asked || again) {
		c.admins, c.adminsTried = admins{asked: true}, time.Now()
		if err := bindAdmins(ctx, m.registry.options.Fence(rt), c, m.registry.options.ProbeTimeout); err != nil {
			c.admins.problem = err.Error() // it stays a member
		}
	}
	found.admins = c.admins
}

// isMember reports whether the cluster with this ID has joined and is not being deleted.
func (m *Member) isMember(id string) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return (m.accepted == id || m.cluster.Status.ID == id) && m.cluster.DeletionTimestamp.IsZero()
}

// bindAdmins creates the binding of the hub's administrators. An existing one is not changed,
// since the cluster's own administrators may have removed its subjects.
func bindAdmins(ctx context.Context, rt http.RoundTripper, c *connection, patience time.Duration) error {
	bindings, err := roleBindings(rt, c, patience)
	if err != nil {
		return err
	}
	if _, err = bindings.Get(ctx, fleetv1alpha1.AdminsGroup, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		_, err = bindings.Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: fleetv1alpha1.AdminsGroup, Labels: map[string]string{managedByLabel: managedByUs}},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: fleetv1alpha1.AdminsGroup}},
		}, metav1.CreateOptions{})
	}
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("give the hub's administrators (group %s) their rights in the cluster: %w", fleetv1alpha1.AdminsGroup, err)
	}
	return nil
}

// roleBindings returns a client for the cluster's ClusterRoleBindings, which waits up to patience
// for each answer.
func roleBindings(rt http.RoundTripper, c *connection, patience time.Duration) (rbacv1client.ClusterRoleBindingInterface, error) {
	rbac, err := rbacv1client.NewForConfigAndClient(&rest.Config{Host: c.base.String(), QPS: -1}, &http.Client{Transport: rt, Timeout: patience})
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	return rbac.ClusterRoleBindings(), nil
}

// dismissAdmins deletes the binding of the hub's administrators from a cluster that leaves. A
// failure is only logged, so that it does not delay the departure.
func dismissAdmins(ctx context.Context, m *Member) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	c := m.current()
	if !c.welcomes {
		return nil
	}
	bindings, err := roleBindings(m.registry.options.Fence(c.transport), c, checkTimeout)
	if err != nil {
		return err
	}
	binding, err := bindings.Get(ctx, fleetv1alpha1.AdminsGroup, metav1.GetOptions{})
	if err == nil && binding.Labels[managedByLabel] == managedByUs {
		err = bindings.Delete(ctx, binding.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(binding.UID))})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		ctrl.LoggerFrom(ctx).Info("the binding of the hub's administrators stays", "cluster", m.name, "binding", fleetv1alpha1.AdminsGroup, "error", err.Error())
	}
	return nil
}
