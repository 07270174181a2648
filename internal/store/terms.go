package store

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/runtime/schema"
	casejson "sigs.k8s.io/json"

	"orrery.dev/orrery/internal/graph"
	"orrery.dev/orrery/internal/words"
)

// Paths of FieldRequirements that are lists. An object matches if one element has the value.
const (
	// FieldImages is the path of the images of a pod, or of the pods of a workload.
	FieldImages = "[images]"
	// FieldReferences is the path of the objects to which an object refers by name, as package graph
	// finds them. A value is KIND.GROUP/NAME. For an object in another namespace there is also
	// KIND.GROUP/NAMESPACE/NAME.
	FieldReferences = "[references]"
	// FieldIs is the path of states that few objects have and users search for. Its values are Unready
	// and Terminating. States that most objects have would be costly to index, and are found in the
	// first objects anyway.
	FieldIs = "[is]"
)

// Values of FieldIs.
const (
	Unready     = "unready"     // it has readiness conditions, and none of them is true
	Terminating = "terminating" // its deletion has begun
)

// pair is an entry in the index of an object: the key and value of a label, or of a declared field.
// The key of a declared field is its path after a character with which no label key begins. That is
// ! for fields of few different values, which many objects may share, and else a dot.
type pair struct{ key, value string }

// timed reports whether the index also has the objects of this pair in the order of their creation.
func (p pair) timed() bool { return strings.HasPrefix(p.key, "!") }

// declaredPair returns the index entry for a value of the declared field with this path.
func declaredPair(path, value string) pair {
	if path == "status.phase" || path == "type" {
		return pair{"!" + path, value}
	}
	return pair{"." + path, value}
}

// termsVersion is the version of the index of declared fields and words. A developer increments it
// when either changes. A database with another version is indexed again when it is opened.
const termsVersion = 6

// mostTerm is the maximum length in bytes of a value of a declared field in the index. Longer
// values are not indexed.
const mostTerm = 512

var (
	podFields      = []string{"status.phase", "spec.nodeName", FieldIs, FieldImages, FieldReferences}
	workloadFields = []string{"status.phase", FieldIs, FieldImages, FieldReferences}
	// declared are the paths of the fields that are indexed, by type. They are called declared fields,
	// or terms. A type that is not listed has anyFields. Requirements on other fields are compared
	// with the bodies.
	declared = referring(map[groupResource][]string{
		{"", "pods"}:                           podFields,
		{"", "podtemplates"}:                   workloadFields,
		{"", "replicationcontrollers"}:         workloadFields,
		{"apps", "deployments"}:                workloadFields,
		{"apps", "statefulsets"}:               workloadFields,
		{"apps", "daemonsets"}:                 workloadFields,
		{"apps", "replicasets"}:                workloadFields,
		{"batch", "jobs"}:                      workloadFields,
		{"batch", "cronjobs"}:                  workloadFields,
		{"", "events"}:                         {"type", "involvedObject.uid"},
		{"coordination.k8s.io", "leases"}:      {},
		{"", "secrets"}:                        {},
		{"", "configmaps"}:                     {},
		{"discovery.k8s.io", "endpointslices"}: {FieldReferences},
	})
	anyFields = []string{"status.phase", FieldIs}
)

// referring adds to fields each type that refers to other objects and is not in fields yet, with
// anyFields and FieldReferences. It returns fields.
func referring(fields map[groupResource][]string) map[groupResource][]string {
	for _, gr := range graph.Referrers() {
		key := groupResource{gr.Group, gr.Resource}
		if _, ok := fields[key]; !ok {
			fields[key] = append(slices.Clone(anyFields), FieldReferences)
		}
	}
	return fields
}

// declaredOf returns the paths of the declared (indexed) fields of a type. The caller must not
// change the list.
func declaredOf(gr groupResource) []string {
	if fields, ok := declared[gr]; ok {
		return fields
	}
	return anyFields
}

// indexable reports whether a value of a field can be in the index. It must not be empty or longer
// than mostTerm, and must be text that every database accepts.
func indexable(value string) bool {
	return value != "" && len(value) <= mostTerm && utf8.ValidString(value) && !strings.Contains(value, "\x00")
}

// termOf returns the index entry for a value of a field. It returns false if the field is not a
// declared one of the type, or the value cannot be in the index.
func termOf(gr groupResource, path, value string) (pair, bool) {
	if !slices.Contains(declaredOf(gr), path) || !indexable(value) {
		return pair{}, false
	}
	return declaredPair(path, value), true
}

// termsFor returns the key that a field has in the index. ok is false if the field of the type, or
// one of the values, is not indexed. Then the values must be compared with the bodies.
func termsFor(gr groupResource, path string, values []string) (key string, ok bool) {
	for _, v := range values {
		one, indexed := termOf(gr, path, v)
		if !indexed {
			return "", false
		}
		key = one.key
	}
	return key, true
}

// indexed is what is parsed of a body for the index: the parts that have declared fields and words.
type indexed struct {
	graph.Pods

	Metadata struct {
		Annotations       map[string]words.Text `json:"annotations"`
		DeletionTimestamp any                   `json:"deletionTimestamp"`
	} `json:"metadata"`
	Reason         words.Text `json:"reason"` // of an Event, like Message and Note
	Message        words.Text `json:"message"`
	Note           words.Text `json:"note"`
	Type           graph.Text `json:"type"`
	InvolvedObject struct {
		UID graph.Text `json:"uid"`
	} `json:"involvedObject"`
	Status struct {
		Phase      graph.Text       `json:"phase"`
		Conditions graph.Conditions `json:"conditions"`
	} `json:"status"`

	body []byte
}

// termsOf returns the index entries for the declared fields of a body, without duplicates. For
// invalid JSON, it returns nil.
func termsOf(gr groupResource, body []byte) []pair {
	var o indexed
	if len(declaredOf(gr)) == 0 || !o.read(body) {
		return nil
	}
	return o.terms(gr)
}

// read parses a body into o, and reports whether the body is JSON. Fields of an unexpected type
// stay empty. An error is not needed, because the database reports invalid JSON.
func (o *indexed) read(body []byte) bool {
	o.body = body
	err := casejson.UnmarshalCaseSensitivePreserveInts(body, o)
	_, ok := errors.AsType[*json.UnmarshalTypeError](err)
	return err == nil || ok
}

// read returns what is indexed of a row: the entries for declared fields (terms), and the source of
// its words. If the body is not JSON, these have only what is known without the body.
func read(gr groupResource, r *Row) (terms []pair, source words.Source) {
	source = words.Of(gr.group, gr.resource, r.Name, nil, nil, nil, "", "")
	terms = append(incompleteTerms(r.Body), leftTerms(r.Body)...)
	if source.Name == "" && len(declaredOf(gr)) == 0 {
		return terms, source
	}
	var o indexed
	if o.read(r.Body) {
		terms = append(terms, o.terms(gr)...)
	}
	return terms, words.Of(gr.group, gr.resource, r.Name, r.Labels, o.Metadata.Annotations, o.Images(), o.Reason, cmp.Or(o.Message, o.Note))
}

// terms returns the index entries for the declared fields of the object, without duplicates.
func (o *indexed) terms(gr groupResource) (out []pair) {
	add := func(path string, values ...string) {
		for _, value := range values {
			if one := declaredPair(path, value); indexable(value) && !slices.Contains(out, one) {
				out = append(out, one)
			}
		}
	}
	fields := declaredOf(gr)
	for _, path := range fields {
		switch path {
		case "type":
			add(path, string(o.Type))
		case "involvedObject.uid":
			add(path, string(o.InvolvedObject.UID))
		case "status.phase":
			add(path, string(o.Status.Phase))
		case "spec.nodeName":
			add(path, string(o.Spec.NodeName))
		case FieldIs:
			if ready, known := o.Status.Conditions.Ready(); known && !ready {
				add(path, Unready)
			}
			if o.Metadata.DeletionTimestamp != nil {
				add(path, Terminating)
			}
		case FieldImages:
			add(path, o.Images()...)
		case FieldReferences:
			links := o.References()
			if !slices.Contains(fields, FieldImages) {
				links = graph.Referring(schema.GroupResource{Group: gr.group, Resource: gr.resource}, o.body)
			}
			add(path, graph.Terms(links)...)
		}
	}
	return out
}

// encodeTerms encodes index entries as the column terms of the table object: a JSON list of
// alternating keys and values.
func encodeTerms(terms []pair) string {
	if len(terms) == 0 {
		return "[]"
	}
	flat := make([]string, 0, 2*len(terms))
	for _, t := range terms {
		flat = append(flat, t.key, t.value)
	}
	return list(flat)
}

// decodeTerms reverses encodeTerms. The error is an errDamaged for another text.
func decodeTerms(text string) (out []pair, err error) {
	if text == "[]" {
		return nil, nil
	}
	var flat []string
	if err := json.Unmarshal([]byte(text), &flat); err != nil {
		return nil, fmt.Errorf("%w: read declared fields: %w", errDamaged, err)
	}
	if len(flat)%2 != 0 {
		return nil, fmt.Errorf("%w: read declared fields: the last of %d elements has no value", errDamaged, len(flat))
	}
	for i := 0; i < len(flat); i += 2 {
		out = append(out, pair{flat[i], flat[i+1]})
	}
	return out, nil
}

// pairsOf returns all entries that an object has in the index: its labels and its declared fields
// (terms).
func pairsOf(labels map[string]string, terms []pair) map[pair]struct{} {
	out := make(map[pair]struct{}, len(labels)+len(terms))
	for key, value := range labels {
		out[pair{key, value}] = struct{}{}
	}
	for _, t := range terms {
		out[t] = struct{}{}
	}
	return out
}

// reindex updates the index of a database to termsVersion, when the database is opened. It does
// nothing if the index has that version. The objects do not change, so it takes no sequences. After
// an interruption, the next call writes only the rest.
func (d *database) reindex(ctx context.Context) error {
	var version int
	if err := d.write.QueryRowContext(ctx, "SELECT terms FROM epoch").Scan(&version); err != nil {
		return fmt.Errorf("read the version of the declared fields: %w", err)
	}
	if version == termsVersion {
		return nil
	}
	var after int64
	for n := chunk; n == chunk; {
		if err := d.locked(ctx, 0, func(ctx context.Context, tx *sql.Tx, _ int64) (err error) {
			w := writer{ctx: ctx, tx: tx, database: d}
			n, after, err = w.reindex(after)
			return err
		}); err != nil {
			return fmt.Errorf("index declared fields: %w", err)
		}
	}
	return d.locked(ctx, 0, func(ctx context.Context, tx *sql.Tx, _ int64) error {
		_, err := tx.ExecContext(ctx, say(d.dialect, "UPDATE epoch SET terms = ?"), termsVersion)
		return err
	})
}

// reindex updates the index entries of the next objects, those with ids after the given one, at
// most chunk. n is their number, and last the last id. n less than chunk means that there are no
// more.
func (w *writer) reindex(after int64) (n int, last int64, err error) {
	type row struct {
		place
		created     int64
		terms       []pair
		fingerprint int64
	}
	rows, ids, last := map[int64]*row{}, [][]any{}, after
	if err := each(w.ctx, w.tx, say(w.dialect, "SELECT id, type, cluster, namespace, name, created, terms, prose FROM object WHERE id > ? ORDER BY id LIMIT ?"), func(found *sql.Rows) error {
		var r row
		var terms string
		if err := found.Scan(&last, &r.kind, &r.cluster, &r.namespace, &r.name, &r.created, &terms, &r.fingerprint); err != nil {
			return err
		}
		n++
		if r.terms, err = decodeTerms(terms); err != nil {
			return err
		}
		rows[last], ids = &r, append(ids, []any{last})
		return nil
	}, after, chunk); err != nil {
		return 0, 0, err
	}
	var out outgoing
	var set [][3]any
	if err := w.batches.recall.run(w.ctx, w.tx, ids, func(found *sql.Rows) error {
		id, s, err := w.scanState(found, func(id int64) Row {
			if r := rows[id]; r != nil {
				gr := w.gr(r.kind)
				return Row{Cluster: r.cluster, Group: gr.Group, Resource: gr.Resource, Namespace: r.namespace, Name: r.name}
			}
			return Row{}
		})
		if err != nil {
			return err
		}
		r := rows[id]
		if r == nil {
			return fmt.Errorf("%w: asked for other objects, it answered with %d", errDamaged, id)
		}
		var whole Row
		if err := unrecord(s.record, &whole); err != nil {
			return err
		}
		whole.Name = r.name
		terms, source := read(w.kindOf(r.kind), &whole)
		fingerprint := source.Fingerprint()
		if slices.Equal(terms, r.terms) && fingerprint == r.fingerprint {
			return nil
		}
		set = append(set, [3]any{encodeTerms(terms), fingerprint, id})
		out.addFullText(r.place, &object{id: id, fingerprint: r.fingerprint}, fingerprint, source)
		out.pairs(r.place, id, r.created, pairsOf(nil, r.terms), pairsOf(nil, terms), false)
		return nil
	}); err != nil {
		return 0, 0, err
	}
	stmt, err := w.tx.PrepareContext(w.ctx, say(w.dialect, "UPDATE object SET terms = ?, prose = ? WHERE id = ?"))
	if err != nil {
		return 0, 0, err
	}
	defer stmt.Close() //nolint:errcheck // the transaction ends it
	for _, one := range set {
		if _, err := stmt.ExecContext(w.ctx, one[0], one[1], one[2]); err != nil {
			return 0, 0, err
		}
	}
	return n, last, w.put(&out)
}

// kindOf returns the type with this number in the database. For an unknown number, it returns the
// empty type.
func (d *database) kindOf(kind int64) groupResource {
	gr := d.gr(kind)
	return groupResource{gr.Group, gr.Resource}
}
