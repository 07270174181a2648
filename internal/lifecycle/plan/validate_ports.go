package plan

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// Port is a TCP port that something of the cluster listens on.
type Port struct {
	Number int32
	// Of is what listens, such as the kubelet.
	Of string
	// Peers is true if other hosts must reach it.
	Peers bool
	// path is the field that sets it, empty if it is fixed.
	path *field.Path
}

// Ports are those of a host with some roles.
func Ports(spec *clusterv1alpha1.Provision, roles []clusterv1alpha1.Role) []Port {
	root := field.NewPath("spec", "provision")
	etcd := slices.Contains(roles, clusterv1alpha1.RoleEtcd) && spec.Etcd.Type != EtcdExternal
	plane := slices.Contains(roles, clusterv1alpha1.RoleControlPlane)
	node := plane || slices.Contains(roles, clusterv1alpha1.RoleWorker)
	var ports []Port
	if etcd {
		ports = append(ports,
			Port{Number: spec.Etcd.Port, Of: "etcd's clients", Peers: true, path: root.Child("etcd", "port")},
			Port{Number: spec.Etcd.PeerPort, Of: "etcd's members", Peers: true, path: root.Child("etcd", "peerPort")},
			Port{Number: portEtcdMetrics, Of: "etcd's metrics"})
	}
	if plane {
		ports = append(ports,
			Port{Number: spec.ControlPlaneEndpoint.Port, Of: "the API server", Peers: true, path: root.Child("controlPlaneEndpoint", "port")},
			Port{Number: portControllerManager, Of: "the controller manager"},
			Port{Number: portScheduler, Of: "the scheduler"})
	}
	if node {
		ports = append(ports,
			Port{Number: portKubelet, Of: "the kubelet", Peers: true},
			Port{Number: portKubeletHealth, Of: "the kubelet's health"})
		if spec.ControlPlaneEndpoint.Address == "" {
			ports = append(ports, Port{Number: portLoadBalancer, Of: "the load balancer of the host"})
		}
		if !spec.Kubernetes.DisableKubeProxy {
			ports = append(ports,
				Port{Number: portProxyMetrics, Of: "kube-proxy's metrics"},
				Port{Number: portProxyHealth, Of: "kube-proxy's health"})
		}
	}
	return ports
}

// validatePorts checks that no two things listen on one port of a host.
func (v *validator) validatePorts(root *field.Path) {
	said := map[string]bool{}
	for i := range v.spec.Hosts {
		h := &v.spec.Hosts[i]
		var roles []clusterv1alpha1.Role
		for role, names := range v.roles {
			if slices.Contains(names, h.Name) {
				roles = append(roles, role)
			}
		}
		// A bastion or a forwarded port says nothing of where sshd listens.
		used := map[int32]string{}
		if h.Bastion == nil && h.Address == h.InternalAddress {
			used[h.Port] = fmt.Sprintf("sshd of host %s", h.Name)
		}
		for _, port := range Ports(v.spec, roles) {
			other, collides := used[port.Number]
			used[port.Number] = port.Of
			if !collides || said[port.Of+other] {
				continue
			}
			said[port.Of+other] = true
			p := port.path
			for _, q := range Ports(v.spec, roles) { // the field that can be changed
				if p == nil && q.Of == other {
					p = q.path
				}
			}
			if p == nil {
				p = root.Child("hosts").Index(i).Child("port")
			}
			v.invalid(p, port.Number, "is the port of %s and of %s: use another", other, port.Of)
		}
	}
}
