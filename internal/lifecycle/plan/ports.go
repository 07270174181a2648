package plan

import (
	"slices"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// port is a TCP port that a component listens on. process is the name of the component's process.
type port struct {
	number  int32
	process string
	// field is the field of the spec that sets the port, or empty.
	field string
}

// portsOf returns the TCP ports that the components of a host with these roles listen on. spec has
// its defaults.
func portsOf(spec *clusterv1alpha1.Provision, roles []clusterv1alpha1.Role) []port {
	plane := slices.Contains(roles, clusterv1alpha1.RoleControlPlane)
	node := plane || slices.Contains(roles, clusterv1alpha1.RoleWorker)
	var ports []port
	if slices.Contains(roles, clusterv1alpha1.RoleEtcd) && spec.Etcd.Type != EtcdExternal {
		ports = append(
			ports,
			port{spec.Etcd.Port, "etcd", "etcd.port"},
			port{spec.Etcd.PeerPort, "etcd", "etcd.peerPort"},
			port{portEtcdMetrics, "etcd", ""},
		)
	}
	if plane {
		ports = append(
			ports,
			port{spec.ControlPlaneEndpoint.Port, "kube-apiserver", "controlPlaneEndpoint.port"},
			port{portControllerManager, "kube-controller-manager", ""},
			port{portScheduler, "kube-scheduler", ""},
		)
	}
	if node {
		ports = append(ports, port{portKubelet, "kubelet", ""}, port{portKubeletHealth, "kubelet", ""})
		if spec.ControlPlaneEndpoint.Address == "" {
			ports = append(ports, port{portLoadBalancer, "orrery", ""})
		}
		if !spec.Kubernetes.DisableKubeProxy {
			ports = append(ports, port{portProxyMetrics, "kube-proxy", ""}, port{portProxyHealth, "kube-proxy", ""})
		}
	}
	return ports
}
