package plan_test

import (
	"encoding/base64"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/pki"
	"orrery.dev/orrery/internal/testenv"
)

func TestMakeIsDeterministic(t *testing.T) {
	first := planOf(t, inputOf(specOf(t, highlyAvailable(3))))
	for range 20 {
		if diff := cmp.Diff(first, planOf(t, inputOf(specOf(t, highlyAvailable(3))))); diff != "" {
			t.Fatalf("another plan of the same input (-first +other):\n%s", diff)
		}
	}
}

// TestMakeAgentImage: in a cluster with join mode Pull, nodes build the agent's image again when
// the agent has changed. No running process is disturbed.
func TestMakeAgentImage(t *testing.T) {
	spec := specOf(t, highlyAvailable(1))
	before := inputOf(spec)
	before.EtcdBootstrap = bootstrapped(spec, "cp1", "cp2", "cp3")
	pull := before
	pull.Spec = spec.DeepCopy()
	pull.Spec.Join = clusterv1alpha1.Pull
	want := []string{"cp1 add agent/image none", "cp2 add agent/image none", "cp3 add agent/image none", "worker1 add agent/image none"}
	if diff := cmp.Diff(want, changed(t, before, pull)); diff != "" {
		t.Errorf("a cluster that changes to an agent (-want +got):\n%s", diff)
	}
	other := pull
	other.Agents = map[string]string{}
	for arch := range pull.Agents {
		other.Agents[arch] = hashOf("another")
	}
	if got := changed(t, pull, other); !slices.Contains(got, "worker1 change agent/image none") {
		t.Errorf("another agent: %q", got)
	}
}

// bootstrapped returns how the etcd members of a spec first started.
func bootstrapped(spec *clusterv1alpha1.Provision, hosts ...string) map[string]plan.EtcdBootstrap {
	fixed := map[string]plan.EtcdBootstrap{}
	for _, h := range hosts {
		fixed[h] = plan.EtcdBootstrap{Members: plan.EtcdPeers(spec, hosts)}
	}
	return fixed
}

// changed returns the changed steps on existing hosts, as HOST STEP DISRUPTION.
func changed(t *testing.T, before, updated plan.Input) []string {
	t.Helper()
	was := planOf(t, before)
	facts := after(before, was)
	for name, f := range updated.Facts {
		if _, ok := facts[name]; !ok {
			facts[name] = f
		}
	}
	var got []string
	for _, c := range plan.Diff(planOf(t, updated), facts, was).Items {
		if _, ok := before.Facts[c.Host]; ok {
			got = append(got, strings.Join([]string{c.Host, string(c.Op), c.Step, string(c.Disruption)}, " "))
		}
	}
	return got
}

func TestMakeTouchesOnlyTheHostsConcerned(t *testing.T) {
	base := specOf(t, highlyAvailable(2))
	fixed := bootstrapped(base, "cp1", "cp2", "cp3")
	variant := func(text string) plan.Input {
		in := inputOf(looseSpecOf(t, text))
		in.EtcdBootstrap = fixed
		return in
	}
	before := variant(highlyAvailable(2))
	cases := map[string]struct {
		spec string
		want []string
	}{
		"WorkerAdded":   {spec: highlyAvailable(3)},
		"WorkerRemoved": {spec: highlyAvailable(1)},
		"PlaneAdded": {
			spec: strings.Replace(strings.Replace(highlyAvailable(2), "- {name: cp3,", "- {name: cp4, address: 10.0.0.4}\n- {name: cp3,", 1), "cp[1:3]", "cp[1:4]", 1),
			want: []string{
				"cp1 change loadbalancer/backends reload", "cp2 change loadbalancer/backends reload", "cp3 change loadbalancer/backends reload",
				"worker1 change loadbalancer/backends reload", "worker2 change loadbalancer/backends reload",
			},
		},
		"PlaneRemoved": {
			spec: strings.Replace(strings.Replace(highlyAvailable(2), "- {name: cp3, address: 10.0.0.3}\n", "", 1), "cp[1:3]", "cp[1:2]", 1),
			want: []string{
				"cp1 change loadbalancer/backends reload", "cp2 change loadbalancer/backends reload",
				"worker1 change loadbalancer/backends reload", "worker2 change loadbalancer/backends reload",
			},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got := changed(t, before, variant(c.spec))
			slices.Sort(got)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("changes of hosts that stay (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMakeCountsHostsThatCannotBeReached(t *testing.T) {
	in := inputOf(specOf(t, highlyAvailable(1)))
	whole := planOf(t, in)
	delete(in.Facts, "cp2")
	p := planOf(t, in)
	var names []string
	for _, h := range p.Hosts {
		names = append(names, h.Name)
		if diff := cmp.Diff(hostOf(t, whole, h.Name), h); diff != "" {
			t.Errorf("host %s changes when another cannot be reached:\n%s", h.Name, diff)
		}
	}
	if diff := cmp.Diff([]string{"cp1", "cp3", "worker1"}, names); diff != "" {
		t.Errorf("planned hosts (-want +got):\n%s", diff)
	}
}

func TestMakeEtcdBootstrap(t *testing.T) {
	spec := specOf(t, strings.Replace(strings.Replace(highlyAvailable(1), "- {name: cp3,", "- {name: cp5, address: 10.0.0.5}\n- {name: cp4, address: 10.0.0.4}\n- {name: cp3,", 1), "cp[1:3]", "cp[1:5]", 1))
	in := inputOf(spec)
	in.EtcdBootstrap = bootstrapped(spec, "cp1", "cp2", "cp3")
	in.EtcdBootstrap["cp4"] = plan.EtcdBootstrap{Members: map[string]string{"cp4": "https://10.0.0.4:2380", "gone": "https://10.0.0.9:2380"}, Join: true}
	p := planOf(t, in)
	three := "cp1=https://10.0.0.1:2380,cp2=https://10.0.0.2:2380,cp3=https://10.0.0.3:2380"
	for host, want := range map[string][2]string{
		"cp1": {three, "new"},
		"cp4": {"cp4=https://10.0.0.4:2380,gone=https://10.0.0.9:2380", "existing"},
		"cp5": {three + ",cp4=https://10.0.0.4:2380,cp5=https://10.0.0.5:2380", "existing"},
	} {
		unit := stepOf(t, hostOf(t, p, host), "etcd/unit").Unit
		if flag := "--initial-cluster=" + want[0]; !slices.Contains(unit.Command, flag) {
			t.Errorf("%s: the command has no %s: %s", host, flag, unit.Command)
		}
		if got := unit.Env["ETCD_INITIAL_CLUSTER_STATE"]; got != want[1] {
			t.Errorf("%s: the first start has state %q, want %q", host, got, want[1])
		}
		// It is written after the probe, and so after the first quorum.
		steps := hostOf(t, p, host).Stages[1].Steps
		if last := steps[len(steps)-1]; last.ID != "etcd/established" || steps[len(steps)-2].ID != "etcd/probe" ||
			last.File.Path != unit.Established || !strings.Contains(last.File.Content, "ETCD_INITIAL_CLUSTER_STATE=existing\n") {
			t.Errorf("%s: the last step is %+v", host, last)
		}
	}
}

func TestMakeRestartsAUnitWhenWhatItReadsChanges(t *testing.T) {
	cases := map[string]struct {
		change func(in *plan.Input)
		want   []string
	}{
		"KubeletConfig": {
			change: func(in *plan.Input) { in.Spec.Kubernetes.MaxPods = 20 },
			want:   []string{"node1 change kubelet/config restart", "node1 change kubelet/unit restart"},
		},
		"Program": {
			change: func(in *plan.Input) { in.Digests["kube-scheduler/v1.36.3/amd64"] = "sha256:" + hashOf("another") },
			want:   []string{"node1 change artifact/kube-scheduler restart", "node1 change scheduler/unit restart"},
		},
		"ServingCertificate": {
			change: func(in *plan.Input) {
				in.Keys["node1/apiserver"] = pki.KeyPair{Cert: []byte("other"), Key: []byte("other")}
			},
			want: []string{"node1 change apiserver/serving.crt reload", "node1 change apiserver/serving.key reload"},
		},
		"Mirror": {
			change: func(in *plan.Input) { in.Spec.Registry.RegistryMirrors = []string{"https://mirror.example.com"} },
			want:   []string{"node1 add directory/registry/docker.io none", "node1 add containerd/registry/docker.io none"},
		},
		"PauseImage": {
			change: func(in *plan.Input) { in.Images["pause"] = "registry.example.com/pause:3.10.1" },
			want:   []string{"node1 change containerd/config restart", "node1 change containerd/unit restart"},
		},
		"Argument": {
			change: func(in *plan.Input) { in.Spec.Kubernetes.SchedulerArgs = clusterv1alpha1.Args{"v=4"} },
			want:   []string{"node1 change scheduler/unit restart"},
		},
		"Label": {change: func(in *plan.Input) { in.Spec.Hosts[0].Labels = map[string]string{"disk": "ssd"} }},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			updated := inputOf(specOf(t, oneHost))
			c.change(&updated)
			if diff := cmp.Diff(c.want, changed(t, inputOf(specOf(t, oneHost)), updated)); diff != "" {
				t.Errorf("changes (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMakeNamesWhatIsMissing(t *testing.T) {
	cases := map[string]struct {
		take func(in *plan.Input)
		says string
	}{
		"File":   {take: func(in *plan.Input) { in.Files["amd64"] = in.Files["amd64"][1:] }, says: "etcd, which host node1 needs"},
		"Arch":   {take: func(in *plan.Input) { f := in.Facts["node1"]; f.Arch = "riscv64"; in.Facts["node1"] = f }, says: "riscv64"},
		"Digest": {take: func(in *plan.Input) { delete(in.Digests, "runc/v1.36.3/amd64") }, says: "runc/v1.36.3/amd64"},
		"Image":  {take: func(in *plan.Input) { in.Images = nil }, says: "pause"},
	}
	for _, name := range slices.Concat(plan.Authorities(), plan.Keys()) {
		cases[name] = struct {
			take func(in *plan.Input)
			says string
		}{func(in *plan.Input) { delete(in.Keys, name) }, name}
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			in := inputOf(specOf(t, oneHost))
			c.take(&in)
			if _, err := plan.Make(in); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got error %v, want one that says %q", err, c.says)
			}
		})
	}
}

func TestLeavesAreRequired(t *testing.T) {
	spec := specOf(t, oneHost)
	for _, leaf := range plan.Leaves("alpha", spec) {
		if leaf.Name == plan.LeafEtcdAdmin { // no host has it
			continue
		}
		in := inputOf(spec)
		delete(in.Keys, leaf.Name)
		if _, err := plan.Make(in); err == nil || !strings.Contains(err.Error(), leaf.Name) {
			t.Errorf("without %s: got error %v, want one that names it", leaf.Name, err)
		}
	}
}

func TestLeavesCanBeMinted(t *testing.T) {
	spec := specOf(t, strings.Replace(oneHost, "version: v1.36.3", "version: v1.36.3, apiserverCertExtraSans: [api.example.com, '*.example.com', 192.0.2.7]", 1)+
		"controlPlaneEndpoint: {address: 10.0.0.100, domain: lb.example.com}")
	keys := pki.Bundle{}
	if _, err := keys.Ensure(nil, time.Now(), plan.Authorities(), plan.Keys(), plan.Leaves("alpha", spec)); err != nil {
		t.Fatal(err)
	}
	certificate, err := keys["node1/apiserver"].Certificate()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"10.0.0.1", "10.0.0.100", "127.0.0.1", "10.233.0.1", "192.0.2.7", "localhost", "node1", "lb.example.com", "api.example.com", "x.example.com",
		"kubernetes", "kubernetes.default.svc.cluster.local",
	} {
		if err := certificate.VerifyHostname(name); err != nil {
			t.Error(err)
		}
	}
	in := inputOf(spec)
	in.Keys = keys
	planOf(t, in)
}

func TestLeavesOfAHostDoNotDependOnOthers(t *testing.T) {
	of := func(spec *clusterv1alpha1.Provision) map[string]pki.Leaf {
		leaves := map[string]pki.Leaf{}
		for _, l := range plan.Leaves("alpha", spec) {
			if strings.HasPrefix(l.Name, "cp1/") {
				leaves[l.Name] = l
			}
		}
		return leaves
	}
	one := strings.Replace(strings.Replace(highlyAvailable(1), "- {name: cp2, address: 10.0.0.2}\n- {name: cp3, address: 10.0.0.3}\n", "", 1), "cp[1:3]", "cp[1:1]", 1)
	if diff := cmp.Diff(of(specOf(t, one)), of(specOf(t, highlyAvailable(4)))); diff != "" {
		t.Errorf("leaves of cp1 alone and among others:\n%s", diff)
	}
}

// TestFlagsAreKnown: each program knows the flags that it gets.
func TestFlagsAreKnown(t *testing.T) {
	p := planOf(t, inputOf(specOf(t, oneHost+`
etcd: {snapshotCount: 1, quotaBackendBytes: 1, maxRequestBytes: 1, maxSnapshots: 1, maxWals: 1, metrics: basic, logLevel: info}
network: {kubePodsCIDR: "10.233.64.0/18", kubeServiceCIDR: 10.233.0.0/18}
`)))
	kube := testenv.KubeBinary()
	if !filepath.IsAbs(kube) {
		t.Fatalf("the path of the binary is %s", kube)
	}
	for _, stage := range hostOf(t, p, "node1").Stages {
		for _, s := range stage.Steps {
			if s.Unit == nil || s.ID == "containerd/unit" || s.ID == "loadbalancer/unit" {
				continue
			}
			program := filepath.Base(s.Unit.Command[0])
			help, err := exec.Command(kube, program, "--help").CombinedOutput()
			if err != nil {
				t.Fatalf("%s --help: %v: %s", program, err, help)
			}
			known := map[string]bool{}
			for word := range strings.FieldsSeq(string(help)) {
				if name, ok := strings.CutPrefix(strings.Trim(word, ",[]'`"), "--"); ok {
					name, _, _ = strings.Cut(name, "=")
					known[name] = true
				}
			}
			for _, flag := range s.Unit.Command[1:] {
				name, _, _ := strings.Cut(strings.TrimPrefix(flag, "--"), "=")
				if !known[name] {
					t.Errorf("%s has no flag --%s among its %d", program, name, len(slices.Collect(maps.Keys(known))))
				}
			}
		}
	}
}

// TestTwoAuthorities plans with two authorities of each name. Hosts trust both, and have leaves of
// the newest. The golden files cover plans with one authority.
func TestTwoAuthorities(t *testing.T) {
	spec := specOf(t, oneHost)
	in := inputOf(spec)
	authorities, older := pki.Authorities{}, pki.Bundle{}
	if _, err := older.Ensure(nil, time.Now(), plan.Authorities(), plan.Keys(), nil); err != nil {
		t.Fatal(err)
	}
	newer := pki.Bundle{}
	if _, err := newer.Ensure(nil, time.Now(), plan.Authorities(), plan.Keys(), nil); err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Concat(plan.Authorities(), plan.Keys()) {
		authorities[name] = pki.Authority{newer[name], older[name]}
	}
	in.Keys = authorities.Pairs()
	if _, err := in.Keys.Ensure(nil, time.Now(), plan.Authorities(), plan.Keys(), plan.Leaves("alpha", spec)); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	commands := map[string][]string{}
	for _, stage := range hostOf(t, planOf(t, in), "node1").Stages {
		for _, s := range stage.Steps {
			switch {
			case s.File != nil:
				files[s.File.Path] = s.File.Content
			case s.Unit != nil:
				commands[s.ID] = s.Unit.Command
			}
		}
	}
	both := func(name string) string { return string(newer[name].Cert) + string(older[name].Cert) }
	const dir = "/etc/kubernetes/pki/"
	for path, want := range map[string]string{
		dir + "ca.crt": both("ca"), dir + "etcd/ca.crt": both("etcd-ca"), dir + "apiserver-etcd-ca.crt": both("etcd-ca"),
		dir + "front-proxy-ca.crt": both("front-proxy-ca"), dir + "sa.pub": both("sa"),
		dir + "ca.key": string(newer["ca"].Key), dir + "sa.key": string(newer["sa"].Key),
		// The controller manager refuses a file with two certificates.
		dir + "ca-signing.crt": string(newer["ca"].Cert),
	} {
		if d := cmp.Diff(want, files[path]); d != "" {
			t.Errorf("%s (-want +got):\n%s", path, d)
		}
	}
	if flag := "--cluster-signing-cert-file=" + dir + "ca-signing.crt"; !slices.Contains(commands["controller-manager/unit"], flag) {
		t.Errorf("the controller manager has no %s: %v", flag, commands["controller-manager/unit"])
	}
	config := files["/etc/kubernetes/admin.conf"]
	if !strings.Contains(config, base64.StdEncoding.EncodeToString([]byte(both("ca")))) {
		t.Error("the administrator does not trust both")
	}
	for _, l := range plan.Leaves("alpha", spec) {
		if !in.Keys[l.Name].Fits(l, newer[l.Authority]) {
			t.Errorf("%s is not of the newest", l.Name)
		}
	}
}
