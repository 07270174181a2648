package plan_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// rolled returns a plan of three control planes and three workers, with facts that all stages are
// applied.
func rolled() (*plan.Plan, map[string]plan.Facts) {
	p := &plan.Plan{Cluster: "oak"}
	facts := map[string]plan.Facts{}
	step := func(id string) plan.Step { return plan.Step{ID: id, File: &plan.File{Path: "/" + id}} }
	probe := func(id string) plan.Step { return plan.Step{ID: id, Probe: &plan.Probe{TCP: id}} }
	for _, name := range []string{"cp-1", "cp-2", "cp-3", "w-1", "w-2", "w-3"} {
		h := plan.Host{Name: name, Roles: []clusterv1alpha1.Role{clusterv1alpha1.RoleWorker}, Stages: []plan.Stage{{ID: plan.StageSystem, Steps: []plan.Step{step("containerd/unit")}}}}
		if strings.HasPrefix(name, "cp") {
			h.Roles = []clusterv1alpha1.Role{clusterv1alpha1.RoleControlPlane, clusterv1alpha1.RoleEtcd}
			h.Stages = append(h.Stages,
				plan.Stage{ID: plan.StageEtcd, Steps: []plan.Step{step(plan.StepEtcdUnit), probe("etcd/probe")}},
				plan.Stage{ID: plan.StageControlPlane, Steps: []plan.Step{step(plan.StepAPIServerUnit), probe("apiserver/probe")}})
		}
		h.Stages = append(h.Stages, plan.Stage{ID: plan.StageNode, Steps: []plan.Step{step("kubelet/unit"), probe("kubelet/probe")}})
		p.Hosts = append(p.Hosts, h)
		f := plan.Facts{}
		f.Applied.Cluster = "oak"
		for _, s := range h.Stages {
			for _, step := range s.Steps {
				f.Applied.Steps = append(f.Applied.Steps, plan.AppliedStep{ID: step.ID, Hash: step.Hash(), Complete: true})
			}
		}
		facts[name] = f
	}
	return p, facts
}

// TestRollout: waves go by component across hosts, not host by host.
func TestRollout(t *testing.T) {
	change := func(step string, stage plan.StageID, d plan.Disruption, hosts ...string) []plan.Change {
		var items []plan.Change
		for _, h := range hosts {
			items = append(items, plan.Change{Host: h, Stage: stage, Step: step, Op: plan.OpChange, Disruption: d})
		}
		return items
	}
	all := []string{"cp-1", "cp-2", "cp-3", "w-1", "w-2", "w-3"}
	planes, restart := all[:3], plan.DisruptionRestart
	upgrade := slices.Concat(
		change(plan.StepEtcdUnit, plan.StageEtcd, restart, planes...),
		change(plan.StepAPIServerUnit, plan.StageControlPlane, restart, planes...),
		change("kubelet/unit", plan.StageNode, restart, all...))
	for name, c := range map[string]struct {
		items   []plan.Change
		fresh   []string
		started []string // hosts with a started etcd and nothing more
		options plan.RolloutOptions
		want    string
	}{
		"Nothing": {},
		"FirstCreateWaitsForNobody": {
			fresh: all,
			want: `
  wave 1: together, all at once
    cp-1: system, etcd, control-plane, node
    cp-2: system, etcd, control-plane, node
    cp-3: system, etcd, control-plane, node
    w-1: system, node
    w-2: system, node
    w-3: system, node
`,
		},
		"AllAPIServersBeforeAnyKubelet": {
			items: upgrade,
			want: `
  wave 1: etcd, 1 at a time
    cp-1: gate, etcd, gate
    cp-2: gate, etcd, gate
    cp-3: gate, etcd, gate
  wave 2: API servers, 1 at a time
    cp-1: gate, control-plane, gate
    cp-2: gate, control-plane, gate
    cp-3: gate, control-plane, gate
  wave 3: kubelets of control planes, 1 at a time
    cp-1: gate, node, gate
    cp-2: gate, node, gate
    cp-3: gate, node, gate
  wave 4: workers, 1 at a time
    w-1: node
    w-2: node
    w-3: node
`,
		},
		"DrainedWhereItDisturbsPods": {
			items: slices.Concat(change("containerd/unit", plan.StageSystem, plan.DisruptionDrain, "cp-1", "w-1"), change("kubelet/unit", plan.StageNode, restart, "cp-1", "w-1")),
			want: `
  wave 1: etcd, 1 at a time
    cp-1: gate, Cordon, Drain, system, Uncordon, gate
  wave 2: kubelets of control planes, 1 at a time
    cp-1: gate, node, gate
  wave 3: workers, 1 at a time
    w-1: Cordon, Drain, system, node, Uncordon
`,
		},
		"NothingIsMovedFromWhoIsMute": {
			items:   change("containerd/unit", plan.StageSystem, plan.DisruptionDrain, "w-1"),
			options: plan.RolloutOptions{Mute: map[string]bool{"w-1": true}},
			want: `
  wave 1: workers, 1 at a time
    w-1: system
`,
		},
		"AsManyWorkersAsMayBeAway": {
			items:   change("kubelet/unit", plan.StageNode, restart, "w-1", "w-2", "w-3"),
			options: plan.RolloutOptions{MaxUnavailable: 2},
			want: `
  wave 1: workers, 2 at a time
    w-1: node
    w-2: node
    w-3: node
`,
		},
		"Pauses": {
			items:   slices.Concat(change(plan.StepAPIServerUnit, plan.StageControlPlane, restart, "cp-1", "cp-2"), change("kubelet/unit", plan.StageNode, restart, "w-1", "w-2", "w-3")),
			options: plan.RolloutOptions{MaxUnavailable: 2, PauseBetween: time.Minute},
			want: `
  wave 1: API servers, 1 at a time
    cp-1: gate, control-plane, gate
  pause 1m0s
  wave 2: API servers, 1 at a time
    cp-2: gate, control-plane, gate
  pause 1m0s
  wave 3: workers, 2 at a time
    w-1: node
    w-2: node
  pause 1m0s
  wave 4: workers, 2 at a time
    w-3: node
`,
		},
		"ReloadsDisturbNobody": {
			items: change("kubelet/serving.crt", plan.StageNode, plan.DisruptionReload, all...),
			want: `
  wave 1: together, all at once
    cp-1: node
    cp-2: node
    cp-3: node
    w-1: node
    w-2: node
    w-3: node
`,
		},
		"MembersJoinOneAfterAnother": {
			fresh:   []string{"cp-2", "cp-3", "w-3"},
			options: plan.RolloutOptions{Joins: map[string]bool{"cp-2": true, "cp-3": true}},
			want: `
  wave 1: together, all at once
    cp-2: system
    cp-3: system
    w-3: system, node
  wave 2: join etcd, 1 at a time
    cp-2: EtcdMemberAdd, etcd, EtcdMemberPromote
    cp-3: EtcdMemberAdd, etcd, EtcdMemberPromote
  wave 3: after joining etcd, all at once
    cp-2: control-plane, node
    cp-3: control-plane, node
`,
		},
		"AMemberThatWasStartedWaitsForNobody": {
			fresh:   []string{"cp-3"},
			started: []string{"cp-2"},
			options: plan.RolloutOptions{Joins: map[string]bool{"cp-2": true, "cp-3": true}},
			want: `
  wave 1: together, all at once
    cp-2: EtcdMemberAdd, etcd, EtcdMemberPromote, control-plane, node
    cp-3: system
  wave 2: join etcd, 1 at a time
    cp-3: EtcdMemberAdd, etcd, EtcdMemberPromote
  wave 3: after joining etcd, all at once
    cp-3: control-plane, node
`,
		},
		"WhatMendsComesFirst": {
			items:   change(plan.StepEtcdUnit, plan.StageEtcd, restart, planes...),
			options: plan.RolloutOptions{Repairs: map[string]bool{"cp-3": true}},
			want: `
  wave 1: together, all at once
    cp-3: etcd
  wave 2: etcd, 1 at a time
    cp-1: gate, etcd, gate
    cp-2: gate, etcd, gate
`,
		},
		"UndoneWithTheFirstStage": {
			items: append([]plan.Change{{Host: "w-1", Step: "kube-proxy/unit", Op: plan.OpRemove, Disruption: restart}}, change("kubelet/unit", plan.StageNode, restart, "w-1")...),
			want: `
  wave 1: workers, 1 at a time
    w-1: undo 1, node
`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, facts := rolled()
			for _, h := range c.fresh {
				facts[h] = plan.Facts{}
			}
			for _, h := range c.started {
				f := facts[h]
				f.Applied.Steps = f.Applied.Steps[:2]
				f.Applied.Steps[1].Complete = false
				facts[h] = f
			}
			changes := &plan.Changes{Items: c.items}
			if len(c.fresh) > 0 {
				changes = plan.Diff(p, facts, nil)
			}
			rollout := plan.MakeRollout(p, plan.Works(p, changes, facts), c.options)
			var got strings.Builder
			rollout.Print(&got)
			if d := cmp.Diff(strings.TrimPrefix(c.want, "\n"), got.String()); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			last := map[string]int{}
			for _, w := range rollout.Waves {
				for _, task := range w.Tasks {
					if last[task.Host] > 0 {
						t.Errorf("host %s is given up before its last task", task.Host)
					}
					if task.Last {
						last[task.Host]++
					}
				}
			}
			for host, n := range last {
				if n != 1 {
					t.Errorf("host %s is given up %d times", host, n)
				}
			}
			if rollout.HaltAfter != 1 {
				t.Errorf("halts after %d", rollout.HaltAfter)
			}
		})
	}
}
