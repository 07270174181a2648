package plan

import (
	"slices"

	"orrery.dev/orrery/internal/presence"
)

// stepKubeletUnit is the ID of the step that starts the kubelet. A host is a node if it has this
// step.
const stepKubeletUnit = "kubelet" + suffixUnit

// Work is what a run does on one host. Works makes it from the plan, the changes and the facts.
type Work struct {
	Host Host
	// Fresh is true if the host belongs to no cluster of Orrery yet. Unbuilt is true if the host has a
	// stage whose probes have never succeeded. Other hosts may wait for an unbuilt host, such as etcd
	// members for their quorum. An unbuilt host may nevertheless run components whose restart disturbs
	// the cluster.
	Fresh, Unbuilt bool
	// Node is true if the host is a node, or was one. Unregistered is true if a node has no kubelet
	// yet, or if its Node is gone.
	Node, Unregistered bool
	// Member is true if etcd was started on the host, so that the host has an etcd member.
	Member bool
	// Stages are the stages with changes, each with all its steps. Remove has the IDs of the steps to
	// undo first.
	Stages []Stage
	Remove []string
	// Again has the IDs of steps that are done although the host matches them. The cluster lacks the
	// Node that they register.
	Again []string
	// Changes of the host.
	Changes []Change
	// Restarts is what the changes restart on the host.
	Restarts Restarts
}

// Works returns the work on each host of the plan that has changes and facts, in the order of the
// plan. A stage with any change has all its steps. A host whose only changes are removals has its
// first stage, so that there is a request.
func Works(p *Plan, changes *Changes, facts map[string]Facts) []Work {
	var works []Work
	for _, h := range p.Hosts {
		f, reached := facts[h.Name]
		if !reached {
			continue
		}
		w := Work{Host: h, Fresh: f.Applied.Cluster == "", Unbuilt: unbuilt(h, f.Applied)}
		is, was := isNode(h, Applied{}), isNode(Host{}, f.Applied)
		noNode := f.Presence.Node == presence.Absent
		w.Node, w.Unregistered = is || was, is && (!was || noNode)
		w.Member = slices.ContainsFunc(f.Applied.Steps, func(s AppliedStep) bool { return s.ID == StepEtcdUnit })
		changed := map[StageID]bool{}
		for _, i := range changes.Items {
			if i.Host != h.Name {
				continue
			}
			w.Changes = append(w.Changes, i)
			if noNode && i.Step == stepKubeletUnit && i.Op == OpRepair {
				w.Again = append(w.Again, i.Step)
			}
			if i.Op == OpRemove {
				w.Remove = append(w.Remove, i.Step)
			} else {
				changed[i.Stage] = true
			}
		}
		w.Restarts = RestartsOf(w.Changes)
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

// isNode reports whether a host runs a kubelet: according to applied, what was applied to it, or
// according to h, the plan for it. The caller passes an empty value for the one that does not
// count.
func isNode(h Host, applied Applied) bool {
	return slices.ContainsFunc(applied.Steps, func(s AppliedStep) bool { return s.ID == stepKubeletUnit }) ||
		slices.ContainsFunc(h.Stages, func(stage Stage) bool {
			return slices.ContainsFunc(stage.Steps, func(s Step) bool { return s.ID == stepKubeletUnit })
		})
}

// unbuilt reports whether some stage of a host has never succeeded: the stage has probes, and
// according to applied none of them has succeeded.
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
