package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// scriptTimeout bounds each script of the user on a host.
const scriptTimeout = 10 * time.Minute

// system returns the steps of StageSystem: the user's scripts and packages, the operating system,
// and the container runtime. A host that is not a node has only scripts and packages.
//
// Steps are undone in the reverse order, from the last stage to the first. So all units stop first.
// Then the sweep removes what they left running, and files and directories are removed or get their
// former content.
func (h *hostMaker) system() []Step {
	steps := slices.Concat(
		h.scripts("pre", h.spec.System.PreInstall),
		h.packages(),
	)
	if !h.isNode() {
		return steps
	}
	if h.spec.System.ConfigureOS != configureSkip {
		steps = append(steps, h.modules(), h.sysctls())
	}
	return slices.Concat(steps, nodeDirectories(), []Step{h.sweep()}, h.containerd())
}

// scripts returns a step for each of the user's scripts that is for all roles or for a role of the
// host. when is "pre" or "post", and part of the IDs.
func (h *hostMaker) scripts(when string, scripts []clusterv1alpha1.Script) []Step {
	var steps []Step
	for _, s := range scripts {
		if s.Role != "" && !h.has(s.Role) {
			continue
		}
		steps = append(steps, Step{
			ID: "script/" + when + "/" + s.Name, Disruption: DisruptionNone,
			Script: &Script{Run: s.Bash, Undo: s.Undo, Timeout: scriptTimeout},
		})
	}
	return steps
}

// packages returns the step that installs the packages in the spec. It is nil if the spec has none
// for the host's package manager, or if the host has no known package manager.
func (h *hostMaker) packages() []Step {
	manager := PackageManager(h.facts)
	names := h.spec.System.Rpms
	if manager == managerAPT {
		names = h.spec.System.Debs
	}
	if manager == "" || len(names) == 0 {
		return nil
	}
	return []Step{{ID: "system/packages", Disruption: DisruptionNone, Packages: &Packages{Manager: manager, Names: names}}}
}

// modules returns the step that loads the kernel modules for containers and kube-proxy.
func (h *hostMaker) modules() Step {
	names := []string{"overlay", "br_netfilter", "nf_conntrack"}
	if !h.spec.Kubernetes.DisableKubeProxy && h.spec.Kubernetes.ProxyMode == modeIPVS {
		names = append(names, "ip_vs", "ip_vs_rr", "ip_vs_wrr", "ip_vs_sh")
	}
	return Step{ID: "system/modules", Modules: &Modules{Path: "/etc/modules-load.d/orrery.conf", Names: names}}
}

// sysctls returns the step for the sysctls that containers, the kubelet and kube-proxy depend on.
// It also sets the sysctls that the kubelet and kube-proxy would set themselves, so that removing
// the cluster restores them. Sysctls that the host cannot set are left out.
func (h *hostMaker) sysctls() Step {
	values := map[string]string{
		"net.ipv4.ip_forward":                                "1",
		"net.bridge.bridge-nf-call-iptables":                 "1",
		"net.bridge.bridge-nf-call-ip6tables":                "1",
		"vm.overcommit_memory":                               "1",
		"vm.panic_on_oom":                                    "0",
		"kernel.panic":                                       "10",
		"kernel.panic_on_oops":                               "1",
		"kernel.keys.root_maxkeys":                           "1000000",
		"kernel.keys.root_maxbytes":                          "25000000",
		"fs.inotify.max_user_instances":                      "8192",
		"fs.inotify.max_user_watches":                        "1048576",
		"net.netfilter.nf_conntrack_max":                     strconv.Itoa(max(32768*h.facts.CPUs, 131072)),
		"net.netfilter.nf_conntrack_tcp_timeout_established": "86400",
		"net.netfilter.nf_conntrack_tcp_timeout_close_wait":  "3600",
	}
	if slices.ContainsFunc(h.ips, func(a netip.Addr) bool { return !a.Is4() }) {
		values["net.ipv6.conf.all.forwarding"] = "1"
	}
	if !h.spec.Kubernetes.DisableKubeProxy && h.spec.Kubernetes.ProxyMode == modeIPTables {
		values["net.ipv4.conf.all.route_localnet"] = "1"
	}
	for _, name := range h.facts.SysctlsReadOnly {
		delete(values, name)
	}
	return Step{ID: "system/sysctls", Disruption: DisruptionNone, Sysctls: &Sysctls{Path: "/etc/sysctl.d/95-orrery.conf", Values: values}}
}

// nodeDirectories returns the steps for directories of a node: those for configuration and
// programs, in which other software may have files, too, and those with data of the cluster.
func nodeDirectories() []Step {
	return []Step{
		directory("directory/kubernetes", configDir),
		directory("directory/pki", pkiDir),
		directory("directory/containerd-config", containerdDir),
		directory("directory/registries", registryDir),
		dataDirectory(stepContainerdData, "/var/lib/containerd", "0700"),
		dataDirectory(stepKubeletData, kubeletDir, "0750"),
		directory("directory/cni-config", cniConfDir),
		directory("directory/cni", cniBinDir),
		// containerd creates this directory if it is missing, and nothing would remove it. ip netns uses
		// it, too.
		directory("directory/network-namespaces", "/run/netns"),
		dataDirectory("directory/pod-logs", "/var/log/pods", "0755"),
		dataDirectory("directory/container-logs", "/var/log/containers", "0755"),
	}
}

// traces are what a network plugin leaves on a host beside its objects: network links, nftables
// tables, prefixes of iptables chains, and paths. They have the same form as in Sweep.
type traces struct {
	links, tables, chains, paths []string
}

// traceOf has what each network plugin leaves on a host, by the name of the plugin.
var traceOf = map[string]traces{
	"flannel": {
		links:  []string{"flannel.1", "flannel-v6.1"},
		tables: []string{"ip flannel-ipv4", "ip6 flannel-ipv6"},
		chains: []string{"FLANNEL-"},
		paths:  []string{"/run/flannel", cniConfDir + "/10-flannel.conflist", cniBinDir + "/flannel"},
	},
	"calico": {
		links:  []string{"cali*", "vxlan.calico", "vxlan-v6.calico", "tunl0"},
		tables: []string{"ip calico", "ip6 calico"},
		chains: []string{"cali"},
		paths: []string{
			"/run/calico", "/var/lib/calico", "/var/log/calico", cniConfDir + "/10-calico.conflist", cniConfDir + "/calico-kubeconfig",
			cniBinDir + "/calico", cniBinDir + "/calico-ipam", cniBinDir + "/flannel",
		},
	},
	"cilium": {
		links:  []string{"cilium_*", "lxc*"},
		chains: []string{"CILIUM_", "OLD_CILIUM_"},
		paths:  []string{"/run/cilium", "/var/lib/cilium", cniConfDir + "/05-cilium.conflist", cniBinDir + "/cilium-cni"},
	},
	"kubeovn": {
		links:  []string{"ovn0", "br-int", "mirror0", "ovs-system", "genev_sys_*"},
		chains: []string{"OVN-"},
		paths: []string{
			"/run/openvswitch", "/run/ovn", "/etc/origin/openvswitch", "/etc/origin/ovn", "/etc/openvswitch", "/etc/ovn",
			"/var/log/openvswitch", "/var/log/ovn", "/var/log/kube-ovn", cniConfDir + "/01-kube-ovn.conflist", cniBinDir + "/kube-ovn",
		},
	},
}

// sweep returns the step for what components create while they run. Doing it only records what
// exists before. Undoing it removes containers, mounts, network links and rules that the kubelet,
// kube-proxy and the network plugin leave. A change of its lists disturbs nothing.
func (h *hostMaker) sweep() Step {
	plugin := traceOf[h.spec.Network.Plugin]
	return Step{ID: stepSweep, Disruption: DisruptionNone, Sweep: &Sweep{
		Containers:  containerdSocket,
		MountsUnder: []string{kubeletDir, "/run/containerd", "/var/lib/containerd"},
		Links:       slices.Concat([]string{"cni0", "kube-ipvs0"}, plugin.links),
		Tables: slices.Concat([]string{
			"ip kube-proxy", "ip6 kube-proxy", "ip cni_hostport", "ip6 cni_hostport", "inet cni_plugins_masquerade",
		}, plugin.tables),
		IPTablesPrefixes:  slices.Concat([]string{"KUBE-", "CNI-"}, plugin.chains),
		Cgroups:           []string{"kubepods", "kubepods.slice", "k8s.io"},
		Paths:             slices.Concat([]string{"/run/containerd", "/run/nri", "/opt/containerd", "/var/lib/cni", "/run/xtables.lock"}, plugin.paths),
		NetworkNamespaces: "cni-",
	}}
}

// runtimeEnv returns the environment of units that call other programs: a PATH with the programs of
// Orrery and of the host.
func runtimeEnv() map[string]string { return map[string]string{"PATH": searchPath} }

// describe returns the description of a systemd unit, such as "Kubelet of cluster shop".
func (h *hostMaker) describe(what string) string {
	return fmt.Sprintf("%s of cluster %s", what, h.name)
}
