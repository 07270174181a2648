package plan

// Values of spec.etcd.type: EtcdManaged runs etcd on hosts of the cluster, and EtcdExternal uses
// one that Orrery does not manage.
const (
	EtcdManaged  = "kubekey"
	EtcdExternal = "external"
)

// Values of spec.network.plugin that code treats specially. With NetworkNone, the user installs a
// network plugin.
const (
	NetworkFlannel = "flannel"
	NetworkNone    = "none"
)

const (
	configureSkip = "Skip"

	modeNFTables = "nftables"
	modeIPTables = "iptables"
	modeIPVS     = "ipvs"
)

// flagFeatureGates is the name of the flag that sets feature gates, for all components of
// Kubernetes.
const flagFeatureGates = "feature-gates"

// dockerHub is the registry of images whose reference names no registry.
const dockerHub = "docker.io"

// Ports of components that the spec cannot change.
const (
	portLoadBalancer      = 7443
	portEtcdMetrics       = 2381
	portKubelet           = 10250
	portKubeletHealth     = 10248
	portProxyMetrics      = 10249
	portProxyHealth       = 10256
	portControllerManager = 10257
	portScheduler         = 10259
)

// LoadBalancer is the address (host:port) of the load balancer of API servers that runs on each
// node. A cluster with a control plane address in its spec has no such load balancer.
const LoadBalancer = "127.0.0.1:7443"

// Paths on a host that steps and units use.
const (
	binDir        = "/opt/orrery/bin"
	cniBinDir     = "/opt/cni/bin"
	cniConfDir    = "/etc/cni/net.d"
	configDir     = "/etc/kubernetes"
	pkiDir        = configDir + "/pki"
	etcdPKIDir    = pkiDir + "/etcd"
	containerdDir = "/etc/containerd"
	registryDir   = containerdDir + "/certs.d"
	kubeletDir    = "/var/lib/kubelet"
	auditDir      = "/var/log/kubernetes"

	caFile           = pkiDir + "/ca.crt"
	adminFile        = configDir + "/admin.conf"
	backendsFile     = configDir + "/loadbalancer"
	establishedFile  = configDir + "/etcd.env"
	containerdSocket = "/run/containerd/containerd.sock"
)

// Names of the systemd units of components.
const (
	unitContainerd        = "orrery-containerd"
	unitEtcd              = "orrery-etcd"
	unitAPIServer         = "orrery-kube-apiserver"
	unitControllerManager = "orrery-kube-controller-manager"
	unitScheduler         = "orrery-kube-scheduler"
	unitLoadBalancer      = "orrery-loadbalancer"
	unitKubelet           = "orrery-kubelet"
	unitKubeProxy         = "orrery-kube-proxy"
)

// IDs of steps whose removal disturbs what runs. suffixUnit ends the ID of every step that starts a
// unit.
const (
	stepSweep          = "sweep"
	stepEtcdData       = "directory/etcd"
	stepKubeletData    = "directory/kubelet"
	stepContainerdData = "directory/containerd"
	suffixUnit         = "/unit"
)

// searchPath is the PATH of systemd units: Orrery's programs first, then those of the host, such as
// mount, nft and iptables.
const searchPath = binDir + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

const (
	labelControlPlane = "node-role.kubernetes.io/control-plane"
	labelWorker       = "node-role.kubernetes.io/worker"
)

// StepEtcdUnit is the ID of the step that starts etcd on a host. Once the step was begun, the
// members with which etcd first starts do not change any more.
const StepEtcdUnit = "etcd/unit"

// IDs of two steps after the start of etcd. stepEtcdProbe succeeds when etcd has a quorum, and
// stepEtcdEstablished writes a file on the host that records this.
const (
	stepEtcdProbe       = "etcd/probe"
	stepEtcdEstablished = "etcd/established"
)

// StepAPIServerUnit is the ID of the step that starts the API server on a host.
const StepAPIServerUnit = "apiserver/unit"

// ControlPlaneTaint is the key of the taint, with effect NoSchedule, on nodes that are control
// planes and not workers.
const ControlPlaneTaint = labelControlPlane
