package scheduler

import "sync/atomic"

// selection caches the part of a decision that does not depend on the object: which clusters each
// term selects, and their static weights. Most decisions are for the same clusters as the one
// before, and matching labels takes most of the time.
type selection struct {
	clusters []*Cluster
	terms    int
	tiers    []int8 // index i*terms+t: the tier of cluster i in term t
	weights  []int64
}

// memo keeps the last selection of a placement, for speed only.
type memo struct{ last atomic.Pointer[selection] }

// selection returns the selection for a list of clusters. The list must not change afterwards.
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
	}
	p.memo.last.Store(s)
	return s
}

// selects reports whether a term selects cluster i.
func (s *selection) selects(i int) bool { return first(s.tiers[i*s.terms:(i+1)*s.terms]) != noTier }

func first(tiers []int8) int8 {
	for _, tier := range tiers {
		if tier != noTier {
			return tier
		}
	}
	return noTier
}

// facts is what the filters need beside the cluster itself.
type facts struct {
	placed   bool // the object is in the cluster
	selected bool // some term selects the cluster
	tier     int8 // in the term that is tried
	weight   int64
}

// of returns the facts about cluster i for a term; for anyTerm, of the first term that selects the
// cluster.
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

// anyTerm means that no term is tried.
const anyTerm = -1

// facts returns the facts about a single cluster as for anyTerm.
func (r *Request) facts(c *Cluster, placed bool) facts {
	f := facts{placed: placed, tier: noTier, weight: r.Placement.weigh(c)}
	for i := range r.Placement.terms {
		if tier := r.Placement.terms[i].tier(c); tier != noTier {
			return facts{placed: placed, selected: true, tier: tier, weight: f.weight}
		}
	}
	return f
}
