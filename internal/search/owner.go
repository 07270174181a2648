package search

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// checkOwner checks a request that selects objects by the name of an owner. The answer reveals
// whether the owner exists. So checkOwner returns an error if the caller may not list the type of
// the owner in the same place. A caller that may list that type in some namespaces only must name
// namespaces. An owner type that no cluster has is an error (400).
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
