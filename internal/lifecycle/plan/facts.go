package plan

import "time"

// InitSystemd is the init system that hosts must have.
const InitSystemd = "systemd"

// Facts are what is so on a host.
type Facts struct {
	// UID that the facts were gathered as: 0 is root.
	UID       int    `json:"uid,omitempty"`
	Hostname  string `json:"hostname"`
	MachineID string `json:"machineID,omitempty"`
	BootID    string `json:"bootID,omitempty"`
	// OS is ID of /etc/os-release, such as debian, OSLike is its ID_LIKE and OSVersion its VERSION_ID.
	OS        string   `json:"os"`
	OSLike    []string `json:"osLike,omitempty"`
	OSVersion string   `json:"osVersion,omitempty"`
	// Arch is amd64 or arm64, or what uname -m says.
	Arch   string `json:"arch"`
	Kernel string `json:"kernel"`
	CPUs   int    `json:"cpus"`
	// MemoryBytes is the memory of the host.
	MemoryBytes int64 `json:"memoryBytes"`
	// Init is InitSystemd, or empty.
	Init string `json:"init,omitempty"`
	// CgroupVersion is 1 or 2.
	CgroupVersion int `json:"cgroupVersion"`
	// Controllers are those of the control groups that are enabled, such as memory.
	Controllers []string `json:"controllers,omitempty"`
	// Swaps are the devices and files that memory is swapped to.
	Swaps []string `json:"swaps,omitempty"`
	// DiskFreeBytes of /var/lib, and the time that a small write with fsync takes there.
	DiskFreeBytes int64         `json:"diskFreeBytes"`
	FsyncLatency  time.Duration `json:"fsyncLatency,omitempty"`
	// ClockOffset is how much the host's clock is ahead of ours; it is uncertain by the time that the question took.
	ClockOffset time.Duration `json:"clockOffset"`
	RoundTrip   time.Duration `json:"roundTrip"`
	Links       []Link        `json:"links,omitempty"`
	// Listening are the TCP ports that something listens on, and Listeners what, where that is known.
	Listening []int          `json:"listening,omitempty"`
	Listeners map[int]string `json:"listeners,omitempty"`
	// Leftovers are paths that another cluster, or another container runtime, left.
	Leftovers []string `json:"leftovers,omitempty"`
	// Tools that are in root's PATH, such as nft, iptables, conntrack, apt-get.
	Tools []string `json:"tools,omitempty"`
	// OOMScoreAdj is false if the host may not lower the score of a process, as in some containers.
	OOMScoreAdj bool `json:"oomScoreAdj"`
	// SysctlsReadOnly are those of ours that cannot be set here because the kernel is shared.
	SysctlsReadOnly []string `json:"sysctlsReadOnly,omitempty"`
	// SELinux is enforcing, permissive or empty; Firewall is the one that is active: firewalld, ufw or empty.
	SELinux  string `json:"selinux,omitempty"`
	Firewall string `json:"firewall,omitempty"`
	// ResolvConf is the resolv.conf for pods where that of the host points to a resolver on its loopback, else empty.
	ResolvConf string `json:"resolvConf,omitempty"`
	// Agent is the digest of our agent on the host, empty if it is not there, and Blobs the digests of the content that
	// the host has.
	Agent string   `json:"agent,omitempty"`
	Blobs []string `json:"blobs,omitempty"`
	// AgentError is why our agent could not say what was applied.
	AgentError string `json:"agentError,omitempty"`
	// Recorded is true if the record of what was applied is on the host, whether or not our agent can read it.
	Recorded bool `json:"recorded,omitempty"`
	// Traces are paths that are there because of us.
	Traces []string `json:"traces,omitempty"`
	// Applied is what our agent says was applied, or what its record says where the agent does not answer.
	Applied Applied `json:"applied,omitzero"`
}

// Link is a network link of a host.
type Link struct {
	Name string `json:"name"`
	MTU  int    `json:"mtu"`
	// Addresses as CIDRs.
	Addresses []string `json:"addresses,omitempty"`
}

// Applied is what was applied to a host and how it is now.
type Applied struct {
	// Protocol that the agent on the host speaks, and Agent its digest. Agents of earlier versions of Orrery say neither.
	Protocol int    `json:"protocol,omitempty"`
	Agent    string `json:"agent,omitempty"`
	// Cluster that the host belongs to, by name and by identity; empty if it is free.
	Cluster   string `json:"cluster,omitempty"`
	ClusterID string `json:"clusterID,omitempty"`
	// Version of Kubernetes that was applied last.
	Version string `json:"version,omitempty"`
	// Lease that is held on the host.
	Lease Lease `json:"lease,omitzero"`
	// Steps in the order they were applied.
	Steps []AppliedStep `json:"steps,omitempty"`
}

// AppliedStep is a step that was applied, and how it is now.
type AppliedStep struct {
	ID   string `json:"id"`
	Hash string `json:"hash"`
	// Drift says how the host differs from what was applied; it is empty if it does not.
	Drift string `json:"drift,omitempty"`
	// Complete is false if the step was begun and not finished.
	Complete bool `json:"complete"`
}

// Lease says which run may change a host. A host refuses a run with an epoch that is lower than the last it saw.
type Lease struct {
	// Operation that holds it, and Holder who runs it: user@machine.
	Operation string `json:"operation,omitempty"`
	// RunID is the UID of the Operation: two that have the same name in different places are two.
	RunID   string    `json:"runID,omitempty"`
	Holder  string    `json:"holder,omitempty"`
	Epoch   int64     `json:"epoch,omitempty"`
	Expires time.Time `json:"expires,omitzero"`
}
