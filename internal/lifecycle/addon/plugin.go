package addon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// Names of network plugins that this package treats in a special way.
const (
	pluginFlannel = "flannel"
	pluginCalico  = "calico"
	pluginCilium  = "cilium"
	pluginKubeOVN = "kubeovn"
	pluginNone    = "none"
)

// networkGroup returns the group network, with the network plugin of the spec. Its source is the
// manifest or chart in the spec, else that of the catalog, or the built-in manifest of flannel.
//
// The group is empty if the plugin is none and the spec has no source. If there is no source for
// another plugin, it returns an error.
func networkGroup(ctx context.Context, in Input) (Group, error) {
	network := in.Spec.Network
	chart, manifest := network.Chart, network.Manifest
	if chart == nil && manifest == "" {
		switch {
		case network.Plugin == pluginNone:
			return Group{}, nil
		case network.Plugin == pluginFlannel:
			return flannelGroup(in)
		case in.Plugin.Chart != nil:
			c := in.Plugin.Chart
			chart = &clusterv1alpha1.Chart{Repo: c.Repo, Name: c.Name, Version: c.Version}
		case in.Plugin.Manifest != "":
			manifest = in.Plugin.Manifest
		default:
			return Group{}, errors.New("the catalogue has neither a manifest nor a chart of it: " +
				"set spec.provision.network.manifest or chart")
		}
	}
	g := Group{Name: GroupNetwork, Namespace: metav1.NamespaceSystem}
	if chart != nil {
		values, err := pluginValues(in)
		if err != nil {
			return Group{}, err
		}
		name := network.Plugin
		if name == pluginNone {
			name = GroupNetwork
		}
		objects, source, err := chartObjects(ctx, in, release{name: name, namespace: g.Namespace, chart: *chart, values: values})
		if err != nil {
			return Group{}, err
		}
		g.Objects, g.Sources = objects, append(g.Sources, source)
	}
	if manifest != "" {
		objects, source, err := manifestObjects(ctx, in, manifest)
		if err != nil {
			return Group{}, err
		}
		g.Objects, g.Sources = append(g.Objects, objects...), append(g.Sources, source)
	}
	if network.Plugin == pluginCalico {
		if err := adaptCalico(&g, in); err != nil {
			return Group{}, err
		}
	}
	return g, nil
}

// pluginValues returns the values that Orrery sets for the chart of a network plugin. Values in the
// spec have precedence over them. It is nil for plugins other than Cilium and Kube-OVN.
func pluginValues(in Input) (map[string]any, error) {
	pods, err := plan.ParseNetworks(in.Spec.Network.KubePodsCIDR)
	if err != nil {
		return nil, fmt.Errorf("spec.provision.network.kubePodsCIDR: %w", err)
	}
	services, err := plan.ParseNetworks(in.Spec.Network.KubeServiceCIDR)
	if err != nil {
		return nil, fmt.Errorf("spec.provision.network.kubeServiceCIDR: %w", err)
	}
	switch in.Spec.Network.Plugin {
	case pluginCilium:
		return ciliumValues(in, pods)
	case pluginKubeOVN:
		return kubeOVNValues(in, pods, services), nil
	default:
		return nil, nil
	}
}

// ciliumValues returns the values that Orrery sets for Cilium's chart. pods are the networks of
// pods. The values make Cilium use the pod network in each Node object. They also let a job in the
// cluster make the certificates of Hubble, since the chart would make new ones at each apply.
func ciliumValues(in Input, pods []netip.Prefix) (map[string]any, error) {
	v4, v6 := byFamily(pods)
	values := map[string]any{
		"cluster":              map[string]any{"name": in.Name},
		"ipam":                 map[string]any{"mode": "kubernetes"},
		"ipv4":                 map[string]any{"enabled": v4.IsValid()},
		"ipv6":                 map[string]any{"enabled": v6.IsValid()},
		"kubeProxyReplacement": in.Spec.Kubernetes.DisableKubeProxy,
		"operator":             map[string]any{"replicas": min(max(in.Nodes, 1), 2)},
		"hubble":               map[string]any{"tls": map[string]any{"auto": map[string]any{"method": "cronJob"}}},
	}
	if in.APIServer != "" {
		host, port, err := hostPort(in.APIServer)
		if err != nil {
			return nil, err
		}
		values["k8sServiceHost"], values["k8sServicePort"] = host, port
	}
	return values, nil
}

// kubeOVNValues returns the values that Orrery sets for Kube-OVN's chart. pods and services are the
// networks of pods and Services. The values name the control planes, because the chart would look
// for their nodes in the cluster, which may have none yet.
func kubeOVNValues(in Input, pods, services []netip.Prefix) map[string]any {
	stack := "dual_stack"
	if len(pods) == 1 {
		stack = "ipv6"
		if pods[0].Addr().Is4() {
			stack = "ipv4"
		}
	}
	gateways := make([]string, len(pods))
	for i, p := range pods {
		gateways[i] = plan.Nth(p, 1).String()
	}
	return map[string]any{
		"MASTER_NODES":       strings.Join(in.ControlPlanes, ","),
		"MASTER_NODES_LABEL": "node-role.kubernetes.io/control-plane=",
		"networking":         map[string]any{"NET_STACK": stack},
		stack: map[string]any{
			"POD_CIDR": plan.Join(pods), "POD_GATEWAY": strings.Join(gateways, ","), "SVC_CIDR": plan.Join(services),
		},
	}
}

// adaptCalico sets values that Calico's manifest leaves to the user: the networks of pods, and
// whether rules are written with nftables. Without kube-proxy it enables eBPF, and adds the
// ConfigMap with the address of the API server.
func adaptCalico(g *Group, in Input) error {
	pods, err := plan.ParseNetworks(in.Spec.Network.KubePodsCIDR)
	if err != nil {
		return fmt.Errorf("spec.provision.network.kubePodsCIDR: %w", err)
	}
	v4, v6 := byFamily(pods)
	env := map[string]string{}
	if v4.IsValid() {
		env["CALICO_IPV4POOL_CIDR"] = v4.String()
	} else {
		env["IP"] = "none"
		env["CALICO_ROUTER_ID"] = "hash"
	}
	if v6.IsValid() {
		env["CALICO_IPV6POOL_CIDR"] = v6.String()
		env["CALICO_IPV6POOL_NAT_OUTGOING"] = "true"
		env["IP6"] = "autodetect"
		env["FELIX_IPV6SUPPORT"] = "true"
	}
	if in.Spec.Kubernetes.ProxyMode == "nftables" {
		env["FELIX_NFTABLESMODE"] = "Enabled"
	}
	if in.Spec.Kubernetes.DisableKubeProxy {
		env["FELIX_BPFENABLED"] = "true"
		host, port, err := hostPort(in.Endpoint)
		if err != nil {
			return err
		}
		// Pods with a network of their own read this ConfigMap, too. The address therefore cannot be that
		// of the load balancer on the node, which only pods on the host's network reach.
		g.Objects = append(g.Objects, configMap(metav1.NamespaceSystem, "kubernetes-services-endpoint", nil,
			map[string]string{"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}))
	}
	for _, o := range g.Objects {
		switch {
		case o.GetKind() == "DaemonSet" && o.GetName() == "calico-node":
			for _, c := range containersOf(o) {
				if c["name"] == "calico-node" {
					setEnv(c, env)
				}
			}
		case o.GetKind() == "ConfigMap" && o.GetName() == "calico-config" && v6.IsValid():
			if err := calicoFamilies(o, v4.IsValid()); err != nil {
				return err
			}
		}
	}
	return nil
}

// setEnv sets environment variables of a container, in place. It replaces variables with the same
// name, and adds the new values at the end.
func setEnv(container map[string]any, values map[string]string) {
	old, _ := container["env"].([]any)
	env := make([]any, 0, len(old)+len(values))
	for _, item := range old {
		variable, _ := item.(map[string]any)
		name, _ := variable["name"].(string)
		if _, replaced := values[name]; !replaced {
			env = append(env, item)
		}
	}
	for _, name := range sortedKeys(values) {
		env = append(env, map[string]any{"name": name, "value": values[name]})
	}
	container["env"] = env
}

// calicoFamilies changes the ConfigMap calico-config, so that Calico's CNI plugin assigns IPv6
// addresses to pods, and IPv4 addresses only if v4 is true. The configuration in it has
// placeholders, but is JSON apart from them.
func calicoFamilies(o *unstructured.Unstructured, v4 bool) error {
	const key = "cni_network_config"
	text, _, err := unstructured.NestedString(o.Object, "data", key)
	if err != nil {
		return fmt.Errorf("read %s of ConfigMap calico-config: %w", key, err)
	}
	const quoted, bare = `"__CNI_MTU__"`, `__CNI_MTU__` // the only placeholder for a number
	var conf map[string]any
	if err := json.Unmarshal([]byte(strings.ReplaceAll(text, bare, quoted)), &conf); err != nil {
		return fmt.Errorf("parse %s of ConfigMap calico-config: %w", key, err)
	}
	plugins, _ := conf["plugins"].([]any)
	for _, item := range plugins {
		plugin, _ := item.(map[string]any)
		if ipam, ok := plugin["ipam"].(map[string]any); ok {
			ipam["assign_ipv4"] = strconv.FormatBool(v4)
			ipam["assign_ipv6"] = "true"
		}
	}
	content, err := json.MarshalIndent(conf, "", "  ")
	if err != nil {
		return fmt.Errorf("marshal %s of ConfigMap calico-config: %w", key, err)
	}
	data, _ := o.Object["data"].(map[string]any)
	data[key] = strings.ReplaceAll(string(content), quoted, bare)
	return nil
}
