package fleetapi

import (
	"sync"

	"k8s.io/apimachinery/pkg/util/sets"

	"orrery.dev/orrery/internal/fleet"
)

// generations count the changes of which clusters the hub's namespaces may use. They are told after the fences that they are about.
type generations struct {
	mu       sync.RWMutex
	last     uint64
	everyone uint64
	by       map[string]uint64 // namespace
}

// mostGenerations bounds the namespaces that have a generation of their own, also of those that are gone.
const mostGenerations = 100_000

func newGenerations() *generations { return &generations{by: map[string]uint64{}} }

// of returns the generation of a namespace.
func (g *generations) of(namespace string) uint64 {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return max(g.everyone, g.by[namespace])
}

// changed notes that namespaces may use other clusters than before.
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

// moved notes a change of a cluster. One that fences select by its labels may be open to other namespaces than before; one that
// joins or leaves is no change of rights.
func (g *generations) moved(c fleet.Change) {
	if c.Before == nil || c.After == nil || c.What&fleet.Labels == 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.last++
	g.everyone = g.last
}
