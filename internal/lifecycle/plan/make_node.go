package plan

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// nodeTimeout is how long the load balancer, the kubelet and kube-proxy may each take to start.
const nodeTimeout = time.Minute

// node returns the steps of StageNode: the load balancer, the kubelet, kube-proxy, and then the
// user's post-install scripts. A host that is not a node has only the scripts.
func (h *hostMaker) node() []Step {
	after := h.scripts("post", h.spec.System.PostInstall)
	if !h.isNode() {
		return after
	}
	var steps []Step
	if !h.has(clusterv1alpha1.RoleControlPlane) {
		steps = append(steps, file("kubernetes/ca.crt", caFile, h.pair(AuthorityCluster).Cert, DisruptionReload))
	}
	return slices.Concat(steps, h.loadBalancer(), h.kubelet(), h.kubeProxy(), after)
}

// loadBalancer returns the steps for the load balancer of the API servers that runs on the host.
// There are none if the spec has a control plane address. The load balancer watches the file of its
// backends, so adding or removing a control plane restarts nothing. It is a command of the agent,
// so another version of the agent restarts it.
func (h *hostMaker) loadBalancer() []Step {
	if len(h.balancer()) == 0 {
		return nil
	}
	agent := h.in.Agents[h.facts.Arch]
	if agent == "" {
		h.lackf("the agent for %s, which host %s needs, is not known", h.facts.Arch, h.Name)
	}
	return []Step{
		file("loadbalancer/backends", backendsFile, strings.Join(h.apiServers(), "\n")+"\n", DisruptionReload),
		{ID: "loadbalancer" + suffixUnit, Disruption: DisruptionRestart, Unit: &Unit{
			Name: unitLoadBalancer, Description: h.describe("Load balancer for the API servers"),
			Command:     []string{binDir + "/orrery", "node", "loadbalancer", "--listen", LoadBalancer, "--backends", backendsFile},
			LimitNOFILE: 1 << 20, InputHash: agent,
		}},
		{ID: "loadbalancer/probe", Probe: &Probe{TCP: LoadBalancer, Timeout: nodeTimeout, Unit: unitLoadBalancer}},
	}
}

// balancer returns the systemd unit of the load balancer, as a list for Unit.After of the kubelet
// and kube-proxy. It is nil if the spec has a control plane address, because there is no load
// balancer then.
func (h *hostMaker) balancer() []string {
	if h.spec.ControlPlaneEndpoint.Address != "" {
		return nil
	}
	return []string{unitLoadBalancer}
}

// kubelet returns the steps for the kubelet: its program, configuration, certificates, systemd unit
// and probe.
func (h *hostMaker) kubelet() []Step {
	program := h.artifact(fileKubelet, binDir, DisruptionRestart)
	kubeconfig := h.kubeconfig("kubelet/kubeconfig", configDir+"/kubelet.conf", h.internal(), userNode+h.Name, h.leaf(leafKubelet), DisruptionRestart)
	config := h.configuration("kubelet/config", configDir+"/kubelet.yaml", h.kubeletConfiguration(), h.spec.Kubernetes.KubeletConfiguration)
	f := flags{
		"config": configDir + "/kubelet.yaml", "kubeconfig": configDir + "/kubelet.conf",
		"hostname-override": h.Name, "node-ip": h.ipList(),
	}
	return slices.Concat(
		[]Step{program, kubeconfig, config},
		certificate("kubelet/serving", pkiDir+"/kubelet", h.leaf(leafKubeletServer), DisruptionReload),
		[]Step{
			unit("kubelet", Unit{
				Name: unitKubelet, Description: h.describe("Kubelet"), Command: command(fileKubelet, f, h.spec.Kubernetes.KubeletArgs),
				Env: runtimeEnv(), After: append([]string{unitContainerd}, h.balancer()...), LimitNOFILE: 1 << 20,
			}, program, kubeconfig, config),
			{ID: "kubelet/probe", Probe: &Probe{URL: fmt.Sprintf("http://127.0.0.1:%d/healthz", portKubeletHealth), Timeout: nodeTimeout, Unit: unitKubelet}},
		})
}

// kubeletConfiguration returns Orrery's settings in the kubelet's configuration file. The settings
// of the user are merged later.
func (h *hostMaker) kubeletConfiguration() map[string]any {
	k := h.spec.Kubernetes
	config := map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": false},
			"webhook":   map[string]any{"enabled": true},
			"x509":      map[string]any{"clientCAFile": caFile},
		},
		"authorization": map[string]any{"mode": "Webhook"},
		"cgroupDriver":  "systemd", "containerRuntimeEndpoint": "unix://" + containerdSocket,
		"clusterDNS": []string{h.dnsIP()}, "clusterDomain": k.DNSDomain,
		"maxPods": k.MaxPods, "rotateCertificates": false, "serializeImagePulls": false,
		"tlsCertFile": pkiDir + "/kubelet.crt", "tlsPrivateKeyFile": pkiDir + "/kubelet.key",
		// The default of this directory is in /usr, which Orrery does not change.
		"volumePluginDir": kubeletDir + "/volumeplugins",
	}
	if h.facts.CgroupVersion == 1 {
		config["failCgroupV1"] = false
	}
	if h.facts.ResolvConf != "" {
		config["resolvConf"] = h.facts.ResolvConf
	}
	if k.PodPidsLimit > 0 {
		config["podPidsLimit"] = k.PodPidsLimit
	}
	if h.dedicated() {
		config["registerWithTaints"] = []corev1.Taint{{Key: labelControlPlane, Effect: corev1.TaintEffectNoSchedule}}
	}
	if len(k.FeatureGates) > 0 {
		config["featureGates"] = k.FeatureGates
	}
	return config
}

// kubeProxy returns the steps for kube-proxy, or nil if the spec disables kube-proxy.
func (h *hostMaker) kubeProxy() []Step {
	if h.spec.Kubernetes.DisableKubeProxy {
		return nil
	}
	program := h.artifact(fileKubeProxy, binDir, DisruptionRestart)
	kubeconfig := h.kubeconfig("kube-proxy/kubeconfig", configDir+"/kube-proxy.conf", h.internal(), "system:kube-proxy", h.leaf(leafKubeProxy), DisruptionRestart)
	config := h.configuration("kube-proxy/config", configDir+"/kube-proxy.yaml", h.proxyConfiguration(), h.spec.Kubernetes.KubeProxyConfiguration)
	return []Step{
		program, kubeconfig, config,
		unit("kube-proxy", Unit{
			Name: unitKubeProxy, Description: h.describe("kube-proxy"),
			Command: command(fileKubeProxy, flags{"config": configDir + "/kube-proxy.yaml"}, h.spec.Kubernetes.KubeProxyArgs),
			Env:     runtimeEnv(), After: h.balancer(),
		}, program, kubeconfig, config),
		{ID: "kube-proxy/probe", Probe: &Probe{URL: fmt.Sprintf("http://127.0.0.1:%d/livez", portProxyHealth), Timeout: nodeTimeout, Unit: unitKubeProxy}},
	}
}

// proxyConfiguration returns Orrery's settings in kube-proxy's configuration file. The settings of
// the user are merged later.
func (h *hostMaker) proxyConfiguration() map[string]any {
	k := h.spec.Kubernetes
	config := map[string]any{
		"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
		"mode": k.ProxyMode, "bindAddress": h.anyAddress(), "clusterCIDR": Join(h.pods), "hostnameOverride": h.Name,
		"healthzBindAddress": fmt.Sprintf("127.0.0.1:%d", portProxyHealth),
		"metricsBindAddress": fmt.Sprintf("127.0.0.1:%d", portProxyMetrics),
		"clientConnection":   map[string]any{"kubeconfig": configDir + "/kube-proxy.conf"},
		// The step for sysctls sets the limits of conntrack, so that removing the cluster restores them.
		"conntrack": map[string]any{"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
	}
	if k.MasqueradeAll {
		section := k.ProxyMode
		if section == modeIPVS { // IPVS mode reads masqueradeAll from the section of iptables
			section = modeIPTables
		}
		config[section] = map[string]any{"masqueradeAll": true}
	}
	if len(k.FeatureGates) > 0 {
		config["featureGates"] = k.FeatureGates
	}
	return config
}

// configuration returns a step for a YAML file with Orrery's settings, into which the user's
// settings are merged as a JSON merge patch. users may be nil. If the merge fails, configuration
// adds an error to h.missing, which Make returns.
func (h *hostMaker) configuration(id, path string, ours map[string]any, users *apiextensionsv1.JSON) Step {
	content, err := json.Marshal(ours)
	if err == nil && users != nil {
		content, err = jsonpatch.MergePatch(content, users.Raw)
	}
	if err == nil {
		content, err = yaml.JSONToYAML(content)
	}
	if err != nil {
		h.missing = append(h.missing, fmt.Errorf("make %s of host %s: %w", path, h.Name, err))
	}
	return file(id, path, content, DisruptionRestart)
}
