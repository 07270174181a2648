package plan

import (
	"time"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/catalog"
	"orrery.dev/orrery/internal/pki"
)

// FileNames are the names, in the catalog of versions, of the release files that hosts need.
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

// ImageNames are the names of the container images that a plan needs, which are the keys of
// Input.Images.
var ImageNames = []string{imagePause}

const imagePause = "pause"

// Input is everything that a plan depends on. Make and Preflight do not change it.
type Input struct {
	// Name and ID of the cluster. Hosts know the cluster by its ID.
	Name, ID string
	// Spec has its defaults and is valid.
	Spec *clusterv1alpha1.Provision
	// Facts has the facts of each host, by name. A host without facts could not be reached. It counts
	// as a host of the cluster, and nothing is planned for it.
	Facts map[string]Facts
	// Keys has all entries that Authorities, Keys and Leaves name. An authority, or a key without a
	// certificate, is as pki.Authority.Pair returns it: the signing key, and all certificates to
	// trust.
	Keys pki.Bundle
	// InUse has the certificates that hosts use now, where Keys has their successors. Preflight warns
	// of those that expire soon after Now.
	InUse pki.Bundle
	Now   time.Time
	// Files are those of FileNames, by architecture.
	Files map[string][]catalog.File
	// Digests of the files (sha256:HEX), by File.Key.
	Digests map[string]string
	// Agents are the digests of the agent (sha256:HEX), by architecture.
	Agents map[string]string
	// Images are full references, by the names in ImageNames.
	Images map[string]string
	// EtcdBootstrap has, by host, how the etcd of the host first starts or has started.
	EtcdBootstrap map[string]EtcdBootstrap
	// HasData is true if the cluster has had data: an API server has shown its namespace kube-system.
	HasData bool
	// ExternalEtcd has the credentials for an external etcd.
	ExternalEtcd *ExternalEtcd
}

// EtcdBootstrap is how the etcd member of a host first starts or has started. Once etcd was
// started, it never changes, so that adding or removing a member does not restart the others.
type EtcdBootstrap struct {
	// Members are the peer URLs of the members at that start, by host, including the host itself.
	Members map[string]string `json:"members"`
	// Join is true for a host that joined an existing etcd cluster.
	Join bool `json:"join,omitempty"`
}

// ExternalEtcd has the PEM contents for connections to an external etcd. All are empty for an etcd
// without TLS.
type ExternalEtcd struct {
	CA, Cert, Key []byte
}
