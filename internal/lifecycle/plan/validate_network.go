package plan

import (
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	// maxNodeNetworks is the maximum number of bits by which a node's network is smaller than the
	// pods' network. The controller manager keeps a bitmap of all node networks.
	maxNodeNetworks = 16
	// maxServiceBits is the maximum number of host bits in a network of Services. The API server keeps
	// a bitmap of all addresses.
	maxServiceBits = 20
	// minServiceBits is the minimum number of host bits in a network of Services. The tenth address,
	// which is the DNS server's, must be in it.
	minServiceBits = 4
	// reservedAddresses is how many addresses of a node's network pods cannot have: the network,
	// bridge and broadcast addresses.
	reservedAddresses = 3
)

// network is one network in a field of the spec, with the path and the whole text of that field.
type network struct {
	path   *field.Path
	text   string
	prefix netip.Prefix
}

func (v *validator) validateNetwork(root *field.Path) {
	p, n := root.Child("network"), v.spec.Network
	v.oneOf(p.Child("plugin"), n.Plugin, "flannel", "calico", "cilium", "kubeovn", "none")
	v.oneOf(p.Child("flannel", "backendMode"), n.Flannel.BackendMode, "vxlan", "host-gw")
	pods := v.networks(p.Child("kubePodsCIDR"), n.KubePodsCIDR)
	services := v.networks(p.Child("kubeServiceCIDR"), n.KubeServiceCIDR)
	for _, s := range services {
		if free := s.prefix.Addr().BitLen() - s.prefix.Bits(); free < minServiceBits {
			v.invalidf(s.path, s.text, "%s is too small for Services: use /%d or larger", s.prefix, s.prefix.Addr().BitLen()-minServiceBits)
		} else if free > maxServiceBits {
			v.invalidf(s.path, s.text, "%s is too large for Services: use /%d or smaller", s.prefix, s.prefix.Addr().BitLen()-maxServiceBits)
		}
	}
	for _, pod := range pods {
		v.validateNodeNetworks(root.Child("kubernetes"), pod)
		for _, s := range services {
			if pod.prefix.Overlaps(s.prefix) {
				v.invalidf(s.path, s.text, "%s overlaps %s of kubePodsCIDR: set one of them to a network of its own", s.prefix, pod.prefix)
			}
		}
	}
	if len(pods) > 0 && len(services) > 0 && !slices.Equal(families(pods), families(services)) {
		v.invalidf(p.Child("kubeServiceCIDR"), n.KubeServiceCIDR, "must have the same IP families, in the same order, as kubePodsCIDR %s", n.KubePodsCIDR)
	}
	v.validateAddresses(root, slices.Concat(pods, services), services)
}

// families returns, for each of the networks, whether it is IPv4.
func families(networks []network) []bool {
	var four []bool
	for _, n := range networks {
		four = append(four, n.prefix.Addr().Is4())
	}
	return four
}

// networks parses the networks in a field and checks each. It returns the valid ones, and adds
// errors for the others. It returns nil if the field cannot be parsed, or has two networks of the
// same IP family.
func (v *validator) networks(p *field.Path, text string) []network {
	prefixes, err := ParseNetworks(text)
	if err != nil {
		v.invalidf(p, text, "must be a network such as 10.233.0.0/18, or an IPv4 and an IPv6 network with a comma between")
		return nil
	}
	if len(prefixes) == 2 && prefixes[0].Addr().Is4() == prefixes[1].Addr().Is4() {
		v.invalidf(p, text, "of two networks one must be IPv4 and the other IPv6")
		return nil
	}
	networks := make([]network, 0, len(prefixes))
	for _, prefix := range prefixes {
		a := prefix.Addr()
		switch {
		case prefix != prefix.Masked():
			v.invalidf(p, text, "%s has bits set beyond its mask: use %s", prefix, prefix.Masked())
		case a.Is4In6() || !a.IsGlobalUnicast() || prefix.Bits() == 0:
			v.invalidf(p, text, "%s is not a network of ordinary addresses", prefix)
		default:
			networks = append(networks, network{path: p, text: text, prefix: prefix})
		}
	}
	return networks
}

// validateNodeNetworks checks that one of the pods' networks is large enough. It must have a part
// for each node, and that part an address for each pod of the node. p is the path of
// spec.kubernetes.
func (v *validator) validateNodeNetworks(p *field.Path, pods network) {
	k := v.spec.Kubernetes
	at, size := p.Child("nodeCidrMaskSize"), int(k.NodeCidrMaskSize)
	if !pods.prefix.Addr().Is4() {
		at, size = p.Child("nodeCidrMaskSizeIPv6"), int(k.NodeCidrMaskSizeIPv6)
	}
	bits := pods.prefix.Addr().BitLen()
	free := bits - size
	parts := size - pods.prefix.Bits()
	switch {
	case size < 1 || free < 1:
		v.invalidf(at, size, "must be from 1 to %d", bits-1)
	case parts < 0:
		v.invalidf(at, size, "is larger than the pods' network %s: use a number above %d", pods.prefix, pods.prefix.Bits())
	case parts > maxNodeNetworks:
		v.invalidf(at, size, "must be at most %d for the pods' network %s", pods.prefix.Bits()+maxNodeNetworks, pods.prefix)
	case 1<<parts < len(v.nodes()):
		v.invalidf(at, size, "the pods' network %s has room for %d nodes and there are %d: use a larger network or a larger number", pods.prefix, 1<<parts, len(v.nodes()))
	case free < 31 && int64(1)<<free-reservedAddresses < int64(k.MaxPods):
		v.invalidf(at, size, "leaves a node %d addresses for pods, and maxPods is %d: use a smaller number or fewer pods",
			max(0, int64(1)<<free-reservedAddresses), k.MaxPods)
	}
}

// nodes returns the names of the hosts that are nodes, each once. Each of them gets a part of the
// pods' network.
func (v *validator) nodes() []string {
	return unique(slices.Concat(v.roles["control-plane"], v.roles["worker"]))
}

// validateAddresses checks that no address of a host or of the control plane is in one of the
// networks of pods and Services (all). It also checks that each host has an address of each IP
// family of services, the networks of Services.
func (v *validator) validateAddresses(root *field.Path, all, services []network) {
	inNetwork := func(p *field.Path, text string, a netip.Addr) {
		for _, n := range all {
			if n.prefix.Contains(a) {
				v.invalidf(p, text, "%s is in %s of %s: use another network there", a, n.prefix, n.path)
			}
		}
	}
	for i, h := range v.spec.Hosts {
		p := root.Child("hosts").Index(i).Child("internalAddress")
		addresses, err := parseAddresses(h.InternalAddress)
		if err != nil {
			continue
		}
		for _, a := range addresses {
			inNetwork(p, h.InternalAddress, a)
		}
		for _, s := range services {
			four := s.prefix.Addr().Is4()
			if !slices.ContainsFunc(addresses, func(a netip.Addr) bool { return a.Is4() == four }) {
				v.invalidf(p, h.InternalAddress, "has no %s address, and kubeServiceCIDR has %s", familyName(four), s.prefix)
			}
		}
	}
	if a, err := netip.ParseAddr(v.spec.ControlPlaneEndpoint.Address); err == nil {
		inNetwork(root.Child("controlPlaneEndpoint", "address"), a.String(), a)
	}
}

// familyName returns "IPv4" for true and "IPv6" for false.
func familyName(four bool) string { return fmt.Sprintf("IPv%d", map[bool]int{true: 4, false: 6}[four]) }
