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

// An object that the database refuses is stored without a part. The reductions are tried in this
// order: without deeply nested fields, only the metadata, only the data that is known without the
// body, and this without labels and owner. The body then has IncompleteAnnotation with the names
// of the missing fields, and an index finds such objects. If even the name is refused, nothing is
// stored.

// IncompleteAnnotation is the annotation of a stored object from which the store left a part out.
// Its value has the names of the missing fields. The fleet API has the same annotation. The mirror
// removes it from objects of clusters before it writes them.
const IncompleteAnnotation = "fleet.orrery.dev/incomplete"

// Incomplete counts the objects of a type in a cluster that the database refused: those stored
// without a part, and those not stored at all.
type Incomplete struct {
	Cluster  string
	Resource schema.GroupResource
	Partly   int // stored without a part
	Missing  int // not stored
}

// Incomplete returns the types with incompletely stored objects, sorted by cluster, group and
// resource. Missing counts only objects that were refused since the database was opened.
func (s *Store) Incomplete(ctx context.Context) (out []Incomplete, err error) {
	err = s.do(ctx, func(d *database) error {
		out, err = d.countIncomplete(ctx)
		return err
	})
	return out, err
}

// incompletePair is the entry in the index of declared fields of each object that is stored without
// a part.
var incompletePair = pair{".[incomplete]", "yes"}

// incompleteTerms returns incompletePair, for the index, if the body has IncompleteAnnotation.
// Otherwise it returns nil.
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

// refuses reports whether an error of a write is about one row only, so that other rows can be
// written. Examples are a row that the database refused, a body that is not JSON, and a Secret
// without a key.
func (d *database) refuses(err error) bool {
	return errors.Is(err, errNoJSON) || errors.Is(err, errNoKey) || d.dialect.fault(err) == faultRow
}

// reduce writes as much of a change as the database accepts, after it refused the whole change with
// the error cause. It tries the forms of reductions one after another. rejected is the
// RejectedError about the row. If no form is accepted, reduce deletes the stored object of that
// name. It also adds the name to d.incomplete, so that no checkpoint covers the type. err is any
// other error. The caller holds d.mu.
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
		// The stored row of that name, if any, is not the object of the cluster.
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

// complete records that the database accepted the whole change. An earlier refusal of the object is
// over, and its name is removed from d.incomplete. The caller holds d.mu.
func (d *database) complete(c *Change) {
	if len(d.incomplete) == 0 {
		return
	}
	at := clusterType{c.Cluster, d.kind(groupResource{c.Group, c.Resource})}
	if delete(d.incomplete[at], Key{Namespace: c.Namespace, Name: c.Name}); len(d.incomplete[at]) == 0 {
		delete(d.incomplete, at)
	}
}

// forgetIncomplete removes the names of refused objects of a type in a cluster, because the type
// was deleted. kind is the number of the type; 0: all types. The caller holds d.mu.
func (d *database) forgetIncomplete(cluster string, kind int64) {
	for at := range d.incomplete {
		if at.cluster == cluster && (kind == 0 || at.kind == kind) {
			delete(d.incomplete, at)
		}
	}
}

// countIncomplete returns the result of Store.Incomplete. It uses the connection for writes,
// because writers call it and must not wait for readers. The caller must not hold d.mu.
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

// recount sets d.counted to the number of objects that are stored without a part, for each type in
// each cluster. The caller holds d.mu.
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

// reductions returns the reduced forms of a row that the database refused, the largest first. The
// first has no deeply nested fields, and the second has only the metadata. The third has only the
// data that is known without the body. The fourth also lacks the labels and the owner. The first
// two are left out if they reduce nothing, or the body is not JSON.
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

// mostMissing is the maximum length in bytes of the names of missing fields in
// IncompleteAnnotation. If they are longer, the annotation has a general text.
const mostMissing = 200

// keepFields returns the JSON of an object with only its metadata and the fields for which keep
// returns true. Its IncompleteAnnotation has the names of the missing fields. It returns nil if no
// field is missing, or the metadata cannot be read.
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

// bareBody returns a body that is made of the row's other data, without the original body, and with
// these labels.
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
