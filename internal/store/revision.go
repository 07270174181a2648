package store

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// History is the setting of how much of the past states of objects is kept: for how long, up to
// which size in total, and for which types. Beyond that, the oldest states are deleted first.
type History struct {
	Time   time.Duration          // how long a state is kept after its end; 0: no history
	Bytes  int64                  // limit for the whole history; 0: no history
	Except []schema.GroupResource // types without history, besides Leases and Events
}

// DefaultHistory is the setting of a store until KeepHistory sets another one: seven days, and at
// most 2 GiB.
var DefaultHistory = History{Time: 7 * 24 * time.Hour, Bytes: 2 << 30}

// fleeting are types that never have a history, because they change all the time without useful
// states: Leases and Events.
var fleeting = []schema.GroupResource{
	{Group: "coordination.k8s.io", Resource: "leases"}, {Resource: "events"}, {Group: "events.k8s.io", Resource: "events"},
}

var nodes = schema.GroupResource{Resource: "nodes"}

var (
	historyBytes = promauto.NewGauge(prometheus.GaugeOpts{
		Name: "orrery_mirror_history_bytes",
		Help: "About how large the history of the mirrored objects is.",
	})
	historyDropped = promauto.NewCounter(prometheus.CounterOpts{
		Name: "orrery_mirror_history_dropped_revisions_total",
		Help: "Former states of mirrored objects that were deleted because they were too old, or the history too large.",
	})
)

// keeping is the setting of a store's history, guarded by mu, and the clock of the store.
type keeping struct {
	mu  sync.RWMutex
	is  History
	now func() time.Time
}

func (k *keeping) get() History {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.is
}

// of reports whether the setting keeps a history of the type.
func (h History) of(gr schema.GroupResource) bool {
	return h.Time > 0 && h.Bytes > 0 && !slices.Contains(fleeting, gr) && !slices.Contains(h.Except, gr)
}

// revisionOverhead is the approximate size in bytes of a revision (a past state) in the database
// besides its content: the row, and its entries in three indexes.
const revisionOverhead = 100

// wholeEvery is the number of revisions of an object after which one is stored whole. Others are
// stored as differences to the next state, so decoding one reads at most this many.
const wholeEvery = 32

// header has the data of an object's state other than its key and body. In a record it precedes the
// body as JSON.
type header struct {
	Version string            `json:"version"`
	Kind    string            `json:"kind"`
	UID     types.UID         `json:"uid"`
	Owner   types.UID         `json:"owner,omitempty"`
	Created int64             `json:"created,omitempty"`
	RV      string            `json:"rv"`
	Labels  map[string]string `json:"labels,omitempty"`
	Note    string            `json:"note,omitempty"`
}

// record returns a state of an object as one text, which is compressed to a revision: the header as
// JSON, a line feed, and the body.
func record(h header, body []byte) []byte {
	out, _ := json.Marshal(h) //nolint:errchkjson // strings and a number
	return append(append(out, '\n'), body...)
}

func headerOf(r *Row) header {
	h := header{Version: r.Version, Kind: r.Kind, UID: r.UID, Owner: r.OwnerUID, RV: r.ResourceVersion, Labels: r.Labels, Note: r.Note}
	if !r.Created.IsZero() {
		h.Created = r.Created.Unix()
	}
	return h
}

// unrecord parses a record and fills r, which must already have its key, with the header and the
// body. r.Body shares memory with b. The error is an errDamaged if b is no record.
func unrecord(b []byte, r *Row) error {
	head, body, ok := bytes.Cut(b, []byte("\n"))
	var h header
	if !ok {
		return fmt.Errorf("%w: a revision has no header", errDamaged)
	}
	if err := json.Unmarshal(head, &h); err != nil {
		return fmt.Errorf("%w: header of a revision: %w", errDamaged, err)
	}
	r.Version, r.Kind, r.UID, r.OwnerUID, r.ResourceVersion, r.Labels, r.Note, r.Body = h.Version, h.Kind, h.UID, h.Owner, h.RV, h.Labels, h.Note, body
	if h.Created != 0 {
		r.Created = time.Unix(h.Created, 0).UTC()
	}
	return nil
}

// compressor compresses records one after another, for one goroutine at a time. The zero value is
// ready. Each kind of record has its own encoder: whole for those without a next state, against for
// small ones, and large. The encoder for small ones has a smaller window, and so is ready sooner.
type compressor struct{ whole, against, large *zstd.Encoder }

const (
	smallWindow = 1 << 16
	largeWindow = 1 << 23
)

// mostRecord is the maximum size in bytes of a decompressed record or body. It limits the memory
// that damaged data can cause to be used.
const mostRecord = 256 << 20

// compress compresses b, the record of a state, as the difference to next, the record of the
// following state. If next is nil, the result can be decoded without another record. The oldest
// revision can thus be deleted, since no other is a difference to it, and the present state is
// complete.
func (c *compressor) compress(b, next []byte) ([]byte, error) {
	encoder, window, level := &c.whole, largeWindow, zstd.SpeedFastest
	switch {
	case next == nil:
	case len(b)+len(next) < smallWindow:
		encoder, window = &c.against, smallWindow
	default:
		// The other encoders lose most of a large record from their window.
		encoder, level = &c.large, zstd.SpeedBetterCompression
	}
	if *encoder == nil {
		e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(level), zstd.WithLowerEncoderMem(true), zstd.WithWindowSize(window))
		if err != nil {
			return nil, err
		}
		*encoder = e
	}
	if next == nil {
		return (*encoder).EncodeAll(b, nil), nil
	}
	// EncodeAll would build the tables of the dictionary a second time, which is most of the
	// work.
	var out bytes.Buffer
	if err := (*encoder).ResetWithOptions(&out, zstd.WithEncoderDictRaw(1, next)); err != nil {
		return nil, err
	}
	if _, err := (*encoder).Write(b); err != nil {
		return nil, err
	}
	err := (*encoder).Close()
	return out.Bytes(), err
}

// state is the state of an object before a change, which may become a revision.
type state struct {
	header    header
	record    []byte
	began     int64 // sequence of the change that made it
	since     int64 // time of that change, in milliseconds
	revisions int64 // number of revisions, as in the table object
	sealed    bool  // it has data that must not be read without a key
}

// stateColumns returns the columns, for SELECT, from which scanState reads a state. The statement
// must name the table object o, and body b.
func stateColumns(d dialect) string {
	return "o.id, o.version, o.kind, o.uid, o.owner, o.created, o.rv, o.labels, coalesce(o.note, ''), o.began, o.since, o.revisions, " + d.exactBody()
}

// scanState reads the present state of an object, with its id. keyed returns a row with the key of
// the object with this id. If the body of a Secret cannot be decrypted, the state has only its
// metadata. The error is an errDamaged for a row that cannot be read.
func (d *database) scanState(rows *sql.Rows, keyed func(id int64) Row) (id int64, s *state, err error) {
	s = &state{}
	var labels string
	var body, packed []byte
	h := &s.header
	if err := rows.Scan(&id, &h.Version, &h.Kind, &h.UID, &h.Owner, &h.Created, &h.RV, &labels, &h.Note, &s.began, &s.since, &s.revisions, &body, &packed); err != nil {
		return 0, nil, err
	}
	if labels != "{}" {
		if err := json.Unmarshal([]byte(labels), &h.Labels); err != nil {
			return 0, nil, fmt.Errorf("%w: read labels: %w", errDamaged, err)
		}
	}
	if s.began == 0 { // written before there was a history
		s.began = id
	}
	row := keyed(id)
	row.UID, row.Body = h.UID, body
	if err := d.unpack(&row, packed); err != nil {
		return 0, nil, err
	}
	s.record = record(*h, row.Body)
	// A body that could not be decrypted is only the metadata, which need not be sealed.
	s.sealed = sealed(packed) && !bytes.Equal(row.Body, body)
	return id, s, nil
}

// recall reads the present states of the objects that the changes replace or delete, and sets
// object.state. It skips objects without a history.
func (w *writer) recall(objects map[place]*object) error {
	ids, byID := [][]any{}, map[int64]place{}
	for p, o := range objects {
		if o.id != 0 && (o.recorded || o.revisions > 0) {
			ids, byID[o.id] = append(ids, []any{o.id}), p
		}
	}
	return w.batches.recall.run(w.ctx, w.tx, ids, func(rows *sql.Rows) error {
		id, s, err := w.scanState(rows, func(id int64) Row { return w.rowAt(byID[id]) })
		if err != nil {
			return err
		}
		o := objects[byID[id]]
		if o == nil {
			return fmt.Errorf("%w: asked for other objects, it answered with %d", errDamaged, id)
		}
		o.state = s
		return nil
	})
}

// rowAt returns a row that has only the key of the object at p.
func (d *database) rowAt(p place) Row {
	gr := d.gr(p.kind)
	return Row{Group: gr.Group, Resource: gr.Resource, Cluster: p.cluster, Namespace: p.namespace, Name: p.name}
}

// revise ends the state of an object: it adds a revision with that state to out, and the revision's
// size to w.grown. next and body are the header and body of the following state; next nil: the
// object is deleted. hidden means that body is encrypted in the database. begins reports whether a
// new state begins. It is false, and no revision is added, if the object is unchanged or the change
// is a heartbeat of a Node.
func (w *writer) revise(out *outgoing, p place, o *object, next *header, body []byte, hidden bool) (begins bool, err error) {
	s := o.state
	if s == nil {
		if next == nil && o.revisions != 0 { // no more revisions are kept, but there are earlier ones
			out.past = append(out.past, []any{o.id, p.kind, p.cluster, p.namespace, p.name, string(o.stored), o.seq})
		}
		return true, nil
	}
	var following []byte
	if next != nil {
		if following = record(*next, body); bytes.Equal(following, s.record) {
			return false, nil
		}
		if w.gr(p.kind) == nodes {
			if beat(s.record, following) {
				return false, nil
			}
		}
	}
	against := following
	// Heartbeats change a Node without a revision, so no revision can be a difference to a Node's next
	// state. The last revision of a type whose history has ended is also stored whole.
	if !o.recorded || w.gr(p.kind) == nodes || (s.revisions+1)%wholeEvery == 0 {
		against = nil
	}
	content, err := w.compressor.compress(s.record, against)
	if err != nil {
		return false, fmt.Errorf("compress a revision: %w", err)
	}
	if s.sealed || hidden && against != nil {
		of := w.rowAt(p)
		if content, err = w.seal(content, revisionIdentity(&of, o.id, o.seq)...); err != nil {
			return false, err
		}
	}
	whole, ended := int64(0), int64(0)
	if against == nil {
		whole = 1
	}
	if next == nil {
		ended = o.seq
	}
	out.revision = append(out.revision, []any{o.seq, o.id, s.began, s.since, w.now, s.header.RV, whole, content})
	if s.revisions == 0 || next == nil {
		out.past = append(out.past, []any{o.id, p.kind, p.cluster, p.namespace, p.name, string(s.header.UID), ended})
	}
	w.grown += int64(len(content)) + revisionOverhead
	return true, nil
}

// beat reports whether two records of a Node differ only in the times of heartbeats, the
// resourceVersion and managedFields. Such a change creates no revision. It is false if a record
// cannot be read.
func beat(a, b []byte) bool {
	still := func(record []byte) any {
		var r Row
		if unrecord(record, &r) != nil {
			return nil
		}
		var node struct {
			Metadata map[string]any `json:"metadata"`
			Spec     any            `json:"spec"`
			Status   map[string]any `json:"status"`
		}
		if json.Unmarshal(r.Body, &node) != nil {
			return nil
		}
		delete(node.Metadata, "resourceVersion")
		delete(node.Metadata, "managedFields") // its time is that of the heartbeat
		conditions, _ := node.Status["conditions"].([]any)
		for _, c := range conditions {
			if c, ok := c.(map[string]any); ok {
				delete(c, "lastHeartbeatTime")
			}
		}
		return node
	}
	one, other := still(a), still(b)
	return one != nil && reflect.DeepEqual(one, other)
}

// grow adds w.grown, the size of the new revisions, to the size of the history in the database, in
// the writer's transaction.
func (w *writer) grow() error {
	if w.grown == 0 {
		return nil
	}
	_, err := w.tx.ExecContext(w.ctx, say(w.dialect, "UPDATE epoch SET history_bytes = history_bytes + ?"), w.grown)
	return err
}

// trimEvery is the interval between two checks for revisions that are too old.
const trimEvery = time.Minute

// trim deletes the oldest revisions if they are too old, or the history is too large. One call
// deletes at most one chunk, so that writes do not wait long. If the history is not too large, trim
// looks for old revisions at most once per trimEvery. It uses the connection for writes, because
// busy readers must not delay the writer. The caller must not hold d.mu.
func (d *database) trim(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	keep, now := d.keeping.get(), d.keeping.now()
	if d.history.Load() <= keep.Bytes && now.Before(d.trimmed.Add(trimEvery)) {
		return nil
	}
	ctx, cancel := d.patiently(ctx)
	defer cancel()
	oldest := now.Add(-keep.Time).UnixMilli()
	var last, until, freed int64
	n, done := 0, false
	if err := each(ctx, d.write, say(d.dialect, "SELECT id, until, length(body) FROM revision ORDER BY id LIMIT ?"), func(rows *sql.Rows) error {
		var id, end, size int64
		if err := rows.Scan(&id, &end, &size); err != nil {
			return err
		}
		if done = done || end >= oldest && d.history.Load()-freed <= keep.Bytes; !done {
			last, until, freed = id, max(until, end), freed+size+revisionOverhead
			n++
		}
		return nil
	}, chunk); err != nil {
		return fmt.Errorf("look for old revisions: %w", err)
	}
	if n < chunk {
		d.trimmed = now // nothing is left to do for a while
	}
	if n == 0 {
		return nil
	}
	if err := d.transact(ctx, 1, func(ctx context.Context, tx *sql.Tx, _ int64) error {
		for _, one := range []struct {
			text string
			args []any
		}{
			{"DELETE FROM revision WHERE id <= ?", []any{last}},
			{"DELETE FROM past WHERE ended > 0 AND ended <= ?", []any{last}},
			{"UPDATE epoch SET history_bytes = history_bytes - ?, kept_from = CASE WHEN kept_from < ? THEN ? ELSE kept_from END", []any{freed, until, until}},
		} {
			if _, err := tx.ExecContext(ctx, say(d.dialect, one.text), one.args...); err != nil {
				return err
			}
		}
		if _, file := d.dialect.(sqliteDialect); !file {
			return nil
		}
		// Salvaged objects that were not deleted have a negative number in ended.
		_, err := tx.ExecContext(ctx, "DELETE FROM past WHERE ended < 0 AND ended >= ?", -last)
		return err
	}); err != nil {
		return fmt.Errorf("delete old revisions: %w", err)
	}
	d.grew(-freed)
	historyDropped.Add(float64(n))
	return nil
}

// grew adds by, which may be negative, to the size of the history in memory and in the metric. It
// is called after the transaction with the change.
func (d *database) grew(by int64) {
	historyBytes.Set(float64(d.history.Add(by)))
}

// dropHistory deletes the history of a type in a cluster, in several transactions. The present
// objects stay. kind is the number of the type. transact is d.transact if the caller holds d.mu,
// else d.locked.
func (d *database) dropHistory(ctx context.Context, cluster string, kind int64, transact transaction) error {
	const some = 100 // objects, each with many revisions
	for n := some; n == some; {
		var freed int64
		n = 0
		if err := transact(ctx, 1, func(ctx context.Context, tx *sql.Tx, _ int64) error {
			var ids []int64
			if err := each(ctx, tx, say(d.dialect, "SELECT id FROM past WHERE type = ? AND cluster = ? ORDER BY namespace, name, id LIMIT ?"), func(rows *sql.Rows) error {
				var id int64
				err := rows.Scan(&id)
				ids = append(ids, id)
				return err
			}, kind, cluster, some); err != nil {
				return err
			}
			for _, id := range ids {
				size, err := d.forgetPast(ctx, tx, id)
				if err != nil {
					return err
				}
				freed += size
			}
			n = len(ids)
			return d.shrink(ctx, tx, freed)
		}); err != nil {
			return err
		}
		d.grew(-freed)
	}
	return nil
}

// forgetPast deletes the revisions of the object with this id, in a transaction, and returns their
// size. The caller passes the size to shrink, and after the commit to grew.
func (d *database) forgetPast(ctx context.Context, tx *sql.Tx, object int64) (freed int64, err error) {
	if err := tx.QueryRowContext(ctx, say(d.dialect, "SELECT coalesce(sum(length(body) + "+strconv.Itoa(revisionOverhead)+"), 0) FROM revision WHERE object = ?"),
		object).Scan(&freed); err != nil {
		return 0, err
	}
	for _, text := range []string{"DELETE FROM revision WHERE object = ?", "DELETE FROM past WHERE id = ?", "UPDATE object SET revisions = 0 WHERE id = ?"} {
		if _, err := tx.ExecContext(ctx, say(d.dialect, text), object); err != nil {
			return 0, err
		}
	}
	return freed, nil
}

// shrink subtracts freed, the size of deleted revisions, from the size of the history in the
// database, in a transaction.
func (d *database) shrink(ctx context.Context, tx *sql.Tx, freed int64) error {
	if freed == 0 {
		return nil
	}
	_, err := tx.ExecContext(ctx, say(d.dialect, "UPDATE epoch SET history_bytes = history_bytes - ?"), freed)
	return err
}
