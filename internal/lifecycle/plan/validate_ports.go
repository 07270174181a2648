package plan

import (
	"cmp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// validatePorts adds an error if two processes of a host would listen on the same port. sshd counts
// if SSH reaches the host without a bastion, at its internal address.
func (v *validator) validatePorts(root *field.Path) {
	said := map[[2]port]bool{} // report a pair of ports once, not for every host
	for i := range v.spec.Hosts {
		h := &v.spec.Hosts[i]
		var roles []clusterv1alpha1.Role
		for role, names := range v.roles {
			if slices.Contains(names, h.Name) {
				roles = append(roles, role)
			}
		}
		used := map[int32]port{}
		// h.Port is sshd's own port only without a bastion or port forwarding.
		if h.Bastion == nil && h.Address == h.InternalAddress {
			used[h.Port] = port{number: h.Port, process: "sshd"}
		}
		for _, p := range portsOf(v.spec, roles) {
			other, taken := used[p.number]
			used[p.number] = p
			if !taken || said[[2]port{p, other}] {
				continue
			}
			said[[2]port{p, other}] = true
			at := root.Child("hosts").Index(i).Child("port")
			if f := cmp.Or(p.field, other.field); f != "" {
				parent, child, _ := strings.Cut(f, ".")
				at = root.Child(parent, child)
			}
			v.invalidf(at, p.number, "is the port of %s and of %s on host %s: use another", other.process, p.process, h.Name)
		}
	}
}
