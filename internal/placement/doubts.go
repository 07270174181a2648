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

// scopeless returns a message for each selector of a PropagationPolicy that names a cluster-scoped
// kind and so selects nothing. It is nil for a ClusterPropagationPolicy.
func (r *reporter) scopeless(p *policyv1alpha1.PropagationPolicy) (said []string) {
	if p.Namespace == "" {
		return nil
	}
	for i, s := range p.Spec.ResourceSelectors {
		gvk := schema.FromAPIVersionAndKind(s.APIVersion, s.Kind)
		m, err := r.client.RESTMapper().RESTMapping(gvk.GroupKind())
		if err == nil && m.Scope.Name() == meta.RESTScopeNameRoot {
			said = append(said, fmt.Sprintf("resourceSelectors[%d]: %s is in no namespace, and a PropagationPolicy selects only in its own: use a ClusterPropagationPolicy", i, s.Kind))
		}
	}
	return said
}

// unknownClusters returns a message about clusters that a policy names and the hub does not have.
// It is "" if there are none, or the clusters are not listed yet. A cluster that the namespace of
// the policy may not use counts as missing, so that the message does not reveal that it exists.
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
		return "placement: the hub has no cluster that the namespace may use with the name " + some(missing) + ": correct the name, or join the cluster"
	}
	return "placement: the hub has no cluster " + some(missing) + ": correct the name, or join the cluster"
}

// namedClusters returns the clusters that the affinities of a policy name, sorted, each once.
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

// fencesChanged queues the status of policies that name clusters, in namespaces that may use other
// clusters than before.
func (r *reporter) fencesChanged(namespaces sets.Set[string]) {
	for _, p := range r.policies.All() {
		if namespaces.Has(p.Namespace) && len(namedClusters(p)) > 0 {
			r.changed(policy.Name(p))
		}
	}
}

// clusterChanged queues the status of the policies that name a cluster. It is called when the
// cluster was added or removed, or its labels changed, so that other namespaces may use it.
func (r *reporter) clusterChanged(name string) {
	for _, p := range r.policies.All() {
		if slices.Contains(namedClusters(p), name) {
			r.changed(policy.Name(p))
		}
	}
}
