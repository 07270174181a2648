package records

import (
	"k8s.io/apimachinery/pkg/types"
)

// maxPending is the maximum memory, in bytes, of the decisions that wait for a write to the
// database. Beyond it, the oldest decisions are dropped. A decision that names 1,000 clusters takes
// about 16 kB.
const maxPending = 64 << 20

// batch is what one transaction will write: first the deletion of results, then new results and
// decisions. Records guards it with a lock.
type batch struct {
	bindings  map[types.UID]bool              // whose results are deleted
	clusters  map[string]bool                 // whose results are deleted
	results   map[types.UID]map[string]Result // by binding and cluster
	decisions []Decision
	size      int               // of the decisions, in bytes
	last      map[types.UID]int // index by template, counted from the batch's first decision
	dropped   int               // decisions that were removed at the front
	done      chan struct{}     // closed when the batch was written or dropped
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

// decided adds a decision, which must be the result of canonical. It skips the decision if the last
// one on the same template in the batch has the same outcome. If the decisions exceed limit bytes,
// decided drops the oldest ones, but never the new one. Skipped and dropped decisions are counted
// in a metric.
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

// memory estimates the memory that a decision takes, in bytes.
func memory(d Decision) int {
	n := 512 + len(d.Message) + 32*(len(d.Targets)+len(d.Evictions)) + 64*(len(d.Lost)+len(d.Overrides))
	for _, v := range d.Verdicts {
		n += 64 + len(v.Message) + 16*len(v.Clusters)
	}
	return n
}

// applied adds a result, and replaces the result of the same binding in the same cluster, if the
// batch has one.
func (b *batch) applied(r Result) {
	of := b.results[r.Binding]
	if of == nil {
		of = map[string]Result{}
		b.results[r.Binding] = of
	}
	of[r.Cluster] = r
}

// forgetBinding removes the results of a binding from the batch. When the batch is written, the
// stored results of the binding are also deleted. Results that are added to the batch later are
// kept.
func (b *batch) forgetBinding(binding types.UID) {
	delete(b.results, binding)
	b.bindings[binding] = true
}

// forgetCluster removes the results of a cluster from the batch. When the batch is written, the
// stored results of the cluster are also deleted. Results that are added to the batch later are
// kept.
func (b *batch) forgetCluster(cluster string) {
	for binding, of := range b.results {
		if delete(of, cluster); len(of) == 0 {
			delete(b.results, binding)
		}
	}
	b.clusters[cluster] = true
}

// count returns the number of decisions, and the number of results, that the batch will store.
func (b *batch) count() (decisions, results int) {
	for _, of := range b.results {
		results += len(of)
	}
	return len(b.decisions), results
}
