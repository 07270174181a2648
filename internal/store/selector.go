package store

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// condition is a query compiled to SQL. The text is made of constants only; everything
// that a client says is a parameter.
type condition struct {
	nothing bool // selects nothing at all
	drive   *labels.Requirement
	owner   bool
	fields  bool
	where   strings.Builder
	args    []any
}

func (c *condition) and(sql string, args ...any) {
	c.where.WriteString(" AND " + sql)
	c.args = append(c.args, args...)
}

// maxTerms is how many requirements a query may have: SQLite takes no expression that is
// deeper than 1000.
const maxTerms = 100

// compile checks a query and translates it. What it cannot translate is an error, never
// ignored.
func compile(q Query) (*condition, error) {
	c := &condition{}
	terms := len(q.Fields)
	if q.Labels != nil {
		requirements, selectable := q.Labels.Requirements()
		terms += len(requirements)
		c.nothing = !selectable
		for _, r := range requirements {
			if c.drive == nil && equality(r) {
				c.drive = &r
				continue
			}
			if err := c.label(r); err != nil {
				return nil, err
			}
		}
	}
	if terms > maxTerms {
		return nil, fmt.Errorf("%w: %d requirements on labels and fields, and at most %d can be answered; write several values of a label as KEY in (A,B)",
			ErrSelector, terms, maxTerms)
	}
	if q.Version != "" {
		c.and("o.version = ?", q.Version)
	}
	c.in("o.namespace", q.Namespaces)
	c.in("o.name", q.Names)
	if q.OwnerUID != "" {
		c.owner = true
		c.and("o.owner = ?", string(q.OwnerUID))
	}
	for _, f := range q.Fields {
		if err := c.field(f); err != nil {
			return nil, err
		}
	}
	return c, nil
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

func (c *condition) in(column string, values []string) {
	switch len(values) {
	case 0:
	case 1:
		c.and(column+" = ?", values[0])
	default:
		// One parameter however long the list is.
		c.and(column+" IN (SELECT value FROM json_each(?))", list(values))
	}
}

func list(values []string) string {
	b, _ := json.Marshal(values) //nolint:errchkjson // strings
	return string(b)
}

// label translates a requirement to a condition on the labels that the row carries.
func (c *condition) label(r labels.Requirement) error {
	// Keys of labels have no quotes; the parser and the API server see to that.
	if strings.ContainsAny(r.Key(), `"\`) {
		return fmt.Errorf("%w: label key %q", ErrSelector, r.Key())
	}
	const value = "json_extract(o.labels, ?)"
	path := `$."` + r.Key() + `"`
	values := list(r.Values().UnsortedList())
	switch r.Operator() {
	case selection.Equals, selection.DoubleEquals, selection.In:
		c.and(value+" IN (SELECT value FROM json_each(?))", path, values)
	case selection.NotEquals, selection.NotIn:
		c.and("ifnull("+value+" NOT IN (SELECT value FROM json_each(?)), TRUE)", path, values)
	case selection.Exists:
		c.and(value+" IS NOT NULL", path)
	case selection.DoesNotExist:
		c.and(value+" IS NULL", path)
	case selection.GreaterThan, selection.LessThan:
		bound := r.ValuesUnsorted()
		if len(bound) != 1 {
			return fmt.Errorf("%w: label %s %s needs one number", ErrSelector, r.Key(), r.Operator())
		}
		operator := ">"
		if r.Operator() == selection.LessThan {
			operator = "<"
		}
		// Values that are not numbers, or not of 64 bits, are neither greater nor less.
		c.and(value+" <> '' AND "+value+" NOT GLOB '*[^0-9]*' AND length("+value+") < 19 AND CAST("+value+" AS INTEGER) "+operator+" CAST(? AS INTEGER)",
			path, path, path, path, bound[0])
	default:
		return fmt.Errorf("%w: operator %q on label %s", ErrSelector, r.Operator(), r.Key())
	}
	return nil
}

// field translates a requirement on a field of the object.
func (c *condition) field(f FieldRequirement) error {
	var operator string
	switch f.Operator {
	case selection.Equals, selection.DoubleEquals:
		operator = " = ?"
	case selection.NotEquals:
		operator = " <> ?"
	default:
		return fmt.Errorf("%w: operator %q on field %s: use =, == or !=", ErrSelector, f.Operator, f.Path)
	}
	switch f.Path {
	case "metadata.name":
		c.and("o.name"+operator, f.Value)
	case "metadata.namespace":
		c.and("o.namespace"+operator, f.Value)
	default:
		path, err := jsonPath(f.Path)
		if err != nil {
			return err
		}
		c.fields = true
		c.and("ifnull(CASE json_type(b.json, ?) WHEN 'true' THEN 'true' WHEN 'false' THEN 'false' ELSE CAST(json_extract(b.json, ?) AS TEXT) END, '')"+operator,
			path, path, f.Value)
	}
	return nil
}

// jsonPath translates the path of a field to SQLite's.
func jsonPath(path string) (string, error) {
	keys, err := ParseFieldPath(path)
	if err != nil {
		return "", err
	}
	out := strings.Builder{}
	out.WriteString("$")
	for _, key := range keys {
		out.WriteString(`."` + key + `"`)
	}
	return out.String(), nil
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

// from is the FROM and WHERE clause for one target. The order of the joins and the index
// are said, not guessed by the database: there are no statistics that it could guess from.
func (c *condition) from(t target, after position, bodies bool) (string, []any) {
	order, args := "o", []any{t.clusterID, t.kind}
	body := ""
	if bodies {
		body = " CROSS JOIN body b ON b.object = o.id"
	}
	var sql string
	switch {
	case c.drive != nil:
		order = "l"
		sql = " FROM label l CROSS JOIN object o ON o.id = l.object" + body + " WHERE l.cluster = ? AND l.type = ? AND l.key = ? AND l.value = ?"
		args = append(args, c.drive.Key(), c.drive.ValuesUnsorted()[0])
	case c.owner:
		sql = " FROM object o INDEXED BY object_owner" + body + " WHERE o.owner <> '' AND o.cluster = ? AND o.type = ?"
	default:
		sql = " FROM object o INDEXED BY object_key" + body + " WHERE o.cluster = ? AND o.type = ?"
	}
	if after.Name != "" {
		sql += " AND (" + order + ".namespace, " + order + ".name) > (?, ?)"
		args = append(args, after.Namespace, after.Name)
	}
	if t.namespaces != nil {
		sql += " AND o.namespace IN (SELECT value FROM json_each(?))"
		args = append(args, list(t.namespaces))
	}
	return sql + c.where.String(), slices.Concat(args, c.args)
}

func (c *condition) list(t target, after position, limit int) (string, []any) {
	from, args := c.from(t, after, true)
	order := "o"
	if c.drive != nil {
		order = "l"
	}
	return "SELECT o.namespace, o.name, o.version, o.kind, o.uid, o.owner, o.created, o.rv, o.labels, b.json" + from +
		" ORDER BY " + order + ".namespace, " + order + ".name LIMIT ?", append(args, limit)
}

func (c *condition) count(t target) (string, []any) {
	from, args := c.from(t, position{}, c.fields)
	return "SELECT count(*)" + from, args
}
