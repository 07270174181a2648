package fleetapi

import (
	"sync"

	"k8s.io/apimachinery/pkg/util/sets"

	"orrery.dev/orrery/internal/fleet"
)

// generations count, for each namespace of the hub, how often the set of clusters changed that the
// namespace may use. Searches compare the counts to notice such changes. A count changes after the
// fleet cache has the new rights. Several goroutines may use it.
type generations struct {
	mu       sync.RWMutex
	last     uint64
	everyone uint64
	by       map[string]uint64 // the last change of each namespace
}

// mostGenerations is the maximum number of namespaces with their own count, including deleted
// namespaces.
const mostGenerations = 100_000

// newGenerations returns generations in which every count is 0.
func newGenerations() *generations { return &generations{by: map[string]uint64{}} }

// of returns the count of a namespace, which grows with each change of the clusters that the
// namespace may use. It is 0 before the first change. It may also grow when other namespaces
// change.
func (g *generations) of(namespace string) uint64 {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return max(g.everyone, g.by[namespace])
}

// changed records that these namespaces may use other clusters than before. If more than
// mostGenerations namespaces would have a count, it counts a change of all namespaces.
func (g *generations) changed(namespaces sets.Set[string]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.last++
	if len(g.by)+len(namespaces) > mostGenerations {
		clear(g.by)
		g.everyone = g.last
		return
	}
	for namespace := range namespaces {
		g.by[namespace] = g.last
	}
}

// moved records a change of a cluster. If the labels of the cluster changed, all counts change,
// because ClusterAccesses that select clusters by labels may allow the cluster to other namespaces.
// Other changes of a cluster are ignored, also that it joins or leaves.
func (g *generations) moved(c fleet.Change) {
	if c.Before == nil || c.After == nil || c.What&fleet.Labels == 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.last++
	g.everyone = g.last
}
