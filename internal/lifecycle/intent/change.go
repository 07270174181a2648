package intent

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// Change is the next Operation that brings a cluster closer to a spec. Next makes it.
type Change struct {
	Action lifecyclev1alpha1.Action
	// Hosts are the names of the hosts that AddNode adds or DeleteNode removes. It is empty for other
	// actions.
	Hosts []string
}

// Next returns the next Operation that brings the cluster closer to the spec want, which has its
// defaults. It returns nil without an error if there is nothing to do. Hosts that want lacks are
// removed first. If want only adds hosts, the action is AddNode. For any other difference it is
// Apply, or Create for a cluster that is not built.
//
// joined says whether the cluster has joined the hub. Until then, Next returns another Apply, which
// hands out the kubeconfig. A spec that cannot be applied is an InvalidError. With an error, the
// change must not be used.
func (s *Specs) Next(cluster string, want *clusterv1alpha1.Provision, joined bool) (*Change, error) {
	if err := s.Check(cluster, want); err != nil {
		return nil, err
	}
	if s.Applied == nil {
		return &Change{Action: lifecyclev1alpha1.ActionCreate}, s.Keep(cluster, want)
	}
	// DeleteNode also removes hosts that a run has only begun to add.
	if applied, begun := s.Lost(want); len(applied)+len(begun) > 0 {
		return &Change{Action: lifecyclev1alpha1.ActionDeleteNode, Hosts: append(applied, begun...)}, nil
	}
	same, err := sameByName(s.Applied, want)
	if err != nil {
		return nil, err
	}
	if same && joined {
		// A run for another spec may have begun, and may have done a part of its work.
		if s.Wanted == nil {
			return nil, nil
		}
		if same, err = sameByName(s.Wanted, want); same || err != nil {
			return nil, err
		}
	}
	coming := slices.DeleteFunc(names(want.Hosts), s.IsPart)
	if len(coming) == 0 {
		return &Change{Action: lifecyclev1alpha1.ActionApply}, nil
	}
	// If the run only adds hosts, existing hosts may be unreachable.
	rest, err := without(want, coming)
	if err != nil {
		return nil, err
	}
	if same, err = sameByName(s.Applied, rest); same {
		return &Change{Action: lifecyclev1alpha1.ActionAddNode, Hosts: coming}, nil
	}
	return &Change{Action: lifecyclev1alpha1.ActionApply}, err
}

// Without returns the spec with which a run removes the hosts in out: a copy of the applied spec
// without them. Its role groups list each host by name. out may name hosts that a run has only
// begun to add. goesOn is true for a resumed run, which may have removed some of the hosts already,
// so unknown hosts are no error. Without returns an error if the cluster is not built, or if no
// control plane would be left.
func (s *Specs) Without(cluster string, out []string, goesOn bool) (*clusterv1alpha1.Provision, error) {
	if s.Applied == nil {
		return nil, fmt.Errorf("cluster %s is not built yet: there is no host to take out", cluster)
	}
	for _, name := range out {
		if known := s.Known(); !goesOn && !Has(known, name) {
			return nil, fmt.Errorf("host %s is not part of cluster %s, which has %s", name, cluster, strings.Join(names(known), ", "))
		}
	}
	rest, err := without(s.Applied, out)
	if err == nil && len(rest.RoleGroups[clusterv1alpha1.RoleControlPlane]) == 0 {
		return nil, fmt.Errorf("without %s cluster %s has no control plane: add another first, or delete the cluster, which undoes all of it",
			strings.Join(out, ", "), cluster)
	}
	return rest, err
}

// With returns the spec with which a run adds hosts from a file: a copy of the applied spec with
// these hosts in their roles. added has their names. They are all new hosts of the file, or only
// those in only if that is not empty. Existing hosts at the same address get the logins in the
// file. Nothing else is taken from the file.
//
// With returns an error if a host in only is already part of the cluster or not in the file. A host
// of the cluster with another name in the file is an error, too. The cluster must be built.
func (s *Specs) With(file *clusterv1alpha1.Provision, only []string) (spec *clusterv1alpha1.Provision, added []string, err error) {
	for _, name := range only {
		switch {
		case s.IsPart(name):
			return nil, nil, fmt.Errorf("host %s is part of the cluster already", name)
		case !Has(file.Hosts, name):
			return nil, nil, fmt.Errorf("the file has no host %s", name)
		}
	}
	if spec, err = without(s.Applied, nil); err != nil {
		return nil, nil, err
	}
	roles, err := plan.Expand(file.RoleGroups)
	if err != nil {
		return nil, nil, err
	}
	renewLogins(spec, file)
	for _, h := range file.Hosts {
		if !Has(spec.Hosts, h.Name) && (len(only) == 0 || slices.Contains(only, h.Name)) {
			if err := s.renames(file, h); err != nil {
				return nil, nil, err
			}
			spec.Hosts = append(spec.Hosts, h)
			added = append(added, h.Name)
		}
	}
	for role, members := range roles {
		coming := slices.DeleteFunc(members, func(name string) bool { return !slices.Contains(added, name) })
		if len(coming) > 0 {
			spec.RoleGroups[role] = append(spec.RoleGroups[role], coming...)
		}
	}
	return spec, added, nil
}

// renames returns an InvalidError if the new host added seems to be a host of the cluster with
// another name. That is a host in Applied with the same address and SSH port, whose name the file
// lacks.
func (s *Specs) renames(file *clusterv1alpha1.Provision, added clusterv1alpha1.Host) error {
	const sshPort = 22
	for _, h := range s.Applied.Hosts {
		if !Has(file.Hosts, h.Name) && h.Address == added.Address && cmp.Or(h.Port, sshPort) == cmp.Or(added.Port, sshPort) {
			return Invalidf("host %s is at %s, which is host %s of the cluster, and the file lacks that: a host cannot get another name. "+
				"Call it %[3]s in the file, or take %[3]s out of the cluster first", added.Name, added.Address, h.Name)
		}
	}
	return nil
}

// without returns a copy of a spec without the named hosts. In the copy, role groups list each host
// by name, and empty groups are left out. Unknown names are ignored. The only error is that of an
// invalid range in a role group.
func without(spec *clusterv1alpha1.Provision, out []string) (*clusterv1alpha1.Provision, error) {
	rest := spec.DeepCopy()
	leaves := func(name string) bool { return slices.Contains(out, name) }
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

// sameByName reports whether two specs have the same effect on hosts, by their Hash. A range in a
// role group equals the list of its names.
func sameByName(a, b *clusterv1alpha1.Provision) (bool, error) {
	x, err := without(a, nil)
	if err != nil {
		return false, err
	}
	y, err := without(b, nil)
	if err != nil {
		return false, err
	}
	return equal(x, y)
}
