package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"orrery.dev/orrery/internal/words"
)

// sqliteDialect is the dialect of a database in a file, which the store uses if it has no database
// server. One connection writes. Several connections read, and see each write completely or not at
// all.
type sqliteDialect struct{}

// unpackFunction is the name of an SQL function that returns the JSON of a compressed body from the
// column packed. It returns NULL if the body is not compressed or is encrypted.
const unpackFunction = "orrery_unpack"

// registered registers unpackFunction with the SQLite driver. It does so once for the process, and
// each call returns the same error.
var registered = sync.OnceValue(func() error {
	return sqlite.RegisterDeterministicScalarFunction(unpackFunction, 1, func(_ *sqlite.FunctionContext, args []driver.Value) (driver.Value, error) {
		packed, ok := args[0].([]byte)
		if !ok || len(packed) == 0 || sealed(packed) {
			return nil, nil
		}
		out, err := inflate(packed)
		return string(out), err
	})
})

// openFile opens or creates a database file, and sets its mode to 0600. It updates the schema, and
// claims the database for the store that c describes. It does not replace an unusable file; the
// caller does, see unusable.
func openFile(ctx context.Context, path string, c claimant) (*database, error) {
	if err := registered(); err != nil {
		return nil, err
	}
	// SQLite gives its journal files the mode of the database, so the database needs the right
	// mode from the start.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(f.Chmod(0o600), f.Close()); err != nil {
		return nil, err
	}
	write, err := sql.Open("sqlite", fileDSN(path, "journal_mode(WAL)", "synchronous(NORMAL)", "journal_size_limit(67108864)",
		"cache_size(-16384)", "wal_autocheckpoint(4000)")+"&_txlock=immediate")
	if err != nil {
		return nil, err
	}
	// The journal mode is stored in the file. A reader must not set it: in a truncated file it
	// would wait for the writer instead of reporting missing tables.
	read, err := sql.Open("sqlite", fileDSN(path, "query_only(1)"))
	if err != nil {
		return nil, errors.Join(err, write.Close())
	}
	write.SetMaxOpenConns(1)
	return openDatabase(ctx, sqliteDialect{}, write, read, c)
}

// fileDSN returns the DSN of a file, with pragmas that each connection executes. The VFS unix-excl
// locks the file for this process, and keeps the index of the write-ahead log in the memory of the
// process. If that index were a mapped file, another process that truncates it would kill this
// process.
func fileDSN(path string, pragmas ...string) string {
	q := url.Values{
		"vfs":     {"unix-excl"},
		"_pragma": append([]string{"busy_timeout(2000)", "mmap_size(0)", "temp_store(MEMORY)"}, pragmas...),
	}
	return (&url.URL{Scheme: "file", Path: path, RawQuery: q.Encode()}).String()
}

func (sqliteDialect) parameter(int) string { return "?" }

// in writes the condition that the expression has one of the values. A list of any length is one
// parameter.
func (sqliteDialect) in(s *statement, expression string, values []string) {
	if len(values) == 1 {
		s.sql(expression).sql(" = ").arg(values[0])
		return
	}
	s.sql(expression).sql(" IN (SELECT value FROM json_each(").arg(list(values)).sql("))")
}

func (sqliteDialect) labelValue(s *statement, key string) {
	s.sql("json_extract(o.labels, ").arg(pathOf([]string{key})).sql(")")
}

// labelCompare writes the condition that a label is a number greater, or less, than the bound.
// Labels that are not 64-bit numbers do not match. Numbers of 19 digits are compared with the
// greatest number as texts.
func (d sqliteDialect) labelCompare(s *statement, c labelCompare) {
	d.labelValue(s, c.key)
	s.sql(" <> '' AND ")
	d.labelValue(s, c.key)
	s.sql(" NOT GLOB '*[^0-9]*' AND (length(ltrim(")
	d.labelValue(s, c.key)
	s.sql(", '0')) < 19 OR length(ltrim(")
	d.labelValue(s, c.key)
	s.sql(", '0')) = 19 AND ltrim(")
	d.labelValue(s, c.key)
	s.sql(", '0') <= '" + largest + "') AND CAST(ltrim(")
	d.labelValue(s, c.key)
	s.sql(", '0') AS INTEGER)").sql(operator(c)).arg(c.bound)
}

// operator returns the SQL operator of the comparison, with spaces: > or <.
func operator(c labelCompare) string {
	if c.greater {
		return " > "
	}
	return " < "
}

// ids writes the condition that the expression has one of the numbers. A list of any length is one
// parameter.
func (sqliteDialect) ids(s *statement, expression string, values []int64) {
	s.sql(expression).sql(" IN (SELECT value FROM json_each(").arg(list(values)).sql("))")
}

// element returns an SQL expression for JSON in a body: 0 is the body, and n an element of the nth
// list that a path leads through. It is NULL for an element without fields. A compressed body is
// decompressed at each use.
func (sqliteDialect) element(n int) string {
	if n == 0 {
		return "CASE b.json WHEN '" + noJSON + "' THEN " + unpackFunction + "(b.packed) ELSE b.json END"
	}
	e := "e" + strconv.Itoa(n)
	return "CASE WHEN " + e + ".type IN ('object', 'array') THEN " + e + ".value END"
}

// text writes an expression for the text of a field. Numbers have the text that they have in the
// JSON. As SQL values they would be formatted again.
func (d sqliteDialect) text(s *statement, element int, path FieldPath) {
	if len(path) == 0 {
		e := "e" + strconv.Itoa(element)
		s.sql("CASE " + e + ".type WHEN 'true' THEN 'true' WHEN 'false' THEN 'false' WHEN 'integer' THEN " + e + ".json -> " + e + ".fullkey WHEN 'real' THEN " +
			e + ".json -> " + e + ".fullkey ELSE CAST(" + e + ".atom AS TEXT) END")
		return
	}
	of, steps := d.element(element), stepsOf(path)
	s.sql("CASE json_type(" + of + ", ").arg(steps).sql(") WHEN 'true' THEN 'true' WHEN 'false' THEN 'false' WHEN 'integer' THEN (" + of + ") -> ").arg(steps).
		sql(" WHEN 'real' THEN (" + of + ") -> ").arg(steps).sql(" ")
	if element > 0 { // in lists, only scalars are compared
		s.sql("WHEN 'object' THEN NULL WHEN 'array' THEN NULL ")
	}
	s.sql("ELSE CAST(json_extract(" + of + ", ").arg(steps).sql(") AS TEXT) END")
}

func (d sqliteDialect) there(s *statement, element int, path FieldPath) {
	if len(path) == 0 {
		s.sql("e" + strconv.Itoa(element) + ".type <> 'null'")
		return
	}
	s.sql("coalesce(json_type(" + d.element(element) + ", ").arg(stepsOf(path)).sql("), 'null') <> 'null'")
}

func (d sqliteDialect) elements(s *statement, element int, path FieldPath) {
	of, steps := d.element(element), stepsOf(path)
	s.sql("json_each(CASE json_type(" + of + ", ").arg(steps).sql(") WHEN 'array' THEN json_extract(" + of + ", ").arg(steps).
		sql(") END) e" + strconv.Itoa(element+1))
}

func (sqliteDialect) ready(context.Context, connection) error { return nil }

func (sqliteDialect) has(s *statement, column, text string) {
	s.sql("instr(" + column + ", ").arg(text).sql(") > 0")
}

// word writes a query for the objects with the word. Its index returns entries one by one, so the
// query ends soon after its limit. A search for a common and a rare word together would take as
// long as the common one.
func (sqliteDialect) word(s *statement, _ int64, one words.Word) bool {
	s.sql("SELECT rowid FROM prose_words WHERE prose_words MATCH ").arg(`"` + one.Text + `"`)
	return true
}

// fullText writes a query for the objects of a type that have one word of each clause, with the
// index prose_words. Words need no escaping within quotes, because they have only letters, digits
// and underscores.
func (sqliteDialect) fullText(s *statement, kind int64, clauses [][]words.Word) {
	s.sql("SELECT rowid FROM prose_words WHERE prose_words MATCH ").arg(`"` + kindWord(kind) + `"` + joinClauses(clauses, " AND ", " OR ", `"`, `"*`))
}

// grams writes a query for the objects whose names contain all texts, as far as runs of three
// characters show it. It returns false, and writes nothing, if all texts are shorter. The index
// entries of each run are read completely.
func (sqliteDialect) grams(s *statement, kind int64, texts []string) bool {
	var match []string
	for _, text := range texts {
		runes := []rune(text)
		for end := 3; end <= len(runes); end += max(min(3, len(runes)-end), 1) {
			match = append(match, `"`+strings.ReplaceAll(string(runes[end-3:end]), `"`, `""`)+`"`)
		}
	}
	if len(match) == 0 {
		return false
	}
	s.sql("SELECT g.rowid FROM object_grams g CROSS JOIN object o ON o.id = g.rowid WHERE object_grams MATCH ").arg(strings.Join(match, " AND ")).sql(" AND o.type = ").arg(kind)
	return true
}

func (d sqliteDialect) list(s *statement, p *plan) {
	s.sql("SELECT " + columns + ", " + d.exactBody())
	// Rows that are only sorted or skipped are read from the index. The columns and bodies are read
	// for the rows of the page.
	if p.sorted && p.limit > 0 || p.offset > 0 {
		p.slim = true
		s.sql(" FROM (SELECT " + map[string]string{"o": "o.id", "l": "l.object"}[p.alias()] + " AS id")
		d.from(s, p, p.fields)
		if p.ordered() {
			s.sql(p.orderBy(p.ordering()))
		}
		s.page(p)
		s.sql(") page CROSS JOIN object o ON o.id = page.id CROSS JOIN body b ON b.object = o.id" + p.orderBy(p.shown()))
		return
	}
	d.from(s, p, true)
	// The rows of spans come in order, because the joins run as written. SQLite does not know that and
	// would sort. The method page checks the order.
	if p.ordered() {
		s.sql(p.orderBy(p.ordering()))
	}
	s.page(p)
}

func (d sqliteDialect) count(s *statement, p *plan) {
	s.counted(p, func() { d.from(s, p, p.fields) })
}

func (d sqliteDialect) named() string { return d.leading(&plan{index: byName}) }

// leading returns the table that SQLite reads first, for FROM. It has the alias that plan.alias
// returns, and the name of the index of the plan.
func (sqliteDialect) leading(p *plan) string {
	switch p.index {
	case byPair:
		return "label l"
	case byPairTime:
		return "label l INDEXED BY label_created"
	case byOwner:
		return "object o INDEXED BY object_owner"
	case byName:
		return "object o INDEXED BY object_name"
	case byTime:
		return "object o INDEXED BY object_created"
	case byCandidates:
		return "object o NOT INDEXED"
	case byTally:
		return "tally o"
	default:
		return "object o INDEXED BY object_key"
	}
}

// from writes the FROM and WHERE clause of a plan. It fixes the order of the joins and the index,
// because the database has no statistics to choose them.
func (d sqliteDialect) from(s *statement, p *plan, bodies bool) {
	s.sql(" FROM ")
	if p.leads {
		d.spans(s, p)
		s.sql(" CROSS JOIN ")
	}
	s.sql(d.leading(p))
	if p.alias() == "l" && (bodies || p.whole()) {
		s.sql(" CROSS JOIN object o ON o.id = l.object")
	}
	if bodies {
		s.sql(" CROSS JOIN body b ON b.object = o.id")
	}
	s.sql(" WHERE ")
	s.lead(p)
	a := p.alias()
	switch {
	case p.spans == nil:
	case p.leads && p.narrow:
		s.sql(" AND " + a + ".cluster = g.key AND " + a + ".namespace = n.value")
		if p.index != byTally {
			first := p.spans[0] // only the first span can begin after a position
			s.sql(" AND " + a + ".name > CASE WHEN g.key = ").arg(first.cluster).sql(" AND n.value = ").arg(first.namespace).sql(" THEN ").arg(first.afterOf).sql(" ELSE '' END")
		}
	case p.leads:
		s.sql(" AND " + a + ".cluster = g.key")
		if p.index != byTally {
			first := p.spans[0]
			s.sql(" AND (" + a + ".namespace, " + a + ".name) > (CASE g.key WHEN ").arg(first.cluster).sql(" THEN ").arg(first.afterSpace).
				sql(" ELSE '' END, CASE g.key WHEN ").arg(first.cluster).sql(" THEN ").arg(first.afterOf).sql(" ELSE '' END)")
		}
	case p.narrow:
		s.sql(" AND (" + a + ".cluster, " + a + ".namespace) IN (SELECT g.key, n.value FROM ")
		d.spans(s, p)
		s.sql(")")
	default:
		s.sql(" AND " + a + ".cluster IN (SELECT g.key FROM ")
		d.spans(s, p)
		s.sql(")")
	}
	s.rowAfter(p)
	s.and(p)
}

// spans writes the spans of a plan (clusters or namespaces) as a table, in their order. In it,
// g.key is the cluster and, if plan.narrow is set, n.value the namespace.
func (sqliteDialect) spans(s *statement, p *plan) {
	var out strings.Builder
	for i, one := range p.spans {
		switch {
		case i > 0 && p.spans[i-1].cluster == one.cluster:
			out.WriteString("," + list(one.namespace))
			continue
		case i > 0:
			out.WriteString("],")
		}
		out.WriteString(list(one.cluster) + ":[" + list(one.namespace))
	}
	s.sql("json_each(").arg("{" + out.String() + "]}").sql(") g")
	if p.narrow {
		s.sql(" CROSS JOIN json_each(g.value) n")
	}
}

func (sqliteDialect) replace(key string, columns []string) string {
	return replaceExcluded(key, columns)
}

// replaceExcluded returns the end of an INSERT for SQLite and PostgreSQL. If a row with the same
// key exists, it sets the columns of that row to the new values.
func replaceExcluded(key string, columns []string) string {
	set := make([]string, len(columns))
	for i, c := range columns {
		set[i] = c + " = excluded." + c
	}
	return " ON CONFLICT (" + key + ") DO UPDATE SET " + strings.Join(set, ", ")
}

func (sqliteDialect) accumulate(table, key, column string) string {
	return accumulateExcluded(table, key, column)
}

// accumulateExcluded returns the end of an INSERT for SQLite and PostgreSQL. If a row with the same
// key exists, it adds the new number in the column to that row.
func accumulateExcluded(table, key, column string) string {
	return " ON CONFLICT (" + key + ") DO UPDATE SET " + column + " = " + table + "." + column + " + excluded." + column
}

func (sqliteDialect) lengths() []int { return []int{16, 4, 1} }
func (sqliteDialect) inverts() bool  { return false } // FTS5 does

// into returns the beginning of an INSERT. OR FAIL is enough, because a failed statement fails the
// whole transaction. To be able to undo a single statement, SQLite would copy each page that it
// changes.
func (sqliteDialect) into() string { return "INSERT OR FAIL INTO " }

func (sqliteDialect) rows(n int, columns []string) string { return values(n, columns) }
func (sqliteDialect) arguments(rows [][]any) []any        { return flat(rows) }

func (sqliteDialect) find(n int, key []string, columns ...string) string {
	return "SELECT " + strings.Join(slices.Concat(key, columns), ", ") + " FROM object INDEXED BY object_key WHERE " + keyed(n, key)
}

func (sqliteDialect) among(n int, column string) string { return keyed(n, []string{column}) }
func (sqliteDialect) snapshot() *sql.TxOptions          { return nil }

// update returns an UPDATE of one row, for any number n. An INSERT with ON CONFLICT would search
// every index for the row, and also write the indexes of unchanged columns.
func (sqliteDialect) update(_ int, table string, same, columns []string, changed int) string {
	set := make([]string, changed)
	for i := range set {
		set[i] = fmt.Sprintf("%s = ?%d", columns[i], len(same)+i+1)
	}
	return "UPDATE OR FAIL " + table + " SET " + strings.Join(set, ", ") + " WHERE " + same[0] + " = ?1"
}

// overwrite returns a statement that inserts or replaces one row, for any number n. With several
// rows, a failure of the last one would have to undo the first ones.
func (d sqliteDialect) overwrite(_ int, table string, same, columns []string) string {
	all := slices.Concat(same, columns)
	return "INSERT OR REPLACE INTO " + table + " (" + strings.Join(all, ", ") + ") " + d.rows(1, all)
}

func (sqliteDialect) remove(n int, table string, key []string) string {
	return "DELETE FROM " + table + " WHERE " + keyed(n, key)
}

func (sqliteDialect) bodyColumns() []string        { return []string{"json"} }
func (sqliteDialect) body(b []byte) ([]any, error) { return []any{string(b)}, nil }
func (sqliteDialect) exactBody() string            { return "b.json, b.packed" }
func (sqliteDialect) packs() byte                  { return packedZstd }

// ended reports whether a rollback failed only because SQLite had ended the transaction already.
// SQLite often ends a failed transaction itself. The rollback then fails with SQLITE_ERROR.
func (sqliteDialect) ended(err error) bool { return code(err) == sqlite3.SQLITE_ERROR }

func (sqliteDialect) version(ctx context.Context, db connection) (n int, err error) {
	err = db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&n)
	return n, err
}

func (sqliteDialect) setVersion(ctx context.Context, tx *sql.Tx, n int) error {
	// A pragma takes no parameters.
	_, err := tx.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version = %d", n))
	return err
}

// code returns the primary result code of an error of SQLite. For any other error it returns 0.
func code(err error) int {
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		return e.Code() & 0xff
	}
	return 0
}

// damaged reports whether an error of SQLite, or an errDamaged, means that the file has changed
// unexpectedly. Its contents cannot be trusted then, and retries do not help.
func damaged(err error) bool {
	if errors.Is(err, errDamaged) {
		return true
	}
	e, ok := errors.AsType[*sqlite.Error](err)
	if !ok {
		return false
	}
	switch e.Code() {
	case sqlite3.SQLITE_IOERR_SHORT_READ, sqlite3.SQLITE_IOERR_CORRUPTFS, sqlite3.SQLITE_READONLY_DBMOVED:
		return true
	}
	switch code(err) {
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		return true
	// Tables or columns are missing, or JSON that was valid is not any more.
	case sqlite3.SQLITE_ERROR:
		return slices.ContainsFunc([]string{"no such table", "no such column", "has no column named", "malformed JSON"},
			func(s string) bool { return strings.Contains(e.Error(), s) })
	default:
		return false
	}
}

// unusable reports whether an error of openFile is about the contents of the file, or the file has
// a newer schema. Such a file can never be opened, and is set aside. A lock or a full disk is no
// such error.
func unusable(err error) bool {
	if damaged(err) || errors.Is(err, errNewer) {
		return true
	}
	switch code(err) {
	case sqlite3.SQLITE_ERROR, sqlite3.SQLITE_SCHEMA, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH:
		return true
	default:
		return false
	}
}

func (sqliteDialect) fault(err error) fault {
	if damaged(err) {
		return faultDamaged
	}
	switch code(err) {
	case sqlite3.SQLITE_FULL:
		return faultFull
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return faultLocked
	case sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_NOMEM:
		return faultUnavailable
	case sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH:
		return faultRow
	default:
		return faultOther
	}
}
