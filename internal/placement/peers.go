package placement

import (
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
)

// groupsOf returns the affinity group and the anti-affinity group of an object. A group is
// KEY=VALUE of the label that the workloadAffinity of its policy names. The result is nil if the
// object belongs to no group.
func groupsOf(o *unstructured.Unstructured, affinity *policyv1alpha1.WorkloadAffinity) *workv1alpha2.WorkloadAffinityGroups {
	if affinity == nil {
		return nil
	}
	group := func(term *policyv1alpha1.WorkloadAffinityTerm) string {
		if term == nil {
			return ""
		}
		value, ok := o.GetLabels()[term.GroupByLabelKey]
		if !ok {
			return ""
		}
		return term.GroupByLabelKey + "=" + value
	}
	groups := workv1alpha2.WorkloadAffinityGroups{AffinityGroup: group(affinity.Affinity), AntiAffinityGroup: group(affinity.AntiAffinity)}
	if groups == (workv1alpha2.WorkloadAffinityGroups{}) {
		return nil
	}
	return &groups
}

// peers indexes in which clusters the members of each workload affinity group are placed, by the
// written bindings. Objects of one namespace that belong to groups are decided one after the other,
// each only when the binding of the previous one is written. Otherwise two members of an
// anti-affinity group could choose the same cluster. It is safe for concurrent use.
type peers struct {
	mu       sync.Mutex
	entries  map[binding.Template]peer
	groups   map[peerGroup]sets.Set[binding.Template]
	deciding map[string]*sync.Mutex // held during a decision, by namespace
}

// peerGroup is the key of an affinity group or, if apart is true, of an anti-affinity group.
type peerGroup struct {
	namespace, name string
	apart           bool
}

// peer is the placement of an object that belongs to groups, as its binding says.
type peer struct {
	uid        types.UID // UID of the binding
	generation int64     // generation of the binding
	groups     []peerGroup
	placed     sets.Set[string] // target clusters
	leaving    sets.Set[string] // clusters that the object moves out of
}

func newPeers() *peers {
	return &peers{
		entries: map[binding.Template]peer{}, groups: map[peerGroup]sets.Set[binding.Template]{}, deciding: map[string]*sync.Mutex{},
	}
}

// enter blocks until no other object of k's namespace that belongs to groups is being decided.
// groups are those of k; nil: enter returns at once. The caller calls leave once, when the binding
// of k is written or the decision is dropped.
func (p *peers) enter(k binding.Template, groups *workv1alpha2.WorkloadAffinityGroups) (leave func()) {
	if groups == nil {
		return func() {}
	}
	p.mu.Lock()
	lock := p.deciding[k.Namespace]
	if lock == nil {
		lock = &sync.Mutex{}
		p.deciding[k.Namespace] = lock
	}
	p.mu.Unlock()
	lock.Lock()
	return lock.Unlock
}

// others returns the clusters with other members of the groups of the object k: together has those
// of its affinity group, apart those of its anti-affinity group. Both are nil if groups is nil.
func (p *peers) others(k binding.Template, groups *workv1alpha2.WorkloadAffinityGroups) (together, apart sets.Set[string]) {
	if groups == nil {
		return nil, nil
	}
	return p.othersThan(func(other binding.Template) bool { return other == k }, k.Namespace, groups)
}

// othersThan returns the clusters with members of the groups, without members for which out returns
// true. together has those of the affinity group, apart those of the anti-affinity group, including
// clusters that members are moving out of.
func (p *peers) othersThan(out func(binding.Template) bool, namespace string, groups *workv1alpha2.WorkloadAffinityGroups) (together, apart sets.Set[string]) {
	p.mu.Lock()
	defer p.mu.Unlock()
	together, apart = sets.New[string](), sets.New[string]()
	for _, g := range groupKeys(namespace, groups) {
		for other := range p.groups[g] {
			switch e := p.entries[other]; {
			case out(other):
			case g.apart:
				apart = apart.Union(e.placed).Union(e.leaving)
			default:
				together = together.Union(e.placed)
			}
		}
	}
	return together, apart
}

// members returns the objects that belong to the groups of a namespace, in no order, some perhaps
// twice; nil if groups is nil.
func (p *peers) members(namespace string, groups *workv1alpha2.WorkloadAffinityGroups) []binding.Template {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []binding.Template
	for _, g := range groupKeys(namespace, groups) {
		all = append(all, p.groups[g].UnsortedList()...)
	}
	return all
}

// groupKeys returns the keys of an object's groups in its namespace: none, one or two; nil if
// groups is nil.
func groupKeys(namespace string, groups *workv1alpha2.WorkloadAffinityGroups) []peerGroup {
	var keys []peerGroup
	if groups != nil && groups.AffinityGroup != "" {
		keys = append(keys, peerGroup{namespace: namespace, name: groups.AffinityGroup})
	}
	if groups != nil && groups.AntiAffinityGroup != "" {
		keys = append(keys, peerGroup{namespace: namespace, name: groups.AntiAffinityGroup, apart: true})
	}
	return keys
}

// set records in which clusters a binding places its object, unless this or a newer generation of
// the binding is recorded. It returns the other members of the object's groups, which must be
// decided again; nil if nothing changed for them.
func (p *peers) set(b *workv1alpha2.ResourceBinding) []binding.Template {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := binding.TemplateOf(b)
	before, known := p.entries[k]
	groups := groupKeys(b.Namespace, b.Spec.WorkloadAffinityGroups)
	if !known && len(groups) == 0 || known && before.uid == b.UID && before.generation >= b.Generation {
		return nil
	}
	after := peer{uid: b.UID, generation: b.Generation, groups: groups, placed: sets.New[string](), leaving: sets.New[string]()}
	for _, t := range b.Spec.Clusters {
		after.placed.Insert(t.Name)
	}
	for _, t := range b.Spec.GracefulEvictionTasks {
		after.leaving.Insert(t.FromCluster)
	}
	if known && sameGroups(before.groups, groups) && before.placed.Equal(after.placed) && before.leaving.Equal(after.leaving) {
		p.entries[k] = after
		return nil
	}
	concerned := p.remove(k)
	if len(groups) > 0 {
		p.entries[k] = after
	}
	for _, g := range groups {
		concerned = concerned.Union(p.groups[g])
		if p.groups[g] == nil {
			p.groups[g] = sets.New[binding.Template]()
		}
		p.groups[g].Insert(k)
	}
	return concerned.Delete(k).UnsortedList()
}

func sameGroups(a, b []peerGroup) bool {
	return sets.New(a...).Equal(sets.New(b...))
}

// forget removes the object of a deleted binding, and returns the other members of its groups,
// which must be decided again. If another binding of the object is recorded, or none, it does
// nothing.
func (p *peers) forget(b *workv1alpha2.ResourceBinding) []binding.Template {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := binding.TemplateOf(b)
	if p.entries[k].uid != b.UID {
		return nil
	}
	return p.remove(k).Delete(k).UnsortedList()
}

// remove removes an object from its groups and returns the members that these had, the object
// included. The caller holds p.mu.
func (p *peers) remove(k binding.Template) sets.Set[binding.Template] {
	members := sets.New[binding.Template]()
	for _, g := range p.entries[k].groups {
		members = members.Union(p.groups[g])
		if p.groups[g].Delete(k); p.groups[g].Len() == 0 {
			delete(p.groups, g)
		}
	}
	delete(p.entries, k)
	return members
}
