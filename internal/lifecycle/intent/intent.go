// Package intent decides what must be done about a cluster, from its applied, previous and wanted
// specs. It is pure, and the only place for these decisions. The engine, the command line and the
// hub call the same functions, and add how their users can resolve a refusal.
//
// Invariant: a host on which something of the cluster may be installed is in Known until it is
// undone.
package intent

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// Specs has the applied, previous and wanted specs of a cluster. It is empty for an unknown
// cluster.
type Specs struct {
	// Wanted is the spec of the last run. Applied is the last spec that was reached.
	Wanted  *clusterv1alpha1.Provision `json:"wanted,omitempty"`
	Applied *clusterv1alpha1.Provision `json:"applied,omitempty"`
	// Previous is the spec that was applied before Applied and differs in more than its hosts.
	Previous *clusterv1alpha1.Provision `json:"previous,omitempty"`
	// Leaving are the hosts that a run is removing.
	Leaving []clusterv1alpha1.Host `json:"leaving,omitempty"`
	// Begun are the hosts that a run has begun to add and that are not in Applied yet.
	Begun []clusterv1alpha1.Host `json:"begun,omitempty"`
	// WantedBy is the name of the Operation that set Wanted.
	WantedBy string `json:"wantedBy,omitempty"`
}

// InvalidError means that a spec, or a change of it, is refused.
type InvalidError struct{ Problems []string }

// Error lists the problems, one per line.
func (e *InvalidError) Error() string {
	if len(e.Problems) == 1 {
		return e.Problems[0]
	}
	return fmt.Sprintf("%d problems:\n  %s", len(e.Problems), strings.Join(e.Problems, "\n  "))
}

// Invalidf returns an InvalidError with one problem.
func Invalidf(format string, args ...any) error {
	return &InvalidError{Problems: []string{fmt.Sprintf(format, args...)}}
}

// Known returns the hosts on which something of the cluster may be installed: those of Applied, and
// those that a run has begun to add or remove.
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

// IsPart reports whether a host is in Applied.
func (s *Specs) IsPart(name string) bool { return s.Applied != nil && Has(s.Applied.Hosts, name) }

// Lost returns the Known hosts that a spec lacks: those in Applied, and those that a run has begun.
// A spec without them is not a request to remove them, because nothing would undo them.
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

// Keep returns an error if a spec lacks hosts of the cluster that are not in out, the hosts to
// remove. It allows a spec without hosts that were only begun, since they stay known. Before the
// cluster is built, such hosts are required: they may run the first etcd, which must be completed
// or undone.
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

// Everything returns a spec, only for undoing, with all hosts on which something may be installed:
// the Known ones and those of Wanted. It is nil if there are none.
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
				all.Hosts[i] = h // it has the newer login
			}
		}
	}
	if len(all.Hosts) == 0 {
		return nil
	}
	return all
}

// Renewable returns the spec for renewing certificates: a copy of Applied, with the logins of
// current for hosts at the same address. current may be nil.
func (s *Specs) Renewable(current *clusterv1alpha1.Provision) *clusterv1alpha1.Provision {
	spec := s.Applied.DeepCopy()
	if current == nil {
		return spec
	}
	renewLogins(spec, current)
	return spec
}

// renewLogins gives hosts of a spec the logins that current has for the same machine: the same name
// at the same address. The rest of the hosts stays.
func renewLogins(spec, current *clusterv1alpha1.Provision) {
	for i := range spec.Hosts {
		spec.Hosts[i] = withLogin(spec.Hosts[i], current.Hosts)
	}
}

// Begin records that a run begins to change hosts. Those that are not in Applied are Known from
// then on.
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

// Reach records that a spec was reached, and that the hosts in undone are undone. The former
// Applied becomes Previous if they differ in more than their hosts.
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

// Check returns an InvalidError if a spec cannot be applied to the cluster. Both the spec and
// Applied have their defaults. A rollback to an older patch version is allowed, because the hosts
// have had it before.
func (s *Specs) Check(cluster string, spec *clusterv1alpha1.Provision) error {
	var problems []string
	for _, p := range plan.Validate(cluster, spec) {
		// A cluster that lost a member must be changed while the count is even.
		if s.Applied == nil || p.Origin != plan.EvenEtcd {
			problems = append(problems, named(p, spec))
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
			problems = append(problems, named(p, spec))
		}
	}
	if len(problems) > 0 {
		return &InvalidError{Problems: problems}
	}
	return nil
}

var hostIndex = regexp.MustCompile(`^(spec\.provision\.hosts\[)(\d+)\]`)

// named returns the message of a problem. It gives a host by its name. The index of a host is that
// in the spec, which need not be the index in the user's file.
func named(problem *field.Error, spec *clusterv1alpha1.Provision) string {
	at := hostIndex.FindStringSubmatch(problem.Field)
	if at == nil {
		return problem.Error()
	}
	i, err := strconv.Atoi(at[2])
	if err != nil || i >= len(spec.Hosts) || spec.Hosts[i].Name == "" || index(spec.Hosts, spec.Hosts[i].Name) != i {
		return problem.Error() // the name does not identify the host
	}
	copied := *problem
	copied.Field = at[1] + spec.Hosts[i].Name + "]" + strings.TrimPrefix(problem.Field, at[0])
	return copied.Error()
}

// Has reports whether hosts contains a host with the name.
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
