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

// checkpoint is what a watch needs to go on after a restart: the rows that are stored of a type
// are what the cluster had at a resource version, or newer. It is kept beside the rows, in the
// same database.
type checkpoint struct {
	Rows            int    `json:"rows"`    // rowFormat when the rows were written
	Cluster         string `json:"cluster"` // identity of the cluster that they are of
	Version         string `json:"version"`
	Kind            string `json:"kind"`
	Namespaced      bool   `json:"namespaced"`
	Filter          string `json:"filter,omitempty"` // which objects the rows are; "": all
	Data            string `json:"data,omitempty"`   // of which Secrets they have the data; "": of none
	ResourceVersion string `json:"resourceVersion"`
}

// rowFormat counts up when the index needs something of rows that those stored before do not have.
const rowFormat = 1

func (t *table) checkpointAt(identity, resourceVersion string) checkpoint {
	return checkpoint{
		Rows: rowFormat, Cluster: identity, ResourceVersion: resourceVersion,
		Version: t.api.GroupVersionKind.Version, Kind: t.api.GroupVersionKind.Kind, Namespaced: t.api.Namespaced,
		Filter: t.filter.String(), Data: dataOf(t.data),
	}
}

// identity names the cluster that answers: the UIDs of its Cluster and of its namespace
// kube-system; "" while nobody knows.
func (c *cluster) identity() string {
	id := c.source.ID()
	if id == "" {
		return ""
	}
	return string(c.source.Cluster().UID) + "/" + id
}

// resumable is what the store has of a type with the checkpoint that vouches for it.
type resumable struct {
	identity        string
	resourceVersion string
	entries         []*entry
}

// A first list waits a moment for what the store has: then it writes only what is news, or need
// not be made. A store that fails is asked again; the lists go on without it.
const (
	recallPatience = 5 * time.Second
	recallDelay    = time.Second
	recallLongest  = 30 * time.Second
)

// recall asks the store for what it has of the type, unless that was done, and waits a
// moment for the answer. A store that fails is asked until it answers; then the type is
// listed again, so that what the cluster does not have any more leaves the store.
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

// askStore saves the type in the store, and reads what the store has of it: the keys or, when
// there is a checkpoint and it is not too late to use it, everything that the index needs.
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
	if gr == secrets { // before anything that is stored counts
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
	// What waits to be written takes the place of what is stored: neither a row of it counts, nor a checkpoint.
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

// storedRecords returns what the store has, as records.
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
		if k.Version == t.api.GroupVersionKind.Version && t.data == nil { // else the body is to be written again
			r.stored = number(k.ResourceVersion)
		}
		stored[key{k.Namespace, k.Name}] = r
	}
	return stored, nil
}

// readCheckpoint returns what the store has, and vouches for; nil: it does not, or for another
// cluster or type.
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
	whole := Measured(gr) || gr == coreEvents || gr == groupEvents // these count in the capacity, those have a life
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

// vouchEvery is the least time between two checkpoints of a type. What happened since the last
// one is brought again by the watch that goes on from it.
const vouchEvery = 2 * time.Minute

// vouch has the store keep from where the watch can go on, if it has been handed everything.
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
		panic(err) // it is made of strings and numbers
	}
	m.writer.vouch(t, store.Checkpoint{Cluster: t.cluster.name, Resource: resourceOf(t.api), Epoch: epoch, State: state})
	f.vouchedAt = time.Now()
}

// resume takes what the store vouches for into the index, and says whether the watch can go on
// from there. Nothing is synced by that.
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
		if !t.recalled { // the store lost it meanwhile
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
