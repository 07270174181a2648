// Package plan says, as data, what must be on each host of a cluster and in what order it gets there.
//
// It is pure: the spec, the facts of the hosts, the catalogue of versions, the keys and what was applied before go in, a
// Plan comes out. Package lifecycle runs a Plan and package node does its steps on a host; neither decides anything that
// is not written here. A Plan is independent of how its components are run, so another backend, such as one that calls
// kubeadm, is another function that returns one.
package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// Plan is what a cluster's hosts must be like.
type Plan struct {
	// Cluster is its name, and Version that of Kubernetes.
	Cluster string `json:"cluster"`
	Version string `json:"version"`
	// Hosts of the cluster, in the order of the spec.
	Hosts []Host `json:"hosts"`
	// Blobs are the files that hosts need, by digest.
	Blobs []Blob `json:"blobs,omitempty"`
	// Endpoint is the URL of the API server from outside, and APIServers are host:port of each API server.
	Endpoint   string   `json:"endpoint"`
	APIServers []string `json:"apiServers"`
}

// Host is what one host must be like.
type Host struct {
	Name string `json:"name"`
	// Address is the host's internal address.
	Address string                 `json:"address"`
	Roles   []clusterv1alpha1.Role `json:"roles"`
	// Node says what its Node object must have beside what the kubelet sets.
	Node Node `json:"node"`
	// Stages in the order they are run. Each is one round trip.
	Stages []Stage `json:"stages"`
}

// Node is what a Node object must have beside what the kubelet sets.
type Node struct {
	Labels map[string]string `json:"labels,omitempty"`
	// Dedicated control planes are tainted.
	Dedicated bool `json:"dedicated,omitempty"`
}

// StageID names a stage.
type StageID string

// The stages, in their order. Between them stand the three gates that cross hosts: etcd has a quorum at the end of
// StageEtcd, an API server answers at the end of StageControlPlane, and the network is applied before nodes of StageNode
// are ready.
const (
	// StageSystem: what the operating system needs, the content, and the container runtime.
	StageSystem StageID = "system"
	// StageEtcd: etcd, and that it has a quorum.
	StageEtcd StageID = "etcd"
	// StageControlPlane: API server, controller manager, scheduler, and that the API server is ready.
	StageControlPlane StageID = "control-plane"
	// StageNode: load balancer, kubelet, kube-proxy.
	StageNode StageID = "node"
)

// Stages lists all stages in their order.
var Stages = []StageID{StageSystem, StageEtcd, StageControlPlane, StageNode}

// Stage is what is done on a host in one round trip.
type Stage struct {
	ID    StageID `json:"id"`
	Steps []Step  `json:"steps"`
}

// Disruption says what changing something disturbs.
type Disruption string

// The classes, from the least to the most.
const (
	// DisruptionNone: nothing notices.
	DisruptionNone Disruption = "none"
	// DisruptionReload: a process takes it up without a restart.
	DisruptionReload Disruption = "reload"
	// DisruptionRestart: a component is restarted; what it manages keeps running.
	DisruptionRestart Disruption = "restart"
	// DisruptionDrain: pods of the host are disturbed.
	DisruptionDrain Disruption = "drain"
	// DisruptionData: data are lost.
	DisruptionData Disruption = "data"
)

// Step is one thing that must be so on a host: exactly one of the pointers is set. Steps of a stage are done in their
// order, and undone in the reverse order.
type Step struct {
	// ID is a constant such as kubelet/config, unique on a host.
	ID string `json:"id"`
	// Disruption of changing it when it is there already. Doing it for the first time disturbs nothing.
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

// Directory must exist. Undoing it removes it if it was made by us: when it is empty, or with all that is in it if Owned.
type Directory struct {
	Path string `json:"path"`
	// Mode is octal, such as "0755".
	Mode string `json:"mode"`
	// Owned directories hold only what components of the cluster write, such as /var/lib/etcd. What steps put into a directory
	// goes with them, and what a network plugin does with Sweep.
	Owned bool `json:"owned,omitempty"`
}

// File must have this content. What was there before is kept and comes back when it is undone. It is written beside and
// renamed, so that it is whole or not there.
type File struct {
	Path    string `json:"path"`
	Mode    string `json:"mode"`
	Content string `json:"content"`
	// Secret content is never shown.
	Secret bool `json:"secret,omitempty"`
}

// Artifact is a file, or the files of an archive, that is too large to be part of a plan.
type Artifact struct {
	// Blob is the digest, sha256:HEX, of the file or archive.
	Blob string `json:"blob"`
	// Archive is empty, tar or tar.gz.
	Archive string `json:"archive,omitempty"`
	// Files says which member of the archive goes where; without an archive, the only key is "".
	Files map[string]string `json:"files"`
	Mode  string            `json:"mode"`
}

// Sysctls are set at once and, by a file in /etc/sysctl.d, at each boot. Undoing brings back the values they had.
type Sysctls struct {
	// Path of the file.
	Path   string            `json:"path"`
	Values map[string]string `json:"values"`
}

// Modules are loaded at once and, by a file in /etc/modules-load.d, at each boot. A module that is built in counts as
// loaded. Undoing unloads none, because others may use them.
type Modules struct {
	Path  string   `json:"path"`
	Names []string `json:"names"`
}

// Packages are installed by the host's package manager: apt, dnf, yum or zypper. Undoing removes those that we installed.
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
	// After names units that are started before, at boot.
	After []string `json:"after,omitempty"`
	// InputHash changes when a file does that the process reads only when it starts; the unit is then restarted.
	InputHash string `json:"inputHash,omitempty"`
	// KillMode process leaves what the process started running when it is stopped (containerd's shims).
	KillMode string `json:"killMode,omitempty"`
	// Delegate gives the process its own part of the cgroup tree.
	Delegate bool `json:"delegate,omitempty"`
	// Notify is true if the process tells systemd when it is ready.
	Notify bool `json:"notify,omitempty"`
	// LimitNOFILE bounds open files; zero is the system's default.
	LimitNOFILE int64 `json:"limitNOFILE,omitempty"`
}

// Sweep cleans up what the components make while they run. It does nothing but note what is there before they run;
// undoing it removes what is there beyond that: containers, links, rules, mounts and control groups.
type Sweep struct {
	// Containers stops what containerd with this socket runs, and kills its shims.
	Containers string `json:"containers,omitempty"`
	// MountsUnder are directories below which everything is unmounted.
	MountsUnder []string `json:"mountsUnder,omitempty"`
	// Links are network links, such as cni0; a trailing * matches a prefix.
	Links []string `json:"links,omitempty"`
	// Tables are nftables tables, as family and name.
	Tables []string `json:"tables,omitempty"`
	// IPTablesPrefixes remove iptables chains that begin so, and the rules that jump to them.
	IPTablesPrefixes []string `json:"iptablesPrefixes,omitempty"`
	// CgroupPrefixes are names of control groups below the root, such as kubepods.
	Cgroups []string `json:"cgroups,omitempty"`
	// Paths are removed with all that is in them.
	Paths []string `json:"paths,omitempty"`
	// NetworkNamespaces are removed when they were not there before: /run/netns/PREFIX*.
	NetworkNamespaces string `json:"networkNamespaces,omitempty"`
}

// Traces are what components leave on a host while they run. Each entry is as the tool that removes it wants it.
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

// Probe must succeed before the stage goes on: exactly one of URL, TCP and Exec.
type Probe struct {
	// URL must answer a GET with 2xx.
	URL string `json:"url,omitempty"`
	// CAFile, CertFile and KeyFile are the authority and the client certificate of URL.
	CAFile   string `json:"caFile,omitempty"`
	CertFile string `json:"certFile,omitempty"`
	KeyFile  string `json:"keyFile,omitempty"`
	// Contains is what the answer must have in it.
	Contains string `json:"contains,omitempty"`
	// TCP is an address that must accept a connection; unix:/path is a socket.
	TCP string `json:"tcp,omitempty"`
	// Exec is a command that must end with status 0.
	Exec    []string      `json:"exec,omitempty"`
	Timeout time.Duration `json:"timeout"`
	// Unit whose log says why, when the probe fails.
	Unit string `json:"unit,omitempty"`
}

// Blob is a file that hosts need.
type Blob struct {
	// Digest is sha256:HEX.
	Digest string `json:"digest"`
	// URL that it comes from.
	URL string `json:"url"`
	// Hosts that need it.
	Hosts []string `json:"hosts"`
}

// Hash of a step: it changes when and only when what it does changes.
func (s Step) Hash() string {
	s.Disruption = ""
	return hash(s)
}

// Hash of the plan.
func (p *Plan) Hash() string { return hash(p) }

func hash(v any) string {
	content, err := json.Marshal(v)
	if err != nil { // the types above are plain data
		panic(fmt.Sprintf("marshal plan: %v", err))
	}
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:16])
}
