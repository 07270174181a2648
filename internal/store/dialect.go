package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"strconv"
	"strings"

	"orrery.dev/orrery/internal/words"
)

// dialect has all differences between SQLite, PostgreSQL and MySQL: the SQL of a plan, the tables,
// and the meaning of errors.
type dialect interface { //nolint:interfacebloat // one place for all that differs
	// parameter returns the placeholder of the nth parameter, from 1 on. Its type must be one
	// that the dialect knows.
	parameter(n int) string
	// in writes the condition that an expression has one of the values. There must be at least one.
	in(s *statement, expression string, values []string)
	// ids writes the condition that an expression has one of the numbers. There must be at least one.
	ids(s *statement, expression string, values []int64)
	// labelValue writes an expression for the value of a label of the object o; NULL: o lacks the
	// label.
	labelValue(s *statement, key string)
	// labelCompare writes the condition c: the label consists of digits that strconv.ParseInt parses
	// as a 64-bit number, and that number is greater than the bound, or less.
	labelCompare(s *statement, c labelCompare)
	// like writes the condition that a column matches a glob of at least two pieces.
	like(s *statement, column string, g Glob)
	// The next three methods write SQL for JSON in a body. element 0 is the body b. Element n, from 1
	// on, is an element of the nth list that a field's path leads through. path is the rest of the
	// path, from that element on.
	//
	// text writes an expression for the text of a field of an element; NULL or "": the element lacks
	// the field.
	text(s *statement, element int, path FieldPath)
	// there writes the condition that an element has a field that is not null.
	there(s *statement, element int, path FieldPath)
	// elements writes a table, for FROM, of the elements of a list in an element. Its rows are the
	// next element.
	elements(s *statement, element int, path FieldPath)
	// has writes the condition that a column contains a text.
	has(s *statement, column, text string)
	// grams writes a query for the ids of objects of a type whose names may contain all texts. It
	// returns false, and writes nothing, if the query would return too many.
	grams(s *statement, kind int64, texts []string) bool
	// word writes a query for the ids of objects that have a word. They are of the type kind and
	// perhaps of other types. The query must end soon after its limit. word returns false, and writes
	// nothing, if the database has no such query.
	word(s *statement, kind int64, one words.Word) bool
	// fullText writes a query for the ids of objects of a type that have one word of each clause.
	fullText(s *statement, kind int64, clauses [][]words.Word)
	// inverts reports whether the index of words is the table word, which the writer maintains.
	// Otherwise the database maintains an index of the table of texts.
	inverts() bool
	// named returns the table object for FROM, with a hint to use the index of names.
	named() string
	// list writes the statement for the rows of a page, with the columns that scanRow reads.
	list(s *statement, p *plan)
	// from writes the FROM and WHERE clause of a plan. With bodies, the table body is joined, as b.
	from(s *statement, p *plan, bodies bool)
	// count writes the statement that counts the rows of a plan.
	count(s *statement, p *plan)
	// replace returns the end of an INSERT. If a row with the same key exists, it sets the columns of
	// that row to the new values.
	replace(key string, columns []string) string
	// accumulate returns the end of an INSERT. If a row with the same key exists, it adds the new
	// number in the column to that row.
	accumulate(table, key, column string) string
	// lengths returns the numbers of rows for which a statement is prepared, from the greatest to 1;
	// or only anyLength.
	lengths() []int
	// into returns the beginning of an INSERT, up to the table. rows returns the part of an INSERT
	// with n rows, and arguments the parameters for rows.
	into() string
	rows(n int, columns []string) string
	arguments(rows [][]any) []any
	// find returns the statement that reads the key and columns of the objects with n keys.
	find(n int, key []string, columns ...string) string
	// among returns the condition that a column of numbers has one of n values.
	among(n int, column string) string
	// update returns the statement that changes the first columns of n existing rows, as many as
	// changed says. Its parameters are complete rows: the columns same, which begin with the key, and
	// then columns.
	update(n int, table string, same, columns []string, changed int) string
	// overwrite returns a statement that sets all columns of n rows. Missing rows are inserted.
	overwrite(n int, table string, same, columns []string) string
	// remove returns the statement that deletes the rows with n keys.
	remove(n int, table string, key []string) string
	// bodyColumns returns the columns of a body besides its key and packed, and body their
	// values. body returns an error if the database could not read the body as JSON.
	bodyColumns() []string
	body(b []byte) ([]any, error)
	// exactBody returns the expressions for the body as it was written, and for its packed form.
	exactBody() string
	// packs returns the format in which large bodies are packed, packedZstd or packedZlib. 0: they are
	// not packed, because the database compresses them itself.
	packs() byte
	// ended reports whether a rollback failed only because the database had ended the transaction
	// already.
	ended(err error) bool
	// fault classifies an error of the driver.
	fault(err error) fault

	// snapshot returns the options of a transaction that reads one state of the database.
	snapshot() *sql.TxOptions

	migrations() [][]string
	// ready runs after the migrations at each start. It does what is not possible at every start, such
	// as creating an index that needs an extension.
	ready(ctx context.Context, db connection) error
	version(ctx context.Context, db connection) (int, error)
	setVersion(ctx context.Context, tx *sql.Tx, n int) error
}

// fault is the kind of an error of a database, by what the store does about it.
type fault int

const (
	faultOther       fault = iota
	faultRow               // a row was refused; others can be written
	faultFull              // no space
	faultUnavailable       // the database cannot be used now
	faultLocked            // another process has locked the database
	faultDamaged           // the database has changed unexpectedly
)

// statement is an SQL statement under construction, with its parameters. Values are always
// parameters, so the text consists of constants.
type statement struct {
	dialect dialect
	text    strings.Builder
	args    []any
}

// sql appends constant text to the statement, and returns the statement.
func (s *statement) sql(text string) *statement {
	s.text.WriteString(text)
	return s
}

// arg appends a placeholder to the text and v to the parameters, and returns the statement.
func (s *statement) arg(v any) *statement {
	s.args = append(s.args, v)
	s.text.WriteString(s.dialect.parameter(len(s.args)))
	return s
}

// say returns constant SQL text with the placeholders of the dialect instead of each question mark.
// The text must not have other question marks.
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

// and appends the conditions of a plan, each after an AND. The first one leaves out rows of
// clusters that are being dropped.
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

// write appends a condition that looks the field up in the table label, so it reads no body.
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

// largest is the greatest number that a label is compared as: the maximum of a 64-bit integer.
// Labels with greater numbers do not match.
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

// write appends the condition. It joins the elements of all lists that the path leads through, as
// nested loops.
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

// columns are the columns of the table object that scanRow reads. The body follows them.
const columns = "o.id, o.cluster, o.namespace, o.name, o.version, o.kind, o.uid, o.owner, o.created, o.rv, o.labels, o.seq"

// lead appends the conditions on the table that the database reads first, after WHERE. Conditions
// on spans are not among them.
func (s *statement) lead(p *plan) {
	switch {
	case p.valued:
		s.sql("l.type = ").arg(p.kind).sql(" AND l.label_key = ").arg(p.pair.key)
	case p.alias() == "l":
		s.sql("l.type = ").arg(p.kind).sql(" AND l.label_key = ").arg(p.pair.key).sql(" AND l.label_value = ").arg(p.pair.value)
		if p.index == byPairTime {
			s.sql(" AND l.label_key < '.'") // the condition of the partial index
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

// rowAfter appends, after an AND, that a row is after the plan's position, where the previous page
// ended. Without a position it appends nothing. If all columns of the order have the same
// direction, it compares them as one row.
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

// columnsAfter appends, after an AND, that a row is after the values in the order of the columns.
// One column must be beyond its value, and all columns before it equal theirs. If values is nil, it
// appends nothing.
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

// page appends the LIMIT and OFFSET of a plan. It appends nothing if the plan has neither.
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

// counted appends the statement that counts the rows of a plan, at most up to the plan's limit.
// from appends its FROM and WHERE clause.
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

// stepsOf returns the JSON path of a field in the syntax of SQLite and MySQL. Keys have no quotes,
// because ParseFieldPath refuses them. The path must not lead through all elements of a list.
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

// pathOf returns the JSON path through keys of objects, in the syntax of SQLite and MySQL. The keys
// must not have quotes.
func pathOf(keys []string) string {
	var out strings.Builder
	out.WriteString("$")
	for _, key := range keys {
		out.WriteString(`."` + key + `"`)
	}
	return out.String()
}

// list encodes strings or numbers as JSON, which a statement takes as one parameter.
func list(values any) string {
	b, _ := json.Marshal(values) //nolint:errchkjson // strings
	return string(b)
}
