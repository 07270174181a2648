package plan

import (
	"net"
	"slices"
	"strconv"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// Path is a TCP connection that a component on the host From makes to a Port of the host To.
type Path struct {
	From, To string
	Port     int
}

// Paths returns the connections that components make between different hosts of the plan, for a
// check before they are installed. spec is the spec of the plan. Connections to an external etcd or
// load balancer are left out.
func (p *Plan) Paths(spec *clusterv1alpha1.Provision) []Path {
	var paths []Path
	for _, from := range p.Hosts {
		plane := slices.Contains(from.Roles, clusterv1alpha1.RoleControlPlane)
		member := slices.Contains(from.Roles, clusterv1alpha1.RoleEtcd)
		isNode := plane || slices.Contains(from.Roles, clusterv1alpha1.RoleWorker)
		for _, to := range p.Hosts {
			if from.Name == to.Name {
				continue
			}
			add := func(port int32) { paths = append(paths, Path{From: from.Name, To: to.Name, Port: int(port)}) }
			if slices.Contains(to.Roles, clusterv1alpha1.RoleEtcd) && spec.Etcd.Type != EtcdExternal {
				if member {
					add(spec.Etcd.PeerPort)
				}
				if plane || member {
					add(spec.Etcd.Port)
				}
			}
			// A host that only runs etcd makes no connection to an API server.
			if isNode && slices.Contains(to.Roles, clusterv1alpha1.RoleControlPlane) {
				add(spec.ControlPlaneEndpoint.Port)
			}
			if plane && (slices.Contains(to.Roles, clusterv1alpha1.RoleControlPlane) || slices.Contains(to.Roles, clusterv1alpha1.RoleWorker)) {
				add(portKubelet)
			}
		}
	}
	return paths
}

// AddressOf returns host:port for the internal address of a host of the plan. It returns "" if the
// plan does not have the host.
func (p *Plan) AddressOf(host string, port int) string {
	for _, h := range p.Hosts {
		if h.Name == host {
			return net.JoinHostPort(h.Address, strconv.Itoa(port))
		}
	}
	return ""
}
