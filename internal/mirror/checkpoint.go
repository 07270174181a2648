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

// checkpoint allows a watch to continue after a restart. It states that the stored rows of a type
// are those of the cluster at a resource version, or newer. It is stored beside the rows, in the
// same database.
type checkpoint struct {
	Rows            int    `json:"rows"`    // rowFormat when the rows were written
	Cluster         string `json:"cluster"` // identity of the rows' cluster
	Version         string `json:"version"`
	Kind            string `json:"kind"`
	Namespaced      bool   `json:"namespaced"`
	Filter          string `json:"filter,omitempty"` // which objects are stored; "": all
	Data            string `json:"data,omitempty"`   // which Secrets have data; "": none
	ResourceVersion string `json:"resourceVersion"`
}

// rowFormat is incremented when the index needs data that rows of earlier versions lack.
const rowFormat = 1

func (t *table) checkpointAt(identity, resourceVersion string) checkpoint {
	return checkpoint{
		Rows: rowFormat, Cluster: identity, ResourceVersion: resourceVersion,
		Version: t.api.GroupVersionKind.Version, Kind: t.api.GroupVersionKind.Kind, Namespaced: t.api.Namespaced,
		Filter: t.filter.String(), Data: dataOf(t.data),
	}
}

// identity identifies the cluster that answers, by the UIDs of its Cluster and of its namespace
// kube-system; "": unknown yet.
func (c *cluster) identity() string {
	id := c.source.ID()
	if id == "" {
		return ""
	}
	return string(c.source.Cluster().UID) + "/" + id
}

// resumable has the stored entries of a type, and the checkpoint that covers them.
type resumable struct {
	identity        string
	resourceVersion string
	entries         []*entry
}

// Before a first list, the watch loop waits up to recallPatience for the stored contents. The
// list then writes only differences, or is not necessary. Reads that fail are repeated while the
// lists go on.
const (
	recallPatience = 5 * time.Second
	recallDelay    = time.Second
	recallLongest  = 30 * time.Second
)

// recall reads the stored contents of the type, unless that was done, and waits up to
// recallPatience for the result. It retries in the background. After a late result the type is
// listed again, so that objects that the cluster no longer has are deleted from the store.
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

// askStore saves the type in the store, and reads its contents: the keys or, if there is a usable
// checkpoint and it is not too late for it, all data that the index needs.
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
	if gr == secrets { // before any stored row counts
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
	// Pending changes replace stored rows. So neither these rows nor the checkpoint count.
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

// storedRecords returns the stored contents as records.
func (t *table) storedRecords(ctx context.Context, found *resumable) (map[key]record, error) {
	stored := map[key]record{}
	if found != nil {
		for _, e := range found.entries {
			stored[e.key()] = record{uid: e.row.UID, stored: number(e.row.ResourceVersion)}
		}
		return stored, nil
	}
	keys, err := t.cluster.mirror.store.Keys(ctx, t.cluster.name, resourceOf(t.api))
	if err != nil {
		return nil, err
	}
	for _, k := range keys {
		r := record{uid: k.UID}
		// Otherwise the body must be written again.
		if k.Version == t.api.GroupVersionKind.Version && t.data == nil {
			r.stored = number(k.ResourceVersion)
		}
		stored[key{k.Namespace, k.Name}] = r
	}
	return stored, nil
}

// readCheckpoint returns the stored contents with their checkpoint; nil: there is none, or it
// belongs to another cluster or type.
func (t *table) readCheckpoint(ctx context.Context) (*resumable, error) {
	db, gr := t.cluster.mirror.store, resourceOf(t.api)
	state, err := db.Checkpoint(ctx, t.cluster.name, gr)
	if err != nil || state == nil {
		return nil, err
	}
	var c checkpoint
	if err := json.Unmarshal(state, &c); err != nil {
		return nil, nil //nolint:nilerr,nilnil // it is of another version of Orrery: there is none
	}
	identity := t.cluster.identity()
	if identity == "" || number(c.ResourceVersion) == 0 || c != t.checkpointAt(identity, c.ResourceVersion) {
		return nil, nil //nolint:nilnil // documented
	}
	found := &resumable{identity: identity, resourceVersion: c.ResourceVersion}
	// Pods, nodes and quotas count in the capacity, and Events have a life: their bodies are
	// needed.
	whole := Measured(gr) || gr == coreEvents || gr == groupEvents
	for after := (store.Key{}); ; {
		rows, err := db.Rows(ctx, t.cluster.name, gr, whole, after, pageSize)
		if err != nil {
			return nil, err
		}
		for _, row := range rows {
			e, err := t.recalledEntry(row)
			if err != nil || number(row.ResourceVersion) == 0 {
				return nil, nil //nolint:nilerr,nilnil // the list will have it
			}
			found.entries = append(found.entries, e)
			after = store.Key{Namespace: row.Namespace, Name: row.Name}
		}
		if len(rows) < pageSize {
			return found, nil
		}
	}
}

// vouchEvery is the least time between two checkpoints of a type. A watch that resumes repeats
// the changes since the last one.
const vouchEvery = 2 * time.Minute

// vouch saves a checkpoint from which the watch can continue, if the store was passed everything.
func (f *follower) vouch() {
	t := f.table
	m := t.cluster.mirror
	identity := t.cluster.identity()
	t.cluster.mu.Lock()
	epoch, whole := t.vouched, t.complete()
	c := t.checkpointAt(identity, f.from)
	t.cluster.mu.Unlock()
	if !whole || epoch == "" || identity == "" || identity != f.identity || number(f.from) == 0 || f.ctx.Err() != nil {
		return
	}
	state, err := json.Marshal(c)
	if err != nil {
		panic(err) // it consists of strings and numbers
	}
	m.writer.vouch(t, store.Checkpoint{Cluster: t.cluster.name, Resource: resourceOf(t.api), Epoch: epoch, State: state})
	f.vouchedAt = time.Now()
}

// resume loads the stored contents of a checkpoint into the index, and reports whether the watch
// can continue from it. It does not mark the table as synced.
func (f *follower) resume() bool {
	t := f.table
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
			k, version := e.key(), number(e.row.ResourceVersion)
			t.count(k, e)
			t.happens(k, e)
			events = append(events, t.put(k, e.row.UID, version, e.object, e.row.Labels)...)
			if known := t.records[k]; known.uid == e.row.UID {
				known.stored = version
				t.records[k] = known
			}
		}
		t.cluster.mu.Unlock()
		m.notify(events...)
	}
	t.cluster.mu.Lock()
	defer t.cluster.mu.Unlock()
	if !t.recalled {
		return false
	}
	t.handed, t.vouched = m.generation.Load(), t.epoch
	t.version = max(t.version, number(r.resourceVersion))
	f.from, f.identity, f.resuming, f.sure = r.resourceVersion, r.identity, true, false
	return true
}
