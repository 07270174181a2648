package scheduler

import "sync/atomic"

// selection is the part of a decision that does not depend on the object: which clusters each term
// (group of clusterAffinities) selects, and their static weights. It is cached, because most
// decisions are for the same clusters as the decision before, and matching labels takes most of the
// time.
type selection struct {
	clusters []*Cluster
	terms    int
	tiers    []int8 // index i*terms+t: the tier of cluster i in term t
	weights  []int64
}

// memo caches the last selection of a placement.
type memo struct{ last atomic.Pointer[selection] }

// selection returns what the placement selects from a list of clusters. The list must not change
// afterwards: the next call with the same list returns the same selection. It may be called
// concurrently.
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

// selects reports whether any term selects cluster i of the list.
func (s *selection) selects(i int) bool { return first(s.tiers[i*s.terms:(i+1)*s.terms]) != noTier }

// first returns the first of the tiers that is not noTier; noTier if there is none.
func first(tiers []int8) int8 {
	for _, tier := range tiers {
		if tier != noTier {
			return tier
		}
	}
	return noTier
}

// facts are what the filters must know about a cluster and an object, beside the Cluster itself.
// tier is noTier if the term does not select the cluster. weight is the static weight; 1 without a
// list of weights.
type facts struct {
	placed   bool // the object is in the cluster
	selected bool // some term selects the cluster
	tier     int8 // in the term that is tried
	weight   int64
}

// of returns the facts about cluster i of the list for a term. placed is true if the object is in
// the cluster. For anyTerm the facts are those for the first term that selects the cluster.
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

// anyTerm, in place of the index of a term, means that no single term is tried. Facts are then
// those for the first term that selects the cluster.
const anyTerm = -1

// facts returns the facts about a cluster that is not in a selection, for the first term that
// selects the cluster. placed is true if the object is in the cluster.
func (r *Request) facts(c *Cluster, placed bool) facts {
	f := facts{placed: placed, tier: noTier, weight: r.Placement.weigh(c)}
	for i := range r.Placement.terms {
		if tier := r.Placement.terms[i].tier(c); tier != noTier {
			return facts{placed: placed, selected: true, tier: tier, weight: f.weight}
		}
	}
	return f
}
