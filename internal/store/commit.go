package store

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// When the answer to a COMMIT is lost, for example on a broken connection, the transaction may be
// committed or not. The sequence shows which: it is committed with the transaction, and only this
// writer changes it. So the outcome is read from the row of the epoch, at once if the database
// answers, or else before the next transaction. Nothing is written before that.

// unanswered is a transaction whose COMMIT was not answered, so that its outcome is unknown.
type unanswered struct {
	last     int64    // its last sequence
	recorded bool     // its events are complete, because the journal was on
	events   []*Event // for the journal, if it was committed
}

// answered is a transaction whose caller got an error, although it was committed. The caller writes
// the same changes again, and the journal must not report them twice.
type answered struct {
	// The states that the journal published for the transaction, by object. A later event of the
	// object removes its entry. nil: the object was deleted.
	states map[place]*Row
}

// end commits a transaction, whose last sequence is last, and records its effects. If the COMMIT is
// not answered, end finds out the outcome, and returns nil if the transaction was committed. If the
// outcome stays unknown, end returns an error and sets d.unanswered, and settle continues. The
// caller holds d.mu.
func (d *database) end(ctx context.Context, tx *sql.Tx, last int64) error {
	u := unanswered{last, d.recording, d.events}
	if err := tx.Commit(); err != nil {
		committed, askErr := d.outcome(ctx, u, nil)
		if askErr != nil {
			d.unanswered = &u
			return errors.Join(err, askErr)
		}
		if !committed {
			return err
		}
	}
	d.committed(u)
	return nil
}

// committed records that the transaction u was committed: its last sequence in d.seq, and its
// events in the journal. The caller holds d.mu.
func (d *database) committed(u unanswered) {
	d.seq = u.last
	if d.journal != nil {
		d.journal.commit(u.last, u.recorded, u.events)
	}
}

// settle does nothing unless d.unanswered is set, a transaction whose COMMIT was not answered. It
// then finds out the outcome, and records the effects: events, new or deleted clusters and types,
// and the size of the history. An error means that the outcome is still unknown. Nothing may be
// written then. The caller holds d.mu.
func (d *database) settle(ctx context.Context) error {
	u := d.unanswered
	if u == nil {
		return nil
	}
	ctx, cancel := d.patiently(ctx)
	defer cancel()
	var history int64
	var known identities
	committed, err := d.outcome(ctx, *u, func(tx *sql.Tx) (err error) {
		if err = tx.QueryRowContext(ctx, "SELECT history_bytes FROM epoch").Scan(&history); err == nil {
			known, err = readIdentities(ctx, tx)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("find out what became of the last transaction: %w", err)
	}
	d.unanswered, d.counted = nil, nil
	d.known.Lock()
	d.identities = known
	d.known.Unlock()
	d.grew(history - d.history.Load())
	if !committed {
		return nil
	}
	d.committed(*u)
	d.answered = &answered{states: map[place]*Row{}}
	for _, e := range u.events {
		r := e.row()
		d.answered.states[place{d.kind(groupResource{r.Group, r.Resource}), r.Cluster, r.Namespace, r.Name}] = e.After
	}
	return nil
}

// outcome reports whether the transaction u, whose COMMIT was not answered, was committed. It locks
// the row of the epoch, and so waits until that transaction has ended. also, which may be nil,
// reads further values in the transaction of outcome. The error is errClaimed or errOther if the
// database is neither in the state before u nor in the state after it. The caller holds d.mu.
func (d *database) outcome(ctx context.Context, u unanswered, also func(tx *sql.Tx) error) (committed bool, err error) {
	tx, err := d.write.BeginTx(ctx, nil)
	if err != nil {
		return false, err
	}
	found, err := d.take(ctx, tx, 0)
	if err == nil && found.seq == u.last && u.last != d.seq {
		committed = true
		found.seq = d.seq
	}
	if err == nil {
		err = d.held(found)
	}
	if err == nil && also != nil {
		err = also(tx)
	}
	return committed, errors.Join(err, rollback(d.dialect, tx))
}

// outlived removes an object from d.answered, because the journal now has a newer state of the
// object. The caller holds d.mu.
func (d *database) outlived(p place) {
	if d.answered != nil {
		delete(d.answered.states, p)
	}
}

// repeats reports whether r equals the state of the object at p that the journal published for
// d.answered. That transaction was reported as failed, so its caller writes the same state again.
// The caller holds d.mu.
func (d *database) repeats(p place, r *Row) bool {
	if d.answered == nil {
		return false
	}
	was := d.answered.states[p]
	return was != nil && was.UID == r.UID && was.ResourceVersion == r.ResourceVersion && was.Version == r.Version && was.OwnerUID == r.OwnerUID &&
		maps.Equal(was.Labels, r.Labels) && bytes.Equal(was.Body, r.Body)
}

// identities are the clusters and types in the database, with the numbers of the types.
type identities struct {
	clusters map[string]bool                // value: the cluster is being dropped
	types    map[groupResource]int64        // numbers by type
	kinds    map[int64]schema.GroupResource // types by number
}

// readIdentities reads the clusters and types that are in the database. After an error it also
// returns those that it could read.
func readIdentities(ctx context.Context, db querier) (identities, error) {
	known := identities{clusters: map[string]bool{}, types: map[groupResource]int64{}, kinds: map[int64]schema.GroupResource{}}
	if err := each(ctx, db, "SELECT name, dropped FROM cluster", func(rows *sql.Rows) error {
		var name string
		var dropped bool
		err := rows.Scan(&name, &dropped)
		known.clusters[name] = dropped
		return err
	}); err != nil {
		return known, fmt.Errorf("read clusters: %w", err)
	}
	if err := each(ctx, db, "SELECT id, grp, resource FROM type", func(rows *sql.Rows) error {
		var id int64
		var gr groupResource
		err := rows.Scan(&id, &gr.group, &gr.resource)
		known.types[gr], known.kinds[id] = id, schema.GroupResource{Group: gr.group, Resource: gr.resource}
		return err
	}); err != nil {
		return known, fmt.Errorf("read types: %w", err)
	}
	return known, nil
}

// identify adds the clusters and types of the changes to the database, if they are new. They are
// committed before the rows, so that d.identities is never ahead of the database. accepted are the
// changes whose cluster and type are in the database. rejected has a RejectedError for each other
// change, because no row may have an unknown type. err is any other error. The caller holds d.mu.
func (d *database) identify(ctx context.Context, changes []Change) (accepted []Change, rejected []error, err error) {
	type identity struct {
		cluster string
		groupResource
	}
	refused := map[identity]error{}
	for i := range changes {
		c := &changes[i]
		gr := groupResource{c.Group, c.Resource}
		if refused[identity{c.Cluster, gr}] != nil {
			continue
		}
		if err := d.identifyOne(ctx, c.Cluster, gr); err != nil && d.dialect.fault(err) != faultRow {
			return nil, nil, err
		} else if err != nil {
			refused[identity{c.Cluster, gr}] = err
		}
	}
	if len(refused) == 0 {
		return changes, nil, nil
	}
	for _, c := range changes {
		err := refused[identity{c.Cluster, groupResource{c.Group, c.Resource}}]
		if err == nil {
			accepted = append(accepted, c)
			continue
		}
		rejected = append(rejected, &RejectedError{
			Cluster: c.Cluster, Group: c.Group, Resource: c.Resource, Namespace: c.Namespace, Name: c.Name, Err: err,
		})
	}
	return accepted, rejected, nil
}

// identifyOne adds a cluster and a type to the database, each in its own transaction, unless they
// are known. If a cluster of that name is being dropped, its remaining rows are deleted first. The
// caller holds d.mu.
func (d *database) identifyOne(ctx context.Context, cluster string, gr groupResource) error {
	if err := d.settle(ctx); err != nil {
		return err
	}
	d.known.RLock()
	dropped, known := d.clusters[cluster]
	_, typed := d.types[gr]
	d.known.RUnlock()
	if dropped {
		if err := d.sweepOne(ctx, cluster, d.transact); err != nil {
			return err
		}
		known = false
	}
	if !known {
		if err := d.transact(ctx, 1, func(ctx context.Context, tx *sql.Tx, _ int64) error {
			var name string
			err := tx.QueryRowContext(ctx, say(d.dialect, "SELECT name FROM cluster WHERE name = ?"), cluster).Scan(&name)
			if errors.Is(err, sql.ErrNoRows) {
				_, err = tx.ExecContext(ctx, say(d.dialect, "INSERT INTO cluster (name, dropped) VALUES (?, 0)"), cluster)
			}
			return err
		}); err != nil {
			return err
		}
		d.known.Lock()
		d.clusters[cluster] = false
		d.known.Unlock()
	}
	if typed {
		return nil
	}
	var id int64
	if err := d.transact(ctx, 1, func(ctx context.Context, tx *sql.Tx, seq int64) error {
		err := tx.QueryRowContext(ctx, say(d.dialect, "SELECT id FROM type WHERE grp = ? AND resource = ?"), gr.group, gr.resource).Scan(&id)
		if errors.Is(err, sql.ErrNoRows) {
			id = seq
			_, err = tx.ExecContext(ctx, say(d.dialect, "INSERT INTO type (id, grp, resource) VALUES (?, ?, ?)"), id, gr.group, gr.resource)
		}
		return err
	}); err != nil {
		return err
	}
	d.known.Lock()
	d.types[gr], d.kinds[id] = id, schema.GroupResource{Group: gr.group, Resource: gr.resource}
	d.known.Unlock()
	return nil
}
