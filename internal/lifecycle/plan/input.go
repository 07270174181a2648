package plan

import (
	"time"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/catalog"
	"orrery.dev/orrery/internal/pki"
)

// FileNames are the names, in the catalog, of the files that hosts need.
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

// ImageNames are the keys of Input.Images.
var ImageNames = []string{imagePause}

const imagePause = "pause"

// Input is everything that a plan depends on.
type Input struct {
	// Name and ID of the cluster. Hosts know the cluster by its ID.
	Name, ID string
	// Spec has its defaults and is valid.
	Spec *clusterv1alpha1.Provision
	// Facts of each host, by name. A host without facts could not be reached. It counts as a member of
	// the cluster, and nothing is planned for it.
	Facts map[string]Facts
	// Keys has all entries that Authorities, Keys and Leaves name. Those of authorities and of keys
	// without a certificate are as pki.Authority.Pair returns them: the signing key, and all
	// certificates to trust.
	Keys pki.Bundle
	// InUse has the pairs that hosts use, where Keys has their successors. Preflight warns of those
	// that expire soon after Now.
	InUse pki.Bundle
	Now   time.Time
	// Files are those of FileNames, by architecture.
	Files map[string][]catalog.File
	// Digests of the files, by File.Key.
	Digests map[string]string
	// Agents are the digests of the agent, by architecture.
	Agents map[string]string
	// Images are full references, by name.
	Images map[string]string
	// EtcdBootstrap has, by host, how its etcd first started.
	EtcdBootstrap map[string]EtcdBootstrap
	// HasData is true if an API server of the cluster has shown its data before.
	HasData bool
	// ExternalEtcd has the credentials for an external etcd.
	ExternalEtcd *ExternalEtcd
}

// EtcdBootstrap is how an etcd member first started. It never changes, so that adding or removing a
// member does not restart the others.
type EtcdBootstrap struct {
	// Members are the peer URLs of the initial cluster, by host, including the host itself. See
	// EtcdPeers.
	Members map[string]string `json:"members"`
	// Join is true for a host that joined an existing etcd cluster.
	Join bool `json:"join,omitempty"`
}

// ExternalEtcd has the PEM contents for connections to an external etcd. All are empty for an etcd
// without TLS.
type ExternalEtcd struct {
	CA, Cert, Key []byte
}
