// Package plan describes, as data, what must be on each host of a cluster and in which order it is
// installed.
//
// The package is pure: it reads no host, file or API. Its input is the spec, the facts of the
// hosts, the catalog of versions, the keys, and what was applied before. Its output is a Plan.
// Package lifecycle runs a Plan, and package node performs its steps on a host. Neither decides
// anything that is not in the Plan. Another backend, for instance one that calls kubeadm, would be
// another function that returns a Plan.
package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// Plan is the wanted state of the hosts of a cluster, as steps. Make makes it.
type Plan struct {
	// Cluster is the name of the cluster. Version is that of Kubernetes.
	Cluster string `json:"cluster"`
	Version string `json:"version"`
	// Hosts of the cluster, in the order of the spec. Hosts that were not reached are left out.
	Hosts []Host `json:"hosts"`
	// Blobs are the files that hosts need, by digest.
	Blobs []Blob `json:"blobs,omitempty"`
	// Endpoint is the URL of the API server for clients outside the cluster. APIServers has the
	// internal host:port of each API server.
	Endpoint   string   `json:"endpoint"`
	APIServers []string `json:"apiServers"`
}

// Host is the wanted state of one host in a Plan.
type Host struct {
	Name string `json:"name"`
	// Address is the host's internal address.
	Address string                 `json:"address"`
	Roles   []clusterv1alpha1.Role `json:"roles"`
	// Node is what the Node must have beside the settings of the kubelet.
	Node Node `json:"node"`
	// Stages in the order in which they run. A run sends the steps of a stage in one request.
	Stages []Stage `json:"stages"`
}

// Node has the labels and the taint that a Node of the cluster must have. A run sets them through
// the API server, because a kubelet must not set all of them.
type Node struct {
	Labels map[string]string `json:"labels,omitempty"`
	// Dedicated is true for a control plane that is not a worker. Its Node gets the taint.
	Dedicated bool `json:"dedicated,omitempty"`
}

// StageID is the ID of a stage of the work on a host, such as etcd.
type StageID string

// The stages of a host, in their order. Three conditions involve several hosts. At the end of
// StageEtcd etcd has a quorum, and at the end of StageControlPlane an API server answers. The
// network of pods is applied before nodes of StageNode are ready.
const (
	// StageSystem is the stage that prepares the operating system, files, and the container runtime of
	// a host.
	StageSystem StageID = "system"
	// StageEtcd is the stage that starts etcd on a host and waits for the quorum of etcd.
	StageEtcd StageID = "etcd"
	// StageControlPlane is the stage that starts the API server, controller manager and scheduler on a
	// host, and waits until they answer.
	StageControlPlane StageID = "control-plane"
	// StageNode is the stage that starts the load balancer, kubelet and kube-proxy on a host.
	StageNode StageID = "node"
)

// Stages lists all stages of the work on a host, in their order.
var Stages = []StageID{StageSystem, StageEtcd, StageControlPlane, StageNode}

// Stage is a part of the work on a host: steps that a run sends in one request.
type Stage struct {
	ID    StageID `json:"id"`
	Steps []Step  `json:"steps"`
}

// Disruption says how much a change disturbs what runs on a host.
type Disruption string

// Values of Disruption, from the least to the worst.
const (
	// DisruptionNone: nothing that runs notices the change.
	DisruptionNone Disruption = "none"
	// DisruptionReload: a process reloads a file without a restart.
	DisruptionReload Disruption = "reload"
	// DisruptionRestart: a component restarts. What it manages, such as pods, keeps running.
	DisruptionRestart Disruption = "restart"
	// DisruptionDrain: pods of the host are disturbed, so its node is drained before.
	DisruptionDrain Disruption = "drain"
	// DisruptionData: data on the host, those of etcd, are lost.
	DisruptionData Disruption = "data"
)

// Step is one part of the wanted state of a host, such as a file or a systemd unit. Exactly one of
// the pointers is set. The agent does the steps of a stage in their order, and undoes them in the
// reverse order.
type Step struct {
	// ID is a constant such as kubelet/config, unique on a host.
	ID string `json:"id"`
	// Disruption is what a later change of the step disturbs. Doing the step for the first time
	// disturbs nothing.
	Disruption Disruption `json:"disruption,omitempty"`

	Directory *Directory `json:"directory,omitempty"`
	File      *File      `json:"file,omitempty"`
	Artifact  *Artifact  `json:"artifact,omitempty"`
	Sysctls   *Sysctls   `json:"sysctls,omitempty"`
	Modules   *Modules   `json:"modules,omitempty"`
	Packages  *Packages  `json:"packages,omitempty"`
	Script    *Script    `json:"script,omitempty"`
	Unit      *Unit      `json:"unit,omitempty"`
	Sweep     *Sweep     `json:"sweep,omitempty"`
	Probe     *Probe     `json:"probe,omitempty"`
}

// Directory is a step: the directory must exist. Undoing it removes the directory if Orrery made
// it: with all its content if Owned is true, else only if it is empty.
type Directory struct {
	Path string `json:"path"`
	// Mode is octal, such as "0755".
	Mode string `json:"mode"`
	// Owned directories contain only files of components, such as /var/lib/etcd. Files of steps are
	// undone with their steps. Files of a network plugin are removed by Sweep.
	Owned bool `json:"owned,omitempty"`
}

// File is a step: the file must have this content. Undoing it restores the former content. The file
// is written beside its path and renamed, so it is never partial.
type File struct {
	Path    string `json:"path"`
	Mode    string `json:"mode"`
	Content string `json:"content"`
	// Secret content is never shown.
	Secret bool `json:"secret,omitempty"`
}

// Artifact is a step that installs a release file, or programs from an archive. These are too large
// for a plan, so the plan has only the digest of the content. The agent on the host receives the
// content separately.
type Artifact struct {
	// Blob is the digest, sha256:HEX, of the file or archive.
	Blob string `json:"blob"`
	// Archive is empty, tar or tar.gz.
	Archive string `json:"archive,omitempty"`
	// Files maps names in the archive to paths on the host. Without an archive, the only key
	// is "".
	Files map[string]string `json:"files"`
	Mode  string            `json:"mode"`
}

// Sysctls is a step that sets sysctls at once, and at each boot by a file in /etc/sysctl.d. Undoing
// it restores the former values.
type Sysctls struct {
	// Path of the file.
	Path   string            `json:"path"`
	Values map[string]string `json:"values"`
}

// Modules is a step that loads kernel modules at once, and at each boot by a file in
// /etc/modules-load.d. A built-in module counts as loaded. Undoing it unloads no module, because
// other software may use it.
type Modules struct {
	Path  string   `json:"path"`
	Names []string `json:"names"`
}

// Packages is a step that installs packages of the Linux distribution. Manager is apt, dnf, yum or
// zypper. Undoing it removes those packages that Orrery installed.
type Packages struct {
	Manager string   `json:"manager"`
	Names   []string `json:"names"`
}

// Script is a step that runs a script of the user. The agent runs Run with sh as root when the
// script changes.
type Script struct {
	Run string `json:"run"`
	// Undo is run when the step is undone.
	Undo    string        `json:"undo,omitempty"`
	Timeout time.Duration `json:"timeout,omitempty"`
}

// Unit is a step: a process that systemd keeps running.
type Unit struct {
	// Name without suffix, such as orrery-kubelet.
	Name        string            `json:"name"`
	Description string            `json:"description"`
	Command     []string          `json:"command"`
	Env         map[string]string `json:"env,omitempty"`
	// After names units that start earlier at boot.
	After []string `json:"after,omitempty"`
	// InputHash covers files that the process reads only at its start. A change restarts the unit.
	InputHash string `json:"inputHash,omitempty"`
	// KillMode "process" keeps child processes running when the unit stops, such as containerd's
	// shims.
	KillMode string `json:"killMode,omitempty"`
	// Delegate gives the process its own part of the cgroup tree.
	Delegate bool `json:"delegate,omitempty"`
	// Notify is true if the process notifies systemd when it is ready.
	Notify bool `json:"notify,omitempty"`
	// LimitNOFILE bounds open files; zero is the system's default.
	LimitNOFILE int64 `json:"limitNOFILE,omitempty"`
	// Mounts are paths whose file systems must be mounted before the unit starts.
	Mounts []string `json:"mounts,omitempty"`
	// Data is a pattern of the files with the data of the process. Established is a file that a later
	// step writes once there are data. While that file exists, the unit starts only if a file matches
	// Data, and the lines of Established are added to its environment. A running process does not
	// notice the file.
	Data        string `json:"data,omitempty"`
	Established string `json:"established,omitempty"`
}

// Sweep is a step about what components create while they run: containers, network links, rules,
// mounts and control groups. Doing it records what exists before. Undoing it removes what was added
// since.
type Sweep struct {
	// Containers is the socket of containerd. All its containers are stopped and their shims killed.
	Containers string `json:"containers,omitempty"`
	// MountsUnder are directories below which everything is unmounted.
	MountsUnder []string `json:"mountsUnder,omitempty"`
	// Links are network interfaces, such as cni0. A trailing * matches a prefix.
	Links []string `json:"links,omitempty"`
	// Tables are nftables tables, as family and name.
	Tables []string `json:"tables,omitempty"`
	// IPTablesPrefixes are prefixes of iptables chains. Their chains and the rules that jump to them
	// are removed.
	IPTablesPrefixes []string `json:"iptablesPrefixes,omitempty"`
	// Cgroups are names of control groups below the root, such as kubepods.
	Cgroups []string `json:"cgroups,omitempty"`
	// Paths are removed with all their content.
	Paths []string `json:"paths,omitempty"`
	// NetworkNamespaces is a prefix. New namespaces /run/netns/PREFIX* are removed.
	NetworkNamespaces string `json:"networkNamespaces,omitempty"`
}

// Traces are what components have left on a host while they ran, as the agent finds them. Each
// entry has the form that the tool to remove it takes.
type Traces struct {
	// Mounts are mount points, outermost first.
	Mounts []string `json:"mounts,omitempty"`
	// Links are names of network links.
	Links []string `json:"links,omitempty"`
	// Namespaces are paths of network namespaces.
	Namespaces []string `json:"namespaces,omitempty"`
	// Tables are nftables tables, as family and name.
	Tables []string `json:"tables,omitempty"`
	// Chains are iptables chains, as command, table and name.
	Chains []string `json:"chains,omitempty"`
	// Cgroups are directories below the root of the control groups, outermost first.
	Cgroups []string `json:"cgroups,omitempty"`
	// Paths of files and directories.
	Paths []string `json:"paths,omitempty"`
}

// Probe is a step that waits until a component answers. The stage fails if that takes longer than
// Timeout. Exactly one of URL, TCP and Exec is set.
type Probe struct {
	// URL must answer a GET with 2xx.
	URL string `json:"url,omitempty"`
	// CAFile, CertFile and KeyFile are the authority and the client certificate for URL.
	CAFile   string `json:"caFile,omitempty"`
	CertFile string `json:"certFile,omitempty"`
	KeyFile  string `json:"keyFile,omitempty"`
	// Contains is a text that must be in the answer.
	Contains string `json:"contains,omitempty"`
	// TCP is an address that must accept a connection. unix:/path is a socket.
	TCP string `json:"tcp,omitempty"`
	// Exec is a command that must end with status 0.
	Exec    []string      `json:"exec,omitempty"`
	Timeout time.Duration `json:"timeout"`
	// Unit is the unit whose log is reported when the probe fails.
	Unit string `json:"unit,omitempty"`
}

// Blob is a release file that hosts need, by its digest.
type Blob struct {
	// Digest is sha256:HEX.
	Digest string `json:"digest"`
	// URL of the source.
	URL string `json:"url"`
	// Hosts that need the file.
	Hosts []string `json:"hosts"`
}

// Hash returns a hash of the step, as 32 hex digits. Two steps with the same hash need not be done
// again. Disruption is not part of the hash.
func (s Step) Hash() string {
	s.Disruption = ""
	return hash(s)
}

// Hash returns a hash of the whole plan, as 32 hex digits. It covers the contents of secret files,
// too.
func (p *Plan) Hash() string { return hash(p) }

// hash returns the first 32 hex digits of the SHA-256 digest of v as JSON. v must be plain data.
func hash(v any) string {
	content, err := json.Marshal(v)
	if err != nil { // plans and steps are plain data
		panic(fmt.Sprintf("marshal plan: %v", err))
	}
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:16])
}
