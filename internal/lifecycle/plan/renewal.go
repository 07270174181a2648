package plan

// StageCertificates is the stage that writes files with renewed certificates on a host. Only
// Renewals makes it. It is not in Stages or in any Plan.
const StageCertificates StageID = "certificates"

// Renewals returns the steps with which hosts switch to renewed leaf certificates, for renewals
// before all other work. current is the plan with the certificates in use, and p the plan of the
// same spec with their successors. renewals has only hosts with such steps.
//
// The first stage of a host, StageCertificates, writes the files. It may run on all hosts at once,
// because it restarts nothing and the authorities stay. The later stages restart the systemd units
// that read the files, and probe them. No step has a worse Disruption than a restart.
//
// A unit may also differ from the applied unit in other content than its certificates. Such a unit
// cannot be restarted without the other steps of its stage. If whole is true, Renewals returns
// these steps, too. If whole is false, it returns no restart for the stage, and left is true for
// the host. The stage is then part of the changes that the caller makes after the renewal.
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

// renewStage returns the steps of one stage for Renewals. files are the steps that write files with
// renewed certificates, and steps are those that restart and probe what reads the files. current
// has the steps of the plan with the certificates in use, and applied those on the host, both by
// step ID. done is false if whole is false and a restart had to be left out, because a unit also
// needs other changes.
func renewStage(stage Stage, current map[string]place, applied map[string]AppliedStep, whole bool) (files, steps []Step, done bool) {
	var units, probes, all []Step
	mixed := false // a unit differs from the applied one in more than certificates
	for _, s := range stage.Steps {
		if s.Probe != nil {
			probes = append(probes, s)
		}
		was, known := current[s.ID]
		a, there := applied[s.ID]
		switch {
		case !known || !there || was.Hash() == s.Hash(): // not renewed, or not on the host
		case a.Hash == s.Hash() && a.Complete && a.Drift == "": // an earlier run has done the step
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
	case mixed: // a probe without the restart would fail if the certificate in use has expired
		return files, nil, false
	case len(files)+len(units) == 0:
		return nil, nil, true
	default:
		return files, append(units, probes...), true
	}
}
