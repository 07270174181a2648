package plan

import (
	"time"

	"orrery.dev/orrery/internal/presence"
)

// InitSystemd is the value of Facts.Init for systemd, the init system that hosts must have.
const InitSystemd = "systemd"

// Facts is the state of a host, as a run finds it. Package facts reads all fields but Presence from
// the host. A fact that could not be read has its zero value.
type Facts struct {
	// UID of the user that gathered the facts: 0 is root.
	UID       int    `json:"uid,omitempty"`
	Hostname  string `json:"hostname"`
	MachineID string `json:"machineID,omitempty"`
	BootID    string `json:"bootID,omitempty"`
	// OS is ID of /etc/os-release, such as debian, OSLike is its ID_LIKE and OSVersion its VERSION_ID.
	OS        string   `json:"os"`
	OSLike    []string `json:"osLike,omitempty"`
	OSVersion string   `json:"osVersion,omitempty"`
	// Arch is amd64 or arm64, or else the output of uname -m.
	Arch   string `json:"arch"`
	Kernel string `json:"kernel"`
	CPUs   int    `json:"cpus"`
	// MemoryBytes is the total memory of the host.
	MemoryBytes int64 `json:"memoryBytes"`
	// Init is InitSystemd, or empty.
	Init string `json:"init,omitempty"`
	// CgroupVersion is 1 or 2.
	CgroupVersion int `json:"cgroupVersion"`
	// Controllers are the enabled cgroup controllers, such as memory.
	Controllers []string `json:"controllers,omitempty"`
	// Swaps are the devices and files that the kernel swaps to.
	Swaps []string `json:"swaps,omitempty"`
	// DiskFreeBytes is the free space of /var/lib, or nil if it is unknown. FsyncLatency is the
	// duration of a small write with fsync there.
	DiskFreeBytes *int64        `json:"diskFreeBytes,omitempty"`
	FsyncLatency  time.Duration `json:"fsyncLatency,omitempty"`
	// ClockOffset is how far the host's clock is ahead of this machine's. RoundTrip is the duration of
	// the request. The offset is uncertain by half of RoundTrip.
	ClockOffset time.Duration `json:"clockOffset"`
	RoundTrip   time.Duration `json:"roundTrip"`
	Links       []Link        `json:"links,omitempty"`
	// Listening are the TCP ports with a listener. Listeners has their processes, where known.
	Listening []int          `json:"listening,omitempty"`
	Listeners map[int]string `json:"listeners,omitempty"`
	// Leftovers are paths and processes of another cluster or another container runtime. The list is
	// empty for a host that belongs to a cluster of Orrery.
	Leftovers []string `json:"leftovers,omitempty"`
	// Tools are the programs in root's PATH, such as nft, iptables, conntrack, apt-get.
	Tools []string `json:"tools,omitempty"`
	// OOMScoreAdj is false if the host may not lower the OOM score of a process, as in some
	// containers.
	OOMScoreAdj bool `json:"oomScoreAdj"`
	// SysctlsReadOnly are required sysctls that cannot be set, because the kernel is shared.
	SysctlsReadOnly []string `json:"sysctlsReadOnly,omitempty"`
	// SELinux is enforcing, permissive or empty. Firewall is the active one: firewalld, ufw or empty.
	SELinux  string `json:"selinux,omitempty"`
	Firewall string `json:"firewall,omitempty"`
	// ResolvConf is the path of the resolv.conf for pods, if the host's own one points to a resolver
	// on its loopback address. Else it is "".
	ResolvConf string `json:"resolvConf,omitempty"`
	// Agent is the digest of the agent executable on the host, or "" if the host has no agent. Blobs
	// are the digests of the release files that the host has.
	Agent string   `json:"agent,omitempty"`
	Blobs []string `json:"blobs,omitempty"`
	// AgentError is why the agent could not report what was applied.
	AgentError string `json:"agentError,omitempty"`
	// Recorded is true if the host has a record of the applied steps, even if the agent cannot read
	// it.
	Recorded bool `json:"recorded,omitempty"`
	// Traces are paths that exist because of Orrery.
	Traces []string `json:"traces,omitempty"`
	// EtcdLog says whether the host has a write-ahead log of etcd, in the directory that the function
	// EtcdLog returns.
	EtcdLog presence.Presence `json:"etcdLog,omitempty"`
	// Applied is what was applied to the host, as the agent reports it. If the agent does not answer,
	// it comes from the host's record alone.
	Applied Applied `json:"applied,omitzero"`
	// Presence is what the cluster shows of the host. The host does not report it.
	Presence Presence `json:"presence,omitzero"`
}

// Link is a network interface of a host, in its facts.
type Link struct {
	Name string `json:"name"`
	MTU  int    `json:"mtu"`
	// Addresses as CIDRs.
	Addresses []string `json:"addresses,omitempty"`
}

// Applied is the host's record of the steps that Orrery has applied to it, with the present state
// of each step. The agent keeps the record.
type Applied struct {
	// Protocol and digest of the agent on the host.
	Protocol int    `json:"protocol,omitempty"`
	Agent    string `json:"agent,omitempty"`
	// Cluster and ClusterID identify the cluster to which the host belongs. They are "" if it belongs
	// to none.
	Cluster   string `json:"cluster,omitempty"`
	ClusterID string `json:"clusterID,omitempty"`
	// Version of Kubernetes that was applied last.
	Version string `json:"version,omitempty"`
	// Lease is the lease that the host has granted last.
	Lease Lease `json:"lease,omitzero"`
	// Steps in the order in which they were applied.
	Steps []AppliedStep `json:"steps,omitempty"`
}

// AppliedStep is a step that was applied to a host, and its present state.
type AppliedStep struct {
	ID   string `json:"id"`
	Hash string `json:"hash"`
	// Drift describes how the host differs from what was applied. It is empty if it does not.
	Drift string `json:"drift,omitempty"`
	// Complete is false if the step was begun and not finished.
	Complete bool `json:"complete"`
}

// Lease is the right of one run to change a host. The agent on the host grants it until Expires.
// The host also refuses a run whose epoch is lower than the last one that it saw.
type Lease struct {
	// Operation is the name of the Operation that holds the lease. Holder is the process that runs it,
	// such as user@machine.
	Operation string `json:"operation,omitempty"`
	// RunID is the UID of the Operation, since Operations of different stores may have the same name.
	RunID   string    `json:"runID,omitempty"`
	Holder  string    `json:"holder,omitempty"`
	Epoch   int64     `json:"epoch,omitempty"`
	Expires time.Time `json:"expires,omitzero"`
}
