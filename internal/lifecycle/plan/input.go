package plan

import (
	"time"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/catalog"
	"orrery.dev/orrery/internal/pki"
)

// FileNames are the names, in the catalogue, of the files that hosts need.
var FileNames = []string{
	fileEtcd, fileAPIServer, fileControllerManager, fileScheduler, fileKubectl,
	fileKubelet, fileKubeProxy, fileContainerd, fileRunc, fileCNIPlugins,
}

const (
	fileEtcd              = "etcd"
	fileAPIServer         = "kube-apiserver"
	fileControllerManager = "kube-controller-manager"
	fileScheduler         = "kube-scheduler"
	fileKubectl           = "kubectl"
	fileKubelet           = "kubelet"
	fileKubeProxy         = "kube-proxy"
	fileContainerd        = "containerd"
	fileRunc              = "runc"
	fileCNIPlugins        = "cni-plugins"
)

// ImageNames are the names of the images that Input.Images has.
var ImageNames = []string{imagePause}

const imagePause = "pause"

// Input is all that a plan depends on.
type Input struct {
	// Name of the cluster, and ID, by which its hosts know it.
	Name, ID string
	// Spec is defaulted and validated.
	Spec *clusterv1alpha1.Provision
	// Facts of each host, by name. A host without facts could not be reached: it counts as a member of the cluster, and
	// nothing is planned for it.
	Facts map[string]Facts
	// Keys has all that Authorities, Keys and Leaves name. Of an authority and of a key without a certificate it has what
	// pki.Authority.Pair returns: what signs, and all that is trusted.
	Keys pki.Bundle
	// InUse has the pairs that the hosts have, where Keys has their successors. Preflight says, as of Now, which are about to end.
	InUse pki.Bundle
	Now   time.Time
	// Files are those of FileNames, by architecture.
	Files map[string][]catalog.File
	// Digests of the files, by File.Key.
	Digests map[string]string
	// Agents are the digests of the agent, by architecture.
	Agents map[string]string
	// Images are full references, as hosts pull them, by name.
	Images map[string]string
	// EtcdBootstrap says, by host, how its etcd first started.
	EtcdBootstrap map[string]EtcdBootstrap
	// ExternalEtcd is what is needed to reach an etcd that is not ours.
	ExternalEtcd *ExternalEtcd
}

// EtcdBootstrap says how an etcd member first started. It is fixed from then on, so that adding or removing a member does
// not restart the others.
type EtcdBootstrap struct {
	// Members are the peer URLs, by host, of the initial cluster, with the host itself; see EtcdPeers.
	Members map[string]string `json:"members"`
	// Join is true for a host that joined an etcd that was there already.
	Join bool `json:"join,omitempty"`
}

// ExternalEtcd are the PEM contents with which an external etcd is reached. All are empty for one without TLS.
type ExternalEtcd struct {
	CA, Cert, Key []byte
}
