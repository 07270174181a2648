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

// DropCluster deletes everything of a cluster. Its rows are invisible at once, even when
// the deletion is interrupted; the next Open finishes it.
func (s *Store) DropCluster(ctx context.Context, cluster string) error {
	s.mu.Lock()
	_, err := s.write.ExecContext(ctx, "UPDATE cluster SET name = NULL WHERE name = ?", cluster)
	delete(s.clusters, cluster)
	s.mu.Unlock()
	if err == nil {
		err = s.sweep(ctx)
	}
	if err != nil {
		return fmt.Errorf("drop cluster %s: %w", cluster, classify(err))
	}
	return nil
}

// sweep deletes the rows of dropped clusters, and then the clusters.
func (s *Store) sweep(ctx context.Context) error {
	for {
		var id int64
		err := s.read.QueryRowContext(ctx, "SELECT id FROM cluster WHERE name IS NULL LIMIT 1").Scan(&id)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.deleteRows(ctx, "cluster = ?", id); err != nil {
			return err
		}
		if err := s.exec(ctx, "DELETE FROM cluster WHERE id = ?", id); err != nil {
			return err
		}
	}
}

// DropType deletes every object of a type in a cluster.
func (s *Store) DropType(ctx context.Context, cluster string, gr schema.GroupResource) error {
	c, t, err := s.ids(ctx, cluster, gr)
	if err == nil && c != 0 && t != 0 {
		err = s.deleteRows(ctx, "cluster = ? AND type = ?", c, t)
	}
	if err != nil {
		return fmt.Errorf("drop %s of cluster %s: %w", gr, cluster, classify(err))
	}
	return nil
}

// ids finds the numbers of a cluster and a type; 0 for what is not known.
func (s *Store) ids(ctx context.Context, cluster string, gr schema.GroupResource) (c, t int64, err error) {
	err = s.read.QueryRowContext(ctx,
		"SELECT ifnull((SELECT id FROM cluster WHERE name = ?), 0), ifnull((SELECT id FROM type WHERE grp = ? AND resource = ?), 0)",
		cluster, gr.Group, gr.Resource).Scan(&c, &t)
	return c, t, err
}

// deleteRows deletes, in chunks, the rows of every table for which a condition on cluster
// and type holds.
func (s *Store) deleteRows(ctx context.Context, condition string, args ...any) error {
	for {
		var n int64
		s.mu.Lock()
		err := s.transact(ctx, func(tx *sql.Tx) error {
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
		s.mu.Unlock()
		if err != nil {
			return err
		}
		if n == 0 {
			return s.exec(ctx, "DELETE FROM served WHERE "+condition, args...)
		}
	}
}

func (s *Store) exec(ctx context.Context, query string, args ...any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.write.ExecContext(ctx, query, args...)
	return err
}
