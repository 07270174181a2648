package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"orrery.dev/orrery/internal/words"
)

// apply writes the changes. It does the work of Store.Write, except for the deletion of old
// history, and takes d.mu.
func (d *database) apply(ctx context.Context, changes []Change) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.completeDeletions(ctx, changes); err != nil {
		return fmt.Errorf("write %d changes: %w", len(changes), err)
	}
	accepted, unidentified, err := d.identify(ctx, changes)
	if err != nil {
		return fmt.Errorf("write %d changes: %w", len(changes), err)
	}
	rejected, err := d.bisect(ctx, accepted)
	if err != nil {
		return fmt.Errorf("write %d changes: %w", len(changes), err)
	}
	return errors.Join(append(unidentified, rejected...)...)
}

// bisect writes the changes in one transaction. If the database refuses one of them, bisect writes
// each half of them separately. A single change that is refused is written in part, see reduce.
// rejected are the RejectedErrors of such changes. err is any other error, after which the changes
// are written in part or not at all. The caller holds d.mu.
func (d *database) bisect(ctx context.Context, changes []Change) (rejected []error, err error) {
	err = d.attempt(ctx, changes)
	switch {
	case err == nil || !d.refuses(err):
		return nil, err
	case len(changes) == 1:
		refused, err := d.reduce(ctx, &changes[0], err)
		if err != nil {
			return nil, err
		}
		return []error{refused}, nil
	}
	half := len(changes) / 2
	first, err := d.bisect(ctx, changes[:half])
	if err != nil {
		return nil, err
	}
	second, err := d.bisect(ctx, changes[half:])
	return append(first, second...), err
}

// attempt writes the changes in one transaction, or returns the error of the database. After the
// commit it updates the size of the history, and d.incomplete. The caller holds d.mu.
func (d *database) attempt(ctx context.Context, changes []Change) error {
	var grown int64
	err := d.transact(ctx, int64(len(changes)), func(ctx context.Context, tx *sql.Tx, seq int64) error {
		w := writer{ctx: ctx, tx: tx, database: d, now: d.keeping.now().UnixMilli()}
		err := w.write(changes, seq)
		grown = w.grown
		return err
	})
	if err != nil {
		return err
	}
	d.grew(grown)
	for i := range changes {
		d.complete(&changes[i])
	}
	return nil
}

// transact runs f in a transaction, and commits it unless f returns an error. n is the number of
// changes in the transaction, and seq the sequence of the first one. The row of the epoch is locked
// until the transaction ends, so sequences are committed in order. Before, transact calls settle,
// for an earlier transaction whose outcome is unknown. The error is an errClaimed if another writer
// has claimed the database. It is an errOther if the database was replaced or went back to an
// earlier state. f must use its ctx, which may have a deadline. The caller holds d.mu.
func (d *database) transact(ctx context.Context, n int64, f func(ctx context.Context, tx *sql.Tx, seq int64) error) error {
	if err := d.settle(ctx); err != nil {
		return err
	}
	ctx, cancel := d.patiently(ctx)
	defer cancel()
	d.recording, d.events = d.journal != nil && d.journal.recording(), nil
	tx, err := d.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	last, err := d.advance(ctx, tx, n)
	if err == nil {
		err = f(ctx, tx, last-n+1)
	}
	if err != nil {
		return errors.Join(err, rollback(d.dialect, tx))
	}
	return d.end(ctx, tx, last)
}

// patiently returns a context for a write, which ends after d.patience. If d.patience is 0, it
// returns ctx. The caller must call the cancel function.
func (d *database) patiently(ctx context.Context) (context.Context, context.CancelFunc) {
	if d.patience == 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, d.patience)
}

// rollback undoes and ends a transaction. If the database has already ended the transaction, that
// is no error.
func rollback(d dialect, tx *sql.Tx) error {
	err := tx.Rollback()
	if errors.Is(err, sql.ErrTxDone) || err != nil && d.ended(err) {
		return nil
	}
	return err
}

// writer writes changes in one transaction, whose context and time it has. The caller holds the
// database's mu.
type writer struct {
	*database

	ctx   context.Context //nolint:containedctx // lives as long as one transaction
	tx    *sql.Tx
	now   int64 // time of the changes, in milliseconds
	grown int64 // size of the new revisions
}

// place is the key of a present or past object: the number of its type, the cluster, the namespace
// and the name.
type place struct {
	kind                     int64
	cluster, namespace, name string
}

// object is what a writer knows about the object at a place: the stored object before the changes,
// and the row to write.
type object struct {
	id          int64 // 0: not stored
	labels      map[string]string
	terms       []pair // its declared fields in the index
	created     int64
	fingerprint int64     // of its words; 0: it has none
	uid         types.UID // UID after the changes so far
	stored      types.UID // UID of the stored object
	owner       types.UID // UID of its owner
	alive       bool      // the object exists after the changes so far
	row         *Row      // to be written; nil: none
	seq         int64     // sequence of its last change
	// replaced means that the change that deletes this object also creates another one of that name.
	replaced bool

	recorded  bool   // its type has a history
	revisions int64  // number kept since its history began; -1: its history has ended
	state     *state // the state that the change ends; nil: no revision is kept of it
}

// write writes the changes, whose sequences begin with seq. The effect is as if they were written
// one after another. But if several of them are about one object, only its last state is written,
// and no revision is kept of those between. A deletion is skipped if its UID is not that of the
// object.
func (w *writer) write(changes []Change, seq int64) error {
	objects := make(map[place]*object, len(changes))
	order := make([]place, 0, len(changes))
	for i := range changes {
		p := w.place(&changes[i].Row)
		if objects[p] == nil {
			objects[p] = &object{}
			order = append(order, p)
		}
	}
	if err := w.find(objects, order); err != nil {
		return err
	}
	for i := range changes {
		c := &changes[i]
		o := objects[w.place(&c.Row)]
		switch {
		case !c.Delete:
			o.alive, o.uid, o.row, o.seq = true, c.UID, &c.Row, seq+int64(i)
		case c.UID == "" || c.UID == o.uid: // otherwise another object has the name, and stays
			o.alive, o.row, o.seq = false, nil, seq+int64(i)
		}
	}
	history := w.keeping.get()
	for p, o := range objects {
		o.recorded = history.of(w.gr(p.kind))
	}
	if err := w.recall(objects); err != nil {
		return err
	}
	var out outgoing
	for _, p := range order {
		o := objects[p]
		// The stored object is gone, and another one has its name.
		if o.id != 0 && o.row != nil && o.row.UID != o.stored {
			gone := *o
			gone.alive, gone.row, gone.replaced = false, nil, true
			if err := w.add(&out, p, &gone); err != nil {
				return err
			}
			*o = object{alive: true, row: o.row, seq: o.seq, uid: o.uid}
		}
		if err := w.add(&out, p, o); err != nil {
			return err
		}
	}
	if err := w.put(&out); err != nil {
		return err
	}
	return w.grow()
}

func (w *writer) place(r *Row) place {
	return place{w.kind(groupResource{r.Group, r.Resource}), r.Cluster, r.Namespace, r.Name}
}

// find reads the stored objects with the keys in order, and sets them in objects. An entry stays as
// it is if no object is stored.
func (w *writer) find(objects map[place]*object, order []place) error {
	keys := make([][]any, len(order))
	for i, p := range order {
		keys[i] = []any{p.kind, p.cluster, p.namespace, p.name}
	}
	return w.batches.find.run(w.ctx, w.tx, keys, func(rows *sql.Rows) error {
		var p place
		var stored object
		var labels, terms string
		if err := rows.Scan(&p.kind, &p.cluster, &p.namespace, &p.name, &stored.id, &stored.uid, &stored.owner, &labels, &stored.revisions, &terms, &stored.created, &stored.fingerprint); err != nil {
			return err
		}
		if err := json.Unmarshal([]byte(labels), &stored.labels); err != nil {
			return fmt.Errorf("%w: read labels of %s/%s: %w", errDamaged, p.namespace, p.name, err)
		}
		var err error
		if stored.terms, err = decodeTerms(terms); err != nil {
			return err
		}
		o := objects[p]
		if o == nil {
			return fmt.Errorf("%w: asked for other objects, it answered with %s/%s", errDamaged, p.namespace, p.name)
		}
		stored.alive, stored.stored = true, stored.uid
		*o = stored
		return nil
	})
}

// outgoing has the rows that a writer will write or delete in its transaction, by statement.
// writer.put writes them.
type outgoing struct {
	insertObject, updateObject, moveObject, insertBody, putBody, putLabel, dropObject, dropBody, dropLabel, revision, past [][]any

	fullText   []fullTextChange
	incomplete bool // an object among them is, or was, stored without a part
	// Change of the number of objects, by namespace and type; without names.
	tally map[place]int64
}

// add adds to out what must be written for the object o at p: its rows or their deletion, index
// entries, and the revision of its previous state. It also records the event for the journal. It
// adds nothing if the object was not stored and no row is to be written.
func (w *writer) add(out *outgoing, p place, o *object) error {
	before := pairsOf(o.labels, o.terms)
	if o.row != nil {
		w.tell(p, o)
		known := o.id != 0
		terms, created, err := w.addRow(out, p, o)
		if err != nil {
			return err
		}
		if !known {
			out.count(p, 1)
		}
		out.pairs(p, o.id, created, before, pairsOf(o.row.Labels, terms), known && created != o.created)
		return nil
	}
	if o.alive || o.id == 0 {
		return nil
	}
	w.tell(p, o)
	if _, err := w.revise(out, p, o, nil, nil, false); err != nil {
		return err
	}
	out.dropObject = append(out.dropObject, []any{o.id})
	out.dropBody = append(out.dropBody, []any{o.id})
	out.addFullText(p, o, 0, words.Source{})
	out.count(p, -1)
	out.pairs(p, o.id, 0, before, nil, false)
	return nil
}

// pairs adds the changes of an object's index entries to out: from before to after, its labels and
// declared fields. With all, it also writes unchanged entries, because they contain the creation
// time (created), which has changed. It sets out.incomplete if the object is, or was, stored
// without a part.
func (out *outgoing) pairs(p place, id, created int64, before, after map[pair]struct{}, all bool) {
	_, was := before[incompletePair]
	_, is := after[incompletePair]
	out.incomplete = out.incomplete || was || is
	for one := range before {
		if _, ok := after[one]; !ok {
			out.dropLabel = append(out.dropLabel, []any{p.kind, one.key, one.value, p.cluster, p.namespace, p.name})
		}
	}
	for one := range after {
		if _, ok := before[one]; !ok || all {
			out.putLabel = append(out.putLabel, []any{p.kind, one.key, one.value, p.cluster, p.namespace, p.name, created, id})
		}
	}
}

// count adds by to the number of objects of p's type in p's namespace, which the table tally
// stores.
func (out *outgoing) count(p place, by int64) {
	if out.tally == nil {
		out.tally = map[place]int64{}
	}
	p.name = ""
	out.tally[p] += by
}

// tallied returns the rows for the table tally. change are numbers to add. drop are the rows to
// delete if their number is then 0.
func (out *outgoing) tallied() (change, drop [][]any) {
	for p, by := range out.tally {
		if by != 0 {
			change = append(change, []any{p.kind, p.cluster, p.namespace, by})
		}
		if by < 0 {
			drop = append(drop, []any{p.kind, p.cluster, p.namespace, int64(0)})
		}
	}
	return change, drop
}

// addRow adds the row, the body and the changed words of the object o at p to out, and the revision
// of its previous state. A new object gets the sequence of its change as its id, in o.id. addRow
// returns the terms for the index, and the creation time in Unix seconds. The error may be about
// this row only, see refuses.
func (w *writer) addRow(out *outgoing, p place, o *object) (terms []pair, created int64, err error) {
	r, h := o.row, headerOf(o.row)
	body, err := w.body(r)
	if err != nil {
		return nil, 0, err
	}
	terms, source := read(w.kindOf(p.kind), r)
	fingerprint := source.Fingerprint()
	packed, _ := body[len(body)-1].([]byte)
	began, since, revisions := o.seq, w.now, int64(0)
	object, stored := &out.updateObject, &out.putBody
	if o.id == 0 {
		o.id, object, stored = o.seq, &out.insertObject, &out.insertBody
	} else {
		begins, err := w.revise(out, p, o, &h, r.Body, sealed(packed))
		if err != nil {
			return nil, 0, err
		}
		switch {
		case o.state == nil:
			revisions = o.revisions
		case !begins:
			began, since, revisions = o.state.began, o.state.since, o.state.revisions
		case o.recorded:
			revisions = o.state.revisions + 1
		default:
			revisions = -1
		}
		if r.OwnerUID != o.owner || h.Created != o.created {
			object = &out.moveObject
		}
	}
	*object = append(*object, []any{
		o.id, p.kind, p.cluster, p.namespace, p.name,
		o.seq, r.Version, r.Kind, string(r.UID), r.ResourceVersion, encode(r.Labels), r.Note, began, since, revisions, encodeTerms(terms), fingerprint, h.Created, string(r.OwnerUID), w.now,
	})
	out.addFullText(p, o, fingerprint, source)
	*stored = append(*stored, append([]any{o.id}, body...))
	return terms, h.Created, nil
}

// put writes all rows of out. The order of the statements prevents that the keys of old and new
// rows conflict.
func (w *writer) put(out *outgoing) error {
	if out.incomplete {
		w.counted = nil // incomplete objects are counted again, also if the transaction fails
	}
	tally, empty := out.tallied()
	for _, step := range []struct {
		batch *batch
		rows  [][]any
	}{
		{&w.batches.dropLabel, out.dropLabel},
		{&w.batches.dropBody, out.dropBody},
		{&w.batches.dropObject, out.dropObject},
		{&w.batches.insertObject, out.insertObject},
		{&w.batches.updateObject, out.updateObject},
		{&w.batches.moveObject, out.moveObject},
		{&w.batches.insertBody, out.insertBody},
		{&w.batches.putBody, out.putBody},
		{&w.batches.putLabel, out.putLabel},
		{&w.batches.revision, out.revision},
		{&w.batches.past, out.past},
		{&w.batches.tally, tally},
		{&w.batches.dropTally, empty},
	} {
		if err := step.batch.run(w.ctx, w.tx, step.rows, nil); err != nil {
			return err
		}
	}
	return w.putFullText(out.fullText)
}

func encode(labels map[string]string) string {
	if len(labels) == 0 {
		return "{}"
	}
	b, _ := json.Marshal(labels) //nolint:errchkjson // strings
	return string(b)
}
