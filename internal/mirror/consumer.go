package mirror

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// consumer derives data in memory from the objects of some types of one cluster. newCluster lists
// the consumers of a cluster. A table passes its observations to the consumers that read its type,
// and holds the cluster's lock during the calls. An entry has the parts of an object that consumers
// need, parsed before the cluster is locked.
//
// For each object, observe is called once for each state that a list, a watch or the store
// returned, in order, and forget once when the object is gone. A state is a UID and a resource
// version; a later list does not repeat it. A new object with the name of an earlier one and
// another UID replaces the earlier one without a call of forget, so that readers always find one of
// them.
//
// Responses to writes of this hub reach only the index, through Mirror.Observe and
// Mirror.ObserveDeleted. The watch reports the writes to all consumers later. Until then a list may
// repeat the state of such an object.
type consumer interface {
	// reads reports whether the consumer is passed the objects of a type.
	reads(gr schema.GroupResource) bool
	// observe sets the state of the object e of the table t. It appends the events to publish to
	// events, and returns the result.
	observe(events []Event, t *table, e *entry) []Event
	// forget removes the object of the table t with the key k and the UID: the object is gone, or
	// no longer mirrored. It appends the events to publish to events, and returns the result.
	forget(events []Event, t *table, k key, uid types.UID) []Event
}

// discard makes the consumers forget the object with the key k and the UID. It appends the events
// to publish to events. The caller holds the cluster's lock.
func (t *table) discard(events []Event, k key, uid types.UID) []Event {
	delete(t.happened, k)
	for _, c := range t.consumers {
		events = c.forget(events, t, k, uid)
	}
	return events
}

// discardAll makes the consumers forget all objects of the table, and returns the events to
// publish. It requests no new status of the cluster. The caller holds the cluster's lock, and does
// not use the table again.
func (t *table) discardAll() (events []Event) {
	t.synced = false // so the capacity notifies nobody for each object
	for k, r := range t.records {
		events = t.discard(events, k, r.uid)
	}
	return events
}
