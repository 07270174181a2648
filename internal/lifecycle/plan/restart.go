package plan

import "slices"

// Restarts says what work on a host restarts or stops there.
type Restarts struct {
	// Etcd and APIServer are true if the etcd member or the API server restarts or stops.
	Etcd, APIServer bool
	// Worst is the worst disruption of the work.
	Worst Disruption
}

// ControlPlane reports whether the etcd member or the API server restarts or stops.
func (r Restarts) ControlPlane() bool { return r.Etcd || r.APIServer }

// RestartsOf returns what the changes of one host restart or stop. Waves, drains, safety checks,
// outages and renewals use this result, so that none of them judges a change differently.
//
// A step that is done for the first time restarts nothing. Each other step counts, even if most of
// the work on its host is new. Without changes Worst is DisruptionNone.
func RestartsOf(changes []Change) Restarts {
	r := Restarts{Worst: DisruptionNone}
	for _, c := range changes {
		if c.Op == OpAdd {
			continue
		}
		r.Etcd = r.Etcd || c.Step == StepEtcdUnit
		r.APIServer = r.APIServer || c.Step == StepAPIServerUnit
		if Worse(c.Disruption, r.Worst) {
			r.Worst = c.Disruption
		}
	}
	return r
}

// Restarts returns what the changes restart or stop on the named host.
func (c *Changes) Restarts(host string) Restarts {
	return RestartsOf(slices.DeleteFunc(slices.Clone(c.Items), func(i Change) bool { return i.Host != host }))
}

// RestartsOfStages returns what the stages of a certificate renewal restart: all their units, since
// these already run. Steps that are not units do not count.
func RestartsOfStages(stages []Stage) Restarts {
	var changes []Change
	for _, stage := range stages {
		for _, s := range stage.Steps {
			if s.Unit != nil {
				changes = append(changes, Change{Stage: stage.ID, Step: s.ID, Op: OpChange, Disruption: s.Disruption})
			}
		}
	}
	return RestartsOf(changes)
}
