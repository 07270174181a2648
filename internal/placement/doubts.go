package placement

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	"orrery.dev/orrery/internal/policy"
)

// scopeless returns a message for each selector of a namespaced policy whose kind is
// cluster-scoped, so that the selector matches nothing.
func (r *reporter) scopeless(p *policyv1alpha1.PropagationPolicy) (said []string) {
	if p.Namespace == "" {
		return nil
	}
	for i, s := range p.Spec.ResourceSelectors {
		gvk := schema.FromAPIVersionAndKind(s.APIVersion, s.Kind)
		m, err := r.client.RESTMapper().RESTMapping(gvk.GroupKind())
		if err == nil && m.Scope.Name() == meta.RESTScopeNameRoot {
			said = append(said, fmt.Sprintf("resourceSelectors[%d]: %s is in no namespace, and a PropagationPolicy selects in its own alone: use a ClusterPropagationPolicy", i, s.Kind))
		}
	}
	return said
}

// unknownClusters returns a message about clusters that a policy names and the hub does not have;
// "" if there are none, or the clusters are not listed yet. For the users of a namespace, a cluster
// that the namespace may not use is one that the hub does not have.
func (r *reporter) unknownClusters(p *policyv1alpha1.PropagationPolicy) string {
	if r.clusters == nil {
		return ""
	}
	has, fenced, known := r.clusters(p.Namespace)
	if !known {
		return ""
	}
	missing := slices.DeleteFunc(namedClusters(p), func(name string) bool { return slices.Contains(has, name) })
	if len(missing) == 0 {
		return ""
	}
	if fenced {
		return "placement: the hub has no cluster that the namespace may use with the name " + some(missing)
	}
	return "placement: the hub has no cluster " + some(missing)
}

// namedClusters returns the clusters that a policy places in by name, sorted.
func namedClusters(p *policyv1alpha1.PropagationPolicy) []string {
	var names []string
	if a := p.Spec.Placement.ClusterAffinity; a != nil {
		names = append(names, a.ClusterNames...)
	}
	for _, term := range p.Spec.Placement.ClusterAffinities {
		names = append(names, term.ClusterNames...)
		for _, overflow := range term.OverflowAffinities {
			names = append(names, overflow.ClusterNames...)
		}
	}
	slices.SortFunc(names, strings.Compare)
	return slices.Compact(names)
}

// fencesChanged queues the status of the policies of namespaces that may use other clusters than
// before.
func (r *reporter) fencesChanged(namespaces sets.Set[string]) {
	for _, p := range r.policies.All() {
		if namespaces.Has(p.Namespace) && len(namedClusters(p)) > 0 {
			r.changed(policy.Name(p))
		}
	}
}

// clusterChanged queues the status of the policies that name a cluster which was added or removed,
// or may be open to other namespaces.
func (r *reporter) clusterChanged(name string) {
	for _, p := range r.policies.All() {
		if slices.Contains(namedClusters(p), name) {
			r.changed(policy.Name(p))
		}
	}
}
