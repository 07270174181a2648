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

// scope is what a caller may see of the requested objects: all, if fence is nil. Otherwise they are
// the objects in some namespaces, each only from the clusters that the namespace may use. authorize
// returns a scope.
type scope struct {
	fence      Fence
	namespaces []string
	// recent are visible namespaces that the hub did not have yet at the moment that the request is
	// about. namespaces does not contain them.
	recent []string
	// refused is the error that the caller may not see all namespaces. It is nil if the request
	// named namespaces.
	refused error
	tag     int64 // tag of these rights in versions for the caller; 0: the caller sees all
}

// authorize returns what the caller may see of the objects at the path, by the rights to do verb on
// the hub. With the right in all namespaces, the scope has no fence. A caller with the right in
// some namespaces gets those that the request names, or all of them if it names none.
//
// The error is Forbidden if the caller may see nothing, or lacks the right in a namespace that the
// request names. It is Expired if none of the namespaces existed at the moment that the request is
// about.
func (s *Search) authorize(ctx context.Context, at location, p params, verb string) (scope, error) {
	asked := at.asked()
	what := authorizationv1.ResourceAttributes{Verb: verb, Group: asked.Group, Version: asked.Version, Resource: asked.Resource, Name: at.name}
	// Only a caller that may see everything gets a scope without a fence. A namespace that may use
	// all present clusters is not enough: perhaps it may not use a cluster that joins later.
	refused := s.Authorize(ctx, what)
	if !apierrors.IsForbidden(refused) {
		return scope{}, refused
	}
	namespaces := p.namespaces
	switch {
	case at.namespace != "":
		namespaces = []string{at.namespace}
	case at.name != "" && isNamespaces(at):
		namespaces = []string{at.name} // API servers check the right to a Namespace in the namespace
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

// authorizeSome returns the scope of a caller whose request names no namespace: the namespaces in
// which the caller has the right what. refused is the error that the caller lacks the right in all
// namespaces. It is returned if there are no such namespaces. It is also returned for one object by
// its name and for Namespaces, for which a right in some namespaces is not enough.
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

// then adapts a scope to a request about the past. It moves the namespaces that the hub did not
// have at the requested moment from namespaces to recent. Rights in a namespace do not include
// objects that clusters had under that name before the hub created it. If no namespace is left,
// then returns an Expired error.
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
			seen.recent = append(seen.recent, namespace)
		}
	}
	if seen.namespaces = old; len(old) == 0 {
		return scope{}, apierrors.NewResourceExpired(fmt.Sprintf("at %s the hub did not have %s yet, and what clusters had under the name before is not shown: ask for a later moment",
			moment.Format(time.RFC3339), enumerate(seen.recent)))
	}
	return seen, nil
}

// made returns a moment from which on the hub certainly has the present namespace, and not an
// earlier one of the same name. It is one second after the creation time, which has a resolution of
// one second. It returns false if the creation time is unknown.
func (s *Search) made(namespace string) (time.Time, bool) {
	made, known := s.Made(namespace)
	return made.Add(time.Second), known
}

// past reports whether a state of an object must be hidden from the caller, because it ended before
// the hub created the namespace of the object. ended is when the state ended; zero for the present
// state, which is never hidden. A Namespace object counts as in its own namespace. If the creation
// time is unknown, past is true. If seen has no fence, it is false.
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

// isNamespaces reports whether the type at a location is Namespace.
func isNamespaces(at location) bool { return at.Group == "" && at.Resource == "namespaces" }

// in returns the namespaces that the caller may see in a cluster, perhaps none. The result must not
// be changed. s must have a fence.
func (s scope) in(cluster string) []string {
	closed := func(namespace string) bool { return !s.fence.Allowed(namespace, cluster) }
	if !slices.ContainsFunc(s.namespaces, closed) {
		return s.namespaces // shared, because there may be many namespaces and clusters
	}
	return slices.DeleteFunc(slices.Clone(s.namespaces), closed)
}

// closed reports whether a cluster is closed to the caller: the caller may see no namespace there.
// s must have a fence.
func (s scope) closed(cluster string) bool {
	return !slices.ContainsFunc(s.namespaces, func(namespace string) bool { return s.fence.Allowed(namespace, cluster) })
}

// check returns a closedError if the request names a cluster, in the path or in p.clusters, in
// which the caller may see nothing. For the client, the error looks as if the cluster did not
// exist. Without a fence it returns nil.
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

// narrow removes from k the clusters in which the caller may see nothing, and sets k.partial.
// Without a fence it does nothing. If the type has no namespaces, and the caller may see only some
// namespaces and named none, it returns s.refused.
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

// scopes returns, by cluster of k, the namespaces that the caller may see there, to restrict the
// query of the store; nil: no restriction. For Namespace objects, which are in no namespace, the
// result is nil: the query is restricted by its clusters.
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
