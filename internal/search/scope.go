package search

import (
	"context"
	"fmt"
	"slices"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// scope is what a caller may see: some namespaces, each in the clusters that it may use. Without
// a fence it is everything that the request asks for.
type scope struct {
	fence      Fence
	namespaces []string
	// young are namespaces that the hub did not have at the requested moment; namespaces does
	// not contain them.
	young []string
	// refused is the error that the caller may not see all namespaces, if the request asked for
	// all.
	refused error
	tag     int64 // tag of these rights, in the versions that the caller gets
}

// authorize returns what the caller may see of the requested objects, by the rights on the hub:
// all, if the caller may see them in all namespaces. A request for all namespaces by a caller
// that may see some is answered with those.
func (s *Search) authorize(ctx context.Context, at location, p params, verb string) (scope, error) {
	asked := at.asked()
	what := authorizationv1.ResourceAttributes{Verb: verb, Group: asked.Group, Version: asked.Version, Resource: asked.Resource, Name: at.name}
	// A namespace that may use all present clusters may not use the next one. Only a caller that
	// may see everything gets a scope without a fence.
	refused := s.Authorize(ctx, what)
	if !apierrors.IsForbidden(refused) {
		return scope{}, refused
	}
	namespaces := p.namespaces
	switch {
	case at.namespace != "":
		namespaces = []string{at.namespace}
	case at.name != "" && isNamespaces(at):
		namespaces = []string{at.name} // as API servers do
	case len(namespaces) == 0:
		return s.authorizeSome(ctx, at, what, p, refused)
	}
	for _, what.Namespace = range namespaces {
		if err := s.Authorize(ctx, what); err != nil {
			return scope{}, err
		}
	}
	seen, err := s.fenced(ctx, namespaces, nil)
	if err != nil {
		return scope{}, err
	}
	return s.then(seen, p)
}

// authorizeSome returns the scope of a caller that may see some namespaces. For one object by
// its name, and for namespaces themselves, a right in all namespaces is required.
func (s *Search) authorizeSome(ctx context.Context, at location, what authorizationv1.ResourceAttributes, p params, refused error) (scope, error) {
	if !apierrors.IsForbidden(refused) || at.name != "" || isNamespaces(at) {
		return scope{}, refused
	}
	namespaces, err := s.Namespaces(ctx, what)
	if err != nil {
		return scope{}, err
	}
	if len(namespaces) == 0 {
		return scope{}, refused
	}
	seen, err := s.fenced(ctx, namespaces, refused)
	if err != nil {
		return scope{}, err
	}
	return s.then(seen, p)
}

// then removes the namespaces that the hub did not have at the requested moment. Rights in a
// namespace do not include what clusters had in it before the hub created it.
func (s *Search) then(seen scope, p params) (scope, error) {
	moment := p.at
	if moment.IsZero() {
		moment = p.compared
	}
	if moment.IsZero() {
		return seen, nil
	}
	var old []string
	for _, namespace := range seen.namespaces {
		if made, known := s.made(namespace); known && !moment.Before(made) {
			old = append(old, namespace)
		} else {
			seen.young = append(seen.young, namespace)
		}
	}
	if seen.namespaces = old; len(old) == 0 {
		return scope{}, apierrors.NewResourceExpired(fmt.Sprintf("at %s the hub did not have %s yet, and what clusters had under the name before is not shown: ask for a later moment",
			moment.Format(time.RFC3339), enumerate(seen.young)))
	}
	return seen, nil
}

// made returns a moment at which the namespace exists and no earlier one of its name does: the
// creation time has a resolution of one second. false: unknown.
func (s *Search) made(namespace string) (time.Time, bool) {
	made, known := s.Made(namespace)
	return made.Add(time.Second), known
}

// past reports whether a state of an object ended before the hub created its namespace. ended is
// when the state ended; zero if it is the present one. For namespaces, the object itself is the
// namespace.
func (s *Search) past(seen scope, gr schema.GroupResource, namespace, name string, ended time.Time) bool {
	if seen.fence == nil || ended.IsZero() {
		return false
	}
	if gr == (schema.GroupResource{Resource: "namespaces"}) {
		namespace = name
	}
	made, known := s.made(namespace)
	return !known || ended.Before(made)
}

func isNamespaces(at location) bool { return at.Group == "" && at.Resource == "namespaces" }

// in returns the namespaces that the caller may see in a cluster. The result must not be
// changed.
func (s scope) in(cluster string) []string {
	closed := func(namespace string) bool { return !s.fence.Allowed(namespace, cluster) }
	if !slices.ContainsFunc(s.namespaces, closed) {
		return s.namespaces // shared, because there may be many namespaces and clusters
	}
	return slices.DeleteFunc(slices.Clone(s.namespaces), closed)
}

func (s scope) closed(cluster string) bool {
	return !slices.ContainsFunc(s.namespaces, func(namespace string) bool { return s.fence.Allowed(namespace, cluster) })
}

// check returns the same error for a cluster in which the caller may see nothing as for one that
// does not exist.
func (s scope) check(at location, p params) error {
	if s.fence == nil {
		return nil
	}
	if at.cluster != "" && s.closed(at.cluster) {
		return closedError{noCluster(at.cluster)}
	}
	if i := slices.IndexFunc(p.clusters, s.closed); i >= 0 {
		return closedError{noClusterIn("clusters", p.clusters[i])}
	}
	return nil
}

// narrow removes from a type the clusters in which the caller may see nothing. For a type
// without namespaces it returns an error to a caller that may see only some namespaces.
func (s scope) narrow(k *kind) error {
	if s.fence == nil {
		return nil
	}
	if _, namespaced := k.scopes[true]; s.refused != nil && !namespaced {
		return s.refused
	}
	k.partial = true
	k.clusters = slices.DeleteFunc(k.clusters, s.closed)
	for v := range k.others {
		k.others[v] = slices.DeleteFunc(k.others[v], s.closed)
	}
	for namespaced := range k.scopes {
		k.scopes[namespaced] = slices.DeleteFunc(k.scopes[namespaced], s.closed)
	}
	return nil
}

// scopes returns the namespaces by cluster for the query of the store; nil: no restriction. For
// namespaces themselves the clusters suffice, because they are not in a namespace.
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
