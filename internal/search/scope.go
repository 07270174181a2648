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

// scope is what a caller may see: some namespaces, each in the clusters that it may use.
// Without a fence it is everything that was asked for.
type scope struct {
	fence      Fence
	namespaces []string
	// young are the namespaces that the hub did not have at the moment asked for; they are not among the others.
	young []string
	// refused is why the caller does not see all namespaces, who asked for all of them.
	refused error
	tag     int64 // of these rights, in the versions that the caller gets
}

// authorize asks the hub whether the caller may see what they ask for, and returns how much of
// it: all, if they may see it in all namespaces at once. Who asks for all namespaces and may see some sees these.
func (s *Search) authorize(ctx context.Context, at location, p params, verb string) (scope, error) {
	asked := at.asked()
	what := authorizationv1.ResourceAttributes{Verb: verb, Group: asked.Group, Version: asked.Version, Resource: asked.Resource, Name: at.name}
	// That all clusters of now are open to a namespace says nothing of the next one: only who may see everything is let through without a fence.
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

// authorizeSome finds what a caller may see who may not see all. What is in no namespace needs a right to all: one object by its name,
// and namespaces themselves.
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

// then leaves the namespaces that the hub had at the moment asked for. What a cluster had in a namespace before the hub made its own is not for who has
// rights in this one.
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

// made is a moment at which the hub had a namespace, and nobody else had its name any more: the time of its creation is told in whole seconds.
func (s *Search) made(namespace string) (time.Time, bool) {
	made, known := s.Made(namespace)
	return made.Add(time.Second), known
}

// past says whether a state of an object that ended at a moment (zero: it has not) was one before the hub made its namespace, which is the object itself
// where namespaces are asked for.
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

// in returns the namespaces that the caller may see in a cluster. They are not to be changed.
func (s scope) in(cluster string) []string {
	closed := func(namespace string) bool { return !s.fence.Allowed(namespace, cluster) }
	if !slices.ContainsFunc(s.namespaces, closed) {
		return s.namespaces // of many namespaces and clusters there is one list
	}
	return slices.DeleteFunc(slices.Clone(s.namespaces), closed)
}

func (s scope) closed(cluster string) bool {
	return !slices.ContainsFunc(s.namespaces, func(namespace string) bool { return s.fence.Allowed(namespace, cluster) })
}

// check answers for a cluster in which the caller may see nothing as for one that there is not.
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

// narrow leaves of a type the clusters in which the caller may see something. A type that is in no namespace anywhere is refused to who
// may see only some.
func (s scope) narrow(k *kind) error {
	if s.fence == nil {
		return nil
	}
	if s.refused != nil && len(k.scopes[true]) == 0 {
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
