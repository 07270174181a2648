package plan

import (
	"slices"

	"orrery.dev/orrery/internal/presence"
)

// stepKubeletUnit starts the kubelet. A host with this step is a node.
const stepKubeletUnit = "kubelet" + suffixUnit

// Work is the work on a host.
type Work struct {
	Host Host
	// Fresh is true if nothing of Orrery is on the host. Unbuilt is true if no probe of some stage has
	// succeeded yet. Other hosts may wait for an unbuilt host, such as etcd members for their quorum.
	// An unbuilt host may nevertheless run components whose restart disturbs the cluster.
	Fresh, Unbuilt bool
	// Node is true if the host is, or was, a node. Unregistered is true if it has no kubelet yet, or
	// its Node is gone.
	Node, Unregistered bool
	// Member is true if etcd was started on the host.
	Member bool
	// Stages with changes, and steps to undo before them.
	Stages []Stage
	Remove []string
	// Again are the steps that are done although the host matches them, because the cluster lacks what
	// they make.
	Again []string
	// Changes of the host.
	Changes []Change
	// Restarts is what the changes restart on the host.
	Restarts Restarts
}

// Works returns the hosts of a plan with changes, of those whose facts are known.
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

// isNode reports whether a host has a kubelet, or will have one.
func isNode(h Host, applied Applied) bool {
	return slices.ContainsFunc(applied.Steps, func(s AppliedStep) bool { return s.ID == stepKubeletUnit }) ||
		slices.ContainsFunc(h.Stages, func(stage Stage) bool {
			return slices.ContainsFunc(stage.Steps, func(s Step) bool { return s.ID == stepKubeletUnit })
		})
}

// unbuilt reports whether some stage of a host has probes and none of them has succeeded yet.
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
