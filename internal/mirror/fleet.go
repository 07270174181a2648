package mirror

import (
	"k8s.io/client-go/rest"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/member"
)

// fleet is the part of the registry of member clusters that the mirror uses. source returns false
// for a name that is no member; its first result must not be used then. member.Registry describes
// the other methods.
type fleet interface {
	names() []string
	source(name string) (source, bool)
	Subscribe(f func(member.Event))
	Refresh(cluster string)
	Rediscover(cluster string)
}

// source is the part of a member.Member, one cluster of the fleet, that the mirror uses. The mirror
// also calls its methods while it holds the lock of its own data about the cluster (cluster.mu).
type source interface {
	Cluster() *clusterv1alpha1.Cluster
	Config() *rest.Config
	Reachable() bool
	// ID returns the UID of the namespace kube-system of the cluster; "" while the cluster is
	// unreachable.
	ID() string
	// serves returns the APIs that the cluster serves; none before its API list was read.
	// complete reports whether apis has all types of an API group. The caller must not change
	// apis.
	serves() (apis []member.API, complete func(group string) bool)
}

// registry implements the interface fleet with the member.Registry.
type registry struct{ *member.Registry }

// names returns the names of all members.
func (r registry) names() []string {
	members := r.Members()
	names := make([]string, 0, len(members))
	for _, m := range members {
		names = append(names, m.Name())
	}
	return names
}

// source returns the member with the name. If it returns false, there is none, and the first result
// must not be used.
func (r registry) source(name string) (source, bool) {
	m, ok := r.Member(name)
	return joined{m}, ok
}

// joined implements the interface source with a member.Member.
type joined struct{ *member.Member }

func (j joined) serves() ([]member.API, func(string) bool) {
	apis := j.APIs()
	return apis.All(), apis.CompleteIn
}
