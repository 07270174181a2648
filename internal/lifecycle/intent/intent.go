// Package intent decides what must be done about a cluster, from its applied, previous and wanted
// specs. It is pure, and the only place for these decisions. The engine, the command line and the
// hub call the same functions, and add how their users can resolve a refusal.
//
// Invariant: Known has every host on which something of the cluster may be installed, until the
// host is undone.
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

// Specs has the specs of a cluster: the one wanted last, the one applied last, and the one applied
// before. It is empty for an unknown cluster. It is part of the stored state. It is not safe for
// use by several goroutines.
type Specs struct {
	// Wanted is the spec of the last run, which may be unfinished. Applied is the spec that a run
	// reached last, or nil until the cluster is built.
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

// InvalidError means that a spec, or a change to it, is refused until the user corrects it.
// Problems has one text for each reason. Functions return it as a pointer.
type InvalidError struct{ Problems []string }

// Error returns the problem. If there are several, it returns their number and one problem per
// line.
func (e *InvalidError) Error() string {
	if len(e.Problems) == 1 {
		return e.Problems[0]
	}
	return fmt.Sprintf("%d problems:\n  %s", len(e.Problems), strings.Join(e.Problems, "\n  "))
}

// Invalidf returns an *InvalidError with one problem, formatted as by fmt.Sprintf.
func Invalidf(format string, args ...any) error {
	return &InvalidError{Problems: []string{fmt.Sprintf(format, args...)}}
}

// Known returns the hosts on which something of the cluster may be installed, each once, in a new
// slice. The hosts of Applied come first, then those that a run has begun to add or remove.
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

// IsPart reports whether a host is part of the built cluster, that is, in Applied. It is false for
// all hosts of a cluster that is not built.
func (s *Specs) IsPart(name string) bool { return s.Applied != nil && Has(s.Applied.Hosts, name) }

// Lost returns the names of hosts in Known that a spec lacks: applied are those in Applied, and
// begun those that a run has only begun to add or remove. Applying the spec would not undo these
// hosts. Only the action DeleteNode does.
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

// Keep returns an InvalidError if a spec lacks hosts of the cluster. Hosts in out are exempt,
// because the run removes them. In a built cluster, hosts that a run has only begun to add may be
// missing, since they stay Known. Before the cluster is built, the spec must have all begun hosts,
// also those in out. They may run the first etcd, which must be completed or undone.
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

// Everything returns a spec with all hosts on which something may be installed, only for deleting
// the cluster: the Known hosts and those of Wanted. The other fields come from Applied, or from
// Wanted if the cluster is not built. Hosts at the same address in Wanted have the logins of
// Wanted. It is nil if there are no such hosts.
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
				all.Hosts[i] = h // Wanted has the newer login
			}
		}
	}
	if len(all.Hosts) == 0 {
		return nil
	}
	return all
}

// Renewable returns the spec with which certificates are renewed: a copy of Applied. Hosts that
// current has at the same address get the logins of current, which may be newer. current may be
// nil. Applied must be set.
func (s *Specs) Renewable(current *clusterv1alpha1.Provision) *clusterv1alpha1.Provision {
	spec := s.Applied.DeepCopy()
	if current == nil {
		return spec
	}
	renewLogins(spec, current)
	return spec
}

// renewLogins replaces the logins of hosts in spec by those of the hosts in current with the same
// name and address. Other hosts stay as they are.
func renewLogins(spec, current *clusterv1alpha1.Provision) {
	for i := range spec.Hosts {
		spec.Hosts[i] = withLogin(spec.Hosts[i], current.Hosts)
	}
}

// Begin records that a run is about to change these hosts. Hosts that are not in Applied go into
// Begun, and so into Known. A host that Begun already has is replaced. The caller saves the state
// before the run changes a host.
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

// Reach records that a run has reached a spec: it sets Applied to spec. The former Applied becomes
// Previous if it differs in more than the hosts. The hosts of spec, and those in undone, are
// removed from Begun and Leaving. Reach keeps spec and does not copy it. After an error nothing has
// changed. The caller saves the state.
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

// Check returns an InvalidError with all problems if a spec cannot be applied to the cluster. The
// spec and Applied have their defaults. An even number of etcd members is allowed once the cluster
// is built. An older patch version of Kubernetes is allowed for a rollback, because the hosts have
// had it before. Check does not look for missing hosts, which Keep does.
func (s *Specs) Check(cluster string, spec *clusterv1alpha1.Provision) error {
	var problems []string
	for _, p := range plan.Validate(cluster, spec) {
		// After the loss of a member, the number is even until the cluster has another one.
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

// hostIndex matches the path of a field in a spec that begins with a host and its index.
var hostIndex = regexp.MustCompile(`^(spec\.provision\.hosts\[)(\d+)\]`)

// named returns the message of a problem in a spec, with the name of a host instead of its index in
// spec.hosts. The index may be another one in the user's file. If the host has no name or its name
// is not unique, the index stays.
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

// index returns the index of the first host with the name, or -1.
func index(hosts []clusterv1alpha1.Host, name string) int {
	return slices.IndexFunc(hosts, func(h clusterv1alpha1.Host) bool { return h.Name == name })
}

// names returns the names of hosts, in their order.
func names(hosts []clusterv1alpha1.Host) []string {
	list := make([]string, 0, len(hosts))
	for _, h := range hosts {
		list = append(list, h.Name)
	}
	return list
}
