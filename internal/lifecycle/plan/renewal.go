package plan

// StageCertificates has the files with renewed certificates. Only Renewals returns it. No plan has
// it.
const StageCertificates StageID = "certificates"

// Renewals returns how hosts switch to renewed leaves. current is the plan with the leaves in use,
// and p the plan of the same spec with their successors. The result has the hosts with changes.
// Their first stage writes the files. It may run on all hosts at once, because it restarts nothing
// and the authorities stay. The later stages restart and probe the units that read the files. They
// disturb no more than a restart.
//
// A unit may differ from what was applied in more than its leaves. Such a unit cannot be restarted
// alone. Its stage is left to the run that follows, and left is true for the host. If whole is
// true, the unit is done with the other steps of its stage instead.
func Renewals(p, current *Plan, facts map[string]Facts, whole bool) (renewals []Host, left map[string]bool) {
	before := placesOf(current)
	left = map[string]bool{}
	for _, h := range p.Hosts {
		applied := map[string]AppliedStep{}
		for _, a := range facts[h.Name].Applied.Steps {
			applied[a.ID] = a
		}
		r := h
		r.Stages = nil
		var files []Step
		for _, stage := range h.Stages {
			written, steps, done := renewStage(stage, before[h.Name], applied, whole)
			left[h.Name] = left[h.Name] || !done
			files = append(files, written...)
			if len(steps) > 0 {
				r.Stages = append(r.Stages, Stage{ID: stage.ID, Steps: steps})
			}
		}
		if len(files) > 0 {
			r.Stages = append([]Stage{{ID: StageCertificates, Steps: files}}, r.Stages...)
		}
		if len(r.Stages) > 0 {
			renewals = append(renewals, r)
		}
	}
	return renewals, left
}

// renewStage returns the files of a stage that contain leaves, and the steps that load them. done
// is false if steps are left.
func renewStage(stage Stage, current map[string]place, applied map[string]AppliedStep, whole bool) (files, steps []Step, done bool) {
	var units, probes, all []Step
	mixed := false // a unit differs in more than its leaves
	for _, s := range stage.Steps {
		if s.Probe != nil {
			probes = append(probes, s)
		}
		was, known := current[s.ID]
		a, there := applied[s.ID]
		switch {
		case !known || !there || was.Hash() == s.Hash(): // no leaf, or nothing to renew on the host
		case a.Hash == s.Hash() && a.Complete && a.Drift == "": // an earlier run has done it
		case s.Unit == nil:
			files = append(files, s)
			continue
		case a.Hash == was.Hash() || a.Hash == s.Hash():
			units = append(units, s)
		default:
			mixed = true
		}
		if !Worse(s.Disruption, DisruptionRestart) {
			all = append(all, s)
		}
	}
	switch {
	case mixed && whole:
		return files, all, true
	case mixed: // no probe without a restart: the certificate in use may have expired
		return files, nil, false
	case len(files)+len(units) == 0:
		return nil, nil, true
	default:
		return files, append(units, probes...), true
	}
}
