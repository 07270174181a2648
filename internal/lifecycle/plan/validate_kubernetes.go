package plan

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

var flagPattern = regexp.MustCompile(`^[a-z][a-z0-9]*([-_.][a-z0-9]+)*$`)

// ownedFlags are the flags of each program that the plan sets and that nobody else may: they hold the cluster together, or
// removing the cluster depends on them. The value says where else to set what the flag does; empty, it cannot be set.
var ownedFlags = map[string]map[string]string{
	fileAPIServer: {
		"advertise-address": "hosts[].internalAddress", "bind-address": "", "secure-port": "controlPlaneEndpoint.port",
		"etcd-servers": "etcd", "etcd-cafile": "etcd.external", "etcd-certfile": "etcd.external", "etcd-keyfile": "etcd.external",
		"client-ca-file": "", "tls-cert-file": "", "tls-private-key-file": "", "cert-dir": "",
		"kubelet-client-certificate": "", "kubelet-client-key": "", "kubelet-certificate-authority": "",
		"proxy-client-cert-file": "", "proxy-client-key-file": "", "requestheader-client-ca-file": "",
		"requestheader-allowed-names": "", "requestheader-extra-headers-prefix": "", "requestheader-group-headers": "",
		"requestheader-username-headers": "", "service-account-key-file": "", "service-account-signing-key-file": "",
		"service-cluster-ip-range": "network.kubeServiceCIDR",
		"audit-log-path":           "kubernetes.audit", "audit-policy-file": "kubernetes.audit",
	},
	fileControllerManager: {
		"kubeconfig": "", "authentication-kubeconfig": "", "authorization-kubeconfig": "", "master": "",
		"client-ca-file": "", "root-ca-file": "", "service-account-private-key-file": "", "requestheader-client-ca-file": "",
		"cluster-signing-cert-file": "", "cluster-signing-key-file": "", "tls-cert-file": "", "tls-private-key-file": "",
		"bind-address": "", "secure-port": "", "leader-elect": "", "cluster-name": "kubernetes.clusterName",
		"cluster-cidr": "network.kubePodsCIDR", "service-cluster-ip-range": "network.kubeServiceCIDR",
		"node-cidr-mask-size": "kubernetes.nodeCidrMaskSize", "node-cidr-mask-size-ipv4": "kubernetes.nodeCidrMaskSize",
		"node-cidr-mask-size-ipv6": "kubernetes.nodeCidrMaskSizeIPv6",
	},
	fileScheduler: {
		"kubeconfig": "", "authentication-kubeconfig": "", "authorization-kubeconfig": "", "master": "",
		"bind-address": "", "secure-port": "", "tls-cert-file": "", "tls-private-key-file": "", "leader-elect": "",
	},
	fileKubelet: {
		"config": "kubernetes.kubeletConfiguration", "kubeconfig": "", "bootstrap-kubeconfig": "", "hostname-override": "hosts[].name",
		"node-ip": "hosts[].internalAddress", "root-dir": "", "cert-dir": "", "container-runtime-endpoint": "",
		"tls-cert-file": "", "tls-private-key-file": "", "client-ca-file": "", "cgroup-driver": "",
		"healthz-port": "", "healthz-bind-address": "", "port": "", "address": "", "node-labels": "hosts[].labels",
		"max-pods": "kubernetes.maxPods", "cluster-dns": "kubernetes.kubeletConfiguration", "cluster-domain": "kubernetes.dnsDomain",
	},
	fileEtcd: {
		"name": "", "data-dir": "etcd.dataDir", "config-file": "", "force-new-cluster": "",
		"initial-cluster": "", "initial-cluster-state": "", "initial-cluster-token": "", "discovery": "", "discovery-srv": "",
		"listen-client-urls": "etcd.port", "advertise-client-urls": "etcd.port", "listen-peer-urls": "etcd.peerPort",
		"initial-advertise-peer-urls": "etcd.peerPort", "listen-metrics-urls": "",
		"cert-file": "", "key-file": "", "trusted-ca-file": "", "client-cert-auth": "", "auto-tls": "",
		"peer-cert-file": "", "peer-key-file": "", "peer-trusted-ca-file": "", "peer-client-cert-auth": "", "peer-auto-tls": "",
		"heartbeat-interval": "etcd.heartbeatInterval", "election-timeout": "etcd.electionTimeout",
		"auto-compaction-retention": "etcd.autoCompactionRetention", "auto-compaction-mode": "etcd.autoCompactionRetention",
		"snapshot-count": "etcd.snapshotCount", "quota-backend-bytes": "etcd.quotaBackendBytes", "max-request-bytes": "etcd.maxRequestBytes",
		"max-snapshots": "etcd.maxSnapshots", "max-wals": "etcd.maxWals", "metrics": "etcd.metrics", "log-level": "etcd.logLevel",
	},
}

// proxyFlags are the only flags that kube-proxy heeds beside its configuration file.
var proxyFlags = []string{"v", "vmodule", "log-flush-frequency", "logging-format"}

// ownedKubelet and ownedProxy are the keys of the configuration files that the plan sets and that nobody else may.
var (
	ownedKubelet = []string{
		"apiVersion", "kind", "containerRuntimeEndpoint", "cgroupDriver", "healthzPort", "healthzBindAddress", "port", "address",
		"tlsCertFile", "tlsPrivateKeyFile", "clusterDomain", "volumePluginDir", "staticPodURL",
	}
	ownedProxy = []string{"apiVersion", "kind", "mode", "clientConnection", "hostnameOverride", "healthzBindAddress", "clusterCIDR"}
)

func (v *validator) validateKubernetes(p *field.Path) {
	k := v.spec.Kubernetes
	if !versionPattern.MatchString(k.Version) {
		v.invalidf(p.Child("version"), k.Version, "must be a version such as v1.36.3")
	} else if n := minor(k.Version); n < minMinor {
		v.invalidf(p.Child("version"), k.Version, "must be v1.%d or newer", minMinor)
	}
	v.invalidName(p.Child("clusterName"), k.ClusterName, validation.IsDNS1123Label)
	v.invalidName(p.Child("dnsDomain"), k.DNSDomain, validation.IsDNS1123Subdomain)
	v.oneOf(p.Child("proxyMode"), k.ProxyMode, modeNFTables, modeIPTables, modeIPVS)
	v.bounded(p.Child("maxPods"), int64(k.MaxPods), 1, 1000)
	if k.PodPidsLimit < 0 {
		v.invalidf(p.Child("podPidsLimit"), k.PodPidsLimit, "must be at least 1, or unset for no bound")
	}
	for i, san := range k.APIServerCertExtraSANs {
		if _, err := netip.ParseAddr(san); err == nil {
			continue
		}
		if len(validation.IsDNS1123Subdomain(san)) > 0 && len(validation.IsWildcardDNS1123Subdomain(san)) > 0 {
			v.invalidf(p.Child("apiserverCertExtraSans").Index(i), san, "must be a DNS name or an IP address")
		}
	}
	for _, gate := range slices.Sorted(maps.Keys(k.FeatureGates)) {
		if !gatePattern.MatchString(gate) {
			v.invalidf(p.Child("featureGates").Key(gate), gate, "is not the name of a feature gate, such as NodeSwap")
		}
	}
	v.validateArgs(p.Child("apiserverArgs"), fileAPIServer, k.APIServerArgs)
	v.validateArgs(p.Child("controllerManagerArgs"), fileControllerManager, k.ControllerManagerArgs)
	v.validateArgs(p.Child("schedulerArgs"), fileScheduler, k.SchedulerArgs)
	v.validateArgs(p.Child("kubeletArgs"), fileKubelet, k.KubeletArgs)
	for i, name := range v.validateArgs(p.Child("kubeProxyArgs"), fileKubeProxy, k.KubeProxyArgs) {
		if name != "" && !slices.Contains(proxyFlags, name) {
			v.add(field.Forbidden(p.Child("kubeProxyArgs").Index(i), fmt.Sprintf("kube-proxy does not heed --%s beside its configuration file: use kubeProxyConfiguration", name)))
		}
	}
	if c := k.KubeletConfiguration; c != nil {
		v.validateConfiguration(p.Child("kubeletConfiguration"), c.Raw, ownedKubelet)
	}
	if c := k.KubeProxyConfiguration; c != nil {
		v.validateConfiguration(p.Child("kubeProxyConfiguration"), c.Raw, ownedProxy)
	}
}

// validateArgs checks the flags of a program and returns their names, empty where there is none. No message repeats a value,
// for it may be a secret.
func (v *validator) validateArgs(p *field.Path, program string, args clusterv1alpha1.Args) []string {
	names := make([]string, len(args))
	for i, arg := range args {
		name, value, ok := strings.Cut(arg, "=")
		switch {
		case strings.HasPrefix(name, "-"):
			v.invalidf(p.Index(i), field.OmitValueType{}, "must be name=value without leading dashes")
		case !ok:
			v.invalidf(p.Index(i), field.OmitValueType{}, "must be name=value; a flag without a value is name=true")
		case !flagPattern.MatchString(name):
			v.invalidf(p.Index(i), field.OmitValueType{}, "does not begin with the name of a flag")
		case strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }):
			v.invalidf(p.Index(i), field.OmitValueType{}, "the value of %s must be one line", name)
		default:
			names[i] = strings.ReplaceAll(name, "_", "-") // as the programs read it
		}
		if instead, owned := ownedFlags[program][names[i]]; owned {
			way := "leave it out"
			if instead != "" {
				way = "use spec.provision." + instead
			}
			v.add(field.Forbidden(p.Index(i), fmt.Sprintf("--%s of %s is set by Orrery: %s", names[i], program, way)))
		}
	}
	return names
}

// validateConfiguration checks what is merged into a configuration file.
func (v *validator) validateConfiguration(p *field.Path, raw []byte, owned []string) {
	for _, key := range slices.Sorted(maps.Keys(v.object(p, raw))) {
		if slices.Contains(owned, key) {
			v.add(field.Forbidden(p.Child(key), "is set by Orrery: leave it out"))
		}
	}
}

// object parses a JSON object.
func (v *validator) object(p *field.Path, raw []byte) map[string]any {
	var o map[string]any
	if err := json.Unmarshal(raw, &o); err != nil {
		v.invalidf(p, field.OmitValueType{}, "must be an object")
	}
	return o
}

// minor is Y of v1.Y.Z, or -1.
func minor(version string) int {
	parts := versionPattern.FindStringSubmatch(version)
	if parts == nil {
		return -1
	}
	n, err := strconv.Atoi(parts[1])
	if err != nil {
		return -1
	}
	return n
}

// patch is Z of v1.Y.Z, or -1.
func patch(version string) int {
	parts := versionPattern.FindStringSubmatch(version)
	if parts == nil {
		return -1
	}
	n, err := strconv.Atoi(parts[2])
	if err != nil {
		return -1
	}
	return n
}
