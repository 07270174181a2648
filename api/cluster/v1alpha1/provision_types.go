package v1alpha1

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Provision says what a cluster is made of, when Orrery builds it: hosts, and what runs on
// them. Its fields are KubeKey's where KubeKey has one for the same thing.
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

	// controlPlaneEndpoint is where the API servers are reached from outside. Unset, it is the
	// first control plane.
	// +optional
	ControlPlaneEndpoint ControlPlaneEndpoint `json:"controlPlaneEndpoint,omitzero"`

	// system is what is done to the operating system of the hosts.
	// +optional
	System System `json:"system,omitzero"`

	// kubernetes says which Kubernetes, and how its components are set.
	// +required
	Kubernetes Kubernetes `json:"kubernetes"`

	// etcd says how etcd is set, or which etcd is used.
	// +optional
	Etcd Etcd `json:"etcd,omitzero"`

	// network of the pods and Services.
	// +optional
	Network Network `json:"network,omitzero"`

	// registry says where images come from.
	// +optional
	Registry Registry `json:"registry,omitzero"`

	// addons are applied once the network is.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=name
	// +optional
	Addons []Addon `json:"addons,omitempty"`

	// source is the base URL of a mirror of the release files. A file's URL there is the
	// base and the upstream URL without its scheme, as in
	// https://mirror.example.com/dl.k8s.io/v1.36.3/bin/linux/amd64/kubelet. Unset, files come
	// from upstream.
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="size(self) == 0 || (isURL(self) && url(self).getScheme() in ['http', 'https'])",message="must be an http:// or https:// URL"
	// +optional
	Source string `json:"source,omitempty"`

	// join says who dials once the hub has built the cluster. Push: the hub dials the cluster's endpoint. Pull: an agent, which
	// the hub applies through the hosts, dials the hub; its image is made on the hosts, and comes from no registry.
	// +kubebuilder:default=Push
	// +optional
	Join SyncMode `json:"join,omitempty"`

	// deletionPolicy says what becomes of the hosts when the Cluster is deleted on the hub.
	// Orphan: the cluster keeps running. Delete: what was installed is undone and the
	// cluster's data are lost.
	// +kubebuilder:default=Orphan
	// +optional
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`
}

// Role is what a host does in its cluster.
type Role string

// The roles.
const (
	RoleEtcd         Role = "etcd"
	RoleControlPlane Role = "control-plane"
	RoleWorker       Role = "worker"
)

// HostNames are names of hosts, or ranges of them such as node[1:10].
//
// +listType=set
// +kubebuilder:validation:MaxItems=1000
// +kubebuilder:validation:items:MaxLength=253
type HostNames []string

// Host is a machine that runs Linux, and how it is reached over SSH.
//
// +kubebuilder:validation:XValidation:rule="!has(self.password) && !has(self.sudoPassword) && !has(self.privateKey) && !has(self.privateKeyPath)",message="a Cluster on the hub holds no credentials: put them in a Secret and name it in secretRef"
type Host struct {
	// name of the host; its node has the same.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	// +required
	Name string `json:"name"`
	// address is the IP address or DNS name that SSH dials.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Address string `json:"address"`
	// internalAddress is the IP address of the node that the other hosts reach it by: an IPv4
	// address, an IPv6 address, or one of each with a comma between. The default is address.
	// +kubebuilder:validation:MaxLength=100
	// +optional
	InternalAddress string `json:"internalAddress,omitempty"`
	// port of SSH. The default is 22.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +kubebuilder:default=22
	// +optional
	Port int32 `json:"port,omitempty"`
	// user to log in as; sudo is used unless it is root. The default is root.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:default=root
	// +optional
	User string `json:"user,omitempty"`
	// secretRef names a Secret with password or ssh-privatekey, sudoPassword where it differs, and
	// known_hosts, in which the host's key is. Its annotation cluster.orrery.dev/for-cluster names
	// the Cluster.
	// +optional
	SecretRef *SecretReference `json:"secretRef,omitempty"`
	// password to log in with, and of sudo unless sudoPassword says otherwise. Only in files:
	// the hub refuses it.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Password string `json:"password,omitempty"`
	// sudoPassword is sudo's password, where it differs. Only in files: the hub refuses it.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	SudoPassword string `json:"sudoPassword,omitempty"`
	// privateKey to log in with, as PEM. Only in files: the hub refuses it.
	// +kubebuilder:validation:MaxLength=65536
	// +optional
	PrivateKey string `json:"privateKey,omitempty"`
	// privateKeyPath is the file of the private key, on the machine that runs orrery. Only in
	// files: the hub refuses it.
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	PrivateKeyPath string `json:"privateKeyPath,omitempty"`
	// bastion is a host through which this one is dialled.
	// +optional
	Bastion *Bastion `json:"bastion,omitempty"`
	// arch of the host. Unset, it is what the host says; set, a host of another architecture
	// is refused.
	// +kubebuilder:validation:Enum=amd64;arm64
	// +optional
	Arch string `json:"arch,omitempty"`
	// timeout of dialling, in seconds. The default is 30.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=600
	// +optional
	Timeout int64 `json:"timeout,omitempty"`
	// labels of the node.
	// +kubebuilder:validation:MaxProperties=64
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
}

// Bastion is a host through which others are dialled. It is logged in to with the credentials
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
	// secretRef names a Secret as that of a host, with password or ssh-privatekey and known_hosts.
	// +optional
	SecretRef *SecretReference `json:"secretRef,omitempty"`
	// password to log in with. Only in files: the hub refuses it.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Password string `json:"password,omitempty"`
	// privateKeyPath is the file of the private key. Only in files: the hub refuses it.
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	PrivateKeyPath string `json:"privateKeyPath,omitempty"`
}

// ControlPlaneEndpoint is where the API servers are reached from outside the cluster. Inside,
// each host has a load balancer of its own over all API servers, unless address is set.
type ControlPlaneEndpoint struct {
	// domain is a DNS name of the endpoint. It is put in the API servers' certificate, and in
	// kubeconfigs if address is unset. It must resolve: hosts' own files are never edited.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Domain string `json:"domain,omitempty"`
	// address is the IP address of a load balancer that you run.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Address string `json:"address,omitempty"`
	// port of the API servers, and of the load balancer. The default is 6443.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +kubebuilder:default=6443
	// +optional
	Port int32 `json:"port,omitempty"`
}

// System is what is done to the operating system of the hosts.
type System struct {
	// configureOS is Skip to leave kernel modules and sysctls to you. The default is Apply.
	// +kubebuilder:validation:Enum=Apply;Skip
	// +optional
	ConfigureOS string `json:"configureOS,omitempty"`
	// debs are packages that are installed where apt is the package manager.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=set
	// +optional
	Debs []string `json:"debs,omitempty"`
	// rpms are packages that are installed where dnf, yum or zypper is the package manager.
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
	// postInstall are scripts that run once a host is done.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	// +optional
	PostInstall []Script `json:"postInstall,omitempty"`
}

// Script is run as root, once for each content of it: by bash if its first line is #!/bin/bash, else
// by sh.
type Script struct {
	// name of the script.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +required
	Name string `json:"name"`
	// bash is the script.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=65536
	// +required
	Bash string `json:"bash"`
	// undo is a script that takes back what bash did; it runs when the cluster is deleted.
	// +kubebuilder:validation:MaxLength=65536
	// +optional
	Undo string `json:"undo,omitempty"`
	// role runs the script only on hosts of this role.
	// +kubebuilder:validation:Enum=etcd;control-plane;worker
	// +optional
	Role Role `json:"role,omitempty"`
}

// Kubernetes says which Kubernetes is run, and how its components are set.
type Kubernetes struct {
	// version such as v1.36.3; the catalogue must have it.
	// +kubebuilder:validation:Pattern=`^v1\.[0-9]+\.[0-9]+$`
	// +required
	Version string `json:"version"`
	// clusterName is the name in kubeconfigs. The default is the Cluster's name.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	ClusterName string `json:"clusterName,omitempty"`
	// dnsDomain of Services. The default is cluster.local.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	DNSDomain string `json:"dnsDomain,omitempty"`
	// disableKubeProxy leaves Services to the network plugin.
	// +optional
	DisableKubeProxy bool `json:"disableKubeProxy,omitempty"`
	// proxyMode of kube-proxy. The default is nftables.
	// +kubebuilder:validation:Enum=nftables;iptables;ipvs
	// +optional
	ProxyMode string `json:"proxyMode,omitempty"`
	// masqueradeAll makes kube-proxy masquerade all traffic to Services.
	// +optional
	MasqueradeAll bool `json:"masqueradeAll,omitempty"`
	// autoRenewCerts says whether the hub renews the certificates on the hosts by itself, 60 days
	// before they end. An apply renews them in any case. The default is true.
	// +optional
	AutoRenewCerts *bool `json:"autoRenewCerts,omitempty"`
	// maxPods of a node. The default is 110.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	// +optional
	MaxPods int32 `json:"maxPods,omitempty"`
	// podPidsLimit bounds the processes of a pod. Unset, there is no bound.
	// +kubebuilder:validation:Minimum=1
	// +optional
	PodPidsLimit int64 `json:"podPidsLimit,omitempty"`
	// nodeCidrMaskSize is the size of each node's part of the pods' network. The default is 24.
	// +kubebuilder:validation:Minimum=8
	// +kubebuilder:validation:Maximum=30
	// +optional
	NodeCidrMaskSize int32 `json:"nodeCidrMaskSize,omitempty"`
	// nodeCidrMaskSizeIPv6 is the same of the IPv6 network. The default is 64.
	// +kubebuilder:validation:Minimum=48
	// +kubebuilder:validation:Maximum=126
	// +optional
	NodeCidrMaskSizeIPv6 int32 `json:"nodeCidrMaskSizeIPv6,omitempty"`
	// apiserverCertExtraSans are further names and addresses in the API servers' certificate.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=set
	// +optional
	APIServerCertExtraSANs []string `json:"apiserverCertExtraSans,omitempty"`
	// featureGates of every component.
	// +kubebuilder:validation:MaxProperties=64
	// +optional
	FeatureGates map[string]bool `json:"featureGates,omitempty"`
	// apiserverArgs are further flags of kube-apiserver, such as profiling=false.
	// +optional
	APIServerArgs Args `json:"apiserverArgs,omitempty"`
	// controllerManagerArgs are further flags of kube-controller-manager.
	// +optional
	ControllerManagerArgs Args `json:"controllerManagerArgs,omitempty"`
	// schedulerArgs are further flags of kube-scheduler.
	// +optional
	SchedulerArgs Args `json:"schedulerArgs,omitempty"`
	// kubeletArgs are further flags of the kubelet.
	// +optional
	KubeletArgs Args `json:"kubeletArgs,omitempty"`
	// kubeProxyArgs are further flags of kube-proxy.
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
	// enabled logs who did what, without bodies, to /var/log/kubernetes/audit.log.
	// +optional
	Enabled bool `json:"enabled,omitempty"`
}

// Etcd says how etcd is set, or which etcd is used.
type Etcd struct {
	// type is kubekey to run etcd on the hosts of the etcd group, or external.
	// +kubebuilder:validation:Enum=kubekey;external
	// +kubebuilder:default=kubekey
	// +optional
	Type string `json:"type,omitempty"`
	// external is the etcd that is used if type is external.
	// +optional
	External *ExternalEtcd `json:"external,omitempty"`
	// port of clients. The default is 2379.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +optional
	Port int32 `json:"port,omitempty"`
	// peerPort of the members. The default is 2380.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +optional
	PeerPort int32 `json:"peerPort,omitempty"`
	// dataDir of etcd. The default is /var/lib/etcd.
	// +kubebuilder:validation:Pattern=`^/[^\s]*[^\s/]$`
	// +kubebuilder:validation:MaxLength=255
	// +optional
	DataDir string `json:"dataDir,omitempty"`
	// heartbeatInterval in milliseconds. The default is 250.
	// +optional
	HeartbeatInterval int32 `json:"heartbeatInterval,omitempty"`
	// electionTimeout in milliseconds. The default is 5000.
	// +optional
	ElectionTimeout int32 `json:"electionTimeout,omitempty"`
	// snapshotCount is how many transactions make a snapshot.
	// +optional
	SnapshotCount int64 `json:"snapshotCount,omitempty"`
	// autoCompactionRetention in hours. The default is 8.
	// +optional
	AutoCompactionRetention int32 `json:"autoCompactionRetention,omitempty"`
	// quotaBackendBytes bounds the database.
	// +optional
	QuotaBackendBytes int64 `json:"quotaBackendBytes,omitempty"`
	// maxRequestBytes bounds a request.
	// +optional
	MaxRequestBytes int64 `json:"maxRequestBytes,omitempty"`
	// maxSnapshots is how many snapshots are kept.
	// +optional
	MaxSnapshots int32 `json:"maxSnapshots,omitempty"`
	// maxWals is how many write-ahead log files are kept.
	// +optional
	MaxWALs int32 `json:"maxWals,omitempty"`
	// metrics is basic or extensive.
	// +kubebuilder:validation:Enum=basic;extensive
	// +optional
	Metrics string `json:"metrics,omitempty"`
	// logLevel of etcd.
	// +kubebuilder:validation:Enum=debug;info;warn;error;panic;fatal
	// +optional
	LogLevel string `json:"logLevel,omitempty"`
	// extraArgs are further flags of etcd.
	// +optional
	ExtraArgs Args `json:"extraArgs,omitempty"`
}

// ExternalEtcd is an etcd that is not run on the hosts.
//
// +kubebuilder:validation:XValidation:rule="!has(self.caFile) && !has(self.certFile) && !has(self.keyFile)",message="files cannot be read on the hub: put ca.crt, tls.crt and tls.key in a Secret and name it in secretRef"
type ExternalEtcd struct {
	// endpoints are URLs of the members.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=9
	// +kubebuilder:validation:items:MaxLength=2048
	// +listType=set
	// +required
	Endpoints []string `json:"endpoints"`
	// secretRef names a Secret with ca.crt, tls.crt and tls.key. Its annotation
	// cluster.orrery.dev/for-cluster names the Cluster.
	// +optional
	SecretRef *SecretReference `json:"secretRef,omitempty"`
	// caFile holds the certificate authority. Only in files: the hub refuses it.
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	CAFile string `json:"caFile,omitempty"`
	// certFile holds the client certificate. Only in files: the hub refuses it.
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	CertFile string `json:"certFile,omitempty"`
	// keyFile holds the client's key. Only in files: the hub refuses it.
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	KeyFile string `json:"keyFile,omitempty"`
}

// Network of the pods and Services.
type Network struct {
	// plugin is the network add-on. The default is flannel. None leaves the network to you:
	// nodes become ready when it is there.
	// +kubebuilder:validation:Enum=flannel;calico;cilium;kubeovn;none
	// +optional
	Plugin string `json:"plugin,omitempty"`
	// kubePodsCIDR is the pods' network: an IPv4 or IPv6 network, or one of each with a comma
	// between. The default is 10.233.64.0/18.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	KubePodsCIDR string `json:"kubePodsCIDR,omitempty"`
	// kubeServiceCIDR is the Services' network, in the same form. The default is
	// 10.233.0.0/18.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	KubeServiceCIDR string `json:"kubeServiceCIDR,omitempty"`
	// flannel's settings.
	// +optional
	Flannel Flannel `json:"flannel,omitzero"`
	// manifest is what is applied for the plugin, instead of the catalogue's: a URL, or, in
	// files, a path.
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="size(self) == 0 || isURL(self)",message="must be a URL: paths cannot be read on the hub"
	// +optional
	Manifest string `json:"manifest,omitempty"`
	// chart is what is rendered and applied for the plugin, instead of the catalogue's.
	// +optional
	Chart *Chart `json:"chart,omitempty"`
}

// Flannel is flannel's settings.
type Flannel struct {
	// backendMode is how pods of different nodes reach each other. The default is vxlan.
	// +kubebuilder:validation:Enum=vxlan;host-gw
	// +optional
	BackendMode string `json:"backendMode,omitempty"`
	// directRouting routes directly between nodes of one subnet.
	// +optional
	DirectRouting bool `json:"directRouting,omitempty"`
}

// Registry says where images come from.
type Registry struct {
	// registryMirrors are asked before docker.io.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=2048
	// +listType=set
	// +optional
	RegistryMirrors []string `json:"registryMirrors,omitempty"`
	// insecureRegistries are hosts of registries that are spoken to over HTTP, or whose
	// certificate is not verified.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=set
	// +optional
	InsecureRegistries []string `json:"insecureRegistries,omitempty"`
	// privateRegistry is the host of a registry that has the images of Kubernetes and of the
	// add-ons; it takes the place of theirs.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	PrivateRegistry string `json:"privateRegistry,omitempty"`
	// namespaceOverride takes the place of the first part of an image's path in
	// privateRegistry.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	NamespaceOverride string `json:"namespaceOverride,omitempty"`
}

// Addon is something that is applied to the cluster once its network is: exactly one of chart
// and yaml.
// +kubebuilder:validation:XValidation:rule="has(self.chart) != has(self.yaml)",message="exactly one of chart and yaml is needed"
type Addon struct {
	// name of the add-on.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=53
	// +required
	Name string `json:"name"`
	// namespace of the add-on's objects that name none. The default is kube-system.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// chart is rendered and applied.
	// +optional
	Chart *Chart `json:"chart,omitempty"`
	// yaml is applied: URLs, or, in files, paths of files.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=4096
	// +kubebuilder:validation:items:XValidation:rule="isURL(self)",message="must be a URL: paths cannot be read on the hub"
	// +listType=atomic
	// +optional
	YAML []string `json:"yaml,omitempty"`
}

// Chart is a Helm chart: from a repository, or a path.
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
	// path of a chart's folder or archive. Only in files: the hub refuses it.
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	Path string `json:"path,omitempty"`
	// version of the chart. Unset, it is the newest.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Version string `json:"version,omitempty"`
	// values of the chart.
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	// +optional
	Values *apiextensionsv1.JSON `json:"values,omitempty"`
}

// ProvisionStatus is what is known of a cluster that Orrery built.
type ProvisionStatus struct {
	// operation is the name of the last Operation.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Operation string `json:"operation,omitempty"`
	// version of Kubernetes that the hosts were set to.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Version string `json:"version,omitempty"`
	// networkPlugin that was applied.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	NetworkPlugin string `json:"networkPlugin,omitempty"`
	// specHash is the hash of the spec that the hosts were last set to.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	SpecHash string `json:"specHash,omitempty"`
	// certificatesExpire is when the first of the certificates on the hosts ends.
	// +optional
	CertificatesExpire *metav1.Time `json:"certificatesExpire,omitempty"`
	// nodesCount is how many hosts there are.
	// +optional
	NodesCount int32 `json:"nodesCount,omitempty"`
	// etcdCount is how many hosts run etcd.
	// +optional
	EtcdCount int32 `json:"etcdCount,omitempty"`
	// controlPlaneCount is how many hosts run the control plane.
	// +optional
	ControlPlaneCount int32 `json:"controlPlaneCount,omitempty"`
	// workerCount is how many hosts are workers.
	// +optional
	WorkerCount int32 `json:"workerCount,omitempty"`
	// nodes are the hosts that the cluster is made of now.
	// +kubebuilder:validation:MaxItems=1000
	// +listType=map
	// +listMapKey=hostname
	// +optional
	Nodes []ProvisionedNode `json:"nodes,omitempty"`
}

// ProvisionedNode is a host that a cluster is made of.
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
