package plan_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"orrery.dev/orrery/internal/lifecycle/plan"
)

// TestRestartsOf: a change restarts something unless it is done for the first time.
func TestRestartsOf(t *testing.T) {
	restart, drain := plan.DisruptionRestart, plan.DisruptionDrain
	for name, tc := range map[string]struct {
		changes []plan.Change
		want    plan.Restarts
	}{
		"Nothing":    {want: plan.Restarts{Worst: plan.DisruptionNone}},
		"FirstStart": {changes: []plan.Change{{Step: plan.StepEtcdUnit, Op: plan.OpAdd}}, want: plan.Restarts{Worst: plan.DisruptionNone}},
		"Etcd": {
			changes: []plan.Change{{Step: plan.StepEtcdUnit, Op: plan.OpChange, Disruption: restart}},
			want:    plan.Restarts{Etcd: true, Worst: restart},
		},
		"RepairedAPIServer": {
			changes: []plan.Change{{Step: plan.StepAPIServerUnit, Op: plan.OpRepair, Disruption: restart}},
			want:    plan.Restarts{APIServer: true, Worst: restart},
		},
		"RemovedEtcd": {
			changes: []plan.Change{{Step: plan.StepEtcdUnit, Op: plan.OpRemove, Disruption: restart}},
			want:    plan.Restarts{Etcd: true, Worst: restart},
		},
		"MostIsNew": {
			changes: []plan.Change{
				{Step: "kubelet/unit", Op: plan.OpAdd},
				{Step: "kubelet/probe", Op: plan.OpAdd},
				{Step: plan.StepEtcdUnit, Op: plan.OpChange, Disruption: restart},
				{Step: "containerd/unit", Op: plan.OpChange, Disruption: drain},
			},
			want: plan.Restarts{Etcd: true, Worst: drain},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if d := cmp.Diff(tc.want, plan.RestartsOf(tc.changes)); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// TestRestartsAreChecked: every restart of an etcd member or API server of a built cluster is
// between safety checks, and no other one runs at the same time. A host is drained before its pods
// are disturbed. Neither new components on the hosts nor the names of probes change that.
func TestRestartsAreChecked(t *testing.T) {
	spec := func(workers, etcd, apiServer string) string {
		return fmt.Sprintf(`
hosts:
- {name: cp1, address: 10.0.0.1}
- {name: cp2, address: 10.0.0.2}
- {name: e1, address: 10.0.0.11}
- {name: e2, address: 10.0.0.12}
- {name: e3, address: 10.0.0.13}
- {name: w1, address: 10.0.0.21}
roleGroups:
  control-plane: [cp1, cp2]
  etcd: ["e[1:3]"]
  worker: [%s]
etcd: {extraArgs: [%s]}
kubernetes: {version: v1.36.3, apiserverArgs: [%s]}
`, workers, etcd, apiServer)
	}
	const etcdArg, apiArg = `"max-txn-ops=256"`, `"max-requests-inflight=500"`
	base := specOf(t, spec("w1", "", ""))
	in := inputOf(base)
	in.EtcdBootstrap = bootstrapped(base, "e1", "e2", "e3")
	was := planOf(t, in)
	part := map[string]bool{}
	for _, h := range was.Hosts {
		part[h.Name] = true
	}
	// In an earlier version, these probes had other names.
	renamed := func(facts map[string]plan.Facts) {
		for _, f := range facts {
			for i, s := range f.Applied.Steps {
				if strings.HasSuffix(s.ID, "/probe") {
					f.Applied.Steps[i].ID = strings.TrimSuffix(s.ID, "probe") + "ready"
				}
			}
		}
	}
	// In an earlier version, containerd had other settings.
	otherRuntime := func(facts map[string]plan.Facts) {
		for _, f := range facts {
			for i, s := range f.Applied.Steps {
				if s.ID == "containerd/unit" {
					f.Applied.Steps[i].Hash = "of another version"
				}
			}
		}
	}
	for name, tc := range map[string]struct {
		spec  string
		facts []func(map[string]plan.Facts)
		want  []string // components that restart between safety checks, with their hosts
	}{
		"EtcdArgument": {spec: spec("w1", etcdArg, ""), want: []string{"etcd e1", "etcd e2", "etcd e3"}},
		"EtcdArgumentAndNewRole": {
			spec: spec(`w1, "e[1:3]"`, etcdArg, ""), want: []string{"etcd e1", "etcd e2", "etcd e3"},
		},
		"APIServerArgumentAndNewRole": {
			spec: spec(`w1, "cp[1:2]"`, "", apiArg), want: []string{"API server cp1", "API server cp2"},
		},
		"RenamedProbes": {
			spec: spec("w1", etcdArg, apiArg), facts: []func(map[string]plan.Facts){renamed, otherRuntime},
			want: []string{"etcd e1", "etcd e2", "etcd e3", "API server cp1", "API server cp2"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			now := inputOf(specOf(t, tc.spec))
			now.EtcdBootstrap = in.EtcdBootstrap
			facts := after(in, was)
			for _, change := range tc.facts {
				change(facts)
			}
			now.Facts = facts
			p := planOf(t, now)
			changes := plan.Diff(p, facts, was)
			works := plan.Works(p, changes, facts)
			rollout := plan.MakeRollout(p, works, plan.RolloutOptions{Part: part})
			var got []string
			for _, wave := range rollout.Waves {
				for _, task := range wave.Tasks {
					w := works[slices.IndexFunc(works, func(w plan.Work) bool { return w.Host.Name == task.Host })]
					var mine []plan.Change
					for _, c := range w.Changes {
						if slices.Contains(task.Stages, c.Stage) {
							mine = append(mine, c)
						}
					}
					restarts := plan.RestartsOf(mine)
					if restarts.ControlPlane() && (!task.SafetyChecked || wave.AtATime != 1) || task.SafetyChecked && (task.Etcd != restarts.Etcd || task.APIServer != restarts.APIServer) {
						t.Errorf("wave %s, %d at a time: %s, gated for etcd %t, API server %t", wave.Name, wave.AtATime, task, task.Etcd, task.APIServer)
					}
					if w.Node && plan.Worse(restarts.Worst, plan.DisruptionRestart) && len(task.Before) == 0 {
						t.Errorf("wave %s: pods of host %s are disturbed without a drain", wave.Name, task.Host)
					}
					if task.Etcd {
						got = append(got, "etcd "+task.Host)
					}
					if task.APIServer {
						got = append(got, "API server "+task.Host)
					}
				}
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("gated restarts (-want +got):\n%s", d)
			}
		})
	}
}
