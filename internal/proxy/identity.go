package proxy

import (
	"fmt"
	"strings"

	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/transport"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
)

// Prefixes of names that Kubernetes or Orrery assigns.
const (
	systemPrefix = "system:"
	ourPrefix    = "orrery:"
)

// impersonation returns the identity with which a member sees a user of the hub. A person has the
// same name and groups in every cluster.
//
// A ServiceAccount of the hub is not that of the member, so it gets a name with the prefix
// fleetv1alpha1.ServiceAccountPrefix. The group system:masters becomes fleetv1alpha1.AdminsGroup,
// because administrators of the hub are not those of the member. Other groups with the prefixes
// system: and orrery: are left out, except for system:authenticated. Every other user whose name
// has one of these prefixes is an error.
func impersonation(u user.Info) (transport.ImpersonationConfig, error) {
	as := transport.ImpersonationConfig{UserName: u.GetName(), UID: u.GetUID(), Extra: u.GetExtra()}
	namespace, name, err := serviceaccount.SplitUsername(u.GetName())
	switch {
	case err == nil:
		as.UserName = fleetv1alpha1.ServiceAccountPrefix + namespace + ":" + name
	case strings.HasPrefix(u.GetName(), systemPrefix):
		return as, fmt.Errorf("user %q is Kubernetes' own on the hub and nobody in a member: come as a person, or as a ServiceAccount of the hub, "+
			"which members know as %sNAMESPACE:NAME", u.GetName(), fleetv1alpha1.ServiceAccountPrefix)
	case strings.HasPrefix(u.GetName(), ourPrefix):
		return as, fmt.Errorf("user %q has a name that only Orrery gives, in members: come under another", u.GetName())
	}
	for _, group := range u.GetGroups() {
		switch {
		case group == user.SystemPrivilegedGroup:
			as.Groups = append(as.Groups, fleetv1alpha1.AdminsGroup)
		case group != user.AllAuthenticated && strings.HasPrefix(group, systemPrefix), strings.HasPrefix(group, ourPrefix):
			// A group of the hub alone, which means nothing in the member, is left out.
		default:
			as.Groups = append(as.Groups, group)
		}
	}
	return as, nil
}
