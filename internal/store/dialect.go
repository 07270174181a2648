package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"strconv"
	"strings"

	"orrery.dev/orrery/internal/words"
)

// dialect is what one kind of database does in its own way: how a plan is said in its SQL, how it is laid out, and
// what its errors mean.
type dialect interface { //nolint:interfacebloat // one place for all that differs
	// parameter is the mark of the nth parameter, from 1 on, of a type that the dialect knows.
	parameter(n int) string
	// in writes that an expression is one of values, of which there is at least one.
	in(s *statement, expression string, values []string)
	// ids writes that an expression is one of numbers, of which there is at least one.
	ids(s *statement, expression string, values []int64)
	// labelValue writes the value of a label of o; NULL: it has none.
	labelValue(s *statement, key string)
	// labelCompare writes that a label is a number of digits that strconv.ParseInt reads as one of 64 bits, and greater or less.
	labelCompare(s *statement, c labelCompare)
	// like writes that a column is of a glob of several pieces.
	like(s *statement, column string, g Glob)
	// element is one of a list of b, the nth that a path goes through, from 1 on; 0: b itself. path is what is still to come.
	//
	// text writes the text of a field of an element; NULL, or "": it has none.
	text(s *statement, element int, path FieldPath)
	// there writes that an element has a field that is not null.
	there(s *statement, element int, path FieldPath)
	// elements writes the elements of a list of an element as a table, the next element.
	elements(s *statement, element int, path FieldPath)
	// has writes that a column has something in it.
	has(s *statement, column, text string)
	// grams writes a query of the ids of objects of a type whose names may have all of some texts in them; false: it would lead to too many.
	grams(s *statement, kind int64, texts []string) bool
	// word writes a query of the ids of objects that have a word, of those of a type and perhaps others, which ends soon after its limit; false: there is none.
	word(s *statement, kind int64, one words.Word) bool
	// prose writes a query of the ids of objects of a type that have, of each clause, one of its words.
	prose(s *statement, kind int64, clauses [][]words.Word)
	// inverts says whether the index of words is a table, word, which is kept by who writes.
	inverts() bool
	// named are the objects by the index of their names, as FROM has them.
	named() string
	// list writes the statement of a page: its columns are those of scanRow.
	list(s *statement, p *plan)
	// from writes the FROM and WHERE clause of a plan, with bodies as b.
	from(s *statement, p *plan, bodies bool)
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
	// ready does what may be possible at one start and not at another, after the migrations.
	ready(ctx context.Context, db connection) error
	version(ctx context.Context, db connection) (int, error)
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
	s.sql("EXISTS (SELECT 1 FROM label x WHERE x.type = o.type AND x.label_key = ").arg(c.key).sql(" AND ")
	s.dialect.in(s, "x.label_value", c.values)
	s.sql(" AND x.cluster = o.cluster AND x.namespace = o.namespace AND x.name = o.name)")
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

// largest is the largest number that labels are compared as.
const largest = "9223372036854775807"

func (c labelCompare) write(s *statement) { s.dialect.labelCompare(s, c) }

func (c nameHas) write(s *statement) { s.dialect.has(s, "o.name", c.text) }

func (c createdIn) write(s *statement) {
	and := ""
	if c.since != 0 {
		s.sql("o.created >= ").arg(c.since)
		and = " AND "
	}
	if c.until != 0 {
		s.sql(and + "o.created < ").arg(c.until)
	}
}

// write looks through the lists of a path one in the other.
func (c fieldIs) write(s *statement) {
	if c.not {
		s.sql("NOT ")
	}
	lists, rest := c.path.split()
	if s.sql("("); len(lists) > 0 {
		s.sql("EXISTS (SELECT 1 FROM ")
		for i, path := range lists {
			if i > 0 {
				s.sql(" CROSS JOIN ")
			}
			s.dialect.elements(s, i, path)
		}
		s.sql(" WHERE ")
	}
	if c.exists {
		s.dialect.there(s, len(lists), rest)
	} else {
		value := &statement{dialect: s.dialect, args: s.args}
		value.sql("coalesce(")
		s.dialect.text(value, len(lists), rest)
		s.args = value.sql(", '')").args
		s.dialect.in(s, value.text.String(), c.values)
	}
	if len(lists) > 0 {
		s.sql(")")
	}
	s.sql(")")
}

// columns are what scanRow reads of an object, but for its body.
const columns = "o.id, o.cluster, o.namespace, o.name, o.version, o.kind, o.uid, o.owner, o.created, o.rv, o.labels, o.seq"

// lead writes which rows of the leading table are of the plan's type: all that come after WHERE, but for spans.
func (s *statement) lead(p *plan) {
	switch {
	case p.valued:
		s.sql("l.type = ").arg(p.kind).sql(" AND l.label_key = ").arg(p.pair.key)
	case p.alias() == "l":
		s.sql("l.type = ").arg(p.kind).sql(" AND l.label_key = ").arg(p.pair.key).sql(" AND l.label_value = ").arg(p.pair.value)
		if p.index == byPairTime {
			s.sql(" AND l.label_key < '.'") // as the condition of the index says
		}
	case p.name != "":
		s.sql("o.type = ").arg(p.kind).sql(" AND o.name = ").arg(p.name)
	case p.index == byCandidates:
		s.sql("o.type = ").arg(p.kind).sql(" AND ")
		s.dialect.ids(s, "o.id", p.candidates)
	case p.owners != nil:
		s.sql("o.owner <> '' AND ")
		s.dialect.in(s, "o.owner", p.owners)
		s.sql(" AND o.type = ").arg(p.kind)
	default:
		s.sql("o.type = ").arg(p.kind)
	}
}

// rowAfter writes that the columns of the order are beyond the plan's position, as a comparison of rows if they all go the same way.
func (s *statement) rowAfter(p *plan) {
	values, columns := p.position(), p.ordering()
	if same, _ := uniform(columns); values == nil || !same {
		s.columnsAfter(values, columns)
		return
	}
	s.sql(" AND (")
	for i, c := range columns {
		if i > 0 {
			s.sql(", ")
		}
		s.sql(c.Name)
	}
	s.sql(")" + columns[0].beyond() + "(")
	for i, v := range values {
		if i > 0 {
			s.sql(", ")
		}
		s.arg(v)
	}
	s.sql(")")
}

// columnsAfter writes that columns are beyond values: for each of them, those before it are equal. Of no values it writes nothing.
func (s *statement) columnsAfter(values []any, columns []OrderColumn) {
	for i := range values {
		s.sql(map[bool]string{true: " AND (", false: " OR "}[i == 0] + "(")
		for j := range i {
			s.sql(columns[j].Name + " = ").arg(values[j]).sql(" AND ")
		}
		s.sql(columns[i].Name + columns[i].beyond()).arg(values[i]).sql(")")
	}
	if values != nil {
		s.sql(")")
	}
}

// page writes how many rows are returned, and passed over before.
func (s *statement) page(p *plan) {
	if p.limit > 0 {
		s.sql(" LIMIT ").arg(p.limit)
	}
	if p.offset > 0 {
		if p.limit == 0 {
			s.sql(" LIMIT ").arg(int64(1) << 62)
		}
		s.sql(" OFFSET ").arg(p.offset)
	}
}

// counted writes the statement that counts what from names, no further than the plan's limit.
func (s *statement) counted(p *plan, from func()) {
	switch {
	case p.index == byTally:
		s.sql("SELECT coalesce(sum(o.objects), 0)")
		from()
	case p.limit > 0:
		s.sql("SELECT count(*) FROM (SELECT 1 AS one")
		from()
		s.sql(" LIMIT ").arg(p.limit).sql(") counted")
	default:
		s.sql("SELECT count(*)")
		from()
	}
}

// stepsOf is a path as SQLite and MySQL write it. Keys have no quotes.
func stepsOf(path FieldPath) string {
	var out strings.Builder
	out.WriteString("$")
	for _, step := range path {
		if step.Key == "" {
			out.WriteString("[" + strconv.Itoa(step.Index) + "]")
			continue
		}
		out.WriteString(`."` + step.Key + `"`)
	}
	return out.String()
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
