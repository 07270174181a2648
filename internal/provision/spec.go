package provision

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// desired is what the hosts of a Cluster are to be.
func desired(o *clusterv1alpha1.Cluster) *clusterv1alpha1.Provision {
	spec := o.Spec.Provision.DeepCopy()
	plan.Default(o.Name, spec)
	return spec
}

// hashOf a spec that is defaulted. What becomes of the hosts when the Cluster goes, and who renews their certificates, is nothing
// that is done to them.
func hashOf(spec *clusterv1alpha1.Provision) (string, error) {
	hashed := *spec
	hashed.DeletionPolicy, hashed.Kubernetes.AutoRenewCerts = "", nil
	content, err := json.Marshal(hashed)
	if err != nil {
		return "", fmt.Errorf("hash spec.provision: %w", err)
	}
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:8]), nil
}

// decide says what is to be done next for a Cluster, which is nothing if the spec is nil. A spec that cannot be brought about
// is a *lifecycle.InvalidError.
func decide(o *clusterv1alpha1.Cluster, want *clusterv1alpha1.Provision, state *lifecycle.State) (*lifecyclev1alpha1.OperationSpec, error) {
	op := &lifecyclev1alpha1.OperationSpec{Cluster: o.Name, Action: lifecyclev1alpha1.ActionCreate}
	leaving, begun := state.Lost(want)
	if state == nil || state.Applied == nil {
		if len(begun) > 0 {
			return nil, &lifecycle.InvalidError{Problems: []string{lostBeforeBuilt(o.Name, begun)}}
		}
		return op, lifecycle.Check(o.Name, want, nil)
	}
	applied := state.Applied
	coming := missing(want, applied)
	built := o.Spec.APIEndpoint != ""
	if len(leaving) > 0 && !built {
		// This Cluster has not built it, and who made it may not know of those hosts.
		return nil, &lifecycle.InvalidError{Problems: []string{fmt.Sprintf(
			"spec.provision.hosts: an earlier Cluster of this name was built on %s too: name these hosts to take it up again, or choose another name; its keys are in Secret %s/%s",
			strings.Join(leaving, ", "), clusterv1alpha1.SecretNamespace, objectName(o.Name))}}
	}
	if err := lifecycle.Check(o.Name, want, applied); err != nil {
		return nil, err
	}
	// Hosts that a run has only begun to add go in the same way.
	leaving = append(leaving, begun...)
	if len(leaving) > 0 {
		op.Action, op.Hosts = lifecyclev1alpha1.ActionDeleteNode, leaving
		return op, nil
	}
	same, err := equal(applied, want)
	if err != nil {
		return nil, err
	}
	if same && built {
		// A run that was to do something else may have done part of it.
		if state.Wanted == nil {
			return nil, nil
		}
		if same, err = equal(state.Wanted, want); same || err != nil {
			return nil, err
		}
	}
	op.Action = lifecyclev1alpha1.ActionApply
	if len(coming) == 0 {
		return op, nil
	}
	// If hosts are all that is new, those that are there may be unreachable.
	rest, err := without(want, coming)
	if err != nil {
		return nil, err
	}
	if same, err = equal(applied, rest); same {
		op.Action, op.Hosts = lifecyclev1alpha1.ActionAddNode, coming
	}
	return op, err
}

// lostBeforeBuilt says that a spec lacks hosts on which the first run of a cluster has begun.
func lostBeforeBuilt(cluster string, hosts []string) string {
	return fmt.Sprintf("spec.provision.hosts: %s missing, on which a run has begun to build the cluster: put them back and wait until it is built, "+
		"or delete Cluster %s with spec.provision.deletionPolicy Delete, which undoes them, and create it anew", strings.Join(hosts, ", "), cluster)
}

// equal compares what two specs do to hosts.
func equal(a, b *clusterv1alpha1.Provision) (bool, error) {
	x, err := canonical(a)
	if err != nil {
		return false, err
	}
	y, err := canonical(b)
	return x == y, err
}

// canonical is the hash of a spec whose role groups name each host, which they may do by ranges.
func canonical(spec *clusterv1alpha1.Provision) (string, error) {
	expanded, err := without(spec, nil)
	if err != nil {
		return "", err
	}
	return hashOf(expanded)
}

// missing are the hosts of one spec that another has not.
func missing(of, in *clusterv1alpha1.Provision) []string {
	var names []string
	for _, h := range of.Hosts {
		if !hasHost(in, h.Name) {
			names = append(names, h.Name)
		}
	}
	return names
}

func hasHost(spec *clusterv1alpha1.Provision, name string) bool {
	return slices.ContainsFunc(spec.Hosts, func(h clusterv1alpha1.Host) bool { return h.Name == name })
}

// without returns a spec without hosts. Its role groups name each host.
func without(spec *clusterv1alpha1.Provision, names []string) (*clusterv1alpha1.Provision, error) {
	rest := spec.DeepCopy()
	leaves := func(name string) bool { return slices.Contains(names, name) }
	rest.Hosts = slices.DeleteFunc(rest.Hosts, func(h clusterv1alpha1.Host) bool { return leaves(h.Name) })
	roles, err := plan.Expand(spec.RoleGroups)
	if err != nil {
		return nil, fmt.Errorf("spec.provision: %w", err)
	}
	rest.RoleGroups = map[clusterv1alpha1.Role]clusterv1alpha1.HostNames{}
	for role, members := range roles {
		if members = slices.DeleteFunc(members, leaves); len(members) > 0 {
			rest.RoleGroups[role] = members
		}
	}
	return rest, nil
}

// describe says in the status what a cluster is made of now.
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
