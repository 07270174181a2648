package apply

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// labelWrites remembers the labels that this process wrote on namespaces of one cluster. Labels
// that somebody keeps changing are put back with the same growing pauses as copies. The methods may
// be called by several goroutines.
type labelWrites struct {
	mu      sync.Mutex
	written map[string]labelWrite
}

// labelWrite is the last write of the labels of a namespace. putBacks counts the repetitions of the
// same labels in a row.
type labelWrite struct {
	labels   map[string]string
	putBacks int // in a row
	at       time.Time
}

// pause returns the time until the given labels may be written on a namespace; 0: now. Labels that
// differ from the last ones that this process wrote may be written at once.
func (l *labelWrites) pause(namespace string, labels map[string]string, now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	w, known := l.written[namespace]
	if !known || !maps.Equal(w.labels, labels) {
		return 0
	}
	return pauseAfter(w.putBacks, w.at, now)
}

// wrote records that the labels of a namespace were written. contested is true for the write
// that repeats the same labels for the third time in a row, and false for later ones, so that
// the caller reports a contest once.
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

// forget removes the record of a namespace that is gone.
func (l *labelWrites) forget(namespace string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.written, namespace)
}

// PutBackPace returns the part of a message about the pauses before a copy, or the labels of a
// namespace, are put back.
func PutBackPace() string {
	return fmt.Sprintf("the hub waits longer each time, up to %g minutes", longestPutBackPause.Minutes())
}

// labelContest returns the message of an event: which field managers keep changing labels of a
// namespace that the hub puts back. found is the namespace before the last write, and changes has
// the labels of that write as keys.
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
	return fmt.Sprintf("%s: %s changes labels of the namespace each time the hub puts them back: %s; %s; "+
		"take the labels off the hub's namespace, or have the other manager leave them alone", cluster, some(managers), some(paths), PutBackPace())
}
