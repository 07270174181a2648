package mirror

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/member"
)

// Types that the mirror itself needs: capacity, namespaces, and changes of the API list.
var (
	namespaces  = schema.GroupResource{Resource: "namespaces"}
	nodes       = schema.GroupResource{Resource: "nodes"}
	pods        = schema.GroupResource{Resource: "pods"}
	secrets     = schema.GroupResource{Resource: "secrets"}
	crds        = schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}
	apiservices = schema.GroupResource{Group: "apiregistration.k8s.io", Resource: "apiservices"}
)

func essential(gr schema.GroupResource) bool {
	switch gr {
	case namespaces, nodes, pods, crds, apiservices:
		return true
	default:
		return false
	}
}

// noise is what is mirrored only when it is asked for: written all the time, or derived
// from what is mirrored anyway.
func noise(gr schema.GroupResource) bool {
	switch gr {
	case schema.GroupResource{Resource: "events"},
		schema.GroupResource{Group: "events.k8s.io", Resource: "events"},
		schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"},
		schema.GroupResource{Resource: "componentstatuses"},
		schema.GroupResource{Resource: "bindings"},
		schema.GroupResource{Resource: "endpoints"}:
		return true
	default:
		return strings.HasSuffix(gr.Resource, "reviews")
	}
}

// Select is the selection that names these types, as RESOURCE.GROUP or RESOURCE of the core group,
// such as deployments.apps and pods; *.GROUP is every type of a group. It is nil for none. An
// error names what is no such thing.
func Select(types []string) (*clusterv1alpha1.Mirror, error) {
	if len(types) == 0 {
		return nil, nil
	}
	s := &clusterv1alpha1.Mirror{}
	for _, name := range types {
		gr := schema.ParseGroupResource(name)
		if gr.Resource == "" || strings.ContainsAny(name, "/ ") || gr.Resource != strings.ToLower(gr.Resource) {
			return nil, fmt.Errorf("%q is no type: name the plural and the group, such as deployments.apps or pods", name)
		}
		s.Resources = append(s.Resources, clusterv1alpha1.MirrorResources{Group: gr.Group, Resources: []string{gr.Resource}})
	}
	return s, nil
}

// wanted selects the types to be mirrored of those that a cluster serves, each in one
// version: the one that placement asks for, or that the Cluster names, or that the cluster
// prefers. They are in the order in which they should be listed.
func wanted(apis []member.API, spec *clusterv1alpha1.Mirror, required map[schema.GroupVersionKind]bool) []member.API {
	type choice struct {
		api  member.API
		rank int // lower: a better version
	}
	chosen := map[schema.GroupResource]choice{}
	for _, api := range apis {
		gr := resourceOf(api)
		if !slices.Contains(api.Verbs, "list") || !slices.Contains(api.Verbs, "watch") || strings.Contains(gr.Resource, "/") {
			continue
		}
		selected, version := selects(spec, gr, api.GroupVersionKind.Version)
		rank := 1000
		switch {
		case required[api.GroupVersionKind]:
			rank = 0
		case version >= 0:
			rank = 1 + version
		}
		if !api.Preferred {
			rank = 2*rank + 1
		} else {
			rank *= 2
		}
		if !required[api.GroupVersionKind] && !essential(gr) && !selected {
			continue
		}
		if old, ok := chosen[gr]; !ok || rank < old.rank {
			chosen[gr] = choice{api, rank}
		}
	}
	out := make([]member.API, 0, len(chosen))
	for _, c := range chosen {
		out = append(out, c.api)
	}
	order := func(api member.API) int {
		switch {
		case essential(resourceOf(api)):
			return 0
		case required[api.GroupVersionKind]:
			return 1
		default:
			return 2
		}
	}
	slices.SortFunc(out, func(a, b member.API) int {
		return cmp.Or(cmp.Compare(order(a), order(b)), cmpResource(resourceOf(a), resourceOf(b)))
	})
	return out
}

// selects says whether a Cluster's spec selects a type, and at which place it names the
// version; -1: it does not.
func selects(spec *clusterv1alpha1.Mirror, gr schema.GroupResource, version string) (selected bool, at int) {
	if spec == nil {
		return !noise(gr), -1
	}
	for _, r := range spec.Resources {
		if r.Group != gr.Group || !slices.Contains(r.Resources, gr.Resource) && !slices.Contains(r.Resources, "*") {
			continue
		}
		at := slices.Index(r.Versions, version)
		if len(r.Versions) == 0 || at >= 0 {
			return true, at
		}
	}
	return false, -1
}

func resourceOf(api member.API) schema.GroupResource {
	return schema.GroupResource{Group: api.GroupVersionKind.Group, Resource: api.Resource}
}
