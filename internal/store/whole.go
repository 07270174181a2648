package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// The schema of a server's database is created and changed under a lock, by one server at a time.
// First the catalogue is read on the same connection. If tables or columns of the schema's
// version are missing, the schema is incomplete. Its tables are then renamed, and new ones are
// created. Tables of the same names that another program created are never renamed. Missing
// permissions, a search_path to another schema and a standby do not count as damage.

// connection is a database, or one connection of it, for migrations.
type connection interface {
	querier
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
}

// columnsOf are the columns that the migration with this version adds to a table. The first entry
// of a table means that the migration creates the table.
type columnsOf struct {
	version int
	table   string
	columns []string
}

// versionTable is the name of the table with the numbers of the migrations that ran.
const versionTable = "schema_version"

// serverSchema returns the tables and columns of a server's database, in the order of the
// migrations that add them.
func serverSchema(d dialect) []columnsOf {
	is := func(version int, table, columns string) columnsOf {
		return columnsOf{version, table, strings.Fields(columns)}
	}
	out := []columnsOf{
		is(0, versionTable, "version"),
		is(1, "cluster", "name dropped"),
		is(1, "type", "id grp resource"),
		is(1, "served", "cluster type api checkpoint"),
		is(1, "object", "id seq type cluster namespace name version kind uid owner created rv labels note"),
		is(1, "body", "object json exact"),
		is(1, "label", "type label_key label_value cluster namespace name object"),
		is(1, "epoch", "id seq"),
		is(2, "object", "began since revisions"),
		is(2, "revision", "id object began since until rv whole body"),
		is(2, "past", "id type cluster namespace name uid ended"),
		is(2, "epoch", "history_bytes kept_from"),
		is(3, "object", "terms made"),
		is(3, "label", "created"),
		is(3, "tally", "type cluster namespace objects"),
		is(3, "epoch", "terms"),
		is(4, "body", "packed"),
		is(5, "object", "prose"),
		is(5, "prose", "object words"),
		is(6, "epoch", "claim owner"),
		is(7, "epoch", "written"),
	}
	if d.inverts() {
		out = append(out, is(5, "word", "type word object"))
	}
	return out
}

// schemaState is what examine found about the tables of a database: which are missing, and which
// belong to another program.
type schemaState struct {
	foreign []string // tables of another program with names of the mirror's tables
	missing []string // missing tables and columns; nil: the schema is complete, or not created yet
	ours    []string // existing tables of the mirror
}

// examine compares the tables of a database with schema, the tables and columns that each migration
// adds. found are the columns of existing tables, by table. version is the last migration that is
// finished; 0: none is. resumes means that an interrupted first migration can continue, so its
// tables are not incomplete. It is pure.
func examine(found map[string][]string, version int, schema []columnsOf, resumes bool) (c schemaState) {
	made := map[string]bool{}
	for _, want := range schema {
		has, there := found[want.table]
		if !made[want.table] {
			made[want.table] = true
			common := 0
			for _, column := range want.columns {
				if slices.Contains(has, column) {
					common++
				}
			}
			switch {
			case !there:
			case 2*common <= len(want.columns), want.table == versionTable && len(has) != 1:
				c.foreign = append(c.foreign, want.table)
			default:
				c.ours = append(c.ours, want.table)
			}
		}
		if want.version > version {
			continue
		}
		if !there {
			c.missing = append(c.missing, want.table)
			continue
		}
		for _, column := range want.columns {
			if !slices.Contains(has, column) {
				c.missing = append(c.missing, want.table+"."+column)
			}
		}
	}
	if version > 0 {
		return c
	}
	// No migration is finished. Either no table of the mirror exists, or a first migration was
	// interrupted and continues.
	begun := slices.ContainsFunc(c.ours, func(table string) bool { return table != versionTable })
	later := slices.ContainsFunc(schema, func(of columnsOf) bool {
		return of.version > 1 && made[of.table] && firstOf(schema, of.table) > 1 && found[of.table] != nil
	})
	if !begun || resumes && len(c.missing) == 0 && !later {
		c.missing = nil
	} else if len(c.missing) == 0 {
		c.missing = []string{"a row of " + versionTable}
	}
	return c
}

// firstOf returns the version of the migration that creates a table. The table must be in schema.
func firstOf(schema []columnsOf, table string) int {
	i := slices.IndexFunc(schema, func(of columnsOf) bool { return of.table == table })
	return schema[i].version
}

// catalogued is the dialect of a database server. Unlike a file, a server can have tables of other
// programs, several servers that change the schema, and users without permissions.
type catalogued interface {
	dialect
	// lock prevents other servers from changing the schema, until unlock or the end of the connection.
	// If another server holds the lock for longer than patience, it returns an error.
	lock(ctx context.Context, conn *sql.Conn, patience time.Duration) (unlock func(ctx context.Context) error, err error)
	// fits returns an error if the database cannot be used at present and is not damaged, such as a
	// standby; nil: it can be used. left is the epoch (ID) of the database when this store last used
	// it; "": unknown.
	fits(ctx context.Context, conn *sql.Conn, left string) error
	// catalogue returns the columns of the named tables, by table. Tables that do not exist are left
	// out.
	catalogue(ctx context.Context, conn *sql.Conn, names []string) (map[string][]string, error)
	// confirms returns an error if one of the missing tables or columns exists after all, and only the
	// user lacks permission to see it.
	confirms(ctx context.Context, conn *sql.Conn, missing []string) error
	// rename appends a suffix to the names of the tables and of their indexes: to all of them, or to
	// none.
	rename(ctx context.Context, conn *sql.Conn, tables []string, suffix string) error
	// resumes reports whether a migration that was interrupted leaves some of its tables behind, and
	// can continue.
	resumes() bool
	// denied reports whether an error means that the user lacks permissions.
	denied(err error) bool
}

// upgrade creates or updates the schema of a database for the store that c describes. If tables of
// a server's database are missing, it renames the others, creates new ones and sets d.aside. The
// error is an errUnfit if tables of another program have the names of the mirror's tables. It is an
// errNewer for a newer schema.
func (d *database) upgrade(ctx context.Context, c claimant) (err error) {
	dialect, ok := d.dialect.(catalogued)
	if !ok {
		if err := migrate(ctx, d.dialect, d.write); err != nil {
			return err
		}
		return d.dialect.ready(ctx, d.write)
	}
	conn, err := d.write.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if err := dialect.fits(ctx, conn, c.left.epoch); err != nil {
		return err
	}
	unlock, err := dialect.lock(ctx, conn, c.patience)
	if err != nil {
		return fmt.Errorf("wait for another server that makes or changes the mirror's tables: %w", err)
	}
	err = d.upgradeLocked(ctx, dialect, conn)
	if dialect.denied(err) {
		err = fmt.Errorf("%w; this is no damage: let the user of the DSN own the database, or the schema", err)
	}
	free, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.patience)
	defer cancel()
	return errors.Join(err, unlock(free))
}

// upgradeLocked does the work of upgrade for a database on a server. The caller holds the lock of
// dialect. Tables of another program are an error, and so are tables that only seem to be missing.
// For any other incomplete schema, the existing tables are renamed, and d.aside names what was
// missing. After the migrations, it checks that the schema is complete.
func (d *database) upgradeLocked(ctx context.Context, dialect catalogued, conn *sql.Conn) error {
	now, err := d.examined(ctx, dialect, conn)
	if err != nil {
		return err
	}
	if len(now.foreign) > 0 {
		return unfit("it has tables of another program where the mirror's would be: " + strings.Join(now.foreign, ", ") + "; give the mirror a database, or a schema, of its own")
	}
	if len(now.missing) > 0 {
		if err := dialect.confirms(ctx, conn, now.missing); err != nil {
			return err
		}
		suffix := "_aside_" + time.Now().UTC().Format("20060102t150405")
		if err := dialect.rename(ctx, conn, now.ours, suffix); err != nil {
			return fmt.Errorf("set tables aside, of which is missing %s: %w", strings.Join(now.missing, ", "), err)
		}
		d.aside = &leftover{now.missing, suffix}
	}
	if err := migrate(ctx, dialect, conn); err != nil {
		return err
	}
	if err := dialect.ready(ctx, conn); err != nil {
		return err
	}
	if now, err = d.examined(ctx, dialect, conn); err == nil && len(now.missing) > 0 {
		err = fmt.Errorf("the tables were made, and there is missing %s", strings.Join(now.missing, ", "))
	}
	return err
}

// leftover describes an incomplete schema whose tables were renamed: what was missing, and the
// suffix of the renamed tables.
type leftover struct {
	missing []string
	suffix  string // of the tables
}

// examined reads the tables of the database and the version of its schema, and returns the result
// of examine. It also checks that the table epoch has its row. For a newer schema it returns the
// zero value, and migrate reports that.
func (d *database) examined(ctx context.Context, dialect catalogued, conn *sql.Conn) (c schemaState, err error) {
	schema := serverSchema(dialect)
	var names []string
	for _, of := range schema {
		if !slices.Contains(names, of.table) {
			names = append(names, of.table)
		}
	}
	found, err := dialect.catalogue(ctx, conn, names)
	if err != nil {
		return c, fmt.Errorf("read the catalogue: %w", err)
	}
	version := 0
	if slices.Equal(found[versionTable], []string{"version"}) {
		if version, err = greatestVersion(ctx, conn); err != nil {
			return c, fmt.Errorf("read schema version: %w", err)
		}
	}
	if version > len(dialect.migrations()) {
		return c, nil // migrate reports a newer version
	}
	if c = examine(found, version, schema, dialect.resumes()); version == 0 || len(c.missing) > 0 || len(c.foreign) > 0 {
		return c, nil
	}
	var rows int
	if err := conn.QueryRowContext(ctx, "SELECT count(*) FROM epoch").Scan(&rows); err != nil {
		return c, fmt.Errorf("read the epoch: %w", err)
	}
	if rows != 1 {
		c.missing = []string{"the row of epoch"}
	}
	return c, nil
}

func (postgresDialect) lock(ctx context.Context, conn *sql.Conn, patience time.Duration) (func(context.Context) error, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var schema string
	if err := conn.QueryRowContext(ctx, "SELECT current_schema()").Scan(&schema); err != nil {
		return nil, err
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte("orrery schema " + schema)) // a hash takes everything
	key := int64(h.Sum64() & math.MaxInt64)
	if _, err := conn.ExecContext(ctx, "SELECT pg_advisory_lock($1)", key); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		_, err := conn.ExecContext(ctx, "SELECT pg_advisory_unlock($1)", key)
		return err
	}, nil
}

func (postgresDialect) fits(ctx context.Context, conn *sql.Conn, left string) error {
	var standby bool
	var readOnly, path string
	var schema sql.NullString
	if err := conn.QueryRowContext(ctx, "SELECT pg_is_in_recovery(), current_setting('transaction_read_only'), current_schema(), current_setting('search_path')").
		Scan(&standby, &readOnly, &schema, &path); err != nil {
		return err
	}
	switch {
	case standby:
		return errors.New("the server is a standby, which takes no writes; name the primary in the DSN, or several hosts with target_session_attrs=read-write")
	case readOnly == "on":
		return errors.New("the server takes no writes of this user: default_transaction_read_only is on")
	case !schema.Valid:
		return fmt.Errorf("search_path is %s, and no schema of it is there, or the user may not use it; correct search_path, or create the schema", path)
	case left == "":
		return nil
	}
	return elsewhere(ctx, conn, left, schema.String, path)
}

// elsewhere returns an error if the mirror's tables are in another schema of PostgreSQL than here,
// so that search_path must be corrected. It finds them by the table epoch with the ID left. here is
// the first schema of search_path (path). If here has a table epoch, the result is nil.
func elsewhere(ctx context.Context, conn *sql.Conn, left, here, path string) error {
	var schemas []string
	if err := each(ctx, conn, `SELECT n.nspname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relname = 'epoch' AND c.relkind = 'r' AND has_table_privilege(c.oid, 'SELECT') AND has_schema_privilege(n.oid, 'USAGE') ORDER BY 1`, func(rows *sql.Rows) error {
		var schema string
		err := rows.Scan(&schema)
		schemas = append(schemas, schema)
		return err
	}); err != nil {
		return err
	}
	if slices.Contains(schemas, here) {
		return nil
	}
	for _, schema := range schemas {
		var n int
		err := conn.QueryRowContext(ctx, "SELECT count(*) FROM "+pgx.Identifier{schema, "epoch"}.Sanitize()+" e WHERE to_jsonb(e) ->> 'id' = $1", left).Scan(&n)
		if err != nil {
			return err
		}
		if n > 0 {
			return fmt.Errorf("the mirror's tables are in schema %s, and search_path, which is %s, leads to schema %s; correct search_path", schema, path, here)
		}
	}
	return nil
}

// catalogue returns the columns of the named tables, by table. It does not read information_schema,
// which hides objects without permissions.
func (postgresDialect) catalogue(ctx context.Context, conn *sql.Conn, names []string) (map[string][]string, error) {
	return tables(ctx, conn, `SELECT c.relname, a.attname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid
		WHERE c.relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = current_schema()) AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
		AND c.relname = ANY ($1::text[]) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY 1, a.attnum`, names)
}

// tables runs a query whose rows have a table and a column, and returns the columns by table.
func tables(ctx context.Context, conn *sql.Conn, query string, args ...any) (map[string][]string, error) {
	found := map[string][]string{}
	err := each(ctx, conn, query, func(rows *sql.Rows) error {
		var table, column string
		err := rows.Scan(&table, &column)
		found[table] = append(found[table], column)
		return err
	}, args...)
	return found, err
}

func (postgresDialect) confirms(context.Context, *sql.Conn, []string) error { return nil }
func (postgresDialect) resumes() bool                                       { return false }

func (postgresDialect) denied(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && e.Code == "42501"
}

// rename appends a suffix to the names of the tables, in one transaction. It also renames their
// indexes, because the new tables need the names of these.
func (d postgresDialect) rename(ctx context.Context, conn *sql.Conn, tables []string, suffix string) error {
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	statements := make([]string, 0, 4*len(tables))
	for _, table := range tables {
		statements = append(statements, "ALTER TABLE "+pgx.Identifier{table}.Sanitize()+" RENAME TO "+pgx.Identifier{table + suffix}.Sanitize())
	}
	err = each(ctx, tx, `SELECT i.relname FROM pg_catalog.pg_index x JOIN pg_catalog.pg_class i ON i.oid = x.indexrelid JOIN pg_catalog.pg_class t ON t.oid = x.indrelid
		WHERE t.relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = current_schema()) AND t.relname = ANY ($1::text[]) ORDER BY 1`, func(rows *sql.Rows) error {
		var index string
		err := rows.Scan(&index)
		statements = append(statements, "ALTER INDEX "+pgx.Identifier{index}.Sanitize()+" RENAME TO "+pgx.Identifier{index + suffix}.Sanitize())
		return err
	}, tables)
	for _, statement := range statements {
		if err == nil {
			_, err = tx.ExecContext(ctx, statement)
		}
	}
	if err != nil {
		return errors.Join(err, rollback(d, tx))
	}
	return tx.Commit()
}

// schemaLock is an SQL expression for the name of the lock on changes of the schema. It contains a
// hash of the database's name, because all databases of a server share one namespace of locks.
const schemaLock = "CONCAT('orrery-schema-', MD5(DATABASE()))"

func (mysqlDialect) lock(ctx context.Context, conn *sql.Conn, patience time.Duration) (func(context.Context) error, error) {
	var got sql.NullInt64
	if err := conn.QueryRowContext(ctx, "SELECT GET_LOCK("+schemaLock+", ?)", int64(math.Ceil(patience.Seconds()))).Scan(&got); err != nil {
		return nil, err
	}
	if got.Int64 != 1 {
		return nil, fmt.Errorf("it is still at it after %s", patience)
	}
	return func(ctx context.Context) error {
		return conn.QueryRowContext(ctx, "SELECT RELEASE_LOCK("+schemaLock+")").Scan(&got)
	}, nil
}

func (mysqlDialect) fits(context.Context, *sql.Conn, string) error { return nil }

func (mysqlDialect) catalogue(ctx context.Context, conn *sql.Conn, names []string) (map[string][]string, error) {
	args := make([]any, len(names))
	for i, name := range names {
		args[i] = name
	}
	return tables(ctx, conn, "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name IN (?"+
		strings.Repeat(", ?", len(names)-1)+") ORDER BY table_name, ordinal_position", args...)
}

// confirms queries each table and column that seems to be missing, because the catalogue hides
// objects without permissions. It returns an error if one of them is not missing but cannot be
// read. Entries of missing that describe a row are skipped.
func (d mysqlDialect) confirms(ctx context.Context, conn *sql.Conn, missing []string) error {
	for _, one := range missing {
		table, column, _ := strings.Cut(one, ".")
		if strings.Contains(one, " ") {
			continue // a row is missing, not a table
		}
		if column == "" {
			column = "1"
		}
		err := each(ctx, conn, "SELECT "+column+" FROM "+table+" LIMIT 0", func(*sql.Rows) error { return nil })
		if err != nil && d.fault(err) != faultDamaged {
			return fmt.Errorf("look for %s: %w", one, err)
		}
	}
	return nil
}

func (mysqlDialect) resumes() bool { return true }

func (mysqlDialect) denied(err error) bool {
	e, ok := errors.AsType[*mysql.MySQLError](err)
	return ok && slices.Contains([]uint16{1044, 1142, 1143, 1227}, e.Number)
}

// rename appends a suffix to the names of the tables. It uses one statement, which renames all
// tables or none.
func (mysqlDialect) rename(ctx context.Context, conn *sql.Conn, tables []string, suffix string) error {
	pairs := make([]string, len(tables))
	for i, table := range tables {
		pairs[i] = "`" + table + "` TO `" + table + suffix + "`"
	}
	_, err := conn.ExecContext(ctx, "RENAME TABLE "+strings.Join(pairs, ", "))
	return err
}
