package hub

import (
	"net"
	"path/filepath"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"orrery.dev/orrery/internal/process"
)

// Processes of the hub.
const (
	etcdProcess              = "etcd"
	apiserverProcess         = "kube-apiserver"
	controllerManagerProcess = "kube-controller-manager"
)

// serviceCIDR is the range of cluster IPs of Services on the hub. No address is ever reachable:
// the hub's Services are templates.
const serviceCIDR = "10.96.0.0/12"

// serviceIP is the first address of serviceCIDR, which belongs to the Service kubernetes.
const serviceIP = "10.96.0.1"

// frugal returns the environment of a process that collects garbage earlier, which halves the
// memory of a mostly idle API server. There is no GOMEMLIMIT: the memory of a hub grows with its
// fleet, and at the limit it would only collect garbage.
func frugal() map[string]string { return map[string]string{"GOGC": "50"} }

// Plan returns the processes that Start runs with these options, for a dry run; none with a
// Kubeconfig. It starts and writes nothing. The plan contains no secrets. A port that was not
// chosen at an earlier start may be another one when the hub starts.
func Plan(o Options) (process.Plan, error) {
	o, err := complete(o)
	if err != nil {
		return process.Plan{}, err
	}
	d := dataDir(o.DataDir)
	if err := d.checkVersion(); err != nil {
		return process.Plan{}, err
	}
	chosen, err := choosePorts(&o, d)
	if err != nil {
		return process.Plan{}, err
	}
	return plan(o), chosen.release()
}

// plan returns the processes for options that are complete and have ports: complete and choosePorts
// have set them.
func plan(o Options) process.Plan {
	p := process.Plan{Name: "hub"}
	if o.external() {
		return p
	}
	d := dataDir(o.DataDir)
	p.Processes = []process.Process{etcd(o, d), apiserver(o, d), controllerManager(o, d)}
	return p
}

// etcdSocket is the name of the Unix socket on which etcd serves, in etcd's directory.
const etcdSocket = "client.sock"

// etcd returns the process of etcd. It serves on Unix sockets in a directory that only its user can
// access. The paths of the sockets are relative to the working directory, because the path of a
// socket has at most 107 bytes.
func etcd(o Options, d dataDir) process.Process {
	const (
		name   = "hub"
		socket = etcdSocket
		// A single etcd member has no peers, but must advertise a TCP address.
		notDialed = "http://localhost:2380"
	)
	args := []string{
		"--name=" + name,
		"--data-dir=data",
		"--listen-client-urls=unix://" + socket,
		"--advertise-client-urls=unix://" + socket + ":0", // etcd requires a port
		"--listen-peer-urls=unix://peer.sock:0",
		"--initial-advertise-peer-urls=" + notDialed,
		"--initial-cluster=" + name + "=" + notDialed,
		"--enable-grpc-gateway=false",
		"--quota-backend-bytes=8589934592",
		// etcd keeps log entries in memory until a snapshot. No etcd follower has to catch up.
		"--snapshot-count=2000",
		"--log-level=warn",
	}
	if o.UnsafeNoFsync {
		args = append(args, "--unsafe-no-fsync")
	}
	return process.Process{
		Name: etcdProcess, Dir: d.etcd(), Env: frugal(),
		Command: append([]string{o.KubeBinary, "etcd"}, args...),
		Ready:   &process.Probe{File: &process.FileProbe{Path: filepath.Join(d.etcd(), socket)}},
	}
}

// disabledAdmission are the admission plugins that the hub's API server does not use. They are for
// clusters that run pods: they would change or refuse templates according to the state of the hub
// instead of that of the members.
const disabledAdmission = "DefaultIngressClass,DefaultStorageClass,DefaultTolerationSeconds,LimitRanger," +
	"NodeDeclaredFeatureValidator,PersistentVolumeClaimResize,PodGroupProtection," +
	"PodGroupWorkloadExists,PodResizeValidator,PodSecurity,PodTopologyLabels,Priority," +
	"ResourceQuota,RuntimeClass,ServiceAccount,StorageObjectInUseProtection,TaintNodesByCondition"

// webhookAdmission are the admission plugins that call webhooks, used only with
// Options.AdmissionWebhooks. The servers of the webhooks run in the members, so the hub would
// refuse every write that requires such a call.
const webhookAdmission = "MutatingAdmissionWebhook,ValidatingAdmissionWebhook"

// apiserver returns the process of kube-apiserver, which starts when etcd is ready.
func apiserver(o Options, d dataDir) process.Process {
	disabled := disabledAdmission
	if !o.AdmissionWebhooks {
		disabled += "," + webhookAdmission
	}
	advertised := o.BindAddress
	if net.ParseIP(advertised).IsUnspecified() {
		advertised = loopbackAddress
	}
	return process.Process{
		Name: apiserverProcess, Dir: d.etcd(), Env: frugal(), After: []string{etcdProcess},
		Command: []string{
			o.KubeBinary, "kube-apiserver",
			"--etcd-servers=unix://" + etcdSocket,
			// The API server reads the file again when it changes.
			"--encryption-provider-config=" + d.encryption(),
			"--encryption-provider-config-automatic-reload=true",
			"--etcd-count-metric-poll-period=0",
			"--etcd-db-metric-poll-interval=0",
			"--bind-address=" + o.BindAddress,
			"--advertise-address=" + advertised,
			"--secure-port=" + strconv.Itoa(o.SecurePort),
			"--tls-cert-file=" + d.leaf(apiserverCert),
			"--tls-private-key-file=" + d.leaf(apiserverCert),
			"--anonymous-auth=false",
			// Templates of privileged pods are allowed. The Pod Security level of the namespace
			// decides which pods its clusters get.
			"--allow-privileged=true",
			"--authorization-mode=RBAC",
			"--client-ca-file=" + d.authority(clientCA),
			"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
			"--service-account-key-file=" + d.serviceAccountKey(),
			"--service-account-signing-key-file=" + d.serviceAccountKey(),
			"--service-cluster-ip-range=" + serviceCIDR,
			// The API server forwards requests for the aggregated API with this certificate, with the user
			// in headers. Routing to endpoints does not support an ExternalName.
			"--enable-aggregator-routing=false",
			"--proxy-client-cert-file=" + d.leaf(frontProxyCert),
			"--proxy-client-key-file=" + d.leaf(frontProxyCert),
			"--requestheader-client-ca-file=" + d.authority(frontProxyCA),
			"--requestheader-allowed-names=" + frontProxyCert,
			"--requestheader-username-headers=X-Remote-User",
			"--requestheader-group-headers=X-Remote-Group",
			"--requestheader-extra-headers-prefix=X-Remote-Extra-",
			"--requestheader-uid-headers=X-Remote-Uid",
			"--disable-admission-plugins=" + disabled,
			// A single server needs no fairness between the flows of its clients. It also needs
			// no leases and endpoints with which replicas find each other; the leases would be
			// written every ten seconds.
			"--enable-priority-and-fairness=false",
			"--runtime-config=flowcontrol.apiserver.k8s.io/v1=false",
			"--feature-gates=APIServerIdentity=false,UnknownVersionInteroperabilityProxy=false",
			"--endpoint-reconciler-type=none",
			"--event-ttl=30m",
			"--profiling=false",
		},
		Ready: &process.Probe{
			HTTP: &process.HTTPProbe{
				URL:    o.serverURL() + "/readyz",
				CAFile: d.authority(serverCA), CertFile: d.leaf(orreryCert), KeyFile: d.leaf(orreryCert),
			},
			Timeout: metav1.Duration{Duration: time.Minute},
		},
	}
}

// controllers are the controllers of kube-controller-manager that a hub runs. Those that create
// pods, endpoints or volumes from templates run in the members instead.
const controllers = "certificatesigningrequest-cleaner-controller,certificatesigningrequest-signing-controller," +
	"clusterrole-aggregation-controller,garbage-collector-controller,namespace-controller," +
	"serviceaccount-token-controller,ttl-after-finished-controller"

// controllerManager returns the process of kube-controller-manager, which starts when the API
// server is ready.
func controllerManager(o Options, d dataDir) process.Process {
	return process.Process{
		Name: controllerManagerProcess, Env: frugal(), After: []string{apiserverProcess},
		Command: []string{
			o.KubeBinary, "kube-controller-manager",
			"--kubeconfig=" + d.controllerManagerKubeconfig(),
			"--controllers=" + controllers,
			"--leader-elect=false",
			"--use-service-account-credentials=false",
			"--secure-port=0",
			"--cluster-signing-cert-file=" + d.authority(clientCA),
			"--cluster-signing-key-file=" + d.authorityKey(clientCA),
			"--root-ca-file=" + d.authority(serverCA),
			"--service-account-private-key-file=" + d.serviceAccountKey(),
			"--profiling=false",
		},
	}
}

// serverURL returns the URL of the hub's own API server for clients on this machine.
func (o *Options) serverURL() string {
	host := o.BindAddress
	if net.ParseIP(host).IsUnspecified() {
		host = loopbackAddress
	}
	return "https://" + net.JoinHostPort(host, strconv.Itoa(o.SecurePort))
}
