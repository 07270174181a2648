package store

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// plan is a query as the dialects get it: what leads to the rows, and what else must hold for them. It has
// values and no SQL, but for names of columns, which are constants.
type plan struct {
	kind int64 // of the type
	// What leads: the label, the owner, or else the key of objects.
	label *labelIs
	owner string
	// spans are the ranges of the leading index that are read, in their order; nil: one, of all clusters.
	spans    []span
	narrow   bool // each span is one namespace of a cluster
	after    position
	where    []condition
	fields   bool     // a condition reads the body
	limit    int      // 0: none
	shunned  []string // clusters that are being dropped
	ordering []string // columns, of the leading table
}

// span is a range of rows: those of a cluster, or of a namespace of it, after a key.
type span struct {
	cluster, namespace  string
	afterSpace, afterOf string
}

// condition is what must hold for a row.
type condition interface{ write(s *statement) }

type (
	// columnIn holds if a column of the object has one of the values, or with not, none of them.
	columnIn struct {
		column string
		values []string
		not    bool
	}
	// labelIs is a label with a value.
	labelIs struct{ key, value string }
	// labelIn holds if a label has one of the values; with not, if it has none of them or is absent.
	labelIn struct {
		key    string
		values []string
		not    bool
	}
	// labelSet holds if there is a label, whatever its value; with not, if there is none.
	labelSet struct {
		key string
		not bool
	}
	// labelCompare holds if a label's value is a number, and greater, or less, than the bound.
	labelCompare struct {
		key     string
		greater bool
		bound   int64
	}
	// sinceAtMost holds if the object's state began at a moment, in milliseconds, or before.
	sinceAtMost struct{ moment int64 }
	// fieldIs holds if a field of the body has the value as its text; with not, if it has another or none.
	fieldIs struct {
		keys  []string
		value string
		not   bool
	}
)

// maxTerms is how many requirements a query may have: SQLite takes no expression that is
// deeper than 1000.
const maxTerms = 100

// compile checks a query and translates it. What it cannot translate is an error, never
// ignored. It returns nil for a query that selects nothing at all.
func compile(q Query) (*plan, error) {
	p, nothing := &plan{ordering: []string{"o.cluster", "o.namespace", "o.name"}, limit: max(q.Limit, 0)}, false
	terms := len(q.Fields)
	if q.Labels != nil {
		requirements, selectable := q.Labels.Requirements()
		terms += len(requirements)
		nothing = !selectable
		for _, r := range requirements {
			if p.label == nil && q.OwnerUID == "" && equality(r) {
				p.label = &labelIs{r.Key(), r.ValuesUnsorted()[0]}
				p.ordering = []string{"l.cluster", "l.namespace", "l.name"}
				continue
			}
			c, err := compileLabel(r)
			if err != nil {
				return nil, err
			}
			p.where = append(p.where, c)
		}
	}
	if terms > maxTerms {
		return nil, fmt.Errorf("%w: %d requirements on labels and fields, and at most %d can be answered; write several values of a label as KEY in (A,B)",
			ErrSelector, terms, maxTerms)
	}
	if q.Version != "" {
		p.where = append(p.where, columnIn{column: "o.version", values: []string{q.Version}})
	}
	if len(q.Names) > 0 {
		p.where = append(p.where, columnIn{column: "o.name", values: q.Names})
	}
	p.owner = string(q.OwnerUID)
	for _, f := range q.Fields {
		c, body, err := compileField(f)
		if err != nil {
			return nil, err
		}
		p.fields = p.fields || body
		p.where = append(p.where, c)
	}
	if nothing {
		return nil, nil
	}
	return p, nil
}

// equality says whether a requirement is one value of one key: then the rows of the label
// lead to the objects in the order of the page.
func equality(r labels.Requirement) bool {
	switch r.Operator() {
	case selection.Equals, selection.DoubleEquals, selection.In:
		return r.Values().Len() == 1
	default:
		return false
	}
}

func compileLabel(r labels.Requirement) (condition, error) {
	// Keys of labels have no quotes; the parser and the API server see to that.
	if strings.ContainsAny(r.Key(), `"\`) {
		return nil, fmt.Errorf("%w: label key %q", ErrSelector, r.Key())
	}
	switch r.Operator() {
	case selection.Equals, selection.DoubleEquals, selection.In:
		return labelIn{key: r.Key(), values: r.Values().List()}, nil
	case selection.NotEquals, selection.NotIn:
		return labelIn{key: r.Key(), values: r.Values().List(), not: true}, nil
	case selection.Exists:
		return labelSet{key: r.Key()}, nil
	case selection.DoesNotExist:
		return labelSet{key: r.Key(), not: true}, nil
	case selection.GreaterThan, selection.LessThan:
		if values := r.ValuesUnsorted(); len(values) == 1 {
			if bound, err := strconv.ParseInt(values[0], 10, 64); err == nil {
				return labelCompare{key: r.Key(), greater: r.Operator() == selection.GreaterThan, bound: bound}, nil
			}
		}
		return nil, fmt.Errorf("%w: label %s %s needs one number", ErrSelector, r.Key(), r.Operator())
	default:
		return nil, fmt.Errorf("%w: operator %q on label %s", ErrSelector, r.Operator(), r.Key())
	}
}

// compileField translates a requirement on a field of the object, and says whether it reads the body.
func compileField(f FieldRequirement) (c condition, body bool, err error) {
	not := f.Operator == selection.NotEquals
	switch f.Operator {
	case selection.Equals, selection.DoubleEquals, selection.NotEquals:
	default:
		return nil, false, fmt.Errorf("%w: operator %q on field %s: use =, == or !=", ErrSelector, f.Operator, f.Path)
	}
	switch f.Path {
	case "metadata.name":
		return columnIn{column: "o.name", values: []string{f.Value}, not: not}, false, nil
	case "metadata.namespace":
		return columnIn{column: "o.namespace", values: []string{f.Value}, not: not}, false, nil
	}
	keys, err := ParseFieldPath(f.Path)
	if err != nil {
		return nil, false, err
	}
	return fieldIs{keys: keys, value: f.Value, not: not}, true, nil
}

// within makes the plan one for the clusters that are known, of which some are being dropped, and for what comes
// after a position. It says whether anything is left to be read.
func (p *plan) within(q Query, known, dropped []string, after position) bool {
	p.after = after
	if len(q.Clusters) == 0 && q.Scopes == nil && len(q.Namespaces) == 0 {
		p.shunned = dropped
		return true
	}
	var clusters []string
	switch {
	case len(q.Clusters) > 0:
		clusters = slices.Compact(slices.Sorted(slices.Values(q.Clusters)))
	case q.Scopes != nil:
		clusters = slices.Sorted(maps.Keys(q.Scopes))
	default:
		clusters = known
	}
	p.narrow = q.Scopes != nil || len(q.Namespaces) > 0
	if namespaces := q.everywhere(); len(namespaces) > mostSpans/max(len(clusters), 1) {
		// One range of each namespace in each cluster were more than rows: those of the clusters are read, and compared.
		p.narrow = false
		p.where = append(p.where, columnIn{column: "o.namespace", values: namespaces})
	}
	for _, c := range clusters {
		if c < after.Cluster {
			continue
		}
		if _, ok := slices.BinarySearch(known, c); !ok {
			continue
		}
		if _, ok := q.Scopes[c]; q.Scopes != nil && !ok {
			continue
		}
		if !p.narrow {
			p.spans = append(p.spans, span{cluster: c})
			continue
		}
		namespaces := q.Namespaces
		if q.Scopes != nil {
			namespaces = q.Scopes[c]
			if len(q.Namespaces) > 0 {
				namespaces = slices.DeleteFunc(slices.Clone(namespaces), func(n string) bool { return !slices.Contains(q.Namespaces, n) })
			}
		}
		for _, n := range slices.Compact(slices.Sorted(slices.Values(namespaces))) {
			p.spans = append(p.spans, span{cluster: c, namespace: n})
		}
	}
	p.resume()
	return len(p.spans) > 0
}

// mostSpans is how many namespaces of clusters are looked up one by one, at a few microseconds each.
const mostSpans = 20_000

// everywhere are the namespaces that are selected in every cluster alike; nil: not the same are.
func (q Query) everywhere() []string {
	if q.Scopes == nil {
		return q.Namespaces
	}
	var same []string
	first := true
	for _, namespaces := range q.Scopes {
		if first {
			same, first = namespaces, false
		}
		if !slices.Equal(same, namespaces) {
			return nil
		}
	}
	if len(q.Namespaces) > 0 {
		same = slices.DeleteFunc(slices.Clone(same), func(n string) bool { return !slices.Contains(q.Namespaces, n) })
	}
	return same
}

// resume cuts the spans down to what comes after the position.
func (p *plan) resume() {
	a := p.after
	p.spans = slices.DeleteFunc(p.spans, func(s span) bool {
		return p.narrow && s.cluster == a.Cluster && s.namespace < a.Namespace
	})
	for i := range p.spans {
		s := &p.spans[i]
		switch {
		case s.cluster != a.Cluster:
		case !p.narrow:
			s.afterSpace, s.afterOf = a.Namespace, a.Name
		case s.namespace == a.Namespace:
			s.afterOf = a.Name
		}
	}
}

// before says whether a row comes before another in the order of pages.
func before(a, b Row) bool {
	return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name)) < 0
}

// ParseFieldPath returns the keys of spec.nodeName and metadata.annotations['a.b/c'].
func ParseFieldPath(path string) (keys []string, err error) {
	invalid := func(why string) ([]string, error) {
		return nil, fmt.Errorf("%w: field %q: %s", ErrSelector, path, why)
	}
	if len(path) > 1024 {
		return invalid("longer than 1024 characters")
	}
	for rest := path; ; {
		var key string
		if quoted, ok := strings.CutPrefix(rest, "['"); ok {
			if key, rest, ok = strings.Cut(quoted, "']"); !ok {
				return invalid("[' is not closed")
			}
			if strings.ContainsAny(key, `"\'`) {
				return invalid("a quote or backslash in a key")
			}
		} else {
			end := strings.IndexAny(rest, ".[")
			if end < 0 {
				end = len(rest)
			}
			key, rest = rest[:end], rest[end:]
			if strings.ContainsFunc(key, func(r rune) bool { return !word(r) }) {
				return invalid("write keys with other characters than letters, digits, _ and - as ['key']")
			}
		}
		if key == "" {
			return invalid("a key is empty")
		}
		keys = append(keys, key)
		switch {
		case rest == "":
			return keys, nil
		case rest[0] == '.':
			rest = rest[1:]
		case !strings.HasPrefix(rest, "['"):
			return invalid("elements of lists cannot be selected")
		}
	}
}

func word(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-'
}
