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

// Override is an override policy with parsed selectors, to be compared with many templates and
// clusters. It is immutable and may be shared.
type Override struct {
	Policy *policyv1alpha1.OverridePolicy

	labels []labels.Selector // of each resource selector; nil: matches all, or is invalid
	rules  []rule
	err    error // why the policy is invalid; nil: it is valid
}

// rule is one rule of an override policy: the clusters that it selects, and its changes. path is
// the path of the rule in the policy, for errors.
type rule struct {
	path     string           // of its field
	clusters *policy.Affinity // nil: invalid
	changes  *policyv1alpha1.Overriders
}

// Compile parses an override policy. An invalid policy is no error: Render then refuses the
// templates that the policy selects, because an object must not be applied without its overrides.
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
	rules := p.Spec.Rules()
	for i := range rules {
		path := "spec"
		if len(p.Spec.OverrideRules) > 0 {
			path = fmt.Sprintf("spec.overrideRules[%d]", i)
		}
		affinity, err := policy.CompileAffinity(rules[i].TargetCluster)
		if err != nil {
			v.err = cmp.Or(v.err, fmt.Errorf("%s: %s.targetCluster.%w", title(p), path, err))
		}
		v.rules = append(v.rules, rule{path: path, clusters: affinity, changes: &rules[i].Overriders})
	}
	return v
}

// Selects reports whether the policy selects a template. A policy with a namespace selects only
// templates of that namespace. A policy without selectors selects all. A selector with an invalid
// label selector selects all templates that its other fields match.
func (v *Override) Selects(template *unstructured.Unstructured) bool { return v.selects(template) > 0 }

// The ways in which a policy selects a template. A more specific one is applied later.
const (
	not = iota
	everything
	byKind
	byLabels
	byName
)

// selects returns in which way the policy selects a template: not, everything, byKind, byLabels or
// byName. If several selectors match, it is the most specific way.
func (v *Override) selects(template *unstructured.Unstructured) int {
	p := v.Policy
	if p.Namespace != "" && p.Namespace != template.GetNamespace() {
		return not
	}
	if len(p.Spec.ResourceSelectors) == 0 {
		return everything
	}
	most := not
	for i, s := range p.Spec.ResourceSelectors {
		if s.APIVersion == template.GetAPIVersion() && s.Kind == template.GetKind() &&
			(s.Namespace == "" || s.Namespace == template.GetNamespace()) &&
			(s.Name == "" || s.Name == template.GetName()) &&
			(v.labels[i] == nil || v.labels[i].Matches(labels.Set(template.GetLabels()))) {
			switch {
			case s.Name != "":
				return byName
			case s.LabelSelector != nil:
				most = byLabels
			default:
				most = max(most, byKind)
			}
		}
	}
	return most
}

// concerns reports whether the i-th rule selects a cluster. It may be called only if v.err is nil.
func (v *Override) concerns(i int, c *clusterv1alpha1.Cluster) bool {
	return v.rules[i].clusters.Selects(c.Name, c.Labels, c.Spec.Provider, c.Spec.Region, c.Spec.Zones)
}

// Concerns reports whether any rule of the policy selects a cluster. It is true for an invalid
// policy.
func (v *Override) Concerns(c *clusterv1alpha1.Cluster) bool {
	if v.err != nil {
		return true
	}
	for i := range v.rules {
		if v.concerns(i, c) {
			return true
		}
	}
	return false
}

// scope is a key of the index Overrides: the templates that a resource selector can match. An empty
// field stands for all values.
type scope struct{ namespace, apiVersion, kind, name string }

// Overrides is an index of override policies. It finds the policies that select a template without
// reading the others. It is safe for concurrent use. The policies themselves must not be changed.
type Overrides struct {
	mu     sync.RWMutex
	all    map[types.NamespacedName]*Override
	scopes map[scope][]*Override
}

// NewOverrides returns an index of the policies.
func NewOverrides(policies ...*policyv1alpha1.OverridePolicy) *Overrides {
	x := &Overrides{all: map[types.NamespacedName]*Override{}, scopes: map[scope][]*Override{}}
	for _, p := range policies {
		x.Set(p)
	}
	return x
}

// Set compiles a policy and adds it to the index, or replaces the policy with its namespace and
// name.
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

// Get returns the policy with a name; nil if there is none. The namespace of a
// ClusterOverridePolicy is "".
func (x *Overrides) Get(name types.NamespacedName) *Override {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.all[name]
}

// Delete removes a policy from the index. It returns false, without a change, if v was replaced or
// removed meanwhile.
func (x *Overrides) Delete(v *Override) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	name := types.NamespacedName{Namespace: v.Policy.Namespace, Name: v.Policy.Name}
	if x.all[name] != v {
		return false
	}
	x.remove(name)
	return true
}

// remove removes the policy with a name, if there is one. The caller holds mu.
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

// scopes returns the distinct keys under which the index has a policy: one for each selector or,
// without selectors, one for its namespace.
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

// Of returns the policies that select a template, in the order in which they are applied.
// Cluster-wide policies come first, then those of the template's namespace. Within each scope,
// policies that select everything come first, then those by kind, by labels and by name. Equal
// ones are sorted by name.
func (x *Overrides) Of(template *unstructured.Unstructured) []*Override {
	selecting, _ := x.With(template, nil)
	return selecting
}

// With returns the policies that select a template, as Of does, and the names in needed that no
// policy has; nil: none is missing. Both results are from the same moment.
func (x *Overrides) With(template *unstructured.Unstructured, needed []types.NamespacedName) (selecting []*Override, missing []types.NamespacedName) {
	ns, apiVersion, kind, name := template.GetNamespace(), template.GetAPIVersion(), template.GetKind(), template.GetName()
	x.mu.RLock()
	for _, n := range needed {
		if x.all[n] == nil {
			missing = append(missing, n)
		}
	}
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
		return cmp.Or(
			cmp.Compare(a.Policy.Namespace, b.Policy.Namespace), cmp.Compare(a.selects(template), b.selects(template)),
			cmp.Compare(a.Policy.Name, b.Policy.Name),
		)
	})
	return selecting, missing
}
