// Package access computes which namespaces of the hub may use which clusters, from
// ClusterAccesses: the fence between tenants and clusters. It is pure. Code that places objects
// of a namespace, or shows them, uses a Set. Roles computes in which namespaces a user may
// perform an action.
//
// The ClusterAccesses that select a namespace add up. The namespace may use the clusters that
// any of them selects. It may tolerate a taint of such a cluster if the same ClusterAccess
// grants that. The server's Default applies to namespaces that no ClusterAccess selects. An
// invalid ClusterAccess grants nothing: with an invalid namespaceSelector it selects every
// namespace, and admits none.
package access

import (
	"cmp"
	"encoding/binary"
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

	version uint64  // a replaced ClusterAccess has another
	filed   []label // by which Rules finds it
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
	key     string   // of the versions of the grants
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

// Closed implements scheduler.Fence. The message names ClusterAccesses, which users of a namespace
// cannot read. The Fence must not be nil.
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

// Ungranted implements scheduler.Fence.
func (f *Fence) Ungranted() string { return "no ClusterAccess grants that in clusterTolerations" }

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

// Rules collects ClusterAccesses and the labels of namespaces, and makes Sets of them. Nothing is
// computed before the first Set. From then on a change looks only at the namespaces and
// ClusterAccesses that it can concern, by the labels that namespaceSelectors require. Rules is not
// safe for concurrent use.
type Rules struct {
	byDefault  *Fence
	grants     grants
	namespaces objects
	versions   uint64 // of ClusterAccesses so far
	compared   uint64 // namespaceSelectors with labels of namespaces, so far

	// fences by namespace; nil before the first Set. shared has the fences with grants, by key,
	// and users the number of namespaces of each.
	fences map[string]*Fence
	shared map[string]*Fence
	users  map[*Fence]int
}

// NewRules returns Rules without any ClusterAccess.
func NewRules(byDefault Default) *Rules {
	r := &Rules{grants: newGrants(), namespaces: newObjects(), shared: map[string]*Fence{}, users: map[*Fence]int{}}
	if byDefault == None {
		r.byDefault = &Fence{}
	}
	return r
}

// Set returns the present Set.
func (r *Rules) Set() *Set {
	if r.fences == nil {
		r.fences = make(map[string]*Fence, len(r.namespaces.labels))
		for name, has := range r.namespaces.labels {
			r.assign(name, r.fence(has))
		}
	}
	s := &Set{fences: maps.Clone(r.fences)}
	if len(r.grants.named) > 0 || r.byDefault != nil {
		s.others = &Fence{unknown: true}
	}
	return s
}

// Access adds or replaces a ClusterAccess, and returns the namespaces whose fence is another than
// in the Sets so far. The error names the invalid part of the ClusterAccess, which is added all
// the same.
func (r *Rules) Access(a *policyv1alpha1.ClusterAccess) (changed []string, err error) {
	before := r.grants.named[a.Name]
	if before != nil && equality.Semantic.DeepEqual(before.spec, a.Spec) {
		return nil, before.wrong
	}
	g := compile(a)
	r.versions++
	g.version = r.versions
	return r.replace(before, g), g.wrong
}

// RemoveAccess removes a ClusterAccess, and returns the namespaces whose fence changed.
func (r *Rules) RemoveAccess(name string) (changed []string) {
	if g := r.grants.named[name]; g != nil {
		return r.replace(g, nil)
	}
	return nil
}

// Namespace adds a namespace or replaces its labels, and reports whether its fence changed.
func (r *Rules) Namespace(name string, has labels.Set) (changed bool) {
	if before, known := r.namespaces.labels[name]; known && maps.Equal(before, has) {
		return false
	}
	r.namespaces.set(name, has)
	return r.fences == nil || r.assign(name, r.fence(has))
}

// RemoveNamespace removes a namespace.
func (r *Rules) RemoveNamespace(name string) {
	r.namespaces.remove(name)
	if f, known := r.fences[name]; known {
		delete(r.fences, name)
		r.use(f, -1)
	}
}

// replace replaces a grant by another of the same name, and returns the namespaces whose fence
// changed, sorted. before is nil for a new grant, after for a removed one.
func (r *Rules) replace(before, after *grant) (changed []string) {
	if before != nil {
		r.grants.remove(before)
	}
	if after != nil {
		r.grants.add(after)
	}
	if r.fences == nil {
		return nil
	}
	selected := map[string]bool{} // by after; the others are selected by before alone
	for i, g := range []*grant{before, after} {
		if g == nil {
			continue
		}
		for _, name := range r.namespaces.candidates(g.namespaces) {
			if r.selects(g, r.namespaces.labels[name]) {
				selected[name] = i == 1
			}
		}
	}
	type change struct {
		from *Fence
		in   bool
	}
	next := map[change]*Fence{} // namespaces with one fence get one
	for name, in := range selected {
		c := change{r.fences[name], in}
		f, known := next[c]
		if !known {
			f = r.share(c.from.with(before, after, in))
			next[c] = f
		}
		if r.assign(name, f) {
			changed = append(changed, name)
		}
	}
	slices.Sort(changed)
	return changed
}

// with returns the grants of a fence in which before is replaced by after, if in is set.
func (f *Fence) with(before, after *grant, in bool) (all []*grant) {
	if f != nil {
		all = slices.DeleteFunc(slices.Clone(f.grants), func(g *grant) bool { return g == before })
	}
	if in {
		i, _ := slices.BinarySearchFunc(all, after, byName)
		all = slices.Insert(all, i, after)
	}
	return all
}

func byName(a, b *grant) int { return strings.Compare(a.name, b.name) }

func (r *Rules) selects(g *grant, has labels.Set) bool {
	r.compared++
	return g.namespaces.Matches(has)
}

// fence returns the fence for a namespace with these labels.
func (r *Rules) fence(has labels.Set) *Fence {
	selecting := slices.DeleteFunc(r.grants.candidates(has), func(g *grant) bool { return !r.selects(g, has) })
	slices.SortFunc(selecting, byName)
	return r.share(selecting)
}

// share returns the fence of namespaces that these grants select, which are sorted by name. It is
// the same pointer as long as the same, unchanged ClusterAccesses select a namespace.
func (r *Rules) share(selecting []*grant) *Fence {
	if len(selecting) == 0 {
		return r.byDefault
	}
	var key []byte
	for _, g := range selecting {
		key = binary.AppendUvarint(key, g.version)
	}
	f := r.shared[string(key)]
	if f == nil {
		f = &Fence{grants: selecting, key: string(key)}
		r.shared[f.key] = f
	}
	return f
}

// assign sets the fence of a namespace, and reports whether it had another.
func (r *Rules) assign(namespace string, f *Fence) (changed bool) {
	before, known := r.fences[namespace]
	if known && before == f {
		return false
	}
	r.fences[namespace] = f
	r.use(f, 1)
	if known {
		r.use(before, -1)
	}
	return true
}

// use counts the namespaces that have a fence, and forgets a fence that none has.
func (r *Rules) use(f *Fence, n int) {
	if f == nil || len(f.grants) == 0 {
		return
	}
	if r.users[f] += n; r.users[f] == 0 {
		delete(r.users, f)
		delete(r.shared, f.key)
	}
}
