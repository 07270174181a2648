package store

import (
	"context"
	"database/sql"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Type records that objects of a type are stored for a cluster. With the record, the objects can be
// searched while the cluster does not answer.
type Type struct {
	Cluster  string
	Resource schema.GroupResource
	API      []byte // description of the type, in the mirror's encoding
}

// saveType records a type of a cluster. It does the work of Store.SaveType, and takes d.mu.
func (d *database) saveType(ctx context.Context, t Type) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	gr := groupResource{t.Resource.Group, t.Resource.Resource}
	if err := d.completeDeletion(ctx, t.Cluster, gr); err != nil {
		return fmt.Errorf("save type %s of cluster %s: %w", t.Resource, t.Cluster, err)
	}
	if err := d.identifyOne(ctx, t.Cluster, gr); err != nil {
		return fmt.Errorf("save type %s of cluster %s: %w", t.Resource, t.Cluster, err)
	}
	err := d.transact(ctx, 1, func(ctx context.Context, tx *sql.Tx, _ int64) error {
		_, err := tx.ExecContext(ctx, say(d.dialect, "INSERT INTO served (cluster, type, api) VALUES (?, ?, ?)"+
			d.dialect.replace("cluster, type", []string{"api"})), t.Cluster, d.kind(gr), string(t.API))
		return err
	})
	if err != nil {
		return fmt.Errorf("save type %s of cluster %s: %w", t.Resource, t.Cluster, err)
	}
	return nil
}

func (d *database) served(ctx context.Context) ([]Type, error) {
	var out []Type
	if err := each(ctx, d.read, `SELECT c.name, t.grp, t.resource, s.api
		FROM cluster c JOIN served s ON s.cluster = c.name JOIN type t ON t.id = s.type
		WHERE c.dropped = 0 ORDER BY c.name, t.grp, t.resource`, func(rows *sql.Rows) error {
		var t Type
		err := rows.Scan(&t.Cluster, &t.Resource.Group, &t.Resource.Resource, &t.API)
		if whole, typed := d.pendingDeletions.has(t.Cluster, groupResource{t.Resource.Group, t.Resource.Resource}); err == nil && !whole && !typed {
			out = append(out, t)
		}
		return err
	}); err != nil {
		return nil, fmt.Errorf("list types of clusters: %w", err)
	}
	return out, nil
}

// Key is the key and version of a stored object, which the mirror compares with the cluster.
// ResourceVersion is "" if an older version of Orrery stored the object without data that this
// version stores. The mirror then writes it again.
type Key struct {
	Namespace, Name string
	UID             types.UID
	Version         string // of the API
	ResourceVersion string
}

func (d *database) keys(ctx context.Context, cluster string, gr schema.GroupResource) ([]Key, error) {
	var out []Key
	if err := each(ctx, d.read, say(d.dialect, `SELECT namespace, name, uid, version, CASE WHEN note IS NULL THEN '' ELSE rv END FROM object
		WHERE type = ? AND cluster = ?`), func(rows *sql.Rows) error {
		var k Key
		err := rows.Scan(&k.Namespace, &k.Name, &k.UID, &k.Version, &k.ResourceVersion)
		out = append(out, k)
		return err
	}, d.kind(groupResource{gr.Group, gr.Resource}), d.shown(cluster, d.kind(groupResource{gr.Group, gr.Resource}))); err != nil {
		return nil, fmt.Errorf("list keys of %s in cluster %s: %w", gr, cluster, err)
	}
	return out, nil
}

// visible returns the name of a cluster for a query. It returns "", for which no rows exist, while
// the cluster is marked as dropped. An unknown name is returned unchanged.
func (d *database) visible(cluster string) string {
	d.known.RLock()
	defer d.known.RUnlock()
	if d.clusters[cluster] {
		return ""
	}
	return cluster
}
