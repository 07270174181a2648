// Package access computes which namespaces of the hub may use which clusters, from ClusterAccesses:
// the fence between tenants and clusters. It is pure. Code that places objects of a namespace, or
// shows them, uses a Set. Roles computes in which namespaces a user may perform an action.
//
// The ClusterAccesses that select a namespace add up. The namespace may use the clusters that any
// of them selects. It may tolerate a taint of such a cluster if the same ClusterAccess grants that.
// A namespace that no ClusterAccess selects may use what the server's Default says. An invalid
// ClusterAccess grants nothing: with an invalid namespaceSelector it selects every namespace, and
// admits none.
package access

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	"orrery.dev/orrery/internal/policy"
	"orrery.dev/orrery/internal/scheduler"
)

// Default says which clusters a namespace may use that no ClusterAccess selects. It is the value of
// a flag; the zero value means All.
type Default string

// The defaults.
const (
	All  Default = "all"
	None Default = "none"
)

// String implements pflag.Value.
func (d *Default) String() string { return string(cmp.Or(*d, All)) }

// Set implements pflag.Value.
func (d *Default) Set(value string) error {
	if *d = Default(value); *d != All && *d != None {
		return fmt.Errorf("%q is neither %s nor %s", value, All, None)
	}
	return nil
}

// Type implements pflag.Value.
func (*Default) Type() string { return "all|none" }

// grant is a ClusterAccess, compiled once for many namespaces and clusters.
type grant struct {
	name        string
	spec        policyv1alpha1.ClusterAccessSpec
	namespaces  labels.Selector
	clusters    *policy.Affinity // nil: none
	tolerations []corev1.Toleration
	wrong       error // the invalid part
}

func compile(a *policyv1alpha1.ClusterAccess) *grant {
	g := &grant{name: a.Name, spec: a.Spec, namespaces: labels.Everything(), tolerations: a.Spec.ClusterTolerations}
	selector, err := metav1.LabelSelectorAsSelector(a.Spec.NamespaceSelector)
	if err != nil {
		g.wrong = fmt.Errorf("spec.namespaceSelector: %w", err)
		return g
	}
	g.namespaces = selector
	if g.clusters, err = policy.CompileAffinity(a.Spec.ClusterAffinity); err != nil {
		g.clusters, g.wrong = nil, fmt.Errorf("spec.clusterAffinity.%w", err)
	}
	return g
}

func (g *grant) selects(c *scheduler.Cluster) bool {
	return g.clusters != nil && g.clusters.Selects(c.Name, c.Labels, c.Provider, c.Region, c.Zones)
}

// Fence is what a namespace may use. Namespaces that the same ClusterAccesses select share one
// Fence. It is immutable.
type Fence struct {
	grants  []*grant // sorted by name
	unknown bool     // the namespace is unknown
}

var _ scheduler.Fence = &Fence{}

// Allows implements scheduler.Fence. A nil Fence allows every cluster.
func (f *Fence) Allows(c *scheduler.Cluster) bool {
	if f == nil {
		return true
	}
	for _, g := range f.grants {
		if g.selects(c) {
			return true
		}
	}
	return false
}

// Tolerates implements scheduler.Fence. A taint may be tolerated if a ClusterAccess that selects
// the namespace and the cluster grants that.
func (f *Fence) Tolerates(c *scheduler.Cluster, t *corev1.Taint) bool {
	if f == nil {
		return true
	}
	for _, g := range f.grants {
		for i := range g.tolerations {
			if scheduler.Tolerates(g.tolerations[i], t) && g.selects(c) {
				return true
			}
		}
	}
	return false
}

// Known reports whether the namespace is known. An unknown namespace may use no cluster.
func (f *Fence) Known() bool { return f == nil || !f.unknown }

// Closed implements scheduler.Fence. The Fence must not be nil.
func (f *Fence) Closed() string {
	for _, g := range f.grants {
		if g.wrong != nil {
			return fmt.Sprintf("ClusterAccess %s cannot be read and lets nobody in: %v", g.name, g.wrong)
		}
	}
	switch {
	case f.unknown:
		return "its namespace is not known yet"
	case len(f.grants) == 0:
		return "no ClusterAccess selects its namespace, and without one it may use no cluster"
	default:
		return f.names() + " lets its namespace into other clusters only"
	}
}

// Ungranted implements scheduler.Fence. The Fence must not be nil.
func (f *Fence) Ungranted() string {
	return f.names() + " does not grant that in clusterTolerations"
}

// mostNamed is the number of ClusterAccesses that a message names at most.
const mostNamed = 3

func (f *Fence) names() string {
	names := make([]string, 0, len(f.grants))
	for _, g := range f.grants {
		names = append(names, g.name)
	}
	if more := len(names) - mostNamed; more > 0 {
		names = append(names[:mostNamed], fmt.Sprintf("%d more", more))
	}
	return "ClusterAccess " + strings.Join(names, ", ")
}

// Set holds which namespaces may use which clusters. It is immutable. A nil Set has no fences.
type Set struct {
	fences map[string]*Fence // by namespace; a nil Fence allows every cluster
	others *Fence            // for unknown namespaces
}

// Unknown returns the Set before the ClusterAccesses are listed: no namespace may use any cluster.
func Unknown() *Set { return &Set{others: &Fence{unknown: true}} }

// Fence returns the fence of a namespace; nil if it may use every cluster. Cluster-scoped objects
// ("") have no fence.
func (s *Set) Fence(namespace string) *Fence {
	if s == nil || namespace == "" {
		return nil
	}
	if f, known := s.fences[namespace]; known {
		return f
	}
	return s.others
}

// Allowed reports whether a namespace may use a cluster.
func (s *Set) Allowed(namespace string, c *scheduler.Cluster) bool {
	return s.Fence(namespace).Allows(c)
}

// Rules collects ClusterAccesses and the labels of namespaces, and makes Sets of them. It is not
// safe for concurrent use.
type Rules struct {
	byDefault  *Fence
	grants     []*grant // sorted by name
	namespaces map[string]labels.Set
	fences     map[string]*Fence // by namespace
	shared     map[string]*Fence // by the names of the grants
}

// NewRules returns Rules without any ClusterAccess.
func NewRules(byDefault Default) *Rules {
	r := &Rules{namespaces: map[string]labels.Set{}, fences: map[string]*Fence{}, shared: map[string]*Fence{}}
	if byDefault == None {
		r.byDefault = &Fence{}
	}
	return r
}

// Set returns the present Set.
func (r *Rules) Set() *Set {
	s := &Set{fences: maps.Clone(r.fences)}
	if len(r.grants) > 0 || r.byDefault != nil {
		s.others = &Fence{unknown: true}
	}
	return s
}

// Access adds or replaces a ClusterAccess, and returns the namespaces whose fence changed. The
// error names the invalid part of the ClusterAccess, which is added all the same.
func (r *Rules) Access(a *policyv1alpha1.ClusterAccess) (changed []string, err error) {
	i, found := r.find(a.Name)
	switch {
	case found && equality.Semantic.DeepEqual(r.grants[i].spec, a.Spec):
		return nil, r.grants[i].wrong
	case found:
		r.grants[i] = compile(a)
	default:
		r.grants = slices.Insert(r.grants, i, compile(a))
	}
	return r.review(), r.grants[i].wrong
}

// RemoveAccess removes a ClusterAccess, and returns the namespaces whose fence changed.
func (r *Rules) RemoveAccess(name string) (changed []string) {
	i, found := r.find(name)
	if !found {
		return nil
	}
	r.grants = slices.Delete(r.grants, i, i+1)
	return r.review()
}

func (r *Rules) find(name string) (int, bool) {
	return slices.BinarySearchFunc(r.grants, name, func(g *grant, name string) int { return strings.Compare(g.name, name) })
}

// Namespace adds a namespace or replaces its labels, and reports whether its fence changed.
func (r *Rules) Namespace(name string, has labels.Set) (changed bool) {
	before, known := r.fences[name]
	r.namespaces[name], r.fences[name] = has, r.fence(has)
	return !known || r.fences[name] != before
}

// RemoveNamespace removes a namespace.
func (r *Rules) RemoveNamespace(name string) {
	delete(r.namespaces, name)
	delete(r.fences, name)
}

// review computes the fence of every namespace again, and returns the namespaces whose fence
// changed.
func (r *Rules) review() (changed []string) {
	for name, has := range r.namespaces {
		if f := r.fence(has); f != r.fences[name] {
			r.fences[name] = f
			changed = append(changed, name)
		}
	}
	slices.Sort(changed)
	return changed
}

// fence returns the fence for a namespace with these labels. It is the same pointer as long as the
// same, unchanged ClusterAccesses select the namespace.
func (r *Rules) fence(has labels.Set) *Fence {
	var grants []*grant
	key := strings.Builder{}
	for _, g := range r.grants {
		if g.namespaces.Matches(has) {
			grants = append(grants, g)
			key.WriteString(g.name + " ")
		}
	}
	if len(grants) == 0 {
		return r.byDefault
	}
	f := r.shared[key.String()]
	if f == nil || !slices.Equal(f.grants, grants) {
		f = &Fence{grants: grants}
		r.shared[key.String()] = f
	}
	return f
}
