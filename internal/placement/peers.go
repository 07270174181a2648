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

// groupsOf returns the groups of an object by the workloadAffinity of its policy; nil: none.
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

// peers indexes by group in which clusters objects are placed, as the written bindings say. Objects
// of one namespace that have groups are decided one after the other, until the binding is written.
// Otherwise two objects of an anti-affinity group could miss each other.
type peers struct {
	mu       sync.Mutex
	entries  map[binding.Template]peer
	groups   map[peerGroup]sets.Set[binding.Template]
	deciding map[string]*sync.Mutex // by namespace
}

// peerGroup is a group of objects.
type peerGroup struct {
	namespace, name string
	apart           bool
}

// peer is the placement of an object that has groups.
type peer struct {
	uid        types.UID // UID of the binding
	generation int64     // generation of the binding
	groups     []peerGroup
	placed     sets.Set[string] // target clusters
	leaving    sets.Set[string] // clusters that it moves out of
}

func newPeers() *peers {
	return &peers{
		entries: map[binding.Template]peer{}, groups: map[peerGroup]sets.Set[binding.Template]{}, deciding: map[string]*sync.Mutex{},
	}
}

// enter blocks until no other object with groups of the namespace is being decided. The caller
// calls leave when the binding is written. Without groups, enter returns at once.
func (p *peers) enter(k binding.Template, groups *workv1alpha2.WorkloadAffinityGroups) (leave func()) {
	if groups == nil {
		return func() {}
	}
	p.mu.Lock()
	turn := p.deciding[k.Namespace]
	if turn == nil {
		turn = &sync.Mutex{}
		p.deciding[k.Namespace] = turn
	}
	p.mu.Unlock()
	turn.Lock()
	return turn.Unlock
}

// others returns the clusters that other objects of the object's groups are in; nil without groups.
func (p *peers) others(k binding.Template, groups *workv1alpha2.WorkloadAffinityGroups) (together, apart sets.Set[string]) {
	if groups == nil {
		return nil, nil
	}
	return p.othersThan(func(other binding.Template) bool { return other == k }, k.Namespace, groups)
}

// othersThan returns the clusters of the objects in the groups, except objects for which out
// returns true. apart includes clusters that objects are moving out of.
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

// members returns the objects in the groups.
func (p *peers) members(namespace string, groups *workv1alpha2.WorkloadAffinityGroups) []binding.Template {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []binding.Template
	for _, g := range groupKeys(namespace, groups) {
		all = append(all, p.groups[g].UnsortedList()...)
	}
	return all
}

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

// set records where a binding places its object, unless a newer generation is recorded. It returns
// the objects that must be decided again.
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

// forget removes a deleted binding and returns the objects that must be decided again.
func (p *peers) forget(b *workv1alpha2.ResourceBinding) []binding.Template {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := binding.TemplateOf(b)
	if p.entries[k].uid != b.UID {
		return nil
	}
	return p.remove(k).Delete(k).UnsortedList()
}

// remove removes an object from its groups and returns their members, itself included. The caller
// holds mu.
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
