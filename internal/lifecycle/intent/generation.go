package intent

import (
	"errors"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// Rollback is the spec of the generation before: Applied, if a run has begun to bring about another since, or else Previous. A run
// that has begun to go back there is gone on with. Hosts are no part of a generation: they are added and taken out by runs of
// their own, and what they are now stays.
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

// sameGeneration reports whether two specs are equal but for their hosts. One that is not there is none other.
func sameGeneration(a, b *clusterv1alpha1.Provision) (bool, error) {
	if a == nil || b == nil {
		return true, nil
	}
	x, y := *a, *b
	x.Hosts, y.Hosts, x.RoleGroups, y.RoleGroups = nil, nil, nil, nil
	return equal(&x, &y)
}
