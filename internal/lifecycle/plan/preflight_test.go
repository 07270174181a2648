package plan_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/pki"
)

const gib = 1 << 30

// three returns a control plane, a worker, and a host with only etcd, all without problems.
func three(t *testing.T) plan.Input {
	t.Helper()
	spec := &clusterv1alpha1.Provision{
		RoleGroups: map[clusterv1alpha1.Role]clusterv1alpha1.HostNames{
			clusterv1alpha1.RoleControlPlane: {"node1"},
			clusterv1alpha1.RoleWorker:       {"node2"},
			clusterv1alpha1.RoleEtcd:         {"node1", "node3"},
		},
		Kubernetes: clusterv1alpha1.Kubernetes{Version: "v1.36.3"},
	}
	in := plan.Input{Name: "alpha", ID: "ours", Spec: spec, Facts: map[string]plan.Facts{}, Keys: pki.Bundle{}}
	if _, err := in.Keys.Ensure(nil, time.Unix(1_800_000_000, 0), plan.Authorities(), nil, nil); err != nil {
		t.Fatal(err)
	}
	for i := 1; i <= 3; i++ {
		name := fmt.Sprintf("node%d", i)
		spec.Hosts = append(spec.Hosts, clusterv1alpha1.Host{Name: name, Address: fmt.Sprintf("10.0.0.%d", i)})
		in.Facts[name] = plan.Facts{
			Hostname: name, MachineID: name, BootID: name, OS: "debian", OSVersion: "12", Arch: "amd64", Kernel: "6.1.0-13-amd64",
			CPUs: 4, MemoryBytes: 8 * gib, Init: "systemd", CgroupVersion: 2, Controllers: []string{"cpu", "cpuset", "memory", "pids"},
			DiskFreeBytes: new(int64(50 * gib)), FsyncLatency: 2 * time.Millisecond, RoundTrip: 20 * time.Millisecond,
			Links: []plan.Link{
				{Name: "lo", MTU: 65536, Addresses: []string{"127.0.0.1/8", "::1/128"}},
				{Name: "eth0", MTU: 1500, Addresses: []string{fmt.Sprintf("10.0.0.%d/24", i), fmt.Sprintf("fd00::%d/64", i)}},
			},
			Listening: []int{22}, Listeners: map[int]string{22: "sshd (pid 1)"}, OOMScoreAdj: true,
			Tools: []string{"apt-get", "ip", "iptables", "mount", "nft"},
		}
	}
	plan.Default(in.Name, spec)
	return in
}

func TestPreflight(t *testing.T) {
	one := func(host, check string, severity plan.Severity) []plan.Finding {
		return []plan.Finding{{Host: host, Check: check, Severity: severity}}
	}
	failed := func(host, check string) []plan.Finding { return one(host, check, plan.SeverityError) }
	warned := func(host, check string) []plan.Finding { return one(host, check, plan.SeverityWarning) }
	cases := map[string]struct {
		facts map[string]func(f *plan.Facts)
		spec  func(spec *clusterv1alpha1.Provision)
		want  []plan.Finding
	}{
		"Healthy": {},
		"NotRoot": {facts: on("node2", func(f *plan.Facts) { f.UID = 1000 }), want: failed("node2", plan.CheckRoot)},
		"OtherCluster": {
			facts: on("node2", func(f *plan.Facts) {
				f.Applied = plan.Applied{Cluster: "beta", ClusterID: "other"}
				f.Swaps = []string{"/dev/sda2"} // not checked on a host of another cluster
			}),
			want: failed("node2", plan.CheckCluster),
		},
		"AgentFails":          {facts: on("node1", func(f *plan.Facts) { f.AgentError = "state.json is damaged" }), want: warned("node1", plan.CheckAgent)},
		"UnsupportedArch":     {facts: on("node2", func(f *plan.Facts) { f.Arch = "ppc64le" }), want: failed("node2", plan.CheckArchitecture)},
		"ArchDiffers":         {spec: func(s *clusterv1alpha1.Provision) { s.Hosts[1].Arch = "arm64" }, want: failed("node2", plan.CheckArchitecture)},
		"MixedArch":           {facts: on("node2", func(f *plan.Facts) { f.Arch = "arm64" })},
		"UnknownDistribution": {facts: on("node3", func(f *plan.Facts) { f.OS = "nixos" }), want: warned("node3", plan.CheckDistribution)},
		"LikeAKnownOne":       {facts: on("node3", func(f *plan.Facts) { f.OS, f.OSLike = "pop", []string{"ubuntu", "debian"} })},
		"NoPackageManager":    {facts: on("node3", func(f *plan.Facts) { f.Tools = f.Tools[1:] }), spec: func(s *clusterv1alpha1.Provision) { s.System.Debs = []string{"jq"} }, want: failed("node3", plan.CheckDistribution)},
		"OldKernel":           {facts: on("node3", func(f *plan.Facts) { f.Kernel = "4.18.0-553.el8" }), want: failed("node3", plan.CheckKernel)},
		"KernelWithoutMode":   {facts: on("node2", func(f *plan.Facts) { f.Kernel = "5.4.0-100" }), want: failed("node2", plan.CheckKernel)},
		"KernelForIPTables":   {facts: on("node2", func(f *plan.Facts) { f.Kernel = "5.4.0-100" }), spec: func(s *clusterv1alpha1.Provision) { s.Kubernetes.ProxyMode = "iptables" }},
		"KernelWithoutProxy":  {facts: on("node2", func(f *plan.Facts) { f.Kernel = "5.4.0-100" }), spec: func(s *clusterv1alpha1.Provision) { s.Kubernetes.DisableKubeProxy = true }},
		"KernelOfEtcd":        {facts: on("node3", func(f *plan.Facts) { f.Kernel = "5.4.0-100" })},
		"StrangeKernel":       {facts: on("node2", func(f *plan.Facts) { f.Kernel = "gnu" }), want: warned("node2", plan.CheckKernel)},
		"NoSystemd":           {facts: on("node2", func(f *plan.Facts) { f.Init = "" }), want: failed("node2", plan.CheckInit)},
		"CgroupOne":           {facts: on("node2", func(f *plan.Facts) { f.CgroupVersion = 1 }), want: warned("node2", plan.CheckCgroups)},
		"NoMemoryController":  {facts: on("node2", func(f *plan.Facts) { f.Controllers = []string{"cpu", "cpuset", "pids"} }), want: failed("node2", plan.CheckCgroups)},
		"OneCPU":              {facts: on("node1", func(f *plan.Facts) { f.CPUs = 1 }), want: warned("node1", plan.CheckCPU)},
		"OneCPUOfWorker":      {facts: on("node2", func(f *plan.Facts) { f.CPUs = 1 })},
		"SmallControlPlane":   {facts: on("node1", func(f *plan.Facts) { f.MemoryBytes = gib }), want: warned("node1", plan.CheckMemory)},
		"TinyWorker":          {facts: on("node2", func(f *plan.Facts) { f.MemoryBytes = gib / 4 }), want: failed("node2", plan.CheckMemory)},
		"Swap":                {facts: on("node2", func(f *plan.Facts) { f.Swaps = []string{"/dev/sda2"} }), want: failed("node2", plan.CheckSwap)},
		"SwapOfEtcd":          {facts: on("node3", func(f *plan.Facts) { f.Swaps = []string{"/dev/sda2"} })},
		"SwapIsWanted":        {facts: on("node2", func(f *plan.Facts) { f.Swaps = []string{"/dev/sda2"} }), spec: kubelet(`{"failSwapOn": false}`)},
		"SwapIsRefused":       {facts: on("node2", func(f *plan.Facts) { f.Swaps = []string{"/dev/sda2"} }), spec: kubelet(`{"failSwapOn": true}`), want: failed("node2", plan.CheckSwap)},
		"NoSpace":             {facts: on("node2", func(f *plan.Facts) { f.DiskFreeBytes = new(int64(0)) }), want: failed("node2", plan.CheckDisk)},
		"UnknownSpace":        {facts: on("node2", func(f *plan.Facts) { f.DiskFreeBytes = nil })},
		"SlowEtcd":            {facts: on("node1", func(f *plan.Facts) { f.FsyncLatency = 30 * time.Millisecond }), want: warned("node1", plan.CheckFsync)},
		"SlowWorker":          {facts: on("node2", func(f *plan.Facts) { f.FsyncLatency = 30 * time.Millisecond })},
		"NoNFT":               {facts: on("node2", func(f *plan.Facts) { f.Tools = []string{"apt-get", "ip", "mount"} }), want: failed("node2", plan.CheckTools)},
		"NFTIsInstalled":      {facts: on("node2", func(f *plan.Facts) { f.Tools = []string{"apt-get", "ip", "mount"} }), spec: func(s *clusterv1alpha1.Provision) { s.System.Debs = []string{"nftables"} }},
		"NFTOfOtherManager":   {facts: on("node2", func(f *plan.Facts) { f.OS, f.Tools = "rocky", []string{"dnf", "ip", "mount"} }), spec: func(s *clusterv1alpha1.Provision) { s.System.Debs = []string{"nftables"} }, want: failed("node2", plan.CheckTools)},
		"ToolsOfEtcd":         {facts: on("node3", func(f *plan.Facts) { f.Tools = nil })},
		"Leftovers":           {facts: on("node2", func(f *plan.Facts) { f.Leftovers = []string{"/etc/kubernetes/pki"} }), want: failed("node2", plan.CheckLeftovers)},
		"PortTaken":           {facts: on("node1", func(f *plan.Facts) { f.Listening = []int{22, 6443} }), want: failed("node1", plan.CheckPorts)},
		"PortOfOtherRole":     {facts: on("node2", func(f *plan.Facts) { f.Listening = []int{22, 6443, 2379} })},
		"PortMoved":           {facts: on("node1", func(f *plan.Facts) { f.Listening = []int{22, 6443} }), spec: func(s *clusterv1alpha1.Provision) { s.ControlPlaneEndpoint.Port = 8443 }},
		"AddressMissing":      {facts: on("node2", func(f *plan.Facts) { f.Links[1].Addresses = []string{"10.9.0.2/24"} }), want: failed("node2", plan.CheckAddress)},
		"AddressesUnknown":    {facts: on("node2", func(f *plan.Facts) { f.Links = []plan.Link{{Name: "eth0", MTU: 1500}} })},
		"AddressTwice":        {facts: on("node2", func(f *plan.Facts) { f.Links[1].Addresses = append(f.Links[1].Addresses, "10.0.0.1/24") }), want: failed("node1", plan.CheckAddress)},
		"HostInPodNetwork": {facts: on("node2", func(f *plan.Facts) {
			f.Links = append(f.Links, plan.Link{Name: "br0", Addresses: []string{"10.233.64.1/24"}})
		}), want: failed("node2", plan.CheckNetwork)},
		"HostInServiceNetwork": {facts: on("node2", func(f *plan.Facts) {
			f.Links = append(f.Links, plan.Link{Name: "br0", Addresses: []string{"10.233.1.1/8"}})
		}), want: append(failed("node2", plan.CheckNetwork), failed("node2", plan.CheckNetwork)...)},
		"MTUDiffers":     {facts: on("node2", func(f *plan.Facts) { f.Links[1].MTU = 1400 }), want: warned("node2", plan.CheckMTU)},
		"ClockBehind":    {facts: on("node2", func(f *plan.Facts) { f.ClockOffset = -3 * time.Second }), want: failed("node2", plan.CheckClock)},
		"ClockUncertain": {facts: on("node2", func(f *plan.Facts) { f.ClockOffset, f.RoundTrip = -3*time.Second, 4*time.Second })},
		"EtcdSkew": {
			facts: map[string]func(f *plan.Facts){
				"node1": func(f *plan.Facts) { f.ClockOffset = time.Second },
				"node2": func(f *plan.Facts) { f.ClockOffset = -time.Second },
				"node3": func(f *plan.Facts) { f.ClockOffset = -time.Second },
			},
			want: failed("node3", plan.CheckClock),
		},
		"SameMachine": {
			facts: on("node2", func(f *plan.Facts) { f.Hostname, f.MachineID, f.BootID = "node1", "node1", "node1" }),
			want:  failed("node2", plan.CheckIdentity),
		},
		"Clone":        {facts: on("node2", func(f *plan.Facts) { f.MachineID = "node1" }), want: warned("node2", plan.CheckIdentity)},
		"SameHostname": {facts: on("node2", func(f *plan.Facts) { f.Hostname = "node1" }), want: warned("node2", plan.CheckIdentity)},
		"SELinux":      {facts: on("node2", func(f *plan.Facts) { f.SELinux = "enforcing" }), want: warned("node2", plan.CheckSELinux)},
		"Firewall":     {facts: on("node2", func(f *plan.Facts) { f.Firewall = "firewalld" }), want: warned("node2", plan.CheckFirewall)},
		"Several": {
			facts: map[string]func(f *plan.Facts){
				"node3": func(f *plan.Facts) { f.UID = 1 },
				"node1": func(f *plan.Facts) { f.UID, f.Swaps = 1, []string{"/swap"} },
			},
			want: append(append(failed("node1", plan.CheckRoot), failed("node1", plan.CheckSwap)...), failed("node3", plan.CheckRoot)...),
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			in := three(t)
			if tc.spec != nil {
				tc.spec(in.Spec)
			}
			for host, change := range tc.facts {
				f := in.Facts[host]
				change(&f)
				in.Facts[host] = f
			}
			got := plan.Preflight(in)
			if diff := cmp.Diff(tc.want, got, cmpopts.IgnoreFields(plan.Finding{}, "Message", "Fix"), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("-want +got:\n%s\n%+v", diff, got)
			}
			for _, f := range got {
				if f.Message == "" || f.Fix == "" {
					t.Errorf("%+v has no message or no fix", f)
				}
			}
			if diff := cmp.Diff(got, plan.Preflight(in)); diff != "" {
				t.Errorf("asked twice:\n%s", diff)
			}
		})
	}
}

func on(host string, change func(f *plan.Facts)) map[string]func(f *plan.Facts) {
	return map[string]func(f *plan.Facts){host: change}
}

func kubelet(configuration string) func(spec *clusterv1alpha1.Provision) {
	return func(spec *clusterv1alpha1.Provision) {
		spec.Kubernetes.KubeletConfiguration = &apiextensionsv1.JSON{Raw: []byte(configuration)}
	}
}

// TestPreflightOfOurs: on a host of this cluster, its components are no problem.
func TestPreflightOfOurs(t *testing.T) {
	in := three(t)
	for name, f := range in.Facts {
		f.Applied = plan.Applied{Cluster: "alpha", ClusterID: in.ID}
		f.Listening = []int{22, 2379, 2380, 6443, 10250, 10257}
		f.Listeners = map[int]string{10250: "kubelet (pid 9)", 10257: "kube-controller (pid 8)"}
		f.Links = append(f.Links, plan.Link{Name: "cni0", MTU: 1450, Addresses: []string{"10.233.64.1/24"}})
		f.DiskFreeBytes = new(int64(gib))
		in.Facts[name] = f
	}
	if got := plan.Preflight(in); len(got) > 0 {
		t.Errorf("got %+v", got)
	}
	f := in.Facts["node2"]
	f.Listeners = map[int]string{10250: "nginx (pid 9)"}
	in.Facts["node2"] = f
	want := []plan.Finding{{"node2", plan.CheckPorts, plan.SeverityError, "port 10250, which kubelet needs, is taken by nginx (pid 9)", "stop it"}}
	if diff := cmp.Diff(want, plan.Preflight(in)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestPreflightMessages checks some of the texts that help the user.
func TestPreflightMessages(t *testing.T) {
	in := three(t)
	f := in.Facts["node1"]
	f.Kernel, f.Firewall, f.Listening = "5.4.0", "ufw", []int{6443}
	f.Listeners = map[int]string{6443: "haproxy (pid 4)"}
	f.Tools = []string{"dnf", "mount", "nft"}
	f.OS = "openEuler"
	in.Facts["node1"] = f
	delete(in.Facts, "node3") // without facts
	want := []plan.Finding{
		{"node1", plan.CheckKernel, plan.SeverityError, "the kernel is 5.4.0, and kube-proxy's nftables mode needs 5.13", "set spec.provision.kubernetes.proxyMode to iptables, or upgrade the host's kernel"},
		{"node1", plan.CheckTools, plan.SeverityError, "ip is not there, and the network needs it", "run dnf install iproute, or add iproute to spec.provision.system.rpms"},
		{"node1", plan.CheckPorts, plan.SeverityError, "port 6443, which kube-apiserver needs, is taken by haproxy (pid 4)", "stop it, or set spec.provision.controlPlaneEndpoint.port"},
		{"node1", plan.CheckFirewall, plan.SeverityWarning, "ufw is active", "open 2379/tcp 2380/tcp 6443/tcp 10250/tcp 10256/tcp 8472/udp and the networks of pods and Services in it, or disable it"},
	}
	if diff := cmp.Diff(want, plan.Preflight(in)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestPackageManager(t *testing.T) {
	cases := map[string]struct {
		facts plan.Facts
		want  string
	}{
		"Ubuntu":         {plan.Facts{OS: "ubuntu", OSLike: []string{"debian"}, Tools: []string{"apt-get", "dnf"}}, "apt"},
		"Rocky":          {plan.Facts{OS: "rocky", Tools: []string{"dnf", "yum"}}, "dnf"},
		"OldCentOS":      {plan.Facts{OS: "centos", Tools: []string{"yum"}}, "yum"},
		"OpenEuler":      {plan.Facts{OS: "openEuler", Tools: []string{"dnf"}}, "dnf"},
		"KylinServer":    {plan.Facts{OS: "kylin", Tools: []string{"dnf", "yum"}}, "dnf"},
		"KylinDesktop":   {plan.Facts{OS: "kylin", Tools: []string{"apt-get"}}, "apt"},
		"SUSE":           {plan.Facts{OS: "sles", Tools: []string{"zypper"}}, "zypper"},
		"LikeSUSE":       {plan.Facts{OS: "geeko", OSLike: []string{"suse"}, Tools: []string{"apt-get", "zypper"}}, "zypper"},
		"UnknownWithDNF": {plan.Facts{OS: "mariner", Tools: []string{"dnf"}}, "dnf"},
		"None":           {plan.Facts{OS: "debian"}, ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := plan.PackageManager(tc.facts); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
