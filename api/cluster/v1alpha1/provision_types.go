package v1alpha1

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Provision describes a cluster that Orrery builds: its hosts, and the software on them. A
// field that exists in KubeKey has the name that it has there.
type Provision struct {
	// hosts are the machines of the cluster.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=1000
	// +listType=map
	// +listMapKey=name
	// +required
	Hosts []Host `json:"hosts"`

	// roleGroups name the hosts of each role: etcd, control-plane and worker. A range such as
	// node[1:10] names ten hosts. Without etcd, the members of control-plane run it.
	// +kubebuilder:validation:MaxProperties=3
	// +kubebuilder:validation:XValidation:rule="self.all(k, k in ['etcd', 'control-plane', 'worker'])",message="the roles are etcd, control-plane and worker"
	// +required
	RoleGroups map[Role]HostNames `json:"roleGroups"`

	// controlPlaneEndpoint is where clients outside of the cluster reach the API servers.
	// Unset: the first control plane.
	// +optional
	ControlPlaneEndpoint ControlPlaneEndpoint `json:"controlPlaneEndpoint,omitzero"`

	// system says what is changed in the operating system of the hosts.
	// +optional
	System System `json:"system,omitzero"`

	// kubernetes is the version of Kubernetes and the settings of its components.
	// +required
	Kubernetes Kubernetes `json:"kubernetes"`

	// etcd has the settings of etcd, or names an external etcd.
	// +optional
	Etcd Etcd `json:"etcd,omitzero"`

	// network of the pods and Services.
	// +optional
	Network Network `json:"network,omitzero"`

	// registry says where images come from.
	// +optional
	Registry Registry `json:"registry,omitzero"`

	// addons are applied after the network plugin.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=name
	// +optional
	Addons []Addon `json:"addons,omitempty"`

	// source is the base URL of a mirror of the release files. The URL of a file there is the
	// base and the upstream URL without its scheme, as in
	// https://mirror.example.com/dl.k8s.io/v1.36.3/bin/linux/amd64/kubelet. Unset: files come
	// from upstream.
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="size(self) == 0 || (isURL(self) && url(self).getScheme() in ['http', 'https'])",message="must be an http:// or https:// URL"
	// +optional
	Source string `json:"source,omitempty"`

	// join says which side connects once the hub has built the cluster. Push: the hub connects
	// to the endpoint of the cluster. Pull: an agent connects to the hub. The hub applies the
	// agent through the hosts. Its image is built on the hosts and comes from no registry. The
	// default is Push.
	// +kubebuilder:default=Push
	// +optional
	Join SyncMode `json:"join,omitempty"`

	// deletionPolicy says what happens to the hosts when the Cluster is deleted on the hub.
	// Orphan: the cluster keeps running. Delete: what was installed is removed, and the
	// cluster's data are lost. The default is Orphan.
	// +kubebuilder:default=Orphan
	// +optional
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`
}

// Role is what a host runs in its cluster.
type Role string

// The roles.
const (
	RoleEtcd         Role = "etcd"
	RoleControlPlane Role = "control-plane"
	RoleWorker       Role = "worker"
)

// HostNames are names of hosts, or ranges of names such as node[1:10].
//
// +listType=set
// +kubebuilder:validation:MaxItems=1000
// +kubebuilder:validation:items:MaxLength=253
type HostNames []string

// Host is a machine that runs Linux, and its SSH settings.
//
// +kubebuilder:validation:XValidation:rule="!has(self.password) && !has(self.sudoPassword) && !has(self.privateKey) && !has(self.privateKeyPath)",message="a Cluster on the hub holds no credentials: put them in a Secret and name it in secretRef"
type Host struct {
	// name of the host, and of its node.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	// +required
	Name string `json:"name"`
	// address is the IP address or DNS name to which SSH connects.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Address string `json:"address"`
	// internalAddress is the IP address of the node for the other hosts: an IPv4 address, an
	// IPv6 address, or one of each with a comma between. The default is address, if that is an
	// IP address.
	// +kubebuilder:validation:MaxLength=100
	// +optional
	InternalAddress string `json:"internalAddress,omitempty"`
	// port of SSH. The default is 22.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +kubebuilder:default=22
	// +optional
	Port int32 `json:"port,omitempty"`
	// user to log in as. Commands run with sudo unless the user is root. The default is root.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:default=root
	// +optional
	User string `json:"user,omitempty"`
	// secretRef names a Secret with password or ssh-privatekey, with sudoPassword if that
	// differs, and with known_hosts, which has the host's key. The Secret's annotation
	// cluster.orrery.dev/for-cluster names the Cluster.
	// +optional
	SecretRef *SecretReference `json:"secretRef,omitempty"`
	// password to log in with, and of sudo unless sudoPassword is set. Only in files: the hub
	// refuses it.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Password string `json:"password,omitempty"`
	// sudoPassword is the password of sudo, if it differs. Only in files: the hub refuses it.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	SudoPassword string `json:"sudoPassword,omitempty"`
	// privateKey to log in with, in PEM. Only in files: the hub refuses it.
	// +kubebuilder:validation:MaxLength=65536
	// +optional
	PrivateKey string `json:"privateKey,omitempty"`
	// privateKeyPath is the path of the private key on the machine that runs orrery. Only in
	// files: the hub refuses it.
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	PrivateKeyPath string `json:"privateKeyPath,omitempty"`
	// bastion is a host through which SSH connects to this host. Unset: SSH connects directly.
	// +optional
	Bastion *Bastion `json:"bastion,omitempty"`
	// arch is the architecture of the host. Unset: the architecture that the host reports. If
	// set, a host with another architecture is refused.
	// +kubebuilder:validation:Enum=amd64;arm64
	// +optional
	Arch string `json:"arch,omitempty"`
	// timeout of an SSH connection attempt, in seconds. The default is 30.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=600
	// +optional
	Timeout int64 `json:"timeout,omitempty"`
	// labels are set on the node.
	// +kubebuilder:validation:MaxProperties=64
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
}

// Bastion is a host through which SSH connects to other hosts. Its login uses the credentials
// of the host behind it, unless it has its own.
//
// +kubebuilder:validation:XValidation:rule="!has(self.password) && !has(self.privateKeyPath)",message="a Cluster on the hub holds no credentials: put them in a Secret and name it in secretRef"
type Bastion struct {
	// address is the IP address or DNS name of the bastion.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Address string `json:"address"`
	// port of SSH. The default is 22.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +kubebuilder:default=22
	// +optional
	Port int32 `json:"port,omitempty"`
	// user to log in as. The default is the user of the host.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	User string `json:"user,omitempty"`
	// secretRef names a Secret with password or ssh-privatekey, and known_hosts, as secretRef
	// of a host does.
	// +optional
	SecretRef *SecretReference `json:"secretRef,omitempty"`
	// password to log in with. Only in files: the hub refuses it.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Password string `json:"password,omitempty"`
	// privateKeyPath is the path of the private key. Only in files: the hub refuses it.
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	PrivateKeyPath string `json:"privateKeyPath,omitempty"`
}

// ControlPlaneEndpoint is where clients outside of the cluster reach the API servers. Inside,
// each host has its own load balancer over all API servers, unless address is set.
type ControlPlaneEndpoint struct {
	// domain is a DNS name of the endpoint. The API servers' certificate contains it, and
	// kubeconfigs use it if address is unset. DNS must resolve it: Orrery never edits the hosts
	// files of machines.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Domain string `json:"domain,omitempty"`
	// address is the IP address of a load balancer that you operate. Unset: there is none.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Address string `json:"address,omitempty"`
	// port of the API servers and of the load balancer. The default is 6443.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +kubebuilder:default=6443
	// +optional
	Port int32 `json:"port,omitempty"`
}

// System says what is changed in the operating system of the hosts.
type System struct {
	// configureOS is Apply to set kernel modules and sysctls, and Skip to leave them to you.
	// The default is Apply.
	// +kubebuilder:validation:Enum=Apply;Skip
	// +optional
	ConfigureOS string `json:"configureOS,omitempty"`
	// debs are packages that are installed on hosts whose package manager is apt.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=set
	// +optional
	Debs []string `json:"debs,omitempty"`
	// rpms are packages that are installed on hosts whose package manager is dnf, yum or
	// zypper.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=set
	// +optional
	Rpms []string `json:"rpms,omitempty"`
	// preInstall are scripts that run before anything else is changed.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	// +optional
	PreInstall []Script `json:"preInstall,omitempty"`
	// postInstall are scripts that run after all other steps of a host.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	// +optional
	PostInstall []Script `json:"postInstall,omitempty"`
}

// Script runs as root, once for each content: a changed script runs again. bash runs it if its
// first line is #!/bin/bash, else sh.
type Script struct {
	// name of the script.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +required
	Name string `json:"name"`
	// bash is the text of the script.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=65536
	// +required
	Bash string `json:"bash"`
	// undo is a script that reverts what bash did. It runs when the cluster is deleted.
	// +kubebuilder:validation:MaxLength=65536
	// +optional
	Undo string `json:"undo,omitempty"`
	// role limits the script to hosts with this role. Unset: all hosts.
	// +kubebuilder:validation:Enum=etcd;control-plane;worker
	// +optional
	Role Role `json:"role,omitempty"`
}

// Kubernetes is the version of Kubernetes and the settings of its components.
type Kubernetes struct {
	// version of Kubernetes, such as v1.36.3. The catalogue must have it.
	// +kubebuilder:validation:Pattern=`^v1\.[0-9]+\.[0-9]+$`
	// +required
	Version string `json:"version"`
	// clusterName is the name of the cluster in kubeconfigs. The default is the Cluster's name.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	ClusterName string `json:"clusterName,omitempty"`
	// dnsDomain is the DNS domain of Services. The default is cluster.local.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	DNSDomain string `json:"dnsDomain,omitempty"`
	// disableKubeProxy runs no kube-proxy: the network plugin must implement Services.
	// +optional
	DisableKubeProxy bool `json:"disableKubeProxy,omitempty"`
	// proxyMode of kube-proxy. The default is nftables.
	// +kubebuilder:validation:Enum=nftables;iptables;ipvs
	// +optional
	ProxyMode string `json:"proxyMode,omitempty"`
	// masqueradeAll makes kube-proxy masquerade all traffic to Services.
	// +optional
	MasqueradeAll bool `json:"masqueradeAll,omitempty"`
	// autoRenewCerts says whether the hub renews the certificates on the hosts by itself, 60
	// days before they expire. An apply renews them in any case. The default is true.
	// +optional
	AutoRenewCerts *bool `json:"autoRenewCerts,omitempty"`
	// maxPods is the maximum number of pods on a node. The default is 110.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	// +optional
	MaxPods int32 `json:"maxPods,omitempty"`
	// podPidsLimit is the maximum number of processes in a pod. Unset: no limit.
	// +kubebuilder:validation:Minimum=1
	// +optional
	PodPidsLimit int64 `json:"podPidsLimit,omitempty"`
	// nodeCidrMaskSize is the prefix length of each node's part of the pods' IPv4 network. The
	// default is 24.
	// +kubebuilder:validation:Minimum=8
	// +kubebuilder:validation:Maximum=30
	// +optional
	NodeCidrMaskSize int32 `json:"nodeCidrMaskSize,omitempty"`
	// nodeCidrMaskSizeIPv6 is the prefix length of each node's part of the pods' IPv6 network.
	// The default is 64.
	// +kubebuilder:validation:Minimum=48
	// +kubebuilder:validation:Maximum=126
	// +optional
	NodeCidrMaskSizeIPv6 int32 `json:"nodeCidrMaskSizeIPv6,omitempty"`
	// apiserverCertExtraSans are additional names and addresses in the API servers'
	// certificate.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=set
	// +optional
	APIServerCertExtraSANs []string `json:"apiserverCertExtraSans,omitempty"`
	// featureGates are set on every component.
	// +kubebuilder:validation:MaxProperties=64
	// +optional
	FeatureGates map[string]bool `json:"featureGates,omitempty"`
	// apiserverArgs are additional flags of kube-apiserver, such as profiling=false.
	// +optional
	APIServerArgs Args `json:"apiserverArgs,omitempty"`
	// controllerManagerArgs are additional flags of kube-controller-manager.
	// +optional
	ControllerManagerArgs Args `json:"controllerManagerArgs,omitempty"`
	// schedulerArgs are additional flags of kube-scheduler.
	// +optional
	SchedulerArgs Args `json:"schedulerArgs,omitempty"`
	// kubeletArgs are additional flags of the kubelet.
	// +optional
	KubeletArgs Args `json:"kubeletArgs,omitempty"`
	// kubeProxyArgs are additional flags of kube-proxy.
	// +optional
	KubeProxyArgs Args `json:"kubeProxyArgs,omitempty"`
	// kubeletConfiguration is merged into the kubelet's configuration file.
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	// +optional
	KubeletConfiguration *apiextensionsv1.JSON `json:"kubeletConfiguration,omitempty"`
	// kubeProxyConfiguration is merged into kube-proxy's configuration file.
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	// +optional
	KubeProxyConfiguration *apiextensionsv1.JSON `json:"kubeProxyConfiguration,omitempty"`
	// audit logs requests to the API servers.
	// +optional
	Audit Audit `json:"audit,omitzero"`
}

// Args are flags, each as name=value without leading dashes.
//
// +listType=atomic
// +kubebuilder:validation:MaxItems=128
// +kubebuilder:validation:items:MaxLength=4096
type Args []string

// Audit says whether requests to the API servers are logged.
type Audit struct {
	// enabled logs who did what, without bodies, to /var/log/kubernetes/audit.log. The default
	// is false.
	// +optional
	Enabled bool `json:"enabled,omitempty"`
}

// Etcd has the settings of etcd, or names an external etcd.
type Etcd struct {
	// type is kubekey to run etcd on the hosts of the etcd group, or external. The default is
	// kubekey.
	// +kubebuilder:validation:Enum=kubekey;external
	// +kubebuilder:default=kubekey
	// +optional
	Type string `json:"type,omitempty"`
	// external is the etcd that is used if type is external.
	// +optional
	External *ExternalEtcd `json:"external,omitempty"`
	// port for clients. The default is 2379.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +optional
	Port int32 `json:"port,omitempty"`
	// peerPort is the port for the other members. The default is 2380.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +optional
	PeerPort int32 `json:"peerPort,omitempty"`
	// dataDir is the data directory of etcd. The default is /var/lib/etcd.
	// +kubebuilder:validation:Pattern=`^/[^\s]*[^\s/]$`
	// +kubebuilder:validation:MaxLength=255
	// +optional
	DataDir string `json:"dataDir,omitempty"`
	// heartbeatInterval in milliseconds, at most 10000. The default is 250.
	// +optional
	HeartbeatInterval int32 `json:"heartbeatInterval,omitempty"`
	// electionTimeout in milliseconds, from 5 heartbeat intervals to 50000. The default is
	// 5000.
	// +optional
	ElectionTimeout int32 `json:"electionTimeout,omitempty"`
	// snapshotCount is the number of transactions after which etcd takes a snapshot. Unset:
	// etcd's default.
	// +optional
	SnapshotCount int64 `json:"snapshotCount,omitempty"`
	// autoCompactionRetention in hours. The default is 8.
	// +optional
	AutoCompactionRetention int32 `json:"autoCompactionRetention,omitempty"`
	// quotaBackendBytes is the maximum size of the database, in bytes. Unset: etcd's default.
	// +optional
	QuotaBackendBytes int64 `json:"quotaBackendBytes,omitempty"`
	// maxRequestBytes is the maximum size of a request, in bytes. Unset: etcd's default.
	// +optional
	MaxRequestBytes int64 `json:"maxRequestBytes,omitempty"`
	// maxSnapshots is the number of snapshot files that are kept. Unset: etcd's default.
	// +optional
	MaxSnapshots int32 `json:"maxSnapshots,omitempty"`
	// maxWals is the number of write-ahead log files that are kept. Unset: etcd's default.
	// +optional
	MaxWALs int32 `json:"maxWals,omitempty"`
	// metrics is basic or extensive. Unset: etcd's default.
	// +kubebuilder:validation:Enum=basic;extensive
	// +optional
	Metrics string `json:"metrics,omitempty"`
	// logLevel of etcd. Unset: etcd's default.
	// +kubebuilder:validation:Enum=debug;info;warn;error;panic;fatal
	// +optional
	LogLevel string `json:"logLevel,omitempty"`
	// extraArgs are additional flags of etcd.
	// +optional
	ExtraArgs Args `json:"extraArgs,omitempty"`
}

// ExternalEtcd is an etcd that does not run on the hosts of the cluster.
//
// +kubebuilder:validation:XValidation:rule="!has(self.caFile) && !has(self.certFile) && !has(self.keyFile)",message="files cannot be read on the hub: put ca.crt, tls.crt and tls.key in a Secret and name it in secretRef"
type ExternalEtcd struct {
	// endpoints are the URLs of the members.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=9
	// +kubebuilder:validation:items:MaxLength=2048
	// +listType=set
	// +required
	Endpoints []string `json:"endpoints"`
	// secretRef names a Secret with ca.crt, tls.crt and tls.key. The Secret's annotation
	// cluster.orrery.dev/for-cluster names the Cluster.
	// +optional
	SecretRef *SecretReference `json:"secretRef,omitempty"`
	// caFile is the path of the certificate authority. Only in files: the hub refuses it.
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	CAFile string `json:"caFile,omitempty"`
	// certFile is the path of the client certificate. Only in files: the hub refuses it.
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	CertFile string `json:"certFile,omitempty"`
	// keyFile is the path of the client's key. Only in files: the hub refuses it.
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	KeyFile string `json:"keyFile,omitempty"`
}

// Network of the pods and Services.
type Network struct {
	// plugin is the network plugin. The default is flannel. With none you install a plugin
	// yourself: nodes become ready once it runs.
	// +kubebuilder:validation:Enum=flannel;calico;cilium;kubeovn;none
	// +optional
	Plugin string `json:"plugin,omitempty"`
	// kubePodsCIDR is the network of the pods: an IPv4 or IPv6 network, or one of each with a
	// comma between. The default is 10.233.64.0/18.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	KubePodsCIDR string `json:"kubePodsCIDR,omitempty"`
	// kubeServiceCIDR is the network of the Services, in the same form. The default is
	// 10.233.0.0/18.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	KubeServiceCIDR string `json:"kubeServiceCIDR,omitempty"`
	// flannel has the settings of flannel.
	// +optional
	Flannel Flannel `json:"flannel,omitzero"`
	// manifest is applied for the plugin instead of the one in the catalogue. It is a URL or,
	// in files, a path. Only one of manifest and chart may be set.
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="size(self) == 0 || isURL(self)",message="must be a URL: paths cannot be read on the hub"
	// +optional
	Manifest string `json:"manifest,omitempty"`
	// chart is rendered and applied for the plugin instead of the one in the catalogue.
	// +optional
	Chart *Chart `json:"chart,omitempty"`
}

// Flannel has the settings of flannel.
type Flannel struct {
	// backendMode is how pods on different nodes reach each other. The default is vxlan.
	// +kubebuilder:validation:Enum=vxlan;host-gw
	// +optional
	BackendMode string `json:"backendMode,omitempty"`
	// directRouting sends packets between nodes of one subnet directly, without vxlan.
	// +optional
	DirectRouting bool `json:"directRouting,omitempty"`
}

// Registry says where images come from.
type Registry struct {
	// registryMirrors are asked for images of docker.io first.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=2048
	// +listType=set
	// +optional
	RegistryMirrors []string `json:"registryMirrors,omitempty"`
	// insecureRegistries are hosts of registries that use HTTP, or whose certificate is not
	// verified.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=set
	// +optional
	InsecureRegistries []string `json:"insecureRegistries,omitempty"`
	// privateRegistry is the host of a registry from which all images of Kubernetes and of the
	// add-ons are pulled, instead of their own registries. Unset: their own registries.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	PrivateRegistry string `json:"privateRegistry,omitempty"`
	// namespaceOverride replaces the first part of an image's path in privateRegistry. Unset:
	// the path stays the same.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	NamespaceOverride string `json:"namespaceOverride,omitempty"`
}

// Addon is applied to the cluster after the network plugin. Exactly one of chart and yaml is
// set.
// +kubebuilder:validation:XValidation:rule="has(self.chart) != has(self.yaml)",message="exactly one of chart and yaml is needed"
type Addon struct {
	// name of the add-on.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=53
	// +required
	Name string `json:"name"`
	// namespace for the add-on's objects that name none. The default is kube-system.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// chart is a Helm chart that is rendered and applied.
	// +optional
	Chart *Chart `json:"chart,omitempty"`
	// yaml are manifests that are applied: URLs or, in files, paths.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=4096
	// +kubebuilder:validation:items:XValidation:rule="isURL(self)",message="must be a URL: paths cannot be read on the hub"
	// +listType=atomic
	// +optional
	YAML []string `json:"yaml,omitempty"`
}

// Chart is a Helm chart, from a repository or from a path.
//
// +kubebuilder:validation:XValidation:rule="has(self.repo) && !has(self.path)",message="repo is needed: paths cannot be read on the hub"
type Chart struct {
	// name of the chart in the repository.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Name string `json:"name,omitempty"`
	// repo is the URL of the repository.
	// +kubebuilder:validation:MaxLength=2048
	// +optional
	Repo string `json:"repo,omitempty"`
	// path of the directory or archive of the chart. Only in files: the hub refuses it.
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	Path string `json:"path,omitempty"`
	// version of the chart. Unset: the newest.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Version string `json:"version,omitempty"`
	// values of the chart.
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	// +optional
	Values *apiextensionsv1.JSON `json:"values,omitempty"`
}

// ProvisionStatus is the state of a cluster that Orrery built.
type ProvisionStatus struct {
	// operation is the name of the last Operation.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Operation string `json:"operation,omitempty"`
	// version of Kubernetes that the hosts last got.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Version string `json:"version,omitempty"`
	// networkPlugin that was last applied.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	NetworkPlugin string `json:"networkPlugin,omitempty"`
	// specHash is the hash of the spec that was last applied to the hosts.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	SpecHash string `json:"specHash,omitempty"`
	// certificatesExpire is when the first certificate on the hosts expires.
	// +optional
	CertificatesExpire *metav1.Time `json:"certificatesExpire,omitempty"`
	// nodesCount is the number of hosts.
	// +optional
	NodesCount int32 `json:"nodesCount,omitempty"`
	// etcdCount is the number of hosts that run etcd.
	// +optional
	EtcdCount int32 `json:"etcdCount,omitempty"`
	// controlPlaneCount is the number of hosts that run the control plane.
	// +optional
	ControlPlaneCount int32 `json:"controlPlaneCount,omitempty"`
	// workerCount is the number of hosts that are workers.
	// +optional
	WorkerCount int32 `json:"workerCount,omitempty"`
	// nodes are the current hosts of the cluster.
	// +kubebuilder:validation:MaxItems=1000
	// +listType=map
	// +listMapKey=hostname
	// +optional
	Nodes []ProvisionedNode `json:"nodes,omitempty"`
}

// ProvisionedNode is a host of the cluster.
type ProvisionedNode struct {
	// hostname of the node.
	// +kubebuilder:validation:MaxLength=63
	// +required
	Hostname string `json:"hostname"`
	// internalIP of the node.
	// +kubebuilder:validation:MaxLength=100
	// +optional
	InternalIP string `json:"internalIP,omitempty"`
	// roles of the node.
	// +kubebuilder:validation:MaxItems=3
	// +listType=set
	// +optional
	Roles []Role `json:"roles,omitempty"`
}
