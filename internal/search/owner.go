package search

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// checkOwner returns an error if the search is by the name of an owner and the caller may not
// list the type of the owner in that place. Otherwise the result would reveal that the owner
// exists.
func (s *Search) checkOwner(ctx context.Context, at location, p params) error {
	if p.owner.name == "" {
		return nil
	}
	owner := location{cluster: at.cluster, namespace: at.namespace}
	found := false
	for _, t := range s.Mirror.Types() {
		if t.GroupVersionKind.Group == p.owner.resource.Group && t.Resource == p.owner.resource.Resource {
			visible, err := s.mayName(ctx, t)
			if err != nil {
				return err
			}
			if !visible {
				continue
			}
			owner.GroupVersionResource = t.GroupVersionResource()
			if found = true; !t.Namespaced {
				owner.namespace = ""
			}
		}
	}
	if !found {
		return apierrors.NewBadRequest("parameter ownerGR: " + p.owner.resource.String() + " is not mirrored from any cluster; write it in the plural with its group, such as deployments.apps")
	}
	if !s.namespaced(owner) {
		p.namespaces = nil
	}
	seen, err := s.authorize(ctx, owner, p, "list")
	switch {
	case err != nil:
		return err
	case seen.refused != nil: // the caller must name namespaces in which it may list the type
		return seen.refused
	}
	return seen.check(owner, p)
}
