package plan

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/pki"
)

// Severity says whether a Finding prevents a run.
type Severity string

// Values of Severity. A run does not start while a host has an error. A warning is only shown.
const (
	SeverityError   Severity = "error"
	SeverityWarning Severity = "warning"
)

// Finding is a problem, or a possible problem, of a host. Preflight finds it.
type Finding struct {
	Host     string   `json:"host"`
	Check    string   `json:"check"`
	Severity Severity `json:"severity"`
	Message  string   `json:"message"`
	// Fix is what the user can do.
	Fix string `json:"fix"`
}

// IsOfTheHostAlone reports whether a finding concerns only its own host, and can arise after the
// host has joined a cluster. Such a problem need not stop work on other hosts. The result is false
// for checks that compare hosts, such as CheckAddress and CheckIdentity. It is also false for
// checks that the agent depends on, such as CheckRoot.
func (f Finding) IsOfTheHostAlone() bool {
	switch f.Check {
	case CheckDistribution, CheckKernel, CheckCgroups, CheckMemory, CheckSwap, CheckDisk, CheckTools, CheckPorts, CheckClock:
		return true
	}
	return false
}

// Values of Finding.Check: what of a host is checked. inspection has a method for each check.
const (
	CheckRoot         = "Root"
	CheckCluster      = "Cluster"
	CheckAgent        = "Agent"
	CheckArchitecture = "Architecture"
	CheckDistribution = "Distribution"
	CheckKernel       = "Kernel"
	CheckInit         = "Init"
	CheckCgroups      = "Cgroups"
	CheckCPU          = "CPU"
	CheckMemory       = "Memory"
	CheckSwap         = "Swap"
	CheckDisk         = "Disk"
	CheckFsync        = "Fsync"
	CheckTools        = "Tools"
	CheckLeftovers    = "Leftovers"
	CheckPorts        = "Ports"
	CheckAddress      = "Address"
	CheckNetwork      = "Network"
	CheckMTU          = "MTU"
	CheckClock        = "Clock"
	CheckIdentity     = "Identity"
	CheckSELinux      = "SELinux"
	CheckFirewall     = "Firewall"
	CheckCertificates = "Certificates"
	CheckData         = "Data"
	CheckMember       = "Member"
)

const (
	mebibyte = 1 << 20
	gibibyte = 1 << 30

	// Limits of the checks. A host needs leastMemory, and leastDisk free in /var/lib before it joins.
	// A control plane should have controlPlaneBytes of memory, and etcd a disk with fastFsync. Clocks
	// may differ from this machine by maxClockOffset, and between etcd hosts by maxEtcdSkew.
	leastMemory       = 512 * mebibyte
	controlPlaneBytes = 1700 * mebibyte
	leastDisk         = 2 * gibibyte
	fastFsync         = 10 * time.Millisecond
	maxClockOffset    = 2 * time.Second
	maxEtcdSkew       = time.Second
)

// Preflight returns the problems of the hosts of a cluster, from their facts and from how their
// etcd first started. The findings are in the order of the spec's hosts and of the checks. Hosts
// without facts are skipped, and the caller reports them. A host that belongs to another cluster
// has only the finding about that. For an invalid spec Preflight returns nil.
func Preflight(in Input) []Finding {
	t, err := resolve(in.Name, in.Spec)
	if err != nil { // Make returns this error
		return nil
	}
	s := &inspection{topology: t, facts: in.Facts, carriers: carriers(in.Spec, in.Facts), id: in.ID, due: due(in), bootstrap: in.EtcdBootstrap, hasData: in.HasData}
	for _, h := range in.Spec.Hosts {
		facts, ok := in.Facts[h.Name]
		if !ok {
			continue
		}
		s.member, s.Facts = t.members[h.Name], facts
		if s.isFree() || s.isOurs() {
			for _, check := range []func(*inspection){
				(*inspection).root, (*inspection).agent, (*inspection).architecture, (*inspection).distribution, (*inspection).kernel,
				(*inspection).systemd, (*inspection).cgroups, (*inspection).cpu, (*inspection).memory, (*inspection).swap, (*inspection).disk, (*inspection).fsync,
				(*inspection).tools, (*inspection).leftovers, (*inspection).ports, (*inspection).address, (*inspection).network, (*inspection).mtu,
				(*inspection).clock, (*inspection).identity, (*inspection).selinux, (*inspection).firewall, (*inspection).certificates,
				(*inspection).data, (*inspection).etcdMember,
			} {
				check(s)
			}
			continue
		}
		s.error(CheckCluster, "the host belongs to another cluster, "+s.Applied.Cluster,
			fmt.Sprintf("remove it there: orrery cluster delete-node %s, or orrery cluster delete, of cluster %s", h.Name, s.Applied.Cluster))
	}
	return s.findings
}

// inspection checks the hosts for Preflight, one after another. member and Facts are those of the
// present host. A method with the name of a check adds its findings about the present host to
// findings.
type inspection struct {
	*topology
	member
	Facts

	facts map[string]Facts
	// carriers maps addresses to the hosts that have them.
	carriers map[netip.Addr][]string
	id       string
	// due has the leaf certificates to renew, by host.
	due map[string][]pki.Expiry
	// bootstrap has, by host, how its etcd first started.
	bootstrap map[string]EtcdBootstrap
	hasData   bool // the cluster has had data, see Input.HasData
	findings  []Finding
}

// carriers returns which hosts have an IP address on a network interface, by address. The hosts are
// in the order of the spec. Loopback addresses are left out.
func carriers(spec *clusterv1alpha1.Provision, facts map[string]Facts) map[netip.Addr][]string {
	by := map[netip.Addr][]string{}
	for _, h := range spec.Hosts {
		for _, l := range facts[h.Name].Links {
			for _, cidr := range l.Addresses {
				prefix, err := netip.ParsePrefix(cidr)
				if a := prefix.Addr(); err == nil && !a.IsLoopback() && !slices.Contains(by[a], h.Name) {
					by[a] = append(by[a], h.Name)
				}
			}
		}
	}
	return by
}

// error adds a finding with SeverityError about the present host.
func (s *inspection) error(check, message, fix string) { s.find(SeverityError, check, message, fix) }

// warn adds a finding with SeverityWarning about the present host.
func (s *inspection) warn(check, message, fix string) { s.find(SeverityWarning, check, message, fix) }

// find adds a finding about the present host.
func (s *inspection) find(severity Severity, check, message, fix string) {
	s.findings = append(s.findings, Finding{s.Name, check, severity, message, fix})
}

// isFree reports whether the present host belongs to no cluster of Orrery.
func (s *inspection) isFree() bool { return s.Applied.ClusterID == "" }

// isOurs reports whether the present host belongs to the cluster with the ID of the input. If that
// ID is "", it is true for a host of no cluster.
func (s *inspection) isOurs() bool { return s.Applied.ClusterID == s.id }

// root checks that commands run as root on the host.
func (s *inspection) root() {
	if s.UID != 0 {
		s.error(CheckRoot, fmt.Sprintf("commands run as user %d, not as root", s.UID),
			fmt.Sprintf("let %s use sudo, with hosts[].sudoPassword if it asks for one, or log in as root", s.User))
	}
}

// agent warns if the agent could not report what was applied to the host.
func (s *inspection) agent() {
	if s.AgentError != "" {
		s.warn(CheckAgent, "the agent cannot say what was applied: "+s.AgentError,
			"the run replaces the agent; if this stays, look at /var/lib/orrery/node on the host")
	}
}

// architecture checks that the CPU architecture is supported, and that it is the one in the spec.
func (s *inspection) architecture() {
	switch {
	case !slices.Contains(Architectures, s.Arch):
		s.error(CheckArchitecture, "the architecture is "+s.Arch, "use a host with amd64 or arm64")
	case s.Host.Arch != "" && s.Host.Arch != s.Arch:
		s.error(CheckArchitecture, fmt.Sprintf("the architecture is %s, and hosts[].arch says %s", s.Arch, s.Host.Arch),
			"correct hosts[].arch or leave it out")
	}
}

// distribution warns of an unknown Linux distribution. It adds an error if the spec names packages
// and the host has no known package manager.
func (s *inspection) distribution() {
	if managers(s.Facts) == nil {
		s.warn(CheckDistribution, fmt.Sprintf("the Linux distribution %q is not one that is known to work", s.OS),
			"nothing, if it has a recent kernel; see the supported ones in the documentation")
	}
	debs, rpms := s.spec.System.Debs, s.spec.System.Rpms
	if len(debs)+len(rpms) > 0 && PackageManager(s.Facts) == "" {
		s.error(CheckDistribution, "there is no package manager that is known, and spec.system names packages",
			"install them yourself and leave out spec.system.debs and spec.system.rpms")
	}
}

// kernel checks that the kernel is new enough for Kubernetes and for the mode of kube-proxy.
func (s *inspection) kernel() {
	var major, minor int
	if n, err := fmt.Sscanf(s.Kernel, "%d.%d", &major, &minor); err != nil || n != 2 {
		s.warn(CheckKernel, fmt.Sprintf("the kernel's version %q is not understood", s.Kernel), "see that it is 5.13 or newer")
		return
	}
	older := func(thanMajor, thanMinor int) bool {
		return major < thanMajor || major == thanMajor && minor < thanMinor
	}
	switch {
	case older(4, 19):
		s.error(CheckKernel, fmt.Sprintf("the kernel is %s, older than 4.19", s.Kernel), "upgrade the host's kernel")
	case older(5, 13) && s.runsProxy() && s.spec.Kubernetes.ProxyMode == modeNFTables:
		s.error(CheckKernel, fmt.Sprintf("the kernel is %s, and kube-proxy's nftables mode needs 5.13", s.Kernel),
			"set spec.provision.kubernetes.proxyMode to iptables, or upgrade the host's kernel")
	}
}

// runsProxy reports whether kube-proxy runs on the present host.
func (s *inspection) runsProxy() bool { return s.isNode() && !s.spec.Kubernetes.DisableKubeProxy }

// systemd checks that the host was booted by systemd, which keeps the components running.
func (s *inspection) systemd() {
	if s.Init != InitSystemd {
		s.error(CheckInit, "the first process of the host is not systemd, which keeps the components running",
			"use a host that systemd boots, which all supported distributions are")
	}
}

// cgroups warns of cgroup v1, and adds an error for missing cgroup controllers.
func (s *inspection) cgroups() {
	if !s.isNode() {
		return
	}
	if s.CgroupVersion == 1 {
		s.warn(CheckCgroups, "the host uses cgroup v1, which Kubernetes only maintains",
			"boot with systemd.unified_cgroup_hierarchy=1 on the kernel's command line")
	}
	var missing []string
	for _, controller := range []string{"cpu", "cpuset", "memory", "pids"} {
		if !slices.Contains(s.Controllers, controller) {
			missing = append(missing, controller)
		}
	}
	if len(s.Controllers) > 0 && len(missing) > 0 {
		s.error(CheckCgroups, "the kernel does not enable the cgroup controllers "+strings.Join(missing, ", "),
			"add cgroup_enable="+strings.Join(missing, " cgroup_enable=")+" to the kernel's command line and boot")
	}
}

// cpu warns of a control plane with a single CPU.
func (s *inspection) cpu() {
	if s.has(clusterv1alpha1.RoleControlPlane) && s.CPUs == 1 {
		s.warn(CheckCPU, "the control plane has one CPU", "give it two or more")
	}
}

// memory checks that the host has enough memory. Unknown memory is no problem.
func (s *inspection) memory() {
	switch b := s.MemoryBytes; {
	case b == 0:
	case b < leastMemory:
		s.error(CheckMemory, fmt.Sprintf("the host has %d MiB of memory, less than 512", b/mebibyte), "give it more")
	case b < controlPlaneBytes && s.has(clusterv1alpha1.RoleControlPlane):
		s.warn(CheckMemory, fmt.Sprintf("the control plane has %d MiB of memory, less than 1700", b/mebibyte), "give it 2 GiB or more")
	}
}

// swap checks that the host does not swap, unless the kubelet's settings allow that.
func (s *inspection) swap() {
	if !s.isNode() || len(s.Swaps) == 0 {
		return
	}
	kubelet := struct {
		FailSwapOn *bool `json:"failSwapOn"`
	}{}
	if raw := s.spec.Kubernetes.KubeletConfiguration; raw != nil {
		if err := json.Unmarshal(raw.Raw, &kubelet); err == nil && kubelet.FailSwapOn != nil && !*kubelet.FailSwapOn {
			return
		}
	}
	s.error(CheckSwap, "memory is swapped to "+strings.Join(s.Swaps, ", ")+", with which the kubelet does not start",
		"run swapoff -a and remove swap from /etc/fstab, or set spec.provision.kubernetes.kubeletConfiguration.failSwapOn to false")
}

// disk checks the free space in /var/lib of a host that belongs to no cluster yet. Unknown free
// space is no problem.
func (s *inspection) disk() {
	if free := s.DiskFreeBytes; s.isFree() && free != nil && *free < leastDisk {
		s.error(CheckDisk, fmt.Sprintf("/var/lib has %d MiB free, less than 2048", *free/mebibyte),
			"free some, or mount a larger file system there")
	}
}

// fsync warns of a disk that is too slow for etcd.
func (s *inspection) fsync() {
	if s.has(clusterv1alpha1.RoleEtcd) && s.managed() && s.FsyncLatency > fastFsync {
		s.warn(CheckFsync, fmt.Sprintf("a write with fsync takes %s in /var/lib, where etcd wants less than %s",
			s.FsyncLatency.Round(100*time.Microsecond), fastFsync),
			"put spec.provision.etcd.dataDir on a faster disk, one that nothing else writes to")
	}
}

// tools checks that the host has the programs that components call. Programs from packages in
// spec.system count as installed.
func (s *inspection) tools() {
	neededBy := map[string]string{}
	if s.isNode() {
		neededBy["mount"], neededBy["ip"] = "the kubelet", "the network"
	}
	if s.runsProxy() {
		switch s.spec.Kubernetes.ProxyMode {
		case modeNFTables:
			neededBy["nft"] = "kube-proxy"
		case modeIPVS:
			neededBy["ipset"], neededBy["iptables"] = "kube-proxy", "kube-proxy"
		default:
			neededBy["iptables"] = "kube-proxy"
		}
	}
	manager := PackageManager(s.Facts)
	installed := s.spec.System.Rpms
	if manager == managerAPT {
		installed = s.spec.System.Debs
	}
	for _, tool := range []string{"mount", "ip", "nft", "iptables", "ipset"} {
		who, ok := neededBy[tool]
		pkg := packageOf(tool, manager)
		if !ok || slices.Contains(s.Tools, tool) || slices.Contains(installed, pkg) {
			continue
		}
		fix := "install the package " + pkg
		switch manager {
		case "":
		case managerAPT:
			fix = fmt.Sprintf("run apt-get install %s, or add %[1]s to spec.provision.system.debs", pkg)
		default:
			fix = fmt.Sprintf("run %s install %s, or add %[2]s to spec.provision.system.rpms", manager, pkg)
		}
		s.error(CheckTools, fmt.Sprintf("%s is not there, and %s needs it", tool, who), fix)
	}
}

// leftovers adds an error for a host of no cluster that has files or processes of another cluster
// or container runtime.
func (s *inspection) leftovers() {
	if s.isFree() && len(s.Leftovers) > 0 {
		shown := s.Leftovers[:min(len(s.Leftovers), 8)]
		more := ""
		if n := len(s.Leftovers) - len(shown); n > 0 {
			more = fmt.Sprintf(" and %d more", n)
		}
		s.error(CheckLeftovers, "another cluster or container runtime is, or was, here: "+strings.Join(shown, ", ")+more,
			"remove it with what made it, such as kubeadm reset or k3s-uninstall.sh, and its packages; or use a fresh host")
	}
}

// listens returns the TCP ports that the components of the present host listen on.
func (s *inspection) listens() []port { return portsOf(s.spec, s.member.roles) }

// ports checks that no other process listens on a port that a component of the host needs.
func (s *inspection) ports() {
	for _, p := range s.listens() {
		if !slices.Contains(s.Listening, int(p.number)) {
			continue
		}
		// On a host of this cluster the listener is most likely our component. The kernel cuts process
		// names to 15 characters.
		who, known := s.Listeners[int(p.number)]
		if s.isOurs() && !s.isFree() && (!known || strings.HasPrefix(who, p.process[:min(len(p.process), 15)])) {
			continue
		}
		if !known {
			who = "something"
		}
		fix := "stop it"
		if p.field != "" {
			fix += ", or set spec.provision." + p.field
		}
		s.error(CheckPorts, fmt.Sprintf("port %d, which %s needs, is taken by %s", p.number, p.process, who), fix)
	}
}

// link returns the network interface of a host that has an address, or nil if none has it.
func link(f Facts, a netip.Addr) *Link {
	for i, l := range f.Links {
		for _, cidr := range l.Addresses {
			if prefix, err := netip.ParsePrefix(cidr); err == nil && prefix.Addr() == a {
				return &f.Links[i]
			}
		}
	}
	return nil
}

// address checks that the host has its internal addresses, and that no other host has them.
func (s *inspection) address() {
	known := slices.ContainsFunc(s.Links, func(l Link) bool { return len(l.Addresses) > 0 })
	for _, a := range s.ips {
		if known && link(s.Facts, a) == nil {
			s.error(CheckAddress, fmt.Sprintf("no link of the host has its internal address %s", a),
				"set hosts[].internalAddress to an address of the host that the other hosts reach")
		}
		for _, other := range s.carriers[a] {
			if other != s.Name {
				s.error(CheckAddress, fmt.Sprintf("host %s has the internal address %s too", other, a),
					"give each host an address of its own, and name each host once")
			}
		}
	}
}

// network checks that the networks of a new host do not overlap those of pods or Services. On a
// host that has joined, such networks belong to the cluster.
func (s *inspection) network() {
	if !s.isFree() {
		return
	}
	for _, l := range s.Links {
		for _, cidr := range l.Addresses {
			prefix, err := netip.ParsePrefix(cidr)
			if err != nil || prefix.Addr().IsLoopback() {
				continue
			}
			s.overlap(l.Name, prefix, "kubePodsCIDR", s.pods)
			s.overlap(l.Name, prefix, "kubeServiceCIDR", s.services)
		}
	}
}

// overlap adds an error for each of the networks that overlaps a network interface. link and of are
// the name and the network of the interface. field is the field of the spec with the networks.
func (s *inspection) overlap(link string, of netip.Prefix, field string, networks []netip.Prefix) {
	for _, n := range networks {
		if n.Overlaps(of) {
			s.error(CheckNetwork, fmt.Sprintf("the network %s of link %s overlaps network.%s %s", of.Masked(), link, field, n),
				"set spec.provision.network."+field+" to a network that is free")
		}
	}
}

// mtu warns if the MTU of the host differs from that of the first host of the spec. Packets of the
// larger MTU would be lost between them.
func (s *inspection) mtu() {
	first := s.members[s.spec.Hosts[0].Name]
	mine, theirs := link(s.Facts, s.ips[0]), link(s.facts[first.Name], first.ips[0])
	if mine != nil && theirs != nil && mine.MTU != theirs.MTU {
		s.warn(CheckMTU, fmt.Sprintf("the MTU of %s is %d, and that of host %s is %d", mine.Name, mine.MTU, first.Name, theirs.MTU),
			fmt.Sprintf("set both to %d", min(mine.MTU, theirs.MTU)))
	}
}

// fixClock is the advice, Finding.Fix, in findings about clocks that differ.
const fixClock = "let chrony, or timedatectl set-ntp true, keep the clocks of the hosts"

// clock checks that the host's clock is close to that of this machine. Between hosts of etcd, the
// clocks must be closer.
func (s *inspection) clock() {
	if beyond(s.ClockOffset, s.RoundTrip/2, maxClockOffset) {
		s.error(CheckClock, fmt.Sprintf("the clock is %s of ours", ahead(s.ClockOffset)), fixClock)
	}
	if !s.has(clusterv1alpha1.RoleEtcd) || !s.managed() {
		return
	}
	for _, other := range s.with(clusterv1alpha1.RoleEtcd) {
		if other.Name == s.Name {
			break // each pair of hosts is compared once, at the later host
		}
		f, ok := s.facts[other.Name]
		if skew := s.ClockOffset - f.ClockOffset; ok && beyond(skew, (s.RoundTrip+f.RoundTrip)/2, maxEtcdSkew) {
			s.error(CheckClock, fmt.Sprintf("the clock is %s of that of host %s, and both run etcd", ahead(skew), other.Name), fixClock)
		}
	}
}

// beyond reports whether a clock offset, in either direction, certainly exceeds the limit most.
// uncertainty is how inexact the offset is.
func beyond(offset, uncertainty, most time.Duration) bool { return offset.Abs()-uncertainty > most }

// ahead returns a clock offset as text, such as "1.5s ahead" or "2s behind".
func ahead(offset time.Duration) string {
	if offset < 0 {
		return offset.Abs().Round(time.Millisecond).String() + " behind"
	}
	return offset.Round(time.Millisecond).String() + " ahead"
}

// identity compares the host with the earlier hosts of the spec: whether they are one machine, or
// share the machine ID or the hostname.
func (s *inspection) identity() {
	for _, other := range s.spec.Hosts {
		if other.Name == s.Name {
			return // each pair of hosts is compared once, at the later host
		}
		f, ok := s.facts[other.Name]
		sameName, sameID := ok && f.Hostname == s.Hostname, ok && f.MachineID == s.MachineID && f.MachineID != ""
		switch {
		case sameName && sameID && f.BootID == s.BootID:
			s.error(CheckIdentity, "this is the same machine as host "+other.Name, "name each machine once in hosts")
		case sameID:
			s.warn(CheckIdentity, fmt.Sprintf("/etc/machine-id is that of host %s, as in clones", other.Name),
				"remove /etc/machine-id, run systemd-machine-id-setup and boot")
		case sameName:
			s.warn(CheckIdentity, fmt.Sprintf("the hostname %s is that of host %s too", s.Hostname, other.Name),
				"give each host a name of its own: hostnamectl set-hostname "+s.Name)
		}
	}
}

// selinux warns of a node with enforcing SELinux.
func (s *inspection) selinux() {
	if s.isNode() && s.SELinux == "enforcing" {
		s.warn(CheckSELinux, "SELinux is enforcing", "install container-selinux, or run setenforce 0 and set SELINUX=permissive in /etc/selinux/config")
	}
}

// tunnels are the ports of network plugins that other hosts must reach, as PORT/PROTOCOL, by
// plugin.
var tunnels = map[string]string{"flannel": "8472/udp", "calico": "4789/udp 179/tcp", "cilium": "8472/udp 4240/tcp", "kubeovn": "6081/udp 6641-6644/tcp"}

// firewall warns of an active firewall, and lists the ports that it must open to other hosts.
func (s *inspection) firewall() {
	if s.Firewall == "" {
		return
	}
	var open []string
	for _, p := range s.listens() {
		switch p.number {
		case portEtcdMetrics, portControllerManager, portScheduler, portKubeletHealth, portLoadBalancer, portProxyMetrics:
		default: // other hosts connect to all other ports
			open = append(open, strconv.Itoa(int(p.number))+"/tcp")
		}
	}
	if tunnel := tunnels[s.spec.Network.Plugin]; s.isNode() && tunnel != "" {
		open = append(open, tunnel)
	}
	s.warn(CheckFirewall, s.Firewall+" is active", "open "+strings.Join(open, " ")+" and the networks of pods and Services in it, or disable it")
}

// due returns, by host, the leaf certificates in use that should be renewed, the earliest expiry
// first. Those that belong to no host are left out.
func due(in Input) map[string][]pki.Expiry {
	all := map[string][]pki.Expiry{}
	for _, e := range in.InUse.Expiries(Leaves(in.Name, in.Spec)) {
		if name, _, of := strings.Cut(e.Name, "/"); of && e.Due(in.Now) {
			all[name] = append(all[name], e)
		}
	}
	return all
}

// certificates warns of the host's leaf certificates that expire soon or have expired.
func (s *inspection) certificates() {
	list := s.due[s.Name]
	if len(list) == 0 || s.isFree() {
		return
	}
	s.warn(CheckCertificates, fmt.Sprintf("%d certificates end soon, or have ended, the first, %s, at %s",
		len(list), list[0].Name, list[0].NotAfter.UTC().Format(time.DateOnly)),
		fmt.Sprintf("renew them: orrery cluster apply, or orrery cluster certs renew %s; no pod is moved for that", s.name))
}
