// Package policy decides which propagation policy claims an object. It is pure and uses no client.
//
// Among the policies that select an object, one in the object's namespace wins over a cluster-wide
// one. Then the higher priority wins, then the more specific selector (by name, by labels, by kind
// alone), then the alphabetically first name.
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

// Name returns the namespace and name of a policy. A ClusterPropagationPolicy has no namespace.
func Name(p *policyv1alpha1.PropagationPolicy) types.NamespacedName {
	return types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
}

// Kind returns the kind of a policy by its namespace: ClusterPropagationPolicy if the namespace is
// "", else PropagationPolicy. Both kinds share one Go type.
func Kind(namespace string) string {
	if namespace == "" {
		return "ClusterPropagationPolicy"
	}
	return "PropagationPolicy"
}

// Claim says that a policy selects an object and may place it. An Index returns the claims on an
// object.
type Claim struct {
	Policy *policyv1alpha1.PropagationPolicy
	// GVK is the kind of the object, in the version that the selector of the policy names.
	GVK schema.GroupVersionKind

	specificity int // byKind, byLabels or byName
}

// How specific a selector is: it names only a kind, also labels, or also the name of an object. The
// higher level wins.
const (
	byKind = iota
	byLabels
	byName
)

// Index has propagation policies, and finds those that select an object without checking all of
// them. It is safe for concurrent use. Policies that it returns are read-only.
type Index struct {
	mu       sync.RWMutex
	policies map[types.NamespacedName]*policyv1alpha1.PropagationPolicy
	scopes   map[scope]*selectors
}

// NewIndex returns an Index with the given policies, which the caller must not change afterwards.
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

// scope is where a selector applies: a kind, and one namespace; "": every namespace, and
// cluster-scoped objects.
type scope struct {
	kind      schema.GroupKind
	namespace string
}

// entry is one selector of one policy.
type entry struct {
	Claim
	name   string          // that the object must have; "": any
	labels labels.Selector // nil: any labels
	pair   [2]string       // key and value of a label that labels requires; empty: none
}

// selectors has the entries of one scope, in three groups by what they require, so that few of them
// are checked for an object.
type selectors struct {
	names map[string][]entry    // by required name
	pairs map[[2]string][]entry // by a required label
	rest  []entry               // entries without a name and label
}

// Set adds a policy, or replaces the one with its name. It keeps p, which the caller must not
// change afterwards. Selectors that can never select anything, which Problems reports, are ignored.
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

// Delete removes the policy with the name. If there is none, it does nothing.
func (x *Index) Delete(name types.NamespacedName) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.remove(name)
}

// Get returns the policy with the name, read-only; false if there is none.
func (x *Index) Get(name types.NamespacedName) (*policyv1alpha1.PropagationPolicy, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	p, ok := x.policies[name]
	return p, ok
}

// All returns all policies, in no order.
func (x *Index) All() []*policyv1alpha1.PropagationPolicy {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return slices.Collect(maps.Values(x.policies))
}

// remove removes the policy with the name and its entries, if there is one. The caller holds x.mu.
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

// drop removes from the list m[key] the entries that the function which selects. If the list is
// then empty, it deletes the key.
func drop[K comparable](m map[K][]entry, key K, which func(entry) bool) {
	if m[key] = slices.DeleteFunc(m[key], which); len(m[key]) == 0 {
		delete(m, key)
	}
}

// read converts a selector of the policy p to its scope and entry. It returns false if the selector
// can never select anything, see Problems.
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
		e.labels, _ = metav1.LabelSelectorAsSelector(s.LabelSelector) // problem has checked the selector
		for _, key := range slices.Sorted(maps.Keys(s.LabelSelector.MatchLabels)) {
			e.pair = [2]string{key, s.LabelSelector.MatchLabels[key]}
			break
		}
	}
	return where, e, true
}

// Claims returns the claims of the policies that select an object: first that of the policy that
// places it, then those that lose, in order. It is nil if no policy selects the object, or none may
// place it. The order does not consider which policy has placed the object before: see Settle.
func (x *Index) Claims(o *unstructured.Unstructured) []Claim {
	if reserved(o) {
		return nil
	}
	claims, _ := x.matches(o)
	return claims
}

// Placeable reports whether an object of the hub may be placed in clusters, by a policy or as a
// dependency. Objects that every cluster creates for itself, and the hub's own objects, may not be
// placed.
func Placeable(o *unstructured.Unstructured) bool { return !reserved(o) }

// Settle returns the claims on an object in the order that applies after a policy, with that kind
// and name, has placed it. A policy whose preemption is Never does not take the object from a
// policy that still selects it. The order stays if the policy that placed the object is first, or
// has no claim. claims is not changed.
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

// Skip says that a policy does not place an object although its selectors match, and why.
type Skip struct {
	Policy *policyv1alpha1.PropagationPolicy
	// Reason is ReasonSystemNamespace or ReasonReservedObject, of package policyv1alpha1.
	Reason string
	// Named is true if a selector of the policy matches the object by its name.
	Named bool
}

// Skipped returns the policies whose selectors match an object but that do not place it: the object
// is in a system namespace that they do not name, or no policy may place it. Each policy appears
// once, in no order, and only if none of its selectors selects the object. The result is nil if
// there are none.
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
			continue // another of its selectors selects the object
		}
		i := slices.IndexFunc(skips, func(s Skip) bool { return s.Policy == c.Policy })
		if i < 0 {
			i, skips = len(skips), append(skips, Skip{Policy: c.Policy, Reason: reason})
		}
		skips[i].Named = skips[i].Named || c.specificity == byName
	}
	return skips
}

// matches returns the policies whose selectors match an object, each once with its most specific
// selector. claims are sorted, the winner first. skipped are matches of cluster-wide policies for
// an object of a system namespace that the selector does not name. It does not check whether the
// object may be placed at all.
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
			// A cluster-wide policy must name a system namespace to select objects in it.
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

// before compares two claims on an object: the result is negative if a wins over b. It does not
// consider which policy placed the object, nor preemption.
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
