package intent

import (
	"errors"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// Rollback returns a copy of the spec to which a rollback leads. If a run has begun to apply
// another spec, that is Applied, else Previous. An unfinished rollback to Previous continues. The
// hosts and roles are those of Applied, because separate runs add and remove hosts. Rollback
// returns an error if the cluster is not built, or if there is no Previous.
func (s *Specs) Rollback() (*clusterv1alpha1.Provision, error) {
	if s.Applied == nil {
		return nil, errors.New("the cluster is not built yet: there is nothing to go back to")
	}
	done, err := sameGeneration(s.Wanted, s.Applied)
	if err != nil {
		return nil, err
	}
	back, err := sameGeneration(s.Wanted, s.Previous)
	switch {
	case err != nil:
		return nil, err
	case !done && (s.Previous == nil || !back):
		return s.Applied.DeepCopy(), nil
	case s.Previous == nil:
		return nil, errors.New("the cluster has been nothing else yet: only its hosts have changed since it was built")
	}
	spec, now := s.Previous.DeepCopy(), s.Applied.DeepCopy()
	spec.Hosts, spec.RoleGroups = now.Hosts, now.RoleGroups
	return spec, nil
}

// sameGeneration reports whether two specs have the same effect, by their Hash, apart from hosts
// and roles. It returns true if one of them is nil.
func sameGeneration(a, b *clusterv1alpha1.Provision) (bool, error) {
	if a == nil || b == nil {
		return true, nil
	}
	x, y := *a, *b
	x.Hosts, y.Hosts, x.RoleGroups, y.RoleGroups = nil, nil, nil, nil
	return equal(&x, &y)
}
