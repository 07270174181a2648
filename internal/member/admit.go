package member

import (
	"cmp"
	"context"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/reconciler"
)

func (c *clusters) join(_ context.Context, o *clusterv1alpha1.Cluster) error {
	m, found, err := c.member(o)
	if err != nil {
		return err
	}
	// One at a time, or two names of one cluster could both be let in.
	c.admission.Lock()
	defer c.admission.Unlock()
	if err := c.admit(o, found); err != nil {
		m.update(func() { m.accepted, m.judged = "", true })
		return err
	}
	m.update(func() { m.accepted, m.judged = found.id, true })
	if o.Status.ID == "" && !found.admins.asked {
		nudge(m.kick)
		return reconciler.Waiting(clusterv1alpha1.ReasonBindingAdmins, 0, "the hub's administrators are being given their rights in the cluster")
	}
	o.Status.ID, o.Status.KubernetesVersion = found.id, found.version
	if found.admins.problem != "" {
		return reconciler.Done(clusterv1alpha1.ReasonJoined, "%s", found.admins.problem)
	}
	return nil
}

// admit says why the cluster that answers is not to be worked with.
func (c *clusters) admit(o *clusterv1alpha1.Cluster, found contact) error {
	switch {
	case found.proxied:
		return reconciler.Stalled(clusterv1alpha1.ReasonThroughHub, "spec.apiEndpoint %s: %v", o.Spec.APIEndpoint, errThroughHub)
	case found.refused:
		return reconciler.Waiting(clusterv1alpha1.ReasonUnauthorized, 0, "%s; renew the credentials in Secret %s/%s",
			found.message, o.Spec.SecretRef.Namespace, o.Spec.SecretRef.Name)
	case len(found.missing) > 0:
		return reconciler.Waiting(clusterv1alpha1.ReasonForbidden, 0, "%s", forbidden(found.missing))
	case found.id == "":
		return reconciler.Unknown(clusterv1alpha1.ReasonWaitingForReachable, 0, "the cluster is being asked who it is")
	case found.id == c.registry.options.HubID:
		return reconciler.Stalled(clusterv1alpha1.ReasonIsHub, "spec.apiEndpoint %s is the hub itself", o.Spec.APIEndpoint)
	case o.Status.ID != "" && o.Status.ID != found.id:
		return reconciler.Stalled(clusterv1alpha1.ReasonIdentityChanged,
			"another cluster (%s) answers at spec.apiEndpoint than was joined (%s); correct the address, or unjoin this one and join the other",
			found.id, o.Status.ID)
	}
	for _, other := range c.registry.Members() {
		if other.name != o.Name && other.precedes(o, found.id) {
			return reconciler.Stalled(clusterv1alpha1.ReasonAlreadyJoined,
				"the same cluster is joined as %s; unjoin one of the two", other.name)
		}
	}
	return nil
}

// precedes is true if the member is the cluster of that id and has a better claim to be
// than o: it is joined and o is not, or it is the older one.
func (m *Member) precedes(o *clusterv1alpha1.Cluster, id string) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	mine := cmp.Or(m.cluster.Status.ID, m.accepted, m.contact.id)
	if mine != id {
		return false
	}
	joined := m.accepted != "" || m.cluster.Status.ID != ""
	if wasJoined := o.Status.ID != ""; joined != wasJoined {
		return joined
	}
	created, other := m.cluster.CreationTimestamp, o.CreationTimestamp
	if !created.Equal(&other) {
		return created.Before(&other)
	}
	return m.cluster.UID < o.UID
}
