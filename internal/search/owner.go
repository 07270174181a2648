package search

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// checkOwner refuses to look for an owner by its name to who may not list its type where they look: whose objects there are tells of it.
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
	case seen.refused != nil: // who may list it in some namespaces is to name those
		return seen.refused
	}
	return seen.check(owner, p)
}
