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

// Default is the value of a server flag: which clusters a namespace may use if no ClusterAccess
// selects that namespace. All means every cluster and is also the meaning of ""; None means no
// cluster.
type Default string

// The values of Default: namespaces that no ClusterAccess selects may use every cluster, or none.
const (
	All  Default = "all"
	None Default = "none"
)

// String implements pflag.Value.
func (d *Default) String() string { return string(cmp.Or(*d, All)) }

// Set implements pflag.Value. A value other than all and none is an error, and d has that value
// nevertheless.
func (d *Default) Set(value string) error {
	if *d = Default(value); *d != All && *d != None {
		return fmt.Errorf("%q is neither %s nor %s", value, All, None)
	}
	return nil
}

// Type implements pflag.Value.
func (*Default) Type() string { return "all|none" }

// grant is a ClusterAccess whose selectors are compiled. A ClusterAccess lets the namespaces that
// it selects use the clusters that it selects, and tolerate some taints there. compile makes it.
type grant struct {
	name        string
	spec        policyv1alpha1.ClusterAccessSpec
	namespaces  labels.Selector
	clusters    *policy.Affinity // nil: selects no cluster
	tolerations []corev1.Toleration
	wrong       error // says which part is invalid; nil: none

	version uint64  // number of this state of the ClusterAccess; Rules sets it
	filed   []label // required labels under which grants.requiring has this grant
}

// compile returns the grant of a ClusterAccess. If any part is invalid, the grant selects no
// cluster, and its field wrong names the part. With an invalid namespaceSelector it selects every
// namespace, so that an error never gives more rights.
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

// selects reports whether the ClusterAccess selects a cluster. It is false for every cluster if the
// ClusterAccess is invalid.
func (g *grant) selects(c *scheduler.Cluster) bool {
	return g.clusters != nil && g.clusters.Selects(c.Name, c.Labels, c.Provider, c.Region, c.Zones)
}

// Fence says which clusters a namespace may use and which of their taints it may tolerate: the sum
// of the ClusterAccesses that select the namespace. Namespaces that the same ClusterAccesses select
// share one Fence. It is immutable. A nil Fence allows everything.
type Fence struct {
	grants  []*grant // the ClusterAccesses that select the namespace, sorted by name
	unknown bool     // the labels of the namespace are not known: no cluster is allowed
	key     string   // of the versions of grants; identifies the Fence in Rules.shared
}

var _ scheduler.Fence = &Fence{}

// Allows implements scheduler.Fence: it reports whether the namespace may use the cluster. A nil
// Fence allows every cluster.
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

// Tolerates implements scheduler.Fence: it reports whether policies of the namespace may tolerate a
// taint of the cluster. One ClusterAccess must select both the namespace and the cluster, and have
// a matching toleration in clusterTolerations. With a nil Fence, every taint may be tolerated.
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

// Known reports whether the Fence is that of a namespace whose labels are known. Only the Fence of
// an unknown namespace gives false; it allows no cluster. A nil Fence is known.
func (f *Fence) Known() bool { return f == nil || !f.unknown }

// Closed implements scheduler.Fence: it returns why a cluster that Allows refuses is refused. The
// message names ClusterAccesses, so it is for users who see all clusters. f must not be nil.
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

// Ungranted implements scheduler.Fence: it returns why a taint that Tolerates refuses may not be
// tolerated. The message names no ClusterAccess, because users of the namespace read it.
func (f *Fence) Ungranted() string { return "no ClusterAccess grants that in clusterTolerations" }

// mostNamed is the maximum number of ClusterAccesses that a message names, 3.
const mostNamed = 3

// names returns the names of the ClusterAccesses for a message: the first mostNamed, and the number
// of the others.
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

// Set has the Fence of every namespace at one moment. Rules.Set makes it. It is immutable. With a
// nil Set every namespace may use every cluster.
type Set struct {
	fences map[string]*Fence // by namespace; a nil Fence allows every cluster
	others *Fence            // of namespaces that are not in fences
}

// Unknown returns the Set for the time before the ClusterAccesses are read: no namespace may use
// any cluster, and Fence.Known is false.
func Unknown() *Set { return &Set{others: &Fence{unknown: true}} }

// Fence returns the Fence of a namespace; nil if the namespace may use every cluster. It is nil for
// "", which stands for cluster-scoped objects. A namespace that the Set does not know gets a Fence
// that allows no cluster, unless there are no ClusterAccesses and the default is All.
func (s *Set) Fence(namespace string) *Fence {
	if s == nil || namespace == "" {
		return nil
	}
	if f, known := s.fences[namespace]; known {
		return f
	}
	return s.others
}

// Allowed reports whether objects of a namespace may be placed in a cluster and read from it.
// Cluster-scoped objects ("") may use every cluster.
func (s *Set) Allowed(namespace string, c *scheduler.Cluster) bool {
	return s.Fence(namespace).Allows(c)
}

// Rules computes which namespaces may use which clusters. Callers report each change of a
// ClusterAccess and of the labels of a namespace, and get the present state with Set. Nothing is
// computed before the first call of Set. After it a change costs only the namespaces and
// ClusterAccesses whose labels and namespaceSelectors can match. Rules is not safe for concurrent
// use.
type Rules struct {
	byDefault  *Fence
	grants     grants
	namespaces objects
	versions   uint64 // how many versions of ClusterAccesses there were, for grant.version
	compared   uint64 // how many comparisons of a namespaceSelector with labels there were, for tests

	// fences by namespace; nil before the first Set. shared has the fences with grants, by key,
	// and users the number of namespaces of each.
	fences map[string]*Fence
	shared map[string]*Fence
	users  map[*Fence]int
}

// NewRules returns Rules without any ClusterAccess and namespace. byDefault is for namespaces that
// no ClusterAccess selects.
func NewRules(byDefault Default) *Rules {
	r := &Rules{grants: newGrants(), namespaces: newObjects(), shared: map[string]*Fence{}, users: map[*Fence]int{}}
	if byDefault == None {
		r.byDefault = &Fence{}
	}
	return r
}

// Set returns the present state, which later changes of r do not change. The first call computes
// the Fences of all namespaces.
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

// Access adds or replaces a ClusterAccess. It returns the sorted names of the namespaces whose
// Fence changes by that; nil before the first call of Set. The error names an invalid part of the
// ClusterAccess, which is nevertheless added.
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

// RemoveAccess removes a ClusterAccess. It returns the sorted names of the namespaces whose Fence
// changes by that; nil before the first call of Set. It does nothing for an unknown name.
func (r *Rules) RemoveAccess(name string) (changed []string) {
	if g := r.grants.named[name]; g != nil {
		return r.replace(g, nil)
	}
	return nil
}

// Namespace adds a namespace or replaces its labels. The caller must not change the map has later.
// The result reports whether the Fence of the namespace changed or is new. Before the first call of
// Set, it reports whether the labels changed.
func (r *Rules) Namespace(name string, has labels.Set) (changed bool) {
	if before, known := r.namespaces.labels[name]; known && maps.Equal(before, has) {
		return false
	}
	r.namespaces.set(name, has)
	return r.fences == nil || r.assign(name, r.fence(has))
}

// RemoveNamespace removes a namespace. It does nothing for an unknown name.
func (r *Rules) RemoveNamespace(name string) {
	r.namespaces.remove(name)
	if f, known := r.fences[name]; known {
		delete(r.fences, name)
		r.use(f, -1)
	}
}

// replace replaces the grant before by after, which has the same name. before is nil for a new
// ClusterAccess, after for a removed one. The result has the sorted names of the namespaces whose
// Fence changed; nil before the first call of Set.
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
	selected := map[string]bool{} // true: after selects the namespace; false: only before does
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
	next := map[change]*Fence{} // namespaces that shared a Fence share one again
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

// with returns the grants of f, sorted by name, without before and, if in is true, with after. f
// may be nil. The result is a new slice.
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

// byName compares grants by name, for sorting.
func byName(a, b *grant) int { return strings.Compare(a.name, b.name) }

// selects reports whether the namespaceSelector of a grant matches the labels of a namespace. It
// also counts the comparison in r.compared.
func (r *Rules) selects(g *grant, has labels.Set) bool {
	r.compared++
	return g.namespaces.Matches(has)
}

// fence computes the Fence of a namespace with these labels. It is nil if no ClusterAccess selects
// the namespace and the default is All.
func (r *Rules) fence(has labels.Set) *Fence {
	selecting := slices.DeleteFunc(r.grants.candidates(has), func(g *grant) bool { return !r.selects(g, has) })
	slices.SortFunc(selecting, byName)
	return r.share(selecting)
}

// share returns the one Fence for all namespaces that exactly these grants select. selecting is
// sorted by name. Equal grants give the same pointer as long as a namespace has that Fence. Without
// grants the result is the Fence of the default: nil if that is All.
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

// assign stores f as the Fence of a namespace. It reports whether the namespace had another Fence
// or none before. Set must have been called before, because r.fences must not be nil.
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

// use adds n to the number of namespaces that have a Fence. If no namespace has it any more,
// r.shared forgets the Fence. Fences without grants, also nil, are not counted.
func (r *Rules) use(f *Fence, n int) {
	if f == nil || len(f.grants) == 0 {
		return
	}
	if r.users[f] += n; r.users[f] == 0 {
		delete(r.users, f)
		delete(r.shared, f.key)
	}
}
