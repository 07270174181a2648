package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// chunk is the number of objects that a deletion handles at once. Other writes can run between
// chunks.
const chunk = 1000

// transaction is transact or locked.
type transaction func(ctx context.Context, n int64, f func(ctx context.Context, tx *sql.Tx, seq int64) error) error

// locked is transact for callers that do not hold d.mu.
func (d *database) locked(ctx context.Context, n int64, f func(ctx context.Context, tx *sql.Tx, seq int64) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.transact(ctx, n, f)
}

// dropCluster makes the rows of a cluster invisible at once, and then deletes them.
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
	d.owed.remove(owedKey{cluster: cluster})
	return nil
}

// sweep deletes the rows of dropped clusters, and then the clusters.
func (d *database) sweep(ctx context.Context) error {
	_, dropped := d.names()
	for _, cluster := range dropped {
		if err := d.sweepOne(ctx, cluster, d.locked); err != nil {
			return err
		}
	}
	return nil
}

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

func (d *database) dropType(ctx context.Context, cluster string, gr schema.GroupResource) error {
	if err := d.deleteType(ctx, cluster, groupResource{gr.Group, gr.Resource}, d.locked); err != nil {
		return fmt.Errorf("drop %s of cluster %s: %w", gr, cluster, err)
	}
	return nil
}

// deleteRows deletes all objects of a type in a cluster, with their history, in chunks.
func (d *database) deleteRows(ctx context.Context, cluster string, kind int64, transact transaction) error {
	// The history first: without the present state, the rest could not be decoded.
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
				if err := rows.Scan(&p.namespace, &p.name, &o.id, &o.stored, &labels, &terms, &o.prose); err != nil {
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

// exec runs a statement of constant text in its own transaction.
func (d *database) exec(ctx context.Context, text string, args ...any) error {
	return d.locked(ctx, 1, func(ctx context.Context, tx *sql.Tx, _ int64) error {
		_, err := tx.ExecContext(ctx, say(d.dialect, text), args...)
		return err
	})
}
