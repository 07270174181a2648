package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// chunk is the number of rows that one transaction of a long task handles, such as a deletion.
// Other writes can run between two transactions.
const chunk = 1000

// transaction is the type of two methods that run f in a transaction of n changes: transact and
// locked. A function that takes one is used with transact if the caller holds d.mu, and with locked
// if not.
type transaction func(ctx context.Context, n int64, f func(ctx context.Context, tx *sql.Tx, seq int64) error) error

// locked locks d.mu and calls transact, which runs f in a transaction of n changes.
func (d *database) locked(ctx context.Context, n int64, f func(ctx context.Context, tx *sql.Tx, seq int64) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.transact(ctx, n, f)
}

// dropCluster deletes all rows of a cluster. It first marks the cluster as dropped in the database,
// so that queries leave its rows out, also after a restart. It deletes the rows of all marked
// clusters. At the end it removes the pending deletion of the cluster. The caller must not hold
// d.mu.
func (d *database) dropCluster(ctx context.Context, cluster string) error {
	err := d.exec(ctx, "UPDATE cluster SET dropped = 1 WHERE name = ?", cluster)
	if err == nil {
		d.known.Lock()
		if _, ok := d.clusters[cluster]; ok {
			d.clusters[cluster] = true
		}
		d.known.Unlock()
		err = d.sweep(ctx)
	}
	if err != nil {
		return fmt.Errorf("drop cluster %s: %w", cluster, err)
	}
	d.pendingDeletions.remove(deletionKey{cluster: cluster})
	return nil
}

// sweep deletes the rows of all clusters that are marked as dropped, and then these clusters. The
// caller must not hold d.mu.
func (d *database) sweep(ctx context.Context) error {
	_, dropped := d.names()
	for _, cluster := range dropped {
		if err := d.sweepOne(ctx, cluster, d.locked); err != nil {
			return err
		}
	}
	return nil
}

// sweepOne deletes the rows of a cluster that is marked as dropped, and then the cluster, in
// several transactions. transact is d.transact if the caller holds d.mu, else d.locked.
func (d *database) sweepOne(ctx context.Context, cluster string, transact transaction) error {
	d.known.RLock()
	kinds := make([]int64, 0, len(d.types))
	for _, id := range d.types {
		kinds = append(kinds, id)
	}
	d.known.RUnlock()
	for _, kind := range kinds {
		if err := d.deleteRows(ctx, cluster, kind, transact); err != nil {
			return err
		}
	}
	if err := transact(ctx, 1, func(ctx context.Context, tx *sql.Tx, _ int64) error {
		if _, err := tx.ExecContext(ctx, say(d.dialect, "DELETE FROM served WHERE cluster = ?"), cluster); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, say(d.dialect, "DELETE FROM cluster WHERE name = ? AND dropped = 1"), cluster)
		return err
	}); err != nil {
		return err
	}
	d.known.Lock()
	defer d.known.Unlock()
	if d.clusters[cluster] {
		delete(d.clusters, cluster)
	}
	return nil
}

// dropType deletes all objects of a type in a cluster, with their history and the checkpoint, for
// Store.DropType. It is deleteType for callers that do not hold d.mu.
func (d *database) dropType(ctx context.Context, cluster string, gr schema.GroupResource) error {
	if err := d.deleteType(ctx, cluster, groupResource{gr.Group, gr.Resource}, d.locked); err != nil {
		return fmt.Errorf("drop %s of cluster %s: %w", gr, cluster, err)
	}
	return nil
}

// deleteRows deletes all objects of a type in a cluster, with their history, chunk by chunk, and
// records the deletions in the journal. kind is the number of the type. transact is d.transact if
// the caller holds d.mu, else d.locked. If it fails, it can be called again.
func (d *database) deleteRows(ctx context.Context, cluster string, kind int64, transact transaction) error {
	// The history is deleted first. Past states are stored as differences to later states, so they
	// could not be decoded without the present state.
	if err := d.dropHistory(ctx, cluster, kind, transact); err != nil {
		return err
	}
	query := say(d.dialect, "SELECT namespace, name, id, uid, labels, terms, prose FROM object WHERE type = ? AND cluster = ? ORDER BY namespace, name LIMIT ?")
	for n := chunk; n == chunk; {
		n = 0
		if err := transact(ctx, chunk, func(ctx context.Context, tx *sql.Tx, seq int64) error {
			w := writer{ctx: ctx, tx: tx, database: d}
			var out outgoing
			if err := each(ctx, tx, query, func(rows *sql.Rows) error {
				p, o := place{kind: kind, cluster: cluster}, object{seq: seq + int64(n)}
				n++
				var labels, terms string
				if err := rows.Scan(&p.namespace, &p.name, &o.id, &o.stored, &labels, &terms, &o.fingerprint); err != nil {
					return err
				}
				if err := json.Unmarshal([]byte(labels), &o.labels); err != nil {
					return fmt.Errorf("%w: read labels of %s/%s: %w", errDamaged, p.namespace, p.name, err)
				}
				var err error
				if o.terms, err = decodeTerms(terms); err != nil {
					return err
				}
				return w.add(&out, p, &o)
			}, kind, cluster, chunk); err != nil {
				return err
			}
			return w.put(&out)
		}); err != nil {
			return err
		}
	}
	return nil
}

// exec runs one statement in its own transaction. Each question mark in the constant text stands
// for one of args. The caller must not hold d.mu.
func (d *database) exec(ctx context.Context, text string, args ...any) error {
	return d.locked(ctx, 1, func(ctx context.Context, tx *sql.Tx, _ int64) error {
		_, err := tx.ExecContext(ctx, say(d.dialect, text), args...)
		return err
	})
}
