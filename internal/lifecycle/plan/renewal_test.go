package plan_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/pki"
)

func TestRenewals(t *testing.T) {
	in := inputOf(specOf(t, highlyAvailable(1)))
	current := planOf(t, in)
	renewed := in
	renewed.Keys = maps.Clone(in.Keys)
	for _, leaf := range []string{"cp1/etcd-peer", "cp1/kubelet", "cp1/kube-proxy"} {
		renewed.Keys[leaf] = pki.KeyPair{Cert: []byte("the next certificate of " + leaf + "\n"), Key: in.Keys[leaf].Key}
	}
	p := planOf(t, renewed)
	files := []string{"etcd/peer.crt", "kubelet/kubeconfig", "kube-proxy/kubeconfig"}
	const etcd, node, stage = "etcd: etcd/probe", "node: kubelet/unit kube-proxy/unit loadbalancer/probe kubelet/probe kube-proxy/probe", "certificates: "
	all := stage + files[0] + " " + files[1] + " " + files[2]
	for name, c := range map[string]struct {
		change func(steps []plan.AppliedStep) []plan.AppliedStep
		whole  bool
		want   []string
		left   bool
	}{
		"AsItWasLeft": {want: []string{all, etcd, node}},
		"NotThereYet": {change: func([]plan.AppliedStep) []plan.AppliedStep { return nil }},
		"DoneBefore": {change: func(steps []plan.AppliedStep) []plan.AppliedStep {
			for i := range steps {
				steps[i].Hash = stepOf(t, hostOf(t, p, "cp1"), steps[i].ID).Hash()
			}
			return steps
		}},
		"KilledAmongUnits": {change: func(steps []plan.AppliedStep) []plan.AppliedStep {
			for i := range steps {
				steps[i].Hash = stepOf(t, hostOf(t, p, "cp1"), steps[i].ID).Hash()
				steps[i].Complete = steps[i].ID != "kube-proxy/unit"
			}
			return steps
		}, want: []string{"node: kube-proxy/unit loadbalancer/probe kubelet/probe kube-proxy/probe"}},
		"OtherUnit": {change: func(steps []plan.AppliedStep) []plan.AppliedStep {
			steps[slices.IndexFunc(steps, func(s plan.AppliedStep) bool { return s.ID == "kubelet/unit" })].Hash = "other"
			return steps
		}, want: []string{all, etcd}, left: true},
	} {
		t.Run(name, func(t *testing.T) {
			facts := map[string]plan.Facts{}
			for _, h := range current.Hosts {
				facts[h.Name] = plan.Facts{Applied: applied(h)}
			}
			if c.change != nil {
				f := facts["cp1"]
				f.Applied.Steps = c.change(f.Applied.Steps)
				facts["cp1"] = f
			}
			renewals, left := plan.Renewals(p, current, facts, c.whole)
			var got []string
			for _, h := range renewals {
				if h.Name != "cp1" {
					t.Errorf("host %s has nothing to renew", h.Name)
				}
				for _, stage := range h.Stages {
					line := string(stage.ID) + ":"
					for _, s := range stage.Steps {
						line += " " + s.ID
					}
					got = append(got, line)
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" || left["cp1"] != c.left {
				t.Errorf("left %v, want %v; -want +got:\n%s", left["cp1"], c.left, diff)
			}
		})
	}
}

// TestRenewalsOfWholeStages: a unit that cannot be restarted alone is done with the other steps of
// its stage, except for those that move pods.
func TestRenewalsOfWholeStages(t *testing.T) {
	in := inputOf(specOf(t, oneHost))
	current := planOf(t, in)
	renewed := in
	renewed.Keys = maps.Clone(in.Keys)
	renewed.Keys["node1/kubelet"] = pki.KeyPair{Cert: []byte("the next\n"), Key: in.Keys["node1/kubelet"].Key}
	p := planOf(t, renewed)
	facts := plan.Facts{Applied: applied(hostOf(t, current, "node1"))}
	for i, s := range facts.Applied.Steps {
		if s.ID == "kubelet/unit" || s.ID == "kubelet/config" {
			facts.Applied.Steps[i].Hash = "other"
		}
	}
	renewals, left := plan.Renewals(p, current, map[string]plan.Facts{"node1": facts}, true)
	if len(renewals) != 1 || len(renewals[0].Stages) != 2 || left["node1"] {
		t.Fatalf("left %v: %+v", left, renewals)
	}
	ids := map[string]bool{}
	for _, s := range renewals[0].Stages[1].Steps {
		ids[s.ID] = true
		if plan.Worse(s.Disruption, plan.DisruptionRestart) {
			t.Errorf("%s disturbs: %s", s.ID, s.Disruption)
		}
	}
	for _, id := range []string{"kubelet/config", "kubelet/unit", "kubelet/probe"} {
		if !ids[id] {
			t.Errorf("%s is missing in %v", id, ids)
		}
	}
}
