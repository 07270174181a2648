package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Checkpoint confirms that the stored rows of a type in a cluster are complete for a state of the
// cluster, or newer. It has what the mirror needs to continue its watch from there after a restart.
type Checkpoint struct {
	Cluster  string
	Resource schema.GroupResource
	Epoch    string // of the database with the rows, from Store.Epoch
	// What the mirror needs to continue, in the mirror's own encoding. nil: SaveCheckpoints deletes
	// the checkpoint.
	State []byte
}

// clusterType names a type in a cluster. The type is given by its number in the database.
type clusterType struct {
	cluster string
	kind    int64
}

func (d *database) readEpoch(ctx context.Context) (epoch string, err error) {
	if err := d.read.QueryRowContext(ctx, "SELECT id FROM epoch").Scan(&epoch); err != nil {
		return "", fmt.Errorf("read the epoch: %w", err)
	}
	return epoch, nil
}

func (d *database) saveCheckpoints(ctx context.Context, checkpoints []Checkpoint) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.transact(ctx, 1, func(ctx context.Context, tx *sql.Tx, _ int64) error {
		for _, c := range checkpoints {
			kind := d.kind(groupResource{c.Resource.Group, c.Resource.Resource})
			var state any // NULL
			switch {
			case c.State == nil:
			case c.Epoch != d.epoch || len(d.incomplete[clusterType{c.Cluster, kind}]) > 0:
				continue
			default:
				state = string(c.State)
			}
			if _, err := tx.ExecContext(ctx, say(d.dialect, "UPDATE served SET checkpoint = ? WHERE cluster = ? AND type = ?"), state, c.Cluster, kind); err != nil {
				return fmt.Errorf("save checkpoint of %s of cluster %s: %w", c.Resource, c.Cluster, err)
			}
		}
		return nil
	})
}

func (d *database) checkpoint(ctx context.Context, cluster string, gr schema.GroupResource) ([]byte, error) {
	var state sql.Null[[]byte]
	err := d.read.QueryRowContext(ctx, say(d.dialect, "SELECT checkpoint FROM served WHERE cluster = ? AND type = ?"),
		d.shown(cluster, d.kind(groupResource{gr.Group, gr.Resource})), d.kind(groupResource{gr.Group, gr.Resource})).Scan(&state)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return nil, fmt.Errorf("read checkpoint of %s of cluster %s: %w", gr, cluster, err)
	}
	return state.V, nil
}

func (d *database) rows(ctx context.Context, cluster string, gr schema.GroupResource, bodies bool, after Key, limit int) ([]Row, error) {
	join := " LEFT JOIN body b ON b.object = o.id"
	if !bodies {
		join += " AND o.note <> ''"
	}
	var out []Row
	err := each(ctx, d.read, say(d.dialect, "SELECT o.namespace, o.name, o.uid, o.rv, o.labels, coalesce(o.note, ''), "+d.dialect.exactBody()+" FROM object o"+join+
		" WHERE o.type = ? AND o.cluster = ? AND o.namespace >= ? AND (o.namespace, o.name) > (?, ?) ORDER BY o.namespace, o.name LIMIT ?"), func(rows *sql.Rows) error {
		r := Row{Cluster: cluster, Group: gr.Group, Resource: gr.Resource}
		var labels string
		var packed []byte
		if err := rows.Scan(&r.Namespace, &r.Name, &r.UID, &r.ResourceVersion, &labels, &r.Note, &r.Body, &packed); err != nil {
			return err
		}
		if labels != "{}" {
			if err := json.Unmarshal([]byte(labels), &r.Labels); err != nil {
				return fmt.Errorf("%w: read labels of %s/%s: %w", errDamaged, r.Namespace, r.Name, err)
			}
		}
		err := d.unpack(&r, packed)
		out = append(out, r)
		return err
	}, d.kind(groupResource{gr.Group, gr.Resource}), d.shown(cluster, d.kind(groupResource{gr.Group, gr.Resource})), after.Namespace, after.Namespace, after.Name, limit)
	if err != nil {
		return nil, fmt.Errorf("read rows of %s of cluster %s: %w", gr, cluster, err)
	}
	return out, nil
}
