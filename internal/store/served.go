package store

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Type is a type whose objects are stored of a cluster. It is remembered so that a cluster
// that cannot be asked can still be searched.
type Type struct {
	Cluster  string
	Resource schema.GroupResource
	API      []byte // what is known of the type, as the mirror encodes it
}

func (d *database) saveType(ctx context.Context, t Type) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	gr := groupResource{t.Resource.Group, t.Resource.Resource}
	if err := d.identifyOne(ctx, t.Cluster, gr); err != nil {
		return fmt.Errorf("save type %s of cluster %s: %w", t.Resource, t.Cluster, err)
	}
	_, err := d.write.ExecContext(ctx,
		"INSERT INTO served (cluster, type, api) VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET api = excluded.api WHERE api <> excluded.api",
		d.clusters[t.Cluster], d.types[gr], string(t.API))
	if err != nil {
		return fmt.Errorf("save type %s of cluster %s: %w", t.Resource, t.Cluster, err)
	}
	return nil
}

func (d *database) served(ctx context.Context, cluster string) ([]Type, error) {
	rows, err := d.read.QueryContext(ctx, `SELECT t.grp, t.resource, s.api
		FROM cluster c JOIN served s ON s.cluster = c.id JOIN type t ON t.id = s.type
		WHERE c.name = ? ORDER BY t.grp, t.resource`, cluster)
	if err != nil {
		return nil, fmt.Errorf("list types of cluster %s: %w", cluster, err)
	}
	defer rows.Close() //nolint:errcheck // rows.Err says it
	var out []Type
	for rows.Next() {
		t := Type{Cluster: cluster}
		if err := rows.Scan(&t.Resource.Group, &t.Resource.Resource, &t.API); err != nil {
			return nil, fmt.Errorf("list types of cluster %s: %w", cluster, err)
		}
		out = append(out, t)
	}
	return out, rows.Err()
}

// Key names a stored object, at the version that is stored; "": what is stored is not all that
// this version of Orrery stores.
type Key struct {
	Namespace, Name string
	UID             types.UID
	Version         string // of the API
	ResourceVersion string
}

func (d *database) keys(ctx context.Context, cluster string, gr schema.GroupResource) ([]Key, error) {
	rows, err := d.read.QueryContext(ctx, `SELECT namespace, name, uid, version, CASE WHEN note IS NULL THEN '' ELSE rv END FROM object
		WHERE cluster = (SELECT id FROM cluster WHERE name = ?) AND type = (SELECT id FROM type WHERE grp = ? AND resource = ?)`,
		cluster, gr.Group, gr.Resource)
	if err != nil {
		return nil, fmt.Errorf("list keys of %s in cluster %s: %w", gr, cluster, err)
	}
	defer rows.Close() //nolint:errcheck // rows.Err says it
	var out []Key
	for rows.Next() {
		var k Key
		if err := rows.Scan(&k.Namespace, &k.Name, &k.UID, &k.Version, &k.ResourceVersion); err != nil {
			return nil, fmt.Errorf("list keys of %s in cluster %s: %w", gr, cluster, err)
		}
		out = append(out, k)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("list keys of %s in cluster %s: %w", gr, cluster, err)
	}
	return out, nil
}
