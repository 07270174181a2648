package search

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// otherVersions returns warnings about types that the request names in one API version and that
// some clusters have in another version. The collection lacks their objects. Types that the caller
// may not list get no warning.
func (s *Search) otherVersions(ctx context.Context, at location, one collection, p params) (warnings []string, err error) {
	named, err := s.types(ctx, one, p)
	if err != nil {
		return nil, err
	}
	whatever := p
	whatever.groups, whatever.resources = nil, nil
	for _, group := range p.groups {
		group, _, _ = strings.Cut(group, "/")
		whatever.groups = append(whatever.groups, group)
	}
	for _, resource := range p.resources {
		if parts := strings.Split(resource, "/"); len(parts) == 3 {
			resource = parts[0] + "/" + parts[2]
		}
		whatever.resources = append(whatever.resources, resource)
	}
	slices.Sort(whatever.groups)
	slices.Sort(whatever.resources)
	all, err := s.types(ctx, one, whatever)
	if err != nil {
		return nil, err
	}
	for _, gvr := range all {
		if slices.Contains(named, gvr) {
			continue
		}
		v, err := s.look(ctx, location{cluster: at.cluster, document: "apis", GroupVersionResource: gvr, names: at.names, own: true}, p, "list")
		if err != nil || len(v.kind.clusters) == 0 {
			continue // the caller may not list the type, or no requested cluster has it
		}
		warnings = append(warnings, fmt.Sprintf("%s of %s are left out: they are in version %s", gvr.GroupResource(), enumerate(v.kind.clusters), gvr.Version))
	}
	return warnings, nil
}
