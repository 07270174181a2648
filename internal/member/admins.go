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

// managedBy marks what is ours in a member beside what is placed there.
const (
	managedByLabel = "app.kubernetes.io/managed-by"
	managedByUs    = "orrery"
)

// admins says what came of giving the hub's administrators their rights in a cluster.
type admins struct {
	asked   bool
	problem string // why they have none
}

// welcomesAdmins is true of a cluster in which the hub may bind its administrators, who come in their own name.
func welcomesAdmins(spec *clusterv1alpha1.ClusterSpec) bool {
	return spec.Profile() == clusterv1alpha1.AgentProfileAll
}

// welcomeAdmins binds the hub's administrators in a cluster that is a member, once for each connection: one that joined before
// gets the binding, too, and so does one that lost it.
func (m *Member) welcomeAdmins(ctx context.Context, rt http.RoundTripper, c *connection, found *contact) {
	again := c.admins.problem != "" && time.Since(c.adminsTried) > m.registry.options.DiscoveryInterval
	if found.id != "" && c.welcomes && m.isMember(found.id) && (!c.admins.asked || again) {
		c.admins, c.adminsTried = admins{asked: true}, time.Now()
		if err := bindAdmins(ctx, m.registry.options.Fence(rt), c, m.registry.options.ProbeTimeout); err != nil {
			c.admins.problem = err.Error() // it is a member nevertheless
		}
	}
	found.admins = c.admins
}

// isMember is true if the cluster of that id was let in, and is not leaving.
func (m *Member) isMember(id string) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return (m.accepted == id || m.cluster.Status.ID == id) && m.cluster.DeletionTimestamp.IsZero()
}

// bindAdmins makes the binding of the hub's administrators. One that is there is left as it is: the cluster's own
// administrators may have taken the subjects out of it.
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

// roleBindings is a client of the cluster's ClusterRoleBindings, which waits so long for each answer.
func roleBindings(rt http.RoundTripper, c *connection, patience time.Duration) (rbacv1client.ClusterRoleBindingInterface, error) {
	rbac, err := rbacv1client.NewForConfigAndClient(&rest.Config{Host: c.base.String(), QPS: -1}, &http.Client{Transport: rt, Timeout: patience})
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	return rbac.ClusterRoleBindings(), nil
}

// dismissAdmins takes the binding of the hub's administrators out of a cluster that leaves. It holds nobody up.
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
