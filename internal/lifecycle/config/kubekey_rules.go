package config

import "strings"

// rule says what becomes of a field of KubeKey's Cluster: it is kept, or ignored for a reason.
type rule struct{ reason string }

const (
	toCome = "to come"

	timeReason    = "the time of hosts is checked and never set"
	backupReason  = toCome + ": backups"
	pluginReason  = "the plugin's own settings are given with network.chart or network.manifest"
	addonReason   = "is installed as an add-on"
	dnsReason     = toCome + ": CoreDNS has its default configuration"
	imagesReason  = toCome + ": with offline artifacts"
	runtimeReason = "containerd runs the containers, with its data in /var/lib/containerd"
)

// rules have each field of v1alpha2 by its path below spec. Fields that are kept have the same place in our spec.provision,
// or are put there afterwards by the conversion.
var rules = build(map[string][]string{
	"": {
		"hosts[].name", "hosts[].address", "hosts[].internalAddress", "hosts[].port", "hosts[].user", "hosts[].password",
		"hosts[].privateKey", "hosts[].privateKeyPath", "hosts[].arch", "hosts[].timeout", "hosts[].labels",
		"roleGroups.etcd", "roleGroups.control-plane", "roleGroups.master", "roleGroups.worker", "roleGroups.registry",
		"controlPlaneEndpoint.internalLoadbalancer", "controlPlaneEndpoint.domain", "controlPlaneEndpoint.externalDNS",
		"controlPlaneEndpoint.address", "controlPlaneEndpoint.port",
		"system.rpms", "system.debs", "system.skipConfigureOS",
		"system.preInstall[].name", "system.preInstall[].bash", "system.preInstall[].role",
		"system.postInstall[].name", "system.postInstall[].bash", "system.postInstall[].role",
		"system.postClusterInstall[].name", "system.postClusterInstall[].bash", "system.postClusterInstall[].role",
		"kubernetes.type", "kubernetes.version", "kubernetes.clusterName", "kubernetes.dnsDomain",
		"kubernetes.disableKubeProxy", "kubernetes.masqueradeAll", "kubernetes.maxPods", "kubernetes.podPidsLimit",
		"kubernetes.nodeCidrMaskSize", "kubernetes.nodeCidrMaskSizeIPv6", "kubernetes.apiserverCertExtraSans",
		"kubernetes.proxyMode", "kubernetes.containerManager", "kubernetes.featureGates",
		"kubernetes.apiserverArgs", "kubernetes.controllerManagerArgs", "kubernetes.schedulerArgs", "kubernetes.kubeletArgs",
		"kubernetes.kubeProxyArgs", "kubernetes.kubeletConfiguration", "kubernetes.kubeProxyConfiguration",
		"kubernetes.audit.enabled", "kubernetes.autoRenewCerts",
		"etcd.type", "etcd.external.endpoints", "etcd.external.caFile", "etcd.external.certFile", "etcd.external.keyFile",
		"etcd.port", "etcd.peerPort", "etcd.extraArgs", "etcd.dataDir", "etcd.heartbeatInterval", "etcd.electionTimeout",
		"etcd.snapshotCount", "etcd.autoCompactionRetention", "etcd.quotaBackendBytes", "etcd.maxRequestBytes",
		"etcd.maxSnapshots", "etcd.maxWals", "etcd.metrics", "etcd.logLevel",
		"network.plugin", "network.kubePodsCIDR", "network.kubeServiceCIDR", "network.flannel.backendMode",
		"network.flannel.directRouting",
		"registry.registryMirrors", "registry.insecureRegistries", "registry.privateRegistry", "registry.namespaceOverride",
		"registry.auths",
		"addons[].name", "addons[].namespace", "addons[].sources.chart.name", "addons[].sources.chart.repo",
		"addons[].sources.chart.path", "addons[].sources.chart.version", "addons[].sources.chart.valuesFile",
		"addons[].sources.chart.values", "addons[].sources.yaml.path",
	},
	timeReason:   {"system.ntpServers", "system.timezone"},
	backupReason: {"etcd.backupDir", "etcd.backupPeriod", "etcd.keepBackupNumber", "etcd.backupScript"},
	pluginReason: {"network.calico", "network.cilium", "network.kubeovn", "network.hybridnet"},
	addonReason: {
		"kubernetes.nodeFeatureDiscovery", "kubernetes.kata", "network.multusCNI", "storage", "kubesphere",
	},
	dnsReason:                   {"dns"},
	imagesReason:                {"registry.type", "registry.registryDataDir", "registry.namespaceRewrite", "registry.remoteMirrors"},
	runtimeReason:               {"kubernetes.containerRuntimeEndpoint", "registry.dataRoot", "registry.containerdDataDir", "registry.dockerDataDir", "registry.bridgeIP"},
	"no virtual address is run": {"controlPlaneEndpoint.kubevip"},
	"files are not copied to the hosts: put what the script needs into it": {
		"system.preInstall[].materials", "system.postInstall[].materials", "system.postClusterInstall[].materials",
	},
	toCome + ": CoreDNS alone answers":             {"kubernetes.nodelocaldns"},
	toCome + ": runtimes beside runc":              {"kubernetes.nvidiaRuntime"},
	"what is applied is always waited for":         {"addons[].sources.chart.wait"},
	"it is tried until the run ends":               {"addons[].retries", "addons[].delay"},
	"scripts run on hosts: use system.postInstall": {"addons[].preInstall", "addons[].postInstall"},
})

// within are the paths that rules are below of.
var within = above(rules)

func above(rules map[string]rule) map[string]bool {
	paths := map[string]bool{}
	for path := range rules {
		for i, r := range path {
			if r == '.' {
				paths[strings.TrimSuffix(path[:i], "[]")] = true
			}
		}
	}
	return paths
}

// build turns the lists of each reason into the rule of each path.
func build(byReason map[string][]string) map[string]rule {
	byPath := map[string]rule{}
	for reason, paths := range byReason {
		for _, path := range paths {
			byPath[path] = rule{reason}
		}
	}
	return byPath
}
