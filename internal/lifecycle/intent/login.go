package intent

import (
	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// Login replaces the logins of hosts in Wanted, Applied, Begun and Leaving. It takes the login of a
// host from the host in from with the same name and address. It takes nothing else from there.
// Previous stays as it is.
func (s *Specs) Login(from []clusterv1alpha1.Host) {
	lists := [][]clusterv1alpha1.Host{s.Begun, s.Leaving}
	for _, spec := range []*clusterv1alpha1.Provision{s.Wanted, s.Applied} {
		if spec != nil {
			lists = append(lists, spec.Hosts)
		}
	}
	for _, hosts := range lists {
		for i := range hosts {
			hosts[i] = withLogin(hosts[i], from)
		}
	}
}

// withLogin returns the host h with the login of the host in hosts that has the same name and
// address. The login is everything except labels, architecture and internal address, for example
// the user, key and port. Without such a host, it returns h unchanged.
func withLogin(h clusterv1alpha1.Host, hosts []clusterv1alpha1.Host) clusterv1alpha1.Host {
	i := index(hosts, h.Name)
	if i < 0 || hosts[i].Address != h.Address {
		return h
	}
	login := hosts[i]
	login.Labels, login.Arch, login.InternalAddress = h.Labels, h.Arch, h.InternalAddress
	return login
}
