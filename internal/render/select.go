package render

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	"orrery.dev/orrery/internal/policy"
)

// Override is an override policy whose selectors were read once, to be compared with many
// templates and clusters. It does not change and may be shared.
type Override struct {
	Policy *policyv1alpha1.OverridePolicy

	labels []labels.Selector  // of each resource selector; nil: any, or one that cannot be read
	rules  []*policy.Affinity // the clusters of each rule
	err    error              // what cannot be read
}

// Compile reads an override policy. What cannot be read is refused by Render: an object that may not
// leave without its override must not leave.
func Compile(p *policyv1alpha1.OverridePolicy) *Override {
	v := &Override{Policy: p}
	for i, s := range p.Spec.ResourceSelectors {
		var selector labels.Selector
		if s.LabelSelector != nil {
			var err error
			if selector, err = metav1.LabelSelectorAsSelector(s.LabelSelector); err != nil {
				selector, v.err = nil, cmp.Or(v.err, fmt.Errorf("%s: spec.resourceSelectors[%d].labelSelector: %w", title(p), i, err))
			}
		}
		v.labels = append(v.labels, selector)
	}
	for i := range p.Spec.OverrideRules {
		affinity, err := policy.CompileAffinity(p.Spec.OverrideRules[i].TargetCluster)
		if err != nil {
			v.err = cmp.Or(v.err, fmt.Errorf("%s: spec.overrideRules[%d].targetCluster.%w", title(p), i, err))
		}
		v.rules = append(v.rules, affinity)
	}
	return v
}

// Selects says whether the policy selects a template in its scope. A selector of the template's
// kind whose labels cannot be read does.
func (v *Override) Selects(template *unstructured.Unstructured) bool {
	p := v.Policy
	if p.Namespace != "" && p.Namespace != template.GetNamespace() {
		return false
	}
	for i, s := range p.Spec.ResourceSelectors {
		if s.APIVersion == template.GetAPIVersion() && s.Kind == template.GetKind() &&
			(s.Namespace == "" || s.Namespace == template.GetNamespace()) &&
			(s.Name == "" || s.Name == template.GetName()) &&
			(v.labels[i] == nil || v.labels[i].Matches(labels.Set(template.GetLabels()))) {
			return true
		}
	}
	return len(p.Spec.ResourceSelectors) == 0
}

// concerns says whether the i-th rule is for a cluster.
func (v *Override) concerns(i int, c *clusterv1alpha1.Cluster) bool {
	return v.rules[i].Selects(c.Name, c.Labels, c.Spec.Provider, c.Spec.Region, c.Spec.Zones)
}

// scope is where a resource selector looks; an empty field stands for everything.
type scope struct{ namespace, apiVersion, kind, name string }

// Overrides finds the override policies that select a template without looking at the others. It
// may be used by several goroutines.
type Overrides struct {
	mu     sync.RWMutex
	all    map[types.NamespacedName]*Override
	scopes map[scope][]*Override
}

// NewOverrides returns the index of some policies.
func NewOverrides(policies ...*policyv1alpha1.OverridePolicy) *Overrides {
	x := &Overrides{all: map[types.NamespacedName]*Override{}, scopes: map[scope][]*Override{}}
	for _, p := range policies {
		x.Set(p)
	}
	return x
}

// Set adds a policy, or replaces it.
func (x *Overrides) Set(p *policyv1alpha1.OverridePolicy) {
	v := Compile(p)
	x.mu.Lock()
	defer x.mu.Unlock()
	name := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
	x.remove(name)
	x.all[name] = v
	for _, s := range scopes(p) {
		x.scopes[s] = append(x.scopes[s], v)
	}
}

// Delete removes a policy.
func (x *Overrides) Delete(name types.NamespacedName) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.remove(name)
}

func (x *Overrides) remove(name types.NamespacedName) {
	v, ok := x.all[name]
	if !ok {
		return
	}
	delete(x.all, name)
	for _, s := range scopes(v.Policy) {
		x.scopes[s] = slices.DeleteFunc(x.scopes[s], func(other *Override) bool { return other == v })
		if len(x.scopes[s]) == 0 {
			delete(x.scopes, s)
		}
	}
}

// scopes are where a policy looks, each once.
func scopes(p *policyv1alpha1.OverridePolicy) []scope {
	var all []scope
	for _, s := range p.Spec.ResourceSelectors {
		in := scope{cmp.Or(p.Namespace, s.Namespace), s.APIVersion, s.Kind, s.Name}
		if !slices.Contains(all, in) {
			all = append(all, in)
		}
	}
	if len(p.Spec.ResourceSelectors) == 0 {
		all = append(all, scope{namespace: p.Namespace})
	}
	return all
}

// Of returns the policies that select a template, in the order in which they are applied:
// cluster-wide ones first, then those of the template's namespace, each by name.
func (x *Overrides) Of(template *unstructured.Unstructured) []*Override {
	ns, apiVersion, kind, name := template.GetNamespace(), template.GetAPIVersion(), template.GetKind(), template.GetName()
	var selecting []*Override
	x.mu.RLock()
	for i, namespace := range []string{"", ns} {
		if i == 1 && ns == "" {
			break
		}
		for _, s := range []scope{{namespace: namespace}, {namespace, apiVersion, kind, ""}, {namespace, apiVersion, kind, name}} {
			for _, v := range x.scopes[s] {
				if v.Selects(template) && !slices.Contains(selecting, v) {
					selecting = append(selecting, v)
				}
			}
		}
	}
	x.mu.RUnlock()
	slices.SortFunc(selecting, func(a, b *Override) int {
		// The namespace of a cluster-wide policy is empty, so it sorts first.
		return cmp.Or(cmp.Compare(a.Policy.Namespace, b.Policy.Namespace), cmp.Compare(a.Policy.Name, b.Policy.Name))
	})
	return selecting
}
