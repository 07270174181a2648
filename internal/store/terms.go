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

// Paths of FieldRequirements that are lists: the object has the value somewhere in it.
const (
	// FieldImages are the images of a pod, or of the pods that a workload makes.
	FieldImages = "[images]"
	// FieldReferences are the objects to which an object refers by name, as package graph knows them: KIND.GROUP/NAME, and for those of another namespace
	// KIND.GROUP/NAMESPACE/NAME, too.
	FieldReferences = "[references]"
	// FieldIs is what an object is that few are, and that is looked for: Unready, Terminating. What most are would cost as much to index as
	// it would to find in the first objects.
	FieldIs = "[is]"
)

// Values of FieldIs.
const (
	Unready     = "unready"     // it has conditions of readiness, of which none is true
	Terminating = "terminating" // its deletion has begun
)

// pair is a key and a value that an index leads from: a label, or a declared field, whose key begins as no label's does: with ! if it has
// few values, each of which may be that of most objects, else with a dot.
type pair struct{ key, value string }

// timed says whether there is an index of the pair in the order of creation, too.
func (p pair) timed() bool { return strings.HasPrefix(p.key, "!") }

// declaredPair is that of a field.
func declaredPair(path, value string) pair {
	if path == "status.phase" || path == "type" {
		return pair{"!" + path, value}
	}
	return pair{"." + path, value}
}

// termsVersion counts what is declared, or has words: databases that were written with another list are indexed anew when they are opened.
const termsVersion = 6

// mostTerm is how long the value of a declared field may be to be in the index, in bytes.
const mostTerm = 512

var (
	podFields      = []string{"status.phase", "spec.nodeName", FieldIs, FieldImages, FieldReferences}
	workloadFields = []string{"status.phase", FieldIs, FieldImages, FieldReferences}
	// declared are the fields that are indexed, by type; of all others fields are looked for in bodies, but for the phase and what they are.
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

// referring adds the types that refer to others, of which nothing else is declared.
func referring(fields map[groupResource][]string) map[groupResource][]string {
	for _, gr := range graph.Referrers() {
		key := groupResource{gr.Group, gr.Resource}
		if _, ok := fields[key]; !ok {
			fields[key] = append(slices.Clone(anyFields), FieldReferences)
		}
	}
	return fields
}

func declaredOf(gr groupResource) []string {
	if fields, ok := declared[gr]; ok {
		return fields
	}
	return anyFields
}

// indexable says whether a value can be in the index: it has text, which every database can store.
func indexable(value string) bool {
	return value != "" && len(value) <= mostTerm && utf8.ValidString(value) && !strings.Contains(value, "\x00")
}

// termOf is where a field's value is in the index, if it is there.
func termOf(gr groupResource, path, value string) (pair, bool) {
	if !slices.Contains(declaredOf(gr), path) || !indexable(value) {
		return pair{}, false
	}
	return declaredPair(path, value), true
}

// termsFor is the key under which all values of a field are in the index, if they are.
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

// indexed is what of a body is in declared fields.
type indexed struct {
	graph.Pods

	Metadata struct {
		Annotations       map[string]words.Text `json:"annotations"`
		DeletionTimestamp any                   `json:"deletionTimestamp"`
	} `json:"metadata"`
	Reason         words.Text `json:"reason"` // of an Event, as are the next two
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

// termsOf are the declared fields of a body, without repetitions.
func termsOf(gr groupResource, body []byte) []pair {
	var o indexed
	if len(declaredOf(gr)) == 0 || !o.read(body) {
		return nil
	}
	return o.terms(gr)
}

// read says whether it is JSON; what is not, the database says what is wrong with.
func (o *indexed) read(body []byte) bool {
	o.body = body
	err := casejson.UnmarshalCaseSensitivePreserveInts(body, o)
	_, ok := errors.AsType[*json.UnmarshalTypeError](err)
	return err == nil || ok
}

// read reads what of a row is in declared fields, and where its words are from.
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

// terms are the declared fields, without repetitions.
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

// encodeTerms is how the terms of an object are kept on its row: keys and values in turn.
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

func decodeTerms(text string) (out []pair, err error) {
	if text == "[]" {
		return nil, nil
	}
	var flat []string
	if err := json.Unmarshal([]byte(text), &flat); err != nil || len(flat)%2 != 0 {
		return nil, fmt.Errorf("%w: read declared fields: %w", errDamaged, err)
	}
	for i := 0; i < len(flat); i += 2 {
		out = append(out, pair{flat[i], flat[i+1]})
	}
	return out, nil
}

// pairsOf is all that leads to an object.
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

// reindex makes the index of declared fields what this version declares. It takes no sequences: nothing changes that is told of. Done again, after it was interrupted, it writes only what is left.
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

// reindex does the next objects after one, and says how many there were and which was the last.
func (w *writer) reindex(after int64) (n int, last int64, err error) {
	type row struct {
		place
		created int64
		terms   []pair
		prose   int64
	}
	rows, ids, last := map[int64]*row{}, [][]any{}, after
	if err := each(w.ctx, w.tx, say(w.dialect, "SELECT id, type, cluster, namespace, name, created, terms, prose FROM object WHERE id > ? ORDER BY id LIMIT ?"), func(found *sql.Rows) error {
		var r row
		var terms string
		if err := found.Scan(&last, &r.kind, &r.cluster, &r.namespace, &r.name, &r.created, &terms, &r.prose); err != nil {
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
		if slices.Equal(terms, r.terms) && fingerprint == r.prose {
			return nil
		}
		set = append(set, [3]any{encodeTerms(terms), fingerprint, id})
		out.prosaic(r.place, &object{id: id, prose: r.prose}, fingerprint, source)
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

// kindOf is the key of a type.
func (d *database) kindOf(kind int64) groupResource {
	gr := d.gr(kind)
	return groupResource{gr.Group, gr.Resource}
}
