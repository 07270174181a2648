package mirror

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"orrery.dev/orrery/internal/store"
)

// checkpoint allows the watch of a type to continue after a restart without a new list. It states
// that the stored rows of the type are those of the cluster at ResourceVersion, or newer. It is
// stored as JSON in the same database as the rows. A checkpoint is used only if all its fields
// equal those that the present settings would give.
type checkpoint struct {
	Rows            int    `json:"rows"`    // rowFormat when the rows were written
	Cluster         string `json:"cluster"` // see cluster.identity
	Version         string `json:"version"` // of the API of the type
	Kind            string `json:"kind"`
	Namespaced      bool   `json:"namespaced"`
	Filter          string `json:"filter,omitempty"` // filter.String of the settings; "": all
	Data            string `json:"data,omitempty"`   // dataOf of the settings; "": none
	ResourceVersion string `json:"resourceVersion"`
}

// rowFormat is the version of the stored rows. It is incremented when the index in memory needs
// data that earlier rows lack. A checkpoint with another rowFormat is not used.
const rowFormat = 1

// checkpointAt returns the checkpoint of the table's type by its present settings, for a cluster
// (see cluster.identity) and a resource version. The caller holds the cluster's lock, or is the
// only goroutine that changes the settings.
func (t *table) checkpointAt(identity, resourceVersion string) checkpoint {
	return checkpoint{
		Rows: rowFormat, Cluster: identity, ResourceVersion: resourceVersion,
		Version: t.api.GroupVersionKind.Version, Kind: t.api.GroupVersionKind.Kind, Namespaced: t.api.Namespaced,
		Filter: t.filter.String(), Data: dataOf(t.data),
	}
}

// identity returns a text that identifies the cluster that answers now: the UID of its Cluster on
// the hub and that of its own namespace kube-system. It is "" while the cluster is unreachable.
// Data of a cluster with another identity is not used.
func (c *cluster) identity() string {
	id := c.source.ID()
	if id == "" {
		return ""
	}
	return string(c.source.Cluster().UID) + "/" + id
}

// resumable has the stored rows of a type and the checkpoint that covers them: the identity of
// their cluster and the resource version from which a watch can continue.
type resumable struct {
	identity        string
	resourceVersion string
	entries         []*entry
}

// Before a type is listed for the first time, its watch loop waits up to recallPatience for the
// rows that the store has of the type. With the rows, the list writes only differences. With a
// checkpoint, no list is necessary. A failed read of the store is repeated in the background after
// recallDelay, and then with growing delays up to recallLongest.
const (
	recallPatience = 5 * time.Second
	recallDelay    = time.Second
	recallLongest  = 30 * time.Second
)

// recall reads what the store has of the table's type, unless that was done or is being done. It
// waits up to recallPatience for the result. Failed reads are repeated in the background, as part
// of running, until ctx ends. If the result comes later, the type is listed again then, so that
// stored objects that the cluster no longer has are deleted.
func (t *table) recall(ctx context.Context, running *sync.WaitGroup) {
	t.cluster.mu.Lock()
	begin := !t.recalled && !t.recalls
	t.recalls = t.recalls || begin
	t.cluster.mu.Unlock()
	if !begin {
		return
	}
	first := make(chan struct{})
	var late atomic.Bool
	running.Go(func() {
		attempted := sync.OnceFunc(func() { close(first) })
		defer attempted()
		defer func() {
			t.cluster.mu.Lock()
			t.recalls = false
			t.cluster.mu.Unlock()
		}()
		for delay := recallDelay; ; delay = min(2*delay, recallLongest) {
			err := t.askStore(ctx, &late)
			if err == nil {
				break
			}
			logr.FromContextOrDiscard(ctx).Info("the store cannot say what it has of a type; it is asked again", "error", err.Error())
			late.Store(true)
			attempted()
			select {
			case <-time.After(delay + rand.N(delay)/2): //nolint:gosec // spreads load, guards nothing
			case <-ctx.Done():
				return
			}
		}
		if late.Load() {
			t.again()
		}
	})
	select {
	case <-first:
	case <-ctx.Done():
	case <-time.After(recallPatience):
		late.Store(true)
	}
}

// askStore saves the type in the store, and then reads what the store has of the type into t.stored
// and t.resumable. Without a usable checkpoint it reads only the keys of the rows. late is true
// once the caller no longer waits: then a checkpoint is of no use. It is an error if the store
// fails, or was replaced or lost during the call.
func (t *table) askStore(ctx context.Context, late *atomic.Bool) error {
	m := t.cluster.mirror
	t.cluster.mu.Lock()
	generation, described, data, first := m.generation.Load(), t.api, t.data, !t.synced
	t.cluster.mu.Unlock()
	epoch, err := m.store.Epoch(ctx)
	if err != nil {
		return err
	}
	gr := resourceOf(described)
	if gr == secrets { // first delete the data that must not be stored
		if err := t.cluster.tryKeepData(ctx, data); err != nil {
			return err
		}
	}
	api, err := json.Marshal(described) //nolint:musttag // read by this package only
	if err != nil {
		return fmt.Errorf("encode type: %w", err)
	}
	if err := m.store.SaveType(ctx, store.Type{Cluster: t.cluster.name, Resource: gr, API: api}); err != nil {
		return err
	}
	// Pending changes will replace stored rows. So a row with a pending change is written again, and
	// no checkpoint is used while any change is pending.
	pending, unwritten := m.writer.waiting(t.cluster.name, gr)
	var found *resumable
	if first && !unwritten && !late.Load() {
		if found, err = t.readCheckpoint(ctx); err != nil {
			return err
		}
	}
	stored, err := t.storedRecords(ctx, found)
	if err != nil {
		return err
	}
	for k := range pending {
		if r, ok := stored[k]; ok {
			r.stored = 0
			stored[k] = r
		}
	}
	if now, err := m.store.Epoch(ctx); err != nil || now != epoch {
		return errors.Join(errors.New("the store was replaced meanwhile"), err)
	}
	t.cluster.mu.Lock()
	defer t.cluster.mu.Unlock()
	if m.generation.Load() != generation {
		return errors.New("the store was lost meanwhile")
	}
	t.recalled, t.epoch, t.stored, t.resumable = true, epoch, stored, found
	return nil
}

// storedRecords returns a record for each stored object of the table's type. found has the rows if
// they were read with a checkpoint; nil: only the keys are read now. An object that must be written
// again, because its stored body may be of another form, has stored 0.
func (t *table) storedRecords(ctx context.Context, found *resumable) (map[key]record, error) {
	stored := map[key]record{}
	if found != nil {
		for _, e := range found.entries {
			stored[e.key()] = record{uid: e.row.UID, stored: e.version}
		}
		return stored, nil
	}
	keys, err := t.cluster.mirror.store.Keys(ctx, t.cluster.name, resourceOf(t.api))
	if err != nil {
		return nil, err
	}
	for _, k := range keys {
		r := record{uid: k.UID}
		// A body in another API version, or of a Secret with data, must be written again.
		if k.Version == t.api.GroupVersionKind.Version && t.data == nil {
			r.stored = number(k.ResourceVersion)
		}
		stored[key{k.Namespace, k.Name}] = r
	}
	return stored, nil
}

// readCheckpoint returns the stored rows of the table's type with their checkpoint. It returns nil,
// without an error, if there is no usable checkpoint: none is stored, it was made for another
// cluster or other settings, or a row cannot be used. The type must then be listed.
func (t *table) readCheckpoint(ctx context.Context) (*resumable, error) {
	db, gr := t.cluster.mirror.store, resourceOf(t.api)
	state, err := db.Checkpoint(ctx, t.cluster.name, gr)
	if err != nil || state == nil {
		return nil, err
	}
	var c checkpoint
	if err := json.Unmarshal(state, &c); err != nil {
		return nil, nil //nolint:nilerr,nilnil // another version of Orrery wrote the checkpoint
	}
	identity := t.cluster.identity()
	if identity == "" || number(c.ResourceVersion) == 0 || c != t.checkpointAt(identity, c.ResourceVersion) {
		return nil, nil //nolint:nilnil // documented
	}
	found := &resumable{identity: identity, resourceVersion: c.ResourceVersion}
	// The bodies of pods, nodes and quotas, which count in the capacity, and of Events, for the time
	// when they happened, are read.
	whole := Measured(gr) || gr == coreEvents || gr == groupEvents
	for after := (store.Key{}); ; {
		rows, err := db.Rows(ctx, t.cluster.name, gr, whole, after, pageSize)
		if err != nil {
			return nil, err
		}
		for _, row := range rows {
			e, err := t.recalledEntry(row)
			if err != nil || e.version == 0 {
				return nil, nil //nolint:nilerr,nilnil // the type is listed instead, with this object
			}
			found.entries = append(found.entries, e)
			after = store.Key{Namespace: row.Namespace, Name: row.Name}
		}
		if len(rows) < pageSize {
			return found, nil
		}
	}
}

// checkpointEvery is the least time between two checkpoints of a type. A watch that resumes after a
// restart receives again what changed since the last checkpoint.
const checkpointEvery = 2 * time.Minute

// saveCheckpoint queues a checkpoint of the table's type at the version that the watch has reached.
// It does nothing unless everything that was observed was passed to the store, and the cluster is
// the one that was watched.
func (w *watcher) saveCheckpoint() {
	t := w.table
	m := t.cluster.mirror
	identity := t.cluster.identity()
	t.cluster.mu.Lock()
	epoch, whole := t.coveredBy, t.complete()
	c := t.checkpointAt(identity, w.from)
	t.cluster.mu.Unlock()
	if !whole || epoch == "" || identity == "" || identity != w.identity || number(w.from) == 0 || w.ctx.Err() != nil {
		return
	}
	state, err := json.Marshal(c)
	if err != nil {
		panic(err) // a struct of strings and numbers can always be encoded
	}
	m.writer.addCheckpoint(t, store.Checkpoint{Cluster: t.cluster.name, Resource: resourceOf(t.api), Epoch: epoch, State: state})
	w.savedAt = time.Now()
}

// resume loads the rows that were stored with a checkpoint into the index in memory. It reports
// whether the watch can continue from the checkpoint, and sets w.from then. false: there is no
// usable checkpoint, and the type must be listed. The table becomes synced only when the watch has
// caught up, see catchUp.
func (w *watcher) resume() bool {
	t := w.table
	m := t.cluster.mirror
	t.cluster.mu.Lock()
	r := t.resumable
	t.resumable = nil
	usable := r != nil && !t.synced && r.identity == t.cluster.identity()
	if usable {
		t.stored = nil
	}
	t.cluster.mu.Unlock()
	if !usable {
		return false
	}
	for entries := range slices.Chunk(r.entries, pageSize) {
		var events []Event
		t.cluster.mu.Lock()
		if !t.recalled { // the store has lost its contents
			t.cluster.mu.Unlock()
			return false
		}
		for _, e := range entries {
			more, _ := t.observe(e) // the store has the row
			events = append(events, more...)
		}
		t.cluster.mu.Unlock()
		m.notify(events...)
	}
	t.cluster.mu.Lock()
	defer t.cluster.mu.Unlock()
	if !t.recalled {
		return false
	}
	t.handed, t.coveredBy = m.generation.Load(), t.epoch
	t.version = max(t.version, number(r.resourceVersion))
	w.from, w.identity, w.resuming, w.sure = r.resourceVersion, r.identity, true, false
	return true
}
