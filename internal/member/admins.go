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

// Label of the objects that Orrery creates in a member for itself, such as its ServiceAccount.
// Copies of users' objects have other labels.
const (
	managedByLabel = "app.kubernetes.io/managed-by"
	managedByUs    = "orrery"
)

// admins is the result of the attempt to give the hub's administrators all rights in a cluster.
// Values can be compared with ==.
type admins struct {
	asked   bool   // there was an attempt
	problem string // why the administrators have no rights; "": they have them, or asked is false
}

// welcomesAdmins reports whether the hub gives its administrators all rights in the cluster. It
// is false if the agent of the cluster has a profile that limits the hub's rights.
func welcomesAdmins(spec *clusterv1alpha1.ClusterSpec) bool {
	return spec.Profile() == clusterv1alpha1.AgentProfileAll
}

// welcomeAdmins gives the hub's administrators all rights in a member, with bindAdmins. It does
// that once for each connection, so a new connection restores a lost binding. After a failure it
// tries again when DiscoveryInterval has passed. It does nothing in a cluster that has not joined,
// is leaving, or whose agent has a profile that limits the hub's rights. It stores the result, also
// a failure, in c.admins and found.admins. Only the goroutine of the probes may call it.
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

// isMember reports whether the cluster with this ID (the UID of its namespace kube-system) is the
// one that has joined as m, and the Cluster is not being deleted.
func (m *Member) isMember(id string) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return (m.accepted == id || m.cluster.Status.ID == id) && m.cluster.DeletionTimestamp.IsZero()
}

// bindAdmins creates the ClusterRoleBinding that gives the group of the hub's administrators
// cluster-admin in the cluster. An existing binding is not changed, since the cluster's own
// administrators may have removed its subjects. patience limits each request.
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

// roleBindings returns a client for the ClusterRoleBindings of a cluster. It sends requests to the
// address of c through rt, and waits up to patience for each answer.
func roleBindings(rt http.RoundTripper, c *connection, patience time.Duration) (rbacv1client.ClusterRoleBindingInterface, error) {
	rbac, err := rbacv1client.NewForConfigAndClient(&rest.Config{Host: c.base.String(), QPS: -1}, &http.Client{Transport: rt, Timeout: patience})
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	return rbac.ClusterRoleBindings(), nil
}

// dismissAdmins deletes the ClusterRoleBinding of the hub's administrators from a cluster that
// leaves, if the binding has the label of Orrery. It is a phase of Options.Departures. A failed
// request is only logged, so that it does not delay the departure. The error is that of creating
// the client.
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
