package lifecycle

import (
	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// Check says, as an InvalidError, why a spec cannot be brought about in a cluster to which another was applied, or in a new
// one if that is nil. Both are defaulted.
func Check(cluster string, spec, applied *clusterv1alpha1.Provision) error {
	var problems []string
	for _, p := range plan.Validate(cluster, spec) {
		// A cluster that lost a member has to be changed while its count is even.
		if applied != nil && p.Origin == plan.EvenEtcd {
			continue
		}
		problems = append(problems, p.Error())
	}
	if applied != nil {
		for _, p := range plan.ValidateUpdate(applied, spec) {
			problems = append(problems, p.Error())
		}
	}
	if len(problems) > 0 {
		return &InvalidError{Problems: problems}
	}
	return nil
}
