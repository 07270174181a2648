package plan_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

func TestDiffOfAFreshHostAddsEveryStep(t *testing.T) {
	in := inputOf(specOf(t, oneHost))
	p := planOf(t, in)
	var want, got []string
	for _, stage := range p.Hosts[0].Stages {
		for _, s := range stage.Steps {
			want = append(want, "add "+s.ID+" none")
		}
	}
	for _, c := range plan.Diff(p, in.Facts, nil).Items {
		got = append(got, string(c.Op)+" "+c.Step+" "+string(c.Disruption))
		if c.Kind == "" || (c.Target == "" && c.Kind != "Sweep") {
			t.Errorf("the change %s has kind %q and target %q", c.Step, c.Kind, c.Target)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestDiffOfAnAppliedPlanIsEmpty(t *testing.T) {
	in := inputOf(specOf(t, highlyAvailable(2)))
	p := planOf(t, in)
	changes := plan.Diff(p, after(in, p), nil)
	if len(changes.Items) > 0 {
		t.Errorf("got %v", changes.Items)
	}
	var b strings.Builder
	changes.Print(&b)
	if !strings.HasPrefix(b.String(), "Nothing to do.\n") {
		t.Errorf("got %q", b.String())
	}
}

// world returns the changes for a host on which all steps were applied, after alter has changed
// something.
func world(t *testing.T, alter func(a *plan.Applied, updated *plan.Input)) (*plan.Changes, *plan.Plan) {
	t.Helper()
	in := inputOf(specOf(t, oneHost))
	old := planOf(t, in)
	facts := after(in, old)
	f := facts["node1"]
	updated := inputOf(specOf(t, oneHost))
	alter(&f.Applied, &updated)
	facts["node1"] = f
	p := planOf(t, updated)
	return plan.Diff(p, facts, old), old
}

func TestDiff(t *testing.T) {
	at := func(a *plan.Applied, id string) *plan.AppliedStep {
		for i := range a.Steps {
			if a.Steps[i].ID == id {
				return &a.Steps[i]
			}
		}
		return nil
	}
	cases := map[string]struct {
		alter func(a *plan.Applied, updated *plan.Input)
		want  []plan.Change
	}{
		"Drift": {
			alter: func(a *plan.Applied, _ *plan.Input) { at(a, "containerd/config").Drift = "content differs" },
			want: []plan.Change{{
				Host: "node1", Stage: plan.StageSystem, Step: "containerd/config", Kind: "File", Op: plan.OpRepair,
				Target: "/etc/containerd/config.toml", Disruption: plan.DisruptionRestart, Detail: "content differs",
			}},
		},
		"Unfinished": {
			alter: func(a *plan.Applied, _ *plan.Input) { at(a, "etcd/unit").Complete = false },
			want: []plan.Change{{
				Host: "node1", Stage: plan.StageEtcd, Step: "etcd/unit", Kind: "Unit", Op: plan.OpRepair,
				Target: "orrery-etcd", Disruption: plan.DisruptionRestart, Detail: "was begun and not finished",
			}},
		},
		"Secret": {
			alter: func(_ *plan.Applied, in *plan.Input) {
				pair := in.Keys["node1/etcd-peer"]
				pair.Key = []byte("another PRIVATE KEY\n")
				in.Keys["node1/etcd-peer"] = pair
			},
			want: []plan.Change{{
				Host: "node1", Stage: plan.StageEtcd, Step: "etcd/peer.key", Kind: "File", Op: plan.OpChange,
				Target: "/etc/kubernetes/pki/etcd/peer.key", Disruption: plan.DisruptionReload,
			}},
		},
		"Content": {
			alter: func(_ *plan.Applied, in *plan.Input) {
				in.Spec.Kubernetes.SchedulerArgs = clusterv1alpha1.Args{"v=4"}
			},
			want: []plan.Change{{
				Host: "node1", Stage: plan.StageControlPlane, Step: "scheduler/unit", Kind: "Unit", Op: plan.OpChange,
				Target: "orrery-kube-scheduler", Disruption: plan.DisruptionRestart,
				Detail: "--- orrery-kube-scheduler\n+++ orrery-kube-scheduler\n@@ -7,3 +7,4 @@\n --profiling=false\n" +
					" --tls-cert-file=/etc/kubernetes/pki/scheduler.crt\n --tls-private-key-file=/etc/kubernetes/pki/scheduler.key\n+--v=4\n",
			}},
		},
		"RemovedLatestFirst": {
			alter: func(a *plan.Applied, _ *plan.Input) {
				a.Steps = append(a.Steps,
					plan.AppliedStep{ID: "old/file", Hash: "1", Complete: true}, plan.AppliedStep{ID: "old/unit", Hash: "2", Complete: true})
			},
			want: []plan.Change{
				{Host: "node1", Step: "old/unit", Op: plan.OpRemove, Disruption: plan.DisruptionRestart},
				{Host: "node1", Step: "old/file", Op: plan.OpRemove, Disruption: plan.DisruptionNone},
			},
		},
		"EtcdRemovedIsDataLost": {
			alter: func(_ *plan.Applied, in *plan.Input) {
				in.Spec.Etcd.Type = plan.EtcdExternal
				in.Spec.Etcd.External = &clusterv1alpha1.ExternalEtcd{Endpoints: []string{"http://10.9.0.1:2379"}}
			},
			want: []plan.Change{{
				Host: "node1", Stage: plan.StageEtcd, Step: "directory/etcd", Kind: "Directory", Op: plan.OpRemove,
				Target: "/var/lib/etcd", Disruption: plan.DisruptionData,
			}},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			changes, _ := world(t, c.alter)
			got := changes.Items
			if name == "EtcdRemovedIsDataLost" { // with other changes
				for _, i := range changes.Items {
					if i.Step == "directory/etcd" {
						got = []plan.Change{i}
					}
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestDiffHash(t *testing.T) {
	nothing := func(*plan.Applied, *plan.Input) {}
	base, _ := world(t, nothing)
	if again, _ := world(t, nothing); again.Hash != base.Hash {
		t.Errorf("the same world has the hashes %s and %s", base.Hash, again.Hash)
	}
	for name, alter := range map[string]func(a *plan.Applied, updated *plan.Input){
		"Drift":   func(a *plan.Applied, _ *plan.Input) { a.Steps[0].Drift = "gone" },
		"Secret":  func(_ *plan.Applied, in *plan.Input) { in.Keys["sa"] = in.Keys["ca"] },
		"Applied": func(a *plan.Applied, _ *plan.Input) { a.Steps[3].Hash = "another" },
		"Setting": func(_ *plan.Applied, in *plan.Input) { in.Spec.Kubernetes.MaxPods = 11 },
	} {
		if changes, _ := world(t, alter); changes.Hash == base.Hash {
			t.Errorf("%s: the hash stays the same", name)
		}
	}
}

func TestPrint(t *testing.T) {
	changes, _ := world(t, func(a *plan.Applied, in *plan.Input) {
		a.Steps = append(a.Steps, plan.AppliedStep{ID: "old/unit", Hash: "2", Complete: true})
		a.Steps[0].Drift = "overlay is not loaded"
		in.Spec.Kubernetes.MaxPods = 20
		in.Spec.Registry.RegistryMirrors = []string{"https://mirror.example.com"}
		in.Keys["node1/apiserver"] = in.Keys["node1/kubelet"]
	})
	changes.Hash = "HASH"
	var short, long strings.Builder
	changes.Print(&short)
	changes.PrintDetail(&long)
	golden(t, "print", short.String())
	golden(t, "print-detail", long.String())
	content, err := json.Marshal(changes)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{short.String(), long.String(), string(content)} {
		if strings.Contains(text, "PRIVATE KEY") {
			t.Errorf("a key is shown: %s", text)
		}
	}
}

// TestLines: hosts with the same changes are one group, in any order of planning. The steps in the
// cluster are last.
func TestLines(t *testing.T) {
	change := func(host string, op plan.Op, target string, d plan.Disruption) plan.Change {
		return plan.Change{Host: host, Op: op, Kind: "File", Step: "any/step", Target: target, Disruption: d}
	}
	changes := &plan.Changes{
		Items: []plan.Change{
			change("h-1", plan.OpChange, "/etc/a", plan.DisruptionNone), change("h-1", plan.OpAdd, "/etc/b", plan.DisruptionNone),
			change("h-2", plan.OpRemove, "/etc/c", plan.DisruptionNone),
			change("h-3", plan.OpChange, "/etc/a", plan.DisruptionNone), change("h-3", plan.OpAdd, "/etc/b", plan.DisruptionNone),
		},
		Steps: []plan.ClusterStep{{ID: "drain/h-2", Drain: &plan.Drain{Node: "h-2"}}},
	}
	lines := changes.Lines("cluster")
	want := []plan.HostLines{
		{Hosts: []string{"h-1", "h-3"}, Lines: []string{"~ File /etc/a", "+ File /etc/b"}},
		{Hosts: []string{"h-2"}, Lines: []string{"- File /etc/c"}},
	}
	if diff := cmp.Diff(want, lines[:2]); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
	last := lines[len(lines)-1]
	if len(lines) != 3 || last.Hosts[0] != "cluster" || !strings.HasPrefix(last.Lines[0], "* ") || !strings.Contains(last.Lines[0], "h-2") {
		t.Errorf("what is done to the cluster is not the last: %v", lines)
	}
}

// TestPrintObjects: objects belong to the cluster, and are counted as objects. No host is counted
// for them.
func TestPrintObjects(t *testing.T) {
	object := func(op plan.Op, target string) plan.Change {
		return plan.Change{Host: "cluster", Step: "objects", Kind: plan.KindObject, Op: op, Target: target, Disruption: plan.DisruptionNone}
	}
	host := plan.Change{Host: "node1", Stage: plan.StageNode, Step: "kubelet/config", Kind: "File", Op: plan.OpChange, Target: "/etc/a", Disruption: plan.DisruptionNone}
	cases := map[string]struct {
		changes plan.Changes
		text    string
		lines   []plan.HostLines
	}{
		"Alone": {
			plan.Changes{Items: []plan.Change{object(plan.OpAdd, "ConfigMap kube-system/a"), object(plan.OpRemove, "ConfigMap kube-system/b"), object(plan.OpAdd, "Service x/y")}},
			"the cluster as a whole\n    + Object ConfigMap kube-system/a\n    - Object ConfigMap kube-system/b\n    + Object Service x/y\n" +
				"0 hosts: 2 objects to add, 1 object to remove. Nothing that runs is disturbed.\nplan \n",
			[]plan.HostLines{{Hosts: []string{"cluster"}, Lines: []string{"+ Object ConfigMap kube-system/a", "- Object ConfigMap kube-system/b", "+ Object Service x/y"}}},
		},
		"WithHostAndStep": {
			plan.Changes{Items: []plan.Change{host, object(plan.OpAdd, "Service x/y")}, Steps: []plan.ClusterStep{plan.UncordonNode("node1")}},
			"node1\n  node\n    ~ File /etc/a\nthe cluster as a whole\n    + Object Service x/y\n    * Uncordon node1\n" +
				"1 host: 1 to change, 1 object to add, 1 to do in the cluster. Nothing that runs is disturbed.\nplan \n",
			[]plan.HostLines{{Hosts: []string{"node1"}, Lines: []string{"~ File /etc/a"}}, {Hosts: []string{"cluster"}, Lines: []string{"+ Object Service x/y", "* Uncordon node1"}}},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var b strings.Builder
			tc.changes.Print(&b)
			if diff := cmp.Diff(tc.text, b.String()); diff != "" {
				t.Errorf("text (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.lines, tc.changes.Lines("cluster")); diff != "" {
				t.Errorf("lines (-want +got):\n%s", diff)
			}
		})
	}
}
