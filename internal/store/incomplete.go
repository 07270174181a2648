package store

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// An object that the database refuses is stored without the part that it refuses, as soon as less of it fits: without the fields that are nested too deep,
// then with its metadata alone, then with what is known of it without its body, then without its labels and its owner. The body says so in
// IncompleteAnnotation, which names the missing fields, and an index leads to such objects. Of an object of which not even the name fits
// nothing is stored.

// IncompleteAnnotation names what is missing of an object. It is that of the fleet API. Writers see to it that nobody else sets it.
const IncompleteAnnotation = "fleet.orrery.dev/incomplete"

// Incomplete counts objects of a type of a cluster that are not stored as they are.
type Incomplete struct {
	Cluster  string
	Resource schema.GroupResource
	Partly   int // stored without a part
	Missing  int // not stored
}

// Incomplete returns which types of which clusters have objects that are not stored as they are, by cluster, group and resource.
func (s *Store) Incomplete(ctx context.Context) (out []Incomplete, err error) {
	err = s.do(ctx, func(d *database) error {
		out, err = d.countIncomplete(ctx)
		return err
	})
	return out, err
}

// incompletePair leads to the objects that are stored without a part.
var incompletePair = pair{".[incomplete]", "yes"}

// incompleteTerms are the terms of a body that says that it is not whole.
func incompleteTerms(body []byte) []pair {
	if !bytes.Contains(body, []byte(IncompleteAnnotation)) {
		return nil
	}
	var o struct {
		Metadata struct {
			Annotations map[string]json.RawMessage `json:"annotations"`
		} `json:"metadata"`
	}
	if json.Unmarshal(body, &o) != nil || o.Metadata.Annotations[IncompleteAnnotation] == nil {
		return nil
	}
	return []pair{incompletePair}
}

// refuses reports whether an error is about one row, and not about the database.
func (d *database) refuses(err error) bool {
	return errors.Is(err, errNoJSON) || errors.Is(err, errNoKey) || d.dialect.fault(err) == faultRow
}

// reduce writes as much of a change as the database takes, after it refused the whole for a cause. d.mu must be held.
func (d *database) reduce(ctx context.Context, c *Change, cause error) (rejected, err error) {
	about := &RejectedError{Cluster: c.Cluster, Group: c.Group, Resource: c.Resource, Namespace: c.Namespace, Name: c.Name, Err: cause}
	if !c.Delete {
		for _, lesser := range reductions(&c.Row) {
			err := d.attempt(ctx, []Change{{Row: lesser}})
			if err == nil {
				about.Stored = true
				d.complete(c)
				return about, nil
			}
			if !d.refuses(err) {
				return nil, err
			}
		}
		// What has the name is not what the cluster has.
		gone := Change{Row: Row{Cluster: c.Cluster, Group: c.Group, Resource: c.Resource, Namespace: c.Namespace, Name: c.Name}, Delete: true}
		if err := d.attempt(ctx, []Change{gone}); err != nil && !d.refuses(err) {
			return nil, err
		}
	}
	at := clusterType{c.Cluster, d.kind(groupResource{c.Group, c.Resource})}
	if d.incomplete[at] == nil {
		d.incomplete[at] = map[Key]bool{}
	}
	d.incomplete[at][Key{Namespace: c.Namespace, Name: c.Name}] = true
	return about, nil
}

// complete takes note that the database has taken a change: a row that it refused under that name is there, or gone. d.mu must be held.
func (d *database) complete(c *Change) {
	if len(d.incomplete) == 0 {
		return
	}
	at := clusterType{c.Cluster, d.kind(groupResource{c.Group, c.Resource})}
	if delete(d.incomplete[at], Key{Namespace: c.Namespace, Name: c.Name}); len(d.incomplete[at]) == 0 {
		delete(d.incomplete, at)
	}
}

// forgetIncomplete takes note that a type of a cluster, or, of kind 0, all of it, is deleted. d.mu must be held.
func (d *database) forgetIncomplete(cluster string, kind int64) {
	for at := range d.incomplete {
		if at.cluster == cluster && (kind == 0 || at.kind == kind) {
			delete(d.incomplete, at)
		}
	}
}

// countIncomplete asks the index, by the connection that writes: whoever writes asks, and must not wait for readers.
func (d *database) countIncomplete(ctx context.Context) ([]Incomplete, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.counted == nil {
		if err := d.recount(ctx); err != nil {
			return nil, fmt.Errorf("count what is not stored as it is: %w", err)
		}
	}
	found := map[clusterType]*Incomplete{}
	of := func(at clusterType) *Incomplete {
		if found[at] == nil {
			found[at] = &Incomplete{Cluster: at.cluster, Resource: d.gr(at.kind)}
		}
		return found[at]
	}
	for at, n := range d.counted {
		of(at).Partly = n
	}
	for at, keys := range d.incomplete {
		of(at).Missing = len(keys)
	}
	out := make([]Incomplete, 0, len(found))
	for at, one := range found {
		if d.shown(at.cluster, at.kind) != "" {
			out = append(out, *one)
		}
	}
	slices.SortFunc(out, func(a, b Incomplete) int {
		return strings.Compare(a.Cluster+"\x00"+a.Resource.String(), b.Cluster+"\x00"+b.Resource.String())
	})
	return out, nil
}

// recount counts the objects that are stored without a part. d.mu must be held.
func (d *database) recount(ctx context.Context) error {
	if d.patience > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d.patience)
		defer cancel()
	}
	d.known.RLock()
	kinds := slices.Collect(maps.Keys(d.kinds))
	d.known.RUnlock()
	counted := map[clusterType]int{}
	for some := range slices.Chunk(kinds, chunk) {
		s := &statement{dialect: d.dialect}
		s.sql("SELECT l.type, l.cluster, count(*) FROM label l WHERE ")
		d.dialect.ids(s, "l.type", some)
		s.sql(" AND l.label_key = ").arg(incompletePair.key).sql(" GROUP BY l.type, l.cluster")
		if err := each(ctx, d.write, s.text.String(), func(rows *sql.Rows) error {
			var at clusterType
			var n int
			err := rows.Scan(&at.kind, &at.cluster, &n)
			counted[at] = n
			return err
		}, s.args...); err != nil {
			return err
		}
	}
	d.counted = counted
	return nil
}

// reductions are what may be stored of a row, from the most to the least.
func reductions(r *Row) (out []Row) {
	with := func(body []byte) {
		if body != nil {
			lesser := *r
			lesser.Body = body
			out = append(out, lesser)
		}
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(r.Body, &fields) == nil {
		with(keepFields(fields, func(_ string, field json.RawMessage) bool { return shallow(field) }))
		with(keepFields(fields, func(name string, _ json.RawMessage) bool { return name == "apiVersion" || name == "kind" }))
	}
	bare := *r
	bare.Body = bareBody(r, r.Labels)
	unnamed := bare
	unnamed.Labels, unnamed.OwnerUID, unnamed.Body = nil, "", bareBody(r, nil)
	return append(out, bare, unnamed)
}

// mostMissing is how long the names of missing fields may be, in bytes.
const mostMissing = 200

// keepFields is an object with its metadata and the fields to keep, which says which others are missing; nil: none is, or the metadata cannot be read.
func keepFields(fields map[string]json.RawMessage, keep func(name string, field json.RawMessage) bool) []byte {
	kept := map[string]any{}
	var missing []string
	for name, field := range fields {
		switch {
		case name == "metadata":
		case keep(name, field):
			kept[name] = field
		default:
			missing = append(missing, name)
		}
	}
	var metadata, annotations map[string]json.RawMessage
	if len(missing) == 0 || json.Unmarshal(fields["metadata"], &metadata) != nil || metadata == nil {
		return nil
	}
	if json.Unmarshal(metadata["annotations"], &annotations) != nil || annotations == nil {
		annotations = map[string]json.RawMessage{}
	}
	slices.Sort(missing)
	text := strings.Join(missing, ", ")
	if !indexable(text) || len(text) > mostMissing {
		text = "everything but the metadata"
	}
	said, err := json.Marshal(text)
	if err != nil {
		return nil
	}
	annotations[IncompleteAnnotation] = said
	if metadata["annotations"], err = json.Marshal(annotations); err != nil {
		return nil
	}
	kept["metadata"] = metadata
	body, err := json.Marshal(kept)
	if err != nil {
		return nil
	}
	return body
}

// bareBody is what is known of an object without its body.
func bareBody(r *Row, labels map[string]string) []byte {
	metadata := map[string]any{
		"name": r.Name, "uid": r.UID, "resourceVersion": r.ResourceVersion,
		"annotations": map[string]string{IncompleteAnnotation: "everything but the name"},
	}
	if r.Namespace != "" {
		metadata["namespace"] = r.Namespace
	}
	if len(labels) > 0 {
		metadata["labels"] = labels
	}
	if !r.Created.IsZero() {
		metadata["creationTimestamp"] = r.Created.UTC().Format(time.RFC3339)
	}
	body, _ := json.Marshal(map[string]any{ //nolint:errchkjson // texts
		"apiVersion": schema.GroupVersion{Group: r.Group, Version: r.Version}.String(), "kind": r.Kind, "metadata": metadata,
	})
	return body
}
