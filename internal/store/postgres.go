package store

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"

	"orrery.dev/orrery/internal/words"
)

// postgresDialect is the dialect of PostgreSQL 13 and later.
type postgresDialect struct{}

func (postgresDialect) parameter(n int) string { return "$" + strconv.Itoa(n) }

func (postgresDialect) in(s *statement, expression string, values []string) {
	if len(values) == 1 {
		s.sql(expression).sql(" = ").arg(values[0])
		return
	}
	s.sql(expression).sql(" = ANY (").arg(values).sql("::text[])")
}

func (postgresDialect) labelValue(s *statement, key string) {
	s.sql("(o.labels ->> ").arg(key).sql("::text)")
}

// labelCompare writes the condition that a label is a number greater, or less, than the bound. CASE
// fixes the order of the two tests. Otherwise the server could parse other labels as numbers, and
// fail.
func (d postgresDialect) labelCompare(s *statement, c labelCompare) {
	s.sql("CASE WHEN ")
	d.labelValue(s, c.key)
	s.sql(" ~ '^[0-9]+$' THEN ")
	d.labelValue(s, c.key)
	s.sql("::numeric <= " + largest + " AND ")
	d.labelValue(s, c.key)
	s.sql("::numeric").sql(operator(c)).arg(c.bound).sql("::bigint ELSE FALSE END")
}

func (postgresDialect) ids(s *statement, expression string, values []int64) {
	s.sql(expression).sql(" = ANY (").arg(values).sql("::bigint[])")
}

func (postgresDialect) element(n int) string {
	if n == 0 {
		return "b.json"
	}
	return "e" + strconv.Itoa(n) + ".value"
}

// stepsOfPostgres returns a path as the parameter of the operators #> and #>>: the keys, and the
// numbers of elements. The path must not lead through all elements of a list.
func stepsOfPostgres(path FieldPath) []string {
	out := make([]string, len(path))
	for i, step := range path {
		if out[i] = step.Key; step.Key == "" {
			out[i] = strconv.Itoa(step.Index)
		}
	}
	return out
}

func (d postgresDialect) text(s *statement, element int, path FieldPath) {
	of := d.element(element)
	if element == 0 {
		s.sql("(" + of + " #>> ").arg(stepsOfPostgres(path)).sql("::text[])")
		return
	}
	// In lists, only scalars are compared.
	s.sql("CASE WHEN json_typeof(" + of + " #> ").arg(stepsOfPostgres(path)).sql("::text[]) NOT IN ('object', 'array') THEN " + of + " #>> ").arg(stepsOfPostgres(path)).sql("::text[] END")
}

func (d postgresDialect) there(s *statement, element int, path FieldPath) {
	s.sql("coalesce(json_typeof(" + d.element(element) + " #> ").arg(stepsOfPostgres(path)).sql("::text[]), 'null') <> 'null'")
}

func (d postgresDialect) elements(s *statement, element int, path FieldPath) {
	of := d.element(element)
	s.sql("LATERAL json_array_elements(CASE json_typeof(" + of + " #> ").arg(stepsOfPostgres(path)).sql("::text[]) WHEN 'array' THEN " + of + " #> ").
		arg(stepsOfPostgres(path)).sql("::text[] ELSE '[]' END) e" + strconv.Itoa(element+1) + " (value)")
}

// pattern returns the LIKE pattern that matches all texts that contain text.
func pattern(text string) string {
	return "%" + strings.NewReplacer(`\`, `\\`, "%", `\%`, "_", `\_`).Replace(text) + "%"
}

func (postgresDialect) has(s *statement, column, text string) {
	s.sql(column + " LIKE ").arg(pattern(text)).sql("::text")
}

// fullText writes a query for the objects of a type that have one word of each clause, with the
// index prose_index. Words need no escaping within quotes, because they have only letters, digits
// and underscores.
func (postgresDialect) fullText(s *statement, kind int64, clauses [][]words.Word) {
	s.sql("SELECT w.object FROM prose w WHERE prose_words(w.words) @@ ").arg("'" + kindWord(kind) + "'" + joinClauses(clauses, " & ", " | ", "'", "':*")).sql("::text::tsquery")
}

// ready creates the index for parts of names at each start, if the extension pg_trgm exists or can
// be created. Without the extension it returns nil, and searches for parts of names are slower.
func (postgresDialect) ready(ctx context.Context, db connection) error {
	for _, text := range []string{"CREATE EXTENSION IF NOT EXISTS pg_trgm", "CREATE INDEX IF NOT EXISTS object_grams ON object USING gin (name gin_trgm_ops)"} {
		_, err := db.ExecContext(ctx, text)
		if e, ok := errors.AsType[*pgconn.PgError](err); ok && slices.Contains([]string{
			"42501",          // not allowed
			"0A000", "58P01", // not installed
			"42704", // in a schema outside of the search path
		}, e.Code) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("index the parts of names: %w", err)
		}
	}
	return nil
}

// word writes nothing and returns false, because PostgreSQL has no cheap search for a single word.
// Its index reads all entries of a word, regardless of the limit. fullText searches for several
// words together.
func (postgresDialect) word(*statement, int64, words.Word) bool { return false }

// named returns the table object for FROM, without a hint to use an index. PostgreSQL chooses the
// index by its statistics.
func (postgresDialect) named() string { return "object o" }

// grams writes a query for the objects whose names contain all texts of at least three characters.
// It returns false, and writes nothing, if no text is so long. The query uses the index of pg_trgm,
// if it exists. Otherwise the server reads the names of the type until there are enough results.
func (d postgresDialect) grams(s *statement, kind int64, texts []string) bool {
	long := slices.DeleteFunc(slices.Clone(texts), func(text string) bool { return utf8.RuneCountInString(text) < 3 })
	if len(long) == 0 {
		return false
	}
	s.sql("SELECT o.id FROM object o WHERE o.type = ").arg(kind)
	for _, text := range long {
		s.sql(" AND ")
		d.has(s, "o.name", text)
	}
	return true
}

// list writes the statement for the rows of a page. An inner query selects the rows without bodies,
// and the bodies of only these rows are joined. So the server sorts small rows.
func (d postgresDialect) list(s *statement, p *plan) {
	s.sql("SELECT " + columns + ", " + d.exactBody() + " FROM (SELECT " + columns)
	d.from(s, p, p.fields)
	if p.ordered() {
		ordering := p.ordering()
		if p.leads {
			ordering = p.shown()
		}
		s.sql(p.orderBy(ordering))
	}
	s.page(p)
	s.sql(") o JOIN body b ON b.object = o.id" + p.orderBy(p.shown()))
}

func (d postgresDialect) count(s *statement, p *plan) {
	s.counted(p, func() { d.from(s, p, p.fields) })
}

// from writes the FROM and WHERE clause of a plan. If spans (clusters or namespaces) lead, each
// span is read separately, up to the limit, and in their order. A nested loop over the rows of a
// function and a dependent subquery keeps that order.
func (postgresDialect) from(s *statement, p *plan, bodies bool) {
	s.sql(" FROM ")
	clusters, spaces, names := make([]string, len(p.spans)), make([]string, len(p.spans)), make([]string, len(p.spans))
	for i, one := range p.spans {
		clusters[i], spaces[i], names[i] = one.cluster, one.afterSpace, one.afterOf
		if p.narrow {
			spaces[i] = one.namespace
		}
	}
	if p.leads {
		of := columns
		switch {
		case p.spread && p.index == byTally:
			of = "o.cluster, o.namespace, o.objects"
		case p.index == byTally:
			of = "o.objects"
		case p.spread:
			of = columns
		case p.counting:
			of = "1"
		}
		s.sql("unnest(").arg(clusters).sql("::text[], ").arg(spaces).sql("::text[], ").arg(names).
			sql("::text[]) g (cluster, space, name) CROSS JOIN LATERAL (SELECT " + of + " FROM ")
	}
	switch {
	case p.index == byTally:
		s.sql("tally o")
	case p.alias() == "l" && (bodies || p.whole()):
		s.sql("label l JOIN object o ON o.id = l.object")
	case p.alias() == "l":
		s.sql("label l")
	default:
		s.sql("object o")
	}
	if bodies {
		s.sql(" JOIN body b ON b.object = o.id")
	}
	s.sql(" WHERE ")
	s.lead(p)
	a := p.alias()
	switch {
	case p.spans == nil:
	case p.leads:
		s.sql(" AND " + a + ".cluster = g.cluster")
		if p.narrow {
			s.sql(" AND " + a + ".namespace = g.space")
		}
		switch {
		case p.index == byTally:
		case p.narrow:
			s.sql(" AND " + a + ".name > g.name")
		default:
			s.sql(" AND (" + a + ".namespace, " + a + ".name) > (g.space, g.name)")
		}
	case p.narrow:
		s.sql(" AND (" + a + ".cluster, " + a + ".namespace) IN (SELECT cluster, space FROM unnest(").arg(clusters).sql("::text[], ").arg(spaces).sql("::text[]) AS spans (cluster, space))")
	default:
		s.sql(" AND " + a + ".cluster = ANY (").arg(clusters).sql("::text[])")
	}
	s.rowAfter(p)
	s.and(p)
	if !p.leads {
		return
	}
	if !p.counting {
		ordering := p.ordering()
		if p.order == ByKey {
			ordering = ordering[1:] // a span belongs to one cluster
		}
		s.sql(p.orderBy(ordering))
		if p.limit > 0 {
			s.sql(" LIMIT ").arg(p.limit + p.offset)
		}
	}
	s.sql(") o")
}

// shown returns the columns of the plan's order with the alias of the table object. The outer query
// of a page has that table, also if the inner one reads another table first.
func (p *plan) shown() []OrderColumn {
	shown := *p
	shown.index = byKey
	return shown.ordering()
}

func (postgresDialect) replace(key string, columns []string) string {
	return replaceExcluded(key, columns)
}

func (postgresDialect) accumulate(table, key, column string) string {
	return accumulateExcluded(table, key, column)
}

// lengths returns only anyLength. Each column of all rows is one parameter, an array, so that one
// statement serves any number of rows.
func (postgresDialect) lengths() []int { return []int{anyLength} }
func (postgresDialect) inverts() bool  { return false }

// columnTypes are the SQL types of the columns that are not text, by the name of the column.
var columnTypes = map[string]string{
	"id": "bigint", "seq": "bigint", "type": "bigint", "created": "bigint", "object": "bigint",
	"began": "bigint", "since": "bigint", "until": "bigint", "revisions": "bigint", "ended": "bigint", "whole": "bigint", "body": "bytea", "packed": "bytea",
	"objects": "bigint", "made": "bigint", "prose": "bigint",
}

// unnested returns SQL for FROM: a table g with these columns. Its rows come from the parameters of
// the statement from $1 on, one array for each column.
func unnested(columns []string) string {
	parameters := make([]string, len(columns))
	for i, c := range columns {
		parameters[i] = fmt.Sprintf("$%d::%s[]", i+1, cmp.Or(columnTypes[c], "text"))
	}
	return "unnest(" + strings.Join(parameters, ", ") + ") g (" + strings.Join(columns, ", ") + ")"
}

// same returns the condition that a row of the table has the key of a row of g, the table that
// unnested writes. key has the columns of the key.
func same(table string, key []string) string {
	out := make([]string, len(key))
	for i, c := range key {
		out[i] = table + "." + c + " = g." + c
	}
	return strings.Join(out, " AND ")
}

func (postgresDialect) into() string { return "INSERT INTO " }
func (postgresDialect) rows(_ int, columns []string) string {
	selected := make([]string, len(columns))
	for i, c := range columns {
		switch selected[i] = "g." + c; c {
		case "labels":
			selected[i] += "::jsonb"
		case "json":
			selected[i] += "::json"
		}
	}
	return "SELECT " + strings.Join(selected, ", ") + " FROM " + unnested(columns)
}

// arguments returns the parameters for rows: one array for each column. rows must not be empty. A
// column with only NULL becomes an array of text.
func (postgresDialect) arguments(rows [][]any) []any {
	args := make([]any, len(rows[0]))
	for i := range args {
		var some any // the first value that is not NULL
		for n := 0; n < len(rows) && some == nil; n++ {
			some = rows[n][i]
		}
		switch some.(type) {
		case int64:
			args[i] = column[int64](rows, i)
		case []byte:
			args[i] = column[[]byte](rows, i)
		default:
			args[i] = column[string](rows, i)
		}
	}
	return args
}

// column returns the values of column i of all rows, as pointers. NULL, and a value of another type
// than T, is nil.
func column[T any](rows [][]any, i int) []*T {
	out := make([]*T, len(rows))
	for n, row := range rows {
		if v, ok := row[i].(T); ok {
			out[n] = &v
		}
	}
	return out
}

// find returns a statement that reads the key and columns of the objects with the given keys. It
// looks up each key separately. So it does not depend on the planner's estimates of table sizes.
func (postgresDialect) find(_ int, key []string, columns ...string) string {
	all := strings.Join(slices.Concat(key, columns), ", ")
	found := "found." + strings.Join(slices.Concat(key, columns), ", found.")
	return "SELECT " + found + " FROM " + unnested(key) + " CROSS JOIN LATERAL (SELECT " + all + " FROM object o WHERE " + same("o", key) + " LIMIT 1) found"
}

func (postgresDialect) among(_ int, column string) string { return column + " = ANY ($1::bigint[])" }

func (postgresDialect) snapshot() *sql.TxOptions {
	return &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true}
}

func (d postgresDialect) update(n int, table string, same, columns []string, changed int) string {
	all := slices.Concat(same, columns)
	return "INSERT INTO " + table + " (" + strings.Join(all, ", ") + ") " + d.rows(n, all) + d.replace(same[0], columns[:changed])
}

func (d postgresDialect) overwrite(n int, table string, same, columns []string) string {
	return d.update(n, table, same, columns, len(columns))
}

func (postgresDialect) remove(_ int, table string, key []string) string {
	return "DELETE FROM " + table + " o USING " + unnested(key) + " WHERE " + same("o", key)
}

func (postgresDialect) bodyColumns() []string { return []string{"json", "exact"} }
func (postgresDialect) exactBody() string     { return "coalesce(b.exact, b.json::text), b.packed" }
func (postgresDialect) packs() byte           { return 0 } // TOAST compresses
func (postgresDialect) ended(err error) bool  { return errors.Is(err, driver.ErrBadConn) }

func (postgresDialect) body(b []byte) ([]any, error) { return searchable(b), nil }

// searchable returns the values of the columns json and exact for a body. json is what the database
// can search. exact is the body as it was written, or nil if json is equal. PostgreSQL stores any
// JSON, but a field fails with characters that it cannot convert to text. MariaDB finds no value in
// such a field.
func searchable(b []byte) []any {
	if readable := readable(string(b)); readable != string(b) {
		return []any{readable, string(b)}
	}
	return []any{string(b), nil}
}

// readable returns JSON in which each escaped NUL or surrogate is replaced by an escaped U+FFFD.
// JSON without them is returned unchanged.
func readable(json string) string {
	if !strings.Contains(json, `\u`) {
		return json
	}
	var out strings.Builder
	for i := 0; i < len(json); i++ {
		if json[i] != '\\' || i+1 == len(json) {
			out.WriteByte(json[i])
			continue
		}
		if n := i + 6; json[i+1] == 'u' && n <= len(json) {
			if code, err := strconv.ParseUint(json[i+2:n], 16, 16); err == nil && (code == 0 || code >= 0xd800 && code < 0xe000) {
				out.WriteString(`\ufffd`)
				i = n - 1
				continue
			}
		}
		out.WriteString(json[i : i+2])
		i++
	}
	return out.String()
}

func (postgresDialect) fault(err error) fault {
	e, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		var refused *pgconn.ConnectError
		if errors.As(err, &refused) || connectionLost(err) || errors.Is(err, driver.ErrBadConn) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return faultUnavailable
		}
		return faultOther
	}
	switch {
	case e.Code == "42P01", e.Code == "42703": // a table or column is missing
		return faultDamaged
	case e.Code == "53100":
		return faultFull
	case strings.HasPrefix(e.Code, "22"), strings.HasPrefix(e.Code, "23"), strings.HasPrefix(e.Code, "54"):
		return faultRow
	case strings.HasPrefix(e.Code, "08"), strings.HasPrefix(e.Code, "28"), strings.HasPrefix(e.Code, "3D"), strings.HasPrefix(e.Code, "25"),
		strings.HasPrefix(e.Code, "40"), strings.HasPrefix(e.Code, "42501"), strings.HasPrefix(e.Code, "5"):
		return faultUnavailable
	default:
		return faultOther
	}
}

func (postgresDialect) version(ctx context.Context, db connection) (n int, err error) {
	var encoding string
	if err := db.QueryRowContext(ctx, "SHOW server_encoding").Scan(&encoding); err != nil {
		return 0, err
	}
	if encoding != "UTF8" {
		return 0, unfit("its encoding is " + encoding + "; create one with ENCODING 'UTF8' TEMPLATE template0")
	}
	return knownVersion(ctx, db, "SELECT count(*) FROM pg_catalog.pg_class WHERE relname = '"+versionTable+
		"' AND relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = current_schema())")
}

// knownVersion reads the version of the database's schema. 0 means that no migration has run. there
// is a query that counts the tables named schema_version. If the count is 0, knownVersion creates
// that table.
func knownVersion(ctx context.Context, db connection, there string) (int, error) {
	var n int
	if err := db.QueryRowContext(ctx, there).Scan(&n); err != nil {
		return 0, err
	}
	if n == 0 {
		if _, err := db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS schema_version (version integer NOT NULL)"); err != nil {
			return 0, err
		}
	}
	return greatestVersion(ctx, db)
}

func greatestVersion(ctx context.Context, db connection) (n int, err error) {
	err = db.QueryRowContext(ctx, "SELECT coalesce(max(version), 0) FROM schema_version").Scan(&n)
	return n, err
}

func (postgresDialect) setVersion(ctx context.Context, tx *sql.Tx, n int) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO schema_version VALUES ($1)", n)
	return err
}

// migrations returns the statements of each version of the schema, from version 1 on. A released
// migration is never edited, only followed by another one.
func (postgresDialect) migrations() [][]string {
	return [][]string{{
		`CREATE TABLE cluster (
			name    text COLLATE "C" PRIMARY KEY CHECK (name <> ''),
			dropped integer NOT NULL)`,
		`CREATE TABLE type (
			id       bigint PRIMARY KEY,
			grp      text COLLATE "C" NOT NULL,
			resource text COLLATE "C" NOT NULL CHECK (resource <> ''),
			UNIQUE (grp, resource))`,
		`CREATE TABLE served (
			cluster    text COLLATE "C" NOT NULL,
			type       bigint NOT NULL,
			api        text NOT NULL,
			checkpoint text,
			PRIMARY KEY (cluster, type))`,
		`CREATE TABLE object (
			id        bigint PRIMARY KEY,
			seq       bigint NOT NULL,
			type      bigint NOT NULL,
			cluster   text COLLATE "C" NOT NULL CHECK (cluster <> ''),
			namespace text COLLATE "C" NOT NULL,
			name      text COLLATE "C" NOT NULL CHECK (name <> ''),
			version   text COLLATE "C" NOT NULL,
			kind      text COLLATE "C" NOT NULL,
			uid       text COLLATE "C" NOT NULL,
			owner     text COLLATE "C" NOT NULL,
			created   bigint NOT NULL,
			rv        text COLLATE "C" NOT NULL,
			labels    jsonb NOT NULL,
			note      text)`,
		`CREATE UNIQUE INDEX object_key ON object (type, cluster, namespace, name)`,
		`CREATE INDEX object_owner ON object (owner) WHERE owner <> ''`,
		`CREATE TABLE body (
			object bigint PRIMARY KEY,
			"json" json NOT NULL,
			exact  text)`,
		`CREATE TABLE label (
			type        bigint NOT NULL,
			label_key   text COLLATE "C" NOT NULL,
			label_value text COLLATE "C" NOT NULL,
			cluster     text COLLATE "C" NOT NULL,
			namespace   text COLLATE "C" NOT NULL,
			name        text COLLATE "C" NOT NULL,
			object      bigint NOT NULL,
			PRIMARY KEY (type, label_key, label_value, cluster, namespace, name))`,
		`CREATE TABLE epoch (id text NOT NULL, seq bigint NOT NULL)`,
		`INSERT INTO epoch VALUES (gen_random_uuid()::text, 0)`,
	}, {
		"ALTER TABLE object ADD COLUMN began bigint NOT NULL DEFAULT 0, ADD COLUMN since bigint NOT NULL DEFAULT 0, ADD COLUMN revisions bigint NOT NULL DEFAULT 0",
		`CREATE TABLE revision (
			id     bigint PRIMARY KEY,
			object bigint NOT NULL,
			began  bigint NOT NULL,
			since  bigint NOT NULL,
			until  bigint NOT NULL,
			rv     text COLLATE "C" NOT NULL,
			whole  smallint NOT NULL,
			body   bytea NOT NULL)`,
		"ALTER TABLE revision ALTER COLUMN body SET STORAGE EXTERNAL",
		"CREATE INDEX revision_object ON revision (object, id)",
		"CREATE INDEX revision_until ON revision (until)",
		`CREATE TABLE past (
			id        bigint PRIMARY KEY,
			type      bigint NOT NULL,
			cluster   text COLLATE "C" NOT NULL,
			namespace text COLLATE "C" NOT NULL,
			name      text COLLATE "C" NOT NULL,
			uid       text COLLATE "C" NOT NULL,
			ended     bigint NOT NULL)`,
		"CREATE INDEX past_key ON past (type, cluster, namespace, name, id)",
		"CREATE INDEX past_ended ON past (ended) WHERE ended > 0",
		"ALTER TABLE epoch ADD COLUMN history_bytes bigint NOT NULL DEFAULT 0, ADD COLUMN kept_from bigint NOT NULL DEFAULT 0",
		"UPDATE epoch SET kept_from = (extract(epoch FROM clock_timestamp()) * 1000)::bigint",
	}, {
		// The fillfactor leaves space beside a row for its next state. Then an update need not write the
		// indexes of the table.
		"ALTER TABLE object ADD COLUMN terms text NOT NULL DEFAULT '[]', ADD COLUMN made bigint NOT NULL DEFAULT 0, SET (fillfactor = 80)",
		"UPDATE object SET made = since WHERE began = id",
		"ALTER TABLE label ADD COLUMN created bigint NOT NULL DEFAULT 0",
		"UPDATE label SET created = o.created FROM object o WHERE o.id = label.object",
		"CREATE INDEX label_created ON label (type, label_key, label_value, created, object) WHERE label_key < '.'",
		"CREATE INDEX object_name ON object (type, name, cluster, namespace)",
		"CREATE INDEX object_created ON object (type, created, id)",
		"CREATE INDEX object_made ON object (type, made)",
		`CREATE TABLE tally (
			type      bigint NOT NULL,
			cluster   text COLLATE "C" NOT NULL,
			namespace text COLLATE "C" NOT NULL,
			objects   bigint NOT NULL,
			PRIMARY KEY (type, cluster, namespace))`,
		"INSERT INTO tally SELECT type, cluster, namespace, count(*) FROM object GROUP BY type, cluster, namespace",
		"ALTER TABLE epoch ADD COLUMN terms integer NOT NULL DEFAULT 0",
	}, {
		"ALTER TABLE body ADD COLUMN packed bytea",
		// packed has encrypted data, which cannot be compressed.
		"ALTER TABLE body ALTER COLUMN packed SET STORAGE EXTERNAL",
	}, {
		"ALTER TABLE object ADD COLUMN prose bigint NOT NULL DEFAULT 0",
		`CREATE TABLE prose (object bigint PRIMARY KEY, words text COLLATE "C" NOT NULL)`,
		// The high cost and the language, which is not inlined, keep the planner from computing
		// the words of every row.
		`CREATE OR REPLACE FUNCTION prose_words(words text) RETURNS tsvector LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE COST 1000 AS
			$$BEGIN RETURN pg_catalog.array_to_tsvector(pg_catalog.array_remove(pg_catalog.string_to_array(pg_catalog.btrim(words), ' '), '.')); END$$`,
		"CREATE INDEX prose_index ON prose USING gin (prose_words(words))",
	}, {
		// The writer: claim is the sequence of the owner's claim; 0: none.
		`ALTER TABLE epoch ADD COLUMN claim bigint NOT NULL DEFAULT 0, ADD COLUMN owner text NOT NULL DEFAULT ''`,
	}, {
		// written is the sequence up to which owners wrote. A greater seq comes from a writer
		// that did not claim the database.
		"ALTER TABLE epoch ADD COLUMN written bigint NOT NULL DEFAULT 0",
		"UPDATE epoch SET written = seq",
	}}
}
