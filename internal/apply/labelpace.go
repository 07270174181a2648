package apply

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// labelWrites remembers the labels that this process gave namespaces of one cluster, by
// namespace. Labels that somebody keeps changing are put back at the pace of copies.
type labelWrites struct {
	mu      sync.Mutex
	written map[string]labelWrite
}

// labelWrite is the last write of the labels of a namespace.
type labelWrite struct {
	labels   map[string]string
	putBacks int // in a row
	at       time.Time
}

// pause returns the time until the labels of a namespace may be written.
func (l *labelWrites) pause(namespace string, labels map[string]string, now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	w, known := l.written[namespace]
	if !known || !maps.Equal(w.labels, labels) {
		return 0
	}
	return pauseAfter(w.putBacks, w.at, now)
}

// wrote records that the labels of a namespace were written. contested is true once for labels
// that are put back again and again.
func (l *labelWrites) wrote(namespace string, labels map[string]string, now time.Time) (contested bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w, known := l.written[namespace]
	switch {
	case !known || now.Sub(w.at) > PutBackMemory || !maps.Equal(w.labels, labels):
		w.putBacks = 0
	default:
		w.putBacks++
	}
	w.labels, w.at = labels, now
	l.written[namespace] = w
	return w.putBacks == contestedAfter
}

// forget removes a namespace that is gone.
func (l *labelWrites) forget(namespace string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.written, namespace)
}

// labelContest says who keeps changing labels of a namespace that the hub puts back.
func labelContest(cluster string, found *unstructured.Unstructured, changes map[string]any) string {
	var paths, managers []string
	for _, label := range slices.Sorted(maps.Keys(changes)) {
		paths = append(paths, label)
		for _, manager := range owners(found, "f:metadata", "f:labels", "f:"+label) {
			managers = append(managers, fmt.Sprintf("%q", manager))
		}
	}
	slices.Sort(managers)
	if managers = slices.Compact(managers); len(managers) == 0 {
		managers = []string{"a client that managedFields does not name"}
	}
	return fmt.Sprintf("%s: %s changes labels of the namespace each time the hub puts them back: %s; the hub waits longer each time, up to 5 minutes; "+
		"take the labels off the hub's namespace, or have the other manager leave them alone", cluster, some(managers), some(paths))
}
