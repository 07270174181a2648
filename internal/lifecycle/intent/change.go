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

// Change is the next change of a cluster towards a spec.
type Change struct {
	Action lifecyclev1alpha1.Action
	// Hosts that are added or removed.
	Hosts []string
}

// Next returns the next change of the cluster towards a spec with defaults, or nil if there is
// none. An impossible spec is an InvalidError. Until the cluster has joined, Next returns another
// apply, which hands out its kubeconfig.
func (s *Specs) Next(cluster string, want *clusterv1alpha1.Provision, joined bool) (*Change, error) {
	if err := s.Check(cluster, want); err != nil {
		return nil, err
	}
	if s.Applied == nil {
		return &Change{Action: lifecyclev1alpha1.ActionCreate}, s.Keep(cluster, want)
	}
	// Hosts that a run has only begun to add are removed in the same way.
	if applied, begun := s.Lost(want); len(applied)+len(begun) > 0 {
		return &Change{Action: lifecyclev1alpha1.ActionDeleteNode, Hosts: append(applied, begun...)}, nil
	}
	same, err := sameByName(s.Applied, want)
	if err != nil {
		return nil, err
	}
	if same && joined {
		// A run for another spec may have done a part of it.
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
	// If only hosts are added, the existing ones may be unreachable.
	rest, err := without(want, coming)
	if err != nil {
		return nil, err
	}
	if same, err = sameByName(s.Applied, rest); same {
		return &Change{Action: lifecyclev1alpha1.ActionAddNode, Hosts: coming}, nil
	}
	return &Change{Action: lifecyclev1alpha1.ActionApply}, err
}

// Without returns the applied spec without hosts. The hosts may be ones that a run has only begun
// to add. goesOn is true for a resumed run, which may have removed some already. Unknown hosts are
// then no error.
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

// With returns the applied spec with hosts from a file, in their roles: all new ones, or only the
// named ones. For existing hosts it takes the logins of the file, which may be new ones. It takes
// nothing else from the file.
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

// renames returns an error if a new host of a file is the machine of a host in Applied that the
// file lacks.
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

// without returns a spec without hosts. Its role groups list each host by name.
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

// sameByName reports whether two specs have the same effect on hosts. Ranges in role groups are
// expanded.
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
