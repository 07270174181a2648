package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/go-sql-driver/mysql"

	"orrery.dev/orrery/internal/words"
)

// mysqlDialect is the dialect of MySQL 8.0 and MariaDB 10.6, and later versions.
type mysqlDialect struct{}

func (mysqlDialect) parameter(int) string { return "?" }

func (mysqlDialect) in(s *statement, expression string, values []string) {
	if len(values) == 1 {
		s.sql(expression).sql(" = ").arg(values[0])
		return
	}
	s.sql(expression).sql(" IN (")
	for i, v := range values {
		if i > 0 {
			s.sql(", ")
		}
		s.arg(v)
	}
	s.sql(")")
}

// labelValue writes the value of a label as binary, so that comparisons compare bytes, as for
// columns of names. A comparison of texts would ignore blanks at the end. The value is NULL if the
// object lacks the label.
func (mysqlDialect) labelValue(s *statement, key string) {
	s.sql("CAST(JSON_UNQUOTE(JSON_EXTRACT(o.labels, ").arg(pathOf([]string{key})).sql(")) AS BINARY)")
}

// labelCompare writes the condition that a label is a number greater, or less, than the bound. It
// converts the label to a decimal of 65 digits, because a label may have more digits than an
// integer type.
func (mysqlDialect) labelCompare(s *statement, c labelCompare) {
	path := pathOf([]string{c.key})
	number := func() { s.sql("CAST(JSON_UNQUOTE(JSON_EXTRACT(o.labels, ").arg(path).sql(")) AS DECIMAL(65))") }
	s.sql("(JSON_UNQUOTE(JSON_EXTRACT(o.labels, ").arg(path).sql(")) REGEXP '^[0-9]+$' AND ")
	number()
	s.sql(" <= " + largest + " AND ")
	number()
	s.sql(operator(c)).arg(c.bound).sql(")")
}

func (mysqlDialect) ids(s *statement, expression string, values []int64) {
	s.sql(expression).sql(" IN (")
	for i, v := range values {
		if i > 0 {
			s.sql(", ")
		}
		s.arg(v)
	}
	s.sql(")")
}

func (mysqlDialect) element(n int) string {
	if n == 0 {
		return "CASE b.json WHEN '" + noJSON + "' THEN CONVERT(UNCOMPRESS(SUBSTRING(b.packed, 2)) USING utf8mb4) ELSE b.json END"
	}
	return "e" + strconv.Itoa(n) + ".value"
}

func (d mysqlDialect) text(s *statement, element int, path FieldPath) {
	of, steps := d.element(element), stepsOf(path)
	s.sql("CASE JSON_TYPE(JSON_EXTRACT(" + of + ", ").arg(steps).sql(")) WHEN 'NULL' THEN NULL ")
	if element > 0 { // in lists, only scalars are compared
		s.sql("WHEN 'OBJECT' THEN NULL WHEN 'ARRAY' THEN NULL ")
	}
	s.sql("ELSE CAST(JSON_UNQUOTE(JSON_EXTRACT(" + of + ", ").arg(steps).sql(")) AS BINARY) END")
}

func (d mysqlDialect) there(s *statement, element int, path FieldPath) {
	s.sql("coalesce(JSON_TYPE(JSON_EXTRACT(" + d.element(element) + ", ").arg(stepsOf(path)).sql(")), 'NULL') <> 'NULL'")
}

// elements writes a JSON_TABLE of the elements of the list at path in the element. JSON_EXTRACT
// extracts the list first, because the path of JSON_TABLE cannot be a parameter.
func (d mysqlDialect) elements(s *statement, element int, path FieldPath) {
	of, steps := d.element(element), stepsOf(path)
	s.sql("JSON_TABLE(CASE JSON_TYPE(JSON_EXTRACT(" + of + ", ").arg(steps).sql(")) WHEN 'ARRAY' THEN JSON_EXTRACT(" + of + ", ").arg(steps).
		sql(") ELSE '[]' END, '$[*]' COLUMNS (value JSON PATH '$')) e" + strconv.Itoa(element+1))
}

func (mysqlDialect) has(s *statement, column, text string) {
	s.sql("LOCATE(").arg(text).sql(", " + column + ") > 0")
}

func (d mysqlDialect) word(s *statement, kind int64, one words.Word) bool {
	d.fullText(s, kind, [][]words.Word{{one}})
	return true
}

// fullText writes a query for the objects of a type that have one word of each clause. It joins the
// table word with itself, once for each clause. The server begins with the rarest word, which it
// finds with the index. The query returns an object several times if the object has several words
// with the same prefix.
func (mysqlDialect) fullText(s *statement, kind int64, clauses [][]words.Word) {
	s.sql("SELECT w0.object FROM word w0")
	for i := range clauses[1:] {
		s.sql(fmt.Sprintf(" JOIN word w%d ON w%[1]d.type = w0.type AND w%[1]d.object = w0.object", i+1))
	}
	s.sql(" WHERE w0.type = ").arg(kind)
	for i, clause := range clauses {
		column := fmt.Sprintf("w%d.word", i)
		for j, one := range clause {
			s.sql(map[bool]string{true: " AND (", false: " OR "}[j == 0])
			if one.Prefix {
				// "~" is greater than all characters of words.
				s.sql("(" + column + " >= ").arg(one.Text).sql(" AND " + column + " < ").arg(one.Text + "~").sql(")")
			} else {
				s.sql(column + " = ").arg(one.Text)
			}
		}
		s.sql(")")
	}
}

// grams writes a query for the objects whose names contain all texts. It reads all names of the
// type, because MariaDB has no index for parts of texts. It reads only the index object_name, not
// the rows. The result is always true.
func (d mysqlDialect) grams(s *statement, kind int64, texts []string) bool {
	s.sql("SELECT o.id FROM object o FORCE INDEX (object_name) WHERE o.type = ").arg(kind)
	for _, text := range texts {
		s.sql(" AND ")
		d.has(s, "o.name", text)
	}
	return true
}

func (mysqlDialect) ready(context.Context, connection) error { return nil }

// list writes the statement for the rows of a page. An inner query selects the rows without bodies,
// and the bodies of only these rows are joined. So the server sorts small rows.
func (d mysqlDialect) list(s *statement, p *plan) {
	s.sql("SELECT " + columns + ", " + d.exactBody() + " FROM (SELECT " + columns)
	d.from(s, p, p.fields)
	s.sql(p.orderBy(p.ordering()))
	s.page(p)
	s.sql(") o JOIN body b ON b.object = o.id" + p.orderBy(p.shown()))
}

func (d mysqlDialect) count(s *statement, p *plan) {
	s.counted(p, func() { d.from(s, p, p.fields) })
}

func (d mysqlDialect) named() string { return d.leading(&plan{index: byName}) }

// leading returns the table that the server reads first, for FROM. It has the alias that plan.alias
// returns, and a hint to use the index of the plan.
func (mysqlDialect) leading(p *plan) string {
	switch p.index {
	case byPair:
		return "label l FORCE INDEX (PRIMARY)"
	case byPairTime:
		return "label l FORCE INDEX (label_created)"
	case byOwner:
		return "object o FORCE INDEX (object_owner)"
	case byName:
		return "object o FORCE INDEX (object_name)"
	case byTime:
		return "object o FORCE INDEX (object_created)"
	case byCandidates:
		return "object o FORCE INDEX (PRIMARY)"
	case byTally:
		return "tally o"
	default:
		return "object o FORCE INDEX (object_key)"
	}
}

// from writes the FROM and WHERE clause of a plan. It writes (a, b) > (x, y) as comparisons of
// single columns. Only these become ranges of an index, which the server reads in order.
func (d mysqlDialect) from(s *statement, p *plan, bodies bool) {
	s.sql(" FROM " + d.leading(p))
	if p.alias() == "l" && (bodies || p.whole()) {
		s.sql(" STRAIGHT_JOIN object o ON o.id = l.object")
	}
	if bodies {
		s.sql(" STRAIGHT_JOIN body b ON b.object = o.id")
	}
	s.sql(" WHERE ")
	s.lead(p)
	s.columnsAfter(p.position(), p.ordering())
	cluster, namespace, name := p.alias()+".cluster", p.alias()+".namespace", p.alias()+".name"
	for i, one := range p.spans {
		if i == 0 {
			s.sql(" AND (")
		} else {
			s.sql(" OR ")
		}
		s.sql("(" + cluster + " = ").arg(one.cluster)
		switch {
		case p.narrow:
			s.sql(" AND " + namespace + " = ").arg(one.namespace)
			if one.afterOf != "" {
				s.sql(" AND " + name + " > ").arg(one.afterOf)
			}
		case one.afterOf != "":
			s.sql(" AND (" + namespace + " > ").arg(one.afterSpace).
				sql(" OR (" + namespace + " = ").arg(one.afterSpace).sql(" AND " + name + " > ").arg(one.afterOf).sql("))")
		}
		s.sql(")")
	}
	if len(p.spans) > 0 {
		s.sql(")")
	}
	s.and(p)
}

func (mysqlDialect) replace(_ string, columns []string) string {
	set := make([]string, len(columns))
	for i, c := range columns {
		set[i] = c + " = VALUES(" + c + ")"
	}
	return " ON DUPLICATE KEY UPDATE " + strings.Join(set, ", ")
}

func (mysqlDialect) accumulate(_, _, column string) string {
	return " ON DUPLICATE KEY UPDATE " + column + " = " + column + " + VALUES(" + column + ")"
}

func (mysqlDialect) lengths() []int                      { return []int{128, 16, 1} }
func (mysqlDialect) inverts() bool                       { return true }
func (mysqlDialect) into() string                        { return "INSERT INTO " }
func (mysqlDialect) rows(n int, columns []string) string { return values(n, columns) }
func (mysqlDialect) arguments(rows [][]any) []any        { return flat(rows) }

func (mysqlDialect) find(n int, key []string, columns ...string) string {
	return "SELECT " + strings.Join(slices.Concat(key, columns), ", ") + " FROM object FORCE INDEX (object_key) WHERE (" +
		strings.Join(key, ", ") + ") IN (" + strings.TrimPrefix(values(n, key), "VALUES ") + ")"
}

func (mysqlDialect) among(n int, column string) string { return keyed(n, []string{column}) }

func (mysqlDialect) snapshot() *sql.TxOptions {
	return &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true}
}

func (d mysqlDialect) update(n int, table string, same, columns []string, changed int) string {
	all := slices.Concat(same, columns)
	return "INSERT INTO " + table + " (" + strings.Join(all, ", ") + ") " + values(n, all) + d.replace(same[0], columns[:changed])
}

func (d mysqlDialect) overwrite(n int, table string, same, columns []string) string {
	return d.update(n, table, same, columns, len(columns))
}

func (mysqlDialect) remove(n int, table string, key []string) string {
	return "DELETE FROM " + table + " WHERE " + keyed(n, key)
}

func (mysqlDialect) bodyColumns() []string { return []string{"json", "exact"} }
func (mysqlDialect) exactBody() string     { return "coalesce(b.exact, b.json), b.packed" }
func (mysqlDialect) packs() byte           { return packedZlib }
func (mysqlDialect) ended(err error) bool {
	return errors.Is(err, driver.ErrBadConn) || errors.Is(err, mysql.ErrInvalidConn)
}

// body returns the values of the columns json and exact for a body. The error is errNoJSON for
// invalid JSON, as in databases with a column type for JSON. The columns are texts, because the
// JSON type of MariaDB also rejects valid JSON that is deeply nested.
func (mysqlDialect) body(b []byte) ([]any, error) {
	if !json.Valid(b) {
		return nil, errNoJSON
	}
	return searchable(b), nil
}

func (mysqlDialect) fault(err error) fault {
	e, ok := errors.AsType[*mysql.MySQLError](err)
	if !ok {
		switch {
		case errors.Is(err, mysql.ErrPktTooLarge):
			return faultRow
		case connectionLost(err), errors.Is(err, driver.ErrBadConn), errors.Is(err, mysql.ErrInvalidConn), errors.Is(err, io.EOF):
			return faultUnavailable
		}
		return faultOther
	}
	switch e.Number {
	case 1146, 1054: // a table or column is missing
		return faultDamaged
	case 1021, 1114:
		return faultFull
	case 1048, 1062, 1118, 1153, 1264, 1292, 1366, 1406, 3140, 3819, 4025:
		return faultRow
	// Errors of connections, permissions and locks, and of a server that stops or is read-only.
	case 1040, 1044, 1045, 1049, 1053, 1129, 1130, 1142, 1203, 1205, 1213, 1226, 1290, 1317, 1836, 1927, 3024, 3159, 4031:
		return faultUnavailable
	default:
		return faultOther
	}
}

func (mysqlDialect) version(ctx context.Context, db connection) (n int, err error) {
	var version string
	if err := db.QueryRowContext(ctx, "SELECT VERSION()").Scan(&version); err != nil {
		return 0, err
	}
	if strings.HasPrefix(version, "5.") {
		return 0, unfit("its server is of version " + version + "; use MySQL from 8.0, or MariaDB from 10.6 on")
	}
	return knownVersion(ctx, db, "SELECT count(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = '"+versionTable+"'")
}

func (mysqlDialect) setVersion(ctx context.Context, tx *sql.Tx, n int) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO schema_version VALUES (?)", n)
	return err
}

// migrations returns the statements of each version of the schema, from version 1 on. A released
// migration is never edited: a change is another migration. MySQL commits every statement of a
// migration separately. So a statement must have no effect when it runs again.
func (mysqlDialect) migrations() [][]string {
	return [][]string{
		{
			`CREATE TABLE IF NOT EXISTS cluster (
			name    varbinary(255) PRIMARY KEY CHECK (name <> ''),
			dropped integer NOT NULL) ENGINE = InnoDB`,
			`CREATE TABLE IF NOT EXISTS type (
			id       bigint PRIMARY KEY,
			grp      varbinary(255) NOT NULL,
			resource varbinary(255) NOT NULL CHECK (resource <> ''),
			UNIQUE (grp, resource)) ENGINE = InnoDB`,
			`CREATE TABLE IF NOT EXISTS served (
			cluster    varbinary(255) NOT NULL,
			type       bigint NOT NULL,
			api        longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
			checkpoint longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
			PRIMARY KEY (cluster, type)) ENGINE = InnoDB`,
			`CREATE TABLE IF NOT EXISTS object (
			id        bigint PRIMARY KEY,
			seq       bigint NOT NULL,
			type      bigint NOT NULL,
			cluster   varbinary(255) NOT NULL CHECK (cluster <> ''),
			namespace varbinary(255) NOT NULL,
			name      varbinary(512) NOT NULL CHECK (name <> ''),
			version   varbinary(255) NOT NULL,
			kind      varbinary(255) NOT NULL,
			uid       varbinary(255) NOT NULL,
			owner     varbinary(255) NOT NULL,
			created   bigint NOT NULL,
			rv        varbinary(255) NOT NULL,
			labels    longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
			note      longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
			UNIQUE KEY object_key (type, cluster, namespace, name),
			KEY object_owner (owner)) ENGINE = InnoDB`,
			`CREATE TABLE IF NOT EXISTS body (
			object bigint PRIMARY KEY,
			json   longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
			exact  longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin) ENGINE = InnoDB`,
			`CREATE TABLE IF NOT EXISTS label (
			type        bigint NOT NULL,
			label_key   varbinary(317) NOT NULL,
			label_value varbinary(255) NOT NULL,
			cluster     varbinary(255) NOT NULL,
			namespace   varbinary(255) NOT NULL,
			name        varbinary(512) NOT NULL,
			object      bigint NOT NULL,
			PRIMARY KEY (type, label_key, label_value, cluster, namespace, name)) ENGINE = InnoDB`,
			`CREATE TABLE IF NOT EXISTS epoch (id varchar(64) NOT NULL, seq bigint NOT NULL) ENGINE = InnoDB`,
			`INSERT INTO epoch SELECT uuid(), 0 FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM epoch)`,
		},
		slices.Concat(
			addColumns("object", "began bigint NOT NULL DEFAULT 0", "since bigint NOT NULL DEFAULT 0", "revisions bigint NOT NULL DEFAULT 0"),
			[]string{
				`CREATE TABLE IF NOT EXISTS revision (
			id     bigint PRIMARY KEY,
			object bigint NOT NULL,
			began  bigint NOT NULL,
			since  bigint NOT NULL,
			until  bigint NOT NULL,
			rv     varbinary(255) NOT NULL,
			whole  tinyint NOT NULL,
			body   longblob NOT NULL,
			KEY revision_object (object, id),
			KEY revision_until (until)) ENGINE = InnoDB`,
				`CREATE TABLE IF NOT EXISTS past (
			id        bigint PRIMARY KEY,
			type      bigint NOT NULL,
			cluster   varbinary(255) NOT NULL,
			namespace varbinary(255) NOT NULL,
			name      varbinary(512) NOT NULL,
			uid       varbinary(255) NOT NULL,
			ended     bigint NOT NULL,
			KEY past_key (type, cluster, namespace, name, id),
			KEY past_ended (ended)) ENGINE = InnoDB`,
			},
			addColumns("epoch", "history_bytes bigint NOT NULL DEFAULT 0", "kept_from bigint NOT NULL DEFAULT 0"),
			[]string{"UPDATE epoch SET kept_from = CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED) WHERE kept_from = 0"},
		), slices.Concat(
			addColumns("object", "terms longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL", "made bigint NOT NULL DEFAULT 0"),
			addColumns("label", "created bigint NOT NULL DEFAULT 0"),
			[]string{
				"UPDATE object SET terms = '[]' WHERE terms = ''",
				"UPDATE object SET made = since WHERE began = id",
				"UPDATE label l JOIN object o ON o.id = l.object SET l.created = o.created",
				"ALTER TABLE label MODIFY label_value varbinary(512) NOT NULL",
				`CREATE TABLE IF NOT EXISTS tally (
			type      bigint NOT NULL,
			cluster   varbinary(255) NOT NULL,
			namespace varbinary(255) NOT NULL,
			objects   bigint NOT NULL,
			PRIMARY KEY (type, cluster, namespace)) ENGINE = InnoDB`,
				"REPLACE INTO tally SELECT type, cluster, namespace, count(*) FROM object GROUP BY type, cluster, namespace",
			},
			addIndex("label", "label_created", "type, label_key, label_value, created, object"),
			addIndex("object", "object_name", "type, name, cluster, namespace"),
			addIndex("object", "object_created", "type, created, id"),
			addIndex("object", "object_made", "type, made"),
			addColumns("epoch", "terms integer NOT NULL DEFAULT 0"),
		), addColumns("body", "packed longblob"), append(addColumns("object", "prose bigint NOT NULL DEFAULT 0"),
			// No FULLTEXT: InnoDB keeps deleted entries until a user who may set the server's
			// variables optimizes the table.
			"CREATE TABLE IF NOT EXISTS prose (object bigint PRIMARY KEY, words blob NOT NULL) ENGINE = InnoDB",
			`CREATE TABLE IF NOT EXISTS word (
			type   bigint NOT NULL,
			word   varbinary(64) NOT NULL,
			object bigint NOT NULL,
			PRIMARY KEY (type, word, object)) ENGINE = InnoDB`,
		), addColumns("epoch", "claim bigint NOT NULL DEFAULT 0", "owner varchar(512) NOT NULL DEFAULT ''"),
		append(addColumns("epoch", "written bigint NOT NULL DEFAULT 0"), "UPDATE epoch SET written = seq"),
	}
}

// addColumns returns the statements of a migration that add columns to a table, unless the first of
// the columns exists. MySQL has no ADD COLUMN IF NOT EXISTS, and adds either all columns of a
// statement or none.
func addColumns(table string, columns ...string) []string {
	name, _, _ := strings.Cut(columns[0], " ")
	return unless("SELECT 1 FROM information_schema.columns WHERE table_schema = database() AND table_name = '"+table+"' AND column_name = '"+name+"'",
		"ALTER TABLE "+table+" ADD COLUMN "+strings.Join(columns, ", ADD COLUMN "))
}

// addIndex returns the statements of a migration that add an index to a table, unless an index of
// that name exists.
func addIndex(table, name, columns string) []string {
	return unless("SELECT 1 FROM information_schema.statistics WHERE table_schema = database() AND table_name = '"+table+"' AND index_name = '"+name+"'",
		"ALTER TABLE "+table+" ADD INDEX "+name+" ("+columns+")")
}

// unless returns statements that run the given statement only if the query returns no row. They
// must run on one connection, because they share a session variable.
func unless(query, statement string) []string {
	return []string{
		"SET @orrery = IF(EXISTS (" + query + "), 'DO 0', '" + strings.ReplaceAll(statement, "'", "''") + "')",
		"PREPARE orrery FROM @orrery",
		"EXECUTE orrery",
		"DEALLOCATE PREPARE orrery",
	}
}
