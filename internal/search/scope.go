package search

import (
	"context"
	"slices"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// scope is what a caller may see: some namespaces, each in the clusters that it may use.
// Without a fence it is everything that was asked for.
type scope struct {
	fence      Fence
	namespaces []string
}

// authorize asks the hub whether the caller may see what they ask for, and returns how much of
// it: all, if they may see it in all namespaces at once.
func (s *Search) authorize(ctx context.Context, at location, p params) (scope, error) {
	what := authorizationv1.ResourceAttributes{
		Verb: "list", Group: at.Group, Version: at.Version, Resource: at.Resource, Namespace: at.namespace,
	}
	if at.name != "" {
		what.Verb, what.Name = "get", at.name
		if isNamespaces(at) {
			what.Namespace = at.name // as API servers do
		}
	}
	err := s.Authorize(ctx, what)
	namespaces := []string{what.Namespace}
	switch {
	case what.Namespace == "" && (err == nil || len(p.namespaces) == 0):
		return scope{}, err
	case what.Namespace == "":
		namespaces = p.namespaces
		for _, what.Namespace = range namespaces {
			if err := s.Authorize(ctx, what); err != nil {
				return scope{}, err
			}
		}
	case err != nil:
		return scope{}, err
	}
	fence, err := s.Fence()
	if err != nil {
		return scope{}, err
	}
	open := !slices.ContainsFunc(s.Clusters(), func(cluster string) bool {
		return slices.ContainsFunc(namespaces, func(namespace string) bool { return !fence.Allowed(namespace, cluster) })
	})
	if open {
		return scope{}, nil
	}
	what.Namespace = ""
	if err := s.Authorize(ctx, what); !apierrors.IsForbidden(err) {
		return scope{}, err
	}
	return scope{fence: fence, namespaces: namespaces}, nil
}

func isNamespaces(at location) bool { return at.Group == "" && at.Resource == "namespaces" }

// in returns the namespaces that the caller may see in a cluster.
func (s scope) in(cluster string) []string {
	return slices.DeleteFunc(slices.Clone(s.namespaces), func(namespace string) bool { return !s.fence.Allowed(namespace, cluster) })
}

func (s scope) closed(cluster string) bool { return len(s.in(cluster)) == 0 }

// check answers for a cluster in which the caller may see nothing as for one that there is not.
func (s scope) check(at location, p params) error {
	if s.fence == nil {
		return nil
	}
	if at.cluster != "" && s.closed(at.cluster) {
		return noCluster(at.cluster)
	}
	if i := slices.IndexFunc(p.clusters, s.closed); i >= 0 {
		return noClusters(p.clusters[i])
	}
	return nil
}

// narrow leaves of a type the clusters in which the caller may see something.
func (s scope) narrow(k *kind) {
	if s.fence == nil {
		return
	}
	k.partial = true
	k.clusters = slices.DeleteFunc(k.clusters, s.closed)
	for v := range k.others {
		k.others[v] = slices.DeleteFunc(k.others[v], s.closed)
	}
	for namespaced := range k.scopes {
		k.scopes[namespaced] = slices.DeleteFunc(k.scopes[namespaced], s.closed)
	}
}

// scopes are what the store looks for. The clusters are enough where namespaces themselves are
// asked for, which are in none.
func (s scope) scopes(at location, k kind) map[string][]string {
	if s.fence == nil || isNamespaces(at) {
		return nil
	}
	scopes := make(map[string][]string, len(k.clusters))
	for _, cluster := range k.clusters {
		scopes[cluster] = s.in(cluster)
	}
	return scopes
}
