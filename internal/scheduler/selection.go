package scheduler

import "sync/atomic"

// selection is what a placement says of some clusters that does not depend on the object: which
// of them each term selects, and their static weights. Most decisions are about the same clusters
// as the one before, and comparing labels is most of the work.
type selection struct {
	clusters []*Cluster
	terms    int
	tiers    []int8 // of each cluster, in each term
	weights  []int64
	matched  bool // one of them is selected
}

// memo keeps the last selection of a placement. It changes nothing but the time that it takes.
type memo struct{ last atomic.Pointer[selection] }

// selection is the selection of some clusters, which do not change.
func (p *Placement) selection(clusters []*Cluster) *selection {
	last := p.memo.last.Load()
	if last != nil && len(last.clusters) == len(clusters) && (len(clusters) == 0 || &last.clusters[0] == &clusters[0]) {
		return last
	}
	s := &selection{clusters: clusters, terms: len(p.terms), tiers: make([]int8, len(clusters)*len(p.terms))}
	if p.weights != nil {
		s.weights = make([]int64, len(clusters))
	}
	for i, c := range clusters {
		tiers := s.tiers[i*s.terms : (i+1)*s.terms]
		if last != nil && i < len(last.clusters) && last.clusters[i] == c {
			copy(tiers, last.tiers[i*s.terms:])
			if s.weights != nil {
				s.weights[i] = last.weights[i]
			}
		} else {
			for t := range p.terms {
				tiers[t] = p.terms[t].tier(c)
			}
			if s.weights != nil {
				s.weights[i] = p.weigh(c)
			}
		}
		s.matched = s.matched || first(tiers) != noTier
	}
	p.memo.last.Store(s)
	return s
}

func first(tiers []int8) int8 {
	for _, tier := range tiers {
		if tier != noTier {
			return tier
		}
	}
	return noTier
}

// facts is what filters look at beside the cluster itself.
type facts struct {
	placed   bool // the object is in the cluster
	selected bool // a term selects it
	tier     int8 // of the term that is tried
	weight   int64
}

// of are the facts about a cluster when a term is tried; anyTerm: when none is.
func (s *selection) of(i, term int, placed bool) facts {
	tiers := s.tiers[i*s.terms : (i+1)*s.terms]
	f := facts{placed: placed, weight: 1}
	if s.weights != nil {
		f.weight = s.weights[i]
	}
	anyTier := first(tiers)
	f.selected, f.tier = anyTier != noTier, anyTier
	if term != anyTerm {
		f.tier = tiers[term]
	}
	return f
}

// anyTerm stands for no term in particular.
const anyTerm = -1

// facts are those about a single cluster when no term in particular is tried.
func (r *Request) facts(c *Cluster, placed bool) facts {
	f := facts{placed: placed, tier: noTier, weight: r.Placement.weigh(c)}
	for i := range r.Placement.terms {
		if tier := r.Placement.terms[i].tier(c); tier != noTier {
			return facts{placed: placed, selected: true, tier: tier, weight: f.weight}
		}
	}
	return f
}
