package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// chunk is how many rows a deletion takes at once: other writes get their turn between.
const chunk = 1000

// dropCluster makes the rows of a cluster invisible at once, and then deletes them.
func (d *database) dropCluster(ctx context.Context, cluster string) error {
	d.mu.Lock()
	_, err := d.write.ExecContext(ctx, "UPDATE cluster SET name = NULL WHERE name = ?", cluster)
	delete(d.clusters, cluster)
	d.mu.Unlock()
	if err == nil {
		err = d.sweep(ctx)
	}
	if err != nil {
		return fmt.Errorf("drop cluster %s: %w", cluster, err)
	}
	return nil
}

// sweep deletes the rows of dropped clusters, and then the clusters.
func (d *database) sweep(ctx context.Context) error {
	for {
		var id int64
		err := d.read.QueryRowContext(ctx, "SELECT id FROM cluster WHERE name IS NULL LIMIT 1").Scan(&id)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := d.deleteRows(ctx, "cluster = ?", id); err != nil {
			return err
		}
		if err := d.exec(ctx, "DELETE FROM cluster WHERE id = ?", id); err != nil {
			return err
		}
	}
}

func (d *database) dropType(ctx context.Context, cluster string, gr schema.GroupResource) error {
	c, t, err := d.ids(ctx, cluster, gr)
	if err == nil && c != 0 && t != 0 {
		// A deletion that is interrupted must not leave rows that something vouches for.
		err = d.exec(ctx, "UPDATE served SET checkpoint = NULL WHERE cluster = ? AND type = ?", c, t)
	}
	if err == nil && c != 0 && t != 0 {
		err = d.deleteRows(ctx, "cluster = ? AND type = ?", c, t)
	}
	if err != nil {
		return fmt.Errorf("drop %s of cluster %s: %w", gr, cluster, err)
	}
	return nil
}

// ids finds the numbers of a cluster and a type; 0 for what is not known.
func (d *database) ids(ctx context.Context, cluster string, gr schema.GroupResource) (c, t int64, err error) {
	err = d.read.QueryRowContext(ctx,
		"SELECT ifnull((SELECT id FROM cluster WHERE name = ?), 0), ifnull((SELECT id FROM type WHERE grp = ? AND resource = ?), 0)",
		cluster, gr.Group, gr.Resource).Scan(&c, &t)
	return c, t, err
}

// deleteRows deletes, in chunks, the rows of every table for which a condition on cluster
// and type holds.
func (d *database) deleteRows(ctx context.Context, condition string, args ...any) error {
	for {
		var n int64
		d.mu.Lock()
		err := d.transact(ctx, func(tx *sql.Tx) error {
			for _, query := range []string{
				"DELETE FROM body WHERE object IN (SELECT id FROM object WHERE " + condition + " ORDER BY cluster, type, namespace, name LIMIT ?)",
				"DELETE FROM object WHERE id IN (SELECT id FROM object WHERE " + condition + " ORDER BY cluster, type, namespace, name LIMIT ?)",
				"DELETE FROM label WHERE (cluster, type, key, value, namespace, name) IN (SELECT cluster, type, key, value, namespace, name FROM label WHERE " + condition + " LIMIT ?)",
			} {
				r, err := tx.ExecContext(ctx, query, append(slices.Clip(args), chunk)...)
				if err != nil {
					return err
				}
				deleted, err := r.RowsAffected()
				if err != nil {
					return err
				}
				n += deleted
			}
			return nil
		})
		d.mu.Unlock()
		if err != nil {
			return err
		}
		if n == 0 {
			return d.exec(ctx, "DELETE FROM served WHERE "+condition, args...)
		}
	}
}

func (d *database) exec(ctx context.Context, query string, args ...any) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, err := d.write.ExecContext(ctx, query, args...)
	return err
}
