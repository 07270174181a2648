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

// incomplete has the last counts of objects that the database refused: entirely, or with a part,
// without which they are stored. It may be used from several goroutines.
type incomplete struct {
	asking sync.Mutex // held while the store is read, so that the latest result wins

	mu       sync.Mutex
	of       map[string][]store.Incomplete // by cluster
	reported map[string]time.Time          // when reportIncomplete last updated the cluster's status
	due      map[string]bool               // clusters for which an update of the status is scheduled
}

// incompleteEvery is the least time between two updates of a cluster's status because its counts
// of incomplete objects changed. Frequent writes in a member must not cause as many writes on the
// hub.
const incompleteEvery = 10 * time.Second

// countIncomplete reads from the store how many objects are stored incompletely or not at all, and
// requests a new status for each cluster whose counts changed. It is called after each write. The
// store keeps the counts in memory, so this is cheap. If the store fails, the earlier counts stay.
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
		m.reportIncomplete(name)
	}
}

// reportIncomplete requests a new status for a cluster whose counts changed. If the last such
// request is more recent than incompleteEvery, it schedules the request for the end of that time
// and returns.
func (m *Mirror) reportIncomplete(name string) {
	i := &m.incomplete
	i.mu.Lock()
	if i.reported == nil {
		i.reported, i.due = map[string]time.Time{}, map[string]bool{}
	}
	wait := incompleteEvery - time.Since(i.reported[name])
	later := wait > 0 && !i.due[name]
	i.due[name] = wait > 0
	if wait <= 0 {
		i.reported[name] = time.Now()
	}
	i.mu.Unlock()
	switch {
	case wait <= 0:
		m.fleet.Refresh(name)
	case later:
		time.AfterFunc(wait, func() { m.reportIncomplete(name) })
	}
}

// Incomplete returns how many objects of a type of a cluster are stored incompletely. partly counts
// those that are stored without a part that the database refused, and missing those that it refused
// entirely. Both are 0 for an unknown type or cluster.
func (m *Mirror) Incomplete(cluster string, gr schema.GroupResource) (partly, missing int) {
	for _, one := range m.incomplete.in(cluster) {
		if one.Resource == gr {
			return one.Partly, one.Missing
		}
	}
	return 0, 0
}

// in returns the counts of a cluster, one entry for each type with such objects; nil: none. The
// caller must not change them.
func (i *incomplete) in(cluster string) []store.Incomplete {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.of[cluster]
}

// notice returns the text about objects that the database refused for the status of a cluster; "":
// it refused none.
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

// shortened joins texts with ", ". Of more than three texts it takes the first three, and appends
// "…".
func shortened(texts []string) string {
	if len(texts) > 3 {
		texts = append(texts[:3:3], "…")
	}
	return strings.Join(texts, ", ")
}

// total returns the sums over all types of a cluster: objects that are stored without a part, and
// objects that are not stored.
func (i *incomplete) total(cluster string) (partly, missing int) {
	for _, one := range i.in(cluster) {
		partly, missing = partly+one.Partly, missing+one.Missing
	}
	return partly, missing
}
