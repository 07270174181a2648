package plan_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

func TestValidate(t *testing.T) {
	// Each case changes a valid spec. %s stands for unchanged hosts and roleGroups.
	const (
		hosts  = "hosts: [{name: node1, address: 10.0.0.1}, {name: node2, address: 10.0.0.2}, {name: node3, address: 10.0.0.3}]\n"
		groups = "roleGroups: {control-plane: [node1], worker: ['node[2:3]']}\n"
		k8s    = "kubernetes: {version: v1.36.3}\n"
		root   = "spec.provision."
	)
	planes := "roleGroups: {control-plane: ['node[1:3]']}\n"
	cases := map[string]struct {
		name string
		spec string
		want []string // fields
		says string   // in the messages
	}{
		"Valid":                     {spec: hosts + groups + k8s},
		"ValidPaddedRange":          {spec: "hosts: [{name: n01, address: 10.0.0.1}, {name: n02, address: 10.0.0.2}]\nroleGroups: {control-plane: [n01], worker: ['n[01:02]']}\n" + k8s},
		"ValidSameAddressOtherPort": {spec: "hosts: [{name: a, address: 192.0.2.1, port: 2201, internalAddress: 10.0.0.1}, {name: b, address: 192.0.2.1, port: 2202, internalAddress: 10.0.0.2}]\nroleGroups: {control-plane: [a], worker: [b]}\n" + k8s},
		"ValidNoHostOfThePlugin":    {spec: hosts + groups + k8s + "network: {plugin: none}"},

		"ClusterName":       {name: "Alpha_1", spec: hosts + groups + k8s, want: []string{"metadata.name", root + "kubernetes.clusterName"}},
		"ClusterNameLong":   {name: strings.Repeat("a", 49), spec: hosts + groups + k8s, want: []string{"metadata.name"}},
		"NoHosts":           {spec: "hosts: []\nroleGroups: {}\n" + k8s, want: []string{root + "hosts", root + "roleGroups[control-plane]"}},
		"HostName":          {spec: "hosts: [{name: Node_1, address: 10.0.0.1}]\nroleGroups: {control-plane: [Node_1]}\n" + k8s, want: []string{root + "hosts[0].name"}},
		"DuplicateHostName": {spec: "hosts: [{name: a, address: 10.0.0.1}, {name: a, address: 10.0.0.2}]\nroleGroups: {control-plane: [a]}\n" + k8s, want: []string{root + "hosts[1].name"}},
		"DuplicateAddress": {
			spec: "hosts: [{name: a, address: 10.0.0.1}, {name: b, address: 10.0.0.1}]\nroleGroups: {control-plane: [a], worker: [b]}\n" + k8s,
			want: []string{root + "hosts[1].address", root + "hosts[1].internalAddress"}, says: "host a too",
		},
		"DuplicateInternalAddress": {
			spec: "hosts: [{name: a, address: 10.0.0.1}, {name: b, address: b.example.com, internalAddress: 10.0.0.1}]\nroleGroups: {control-plane: [a], worker: [b]}\n" + k8s,
			want: []string{root + "hosts[1].internalAddress"},
		},
		"AddressWithPort": {
			spec: "hosts: [{name: a, address: '10.0.0.1:22', internalAddress: 10.0.0.1}]\nroleGroups: {control-plane: [a]}\n" + k8s,
			want: []string{root + "hosts[0].address"}, says: "port has its own field",
		},
		"NoAddress":               {spec: "hosts: [{name: a, internalAddress: 10.0.0.1}]\nroleGroups: {control-plane: [a]}\n" + k8s, want: []string{root + "hosts[0].address"}},
		"NameWithoutAddress":      {spec: "hosts: [{name: a, address: a.example.com}]\nroleGroups: {control-plane: [a]}\n" + k8s, want: []string{root + "hosts[0].internalAddress"}},
		"LoopbackAddress":         {spec: "hosts: [{name: a, address: 127.0.0.1}]\nroleGroups: {control-plane: [a]}\n" + k8s, want: []string{root + "hosts[0].internalAddress"}},
		"TwoAddressesOfOneFamily": {spec: "hosts: [{name: a, address: 10.0.0.1, internalAddress: '10.0.0.1,10.0.0.2'}]\nroleGroups: {control-plane: [a]}\n" + k8s, want: []string{root + "hosts[0].internalAddress"}},
		"User":                    {spec: "hosts: [{name: a, address: 10.0.0.1, user: '-oProxyCommand=x'}]\nroleGroups: {control-plane: [a]}\n" + k8s, want: []string{root + "hosts[0].user"}},
		"Bastion":                 {spec: "hosts: [{name: a, address: 10.0.0.1, bastion: {address: 'a b', port: 70000}}]\nroleGroups: {control-plane: [a]}\n" + k8s, want: []string{root + "hosts[0].bastion.address", root + "hosts[0].bastion.port"}},
		"Arch":                    {spec: "hosts: [{name: a, address: 10.0.0.1, arch: riscv64}]\nroleGroups: {control-plane: [a]}\n" + k8s, want: []string{root + "hosts[0].arch"}},
		"Label":                   {spec: "hosts: [{name: a, address: 10.0.0.1, labels: {'a b': 'c d'}}]\nroleGroups: {control-plane: [a]}\n" + k8s, want: []string{root + "hosts[0].labels[a b]", root + "hosts[0].labels[a b]"}},

		"UnknownRole":        {spec: hosts + "roleGroups: {control-plane: [node1], worker: ['node[2:3]'], master: [node1]}\n" + k8s, want: []string{root + "roleGroups[master]"}},
		"UnknownHost":        {spec: hosts + "roleGroups: {control-plane: [node1], worker: ['node[2:5]']}\n" + k8s, want: []string{root + "roleGroups[worker][0]"}, says: "node4, node5"},
		"HostTwice":          {spec: hosts + "roleGroups: {control-plane: [node1], worker: ['node[2:3]', node3]}\n" + k8s, want: []string{root + "roleGroups[worker][1]"}},
		"HostWithoutRole":    {spec: hosts + "roleGroups: {control-plane: [node1], worker: [node2]}\n" + k8s, want: []string{root + "hosts[2].name"}, says: "no role"},
		"RangeBackwards":     {spec: hosts + "roleGroups: {control-plane: [node1], worker: ['node[3:2]', node2, node3]}\n" + k8s, want: []string{root + "roleGroups[worker][0]"}, says: "lower number first"},
		"RangeHuge":          {spec: hosts + "roleGroups: {control-plane: [node1], worker: ['node[1:999999999]', node2, node3]}\n" + k8s, want: []string{root + "roleGroups[worker][0]"}},
		"RangeMalformed":     {spec: hosts + "roleGroups: {control-plane: [node1], worker: ['node[1-3]', node2, node3]}\n" + k8s, want: []string{root + "roleGroups[worker][0]"}},
		"NoControlPlane":     {spec: hosts + "roleGroups: {etcd: [node1], worker: ['node[2:3]']}\n" + k8s, want: []string{root + "roleGroups[control-plane]"}},
		"EvenEtcd":           {spec: hosts + "roleGroups: {control-plane: ['node[1:2]'], worker: [node3]}\n" + k8s, want: []string{root + "roleGroups[etcd]"}, says: "add one or leave one out"},
		"ExternalEtcdHosts":  {spec: hosts + "roleGroups: {control-plane: ['node[1:2]'], etcd: [node3]}\n" + k8s + "etcd: {type: external, external: {endpoints: ['http://10.1.0.1:2379']}}", want: []string{root + "roleGroups[etcd]"}},
		"ExternalEtcdNone":   {spec: hosts + groups + k8s + "etcd: {type: external}", want: []string{root + "etcd.external.endpoints"}},
		"ExternalEtcdUnsaid": {spec: hosts + groups + k8s + "etcd: {external: {endpoints: ['http://10.1.0.1:2379']}}", want: []string{root + "etcd.external"}},
		"ExternalEtcdNoKeys": {
			spec: hosts + groups + k8s + "etcd: {type: external, external: {endpoints: ['https://10.1.0.1:2379'], caFile: /ca}}",
			want: []string{root + "etcd.external.certFile", root + "etcd.external.keyFile"},
		},
		"ExternalEtcdURL": {spec: hosts + groups + k8s + "etcd: {type: external, external: {endpoints: ['10.1.0.1:2379']}}", want: []string{root + "etcd.external.endpoints[0]"}},

		"PodsOverlapServices": {spec: hosts + groups + k8s + "network: {kubeServiceCIDR: 10.233.96.0/20}", want: []string{root + "network.kubeServiceCIDR"}, says: "overlaps"},
		"PodsOverlapHosts": {
			spec: hosts + groups + k8s + "network: {kubePodsCIDR: 10.0.0.0/18}",
			want: []string{root + "hosts[0].internalAddress", root + "hosts[1].internalAddress", root + "hosts[2].internalAddress"}, says: "10.0.0.0/18",
		},
		"EndpointInServices":   {spec: hosts + groups + k8s + "controlPlaneEndpoint: {address: 10.233.0.4}", want: []string{root + "controlPlaneEndpoint.address"}},
		"CIDRHostBits":         {spec: hosts + groups + k8s + "network: {kubePodsCIDR: 10.244.0.1/16}", want: []string{root + "network.kubePodsCIDR"}, says: "use 10.244.0.0/16"},
		"CIDRMalformed":        {spec: hosts + groups + k8s + "network: {kubePodsCIDR: all, kubeServiceCIDR: 10.1.0.0}", want: []string{root + "network.kubePodsCIDR", root + "network.kubeServiceCIDR"}},
		"CIDRMulticast":        {spec: hosts + groups + k8s + "network: {kubePodsCIDR: 224.0.0.0/16}", want: []string{root + "network.kubePodsCIDR"}},
		"CIDREverything":       {spec: hosts + groups + k8s + "network: {kubePodsCIDR: 0.0.0.0/0}", want: []string{root + "network.kubePodsCIDR"}},
		"ServicesTooFew":       {spec: hosts + groups + k8s + "network: {kubeServiceCIDR: 10.96.0.0/29}", want: []string{root + "network.kubeServiceCIDR"}, says: "/28 or larger"},
		"ServicesTooMany":      {spec: hosts + groups + k8s + "network: {kubeServiceCIDR: 172.0.0.0/8}", want: []string{root + "network.kubeServiceCIDR"}, says: "/12 or smaller"},
		"TwoNetworksOfAFamily": {spec: hosts + groups + k8s + "network: {kubePodsCIDR: '10.1.0.0/16,10.2.0.0/16'}", want: []string{root + "network.kubePodsCIDR"}},
		"PodsDualServicesNot":  {spec: hosts + groups + k8s + "network: {kubePodsCIDR: '10.1.0.0/16,fd00:1::/56'}", want: []string{root + "network.kubeServiceCIDR"}},
		"DualOrderDiffers": {
			spec: "hosts: [{name: a, address: 10.0.0.1, internalAddress: '10.0.0.1,fd00::1'}]\nroleGroups: {control-plane: [a]}\n" + k8s +
				"network: {kubePodsCIDR: '10.1.0.0/16,fd00:1::/56', kubeServiceCIDR: 'fd00:2::/112,10.2.0.0/16'}",
			want: []string{root + "network.kubeServiceCIDR"}, says: "same order",
		},
		"DualHostIsSingle": {
			spec: "hosts: [{name: a, address: 10.0.0.1}]\nroleGroups: {control-plane: [a]}\n" + k8s + "network: {kubePodsCIDR: '10.1.0.0/16,fd00:1::/56', kubeServiceCIDR: '10.2.0.0/16,fd00:2::/112'}",
			want: []string{root + "hosts[0].internalAddress"}, says: "no IPv6 address",
		},
		"NodeNetworkLargerThanPods": {spec: hosts + groups + "kubernetes: {version: v1.36.3, nodeCidrMaskSize: 16}", want: []string{root + "kubernetes.nodeCidrMaskSize"}},
		"NodeNetworksTooFew":        {spec: hosts + groups + k8s + "network: {kubePodsCIDR: 10.1.0.0/23}", want: []string{root + "kubernetes.nodeCidrMaskSize"}, says: "room for 2 nodes and there are 3"},
		"NodeNetworksTooMany":       {spec: hosts + groups + "kubernetes: {version: v1.36.3, nodeCidrMaskSize: 28, maxPods: 10}\nnetwork: {kubePodsCIDR: 11.0.0.0/8}", want: []string{root + "kubernetes.nodeCidrMaskSize"}, says: "at most 24"},
		"MorePodsThanAddresses":     {spec: hosts + groups + "kubernetes: {version: v1.36.3, maxPods: 254}", want: []string{root + "kubernetes.nodeCidrMaskSize"}, says: "253"},
		"Plugin":                    {spec: hosts + groups + k8s + "network: {plugin: weave}", want: []string{root + "network.plugin"}},
		"ManifestAndChart":          {spec: hosts + groups + k8s + "network: {manifest: a.yaml, chart: {path: c}}", want: []string{root + "network.chart"}},

		"VersionWithoutV":   {spec: hosts + groups + "kubernetes: {version: 1.36.3}", want: []string{root + "kubernetes.version"}, says: "such as v1.36.3"},
		"VersionTwoNumbers": {spec: hosts + groups + "kubernetes: {version: v1.36}", want: []string{root + "kubernetes.version"}},
		"VersionAncient":    {spec: hosts + groups + "kubernetes: {version: v1.19.0}", want: []string{root + "kubernetes.version"}, says: "v1.31 or newer"},
		"DNSDomain":         {spec: hosts + groups + "kubernetes: {version: v1.36.3, dnsDomain: a_b}", want: []string{root + "kubernetes.dnsDomain"}},
		"ProxyMode":         {spec: hosts + groups + "kubernetes: {version: v1.36.3, proxyMode: ebpf}", want: []string{root + "kubernetes.proxyMode"}},
		"SAN":               {spec: hosts + groups + "kubernetes: {version: v1.36.3, apiserverCertExtraSans: ['*.example.com', 'a b']}", want: []string{root + "kubernetes.apiserverCertExtraSans[1]"}},
		"FeatureGate":       {spec: hosts + groups + "kubernetes: {version: v1.36.3, featureGates: {'A=true,B': true}}", want: []string{root + "kubernetes.featureGates[A=true,B]"}},
		"FeatureGatesOfArgs": {
			spec: hosts + groups + "kubernetes: {version: v1.36.3, apiserverArgs: ['feature-gates=TTLAfterFinished=true,NodeSwap=true, kube:NodeSwap=false'], controllerManagerArgs: ['feature_gates=ControllerManagerReleaseLeaderElectionLockOnExit=true']}\netcd: {extraArgs: ['feature-gates=InitialCorruptCheck=true']}",
			want: []string{root + "kubernetes.apiserverArgs[0][NodeSwap]", root + "kubernetes.apiserverArgs[0][TTLAfterFinished]"}, says: "always true",
		},
		"FeatureGatesOfConfigurations": {
			spec: hosts + groups + "kubernetes: {version: v1.36.3, kubeletConfiguration: {featureGates: {TTLAfterFinished: true, NodeSwap: true}}, kubeProxyConfiguration: {featureGates: {TTLAfterFinished: false}}}",
			want: []string{root + "kubernetes.kubeletConfiguration.featureGates[TTLAfterFinished]", root + "kubernetes.kubeProxyConfiguration.featureGates[TTLAfterFinished]"},
		},
		"ArgsMalformed": {
			spec: hosts + groups + "kubernetes: {version: v1.36.3, schedulerArgs: ['--v=4', v, '=4', \"v=4\\nx\"]}",
			want: []string{root + "kubernetes.schedulerArgs[0]", root + "kubernetes.schedulerArgs[1]", root + "kubernetes.schedulerArgs[2]", root + "kubernetes.schedulerArgs[3]"},
		},
		"ArgsOwned": {
			spec: hosts + groups + "kubernetes: {version: v1.36.3, apiserverArgs: [etcd-servers=http://x, client_ca_file=/x]}",
			want: []string{root + "kubernetes.apiserverArgs[0]", root + "kubernetes.apiserverArgs[1]"}, says: "--client-ca-file",
		},
		"ArgsOwnedEtcd":         {spec: hosts + groups + k8s + "etcd: {extraArgs: [force-new-cluster=true]}", want: []string{root + "etcd.extraArgs[0]"}},
		"ArgsUnheeded":          {spec: hosts + groups + "kubernetes: {version: v1.36.3, kubeProxyArgs: [v=2, proxy-mode=ipvs]}", want: []string{root + "kubernetes.kubeProxyArgs[1]"}, says: "kubeProxyConfiguration"},
		"ConfigurationOwned":    {spec: hosts + groups + "kubernetes: {version: v1.36.3, kubeletConfiguration: {cgroupDriver: systemd}}", want: []string{root + "kubernetes.kubeletConfiguration.cgroupDriver"}},
		"ConfigurationNoObject": {spec: hosts + groups + "kubernetes: {version: v1.36.3, kubeProxyConfiguration: [1]}", want: []string{root + "kubernetes.kubeProxyConfiguration"}},

		"EndpointName":       {spec: hosts + groups + k8s + "controlPlaneEndpoint: {address: lb.example.com}", want: []string{root + "controlPlaneEndpoint.address"}, says: "domain"},
		"EndpointIsAPlane":   {spec: hosts + planes + k8s + "controlPlaneEndpoint: {address: 10.0.0.2}", want: []string{root + "controlPlaneEndpoint.address"}, says: "host node2"},
		"EndpointOfOnePlane": {spec: hosts + groups + k8s + "controlPlaneEndpoint: {address: 10.0.0.1}"},
		"PortOfBalancer":     {spec: hosts + groups + k8s + "controlPlaneEndpoint: {port: 7443}", want: []string{root + "controlPlaneEndpoint.port"}, says: "of orrery"},
		"PortOfKubelet":      {spec: hosts + groups + k8s + "controlPlaneEndpoint: {port: 10250}", want: []string{root + "controlPlaneEndpoint.port"}},
		"PortOfSSH":          {spec: hosts + groups + k8s + "controlPlaneEndpoint: {port: 22}", want: []string{root + "controlPlaneEndpoint.port"}, says: "sshd"},
		"EtcdPortsEqual":     {spec: hosts + groups + k8s + "etcd: {port: 2380}", want: []string{root + "etcd.peerPort"}},
		"EtcdPortOfMetrics":  {spec: hosts + groups + k8s + "etcd: {port: 2381}", want: []string{root + "etcd.port"}},
		"EtcdDataDirRoot":    {spec: hosts + groups + k8s + "etcd: {dataDir: /var/lib}", want: []string{root + "etcd.dataDir"}},
		"EtcdDataDirOurs":    {spec: hosts + groups + k8s + "etcd: {dataDir: /var/lib/kubelet/etcd}", want: []string{root + "etcd.dataDir"}},
		"EtcdDataDirTop":     {spec: hosts + groups + k8s + "etcd: {dataDir: /etcd}", want: []string{root + "etcd.dataDir"}},
		"EtcdDataDirUp":      {spec: hosts + groups + k8s + "etcd: {dataDir: /data/../etc}", want: []string{root + "etcd.dataDir"}},
		"EtcdDataDirGone":    {spec: hosts + groups + k8s + "etcd: {dataDir: /tmp/etcd}", want: []string{root + "etcd.dataDir"}},
		"EtcdElection":       {spec: hosts + groups + k8s + "etcd: {heartbeatInterval: 1000, electionTimeout: 1000}", want: []string{root + "etcd.electionTimeout"}},
		"EtcdNegative":       {spec: hosts + groups + k8s + "etcd: {snapshotCount: -1}", want: []string{root + "etcd.snapshotCount"}},

		"Package":        {spec: hosts + groups + k8s + "system: {debs: ['-o', curl]}", want: []string{root + "system.debs[0]"}},
		"ScriptTwice":    {spec: hosts + groups + k8s + "system: {preInstall: [{name: a, bash: x}, {name: a, bash: ' '}]}", want: []string{root + "system.preInstall[1].bash", root + "system.preInstall[1].name"}},
		"Mirror":         {spec: hosts + groups + k8s + "registry: {registryMirrors: [mirror.example.com]}", want: []string{root + "registry.registryMirrors[0]"}},
		"Insecure":       {spec: hosts + groups + k8s + "registry: {insecureRegistries: ['http://r', docker.io]}", want: []string{root + "registry.insecureRegistries[0]", root + "registry.insecureRegistries[1]"}},
		"Private":        {spec: hosts + groups + k8s + "registry: {privateRegistry: r.example.com/path, namespaceOverride: '../x'}", want: []string{root + "registry.namespaceOverride", root + "registry.privateRegistry"}},
		"AddonTwice":     {spec: hosts + groups + k8s + "addons: [{name: a, yaml: [x]}, {name: a}]", want: []string{root + "addons[1]", root + "addons[1].name"}},
		"AddonChart":     {spec: hosts + groups + k8s + "addons: [{name: a, chart: {repo: 'https://r.example.com'}}]", want: []string{root + "addons[0].chart.name"}},
		"Source":         {spec: hosts + groups + k8s + "source: ftp://x", want: []string{root + "source"}},
		"DeletionPolicy": {spec: hosts + groups + k8s + "deletionPolicy: Keep", want: []string{root + "deletionPolicy"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			cluster := c.name
			if cluster == "" {
				cluster = "alpha"
			}
			spec := looseSpecOf(t, c.spec)
			if c.name != "" {
				spec.Kubernetes.ClusterName = c.name
			}
			if c.name == strings.Repeat("a", 49) {
				spec.Kubernetes.ClusterName = "alpha"
			}
			problems := plan.Validate(cluster, spec)
			got := map[string]int{}
			for _, p := range problems {
				got[p.Field]++
			}
			want := map[string]int{}
			for _, field := range c.want {
				want[field]++
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("fields (-want +got):\n%s%v", diff, problems)
			}
			if text := fmt.Sprint(problems); !strings.Contains(text, c.says) {
				t.Errorf("got %s, want it to say %q", text, c.says)
			}
		})
	}
}

func TestValidateRepeatsNoSecret(t *testing.T) {
	spec := looseSpecOf(t, `
hosts: [{name: a, address: 10.0.0.1, user: 'x y', password: HUSH, sudoPassword: HUSH, privateKey: HUSH, bastion: {address: '', password: HUSH}}]
roleGroups: {control-plane: [a, b]}
kubernetes: {version: v1.36.3, apiserverArgs: ['--token=HUSH', 'etcd-servers=https://root:HUSH@etcd', "x=HUSH\n"], kubeletConfiguration: [HUSH]}
registry: {registryMirrors: ['https://user:HUSH@mirror.example.com']}
source: 'https://user:HUSH@mirror.example.com'
`)
	problems := plan.Validate("alpha", spec)
	if len(problems) == 0 {
		t.Fatal("the spec is valid")
	}
	if text := problems.ToAggregate().Error(); strings.Contains(text, "HUSH") {
		t.Errorf("the errors have a secret: %s", text)
	}
}

func TestValidateEvenEtcdHasItsOrigin(t *testing.T) {
	spec := looseSpecOf(t, "hosts: [{name: a, address: 10.0.0.1}, {name: b, address: 10.0.0.2}]\nroleGroups: {control-plane: [a, b]}\nkubernetes: {version: v1.36.3}")
	problems := plan.Validate("alpha", spec)
	if len(problems) != 1 || problems[0].Origin != plan.EvenEtcd {
		t.Errorf("got %v, want one error of origin %s", problems, plan.EvenEtcd)
	}
	if text := problems.ToAggregate().Error(); !strings.Contains(text, "Invalid value: 2: 2 members") {
		t.Errorf("got %q", text)
	}
}

// TestValidateInOrder: the problems come in the same order each time, that of the fields or of the
// names of hosts.
func TestValidateInOrder(t *testing.T) {
	spec := looseSpecOf(t, `
hosts: [{name: node1, address: 10.0.0.1}, {name: node2, address: 10.0.0.2}, {name: a, address: 10.0.1.1, internalAddress: 10.0.0.1}, {name: b, address: 10.0.1.2, internalAddress: 10.0.0.1}]
roleGroups: {control-plane: ['node[1:2]', a, b], etcd: [node1]}
kubernetes: {version: v1.36.3}
controlPlaneEndpoint: {address: 10.0.0.1}
etcd: {autoCompactionRetention: -1, snapshotCount: -1, quotaBackendBytes: -1, maxRequestBytes: -1, maxSnapshots: -1, maxWals: -1}
`)
	var got []string
	for _, p := range plan.Validate("alpha", spec) {
		field := strings.TrimPrefix(p.Field, "spec.provision.")
		switch {
		case strings.HasPrefix(field, "etcd"):
			got = append(got, field)
		case field == "controlPlaneEndpoint.address":
			host, _, _ := strings.Cut(p.Detail, ":")
			got = append(got, host)
		}
	}
	want := []string{
		"is host a", "is host b", "is host node1",
		"etcd.autoCompactionRetention", "etcd.snapshotCount", "etcd.quotaBackendBytes", "etcd.maxRequestBytes", "etcd.maxSnapshots", "etcd.maxWals",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestValidateUpdate(t *testing.T) {
	base := highlyAvailable(2)
	replace := func(old, updated string) string {
		if !strings.Contains(base, old) {
			t.Fatalf("the spec has no %q", old)
		}
		return strings.Replace(base, old, updated, 1)
	}
	const root = "spec.provision."
	cases := map[string]struct {
		from, to string
		want     []string
		says     string
	}{
		"Same":          {to: base},
		"MoreWorkers":   {to: highlyAvailable(5)},
		"FewerWorkers":  {to: highlyAvailable(1)},
		"NewPatch":      {to: replace("v1.36.3", "v1.36.4")},
		"NextMinor":     {to: replace("v1.36.3", "v1.37.0"), want: []string{root + "kubernetes.version"}, says: "a patch of v1.36"},
		"OlderPatch":    {to: replace("v1.36.3", "v1.36.2"), want: []string{root + "kubernetes.version"}, says: "cannot go back"},
		"OlderMinor":    {to: replace("v1.36.3", "v1.35.9"), want: []string{root + "kubernetes.version"}},
		"Pods":          {to: base + "network: {kubePodsCIDR: 10.244.0.0/16}", want: []string{root + "network.kubePodsCIDR"}, says: "10.233.64.0/18"},
		"Services":      {to: base + "network: {kubeServiceCIDR: 10.96.0.0/16}", want: []string{root + "network.kubeServiceCIDR"}},
		"Plugin":        {to: base + "network: {plugin: calico}", want: []string{root + "network.plugin"}},
		"EtcdDir":       {to: base + "etcd: {dataDir: /data/etcd}", want: []string{root + "etcd.dataDir"}},
		"EtcdSettings":  {to: base + "etcd: {quotaBackendBytes: 8589934592}"},
		"Port":          {to: base + "controlPlaneEndpoint: {port: 8443}", want: []string{root + "controlPlaneEndpoint.port"}},
		"Address":       {to: replace("10.0.1.2", "10.0.1.9"), want: []string{root + "hosts[4].internalAddress"}, says: "delete the node and add it again"},
		"BecomesWorker": {to: replace("worker: [", "worker: [cp1, ")},
		"LosesPlane": {
			to:   replace("control-plane: ['cp[1:3]'], worker: [", "etcd: ['cp[1:3]'], control-plane: [cp1, cp2], worker: [cp3, "),
			want: []string{root + "roleGroups[control-plane]"}, says: "cp3",
		},
		"OneMemberLess": {to: strings.Replace(replace("- {name: cp3, address: 10.0.0.3}\n", ""), "cp[1:3]", "cp[1:2]", 1)},
		"TwoMembersLess": {
			to:   strings.Replace(replace("- {name: cp2, address: 10.0.0.2}\n- {name: cp3, address: 10.0.0.3}\n", ""), "cp[1:3]", "cp[1:1]", 1),
			want: []string{root + "roleGroups[etcd]"}, says: "2 are its quorum",
		},
		"MemberReplaced": {to: strings.Replace(replace("- {name: cp3, address: 10.0.0.3}\n", "- {name: cp4, address: 10.0.0.4}\n"), "'cp[1:3]'", "cp1, cp2, cp4", 1)},
		"MemberMoreMakes4": {
			to:   strings.Replace(replace("- {name: cp3,", "- {name: cp4, address: 10.0.0.4}\n- {name: cp3,"), "cp[1:3]", "cp[1:4]", 1),
			want: []string{root + "roleGroups[etcd]"}, says: "4 members",
		},
		"OneToThree": {from: oneHost, to: `
hosts: [{name: node1, address: 10.0.0.1}, {name: node2, address: 10.0.0.2}, {name: node3, address: 10.0.0.3}]
roleGroups: {control-plane: ['node[1:3]'], worker: [node1]}
kubernetes: {version: v1.36.3}
`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if c.from == "" {
				c.from = base
			}
			problems := plan.ValidateUpdate(specOf(t, c.from), looseSpecOf(t, c.to))
			var got []string
			for _, p := range problems {
				got = append(got, p.Field)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Fatalf("fields (-want +got):\n%s%v", diff, problems)
			}
			if text := fmt.Sprint(problems); !strings.Contains(text, c.says) {
				t.Errorf("got %s, want it to say %q", text, c.says)
			}
		})
	}
}

func TestExpand(t *testing.T) {
	got, err := plan.Expand(map[clusterv1alpha1.Role]clusterv1alpha1.HostNames{
		clusterv1alpha1.RoleWorker: {"b", "node[9:11]", "rack[01:02]-a", "node10"},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[clusterv1alpha1.Role][]string{clusterv1alpha1.RoleWorker: {"b", "node9", "node10", "node11", "rack01-a", "rack02-a"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestExpandRefuses(t *testing.T) {
	for _, item := range []string{"n[1:", "n[1]", "n[a:b]", "n[2:1]", "n[1:1001]", "n[1:2][1:2]", "n[-1:2]", "n[99999999999999999999:2]"} {
		groups := map[clusterv1alpha1.Role]clusterv1alpha1.HostNames{clusterv1alpha1.RoleWorker: {item}}
		if got, err := plan.Expand(groups); err == nil || !strings.Contains(err.Error(), "roleGroups[worker][0]") {
			t.Errorf("%s: got %v and error %v, want an error that names it", item, got, err)
		}
	}
	if _, err := plan.Expand(map[clusterv1alpha1.Role]clusterv1alpha1.HostNames{clusterv1alpha1.RoleWorker: slices.Repeat(clusterv1alpha1.HostNames{"n[1:1000]"}, 1000)}); err == nil {
		t.Error("a million hosts are no error")
	}
}

func TestDefaultKeepsWhatIsSet(t *testing.T) {
	spec := specOf(t, oneHost+"etcd: {port: 3379}\nnetwork: {plugin: calico}")
	again := spec.DeepCopy()
	plan.Default("beta", again)
	if diff := cmp.Diff(spec, again); diff != "" {
		t.Errorf("defaults changed by being set again (-once +twice):\n%s", diff)
	}
	if spec.Etcd.Port != 3379 || spec.Network.Plugin != "calico" {
		t.Errorf("got etcd port %d and plugin %s", spec.Etcd.Port, spec.Network.Plugin)
	}
	if roles := slices.Sorted(maps.Keys(spec.RoleGroups)); !slices.Contains(roles, clusterv1alpha1.RoleEtcd) {
		t.Errorf("etcd has no hosts: the roles are %v", roles)
	}
}
