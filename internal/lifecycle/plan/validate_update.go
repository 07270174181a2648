package plan

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// ValidateUpdate returns why a built cluster cannot change from the spec old to the spec updated.
// The list is empty if the change is allowed. Both specs have defaults and are valid. Hosts may be
// removed, except that etcd must not lose its quorum.
func ValidateUpdate(old, updated *clusterv1alpha1.Provision) field.ErrorList {
	root := field.NewPath("spec", "provision")
	u := updates{old: old, updated: updated}
	u.version(root.Child("kubernetes", "version"))
	for _, f := range []struct {
		path     *field.Path
		old, new any
	}{
		{root.Child("network", "kubePodsCIDR"), old.Network.KubePodsCIDR, updated.Network.KubePodsCIDR},
		{root.Child("network", "kubeServiceCIDR"), old.Network.KubeServiceCIDR, updated.Network.KubeServiceCIDR},
		{root.Child("network", "plugin"), old.Network.Plugin, updated.Network.Plugin},
		{root.Child("kubernetes", "dnsDomain"), old.Kubernetes.DNSDomain, updated.Kubernetes.DNSDomain},
		{root.Child("kubernetes", "nodeCidrMaskSize"), old.Kubernetes.NodeCidrMaskSize, updated.Kubernetes.NodeCidrMaskSize},
		{root.Child("kubernetes", "nodeCidrMaskSizeIPv6"), old.Kubernetes.NodeCidrMaskSizeIPv6, updated.Kubernetes.NodeCidrMaskSizeIPv6},
		{root.Child("controlPlaneEndpoint", "port"), old.ControlPlaneEndpoint.Port, updated.ControlPlaneEndpoint.Port},
		{root.Child("etcd", "type"), old.Etcd.Type, updated.Etcd.Type},
		{root.Child("etcd", "dataDir"), old.Etcd.DataDir, updated.Etcd.DataDir},
		{root.Child("etcd", "port"), old.Etcd.Port, updated.Etcd.Port},
		{root.Child("etcd", "peerPort"), old.Etcd.PeerPort, updated.Etcd.PeerPort},
	} {
		if f.old != f.new {
			u.forbidf(f.path, "cannot change from %v while the cluster is there: set it back, or build another cluster", f.old)
		}
	}
	u.hosts(root)
	return u.problems
}

// olderPatch is the origin (field.Error.Origin) of ValidateUpdate's error about an older patch of
// the same minor version.
const olderPatch = "olderPatch"

// IsOlderPatch reports whether an error of ValidateUpdate only says that the Kubernetes version is
// an older patch of the same minor version. Callers allow such a change for a rollback.
func IsOlderPatch(err *field.Error) bool { return err.Origin == olderPatch }

// updates collects the errors of a change from the spec old to the spec updated, for
// ValidateUpdate.
type updates struct {
	old, updated *clusterv1alpha1.Provision
	problems     field.ErrorList
}

func (u *updates) forbidf(p *field.Path, format string, args ...any) {
	u.problems = append(u.problems, field.Forbidden(p, fmt.Sprintf(format, args...)))
}

// version checks the change of the Kubernetes version: only to a later patch of the same minor
// version.
func (u *updates) version(p *field.Path) {
	from, to := u.old.Kubernetes.Version, u.updated.Kubernetes.Version
	switch skipped := minor(to) - minor(from); {
	case skipped < 0:
		u.forbidf(p, "%s is older than %s, which the cluster runs: Kubernetes cannot go back. Use %s or newer", to, from, from)
	case skipped == 0 && patch(to) < patch(from):
		u.forbidf(p, "%s is older than %s, which the cluster runs: it cannot go back but to what it was before its last change. Use %s or newer", to, from, from)
		u.problems[len(u.problems)-1].Origin = olderPatch
	case skipped > 0:
		// Hosts are upgraded one by one, so a kubelet would be newer than the API servers of other hosts.
		u.forbidf(p, "from %s to %s is an upgrade to another minor version, which cannot be done yet: use a patch of v1.%d", from, to, minor(from))
	}
}

// hosts checks that hosts in both specs keep their addresses and roles, and that etcd keeps its
// quorum.
func (u *updates) hosts(root *field.Path) {
	was, errOld := resolve("", u.old)
	is, errNew := resolve("", u.updated)
	if errOld != nil || errNew != nil { // Validate returns this error
		return
	}
	for i, h := range u.updated.Hosts {
		before, ok := was.members[h.Name]
		if !ok {
			continue
		}
		now, p := is.members[h.Name], root.Child("hosts").Index(i)
		if !slices.Equal(before.ips, now.ips) {
			u.forbidf(p.Child("internalAddress"), "cannot change from %s: delete the node and add it again", before.ipList())
		}
		for _, role := range []clusterv1alpha1.Role{clusterv1alpha1.RoleEtcd, clusterv1alpha1.RoleControlPlane} {
			if before.has(role) != now.has(role) {
				u.forbidf(root.Child("roleGroups").Key(string(role)), "host %s cannot change this role: delete the node and add it again", h.Name)
			}
		}
	}
	u.quorum(root.Child("roleGroups").Key(string(clusterv1alpha1.RoleEtcd)), was, is)
}

// quorum checks that enough etcd members stay for a quorum, and that the number of members is odd
// if some are added.
func (u *updates) quorum(p *field.Path, was, is *topology) {
	if !was.managed() {
		return
	}
	before, kept, added := was.with(clusterv1alpha1.RoleEtcd), 0, 0
	for _, m := range is.with(clusterv1alpha1.RoleEtcd) {
		if old, ok := was.members[m.Name]; ok && old.has(clusterv1alpha1.RoleEtcd) {
			kept++
		} else {
			added++
		}
	}
	// The removal of a single member is checked later by asking etcd, because it may be the member
	// that is down.
	if need := len(before)/2 + 1; kept < need && len(before)-kept > 1 {
		u.forbidf(p, "%d of %d members of etcd would stay, and %d are its quorum: take members out one by one", kept, len(before), need)
	}
	if n := kept + added; added > 0 && n%2 == 0 {
		u.forbidf(p, "%d members survive no more failures than %d: add one more, or one less", n, n-1)
	}
}
