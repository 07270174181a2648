package plan

// The etcd types of spec.etcd.type.
const (
	EtcdManaged  = "kubekey"
	EtcdExternal = "external"
)

// Network plugins with a handling of their own.
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

// flagFeatureGates is the flag that sets feature gates.
const flagFeatureGates = "feature-gates"

// dockerHub is the registry of images that name no registry.
const dockerHub = "docker.io"

// Ports that the spec cannot change.
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

// LoadBalancer is the address of the load balancer on each host.
const LoadBalancer = "127.0.0.1:7443"

// Paths on a host.
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

// Names of systemd units.
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

// IDs of steps whose removal disturbs what runs.
const (
	stepSweep          = "sweep"
	stepEtcdData       = "directory/etcd"
	stepKubeletData    = "directory/kubelet"
	stepContainerdData = "directory/containerd"
	suffixUnit         = "/unit"
)

// searchPath is the PATH of units: our programs first, then those of the host, such as mount, nft
// and iptables.
const searchPath = binDir + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

const (
	labelControlPlane = "node-role.kubernetes.io/control-plane"
	labelWorker       = "node-role.kubernetes.io/worker"
)

// StepEtcdUnit starts etcd. From then on the initial members are fixed.
const StepEtcdUnit = "etcd/unit"

// stepEtcdProbe succeeds when etcd has a quorum. stepEtcdEstablished records that on the host.
const (
	stepEtcdProbe       = "etcd/probe"
	stepEtcdEstablished = "etcd/established"
)

// StepAPIServerUnit starts the API server.
const StepAPIServerUnit = "apiserver/unit"

// ControlPlaneTaint is the key of the taint of dedicated control planes.
const ControlPlaneTaint = labelControlPlane
