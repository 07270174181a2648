package plan

import (
	"net"
	"slices"
	"strconv"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// Path is a TCP connection that components of a cluster make from one host to another.
type Path struct {
	From, To string
	Port     int
}

// Paths returns the connections between the hosts of the plan.
func (p *Plan) Paths(spec *clusterv1alpha1.Provision) []Path {
	var paths []Path
	for _, from := range p.Hosts {
		plane := slices.Contains(from.Roles, clusterv1alpha1.RoleControlPlane)
		member := slices.Contains(from.Roles, clusterv1alpha1.RoleEtcd)
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
			if slices.Contains(to.Roles, clusterv1alpha1.RoleControlPlane) {
				add(spec.ControlPlaneEndpoint.Port)
			}
			if plane && (slices.Contains(to.Roles, clusterv1alpha1.RoleControlPlane) || slices.Contains(to.Roles, clusterv1alpha1.RoleWorker)) {
				add(portKubelet)
			}
		}
	}
	return paths
}

// AddressOf returns host:port for a host of the plan, or an empty string.
func (p *Plan) AddressOf(host string, port int) string {
	for _, h := range p.Hosts {
		if h.Name == host {
			return net.JoinHostPort(h.Address, strconv.Itoa(port))
		}
	}
	return ""
}
