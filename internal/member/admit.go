package member

import (
	"cmp"
	"context"

	"k8s.io/apimachinery/pkg/api/meta"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/reconciler"
)

// join is the reconcile step that writes the condition Joined of the Cluster o. It admits the
// cluster that answers at the address of o, and writes the ID and version of that cluster into the
// status of o. It waits until the probes have tried to give the hub's administrators all rights in
// the cluster. If that failed, the condition is True, and its message is the problem.
func (c *clusters) join(_ context.Context, o *clusterv1alpha1.Cluster) error {
	m, found, err := c.member(o)
	if err != nil {
		return err
	}
	if err := c.decide(o, m, found); err != nil {
		return err
	}
	// From here on the hub changes objects in the cluster. If the Cluster is deleted now, it must
	// be cleaned up.
	o.Status.ID, o.Status.KubernetesVersion = found.id, found.version
	if o.DeletionTimestamp.IsZero() && welcomesAdmins(&o.Spec) && !found.admins.asked && !meta.IsStatusConditionTrue(o.Status.Conditions, clusterv1alpha1.ConditionJoined) {
		nudge(m.kick)
		return reconciler.Waiting(clusterv1alpha1.ReasonBindingAdmins, 0, "the hub's administrators are being given their rights in the cluster")
	}
	if found.admins.problem != "" {
		return reconciler.Done(clusterv1alpha1.ReasonJoined, "%s", found.admins.problem)
	}
	return nil
}

// decide calls admit for the cluster that the probes found, and returns its result. It stores in m
// whether the cluster was admitted. It notifies the subscribers if Reachable or Lost of m changed.
func (c *clusters) decide(o *clusterv1alpha1.Cluster, m *Member, found contact) error {
	// The lock prevents two Clusters for one cluster from both being admitted. It is released
	// before subscribers are notified, so that they do not delay others.
	c.admission.Lock()
	err := c.admit(o, found)
	accepted := found.id
	if err != nil {
		accepted = ""
	}
	news := m.set(func() { m.accepted, m.judged = accepted, true })
	c.admission.Unlock()
	if news {
		m.registry.notify(Event{Type: Changed, Name: m.name})
	}
	return err
}

// admit decides whether the cluster that answers at the address of o may be the member o. found is
// the result of the probes. nil means yes. Otherwise admit returns an outcome of package reconciler
// (Stalled, Waiting or Unknown), which becomes a condition of o. The caller holds c.admission.
func (c *clusters) admit(o *clusterv1alpha1.Cluster, found contact) error {
	switch {
	case found.proxied:
		return reconciler.Stalled(clusterv1alpha1.ReasonThroughHub, "spec.apiEndpoint %s: %v", Redacted(o.Spec.APIEndpoint), errThroughHub)
	case found.refused:
		return reconciler.Waiting(clusterv1alpha1.ReasonUnauthorized, 0, "%s; renew the credentials in Secret %s/%s",
			found.message, o.Spec.SecretRef.Namespace, o.Spec.SecretRef.Name)
	case len(found.missing) > 0:
		return reconciler.Waiting(clusterv1alpha1.ReasonForbidden, 0, "%s", forbidden(&o.Spec, found.missing))
	case found.id == "":
		return reconciler.Unknown(clusterv1alpha1.ReasonWaitingForReachable, 0, "the hub is reading the identity of the cluster")
	case found.id == c.registry.options.HubID:
		return reconciler.Stalled(clusterv1alpha1.ReasonIsHub, "spec.apiEndpoint %s is the hub itself", Redacted(o.Spec.APIEndpoint))
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

// precedes reports whether m is a second Cluster for the same cluster as o, and m is the one to
// keep. id is the ID of the cluster that answers for o. If only one of the two Clusters has joined,
// that Cluster is kept; else the older one. It is false if m is another cluster.
func (m *Member) precedes(o *clusterv1alpha1.Cluster, id string) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.identity() != id {
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

// identity returns the ID of the cluster that m is, or that answers for m if it has not joined. It
// is "" if neither is known. The caller holds m.mu.
func (m *Member) identity() string {
	return cmp.Or(m.cluster.Status.ID, m.accepted, m.contact.id)
}
