package plan_test

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/pmezard/go-difflib/difflib"
	"sigs.k8s.io/yaml"

	"orrery.dev/orrery/internal/lifecycle/plan"
)

var update = flag.Bool("update", false, "write the golden files")

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s: go test -update writes it anew (-want +got):\n%s", file, diff)
	}
}

func shown(t *testing.T, p *plan.Plan) string {
	t.Helper()
	text, err := yaml.Marshal(redacted(p))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "PRIVATE KEY") {
		t.Error("the redacted plan has a private key")
	}
	return string(text)
}

// redacted returns a plan with digests in place of secrets.
func redacted(p *plan.Plan) *plan.Plan {
	copied := *p
	copied.Hosts = slices.Clone(p.Hosts)
	for i := range copied.Hosts {
		h := &copied.Hosts[i]
		h.Stages = slices.Clone(h.Stages)
		for j := range h.Stages {
			h.Stages[j].Steps = slices.Clone(h.Stages[j].Steps)
			for k := range h.Stages[j].Steps {
				step := &h.Stages[j].Steps[k]
				if step.File == nil || !step.File.Secret {
					continue
				}
				f := *step.File
				f.Content = fmt.Sprintf("secret sha256:%x", sha256.Sum256([]byte(f.Content)))
				step.File = &f
			}
		}
	}
	return &copied
}

func TestGoldenOneHost(t *testing.T) {
	golden(t, "one-host", shown(t, planOf(t, inputOf(specOf(t, oneHost)))))
}

// The golden files of TestGoldenVariants have the differences from the plan of TestGoldenOneHost.
func TestGoldenVariants(t *testing.T) {
	with := func(text string) string { return oneHost + text }
	cases := map[string]struct {
		spec  string
		facts func(f *plan.Facts)
		input func(in *plan.Input)
	}{
		"cgroup-one": {spec: oneHost, facts: func(f *plan.Facts) {
			f.CgroupVersion, f.OOMScoreAdj = 1, false
			f.SysctlsReadOnly = []string{"kernel.panic", "net.netfilter.nf_conntrack_max"}
		}},
		"arm64":    {spec: oneHost, facts: func(f *plan.Facts) { f.Arch = "arm64" }},
		"resolved": {spec: oneHost, facts: func(f *plan.Facts) { f.ResolvConf = "/run/systemd/resolve/resolv.conf" }},
		"external-etcd": {
			spec: with("etcd: {type: external, external: {endpoints: ['https://10.9.0.1:2379', 'https://10.9.0.2:2379'], secretRef: {name: etcd}}}"),
			input: func(in *plan.Input) {
				in.ExternalEtcd = &plan.ExternalEtcd{CA: []byte("ca\n"), Cert: []byte("cert\n"), Key: []byte("PRIVATE KEY\n")}
			},
		},
		"dual-stack": {spec: strings.Replace(with(`
network: {kubePodsCIDR: "10.233.64.0/18,fd85:1::/56", kubeServiceCIDR: "10.233.0.0/18,fd85:2::/112"}`),
			"address: 10.0.0.1", `address: 10.0.0.1, internalAddress: "10.0.0.1,fd00::1"`, 1)},
		"ipv6": {spec: strings.Replace(with(`
network: {kubePodsCIDR: "fd85:1::/56", kubeServiceCIDR: "fd85:2::/112"}`), "address: 10.0.0.1", "address: 'fd00::1'", 1)},
		"own-load-balancer": {spec: with("controlPlaneEndpoint: {address: 10.0.0.100, domain: api.example.com}")},
		"registry":          {spec: with("registry: {registryMirrors: ['https://mirror.example.com', 'http://10.1.1.1:5000'], insecureRegistries: ['registry.local:5000', mirror.example.com]}")},
		"system": {spec: with(`
system:
  debs: [nfs-common]
  rpms: [nfs-utils]
  preInstall: [{name: first, bash: 'echo pre', undo: 'echo undo'}]
  postInstall: [{name: last, bash: 'echo post'}, {name: other, bash: 'echo etcd', role: etcd}]
`)},
		"rpm": {spec: with("system: {debs: [nfs-common], rpms: [nfs-utils]}"), facts: func(f *plan.Facts) {
			f.OS, f.OSLike, f.Tools = "rocky", []string{"rhel", "centos", "fedora"}, []string{"dnf", "yum"}
		}},
		"ipvs":     {spec: strings.Replace(oneHost, "version: v1.36.3", "version: v1.36.3, proxyMode: ipvs, masqueradeAll: true", 1)},
		"iptables": {spec: strings.Replace(oneHost, "version: v1.36.3", "version: v1.36.3, proxyMode: iptables", 1)},
		"no-kube-proxy": {spec: strings.Replace(with("network: {plugin: cilium}\nsystem: {configureOS: Skip}"),
			"version: v1.36.3", "version: v1.36.3, disableKubeProxy: true", 1)},
		"settings": {spec: `
hosts:
- {name: node1, address: 10.0.0.1, labels: {disk: ssd}}
roleGroups: {control-plane: [node1]}
kubernetes:
  version: v1.36.3
  clusterName: blue
  dnsDomain: blue.example
  maxPods: 50
  podPidsLimit: 1000
  nodeCidrMaskSize: 25
  apiserverCertExtraSans: [blue.example.com, 192.0.2.1]
  featureGates: {RotateKubeletServerCertificate: true, AllAlpha: false}
  apiserverArgs: [profiling=true, "enable-admission-plugins=AlwaysPullImages,NodeRestriction", v=4]
  controllerManagerArgs: [terminated-pod-gc-threshold=10]
  schedulerArgs: [v=4]
  kubeletArgs: [v=4]
  kubeProxyArgs: [v=4]
  kubeletConfiguration: {evictionHard: {memory.available: 5%}, authentication: {anonymous: {enabled: true}}, rotateCertificates: null}
  kubeProxyConfiguration: {nftables: {minSyncPeriod: 5s}}
  audit: {enabled: true}
etcd: {port: 12379, peerPort: 12380, dataDir: /data/etcd, heartbeatInterval: 100, electionTimeout: 1000, snapshotCount: 10000, quotaBackendBytes: 8589934592,
  maxRequestBytes: 1572864, maxSnapshots: 3, maxWals: 4, metrics: extensive, logLevel: warn, autoCompactionRetention: 1, extraArgs: [max-txn-ops=1024]}
controlPlaneEndpoint: {port: 16443}
`},
		"etcd-3-5": {spec: oneHost, input: func(in *plan.Input) {
			for i := range in.Files["amd64"] {
				if f := &in.Files["amd64"][i]; f.Name == "etcd" {
					f.Version = "v3.5.24"
					in.Digests[f.Key()] = "sha256:" + hashOf("etcd-3.5")
				}
			}
		}},
	}
	base := shown(t, planOf(t, inputOf(specOf(t, oneHost))))
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			in := inputOf(specOf(t, c.spec))
			if c.facts != nil {
				f := in.Facts["node1"]
				c.facts(&f)
				in.Facts["node1"] = f
			}
			if c.input != nil {
				c.input(&in)
			}
			got, err := difflib.GetUnifiedDiffString(difflib.UnifiedDiff{
				A: difflib.SplitLines(base), B: difflib.SplitLines(shown(t, planOf(t, in))), FromFile: "one-host", ToFile: name,
			})
			if err != nil {
				t.Fatal(err)
			}
			golden(t, name, got)
		})
	}
}

// The golden files of TestGoldenTopologies list the steps of each host, the commands of units and
// the backends.
func TestGoldenTopologies(t *testing.T) {
	cases := map[string]string{
		"three-control-planes": highlyAvailable(2),
		"separate-etcd": `
hosts:
- {name: etcd1, address: 10.0.2.1}
- {name: etcd2, address: 10.0.2.2}
- {name: etcd3, address: 10.0.2.3}
- {name: cp1, address: 203.0.113.1, internalAddress: 10.0.0.1, bastion: {address: bastion.example.com}}
- {name: worker1, address: worker1.example.com, internalAddress: 10.0.1.1}
roleGroups: {etcd: ['etcd[1:3]'], control-plane: [cp1], worker: [worker1]}
system: {postInstall: [{name: done, bash: 'true'}]}
kubernetes: {version: v1.36.3}
`,
	}
	for name, spec := range cases {
		t.Run(name, func(t *testing.T) {
			p := planOf(t, inputOf(specOf(t, spec)))
			var b strings.Builder
			fmt.Fprintf(&b, "endpoint %s\nservers %s\n", p.Endpoint, strings.Join(p.APIServers, " "))
			for _, blob := range p.Blobs {
				fmt.Fprintf(&b, "blob %s %s\n", blob.URL, strings.Join(blob.Hosts, " "))
			}
			for _, h := range p.Hosts {
				fmt.Fprintf(&b, "\nhost %s %s %v %v\n", h.Name, h.Address, h.Roles, h.Node)
				for _, stage := range h.Stages {
					fmt.Fprintf(&b, "  %s\n", stage.ID)
					for _, s := range stage.Steps {
						fmt.Fprintf(&b, "    %s: %s %s\n", s.ID, s.Kind(), s.Target())
						switch {
						case s.Unit != nil:
							fmt.Fprintf(&b, "      %s\n", strings.Join(s.Unit.Command, "\n      "))
						case s.ID == "loadbalancer/backends":
							fmt.Fprintf(&b, "      %s\n", strings.ReplaceAll(strings.TrimSpace(s.File.Content), "\n", "\n      "))
						}
					}
				}
			}
			golden(t, name, b.String())
		})
	}
}
