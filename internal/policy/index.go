// Package policy says which propagation policy claims an object. It is pure: it knows no
// client.
//
// Among the policies that select an object, one in the object's namespace comes before a
// cluster-wide one; then the higher priority wins; then the more specific selector (by
// name, by labels, by kind alone); then the name that is first in the alphabet.
package policy

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
)

// Name of a policy; cluster-wide policies have no namespace.
func Name(p *policyv1alpha1.PropagationPolicy) types.NamespacedName {
	return types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
}

// Kind of a policy: the two kinds are one type here, and only the cluster-wide one has no
// namespace.
func Kind(namespace string) string {
	if namespace == "" {
		return "ClusterPropagationPolicy"
	}
	return "PropagationPolicy"
}

// Claim is one policy's claim on an object.
type Claim struct {
	Policy *policyv1alpha1.PropagationPolicy
	// GVK is the kind, in the version that the policy's selector names.
	GVK schema.GroupVersionKind

	specificity int
}

// How specific a selector is.
const (
	byKind = iota
	byLabels
	byName
)

// Index finds the policies that select an object without looking at the others. It may be
// used by several goroutines; the policies in it are read-only.
type Index struct {
	mu       sync.RWMutex
	policies map[types.NamespacedName]*policyv1alpha1.PropagationPolicy
	scopes   map[scope]*selectors
}

// NewIndex returns an Index of some policies.
func NewIndex(policies ...*policyv1alpha1.PropagationPolicy) *Index {
	x := &Index{
		policies: map[types.NamespacedName]*policyv1alpha1.PropagationPolicy{},
		scopes:   map[scope]*selectors{},
	}
	for _, p := range policies {
		x.Set(p)
	}
	return x
}

// scope is where a selector looks: a kind, and one namespace or (empty) everywhere.
type scope struct {
	kind      schema.GroupKind
	namespace string
}

// entry is one selector of one policy.
type entry struct {
	Claim
	name   string
	labels labels.Selector // nil: any
	pair   [2]string       // a label that labels requires; empty: none
}

// selectors are the entries of one scope, by what an object must have to be selected.
type selectors struct {
	names map[string][]entry    // by the name they name
	pairs map[[2]string][]entry // by a label that they require
	rest  []entry
}

// Set adds a policy, or replaces it.
func (x *Index) Set(p *policyv1alpha1.PropagationPolicy) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.remove(Name(p))
	x.policies[Name(p)] = p
	for _, s := range p.Spec.ResourceSelectors {
		where, e, ok := read(p, s)
		if !ok {
			continue
		}
		in := x.scopes[where]
		if in == nil {
			in = &selectors{names: map[string][]entry{}, pairs: map[[2]string][]entry{}}
			x.scopes[where] = in
		}
		switch {
		case e.name != "":
			in.names[e.name] = append(in.names[e.name], e)
		case e.pair != [2]string{}:
			in.pairs[e.pair] = append(in.pairs[e.pair], e)
		default:
			in.rest = append(in.rest, e)
		}
	}
}

// Delete removes a policy.
func (x *Index) Delete(name types.NamespacedName) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.remove(name)
}

// Get returns a policy.
func (x *Index) Get(name types.NamespacedName) (*policyv1alpha1.PropagationPolicy, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	p, ok := x.policies[name]
	return p, ok
}

// All returns every policy, in no order.
func (x *Index) All() []*policyv1alpha1.PropagationPolicy {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return slices.Collect(maps.Values(x.policies))
}

func (x *Index) remove(name types.NamespacedName) {
	p, ok := x.policies[name]
	if !ok {
		return
	}
	delete(x.policies, name)
	ours := func(e entry) bool { return Name(e.Policy) == name }
	for _, s := range p.Spec.ResourceSelectors {
		where, e, ok := read(p, s)
		in := x.scopes[where]
		if !ok || in == nil {
			continue
		}
		switch {
		case e.name != "":
			drop(in.names, e.name, ours)
		case e.pair != [2]string{}:
			drop(in.pairs, e.pair, ours)
		default:
			in.rest = slices.DeleteFunc(in.rest, ours)
		}
		if len(in.names) == 0 && len(in.pairs) == 0 && len(in.rest) == 0 {
			delete(x.scopes, where)
		}
	}
}

func drop[K comparable](m map[K][]entry, key K, which func(entry) bool) {
	if m[key] = slices.DeleteFunc(m[key], which); len(m[key]) == 0 {
		delete(m, key)
	}
}

// read turns a selector into an entry; false when it can select nothing, which Problems
// explains.
func read(p *policyv1alpha1.PropagationPolicy, s policyv1alpha1.ResourceSelector) (scope, entry, bool) {
	if problem(p, s) != nil {
		return scope{}, entry{}, false
	}
	gvk := schema.FromAPIVersionAndKind(s.APIVersion, s.Kind)
	e := entry{Claim: Claim{Policy: p, GVK: gvk}, name: s.Name}
	where := scope{kind: gvk.GroupKind(), namespace: cmp.Or(p.Namespace, s.Namespace)}
	switch {
	case s.Name != "":
		e.specificity = byName
	case s.LabelSelector != nil:
		e.specificity = byLabels
	}
	if s.LabelSelector != nil {
		e.labels, _ = metav1.LabelSelectorAsSelector(s.LabelSelector) // problem has read it already
		for _, key := range slices.Sorted(maps.Keys(s.LabelSelector.MatchLabels)) {
			e.pair = [2]string{key, s.LabelSelector.MatchLabels[key]}
			break
		}
	}
	return where, e, true
}

// Claims returns the policies that select an object: first the one that places it, then
// those that lose, in order. None when the object is one that no policy may claim.
func (x *Index) Claims(o *unstructured.Unstructured) []Claim {
	if reserved(o) {
		return nil
	}
	claims, _ := x.matches(o)
	return claims
}

// Placeable is false of an object that no policy may claim and that does not follow others
// either: every cluster makes it for itself, or it is the hub's own.
func Placeable(o *unstructured.Unstructured) bool { return !reserved(o) }

// Settle orders claims on an object that a policy places already, of that kind and name: one
// whose preemption is Never takes nothing from another that selects it still.
func Settle(claims []Claim, kind, name string) []Claim {
	i := slices.IndexFunc(claims, func(c Claim) bool { return Kind(c.Policy.Namespace) == kind && c.Policy.Name == name })
	if i <= 0 {
		return claims
	}
	first := slices.IndexFunc(claims[:i], func(c Claim) bool { return c.Policy.Spec.Preemption != policyv1alpha1.PreemptNever })
	if first < 0 {
		first = i
	}
	settled := slices.Concat(claims[first:first+1], claims[:first], claims[first+1:])
	return settled
}

// Skip is a policy that leaves an object out which its selectors match.
type Skip struct {
	Policy *policyv1alpha1.PropagationPolicy
	// Reason is ReasonSystemNamespace or ReasonReservedObject.
	Reason string
	// Named says that a selector names the object.
	Named bool
}

// Skipped returns the policies that leave an object out which their selectors match, each once.
func (x *Index) Skipped(o *unstructured.Unstructured) []Skip {
	kept := reserved(o)
	if !kept && !system(o, "") {
		return nil
	}
	claims, skipped := x.matches(o)
	reason := policyv1alpha1.ReasonSystemNamespace
	if kept {
		reason, claims, skipped = policyv1alpha1.ReasonReservedObject, nil, slices.Concat(claims, skipped)
	}
	var skips []Skip
	for _, c := range skipped {
		if slices.ContainsFunc(claims, func(other Claim) bool { return other.Policy == c.Policy }) {
			continue // another of its selectors reaches the object
		}
		i := slices.IndexFunc(skips, func(s Skip) bool { return s.Policy == c.Policy })
		if i < 0 {
			i, skips = len(skips), append(skips, Skip{Policy: c.Policy, Reason: reason})
		}
		skips[i].Named = skips[i].Named || c.specificity == byName
	}
	return skips
}

// matches returns the policies whose selectors match an object, each once with its most
// specific selector: those that may claim it, in order, and those that would have to name its
// system namespace to do so.
func (x *Index) matches(o *unstructured.Unstructured) (claims, skipped []Claim) {
	add := func(to []Claim, e entry) []Claim {
		i := slices.IndexFunc(to, func(c Claim) bool { return c.Policy == e.Policy })
		switch {
		case i < 0:
			return append(to, e.Claim)
		case e.specificity > to[i].specificity:
			to[i] = e.Claim
		}
		return to
	}
	collect := func(entries []entry, explicit bool) {
		for _, e := range entries {
			switch {
			case e.labels != nil && !e.labels.Matches(labels.Set(o.GetLabels())):
			// A cluster-wide policy must name a system namespace to reach into it.
			case !explicit && e.Policy.Namespace == "" && system(o, e.name):
				skipped = add(skipped, e)
			default:
				claims = add(claims, e)
			}
		}
	}

	x.mu.RLock()
	defer x.mu.RUnlock()
	namespaces := []string{""}
	if o.GetNamespace() != "" {
		namespaces = append(namespaces, o.GetNamespace())
	}
	for _, namespace := range namespaces {
		in := x.scopes[scope{kind: o.GroupVersionKind().GroupKind(), namespace: namespace}]
		if in == nil {
			continue
		}
		explicit := namespace != ""
		collect(in.names[o.GetName()], explicit)
		for key, value := range o.GetLabels() {
			collect(in.pairs[[2]string{key, value}], explicit)
		}
		collect(in.rest, explicit)
	}
	slices.SortFunc(claims, before)
	return claims, skipped
}

// before orders claims: negative when a wins over b.
func before(a, b Claim) int {
	clusterWide := func(c Claim) int {
		if c.Policy.Namespace == "" {
			return 1
		}
		return 0
	}
	return cmp.Or(
		cmp.Compare(clusterWide(a), clusterWide(b)),
		cmp.Compare(b.Policy.Spec.Priority, a.Policy.Spec.Priority),
		cmp.Compare(b.specificity, a.specificity),
		strings.Compare(a.Policy.Name, b.Policy.Name),
	)
}
