package mirror

import (
	"k8s.io/client-go/rest"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/member"
)

// fleet is the part of the registry of clusters that the mirror uses.
type fleet interface {
	names() []string
	source(name string) (source, bool)
	Subscribe(f func(member.Event))
	Refresh(cluster string)
	Rediscover(cluster string)
}

// source is the part of a cluster that the mirror uses.
type source interface {
	Cluster() *clusterv1alpha1.Cluster
	Config() *rest.Config
	Reachable() bool
	// ID returns the UID of the cluster that answers; "" while it is unreachable.
	ID() string
	// serves returns the cluster's API list, and whether it is complete for a group.
	serves() (apis []member.API, complete func(group string) bool)
}

// registry implements fleet with the registry of package member.
type registry struct{ *member.Registry }

func (r registry) names() []string {
	members := r.Members()
	names := make([]string, 0, len(members))
	for _, m := range members {
		names = append(names, m.Name())
	}
	return names
}

func (r registry) source(name string) (source, bool) {
	m, ok := r.Member(name)
	return joined{m}, ok
}

// joined implements source with a member.
type joined struct{ *member.Member }

func (j joined) serves() ([]member.API, func(string) bool) {
	apis := j.APIs()
	return apis.All(), apis.CompleteIn
}
