package provision

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle"
	"orrery.dev/orrery/internal/lifecycle/intent"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// desired returns a copy of o.Spec.Provision with defaults. It must not be nil.
func desired(o *clusterv1alpha1.Cluster) *clusterv1alpha1.Provision {
	spec := o.Spec.Provision.DeepCopy()
	plan.Default(o.Name, spec)
	return spec
}

// hashOf returns the hash of a spec with defaults, as the annotation and the status have it: the
// first 16 hex digits of intent.Hash.
func hashOf(spec *clusterv1alpha1.Provision) (string, error) {
	hash, err := intent.Hash(spec)
	if err != nil {
		return "", err
	}
	return hash[:16], nil
}

// decide returns the change of the hosts that a Cluster requires next, such as the creation of the
// cluster. It is nil, without an error, if there is none. want is the spec with defaults, and specs
// are what was applied and begun before.
//
// For an impossible spec the error is an *intent.InvalidError, which says what a user of the hub
// can do. One such spec lacks hosts on which an earlier Cluster of this name was built, before this
// Cluster has joined.
func decide(o *clusterv1alpha1.Cluster, want *clusterv1alpha1.Provision, specs *intent.Specs) (*intent.Change, error) {
	switch gone, begun := specs.Lost(want); {
	case specs.Applied == nil && len(begun) > 0:
		return nil, lostBeforeBuilt(o.Name, begun)
	case len(gone) > 0 && !joined(o):
		// This Cluster has not built what is on the hosts, and its author may not know of them.
		return nil, intent.Invalidf(
			"spec.provision.hosts: an earlier Cluster of this name was built on %s too: name these hosts to take it up again, or choose another name; its keys are in Secret %s/%s",
			strings.Join(gone, ", "), clusterv1alpha1.SecretNamespace, objectName(o.Name))
	}
	return specs.Next(o.Name, want, joined(o))
}

// lostBeforeBuilt returns the *intent.InvalidError for a spec that lacks hosts on which a run has
// begun to build the cluster.
func lostBeforeBuilt(cluster string, hosts []string) error {
	return intent.Invalidf("spec.provision.hosts: %s missing, on which a run has begun to build the cluster: put them back and wait until it is built, "+
		"or delete Cluster %s with spec.provision.deletionPolicy Delete, which undoes them, and create it anew", strings.Join(hosts, ", "), cluster)
}

// describe sets all of status, except Operation, to facts about the cluster as it was applied. If
// state is nil, or has no applied spec, it clears them.
func describe(status *clusterv1alpha1.ProvisionStatus, state *lifecycle.State) error {
	if state == nil || state.Applied == nil {
		*status = clusterv1alpha1.ProvisionStatus{Operation: status.Operation}
		return nil
	}
	applied := state.Applied
	hash, err := hashOf(applied)
	if err != nil {
		return err
	}
	roles, err := plan.Expand(applied.RoleGroups)
	if err != nil {
		return fmt.Errorf("spec.provision: %w", err)
	}
	count := func(role clusterv1alpha1.Role) int32 { return int32(len(roles[role])) } //nolint:gosec // a thousand hosts at most
	*status = clusterv1alpha1.ProvisionStatus{
		Operation: status.Operation, Version: applied.Kubernetes.Version, NetworkPlugin: applied.Network.Plugin, SpecHash: hash,
		NodesCount: int32(len(applied.Hosts)), //nolint:gosec // a thousand hosts at most
		EtcdCount:  count(clusterv1alpha1.RoleEtcd), ControlPlaneCount: count(clusterv1alpha1.RoleControlPlane), WorkerCount: count(clusterv1alpha1.RoleWorker),
	}
	for _, h := range applied.Hosts {
		node := clusterv1alpha1.ProvisionedNode{Hostname: h.Name, InternalIP: h.InternalAddress}
		if _, err := netip.ParseAddr(h.Address); err == nil && node.InternalIP == "" {
			node.InternalIP = h.Address
		}
		for _, role := range []clusterv1alpha1.Role{clusterv1alpha1.RoleEtcd, clusterv1alpha1.RoleControlPlane, clusterv1alpha1.RoleWorker} {
			if slices.Contains(roles[role], h.Name) {
				node.Roles = append(node.Roles, role)
			}
		}
		status.Nodes = append(status.Nodes, node)
	}
	return nil
}
