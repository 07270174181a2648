package store

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// plan is a query as the dialects get it: what leads to the rows, and what else must hold for them. It has
// values and no SQL, but for names of columns, which are constants.
type plan struct {
	kind  int64 // of the type
	order Order
	index index // that leads
	pair  *pair
	owner string
	name  string // the only one; "": any
	// prefix is what names begin with. Where it does not lead it is a condition, too.
	prefix string
	// spans are the ranges of clusters and namespaces that are read; nil: one, of all clusters. Where they lead, that of the leading index
	// is read for each, in their order.
	spans    []span
	narrow   bool // each span is one namespace of a cluster
	leads    bool
	sorted   bool // the rows come in another order
	after    position
	where    []condition
	fields   bool     // a condition reads the body
	limit    int      // 0: none
	shunned  []string // clusters that are being dropped
	counting bool     // only how many rows there are
	spread   bool     // the columns of objects are needed, although they are counted
	valued   bool     // pair has a key alone, and any value
}

// follow makes a key lead, of whatever value, and what would have led a condition.
func (p *plan) follow(lead *pair) {
	switch {
	case p.owner != "":
		p.where = append(p.where, columnIn{column: "o.owner", values: []string{p.owner}})
	case p.name != "":
		p.where = append(p.where, columnIn{column: "o.name", values: []string{p.name}})
	case p.pair != nil && (strings.HasPrefix(p.pair.key, ".") || strings.HasPrefix(p.pair.key, "!")):
		p.where = append(p.where, termIs{pair: *p.pair})
	case p.pair != nil:
		p.where = append(p.where, labelIn{key: p.pair.key, values: []string{p.pair.value}})
	}
	p.owner, p.name, p.pair, p.valued = "", "", lead, true
}

// index is what leads to rows.
type index int

const (
	byKey      index = iota // cluster, namespace, name
	byPair                  // of a label or declared field, in the order of the key
	byPairTime              // of a declared field of few values, in the order of creation
	byOwner
	byName
	byTime
	byTally // of namespaces: how many objects there are
)

// span is a range of rows: those of a cluster, or of a namespace of it, after a key.
type span struct {
	cluster, namespace  string
	afterSpace, afterOf string
}

// alias is that of the table that leads.
func (p *plan) alias() string {
	if p.index == byPair || p.index == byPairTime {
		return "l"
	}
	return "o"
}

// ordering are the columns of the order of rows, of the leading table.
func (p *plan) ordering() []string {
	switch a := p.alias(); p.order {
	case ByName:
		return []string{a + ".name", a + ".cluster", a + ".namespace"}
	case Newest, Oldest:
		if a == "l" {
			return []string{"l.created", "l.object"}
		}
		return []string{"o.created", "o.id"}
	default:
		return []string{a + ".cluster", a + ".namespace", a + ".name"}
	}
}

// orderBy is the ORDER BY of columns in the plan's direction.
func (p *plan) orderBy(columns []string) string {
	if p.order != Newest {
		return " ORDER BY " + strings.Join(columns, ", ")
	}
	return " ORDER BY " + strings.Join(columns, " DESC, ") + " DESC"
}

// beyond is how what comes after a position compares with it.
func (p *plan) beyond() string {
	if p.order == Newest {
		return " < "
	}
	return " > "
}

// position are the values of the columns of the order after which the plan's rows come; nil: it has none, or the spans have it.
func (p *plan) position() []any {
	a := p.after
	switch {
	case a.Cluster == "" && a.ID == 0 || p.leads && p.order == ByKey:
		return nil
	case p.order == ByName:
		return []any{a.Name, a.Cluster, a.Namespace}
	case p.order == ByKey:
		return []any{a.Cluster, a.Namespace, a.Name}
	default:
		return []any{a.Created, a.ID}
	}
}

// ordered says whether an ORDER BY is to be written: rows of spans come in their order without one.
func (p *plan) ordered() bool { return !p.counting && (!p.leads || p.sorted) }

// whole says whether the rows of objects are needed besides what leads.
func (p *plan) whole() bool { return !p.counting || len(p.where) > 0 || p.spread }

// condition is what must hold for a row.
type condition interface{ write(s *statement) }

type (
	// columnIn holds if a column of the object has one of the values, or with not, none of them.
	columnIn struct {
		column string
		values []string
		not    bool
	}
	// nameFrom holds if a name begins with something: it is not before from, and before until, if there is an end.
	nameFrom struct{ from, until string }
	// termIs holds if a declared field has a value; with not, if it has not.
	termIs struct {
		pair

		not bool
	}
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
	p, nothing := &plan{order: q.Order, limit: max(q.Limit, 0), owner: string(q.OwnerUID), prefix: q.NamePrefix}, false
	if q.Order < ByKey || q.Order > ByName {
		return nil, fmt.Errorf("%w: there is no order %d", ErrSelector, q.Order)
	}
	if !utf8.ValidString(q.NamePrefix) || strings.Contains(q.NamePrefix, "\x00") {
		return nil, fmt.Errorf("%w: no name begins with %q", ErrSelector, q.NamePrefix)
	}
	terms := len(q.Fields)
	if q.Labels != nil {
		requirements, selectable := q.Labels.Requirements()
		terms += len(requirements)
		nothing = !selectable
		for _, r := range requirements {
			if strings.HasPrefix(r.Key(), ".") || strings.HasPrefix(r.Key(), "!") { // as declared fields in the index
				return nil, fmt.Errorf("%w: label key %q", ErrSelector, r.Key())
			}
			if p.pair == nil && q.OwnerUID == "" && equality(r) {
				p.pair = &pair{r.Key(), r.ValuesUnsorted()[0]}
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
	for _, f := range q.Fields {
		c, err := compileField(q.resource(), f)
		if err != nil {
			return nil, err
		}
		if is, ok := c.(termIs); ok && !is.not && p.pair == nil && q.OwnerUID == "" {
			p.pair = &is.pair
			continue
		}
		if _, ok := c.(fieldIs); ok {
			p.fields = true
		}
		p.where = append(p.where, c)
	}
	more, err := q.conditions()
	if err != nil {
		return nil, err
	}
	if terms += len(more); terms > maxTerms {
		return nil, fmt.Errorf("%w: %d requirements, and at most %d can be answered", ErrSelector, terms, maxTerms)
	}
	p.where = append(p.where, more...)
	if len(q.Names) == 1 && p.pair == nil && p.owner == "" && q.NamePrefix == "" {
		p.name = q.Names[0]
	} else if len(q.Names) > 0 {
		p.where = append(p.where, columnIn{column: "o.name", values: q.Names})
	}
	if nothing {
		return nil, nil
	}
	return p, nil
}

// resource is the type of a query.
func (q Query) resource() groupResource { return groupResource{q.Group, q.Resource} }

// choose decides which index leads. There are no statistics: what is few is told by the query.
func (p *plan) choose() {
	few := p.spans != nil && len(p.spans) <= fewSpans
	timed := p.order == Newest || p.order == Oldest
	p.leads = p.spans != nil
	switch {
	case p.valued:
		p.index, p.leads, p.sorted = byPair, false, true
	case p.counting && p.pair == nil && p.owner == "" && p.name == "" && p.prefix == "" && len(p.where) == 0:
		p.index = byTally
	case p.owner != "":
		p.index, p.leads, p.sorted = byOwner, false, true // an owner has few
	case p.pair != nil && timed && p.pair.timed() && !few:
		p.index, p.leads = byPairTime, false
	case p.pair != nil:
		p.index, p.sorted = byPair, p.order != ByKey
	case p.name != "":
		p.index, p.sorted = byName, p.order != ByKey
	case p.order == ByKey || few:
		p.index, p.sorted = byKey, p.order != ByKey
	case timed:
		p.index, p.leads = byTime, false
	default:
		p.index, p.leads = byName, false
	}
	if p.prefix != "" {
		p.where = append(p.where, prefixed(p.prefix))
	}
}

// fewSpans is how many namespaces of clusters are read whole and sorted, rather than everything in the order of the page until it is full.
const fewSpans = 1000

// prefixed is the range of names that begin with a prefix.
func prefixed(prefix string) nameFrom {
	runes := []rune(prefix)
	for i, last := range slices.Backward(runes) {
		if last == utf8.MaxRune {
			continue
		}
		next := last + 1
		if !utf8.ValidRune(next) { // surrogates
			next = 0xe000
		}
		return nameFrom{prefix, string(runes[:i]) + string(next)}
	}
	return nameFrom{from: prefix}
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

// compileField translates a requirement on a field of the object: of a declared one by the index, of others by the body.
func compileField(gr groupResource, f FieldRequirement) (condition, error) {
	not := f.Operator == selection.NotEquals
	switch f.Operator {
	case selection.Equals, selection.DoubleEquals, selection.NotEquals:
	default:
		return nil, fmt.Errorf("%w: operator %q on field %s: use =, == or !=", ErrSelector, f.Operator, f.Path)
	}
	switch f.Path {
	case "metadata.name":
		return columnIn{column: "o.name", values: []string{f.Value}, not: not}, nil
	case "metadata.namespace":
		return columnIn{column: "o.namespace", values: []string{f.Value}, not: not}, nil
	}
	if term, ok := termOf(gr, f.Path, f.Value); ok {
		return termIs{pair: term, not: not}, nil
	}
	if f.Path == FieldImages || f.Path == FieldReferences {
		return nil, fmt.Errorf("%w: %s is a field of pods and of what makes pods, with values of 1 to %d bytes", ErrSelector, f.Path, mostTerm)
	}
	keys, err := ParseFieldPath(f.Path)
	if err != nil {
		return nil, err
	}
	return fieldIs{keys: keys, value: f.Value, not: not}, nil
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
		if p.order == ByKey && c < after.Cluster {
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
	if p.order == ByKey {
		p.resume()
	}
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

// found is a row, with what the orders of time tell rows apart by.
type found struct {
	Row

	id int64
}

// at is where the row is in an answer.
func (f *found) at() position {
	p := position{Cluster: f.Cluster, Namespace: f.Namespace, Name: f.Name, ID: f.id}
	if !f.Created.IsZero() {
		p.Created = f.Created.Unix()
	}
	return p
}

// compare compares places in an order.
func (o Order) compare(a, b position) int {
	key := cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Namespace, b.Namespace))
	switch o {
	case Newest:
		return cmp.Or(cmp.Compare(b.Created, a.Created), cmp.Compare(b.ID, a.ID))
	case Oldest:
		return cmp.Or(cmp.Compare(a.Created, b.Created), cmp.Compare(a.ID, b.ID))
	case ByName:
		return cmp.Or(cmp.Compare(a.Name, b.Name), key)
	default:
		return cmp.Or(key, cmp.Compare(a.Name, b.Name))
	}
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
