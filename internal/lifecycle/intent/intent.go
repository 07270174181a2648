// Package intent decides what is to be done about a cluster: from the specs that it had, has and is to have. It is pure, and the
// one place where that is decided. The engine, the command line and the hub ask the same functions; what they add is how their
// users get out of what is refused.
//
// One invariant holds in all of it: a host on which something of the cluster may be is Known until that is undone.
package intent

import (
	"fmt"
	"slices"
	"strings"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// Specs are what is kept of what a cluster is and is to be. Those of a cluster of which nothing is known are empty.
type Specs struct {
	// Wanted is the spec that the last run was to bring about, and Applied the last one that was.
	Wanted  *clusterv1alpha1.Provision `json:"wanted,omitempty"`
	Applied *clusterv1alpha1.Provision `json:"applied,omitempty"`
	// Previous is what was applied before Applied, as far as they differ in more than their hosts.
	Previous *clusterv1alpha1.Provision `json:"previous,omitempty"`
	// Leaving are the hosts that a run takes out, until it has.
	Leaving []clusterv1alpha1.Host `json:"leaving,omitempty"`
	// Begun are the hosts that a run has begun to add and that are not part of Applied yet.
	Begun []clusterv1alpha1.Host `json:"begun,omitempty"`
	// WantedBy is the name of the Operation that Wanted is of.
	WantedBy string `json:"wantedBy,omitempty"`
}

// InvalidError is a spec, or a change of it, that is refused.
type InvalidError struct{ Problems []string }

// Error lists the problems, one in a line.
func (e *InvalidError) Error() string {
	if len(e.Problems) == 1 {
		return e.Problems[0]
	}
	return fmt.Sprintf("%d problems:\n  %s", len(e.Problems), strings.Join(e.Problems, "\n  "))
}

// Invalidf makes an InvalidError of one problem.
func Invalidf(format string, args ...any) error {
	return &InvalidError{Problems: []string{fmt.Sprintf(format, args...)}}
}

// Known are the hosts on which something of the cluster is, or may be, until it is undone: those that were applied, and those
// that a run has begun to add or to take out.
func (s *Specs) Known() []clusterv1alpha1.Host {
	var known []clusterv1alpha1.Host
	if s.Applied != nil {
		known = slices.Clone(s.Applied.Hosts)
	}
	for _, h := range slices.Concat(s.Begun, s.Leaving) {
		if !Has(known, h.Name) {
			known = append(known, h)
		}
	}
	return known
}

// IsPart reports whether a host is part of the cluster as it was applied last.
func (s *Specs) IsPart(name string) bool { return s.Applied != nil && Has(s.Applied.Hosts, name) }

// Lost names the Known hosts that a spec lacks: those that are part of the cluster, and those that a run has begun. A spec that
// lacks them is no order to take them out: nobody would know of them any more.
func (s *Specs) Lost(spec *clusterv1alpha1.Provision) (applied, begun []string) {
	for _, h := range s.Known() {
		switch {
		case Has(spec.Hosts, h.Name):
		case s.IsPart(h.Name):
			applied = append(applied, h.Name)
		default:
			begun = append(begun, h.Name)
		}
	}
	return applied, begun
}

// Keep refuses a spec that lacks hosts of the cluster, unless they are among those that are taken out. Hosts that were only begun
// stay known when a spec lacks them; before a cluster is built they may run its first etcd, which then has to be finished or undone.
func (s *Specs) Keep(cluster string, spec *clusterv1alpha1.Provision, out ...string) error {
	lost, begun := s.Lost(spec)
	lost = slices.DeleteFunc(lost, func(name string) bool { return slices.Contains(out, name) })
	way := "take them out first"
	if s.Applied == nil {
		lost, way = begun, "undo all of the cluster and begin anew"
	}
	if len(lost) == 0 {
		return nil
	}
	return Invalidf("spec.provision.hosts: %s missing, on which something of cluster %s is: put them back, or %s", strings.Join(lost, ", "), cluster, way)
}

// Everything is a spec, good only for undoing, of all hosts on which something of the cluster may be: the Known ones, and those
// of the spec that the last run was to bring about. It is nil if there are none.
func (s *Specs) Everything() *clusterv1alpha1.Provision {
	all := &clusterv1alpha1.Provision{}
	switch {
	case s.Applied != nil:
		all = s.Applied.DeepCopy()
	case s.Wanted != nil:
		all = s.Wanted.DeepCopy()
	}
	all.Hosts = s.Known()
	if s.Wanted != nil {
		for _, h := range s.Wanted.Hosts {
			switch i := index(all.Hosts, h.Name); {
			case i < 0:
				all.Hosts = append(all.Hosts, h)
			case all.Hosts[i].Address == h.Address:
				all.Hosts[i] = h // it knows better how to log in
			}
		}
	}
	if len(all.Hosts) == 0 {
		return nil
	}
	return all
}

// Renewable is the spec with which the certificates of a cluster are renewed: the one that was applied, whose hosts are logged
// in to as another spec says, which may know better.
func (s *Specs) Renewable(current *clusterv1alpha1.Provision) *clusterv1alpha1.Provision {
	spec := s.Applied.DeepCopy()
	if current == nil {
		return spec
	}
	for i := range spec.Hosts {
		h := &spec.Hosts[i]
		j := index(current.Hosts, h.Name)
		if j < 0 || current.Hosts[j].Address != h.Address {
			continue
		}
		login := current.Hosts[j]
		login.Labels, login.Arch, login.InternalAddress = h.Labels, h.Arch, h.InternalAddress
		*h = login
	}
	return spec
}

// Begin notes that a run begins to change hosts: those that are not part of the cluster are known from then on.
func (s *Specs) Begin(hosts []clusterv1alpha1.Host) {
	for _, h := range hosts {
		switch i := index(s.Begun, h.Name); {
		case s.IsPart(h.Name):
		case i < 0:
			s.Begun = append(s.Begun, h)
		default:
			s.Begun[i] = h
		}
	}
}

// Reach notes that a spec was reached, and that what was done on some hosts is undone. The one that was applied before is kept if
// they differ in more than their hosts.
func (s *Specs) Reach(spec *clusterv1alpha1.Provision, undone ...string) error {
	same, err := sameGeneration(s.Applied, spec)
	if err != nil {
		return err
	}
	if !same {
		s.Previous = s.Applied
	}
	s.Applied = spec
	ended := func(h clusterv1alpha1.Host) bool { return Has(spec.Hosts, h.Name) || slices.Contains(undone, h.Name) }
	s.Begun, s.Leaving = slices.DeleteFunc(s.Begun, ended), slices.DeleteFunc(s.Leaving, ended)
	return nil
}

// Check says, as an InvalidError, why a spec cannot be brought about in the cluster. Both it and Applied are defaulted. The generation
// before may be that of an older patch: its hosts have been that before.
func (s *Specs) Check(cluster string, spec *clusterv1alpha1.Provision) error {
	var problems []string
	for _, p := range plan.Validate(cluster, spec) {
		// A cluster that lost a member has to be changed while its count is even.
		if s.Applied == nil || p.Origin != plan.EvenEtcd {
			problems = append(problems, p.Error())
		}
	}
	if s.Applied != nil {
		applied := s.Applied
		if back, err := s.Rollback(); err == nil {
			same, err := sameGeneration(back, spec)
			if err != nil {
				return err
			}
			if same && slices.ContainsFunc(plan.ValidateUpdate(applied, spec), plan.IsOlderPatch) {
				applied = applied.DeepCopy()
				applied.Kubernetes.Version = spec.Kubernetes.Version
			}
		}
		for _, p := range plan.ValidateUpdate(applied, spec) {
			problems = append(problems, p.Error())
		}
	}
	if len(problems) > 0 {
		return &InvalidError{Problems: problems}
	}
	return nil
}

// Has reports whether there is a host of a name.
func Has(hosts []clusterv1alpha1.Host, name string) bool { return index(hosts, name) >= 0 }

func index(hosts []clusterv1alpha1.Host, name string) int {
	return slices.IndexFunc(hosts, func(h clusterv1alpha1.Host) bool { return h.Name == name })
}

func names(hosts []clusterv1alpha1.Host) []string {
	list := make([]string, 0, len(hosts))
	for _, h := range hosts {
		list = append(list, h.Name)
	}
	return list
}
