package plan

import "slices"

// stepKubeletUnit starts the kubelet: a host that has it is a node.
const stepKubeletUnit = "kubelet" + suffixUnit

// Work is what is to be done on a host.
type Work struct {
	Host Host
	// Fresh hosts have nothing of ours, and Unbuilt ones a stage of which no probe ever succeeded: nothing that runs on them is
	// disturbed, and others may wait for them, such as members of etcd for their quorum.
	Fresh, Unbuilt bool
	// Node is true if the host is, or was, a node. Unregistered ones have no kubelet yet.
	Node, Unregistered bool
	// Member is true if etcd was started on the host.
	Member bool
	// Stages that have something to do, and the steps that are undone before.
	Stages []Stage
	Remove []string
	// Changes of the host.
	Changes []Change
	// Worst is the most that the changes disturb.
	Worst Disruption
}

// Works lists the hosts of a plan that have something to do, of those whose facts are known.
func Works(p *Plan, changes *Changes, facts map[string]Facts) []Work {
	var works []Work
	for _, h := range p.Hosts {
		f, reached := facts[h.Name]
		if !reached {
			continue
		}
		w := Work{Host: h, Fresh: f.Applied.Cluster == "", Unbuilt: unbuilt(h, f.Applied), Worst: DisruptionNone}
		is, was := isNode(h, Applied{}), isNode(Host{}, f.Applied)
		w.Node, w.Unregistered = is || was, is && !was
		w.Member = slices.ContainsFunc(f.Applied.Steps, func(s AppliedStep) bool { return s.ID == StepEtcdUnit })
		changed := map[StageID]bool{}
		for _, i := range changes.Items {
			if i.Host != h.Name {
				continue
			}
			w.Changes = append(w.Changes, i)
			if i.Op == OpRemove {
				w.Remove = append(w.Remove, i.Step)
			} else {
				changed[i.Stage] = true
			}
			if i.Op != OpAdd && Worse(i.Disruption, w.Worst) {
				w.Worst = i.Disruption
			}
		}
		for _, s := range h.Stages {
			if changed[s.ID] {
				w.Stages = append(w.Stages, s)
			}
		}
		if len(w.Remove) > 0 && len(w.Stages) == 0 {
			w.Stages = h.Stages[:1]
		}
		if len(w.Stages) > 0 {
			works = append(works, w)
		}
	}
	return works
}

// Rolls reports whether the work disturbs what runs, so that it is not done on all hosts at once.
func (w Work) Rolls() bool { return !w.Unbuilt && Worse(w.Worst, DisruptionReload) }

// isNode reports whether a host has a kubelet, or is to have one.
func isNode(h Host, applied Applied) bool {
	return slices.ContainsFunc(applied.Steps, func(s AppliedStep) bool { return s.ID == stepKubeletUnit }) ||
		slices.ContainsFunc(h.Stages, func(stage Stage) bool {
			return slices.ContainsFunc(stage.Steps, func(s Step) bool { return s.ID == stepKubeletUnit })
		})
}

// unbuilt reports whether a host has a stage of which no probe ever succeeded.
func unbuilt(h Host, applied Applied) bool {
	passed := map[string]bool{}
	for _, s := range applied.Steps {
		passed[s.ID] = s.Complete
	}
	return slices.ContainsFunc(h.Stages, func(stage Stage) bool {
		probes, ok := 0, 0
		for _, s := range stage.Steps {
			if s.Probe != nil {
				probes++
				if passed[s.ID] {
					ok++
				}
			}
		}
		return probes > 0 && ok == 0
	})
}
