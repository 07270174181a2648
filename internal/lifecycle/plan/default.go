package plan

import (
	"net/netip"
	"slices"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// Default sets the defaults of a spec: it fills empty fields and keeps all others. A second call
// changes nothing. name is the name of the cluster and the default of kubernetes.clusterName. If
// role group etcd is empty, the control planes become that group, unless etcd is external.
func Default(name string, spec *clusterv1alpha1.Provision) {
	for i := range spec.Hosts {
		defaultHost(&spec.Hosts[i])
	}
	fill(&spec.ControlPlaneEndpoint.Port, 6443)
	fill(&spec.System.ConfigureOS, "Apply")
	fill(&spec.Network.Plugin, "flannel")
	fill(&spec.Network.KubePodsCIDR, "10.233.64.0/18")
	fill(&spec.Network.KubeServiceCIDR, "10.233.0.0/18")
	fill(&spec.Network.Flannel.BackendMode, "vxlan")
	fill(&spec.Join, clusterv1alpha1.Push)
	fill(&spec.DeletionPolicy, clusterv1alpha1.DeletionOrphan)
	for i := range spec.Addons {
		fill(&spec.Addons[i].Namespace, "kube-system")
	}
	defaultKubernetes(name, &spec.Kubernetes)
	defaultEtcd(spec)
}

// defaultHost sets the defaults of one host.
func defaultHost(h *clusterv1alpha1.Host) {
	fill(&h.Port, 22)
	fill(&h.User, "root")
	fill(&h.Timeout, 30)
	if _, err := netip.ParseAddr(h.Address); err == nil {
		fill(&h.InternalAddress, h.Address)
	}
	if h.Bastion != nil {
		fill(&h.Bastion.Port, 22)
		fill(&h.Bastion.User, h.User)
	}
}

// defaultKubernetes sets the defaults of spec.kubernetes. name is the name of the cluster.
func defaultKubernetes(name string, k *clusterv1alpha1.Kubernetes) {
	fill(&k.ClusterName, name)
	fill(&k.DNSDomain, "cluster.local")
	fill(&k.ProxyMode, modeNFTables)
	fill(&k.MaxPods, 110)
	fill(&k.NodeCidrMaskSize, 24)
	fill(&k.NodeCidrMaskSizeIPv6, 64)
}

// defaultEtcd sets the defaults of spec.etcd, and of role group etcd. For an external etcd it only
// sets the type.
func defaultEtcd(spec *clusterv1alpha1.Provision) {
	e := &spec.Etcd
	fill(&e.Type, EtcdManaged)
	if e.Type == EtcdExternal {
		return
	}
	fill(&e.Port, 2379)
	fill(&e.PeerPort, 2380)
	fill(&e.DataDir, "/var/lib/etcd")
	fill(&e.HeartbeatInterval, 250)
	fill(&e.ElectionTimeout, 5000)
	fill(&e.AutoCompactionRetention, 8)
	if planes := spec.RoleGroups[clusterv1alpha1.RoleControlPlane]; len(planes) > 0 && len(spec.RoleGroups[clusterv1alpha1.RoleEtcd]) == 0 {
		spec.RoleGroups[clusterv1alpha1.RoleEtcd] = slices.Clone(planes)
	}
}

// fill sets a field that has its zero value.
func fill[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
