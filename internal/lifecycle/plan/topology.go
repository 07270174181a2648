package plan

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// topology is a spec in the form in which the plan uses it, with expanded roles and parsed
// addresses. resolve makes it.
type topology struct {
	name     string
	spec     *clusterv1alpha1.Provision
	roles    map[clusterv1alpha1.Role][]string
	services []netip.Prefix
	pods     []netip.Prefix
	members  map[string]member
}

// member is a host of the cluster, with its roles and parsed addresses.
type member struct {
	clusterv1alpha1.Host

	roles []clusterv1alpha1.Role
	// ips are the internal addresses in the IP families of the cluster, the primary one first.
	ips []netip.Addr
}

// resolve returns the topology of a spec with defaults. The topology refers to the spec. resolve
// returns an error for names and addresses that cannot be resolved, and for a spec without a
// control plane. It also returns one for a host without an address of the IP family of Services.
// Validate makes all other checks. name is that of the cluster.
func resolve(name string, spec *clusterv1alpha1.Provision) (*topology, error) {
	t := &topology{name: name, spec: spec, members: make(map[string]member, len(spec.Hosts))}
	var err error
	if t.roles, err = Expand(spec.RoleGroups); err != nil {
		return nil, err
	}
	if t.services, err = ParseNetworks(spec.Network.KubeServiceCIDR); err != nil {
		return nil, fmt.Errorf("parse network.kubeServiceCIDR: %w", err)
	}
	if t.pods, err = ParseNetworks(spec.Network.KubePodsCIDR); err != nil {
		return nil, fmt.Errorf("parse network.kubePodsCIDR: %w", err)
	}
	for _, h := range spec.Hosts {
		addresses, err := parseAddresses(h.InternalAddress)
		if err != nil {
			return nil, fmt.Errorf("parse the internal address of host %s: %w", h.Name, err)
		}
		m := member{Host: h}
		for _, service := range t.services {
			for _, a := range addresses {
				if a.Is4() == service.Addr().Is4() {
					m.ips = append(m.ips, a)
				}
			}
		}
		if len(m.ips) == 0 {
			return nil, fmt.Errorf("host %s has no address of the family of network.kubeServiceCIDR %s", h.Name, spec.Network.KubeServiceCIDR)
		}
		for _, role := range []clusterv1alpha1.Role{clusterv1alpha1.RoleEtcd, clusterv1alpha1.RoleControlPlane, clusterv1alpha1.RoleWorker} {
			if slices.Contains(t.roles[role], h.Name) {
				m.roles = append(m.roles, role)
			}
		}
		t.members[h.Name] = m
	}
	for role, names := range t.roles {
		for _, n := range names {
			if _, ok := t.members[n]; !ok {
				return nil, fmt.Errorf("host %s of role %s is not in hosts", n, role)
			}
		}
	}
	if len(t.roles[clusterv1alpha1.RoleControlPlane]) == 0 {
		return nil, fmt.Errorf("cluster %s has no control plane", name)
	}
	return t, nil
}

// with returns the hosts with a role, in the order of the spec's hosts.
func (t *topology) with(role clusterv1alpha1.Role) []member {
	var members []member
	for _, h := range t.spec.Hosts {
		if m := t.members[h.Name]; m.has(role) {
			members = append(members, m)
		}
	}
	return members
}

func (m member) has(role clusterv1alpha1.Role) bool { return slices.Contains(m.roles, role) }

// isNode reports whether the host runs a kubelet and so has a Node. A host that only runs etcd does
// not.
func (m member) isNode() bool {
	return m.has(clusterv1alpha1.RoleControlPlane) || m.has(clusterv1alpha1.RoleWorker)
}

// dedicated reports whether the host is a control plane and not a worker, so that its Node is
// tainted.
func (m member) dedicated() bool {
	return m.has(clusterv1alpha1.RoleControlPlane) && !m.has(clusterv1alpha1.RoleWorker)
}

// ip returns the primary internal address.
func (m member) ip() string { return m.ips[0].String() }

// ipList returns the internal addresses, separated by commas.
func (m member) ipList() string { return Join(m.ips) }

// managed reports whether etcd runs on hosts of the cluster. It is false for an external etcd.
func (t *topology) managed() bool { return t.spec.Etcd.Type != EtcdExternal }

// external returns the URL of the API server for clients outside the cluster. It has the address of
// the control plane in the spec, or else its domain. Without both, it has the address of the first
// control plane host, or that host's internal address if SSH reaches it through a bastion.
func (t *topology) external() string {
	e := t.spec.ControlPlaneEndpoint
	first := t.with(clusterv1alpha1.RoleControlPlane)[0]
	host := first.Address
	switch {
	case e.Address != "":
		host = e.Address
	case e.Domain != "":
		host = e.Domain
	case first.Bastion != nil:
		host = first.ip()
	}
	return httpsURL(host, e.Port)
}

// internal returns the URL of the API server for the kubelet and kube-proxy: the control plane
// address in the spec, or else the load balancer on their host.
func (t *topology) internal() string {
	if e := t.spec.ControlPlaneEndpoint; e.Address != "" {
		return httpsURL(e.Address, e.Port)
	}
	return "https://" + LoadBalancer
}

// local returns the URL at which programs on a control plane host reach the API server of the same
// host.
func (t *topology) local() string { return httpsURL("127.0.0.1", t.spec.ControlPlaneEndpoint.Port) }

// apiServers returns the internal host:port of each API server, in the order of the spec's hosts.
func (t *topology) apiServers() []string {
	var servers []string
	for _, m := range t.with(clusterv1alpha1.RoleControlPlane) {
		servers = append(servers, address(m.ip(), t.spec.ControlPlaneEndpoint.Port))
	}
	return servers
}

// Nth returns the address n after the network address: n = 1 is the first address of a host. It
// does not check that the address is still in the network.
func Nth(network netip.Prefix, n int) netip.Addr {
	a := network.Masked().Addr()
	for range n {
		a = a.Next()
	}
	return a
}

// dnsIP returns the address of the cluster's DNS server: the tenth address of the first network of
// Services.
func (t *topology) dnsIP() string { return Nth(t.services[0], 10).String() }

// EtcdPeers returns the URLs at which other etcd members reach the members on the named hosts, by
// host. Hosts that the spec does not have are left out. It returns nil for an invalid spec.
func EtcdPeers(spec *clusterv1alpha1.Provision, hosts []string) map[string]string {
	t, err := resolve("", spec)
	if err != nil {
		return nil
	}
	return t.etcdPeers(hosts)
}

// etcdPeers returns the URLs at which other etcd members reach the members on the named hosts, by
// host. Unknown hosts are left out.
func (t *topology) etcdPeers(hosts []string) map[string]string {
	peers := make(map[string]string, len(hosts))
	for _, name := range hosts {
		if m, ok := t.members[name]; ok {
			peers[name] = httpsURL(m.ip(), t.spec.Etcd.PeerPort)
		}
	}
	return peers
}

// address returns host:port, with brackets for IPv6.
func address(host string, port int32) string { return net.JoinHostPort(host, strconv.Itoa(int(port))) }

func httpsURL(host string, port int32) string { return "https://" + address(host, port) }

// Join formats addresses or networks as a list with commas.
func Join[T fmt.Stringer](items []T) string {
	texts := make([]string, len(items))
	for i, item := range items {
		texts[i] = item.String()
	}
	return strings.Join(texts, ",")
}

// parseAddresses parses one IP address, or two separated by a comma. It does not check their
// families. Empty text is an error.
func parseAddresses(text string) ([]netip.Addr, error) { return parseList(text, netip.ParseAddr) }

// ParseNetworks parses one network (CIDR), or two separated by a comma, with or without spaces. It
// does not check their IP families, or whether they overlap. Empty text is an error.
func ParseNetworks(text string) ([]netip.Prefix, error) { return parseList(text, netip.ParsePrefix) }

// parseList parses one item, or two separated by a comma, with the function parse.
func parseList[T any](text string, parse func(string) (T, error)) ([]T, error) {
	items := strings.Split(text, ",")
	if len(items) > 2 {
		return nil, fmt.Errorf("%q has more than two items", text)
	}
	var parsed []T
	for _, item := range items {
		p, err := parse(strings.TrimSpace(item))
		if err != nil {
			return nil, err
		}
		parsed = append(parsed, p)
	}
	return parsed, nil
}
