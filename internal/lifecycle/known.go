package lifecycle

import (
	"fmt"
	"slices"
	"strings"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
)

// Known are the hosts on which something of the cluster is, or may be, until it is undone: those that were applied, and those
// that a run has begun to add or to take out.
func (s *State) Known() []clusterv1alpha1.Host {
	if s == nil {
		return nil
	}
	var known []clusterv1alpha1.Host
	if s.Applied != nil {
		known = slices.Clone(s.Applied.Hosts)
	}
	for _, h := range slices.Concat(s.Begun, s.Leaving) {
		if !hasHost(known, h.Name) {
			known = append(known, h)
		}
	}
	return known
}

// Lost names the Known hosts that a spec lacks: those that are part of the cluster, and those that a run has begun. A spec that
// lacks them is no order to take them out: nobody would know of them any more.
func (s *State) Lost(spec *clusterv1alpha1.Provision) (applied, begun []string) {
	for _, h := range s.Known() {
		switch {
		case hasHost(spec.Hosts, h.Name):
		case s.Applied != nil && hasHost(s.Applied.Hosts, h.Name):
			applied = append(applied, h.Name)
		default:
			begun = append(begun, h.Name)
		}
	}
	return applied, begun
}

// Everything is a spec, good only for undoing, of all hosts on which something of the cluster may be: the Known ones, and those
// of the spec that the last run was to bring about. It is nil if there are none.
func (s *State) Everything() *clusterv1alpha1.Provision {
	hosts := s.Known()
	var all *clusterv1alpha1.Provision
	switch {
	case s == nil:
		return nil
	case s.Applied != nil:
		all = s.Applied.DeepCopy()
	case s.Wanted != nil:
		all = s.Wanted.DeepCopy()
	default:
		all = &clusterv1alpha1.Provision{}
	}
	if s.Wanted != nil {
		for _, h := range s.Wanted.Hosts {
			i := slices.IndexFunc(hosts, func(k clusterv1alpha1.Host) bool { return k.Name == h.Name })
			switch {
			case i < 0:
				hosts = append(hosts, h)
			case hosts[i].Address == h.Address:
				hosts[i] = h // it knows better how to log in
			}
		}
	}
	if len(hosts) == 0 {
		return nil
	}
	all.Hosts = hosts
	return all
}

func hasHost(hosts []clusterv1alpha1.Host, name string) bool {
	return slices.ContainsFunc(hosts, func(h clusterv1alpha1.Host) bool { return h.Name == name })
}

// keepsHosts refuses a spec that lacks hosts of the cluster, unless the run takes them out. Hosts that were only begun stay
// known when a spec lacks them; before a cluster is built they may run its first etcd, which then has to be finished or undone.
func (r *run) keepsHosts() error {
	lost, begun := r.state.Lost(r.spec)
	if r.op.Spec.Action == lifecyclev1alpha1.ActionDeleteNode {
		lost = slices.DeleteFunc(lost, func(name string) bool { return slices.Contains(r.op.Spec.Hosts, name) })
	}
	way := "take them out first"
	if r.state.Applied == nil {
		lost, way = begun, "undo all of the cluster and begin anew"
	}
	if len(lost) == 0 {
		return nil
	}
	return &InvalidError{Problems: []string{fmt.Sprintf("spec.provision.hosts: %s missing, on which something of cluster %s is: put them back, or %s",
		strings.Join(lost, ", "), r.Cluster, way)}}
}

// keepsMachines refuses a host that was begun and has another address now, if what answers there is another machine: what was
// begun is on the first one.
func (r *run) keepsMachines() error {
	var problems []string
	for _, h := range r.spec.Hosts {
		i := slices.IndexFunc(r.state.Begun, func(b clusterv1alpha1.Host) bool { return b.Name == h.Name })
		f, reached := r.facts[h.Name]
		if i < 0 || !reached || r.state.Begun[i].Address == h.Address || f.Applied.ClusterID != "" {
			continue
		}
		problems = append(problems, fmt.Sprintf("spec.provision.hosts: host %s was at %s when an unfinished run began there, and nothing of that is on the machine at %s: "+
			"set the address back, or take the host out first", h.Name, r.state.Begun[i].Address, h.Address))
	}
	if len(problems) > 0 {
		return &InvalidError{Problems: problems}
	}
	return nil
}

// keepsEtcd refuses what would start an etcd with other members than it has: to go on with a first etcd that has started if the
// spec has some of its hosts no more in that role, and to add members while another, which the spec lacks, has begun to join.
func (r *run) keepsEtcd() error {
	members := r.roles[clusterv1alpha1.RoleEtcd]
	starts := slices.ContainsFunc(members, func(name string) bool { _, fixed := r.state.EtcdBootstrap[name]; return !fixed })
	way := "take it out first"
	if r.state.Applied == nil {
		starts, way = r.etcdStarted(), "undo all of the cluster and begin anew"
	}
	if !starts {
		return nil
	}
	for _, name := range sortedKeys(r.state.EtcdBootstrap) {
		if !slices.Contains(members, name) {
			return &InvalidError{Problems: []string{fmt.Sprintf("spec.provision.roleGroups: an unfinished run has begun to make host %s a member of the etcd of cluster %s: "+
				"put it back in group etcd, or %s", name, r.Cluster, way)}}
		}
	}
	return nil
}
