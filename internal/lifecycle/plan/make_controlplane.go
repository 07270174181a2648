package plan

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// readyTimeout is how long a component of the control plane may take to start.
const readyTimeout = 2 * time.Minute

// auditPolicy is the audit policy of the API server if the spec enables auditing. It records the
// metadata of all requests, except those for Leases, health checks, the version and OpenAPI.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  nonResourceURLs: [/healthz*, /livez*, /readyz*, /version, /openapi/*]
- level: None
  resources:
  - {group: coordination.k8s.io, resources: [leases]}
- level: Metadata
`

// controlPlane returns the steps of StageControlPlane: kubectl, the API server, the controller
// manager and the scheduler, each with a probe. It is nil for a host that is not a control plane.
func (h *hostMaker) controlPlane() []Step {
	if !h.has(clusterv1alpha1.RoleControlPlane) {
		return nil
	}
	steps := []Step{file("kubernetes/ca.crt", caFile, h.pair(AuthorityCluster).Cert, DisruptionReload)}
	steps = append(steps, h.artifact(fileKubectl, binDir, DisruptionNone))
	steps = append(steps, h.kubeconfig("kubernetes/admin", adminFile, h.local(), "kubernetes-admin", h.pair(LeafAdmin), DisruptionNone))
	return slices.Concat(steps, h.apiServer(), h.controllerManager(), h.scheduler(), []Step{
		localProbe("controller-manager/probe", portControllerManager, unitControllerManager),
		localProbe("scheduler/probe", portScheduler, unitScheduler),
	})
}

// apiServer returns the steps for the API server: its program, certificates, audit policy, systemd
// unit, and the probe of /readyz.
func (h *hostMaker) apiServer() []Step {
	program := h.artifact(fileAPIServer, binDir, DisruptionRestart)
	etcd := h.etcdClient()
	front := file("apiserver/front-proxy-ca.crt", pkiDir+"/front-proxy-ca.crt", h.pair(AuthorityFrontProxy).Cert, DisruptionReload)
	accounts := []Step{
		file("apiserver/sa.pub", pkiDir+"/sa.pub", h.pair(KeyServiceAccounts).Cert, DisruptionRestart),
		secretFile("apiserver/sa.key", pkiDir+"/sa.key", h.pair(KeyServiceAccounts).Key, DisruptionRestart),
	}
	// The API server reloads its serving certificate without a restart.
	serving := certificate("apiserver/serving", pkiDir+"/apiserver", h.leaf(leafAPIServer), DisruptionReload)
	clients := slices.Concat(
		certificate("apiserver/kubelet-client", pkiDir+"/apiserver-kubelet-client", h.leaf(leafKubeletClient), DisruptionRestart),
		certificate("apiserver/front-proxy-client", pkiDir+"/front-proxy-client", h.leaf(leafFrontProxy), DisruptionRestart),
	)
	var audit []Step
	if h.spec.Kubernetes.Audit.Enabled {
		audit = []Step{
			dataDirectory("directory/audit", auditDir, "0700"),
			file("apiserver/audit-policy", configDir+"/audit-policy.yaml", auditPolicy, DisruptionRestart),
		}
	}
	var after []string
	if h.managed() && h.has(clusterv1alpha1.RoleEtcd) {
		after = []string{unitEtcd}
	}
	reads := slices.Concat([]Step{program}, etcd, accounts, clients, audit)
	return slices.Concat(reads, []Step{front}, serving, []Step{
		unit("apiserver", Unit{
			Name: unitAPIServer, Description: h.describe("API server"), Command: h.apiServerCommand(),
			After: after, LimitNOFILE: 1 << 20,
		}, reads...),
		{ID: "apiserver/probe", Probe: &Probe{URL: h.local() + "/readyz", CAFile: caFile, Timeout: readyTimeout, Unit: unitAPIServer}},
	})
}

// etcdClient returns the steps for the files with which the API server connects to etcd: the client
// certificate and etcd's authority. It is nil for an external etcd without TLS.
func (h *hostMaker) etcdClient() []Step {
	if h.managed() {
		pair := h.leaf(leafEtcdClient)
		steps := certificate("apiserver/etcd-client", pkiDir+"/apiserver-etcd-client", pair, DisruptionRestart)
		return append(steps, file("apiserver/etcd-ca.crt", pkiDir+"/apiserver-etcd-ca.crt", h.pair(AuthorityEtcd).Cert, DisruptionRestart))
	}
	x := h.in.ExternalEtcd
	if x == nil || len(x.CA) == 0 {
		return nil
	}
	return []Step{
		file("apiserver/etcd-client.crt", pkiDir+"/apiserver-etcd-client.crt", x.Cert, DisruptionRestart),
		secretFile("apiserver/etcd-client.key", pkiDir+"/apiserver-etcd-client.key", x.Key, DisruptionRestart),
		file("apiserver/etcd-ca.crt", pkiDir+"/apiserver-etcd-ca.crt", x.CA, DisruptionRestart),
	}
}

// apiServerCommand returns the command line of the API server. The user's admission plugins are
// added to Orrery's.
func (h *hostMaker) apiServerCommand() []string {
	k := h.spec.Kubernetes
	admission := "NodeRestriction"
	var users clusterv1alpha1.Args
	for _, arg := range k.APIServerArgs { // the user's admission plugins are added to Orrery's
		if name, more, _ := strings.Cut(arg, "="); name == "enable-admission-plugins" {
			admission = strings.Join(unique(append([]string{admission}, strings.Split(more, ",")...)), ",")
		} else {
			users = append(users, arg)
		}
	}
	f := flags{
		"advertise-address": h.ip(), "bind-address": h.anyAddress(), "secure-port": strconv.Itoa(int(h.spec.ControlPlaneEndpoint.Port)),
		"allow-privileged": "true", "authorization-mode": "Node,RBAC", "enable-admission-plugins": admission, "profiling": "false",
		"client-ca-file": caFile, "tls-cert-file": pkiDir + "/apiserver.crt", "tls-private-key-file": pkiDir + "/apiserver.key",
		"etcd-servers":               strings.Join(h.etcdServers(), ","),
		"kubelet-client-certificate": pkiDir + "/apiserver-kubelet-client.crt", "kubelet-client-key": pkiDir + "/apiserver-kubelet-client.key",
		"kubelet-certificate-authority": caFile, "kubelet-preferred-address-types": "InternalIP,Hostname",
		"proxy-client-cert-file": pkiDir + "/front-proxy-client.crt", "proxy-client-key-file": pkiDir + "/front-proxy-client.key",
		"requestheader-client-ca-file": pkiDir + "/front-proxy-ca.crt", "requestheader-allowed-names": leafFrontProxy,
		"requestheader-extra-headers-prefix": "X-Remote-Extra-", "requestheader-group-headers": "X-Remote-Group",
		"requestheader-username-headers": "X-Remote-User",
		"service-account-issuer":         "https://kubernetes.default.svc." + k.DNSDomain,
		"service-account-key-file":       pkiDir + "/sa.pub", "service-account-signing-key-file": pkiDir + "/sa.key",
		"service-cluster-ip-range": Join(h.services),
		// Without this flag, a stopping API server waits for all watches to end, until it is killed.
		"shutdown-send-retry-after": "true",
	}
	if len(h.etcdClient()) > 0 {
		f["etcd-cafile"] = pkiDir + "/apiserver-etcd-ca.crt"
		f["etcd-certfile"], f["etcd-keyfile"] = pkiDir+"/apiserver-etcd-client.crt", pkiDir+"/apiserver-etcd-client.key"
	}
	if k.Audit.Enabled {
		f["audit-policy-file"], f["audit-log-path"] = configDir+"/audit-policy.yaml", auditDir+"/audit.log"
		f["audit-log-maxage"], f["audit-log-maxbackup"], f["audit-log-maxsize"] = "30", "10", "100"
	}
	f.setFeatureGates(k.FeatureGates)
	return command(fileAPIServer, f, users)
}

// controllerManager returns the steps for the controller manager, without its probe.
func (h *hostMaker) controllerManager() []Step {
	program := h.artifact(fileControllerManager, binDir, DisruptionRestart)
	kubeconfig := h.kubeconfig("controller-manager/kubeconfig", configDir+"/controller-manager.conf", h.local(), leafControllerManager, h.leaf(leafControllerManager), DisruptionRestart)
	// The controller manager signs the certificates that clients request through the API.
	signing := []Step{secretFile("controller-manager/ca.key", pkiDir+"/ca.key", h.pair(AuthorityCluster).Key, DisruptionRestart)}
	if h.signingFile() != caFile {
		signing = append(signing, file("controller-manager/ca.crt", h.signingFile(), h.pair(AuthorityCluster).Signer().Cert, DisruptionRestart))
	}
	serving := certificate("controller-manager/serving", pkiDir+"/controller-manager", h.leaf(leafControllerManager), DisruptionReload)
	reads := slices.Concat([]Step{program, kubeconfig}, signing)
	return slices.Concat(reads, serving, []Step{
		unit("controller-manager", Unit{
			Name: unitControllerManager, Description: h.describe("Controller manager"), Command: h.controllerManagerCommand(),
			After: []string{unitAPIServer},
		}, reads...),
	})
}

// signingFile returns the path of the certificate with which the controller manager signs. It is
// caFile, unless that file also contains older authorities. Then it is a separate file, because the
// controller manager needs a file with one certificate.
func (h *hostMaker) signingFile() string {
	if ca := h.pair(AuthorityCluster); !ca.Signer().Equal(ca) {
		return pkiDir + "/ca-signing.crt"
	}
	return caFile
}

// controllerManagerCommand returns the command line of the controller manager.
func (h *hostMaker) controllerManagerCommand() []string {
	k := h.spec.Kubernetes
	f := h.delegated("controller-manager")
	maps.Copy(f, flags{
		"allocate-node-cidrs": "true", "cluster-cidr": Join(h.pods), "service-cluster-ip-range": Join(h.services),
		"cluster-name": k.ClusterName, "controllers": "*", "use-service-account-credentials": "true",
		"root-ca-file": caFile, "service-account-private-key-file": pkiDir + "/sa.key",
		"cluster-signing-cert-file": h.signingFile(), "cluster-signing-key-file": pkiDir + "/ca.key",
		"client-ca-file": caFile, "requestheader-client-ca-file": pkiDir + "/front-proxy-ca.crt",
		// The controller manager creates this directory. Its default is in /usr, which Orrery does not
		// change.
		"flex-volume-plugin-dir": kubeletDir + "/volumeplugins",
	})
	four, six := strconv.Itoa(int(k.NodeCidrMaskSize)), strconv.Itoa(int(k.NodeCidrMaskSizeIPv6))
	switch {
	case len(h.pods) > 1:
		f["node-cidr-mask-size-ipv4"], f["node-cidr-mask-size-ipv6"] = four, six
	case h.pods[0].Addr().Is4():
		f["node-cidr-mask-size"] = four
	default:
		f["node-cidr-mask-size"] = six
	}
	f.setFeatureGates(k.FeatureGates)
	return command(fileControllerManager, f, k.ControllerManagerArgs)
}

// scheduler returns the steps for the scheduler, without its probe.
func (h *hostMaker) scheduler() []Step {
	program := h.artifact(fileScheduler, binDir, DisruptionRestart)
	kubeconfig := h.kubeconfig("scheduler/kubeconfig", configDir+"/scheduler.conf", h.local(), leafScheduler, h.leaf(leafScheduler), DisruptionRestart)
	f := h.delegated("scheduler")
	f.setFeatureGates(h.spec.Kubernetes.FeatureGates)
	return slices.Concat([]Step{program, kubeconfig}, certificate("scheduler/serving", pkiDir+"/scheduler", h.leaf(leafScheduler), DisruptionReload), []Step{
		unit("scheduler", Unit{
			Name: unitScheduler, Description: h.describe("Scheduler"), Command: command(fileScheduler, f, h.spec.Kubernetes.SchedulerArgs),
			After: []string{unitAPIServer},
		}, program, kubeconfig),
	})
}

// delegated returns flags for the controller manager or the scheduler, by the name of its files.
// The component then serves on the loopback address, asks the API server to authenticate and
// authorize its clients, and uses leader election.
func (h *hostMaker) delegated(name string) flags {
	kubeconfig := configDir + "/" + name + ".conf"
	return flags{
		"kubeconfig": kubeconfig, "authentication-kubeconfig": kubeconfig, "authorization-kubeconfig": kubeconfig,
		"bind-address": "127.0.0.1", "leader-elect": "true", "profiling": "false",
		"tls-cert-file": pkiDir + "/" + name + ".crt", "tls-private-key-file": pkiDir + "/" + name + ".key",
	}
}

// localProbe returns a step that waits until /healthz answers over HTTPS on a port of the loopback
// address. name is the systemd unit whose log is reported if it does not.
func localProbe(id string, port int, name string) Step {
	return Step{ID: id, Probe: &Probe{URL: fmt.Sprintf("https://127.0.0.1:%d/healthz", port), CAFile: caFile, Timeout: readyTimeout, Unit: name}}
}

// setFeatureGates sets the flag with the feature gates, unless the map is empty.
func (f flags) setFeatureGates(all map[string]bool) {
	if len(all) > 0 {
		f[flagFeatureGates] = formatFeatureGates(all)
	}
}

// anyAddress returns the address with which a component of the host listens on all addresses:
// 0.0.0.0 for a host with one IPv4 address, else ::.
func (h *hostMaker) anyAddress() string {
	if len(h.ips) == 1 && h.ips[0].Is4() {
		return "0.0.0.0"
	}
	return "::"
}
