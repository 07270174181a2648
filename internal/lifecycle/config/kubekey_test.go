package config_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/config"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

func mustParse(t *testing.T, content string) *config.Read {
	t.Helper()
	read, err := config.Parse([]byte(content), "testdata")
	if err != nil {
		t.Fatal(err)
	}
	return read
}

func file(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// leaf is a field with a value, with functions that remove the field and put it back.
type leaf struct {
	path          string
	remove, again func()
}

func leaves(path string, at any) []leaf {
	var found []leaf
	switch at := at.(type) {
	case map[string]any:
		for key, value := range at {
			p := path + "." + key
			if strings.ContainsAny(key, ".") {
				p = path + "[" + key + "]"
			}
			if inner := leaves(p, value); inner != nil {
				found = append(found, inner...)
				continue
			}
			found = append(found, leaf{p, func() { delete(at, key) }, func() { at[key] = value }})
		}
	case []any:
		for i, item := range at {
			found = append(found, leaves(fmt.Sprintf("%s[%d]", path, i), item)...)
		}
	}
	return found
}

// TestEveryFieldOfKubeKey: removing a field must change the cluster or the list of ignored fields.
func TestEveryFieldOfKubeKey(t *testing.T) {
	content, _, _ := strings.Cut(file(t, "kubekey-every-field.yaml"), "\n---\n")
	var root map[string]any
	if err := yaml.Unmarshal([]byte(content), &root); err != nil {
		t.Fatal(err)
	}
	whole := mustParse(t, content)
	// These fields ask for the default.
	anyhow := []string{"spec.kubernetes.type"}
	// These fields are ignored in one place and have an effect in another.
	both := []string{"spec.roleGroups.registry[0]", "spec.roleGroups.registry", "spec.controlPlaneEndpoint.internalLoadbalancer", "spec.hosts[3].name"}
	for _, field := range []string{"name", "bash", "role"} {
		both = append(both, "spec.system.postClusterInstall[0]."+field)
	}
	all := leaves("spec", root["spec"])
	if len(all) < 150 {
		t.Fatalf("only %d fields", len(all))
	}
	for _, l := range all {
		l.remove()
		without, err := yaml.Marshal(root)
		l.again()
		if err != nil {
			t.Fatal(err)
		}
		read, err := config.Parse(without, "testdata")
		mapped := err != nil || cmp.Diff(whole.Cluster, read.Cluster) != ""
		ignored := slices.ContainsFunc(whole.Ignored, func(said string) bool {
			path, reason, ok := strings.Cut(said, ": ")
			return ok && reason != "" && (path == l.path || strings.HasPrefix(l.path, path+".") || strings.HasPrefix(l.path, path+"["))
		})
		if !mapped && !ignored && !slices.Contains(anyhow, l.path) {
			t.Errorf("%s is dropped in silence", l.path)
		}
		if mapped && ignored && !slices.Contains(both, l.path) {
			t.Errorf("%s is named as ignored, and is not", l.path)
		}
	}
}

func TestKubeKey(t *testing.T) {
	read := mustParse(t, file(t, "kubekey-every-field.yaml"))
	enabled := clusterv1alpha1.Audit{Enabled: true}
	want := &clusterv1alpha1.Provision{
		Hosts: []clusterv1alpha1.Host{
			{
				Name: "node1", Address: "172.16.0.2", InternalAddress: "172.16.0.2,2022::2", Port: 8022, User: "ubuntu", Password: "Qcloud@123",
				PrivateKey: "key", PrivateKeyPath: "~/.ssh/id_rsa", Arch: "arm64", Timeout: 60, Labels: map[string]string{"disk": "SSD", "role": "backend"},
			},
			{Name: "node2", Address: "172.16.0.3"},
			{Name: "node3", Address: "172.16.0.4"},
		},
		RoleGroups: map[clusterv1alpha1.Role]clusterv1alpha1.HostNames{
			"etcd": {"node[1:3]"}, "control-plane": {"node1", "node2"}, "worker": {"node1", "node[2:3]"},
		},
		ControlPlaneEndpoint: clusterv1alpha1.ControlPlaneEndpoint{Domain: "lb.example.com", Port: 8443},
		System: clusterv1alpha1.System{
			ConfigureOS: "Skip", Debs: []string{"nfs-common"}, Rpms: []string{"nfs-utils"},
			PreInstall: []clusterv1alpha1.Script{{Name: "format-and-mount-disk", Bash: "#!/bin/bash\n/bin/bash -x setup-disk.sh", Role: "control-plane"}},
			PostInstall: []clusterv1alpha1.Script{
				{Name: "greet", Bash: "#!/bin/bash\necho hello", Role: "worker"}, {Name: "clean-tmps-files", Bash: "#!/bin/bash\nrm -fr /tmp/kubekey/*", Role: "etcd"},
			},
		},
		Kubernetes: clusterv1alpha1.Kubernetes{
			Version: "v1.36.3", ClusterName: "prod", DNSDomain: "example.local", DisableKubeProxy: true, ProxyMode: "ipvs", MasqueradeAll: true,
			MaxPods: 220, PodPidsLimit: 10000, NodeCidrMaskSize: 25, NodeCidrMaskSizeIPv6: 72, APIServerCertExtraSANs: []string{"192.168.8.8"},
			AutoRenewCerts:        new(true),
			FeatureGates:          map[string]bool{"RotateKubeletServerCertificate": true},
			APIServerArgs:         clusterv1alpha1.Args{"default-not-ready-toleration-seconds=30"},
			ControllerManagerArgs: clusterv1alpha1.Args{"node-monitor-period=2s"}, SchedulerArgs: clusterv1alpha1.Args{"v=3"},
			KubeletArgs: clusterv1alpha1.Args{"image-gc-high-threshold=80"}, KubeProxyArgs: clusterv1alpha1.Args{"v=2"},
			KubeletConfiguration:   &apiextensionsv1.JSON{Raw: []byte(`{"containerLogMaxFiles":6}`)},
			KubeProxyConfiguration: &apiextensionsv1.JSON{Raw: []byte(`{"ipvs":{"excludeCIDRs":["172.16.0.2/24"]}}`)},
			Audit:                  enabled,
		},
		Etcd: clusterv1alpha1.Etcd{
			Type: "external",
			External: &clusterv1alpha1.ExternalEtcd{
				Endpoints: []string{"https://192.168.6.6:2379"}, CAFile: "testdata/pki/ca.crt", CertFile: "/pki/etcd/etcd.crt", KeyFile: "/pki/etcd/etcd.key",
			},
			Port: 12379, PeerPort: 12380, DataDir: "/data/etcd", HeartbeatInterval: 300, ElectionTimeout: 6000, SnapshotCount: 20000,
			AutoCompactionRetention: 9, QuotaBackendBytes: 4294967296, MaxRequestBytes: 1572864, MaxSnapshots: 6, MaxWALs: 7,
			Metrics: "extensive", LogLevel: "warn", ExtraArgs: clusterv1alpha1.Args{"max-learners=2"},
		},
		Network: clusterv1alpha1.Network{
			Plugin: "calico", KubePodsCIDR: "10.244.0.0/16,fd01::/48", KubeServiceCIDR: "10.96.0.0/12,fd02::/112",
			Flannel: clusterv1alpha1.Flannel{BackendMode: "host-gw", DirectRouting: true},
		},
		Registry: clusterv1alpha1.Registry{
			RegistryMirrors:    []string{"https://mirror.example.com"},
			InsecureRegistries: []string{"registry.example.com", "dockerhub.kubekey.local", "plain.kubekey.local"},
			PrivateRegistry:    "dockerhub.kubekey.local", NamespaceOverride: "kubesphereio",
		},
		Addons: []clusterv1alpha1.Addon{
			{Name: "nfs-client", Namespace: "storage", Chart: &clusterv1alpha1.Chart{
				Name: "nfs-client-provisioner", Repo: "https://charts.example.com/main", Version: "1.2.3",
				Values: &apiextensionsv1.JSON{Raw: []byte(`{"nfs":{"options":["a","b"],"path":"/export","server":"10.0.0.5"}}`)},
			}},
			{Name: "local", Chart: &clusterv1alpha1.Chart{Path: "testdata/charts/local"}},
			{Name: "plain", YAML: []string{"testdata/a.yaml", "https://example.com/b.yaml"}},
		},
	}
	if diff := cmp.Diff(want, read.Cluster.Spec.Provision, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if read.Cluster.Name != "sample" || read.Cluster.Kind != "Cluster" {
		t.Errorf("got %s %s", read.Cluster.Kind, read.Cluster.Name)
	}
	if !slices.IsSorted(read.Ignored) {
		t.Error("what is ignored is not sorted")
	}
	if i := slices.IndexFunc(read.Ignored, func(s string) bool { return strings.HasPrefix(s, "ClusterConfiguration ks-installer: ") }); i < 0 {
		t.Errorf("the other document is not named: %q", read.Ignored)
	}
	for _, said := range read.Ignored {
		if strings.Contains(said, "s3cret") || strings.Contains(said, "Qcloud") {
			t.Errorf("a secret is told: %s", said)
		}
	}
}

// TestKubeKeySample parses the file that KubeKey generates.
func TestKubeKeySample(t *testing.T) {
	read := mustParse(t, `
apiVersion: kubekey.kubesphere.io/v1alpha2
kind: Cluster
metadata:
  name: sample
spec:
  hosts:
  - {name: node1, address: 172.16.0.2, internalAddress: 172.16.0.2, user: ubuntu, password: "Qcloud@123"}
  - {name: node2, address: 172.16.0.3, internalAddress: 172.16.0.3, user: ubuntu, password: "Qcloud@123"}
  roleGroups:
    etcd:
    - node1
    control-plane:
    - node1
    worker:
    - node1
    - node2
  controlPlaneEndpoint:
    ## Internal loadbalancer for apiservers
    # internalLoadbalancer: haproxy

    domain: lb.kubesphere.local
    address: ""
    port: 6443
  kubernetes:
    version: v1.36.3
    clusterName: cluster.local
    autoRenewCerts: true
    containerManager: containerd
  etcd:
    type: kubekey
  network:
    plugin: calico
    kubePodsCIDR: 10.233.64.0/18
    kubeServiceCIDR: 10.233.0.0/18
    ## multus support. https://github.com/k8snetworkplumbingwg/multus-cni
    multusCNI:
      enabled: false
  registry:
    privateRegistry: ""
    namespaceOverride: ""
    registryMirrors: []
    insecureRegistries: []
  addons: []
`)
	want := []string{
		"spec.controlPlaneEndpoint.domain: the API servers' certificate has it, but /etc/hosts is never edited; with externalDNS it is used",
		"spec.kubernetes.clusterName: it is no DNS label; kubeconfigs have metadata.name",
	}
	if diff := cmp.Diff(want, read.Ignored); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got := pathsOf(read.Defaults); !slices.Equal(got, []string{"spec.kubernetes.proxyMode", "spec.etcd.backupDir"}) {
		t.Errorf("other defaults: %v", got)
	}
	spec := read.Cluster.Spec.Provision
	plan.Default(read.Cluster.Name, spec)
	if problems := plan.Validate(read.Cluster.Name, spec); len(problems) > 0 {
		t.Errorf("got %v", problems)
	}
	if !slices.Contains(spec.Kubernetes.APIServerCertExtraSANs, "lb.kubesphere.local") {
		t.Errorf("the certificate has %v", spec.Kubernetes.APIServerCertExtraSANs)
	}
}

// pathsOf returns the paths of lines such as "spec.kubernetes.kata: reason".
func pathsOf(lines []string) []string {
	var paths []string
	for _, line := range lines {
		path, _, _ := strings.Cut(line, ": ")
		paths = append(paths, path)
	}
	return paths
}

// TestKubeKeyDefaults: a field that is not set, and has another default in KubeKey, is named.
func TestKubeKeyDefaults(t *testing.T) {
	const plugin, proxy, backups = "spec.network.plugin", "spec.kubernetes.proxyMode", "spec.etcd.backupDir"
	cases := map[string]struct {
		content string
		want    []string
	}{
		"Nothing":          {"", []string{plugin, proxy, backups}},
		"Empty":            {"  network: {plugin: ''}\n  kubernetes: {proxyMode: ''}\n  etcd: {}", []string{plugin, proxy, backups}},
		"All":              {"  network: {plugin: none}\n  kubernetes: {proxyMode: ipvs}\n  etcd: {backupPeriod: 30}", nil},
		"WithoutKubeProxy": {"  network: {plugin: cilium}\n  kubernetes: {disableKubeProxy: true}", []string{backups}},
		"ExternalEtcd":     {"  network: {plugin: cilium}\n  etcd: {type: external}", []string{proxy}},
		"ThreeBackups":     {"  network: {plugin: flannel}\n  kubernetes: {proxyMode: nftables}\n  etcd: {keepBackupNumber: 3}", nil},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			read := mustParse(t, "apiVersion: kubekey.kubesphere.io/v1alpha2\nkind: Cluster\nmetadata: {name: a}\nspec:\n  hosts: []\n"+tc.content)
			if diff := cmp.Diff(tc.want, pathsOf(read.Defaults)); diff != "" {
				t.Errorf("-want +got:\n%s\n%s", diff, strings.Join(read.Defaults, "\n"))
			}
		})
	}
	if read := mustParse(t, "apiVersion: cluster.orrery.dev/v1alpha1\nkind: Cluster\nmetadata: {name: a}\nspec: {provision: {}}"); len(read.Defaults) > 0 {
		t.Errorf("a file of Orrery has %v", read.Defaults)
	}
}

// TestKubeKeyFeatureGates: of the feature gates in KubeKey's example, those that the version lost
// are refused by name.
func TestKubeKeyFeatureGates(t *testing.T) {
	read := mustParse(t, `
apiVersion: kubekey.kubesphere.io/v1alpha2
kind: Cluster
metadata: {name: sample}
spec:
  hosts: [{name: node1, address: 172.16.0.2}]
  roleGroups: {etcd: [node1], control-plane: [node1], worker: [node1]}
  kubernetes:
    version: v1.36.3
    featureGates: {CSIStorageCapacity: true, ExpandCSIVolumes: true, RotateKubeletServerCertificate: true, TTLAfterFinished: true}
`)
	spec := read.Cluster.Spec.Provision
	plan.Default(read.Cluster.Name, spec)
	var refused []string
	for _, p := range plan.Validate(read.Cluster.Name, spec) {
		refused = append(refused, p.Field)
	}
	const path = "spec.provision.kubernetes.featureGates"
	if diff := cmp.Diff([]string{path + "[CSIStorageCapacity]", path + "[ExpandCSIVolumes]", path + "[TTLAfterFinished]"}, refused); diff != "" {
		t.Errorf("refused (-want +got):\n%s", diff)
	}
}

// TestKubeKeyClusterName: a cluster's name that the first versions made the domain is named with
// the field that keeps it.
func TestKubeKeyClusterName(t *testing.T) {
	for kubernetes, domain := range map[string]string{
		"clusterName: opsxlab.cn":                          "set kubernetes.dnsDomain to opsxlab.cn",
		"clusterName: cluster.local":                       "",
		"clusterName: opsxlab.cn, dnsDomain: cluster.wide": "",
		"clusterName: Not_a_name":                          "",
	} {
		read := mustParse(t, "apiVersion: kubekey.kubesphere.io/v1alpha2\nkind: Cluster\nmetadata: {name: a}\nspec:\n  kubernetes: {"+kubernetes+"}")
		said := strings.Join(read.Ignored, "\n")
		if !strings.HasPrefix(said, "spec.kubernetes.clusterName: it is no DNS label") || strings.Contains(said, "kubernetes.dnsDomain") != (domain != "") || !strings.Contains(said, domain) {
			t.Errorf("%s: %s", kubernetes, said)
		}
	}
}

func TestKubeKeyRefused(t *testing.T) {
	head := "apiVersion: kubekey.kubesphere.io/v1alpha2\nkind: Cluster\nmetadata: {name: a}\nspec:\n"
	cases := map[string]struct{ content, want string }{
		"K3s":         {head + "  kubernetes: {type: k3s}", "line 1: spec.kubernetes.type: k3s is not built: leave it out for kubernetes"},
		"Hybridnet":   {head + "  network: {plugin: hybridnet}", "line 1: spec.network.plugin: hybridnet is not installed: use flannel, calico, cilium or kubeovn, or none with an add-on"},
		"NoName":      {"apiVersion: kubekey.kubesphere.io/v1alpha2\nkind: Cluster\n", "line 1: metadata.name is missing: give the cluster a name"},
		"WrongType":   {head + "  kubernetes: {maxPods: many}", "line 1: read KubeKey's Cluster: spec.provision.kubernetes.maxPods is string and must be int32"},
		"BadRanges":   {head + "  roleGroups: {registry: ['node[3:1]'], etcd: ['node[4:1]'], control-plane: ['node[5:1]'], worker: ['node[6:1]']}", `line 1: spec.roleGroups.registry: roleGroups[hosts][0]: the range "node[3:1]" ends before it starts: write the lower number first`},
		"BadRange":    {head + "  roleGroups: {registry: ['node[3:1]']}", `line 1: spec.roleGroups.registry: roleGroups[hosts][0]: the range "node[3:1]" ends before it starts: write the lower number first`},
		"NoValues":    {head + "  addons: [{name: a, sources: {chart: {name: a, valuesFile: none.yaml}}}]", "line 1: spec.addons[0].sources.chart: read valuesFile: open testdata/none.yaml: no such file or directory"},
		"SecretValue": {head + "  addons: [{name: a, sources: {chart: {name: a, values: ['a[=s3cret']}}}]", "line 1: spec.addons[0].sources.chart: values[0] is not a name=value as Helm's --set takes it"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := config.Parse([]byte(tc.content), "testdata")
			if err == nil || err.Error() != tc.want {
				t.Errorf("got  %v\nwant %s", err, tc.want)
			}
		})
	}
}

func TestKubeKeyDetails(t *testing.T) {
	head := "apiVersion: kubekey.kubesphere.io/v1alpha2\nkind: Cluster\nmetadata: {name: a}\nspec:\n"
	cases := map[string]struct {
		content string
		want    clusterv1alpha1.Provision
		ignored []string
	}{
		"Haproxy":           {content: "  controlPlaneEndpoint: {internalLoadbalancer: haproxy, port: 6443}", want: clusterv1alpha1.Provision{ControlPlaneEndpoint: clusterv1alpha1.ControlPlaneEndpoint{Port: 6443}}},
		"OffIsHonoured":     {content: "  kubernetes: {kata: {enabled: false}, nodelocaldns: false}\n  storage: {openebs: {basePath: ''}}"},
		"AutoRenewCertsOff": {content: "  kubernetes: {version: v1.30.4, autoRenewCerts: false}", want: clusterv1alpha1.Provision{Kubernetes: clusterv1alpha1.Kubernetes{Version: "v1.30.4", AutoRenewCerts: new(false)}}},
		"Unknown": {
			content: "  hosts: [{name: a, sshPort: 22}]\n  cri: [a, b]\n  roleGroups: {gateway: [a]}", want: clusterv1alpha1.Provision{Hosts: []clusterv1alpha1.Host{{Name: "a"}}},
			ignored: []string{
				"spec.cri: KubeKey has no such field, as far as is known", "spec.hosts[0].sshPort: KubeKey has no such field, as far as is known",
				"spec.roleGroups.gateway: KubeKey has no such field, as far as is known",
			},
		},
		"EtcdOfKubeadm": {
			content: "  etcd: {type: kubeadm}", want: clusterv1alpha1.Provision{Etcd: clusterv1alpha1.Etcd{Type: "kubekey"}},
			ignored: []string{"spec.etcd.type: etcd runs as a unit of the hosts in roleGroups.etcd, not as a static pod"},
		},
		"NamesOfScripts": {
			content: "  system: {preInstall: [{name: 'A b', bash: x}, {name: 'a_b', bash: w}, {name: '!', bash: \"#!/bin/sh\\nz\"}]}",
			want: clusterv1alpha1.Provision{System: clusterv1alpha1.System{PreInstall: []clusterv1alpha1.Script{
				{Name: "a-b", Bash: "#!/bin/bash\nx"}, {Name: "a-b-2", Bash: "#!/bin/bash\nw"}, {Name: "3", Bash: "#!/bin/sh\nz"},
			}}},
		},
		"VersionAsItIs": {content: "  kubernetes: {version: v1.30.4}", want: clusterv1alpha1.Provision{Kubernetes: clusterv1alpha1.Kubernetes{Version: "v1.30.4"}}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			read := mustParse(t, head+tc.content)
			if diff := cmp.Diff(&tc.want, read.Cluster.Spec.Provision, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if diff := cmp.Diff(tc.ignored, read.Ignored, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("ignored: -want +got:\n%s", diff)
			}
		})
	}
}
