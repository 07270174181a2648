package fleetapi

import (
	"sync"

	"k8s.io/apimachinery/pkg/util/sets"

	"orrery.dev/orrery/internal/fleet"
)

// generations count the changes of the clusters that namespaces of the hub may use. A count
// changes after the fences.
type generations struct {
	mu       sync.RWMutex
	last     uint64
	everyone uint64
	by       map[string]uint64 // namespace
}

// mostGenerations is the maximum number of namespaces with their own generation, including
// deleted ones.
const mostGenerations = 100_000

func newGenerations() *generations { return &generations{by: map[string]uint64{}} }

// of returns the generation of a namespace.
func (g *generations) of(namespace string) uint64 {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return max(g.everyone, g.by[namespace])
}

// changed records that namespaces may use other clusters than before.
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

// moved records a change of a cluster. If its labels change, fences that select by labels may
// open it to other namespaces. A cluster that joins or leaves is not a change of rights.
func (g *generations) moved(c fleet.Change) {
	if c.Before == nil || c.After == nil || c.What&fleet.Labels == 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.last++
	g.everyone = g.last
}
