// Package plan describes, as data, what must be on each host of a cluster and in which order it is
// installed.
//
// The package is pure. Its input is the spec, the facts of the hosts, the catalog of versions, the
// keys, and what was applied before. Its output is a Plan. Package lifecycle runs a Plan, and
// package node performs its steps on a host. Neither decides anything that is not in the Plan.
// Another backend, for instance one that calls kubeadm, would be another function that returns a
// Plan.
package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// Plan is the wanted state of the hosts of a cluster.
type Plan struct {
	// Cluster is the name of the cluster. Version is that of Kubernetes.
	Cluster string `json:"cluster"`
	Version string `json:"version"`
	// Hosts of the cluster, in the order of the spec.
	Hosts []Host `json:"hosts"`
	// Blobs are the files that hosts need, by digest.
	Blobs []Blob `json:"blobs,omitempty"`
	// Endpoint is the URL of the API server for clients outside. APIServers has host:port of each API
	// server.
	Endpoint   string   `json:"endpoint"`
	APIServers []string `json:"apiServers"`
}

// Host is the wanted state of one host.
type Host struct {
	Name string `json:"name"`
	// Address is the host's internal address.
	Address string                 `json:"address"`
	Roles   []clusterv1alpha1.Role `json:"roles"`
	// Node is what the Node must have beside the settings of the kubelet.
	Node Node `json:"node"`
	// Stages in the order in which they run. Each stage is one round trip.
	Stages []Stage `json:"stages"`
}

// Node is what a Node must have beside the settings of the kubelet.
type Node struct {
	Labels map[string]string `json:"labels,omitempty"`
	// Dedicated control planes are tainted.
	Dedicated bool `json:"dedicated,omitempty"`
}

// StageID names a stage.
type StageID string

// The stages, in their order. Three conditions between them involve several hosts. At the end of
// StageEtcd etcd has a quorum, and at the end of StageControlPlane an API server answers. The
// network is applied before nodes of StageNode are ready.
const (
	// StageSystem prepares the operating system, files, and the container runtime.
	StageSystem StageID = "system"
	// StageEtcd starts etcd and waits for its quorum.
	StageEtcd StageID = "etcd"
	// StageControlPlane starts the API server, controller manager and scheduler, and waits for the API
	// server.
	StageControlPlane StageID = "control-plane"
	// StageNode starts the load balancer, kubelet and kube-proxy.
	StageNode StageID = "node"
)

// Stages lists all stages in their order.
var Stages = []StageID{StageSystem, StageEtcd, StageControlPlane, StageNode}

// Stage is the work on a host in one round trip.
type Stage struct {
	ID    StageID `json:"id"`
	Steps []Step  `json:"steps"`
}

// Disruption is what a change disturbs.
type Disruption string

// The values, in ascending order.
const (
	// DisruptionNone: nothing notices the change.
	DisruptionNone Disruption = "none"
	// DisruptionReload: a process reloads without a restart.
	DisruptionReload Disruption = "reload"
	// DisruptionRestart: a component restarts, and what it manages keeps running.
	DisruptionRestart Disruption = "restart"
	// DisruptionDrain: pods of the host are disturbed.
	DisruptionDrain Disruption = "drain"
	// DisruptionData: data are lost.
	DisruptionData Disruption = "data"
)

// Step is one part of the wanted state of a host. Exactly one of the pointers is set. The steps of
// a stage are done in their order, and undone in the reverse order.
type Step struct {
	// ID is a constant such as kubelet/config, unique on a host.
	ID string `json:"id"`
	// Disruption of changing the step later. Doing it for the first time disturbs nothing.
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

// Directory must exist. Undoing removes a directory that Orrery made: if it is empty, or if Owned
// with all its content.
type Directory struct {
	Path string `json:"path"`
	// Mode is octal, such as "0755".
	Mode string `json:"mode"`
	// Owned directories contain only files of components, such as /var/lib/etcd. Files of steps are
	// undone with their steps. Files of a network plugin are removed by Sweep.
	Owned bool `json:"owned,omitempty"`
}

// File must have this content. Undoing restores the former content. The file is written beside its
// path and renamed, so it is never partial.
type File struct {
	Path    string `json:"path"`
	Mode    string `json:"mode"`
	Content string `json:"content"`
	// Secret content is never shown.
	Secret bool `json:"secret,omitempty"`
}

// Artifact is a file, or files of an archive, too large for a plan.
type Artifact struct {
	// Blob is the digest, sha256:HEX, of the file or archive.
	Blob string `json:"blob"`
	// Archive is empty, tar or tar.gz.
	Archive string `json:"archive,omitempty"`
	// Files maps members of the archive to paths. Without an archive, the only key is "".
	Files map[string]string `json:"files"`
	Mode  string            `json:"mode"`
}

// Sysctls are set at once, and at each boot by a file in /etc/sysctl.d. Undoing restores the former
// values.
type Sysctls struct {
	// Path of the file.
	Path   string            `json:"path"`
	Values map[string]string `json:"values"`
}

// Modules are loaded at once, and at each boot by a file in /etc/modules-load.d. A built-in module
// counts as loaded. Undoing unloads no module, because others may use it.
type Modules struct {
	Path  string   `json:"path"`
	Names []string `json:"names"`
}

// Packages are installed by the package manager: apt, dnf, yum or zypper. Undoing removes those
// that Orrery installed.
type Packages struct {
	Manager string   `json:"manager"`
	Names   []string `json:"names"`
}

// Script is run by sh as root when its content changes.
type Script struct {
	Run string `json:"run"`
	// Undo is run when the step is undone.
	Undo    string        `json:"undo,omitempty"`
	Timeout time.Duration `json:"timeout,omitempty"`
}

// Unit is a process that systemd keeps running.
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
	// step writes once there are data. While it exists, the unit starts only if a file matches Data,
	// and its lines are added to the environment. A running process does not notice it.
	Data        string `json:"data,omitempty"`
	Established string `json:"established,omitempty"`
}

// Sweep removes what components create while they run. Doing the step records what exists before.
// Undoing it removes what was added since: containers, links, rules, mounts and control groups.
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

// Traces are what components leave on a host while they run. Each entry has the form that the
// removing tool takes.
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

// Probe must succeed before the stage continues. Exactly one of URL, TCP and Exec is set.
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

// Blob is a file that hosts need.
type Blob struct {
	// Digest is sha256:HEX.
	Digest string `json:"digest"`
	// URL of the source.
	URL string `json:"url"`
	// Hosts that need it.
	Hosts []string `json:"hosts"`
}

// Hash covers what the step does. Disruption is not part of it.
func (s Step) Hash() string {
	s.Disruption = ""
	return hash(s)
}

// Hash covers the whole plan.
func (p *Plan) Hash() string { return hash(p) }

func hash(v any) string {
	content, err := json.Marshal(v)
	if err != nil { // the types above are plain data
		panic(fmt.Sprintf("marshal plan: %v", err))
	}
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:16])
}
