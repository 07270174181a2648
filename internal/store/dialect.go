package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"strings"
)

// dialect is what one kind of database does in its own way: how a plan is said in its SQL, how it is laid out, and
// what its errors mean.
type dialect interface { //nolint:interfacebloat // one place for all that differs
	// parameter is the mark of the nth parameter, from 1 on, of a type that the dialect knows.
	parameter(n int) string
	// in writes that an expression is one of values, of which there is at least one.
	in(s *statement, expression string, values []string)
	// labelValue writes the value of a label of o; NULL: it has none.
	labelValue(s *statement, key string)
	// labelCompare writes that a label is a number, and greater or less.
	labelCompare(s *statement, c labelCompare)
	// field writes the text of a field of b; NULL, or "": it has none.
	field(s *statement, keys []string)
	// list writes the statement of a page: its columns are those of scanRow.
	list(s *statement, p *plan)
	// count writes the statement that counts.
	count(s *statement, p *plan)
	// replace is what follows the rows of an INSERT to have them take the place of those with the same key.
	replace(key string, columns []string) string
	// accumulate is what follows them to have their numbers added to those of rows with the same key.
	accumulate(table, key, column string) string
	// lengths are of how many rows a statement may be, from the longest to 1; or anyLength alone.
	lengths() []int
	// into is how an INSERT begins, rows are its n rows, and arguments their parameters.
	into() string
	rows(n int, columns []string) string
	arguments(rows [][]any) []any
	// find is the statement that returns the key and columns of the objects with n keys.
	find(n int, key []string, columns ...string) string
	// among is the condition that a column of numbers is one of n.
	among(n int, column string) string
	// update is the statement that changes the first so many columns of n rows, which are there. Its parameters are the whole rows,
	// of which the first is the key.
	update(n int, table string, same, columns []string, changed int) string
	// overwrite is the same of all columns; a row that is not there is inserted.
	overwrite(n int, table string, same, columns []string) string
	// remove is the statement that deletes the rows with n keys.
	remove(n int, table string, key []string) string
	// bodyColumns are those of a body besides its key and what is packed, and body what is stored in them. It is an error that the database
	// could not read the body as JSON.
	bodyColumns() []string
	body(b []byte) ([]any, error)
	// exactBody are the expressions of the body as it was written, and of what is packed of it.
	exactBody() string
	// packs is how large bodies are packed; 0: the database compresses them itself.
	packs() byte
	// ended says whether a rollback failed because there was nothing left to undo.
	ended(err error) bool
	// fault says what an error of the driver is about.
	fault(err error) fault

	// snapshot is a transaction that reads one state of the database.
	snapshot() *sql.TxOptions

	migrations() [][]string
	version(ctx context.Context, db *sql.DB) (int, error)
	setVersion(ctx context.Context, tx *sql.Tx, n int) error
}

// fault is what an error of a database is about.
type fault int

const (
	faultOther       fault = iota
	faultRow               // the row: the others can be written
	faultFull              // no room
	faultUnavailable       // the database cannot be used now
	faultLocked            // by another process
	faultDamaged           // the database is not what was written to it
)

// statement is SQL that is being written, with its parameters. Its text is made of constants.
type statement struct {
	dialect dialect
	text    strings.Builder
	args    []any
}

// sql writes text.
func (s *statement) sql(text string) *statement {
	s.text.WriteString(text)
	return s
}

// arg writes a parameter.
func (s *statement) arg(v any) *statement {
	s.args = append(s.args, v)
	s.text.WriteString(s.dialect.parameter(len(s.args)))
	return s
}

// say is a statement of constant text, in which every ? is a parameter.
func say(d dialect, text string) string {
	var out strings.Builder
	n := 0
	for i, part := range strings.Split(text, "?") {
		if i > 0 {
			n++
			out.WriteString(d.parameter(n))
		}
		out.WriteString(part)
	}
	return out.String()
}

// and writes the conditions of a plan, each after an AND.
func (s *statement) and(p *plan) {
	if len(p.shunned) > 0 {
		s.sql(" AND NOT (")
		s.dialect.in(s, p.alias()+".cluster", p.shunned)
		s.sql(")")
	}
	for _, c := range p.where {
		s.sql(" AND ")
		c.write(s)
	}
}

func (c columnIn) write(s *statement) {
	if c.not {
		s.sql("NOT ")
	}
	s.sql("(")
	s.dialect.in(s, c.column, c.values)
	s.sql(")")
}

func (c nameFrom) write(s *statement) {
	s.sql("o.name >= ").arg(c.from)
	if c.until != "" {
		s.sql(" AND o.name < ").arg(c.until)
	}
}

// write looks for the key of the index: no body is read.
func (c termIs) write(s *statement) {
	if c.not {
		s.sql("NOT ")
	}
	s.sql("EXISTS (SELECT 1 FROM label x WHERE x.type = o.type AND x.label_key = ").arg(c.key).sql(" AND x.label_value = ").arg(c.value).
		sql(" AND x.cluster = o.cluster AND x.namespace = o.namespace AND x.name = o.name)")
}

func (c labelIn) write(s *statement) {
	if c.not {
		s.sql("(")
		s.dialect.labelValue(s, c.key)
		s.sql(" IS NULL OR NOT ")
		labelIn{key: c.key, values: c.values}.write(s)
		s.sql(")")
		return
	}
	value := &statement{dialect: s.dialect, args: s.args}
	s.dialect.labelValue(value, c.key)
	s.args = value.args
	s.sql("(")
	s.dialect.in(s, value.text.String(), c.values)
	s.sql(")")
}

func (c labelSet) write(s *statement) {
	s.dialect.labelValue(s, c.key)
	if c.not {
		s.sql(" IS NULL")
	} else {
		s.sql(" IS NOT NULL")
	}
}

func (c sinceAtMost) write(s *statement) { s.sql("o.since <= ").arg(c.moment) }

func (c labelCompare) write(s *statement) { s.dialect.labelCompare(s, c) }

func (c fieldIs) write(s *statement) {
	s.sql("coalesce(")
	s.dialect.field(s, c.keys)
	if c.not {
		s.sql(", '') <> ").arg(c.value)
	} else {
		s.sql(", '') = ").arg(c.value)
	}
}

// columns are what scanRow reads of an object, but for its body.
const columns = "o.id, o.cluster, o.namespace, o.name, o.version, o.kind, o.uid, o.owner, o.created, o.rv, o.labels, o.seq"

// lead writes which rows of the leading table are of the plan's type: all that come after WHERE, but for spans.
func (s *statement) lead(p *plan) {
	switch {
	case p.pair != nil:
		s.sql("l.type = ").arg(p.kind).sql(" AND l.label_key = ").arg(p.pair.key).sql(" AND l.label_value = ").arg(p.pair.value)
		if p.index == byPairTime {
			s.sql(" AND l.label_key < '.'") // as the condition of the index says
		}
	case p.name != "":
		s.sql("o.type = ").arg(p.kind).sql(" AND o.name = ").arg(p.name)
	case p.owner != "":
		s.sql("o.owner <> '' AND o.owner = ").arg(p.owner).sql(" AND o.type = ").arg(p.kind)
	default:
		s.sql("o.type = ").arg(p.kind)
	}
}

// rowAfter writes that the columns of the order are beyond the plan's position, as a comparison of rows.
func (s *statement) rowAfter(p *plan) {
	values := p.position()
	if values == nil {
		return
	}
	s.sql(" AND (" + strings.Join(p.ordering(), ", ") + ")" + p.beyond() + "(")
	for i, v := range values {
		if i > 0 {
			s.sql(", ")
		}
		s.arg(v)
	}
	s.sql(")")
}

// pathOf is the path of a field as SQLite and MySQL write it. Keys have no quotes.
func pathOf(keys []string) string {
	var out strings.Builder
	out.WriteString("$")
	for _, key := range keys {
		out.WriteString(`."` + key + `"`)
	}
	return out.String()
}

// list is a list of strings as one parameter.
func list(values any) string {
	b, _ := json.Marshal(values) //nolint:errchkjson // strings
	return string(b)
}
