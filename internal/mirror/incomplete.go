package mirror

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"orrery.dev/orrery/internal/store"
)

// incomplete has, by cluster, the last counts of objects that the store lacks or has without a
// part.
type incomplete struct {
	asking sync.Mutex // one read at a time, so that the later result counts

	mu   sync.Mutex
	of   map[string][]store.Incomplete
	told map[string]time.Time // when the cluster's status was last updated for it
	due  map[string]bool      // an update is scheduled, after incompleteEvery
}

// incompleteEvery is the least time between two updates of a cluster's status for changed counts.
// Frequent writes in a member must not cause as many writes on the hub.
const incompleteEvery = 10 * time.Second

// countIncomplete reads the counts from the store, which has them in memory unless they may have
// changed.
func (m *Mirror) countIncomplete(ctx context.Context) {
	i := &m.incomplete
	i.asking.Lock()
	defer i.asking.Unlock()
	all, err := m.store.Incomplete(ctx)
	if err != nil {
		m.log.V(1).Info("the store cannot say which objects it has not as they are; it is asked after the next write", "error", err.Error())
		return
	}
	now := map[string][]store.Incomplete{}
	for _, one := range all {
		now[one.Cluster] = append(now[one.Cluster], one)
	}
	i.mu.Lock()
	var changed []string
	for name := range now {
		if !slices.Equal(now[name], i.of[name]) {
			changed = append(changed, name)
		}
	}
	for name := range i.of {
		if now[name] == nil {
			changed = append(changed, name)
		}
	}
	i.of = now
	i.mu.Unlock()
	for _, name := range changed {
		m.tellIncomplete(name)
	}
}

// tellIncomplete updates the status of a cluster, now or after the rest of incompleteEvery.
func (m *Mirror) tellIncomplete(name string) {
	i := &m.incomplete
	i.mu.Lock()
	if i.told == nil {
		i.told, i.due = map[string]time.Time{}, map[string]bool{}
	}
	wait := incompleteEvery - time.Since(i.told[name])
	later := wait > 0 && !i.due[name]
	i.due[name] = wait > 0
	if wait <= 0 {
		i.told[name] = time.Now()
	}
	i.mu.Unlock()
	switch {
	case wait <= 0:
		m.fleet.Refresh(name)
	case later:
		time.AfterFunc(wait, func() { m.tellIncomplete(name) })
	}
}

// Incomplete returns how many objects of a type of a cluster the store has without a part, and
// how many it lacks, because its database refuses them.
func (m *Mirror) Incomplete(cluster string, gr schema.GroupResource) (partly, missing int) {
	for _, one := range m.incomplete.in(cluster) {
		if one.Resource == gr {
			return one.Partly, one.Missing
		}
	}
	return 0, 0
}

// in returns the counts of a cluster. The caller must not change them.
func (i *incomplete) in(cluster string) []store.Incomplete {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.of[cluster]
}

// notice returns the text for a cluster's status about incompletely stored objects; "": none.
func (i *incomplete) notice(cluster string) string {
	var partly, missing []string
	for _, one := range i.in(cluster) {
		if one.Partly > 0 {
			partly = append(partly, fmt.Sprintf("%d of %s", one.Partly, one.Resource))
		}
		if one.Missing > 0 {
			missing = append(missing, fmt.Sprintf("%d of %s", one.Missing, one.Resource))
		}
	}
	var said []string
	if len(partly) > 0 {
		said = append(said, "stored without a part that the mirror's database refuses: "+shortened(partly))
	}
	if len(missing) > 0 {
		said = append(said, "not stored, because the database refuses even their names: "+shortened(missing))
	}
	return strings.Join(said, "; ")
}

// shortened joins the first three texts.
func shortened(texts []string) string {
	if len(texts) > 3 {
		texts = append(texts[:3:3], "…")
	}
	return strings.Join(texts, ", ")
}

// total returns the counts of a cluster for all types.
func (i *incomplete) total(cluster string) (partly, missing int) {
	for _, one := range i.in(cluster) {
		partly, missing = partly+one.Partly, missing+one.Missing
	}
	return partly, missing
}
