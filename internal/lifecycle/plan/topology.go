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

// topology is a valid spec with resolved names and addresses.
type topology struct {
	name     string
	spec     *clusterv1alpha1.Provision
	roles    map[clusterv1alpha1.Role][]string
	services []netip.Prefix
	pods     []netip.Prefix
	members  map[string]member
}

// member is a host of the cluster.
type member struct {
	clusterv1alpha1.Host

	roles []clusterv1alpha1.Role
	// ips are the internal addresses in the IP families of the cluster, the primary one first.
	ips []netip.Addr
}

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

// with returns the members with a role, in the order of the spec's hosts.
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

// isNode reports whether the host has a Node. Hosts that run only etcd have none.
func (m member) isNode() bool {
	return m.has(clusterv1alpha1.RoleControlPlane) || m.has(clusterv1alpha1.RoleWorker)
}

// dedicated reports whether the host is a control plane without workloads.
func (m member) dedicated() bool {
	return m.has(clusterv1alpha1.RoleControlPlane) && !m.has(clusterv1alpha1.RoleWorker)
}

// ip returns the primary internal address.
func (m member) ip() string { return m.ips[0].String() }

// ipList returns the internal addresses, separated by commas.
func (m member) ipList() string { return Join(m.ips) }

// managed reports whether etcd runs on hosts of the cluster.
func (t *topology) managed() bool { return t.spec.Etcd.Type != EtcdExternal }

// external returns the URL of the API server for clients outside the cluster.
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

// internal returns the URL of the API server for programs on the hosts.
func (t *topology) internal() string {
	if e := t.spec.ControlPlaneEndpoint; e.Address != "" {
		return httpsURL(e.Address, e.Port)
	}
	return "https://" + LoadBalancer
}

// local returns the URL of the API server on its own host.
func (t *topology) local() string { return httpsURL("127.0.0.1", t.spec.ControlPlaneEndpoint.Port) }

// apiServers returns host:port of each API server.
func (t *topology) apiServers() []string {
	var servers []string
	for _, m := range t.with(clusterv1alpha1.RoleControlPlane) {
		servers = append(servers, address(m.ip(), t.spec.ControlPlaneEndpoint.Port))
	}
	return servers
}

// Nth returns the address n after the first one of a network.
func Nth(network netip.Prefix, n int) netip.Addr {
	a := network.Masked().Addr()
	for range n {
		a = a.Next()
	}
	return a
}

// dnsIP returns the address of the cluster's DNS server: the tenth of the Services.
func (t *topology) dnsIP() string { return Nth(t.services[0], 10).String() }

// EtcdPeers returns the peer URLs, by host, for the hosts given. It is nil for an invalid spec.
func EtcdPeers(spec *clusterv1alpha1.Provision, hosts []string) map[string]string {
	t, err := resolve("", spec)
	if err != nil {
		return nil
	}
	return t.etcdPeers(hosts)
}

func (t *topology) etcdPeers(hosts []string) map[string]string {
	peers := make(map[string]string, len(hosts))
	for _, name := range hosts {
		if m, ok := t.members[name]; ok {
			peers[name] = httpsURL(m.ip(), t.spec.Etcd.PeerPort)
		}
	}
	return peers
}

func address(host string, port int32) string { return net.JoinHostPort(host, strconv.Itoa(int(port))) }

func httpsURL(host string, port int32) string { return "https://" + address(host, port) }

// Join joins addresses or networks with commas.
func Join[T fmt.Stringer](items []T) string {
	texts := make([]string, len(items))
	for i, item := range items {
		texts[i] = item.String()
	}
	return strings.Join(texts, ",")
}

// parseAddresses parses one address, or two separated by a comma.
func parseAddresses(text string) ([]netip.Addr, error) { return parseList(text, netip.ParseAddr) }

// ParseNetworks parses one network, or two separated by a comma.
func ParseNetworks(text string) ([]netip.Prefix, error) { return parseList(text, netip.ParsePrefix) }

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
