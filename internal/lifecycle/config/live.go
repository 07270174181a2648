package config

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

// FromCluster returns a configuration file for a new cluster like the running one to which cfg
// connects. Any tool may have built the running cluster. FromCluster reads its API and changes
// nothing. Notes at the head of the file list what the API does not show and what the user may not
// read. They also list what the user must fill in, such as logins of hosts. name is that of the new
// cluster. Without the right to list nodes, FromCluster returns an error.
func FromCluster(ctx context.Context, cfg *rest.Config, name string) ([]byte, error) {
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("make a client of the cluster: %w", err)
	}
	version, err := client.Discovery().ServerVersion()
	if err != nil {
		return nil, fmt.Errorf("read the cluster's version: %w", err)
	}
	s := newSheet(name, release(version.GitVersion))
	s.Live = true
	s.Origin = "It describes a cluster that runs, so that another can be built like it."
	s.notef("How to log in to the hosts is not known: fill in user, and password or privateKeyPath.")
	l := &live{Interface: client, sheet: s}
	for _, step := range []func(context.Context) error{l.nodes, l.kubeadm, l.proxy, l.plugin, l.endpoint, l.services, l.domain} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	if l.podsKnown = l.podsKnown || l.podsFromNodes(); !l.podsKnown {
		s.notef("The pods' network is not known: network.kubePodsCIDR is the default.")
	}
	return s.render()
}

// live reads the settings of a running cluster into a sheet, which has the values of the new file.
// A setting that cannot be read keeps its default. podsKnown, servicesKnown and dnsKnown are true
// if the networks of pods and Services and the DNS domain were read. list has the Nodes, sorted by
// name. isKubeadm is true if kubeadm's ConfigMap was read.
type live struct {
	kubernetes.Interface
	*sheet

	list                               []corev1.Node
	isKubeadm                          bool
	podsKnown, servicesKnown, dnsKnown bool
}

// notef adds a note for the user, which is written at the head of the file.
func (s *sheet) notef(format string, args ...any) {
	s.Notes = append(s.Notes, fmt.Sprintf(format, args...))
}

// release returns a Kubernetes version such as v1.36.3 without the suffix of a distribution (+k3s1)
// or of a pre-release (-rc.1).
func release(version string) string {
	version, _, _ = strings.Cut(version, "+")
	version, _, _ = strings.Cut(version, "-")
	return version
}

// optional filters the error of reading an optional object from the running cluster. It returns nil
// for nil, NotFound and Forbidden, because the setting then only stays unknown. It wraps any other
// error. what names the object in the message.
func optional(err error, what string) error {
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return nil
	}
	return fmt.Errorf("read %s: %w", what, err)
}

const (
	labelControlPlane = "node-role.kubernetes.io/control-plane"
	labelMaster       = "node-role.kubernetes.io/master"
)

// nodes reads the Nodes of the running cluster into l.list. From them it sets the hosts of the
// sheet, their roles and the maximum number of pods.
func (l *live) nodes(ctx context.Context) error {
	nodes, err := l.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list the cluster's nodes: %w", err)
	}
	l.list = nodes.Items
	slices.SortFunc(l.list, func(a, b corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
	for _, n := range l.list {
		host := sheetHost{Name: n.Name, Arch: n.Status.NodeInfo.Architecture, Labels: ownLabels(n.Labels)}
		if ips := internalIPs(n); len(ips) > 0 {
			host.Address = ips[0]
			if len(ips) > 1 {
				host.Internal = strings.Join(ips[:2], ",")
			}
		} else {
			host.Address = n.Name
			l.notef("Node %s tells no internal address: fill in its address.", n.Name)
		}
		l.Hosts = append(l.Hosts, host)
		_, plane := n.Labels[labelControlPlane]
		_, master := n.Labels[labelMaster]
		if plane || master {
			l.ControlPlanes = append(l.ControlPlanes, n.Name)
		}
		if !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == labelControlPlane || t.Key == labelMaster }) {
			l.Workers = append(l.Workers, n.Name)
		}
		if pods := n.Status.Capacity.Pods().Value(); pods > 0 && pods <= 1000 {
			l.MaxPods = int32(pods)
		}
	}
	if len(l.ControlPlanes) == 0 {
		l.notef("No node is labelled %s: fill in roleGroups.control-plane.", labelControlPlane)
	}
	return nil
}

// internalIPs returns the internal IP addresses in the status of a Node.
func internalIPs(n corev1.Node) []string {
	var ips []string
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			ips = append(ips, a.Address)
		}
	}
	return ips
}

// ownLabels returns, as a JSON object, those of a Node's labels that users have set. These are the
// labels outside the domains kubernetes.io and k8s.io and their subdomains. It returns "" if there
// are none.
func ownLabels(labels map[string]string) string {
	own := maps.Clone(labels)
	maps.DeleteFunc(own, func(key, _ string) bool {
		domain, _, ok := strings.Cut(key, "/")
		return ok && (domain == "kubernetes.io" || domain == "k8s.io" || strings.HasSuffix(domain, ".kubernetes.io") || strings.HasSuffix(domain, ".k8s.io"))
	})
	content, err := json.Marshal(own)
	if err != nil || len(own) == 0 { // strings are always marshalled
		return ""
	}
	return string(content)
}

// configMap returns the data of a ConfigMap in namespace kube-system. It returns nil without an
// error if the ConfigMap is missing or may not be read.
func (l *live) configMap(ctx context.Context, name string) (map[string]string, error) {
	found, err := l.CoreV1().ConfigMaps("kube-system").Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, optional(err, "ConfigMap kube-system/"+name)
	}
	return found.Data, nil
}

// kubeadm reads kubeadm's ConfigMap, which has most of the settings, into the sheet. If the
// ConfigMap is missing or may not be read, that is no error. If it is invalid, it is left out with
// a note.
func (l *live) kubeadm(ctx context.Context) error {
	data, err := l.configMap(ctx, "kubeadm-config")
	if err != nil || data == nil {
		return err
	}
	var conf struct {
		ControlPlaneEndpoint string `json:"controlPlaneEndpoint"`
		Networking           struct {
			DNSDomain     string `json:"dnsDomain"`
			PodSubnet     string `json:"podSubnet"`
			ServiceSubnet string `json:"serviceSubnet"`
		} `json:"networking"`
		Etcd struct {
			External *struct {
				Endpoints []string `json:"endpoints"`
			} `json:"external"`
		} `json:"etcd"`
	}
	if err := yaml.Unmarshal([]byte(data["ClusterConfiguration"]), &conf); err != nil {
		l.notef("ConfigMap kube-system/kubeadm-config is not understood, and was left out.")
		return nil //nolint:nilerr // the note in the file reports it
	}
	l.isKubeadm = true
	if n := conf.Networking; n.DNSDomain != "" {
		l.DNSDomain, l.dnsKnown = n.DNSDomain, true
	}
	if n := conf.Networking; n.PodSubnet != "" {
		l.Pods, l.podsKnown = n.PodSubnet, true
	}
	if n := conf.Networking; n.ServiceSubnet != "" {
		l.Services, l.servicesKnown = n.ServiceSubnet, true
	}
	l.reachedAt(conf.ControlPlaneEndpoint)
	if conf.Etcd.External != nil {
		l.etcdAt(conf.Etcd.External.Endpoints)
	}
	return nil
}

// nodeAt returns the name of the Node that has an internal IP address. It returns false if no Node
// has it.
func (l *live) nodeAt(address string) (string, bool) {
	for _, n := range l.list {
		if slices.Contains(internalIPs(n), address) {
			return n.Name, true
		}
	}
	return "", false
}

// reachedAt sets where clients reach the new control plane: the port, and the IP address or the
// domain. endpoint is kubeadm's controlPlaneEndpoint, as host:port or only a host, and may be "".
// The address of a Node is not used, because the new cluster has other nodes.
func (l *live) reachedAt(endpoint string) {
	host, port, err := net.SplitHostPort(endpoint)
	if err != nil {
		host = endpoint
	}
	if n, err := strconv.ParseUint(port, 10, 16); err == nil {
		l.Port = int32(n)
	}
	_, isNode := l.nodeAt(host)
	switch _, err := netip.ParseAddr(host); {
	case host == "" || isNode:
	case err == nil:
		l.Address = host
		l.notef("The API servers are reached at %s: if no load balancer of yours is there, remove controlPlaneEndpoint.address.", host)
	default:
		l.Domain = host
	}
}

// etcdAt sets how the new cluster gets its etcd, from the endpoints of an etcd that kubeadm did not
// create. If every endpoint is the address of a Node, as with KubeKey, these nodes become the
// members of etcd. Otherwise etcd is external, with a note.
func (l *live) etcdAt(endpoints []string) {
	var members []string
	for _, e := range endpoints {
		u, err := url.Parse(e)
		if err != nil {
			continue
		}
		if node, ok := l.nodeAt(u.Hostname()); ok {
			members = append(members, node)
		}
	}
	if len(members) == len(endpoints) {
		l.Etcd = members
		return
	}
	l.ExternalEtcd = endpoints
	l.notef("etcd is external: fill in etcd.external.caFile, certFile and keyFile.")
}

// proxy reads the mode of kube-proxy from its ConfigMap, and the networks of pods if they are not
// known yet. If the ConfigMap is missing in a cluster that kubeadm built, there is no kube-proxy.
// If it is missing in any other cluster, the default stays.
func (l *live) proxy(ctx context.Context) error {
	data, err := l.configMap(ctx, "kube-proxy")
	if err != nil {
		return err
	}
	if data == nil {
		l.NoProxy = l.isKubeadm
		return nil
	}
	var conf struct {
		Mode        string `json:"mode"`
		ClusterCIDR string `json:"clusterCIDR"`
	}
	if err := yaml.Unmarshal([]byte(data["config.conf"]), &conf); err != nil {
		l.notef("ConfigMap kube-system/kube-proxy is not understood, and was left out.")
		return nil //nolint:nilerr // the note in the file reports it
	}
	l.ProxyMode = cmp.Or(conf.Mode, "iptables")
	if conf.ClusterCIDR != "" && !l.podsKnown {
		l.Pods, l.podsKnown = conf.ClusterCIDR, true
	}
	return nil
}

// plugins maps the names of DaemonSets to the network plugins to which they belong. Canal is
// flannel with policies.
var plugins = map[string]string{
	"kube-flannel-ds": "flannel", "canal": "flannel", "calico-node": "calico", "cilium": "cilium", "kube-ovn-cni": "kubeovn",
}

// plugin finds the network plugin of the running cluster by the name of its DaemonSet. If it finds
// none, the default stays, with a note.
func (l *live) plugin(ctx context.Context) error {
	sets, err := l.AppsV1().DaemonSets("").List(ctx, metav1.ListOptions{})
	if err := optional(err, "the DaemonSets"); err != nil {
		return err
	}
	for _, set := range sets.Items {
		if plugin, ok := plugins[set.Name]; ok {
			l.Plugin = plugin
			return nil
		}
	}
	l.notef("The network plugin is not known: network.plugin is the default.")
	return nil
}

// endpoint reads the port of the API servers from the EndpointSlice of the Service kubernetes. It
// leaves the port if reachedAt has found an address or a domain.
func (l *live) endpoint(ctx context.Context) error {
	slice, err := l.DiscoveryV1().EndpointSlices("default").Get(ctx, "kubernetes", metav1.GetOptions{})
	if err := optional(err, "EndpointSlice default/kubernetes"); err != nil {
		return err
	}
	for _, p := range slice.Ports {
		if p.Port != nil && l.Address == "" && l.Domain == "" {
			l.Port = *p.Port
		}
	}
	return nil
}

// services reads the networks of Services from the ServiceCIDR, a type that Kubernetes serves since
// 1.33, unless they are known already. If there is no ServiceCIDR, the default stays, with a note.
func (l *live) services(ctx context.Context) error {
	if l.servicesKnown {
		return nil
	}
	found, err := l.NetworkingV1().ServiceCIDRs().Get(ctx, "kubernetes", metav1.GetOptions{})
	if err := optional(err, "ServiceCIDR kubernetes"); err != nil {
		return err
	}
	if len(found.Spec.CIDRs) > 0 {
		l.Services = strings.Join(found.Spec.CIDRs, ",")
		return nil
	}
	service, err := l.CoreV1().Services("default").Get(ctx, "kubernetes", metav1.GetOptions{})
	if err := optional(err, "Service default/kubernetes"); err != nil {
		return err
	}
	l.notef("The Services' network has %s; its size is not known: network.kubeServiceCIDR is the default.",
		cmp.Or(service.Spec.ClusterIP, "an address that is not shown"))
	return nil
}

// zone matches the line in CoreDNS's configuration that names the DNS domain of Services.
var zone = regexp.MustCompile(`(?m)^\s*kubernetes\s+([a-zA-Z0-9.-]+)`)

// domain reads the DNS domain of Services from CoreDNS's ConfigMap, unless it is known already. If
// it cannot be found, the default stays, with a note.
func (l *live) domain(ctx context.Context) error {
	if l.dnsKnown {
		return nil
	}
	data, err := l.configMap(ctx, "coredns")
	if err != nil {
		return err
	}
	if match := zone.FindStringSubmatch(data["Corefile"]); match != nil {
		l.DNSDomain = strings.TrimSuffix(match[1], ".")
		return nil
	}
	l.notef("The DNS domain is not known: kubernetes.dnsDomain is the default.")
	return nil
}

// podsFromNodes guesses the networks of pods, when no setting shows them. For each IP family it
// takes the smallest network that contains the first address of each Node's pod network. A note
// asks the user to check the result. It returns false if no Node has a pod network.
func (l *live) podsFromNodes() bool {
	var networks []netip.Prefix
	for _, n := range l.list {
		for _, cidr := range n.Spec.PodCIDRs {
			part, err := netip.ParsePrefix(cidr)
			if err != nil {
				continue
			}
			if part.Addr().Is4() {
				l.MaskSize = int32(part.Bits()) //nolint:gosec // at most 32
			}
			i := slices.IndexFunc(networks, func(p netip.Prefix) bool { return p.Addr().Is4() == part.Addr().Is4() })
			if i < 0 {
				networks = append(networks, part)
				continue
			}
			for !networks[i].Contains(part.Addr()) {
				networks[i] = netip.PrefixFrom(networks[i].Addr(), networks[i].Bits()-1).Masked()
			}
		}
	}
	if len(networks) == 0 {
		return false
	}
	texts := make([]string, len(networks))
	for i, n := range networks {
		texts[i] = n.String()
	}
	l.Pods = strings.Join(texts, ",")
	l.notef("The pods' network has the parts of all nodes, but may be larger: check network.kubePodsCIDR.")
	return true
}
