package addon

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"text/template"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/manifest"
)

//go:embed builtin/*.yaml
var builtinFiles embed.FS

// builtins are the templates of the built-in manifests, by file name. They insert values of the
// spec as JSON, which is valid YAML.
var builtins = template.Must(template.New("").Funcs(template.FuncMap{"json": func(v any) (string, error) {
	content, err := json.Marshal(v)
	return string(content), err
}}).ParseFS(builtinFiles, "builtin/*.yaml"))

// builtin returns the objects of a built-in manifest. name is a file in the directory builtin, and
// values are the input of its template.
func builtin(name string, values any) ([]*unstructured.Unstructured, error) {
	var text bytes.Buffer
	if err := builtins.ExecuteTemplate(&text, name, values); err != nil {
		return nil, err
	}
	return manifest.Parse(text.Bytes(), yaml.YAMLToJSONStrict)
}

// bootstrapGroup returns the group bootstrap: roles, bindings and other objects that the control
// plane needs and the API server does not create. If in.Endpoint and in.CA are set, it includes the
// ConfigMap cluster-info.
func bootstrapGroup(in Input) (Group, error) {
	var kubeconfig []byte
	if in.Endpoint != "" && len(in.CA) > 0 {
		var err error
		kubeconfig, err = clientcmd.Write(clientcmdapi.Config{Clusters: map[string]*clientcmdapi.Cluster{
			"": {Server: "https://" + in.Endpoint, CertificateAuthorityData: in.CA},
		}})
		if err != nil {
			return Group{}, fmt.Errorf("write cluster-info: %w", err)
		}
	}
	all, err := builtin("bootstrap.yaml", map[string]any{"Kubeconfig": string(kubeconfig)})
	return Group{Name: GroupBootstrap, Namespace: metav1.NamespaceSystem, Objects: all}, err
}

// dnsIndex is the position of the DNS Service's address in each network of Services, from 0. The
// kubelets are configured with the same address.
const dnsIndex = 10

// dnsGroup returns the group dns with CoreDNS: one replica, or two if the cluster has several
// nodes. It returns an error if in.Images has no coredns, or a network of Services is too small.
func dnsGroup(in Input) (Group, error) {
	image := in.Images["coredns"]
	if image == "" {
		return Group{}, errors.New("the catalogue has no image coredns for this version of Kubernetes")
	}
	services, err := plan.ParseNetworks(in.Spec.Network.KubeServiceCIDR)
	if err != nil {
		return Group{}, fmt.Errorf("spec.provision.network.kubeServiceCIDR: %w", err)
	}
	var addresses []netip.Addr
	var families []corev1.IPFamily
	for _, p := range services {
		a := plan.Nth(p, dnsIndex)
		if !p.Contains(a) {
			return Group{}, fmt.Errorf("spec.provision.network.kubeServiceCIDR: %s has no place for the DNS Service, "+
				"whose address is the %dth: use a larger network", p, dnsIndex)
		}
		addresses = append(addresses, a)
		if a.Is4() {
			families = append(families, corev1.IPv4Protocol)
		} else {
			families = append(families, corev1.IPv6Protocol)
		}
	}
	all, err := builtin("dns.yaml", map[string]any{
		"Image": image, "Domain": in.Spec.Kubernetes.DNSDomain, "Replicas": min(max(in.Nodes, 1), 2),
		"Addresses": addresses, "Families": families,
	})
	return Group{Name: groupDNS, Namespace: metav1.NamespaceSystem, Objects: all}, err
}

// flannelName is the namespace of flannel.
const flannelName = "kube-flannel"

// flannelCNI is the CNI configuration for the container runtime.
const flannelCNI = `{"cniVersion":"0.3.1","name":"cbr0","plugins":[` +
	`{"delegate":{"hairpinMode":true,"isDefaultGateway":true},"type":"flannel"},` +
	`{"capabilities":{"portMappings":true},"type":"portmap"}]}`

// flannelGroup returns the group network with flannel. It returns an error if in.Images lacks an
// image of flannel.
func flannelGroup(in Input) (Group, error) {
	image, plugin := in.Images["flannel"], in.Images["flannel-cni-plugin"]
	if image == "" || plugin == "" {
		return Group{}, errors.New("the catalogue has no images flannel and flannel-cni-plugin for this version of Kubernetes")
	}
	network, err := flannelNetwork(in.Spec)
	if err != nil {
		return Group{}, err
	}
	var host, port string
	if in.APIServer != "" {
		if host, port, err = hostPort(in.APIServer); err != nil {
			return Group{}, err
		}
	}
	config := map[string]string{"cni-conf.json": flannelCNI, "net-conf.json": network}
	all, err := builtin("flannel.yaml", map[string]any{
		"Image": image, "PluginImage": plugin, "Config": config, "ConfigDigest": digestOf(config), "Host": host, "Port": port,
	})
	return Group{
		Name: GroupNetwork, Namespace: flannelName, Objects: all,
		ReadinessChecks: []ReadinessCheck{{Kind: "DaemonSet", Name: "kube-flannel-ds", Namespace: flannelName, Nodes: min(in.Nodes, 1)}},
	}, err
}

// flannelNetwork returns flannel's network configuration, as JSON.
func flannelNetwork(spec *clusterv1alpha1.Provision) (string, error) {
	prefixes, err := plan.ParseNetworks(spec.Network.KubePodsCIDR)
	if err != nil {
		return "", fmt.Errorf("spec.provision.network.kubePodsCIDR: %w", err)
	}
	v4, v6 := byFamily(prefixes)
	backend := map[string]any{"Type": spec.Network.Flannel.BackendMode}
	if spec.Network.Flannel.DirectRouting {
		backend["DirectRouting"] = true
	}
	conf := map[string]any{
		"EnableIPv4":     v4.IsValid(),
		"EnableIPv6":     v6.IsValid(),
		"EnableNFTables": spec.Kubernetes.ProxyMode == "nftables",
		"Backend":        backend,
	}
	if v4.IsValid() {
		conf["Network"] = v4.String()
	}
	if v6.IsValid() {
		conf["IPv6Network"] = v6.String()
	}
	content, err := json.Marshal(conf)
	if err != nil {
		return "", fmt.Errorf("marshal flannel's configuration: %w", err)
	}
	return string(content), nil
}

// byFamily returns the IPv4 and the IPv6 network among prefixes. A network that prefixes lack is
// the zero Prefix, which is not valid.
func byFamily(prefixes []netip.Prefix) (v4, v6 netip.Prefix) {
	for _, p := range prefixes {
		if p.Addr().Is4() {
			v4 = p
		} else {
			v6 = p
		}
	}
	return v4, v6
}
