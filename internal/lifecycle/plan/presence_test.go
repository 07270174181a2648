package plan_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/presence"
)

// TestPresenceOfEtcd: a plan is refused for a host whose etcd has lost its data, has those of
// another cluster, or is not a member any more. What is unknown refuses nothing.
func TestPresenceOfEtcd(t *testing.T) {
	spec := specOf(t, highlyAvailable(1))
	planes := []string{"cp1", "cp2", "cp3"}
	lose := func(names ...string) func(map[string]plan.Facts) {
		return func(facts map[string]plan.Facts) {
			for _, name := range names {
				f := facts[name]
				f.EtcdLog = presence.Absent
				facts[name] = f
			}
		}
	}
	see := func(name string, is plan.Presence) func(map[string]plan.Facts) {
		return func(facts map[string]plan.Facts) {
			f := facts[name]
			f.Presence = is
			facts[name] = f
		}
	}
	only := func(name string, keep func(id string) bool) func(map[string]plan.Facts) {
		return func(facts map[string]plan.Facts) {
			f := facts[name]
			f.Applied.Steps = slices.DeleteFunc(slices.Clone(f.Applied.Steps), func(s plan.AppliedStep) bool { return !keep(s.ID) })
			facts[name] = f
		}
	}
	notEtcd := func(id string) bool { return id != "etcd/unit" && id != "etcd/probe" && id != "etcd/established" }
	absent := plan.Presence{Member: presence.Absent}
	cases := map[string]struct {
		change []func(map[string]plan.Facts)
		// hasData is true if an API server has shown the data of the cluster.
		hasData bool
		joined  []string // hosts that joined the first etcd
		want    []string // host, check and a part of the message or fix
	}{
		"Nothing":     {},
		"LogUnknown":  {change: []func(map[string]plan.Facts){see("cp1", plan.Presence{})}},
		"LogOfWorker": {change: []func(map[string]plan.Facts){lose("worker1")}},
		"LogGone": {
			change: []func(map[string]plan.Facts){lose("cp2")},
			want:   []string{"cp2 Data: there is no write-ahead log in /var/lib/etcd/member/wal", `cp2 Data: "orrery cluster delete-node alpha cp2"`},
		},
		"LogGoneBeforeAQuorum": {change: []func(map[string]plan.Facts){lose("cp2"), only("cp2", func(id string) bool { return id != "etcd/probe" })}},
		"MostLogsGone": {
			change: []func(map[string]plan.Facts){lose("cp1", "cp2")},
			want:   []string{"cp1 Data: one of the other members can go on alone", "cp2 Data: one of the other members can go on alone"},
		},
		"AllLogsGone": {
			change: []func(map[string]plan.Facts){lose(planes...)},
			want:   []string{`cp1 Data: "orrery cluster delete alpha"`, `cp2 Data: "orrery cluster delete alpha"`, `cp3 Data: "orrery cluster delete alpha"`},
		},
		"OtherData": {
			change: []func(map[string]plan.Facts){see("cp1", plan.Presence{Data: presence.Absent, Found: "another kube-system"})},
			want:   []string{"cp1 Data: does not read the data of cluster alpha: another kube-system"},
		},
		"InstalledAgain": {
			change: []func(map[string]plan.Facts){see("cp2", plan.Presence{Member: presence.Present, Started: true}), only("cp2", func(string) bool { return false }), lose("cp2")},
			want:   []string{"cp2 Data: there is no write-ahead log in /var/lib/etcd/member/wal"},
		},
		"FirstMemberInstalledAgain": {
			change:  []func(map[string]plan.Facts){see("cp2", plan.Presence{}), only("cp2", func(string) bool { return false }), lose("cp2")},
			hasData: true,
			want:    []string{"cp2 Data: there is no write-ahead log in /var/lib/etcd/member/wal"},
		},
		"FirstMemberBeforeTheClusterHasData": {
			change: []func(map[string]plan.Facts){see("cp2", plan.Presence{}), only("cp2", func(string) bool { return false }), lose("cp2")},
		},
		"FirstMemberNotStartedYet": {
			change:  []func(map[string]plan.Facts){see("cp2", plan.Presence{Member: presence.Present}), only("cp2", notEtcd), lose("cp2")},
			hasData: true,
		},
		"JoinedMemberInstalledAgain": {
			change:  []func(map[string]plan.Facts){see("cp2", plan.Presence{}), only("cp2", func(string) bool { return false }), lose("cp2")},
			hasData: true, joined: []string{"cp2"},
		},
		"AddedAndNotStartedYet": {
			change: []func(map[string]plan.Facts){see("cp2", plan.Presence{Member: presence.Present}), only("cp2", notEtcd), lose("cp2")}, joined: []string{"cp2"},
		},
		"MemberUnknown": {change: []func(map[string]plan.Facts){see("cp3", plan.Presence{})}},
		"MemberLeft": {
			change: []func(map[string]plan.Facts){see("cp3", absent)},
			want:   []string{"cp3 Member: it is not a member of etcd any more", `cp3 Member: "orrery cluster delete-node alpha cp3"`, `cp3 Member: "orrery cluster add-node -f FILE"`},
		},
		"MemberOfTheFirstEtcdLeftAndUndone": {
			change: []func(map[string]plan.Facts){see("cp3", absent), only("cp3", func(string) bool { return false })},
			want:   []string{"cp3 Member: it is not a member of etcd any more"},
		},
		"JoinedMemberLeft": {
			change: []func(map[string]plan.Facts){see("cp3", absent)}, joined: []string{"cp3"},
			want: []string{"cp3 Member: it is not a member of etcd any more"},
		},
		"JoinedMemberLeftWithItsData": {
			change: []func(map[string]plan.Facts){see("cp3", absent), only("cp3", notEtcd), func(facts map[string]plan.Facts) {
				f := facts["cp3"]
				f.EtcdLog = presence.Present
				facts["cp3"] = f
			}},
			joined: []string{"cp3"},
			want:   []string{"cp3 Member: it is not a member of etcd any more"},
		},
		"NotJoinedYet": {change: []func(map[string]plan.Facts){see("cp3", absent), only("cp3", notEtcd)}, joined: []string{"cp3"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			in := inputOf(spec)
			in.EtcdBootstrap, in.HasData = bootstrapped(spec, planes...), c.hasData
			for _, h := range c.joined {
				b := in.EtcdBootstrap[h]
				b.Join = true
				in.EtcdBootstrap[h] = b
			}
			in.Facts = after(in, planOf(t, in))
			for _, change := range c.change {
				change(in.Facts)
			}
			found := map[string]string{}
			for _, f := range plan.Preflight(in) {
				if f.Check == plan.CheckData || f.Check == plan.CheckMember {
					found[f.Host+" "+f.Check] += f.Message + "; " + f.Fix
					if f.Severity != plan.SeverityError {
						t.Errorf("%+v", f)
					}
				}
			}
			for _, want := range c.want {
				key, text, _ := strings.Cut(want, ": ")
				if !strings.Contains(found[key], text) {
					t.Errorf("%s: got %q, want %q in it", key, found[key], text)
				}
			}
			for _, want := range c.want {
				key, _, _ := strings.Cut(want, ": ")
				delete(found, key)
			}
			if len(found) > 0 {
				t.Errorf("got also %v", found)
			}
		})
	}
}

// TestEtcdLog: the log is where etcd has it, also if a flag of the user moves it.
func TestEtcdLog(t *testing.T) {
	for extra, want := range map[string]string{
		"":                            "/var/lib/etcd/member/wal",
		"etcd: {dataDir: /data/etcd}": "/data/etcd/member/wal",
		"etcd: {extraArgs: [wal-dir=/fast/wal/]}":                                 "/fast/wal",
		"etcd: {extraArgs: [wal_dir=/fast/wal]}":                                  "/fast/wal",
		"etcd: {type: external, external: {endpoints: ['http://10.9.0.1:2379']}}": "",
	} {
		if got := plan.EtcdLog(specOf(t, oneHost+extra)); got != want {
			t.Errorf("%q: got %q, want %q", extra, got, want)
		}
	}
	mounts := stepOf(t, hostOf(t, planOf(t, inputOf(specOf(t, oneHost+"etcd: {extraArgs: [wal-dir=/fast/wal]}"))), "node1"), "etcd/unit").Unit.Mounts
	if d := cmp.Diff([]string{"/var/lib/etcd", "/fast/wal"}, mounts); d != "" {
		t.Errorf("mounts (-want +got):\n%s", d)
	}
}

// TestPresenceOfNode: a host whose Node is gone restarts its kubelet, in the wave of such restarts,
// and gets its labels again. What is unknown changes nothing.
func TestPresenceOfNode(t *testing.T) {
	in := inputOf(specOf(t, highlyAvailable(2)))
	in.EtcdBootstrap = bootstrapped(in.Spec, "cp1", "cp2", "cp3")
	p := planOf(t, in)
	unknown := after(in, p)
	if c := plan.Diff(p, unknown, nil); !c.Nothing() {
		t.Errorf("unknown: %+v", c.Items)
	}
	facts := after(in, p)
	for name, is := range map[string]presence.Presence{"cp1": presence.Present, "cp2": presence.Absent, "worker2": presence.Absent} {
		f := facts[name]
		f.Presence.Node = is
		facts[name] = f
	}
	changes := plan.Diff(p, facts, p)
	works := plan.Works(p, changes, facts)
	rollout := plan.MakeRollout(p, works, plan.RolloutOptions{})
	var got []string
	for _, c := range changes.Items {
		got = append(got, strings.Join([]string{c.Host, c.Step, string(c.Op), string(c.Disruption)}, " "))
	}
	if d := cmp.Diff([]string{"cp2 kubelet/unit repair restart", "worker2 kubelet/unit repair restart"}, got); d != "" {
		t.Errorf("changes (-want +got):\n%s", d)
	}
	var waves []string
	for _, w := range rollout.Waves {
		for _, task := range w.Tasks {
			waves = append(waves, string(w.Name)+" "+task.String())
		}
	}
	if d := cmp.Diff([]string{"kubelets of control planes cp2: gate, node, gate", "workers worker2: node"}, waves); d != "" {
		t.Errorf("waves (-want +got):\n%s", d)
	}
	for _, w := range works {
		if d := cmp.Diff([]string{"kubelet/unit"}, w.Again); d != "" {
			t.Errorf("host %s, done again (-want +got):\n%s", w.Host.Name, d)
		}
	}
	var ids []string
	for _, s := range plan.ClusterSteps(p, works, rollout, plan.ClusterFacts{Built: true}, nil) {
		ids = append(ids, s.ID)
	}
	if d := cmp.Diff([]string{"node/cp2", "node/worker2"}, ids); d != "" {
		t.Errorf("steps in the cluster (-want +got):\n%s", d)
	}
	if again := plan.Diff(p, unknown, nil); again.Hash == changes.Hash {
		t.Error("the hash of the plan does not cover the repair")
	}
}
