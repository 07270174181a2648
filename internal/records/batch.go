package records

import (
	"k8s.io/apimachinery/pkg/types"
)

// maxPending bounds the memory of the decisions that wait. One that names 1,000 clusters takes about 16 kB.
const maxPending = 64 << 20

// batch is what is written in one transaction: first what is forgotten, then what is new.
type batch struct {
	bindings  map[types.UID]bool // to forget
	clusters  map[string]bool    // to forget
	results   map[types.UID]map[string]Result
	decisions []Decision
	size      int               // of the decisions
	last      map[types.UID]int // the last decision on a template, counted from the first ever in this batch
	dropped   int               // decisions that were taken out again at the front
	done      chan struct{}     // closed when it was written or given up
}

func newBatch() *batch {
	return &batch{
		bindings: map[types.UID]bool{}, clusters: map[string]bool{}, results: map[types.UID]map[string]Result{},
		last: map[types.UID]int{}, done: make(chan struct{}),
	}
}

func (b *batch) empty() bool {
	return len(b.bindings)+len(b.clusters)+len(b.results)+len(b.decisions) == 0
}

// decided adds a canonical decision, at the price of the oldest ones if there is too much.
func (b *batch) decided(d Decision, limit int) {
	if i, ok := b.last[d.Template.UID]; ok && i >= b.dropped && unchanged(b.decisions[i-b.dropped], d) {
		decisions.WithLabelValues(repeated).Inc()
		return
	}
	b.last[d.Template.UID] = b.dropped + len(b.decisions)
	b.decisions = append(b.decisions, d)
	b.size += memory(d)
	for b.size > limit && len(b.decisions) > 1 {
		oldest := b.decisions[0]
		if b.last[oldest.Template.UID] == b.dropped {
			delete(b.last, oldest.Template.UID)
		}
		b.size -= memory(oldest)
		b.decisions[0] = Decision{}
		b.decisions = b.decisions[1:]
		b.dropped++
		decisions.WithLabelValues(discarded).Inc()
	}
}

// memory is about what a decision takes.
func memory(d Decision) int {
	n := 512 + len(d.Message) + 32*(len(d.Targets)+len(d.Evictions)) + 64*(len(d.Lost)+len(d.Overrides))
	for _, v := range d.Verdicts {
		n += 64 + len(v.Message) + 16*len(v.Clusters)
	}
	return n
}

func (b *batch) applied(r Result) {
	of := b.results[r.Binding]
	if of == nil {
		of = map[string]Result{}
		b.results[r.Binding] = of
	}
	of[r.Cluster] = r
}

func (b *batch) forgetBinding(binding types.UID) {
	delete(b.results, binding)
	b.bindings[binding] = true
}

func (b *batch) forgetCluster(cluster string) {
	for binding, of := range b.results {
		if delete(of, cluster); len(of) == 0 {
			delete(b.results, binding)
		}
	}
	b.clusters[cluster] = true
}

// count is how many decisions and results are in it.
func (b *batch) count() (decisions, results int) {
	for _, of := range b.results {
		results += len(of)
	}
	return len(b.decisions), results
}
