package store

import (
	"context"
	"fmt"
	"iter"

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

// SaveType remembers a type of a cluster until it or the cluster is dropped.
func (s *Store) SaveType(ctx context.Context, t Type) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	gr := groupResource{t.Resource.Group, t.Resource.Resource}
	if err := s.identifyOne(ctx, t.Cluster, gr); err != nil {
		return fmt.Errorf("save type %s of cluster %s: %w", t.Resource, t.Cluster, classify(err))
	}
	_, err := s.write.ExecContext(ctx,
		"INSERT INTO served (cluster, type, api) VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET api = excluded.api WHERE api <> excluded.api",
		s.clusters[t.Cluster], s.types[gr], string(t.API))
	if err != nil {
		return fmt.Errorf("save type %s of cluster %s: %w", t.Resource, t.Cluster, classify(err))
	}
	return nil
}

// Types returns the types of a cluster that are remembered.
func (s *Store) Types(ctx context.Context, cluster string) ([]Type, error) {
	rows, err := s.read.QueryContext(ctx, `SELECT t.grp, t.resource, s.api
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

// Key names a stored object, at the version that is stored.
type Key struct {
	Namespace, Name string
	UID             types.UID
	ResourceVersion string
}

// Keys walks over what is stored of a type in a cluster.
func (s *Store) Keys(ctx context.Context, cluster string, gr schema.GroupResource) iter.Seq2[Key, error] {
	return func(yield func(Key, error) bool) {
		rows, err := s.read.QueryContext(ctx, `SELECT namespace, name, uid, rv FROM object
			WHERE cluster = (SELECT id FROM cluster WHERE name = ?) AND type = (SELECT id FROM type WHERE grp = ? AND resource = ?)`,
			cluster, gr.Group, gr.Resource)
		if err != nil {
			yield(Key{}, fmt.Errorf("list keys of %s in cluster %s: %w", gr, cluster, err))
			return
		}
		defer rows.Close() //nolint:errcheck // rows.Err says it
		for rows.Next() {
			var k Key
			if err := rows.Scan(&k.Namespace, &k.Name, &k.UID, &k.ResourceVersion); err != nil {
				yield(Key{}, fmt.Errorf("list keys of %s in cluster %s: %w", gr, cluster, err))
				return
			}
			if !yield(k, nil) {
				return
			}
		}
		if err := rows.Err(); err != nil {
			yield(Key{}, fmt.Errorf("list keys of %s in cluster %s: %w", gr, cluster, err))
		}
	}
}
