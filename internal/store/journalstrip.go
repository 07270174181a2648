package store

import (
	"slices"
)

// strip removes the data of Secrets of a cluster from the events of the journal, if keep returns
// false for a Secret. A watch that continues then gets only the metadata of these Secrets. KeepData
// calls it. Events are replaced, not changed, because other goroutines may read them.
func (j *journal) strip(cluster string, keep func(namespace string, labels map[string]string) bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	t := j.types[secrets]
	if t == nil {
		return
	}
	replaced := map[*Event]*Event{}
	for _, e := range t.events {
		if e.row().Cluster != cluster {
			continue
		}
		stripped := *e
		stripped.Before, stripped.After = withoutData(e.Before, keep), withoutData(e.After, keep)
		if stripped.Before == e.Before && stripped.After == e.After {
			continue
		}
		stripped.size = stripped.bytes()
		j.size += stripped.size - e.size
		replaced[e] = &stripped
	}
	if len(replaced) == 0 {
		return
	}
	swap := func(events []*Event) []*Event {
		events = slices.Clone(events)
		for i, e := range events {
			if stripped := replaced[e]; stripped != nil {
				events[i] = stripped
			}
		}
		return events
	}
	t.events, j.events = swap(t.events), swap(j.events)
}

// withoutData returns a copy of a Secret whose body has only the metadata. It returns r itself if
// keep returns true, the body has no data, or r is nil. A body that is not JSON is removed.
func withoutData(r *Row, keep func(namespace string, labels map[string]string) bool) *Row {
	if r == nil || len(r.Body) == 0 || keep(r.Namespace, r.Labels) {
		return r
	}
	metadata, more, err := onlyMetadata(r.Body)
	if err == nil && !more {
		return r
	}
	stripped := *r
	stripped.Body = metadata // nil if it cannot be read
	return &stripped
}
