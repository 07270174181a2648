package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Checkpoint vouches for the rows of a type in a cluster: they are all that the cluster had when
// it had reached a state, or newer.
type Checkpoint struct {
	Cluster  string
	Resource schema.GroupResource
	Epoch    string // of the database that the rows were written to
	State    []byte // what is needed to go on, as the mirror encodes it; nil: nothing is vouched for any more
}

// clusterType is a type of a cluster, by their numbers.
type clusterType struct{ cluster, kind int64 }

func (d *database) epoch(ctx context.Context) (epoch string, err error) {
	if err := d.read.QueryRowContext(ctx, "SELECT id FROM epoch").Scan(&epoch); err != nil {
		return "", fmt.Errorf("read the epoch: %w", err)
	}
	return epoch, nil
}

func (d *database) saveCheckpoints(ctx context.Context, checkpoints []Checkpoint) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	const where = " WHERE cluster = (SELECT id FROM cluster WHERE name = ?) AND type = (SELECT id FROM type WHERE grp = ? AND resource = ?)"
	return d.transact(ctx, func(tx *sql.Tx) error {
		for _, c := range checkpoints {
			var err error
			group, resource := c.Resource.Group, c.Resource.Resource
			switch {
			case c.State == nil:
				_, err = tx.ExecContext(ctx, "UPDATE served SET checkpoint = NULL"+where, c.Cluster, group, resource)
			case !d.incomplete[clusterType{d.clusters[c.Cluster], d.types[groupResource{group, resource}]}]:
				_, err = tx.ExecContext(ctx, "UPDATE served SET checkpoint = ?"+where+" AND ? = (SELECT id FROM epoch)",
					string(c.State), c.Cluster, group, resource, c.Epoch)
			}
			if err != nil {
				return fmt.Errorf("save checkpoint of %s of cluster %s: %w", c.Resource, c.Cluster, err)
			}
		}
		return nil
	})
}

func (d *database) checkpoint(ctx context.Context, cluster string, gr schema.GroupResource) ([]byte, error) {
	var state sql.Null[[]byte]
	err := d.read.QueryRowContext(ctx, `SELECT s.checkpoint FROM served s JOIN cluster c ON c.id = s.cluster JOIN type t ON t.id = s.type
		WHERE c.name = ? AND t.grp = ? AND t.resource = ?`, cluster, gr.Group, gr.Resource).Scan(&state)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return nil, fmt.Errorf("read checkpoint of %s of cluster %s: %w", gr, cluster, err)
	}
	return state.V, nil
}

func (d *database) rows(ctx context.Context, cluster string, gr schema.GroupResource, bodies bool, after Key, limit int) ([]Row, error) {
	fail := func(err error) ([]Row, error) {
		return nil, fmt.Errorf("read rows of %s of cluster %s: %w", gr, cluster, err)
	}
	rows, err := d.read.QueryContext(ctx, `SELECT namespace, name, uid, rv, labels, ifnull(note, ''),
			CASE WHEN ? OR note <> '' THEN (SELECT json FROM body WHERE object = object.id) END
		FROM object
		WHERE cluster = (SELECT id FROM cluster WHERE name = ?) AND type = (SELECT id FROM type WHERE grp = ? AND resource = ?)
			AND (namespace, name) > (?, ?)
		ORDER BY namespace, name LIMIT ?`,
		bodies, cluster, gr.Group, gr.Resource, after.Namespace, after.Name, limit)
	if err != nil {
		return fail(err)
	}
	defer rows.Close() //nolint:errcheck // rows.Err says it
	var out []Row
	for rows.Next() {
		r := Row{Cluster: cluster, Group: gr.Group, Resource: gr.Resource}
		var labels string
		if err := rows.Scan(&r.Namespace, &r.Name, &r.UID, &r.ResourceVersion, &labels, &r.Note, &r.Body); err != nil {
			return fail(err)
		}
		if labels != "{}" {
			if err := json.Unmarshal([]byte(labels), &r.Labels); err != nil {
				return fail(fmt.Errorf("%w: read labels of %s/%s: %w", errDamaged, r.Namespace, r.Name, err))
			}
		}
		out = append(out, r)
	}
	if err := rows.Err(); err != nil {
		return fail(err)
	}
	return out, nil
}
