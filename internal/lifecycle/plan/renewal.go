package plan

// StageCertificates are the files with certificates that were minted anew. It is part of no plan but of what Renewals says.
const StageCertificates StageID = "certificates"

// Renewals says how the hosts take up the leaves in which two plans of one spec differ: current is made with those that the
// hosts have, p with their successors. Of each host that has something to do, the first stage has the files, which may be
// written on all hosts at once: nothing is restarted by that, and the authorities are the same. The stages after it restart
// what reads the files, and probe it. Nothing in them disturbs more than a restart.
//
// A unit that differs from what was applied in more than the leaves cannot be restarted by itself. Its stage is left to who brings
// the host to p, and the host is one of left; or, with whole, the unit is done together with the other steps of its stage.
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

// renewStage are the files of a stage that leaves are in, and the steps that take them up; done is false if some are left.
func renewStage(stage Stage, current map[string]place, applied map[string]AppliedStep, whole bool) (files, steps []Step, done bool) {
	var units, probes, all []Step
	mixed := false // a unit differs in more
	for _, s := range stage.Steps {
		if s.Probe != nil {
			probes = append(probes, s)
		}
		was, known := current[s.ID]
		a, there := applied[s.ID]
		switch {
		case !known || !there || was.Hash() == s.Hash(): // it has no leaf, or the host has nothing to renew
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
	case mixed: // and what is not restarted is not probed either: it may run with what has ended
		return files, nil, false
	case len(files)+len(units) == 0:
		return nil, nil, true
	default:
		return files, append(units, probes...), true
	}
}
