package mirror

import (
	"k8s.io/client-go/rest"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/member"
)

// fleet is what the mirror needs of the registry of clusters.
type fleet interface {
	names() []string
	source(name string) (source, bool)
	Subscribe(f func(member.Event))
	Refresh(cluster string)
	Rediscover(cluster string)
}

// source is what the mirror needs of a cluster.
type source interface {
	Cluster() *clusterv1alpha1.Cluster
	Config() *rest.Config
	Reachable() bool
	// ID is the UID of the cluster that answers; "" while it is not reachable.
	ID() string
	// serves is the cluster's API list, and whether it is complete for a group.
	serves() (apis []member.API, complete func(group string) bool)
}

// registry is the member package's registry as a fleet.
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

// joined is a member as a source.
type joined struct{ *member.Member }

func (j joined) serves() ([]member.API, func(string) bool) {
	apis := j.APIs()
	return apis.All(), apis.CompleteIn
}
