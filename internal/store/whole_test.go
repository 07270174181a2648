package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"orrery.dev/orrery/internal/testenv"
)

func TestExamine(t *testing.T) {
	schema := serverSchema(postgresDialect{})
	tables := func(version int, without ...string) map[string][]string {
		found := map[string][]string{}
		for _, of := range schema {
			if of.version <= version {
				found[of.table] = append(found[of.table], of.columns...)
			}
		}
		for _, one := range without {
			table, column, _ := strings.Cut(one, ".")
			if column == "" {
				delete(found, table)
				continue
			}
			var left []string
			for _, c := range found[table] {
				if c != column {
					left = append(left, c)
				}
			}
			found[table] = left
		}
		return found
	}
	with := func(found map[string][]string, table string, columns ...string) map[string][]string {
		found[table] = columns
		return found
	}
	begun := map[string][]string{versionTable: {"version"}, "cluster": {"name", "dropped"}}
	for name, tc := range map[string]struct {
		found   map[string][]string
		version int
		resumes bool
		want    schemaState
	}{
		"Empty":               {map[string][]string{}, 0, false, schemaState{}},
		"OnlyTheVersionTable": {map[string][]string{versionTable: {"version"}}, 0, false, schemaState{}},
		"Whole":               {tables(6), 6, false, schemaState{}},
		"OfAnEarlierVersion":  {tables(2), 2, false, schemaState{}},
		"TableIsGone":         {tables(6, "label"), 6, false, schemaState{missing: []string{"label", "label.created"}}},
		"ColumnIsGone":        {tables(6, "object.owner"), 6, false, schemaState{missing: []string{"object.owner"}}},
		"NoVersions":          {tables(6, versionTable), 0, false, schemaState{missing: []string{versionTable}}},
		"NoVersionsOfMySQL":   {tables(6, versionTable), 0, true, schemaState{missing: []string{versionTable}}},
		"VersionsAreEmptied":  {tables(6), 0, true, schemaState{missing: []string{"a row of schema_version"}}},
		"Begun":               {begun, 0, true, schemaState{}},
		"BegunInATransaction": {begun, 0, false, schemaState{missing: []string{"a row of schema_version"}}},
		"Foreign":             {map[string][]string{"label": {"id", "name"}, "type": {"id", "name"}}, 0, false, schemaState{foreign: []string{"type", "label"}}},
		"ForeignVersions":     {map[string][]string{versionTable: {"version", "installed_by"}}, 0, false, schemaState{foreign: []string{versionTable}}},
		"ForeignInTheMidst":   {with(tables(6), "epoch", "id", "name"), 6, false, schemaState{foreign: []string{"epoch"}}},
	} {
		t.Run(name, func(t *testing.T) {
			got := examine(tc.found, tc.version, schema, tc.resumes)
			if len(tc.want.foreign) > 0 { // the rest does not matter
				got.missing = nil
			}
			var missing []string // each table once
			for _, one := range got.missing {
				if table, _, column := strings.Cut(one, "."); !column || tc.found[table] != nil || len(tc.want.missing) > 1 {
					missing = append(missing, one)
				}
			}
			got.missing = missing
			if diff := cmp.Diff(tc.want.foreign, got.foreign); diff != "" {
				t.Errorf("foreign: %s", diff)
			}
			if len(tc.want.missing) == 0 != (len(got.missing) == 0) || len(tc.want.missing) > 0 && got.missing[0] != tc.want.missing[0] {
				t.Errorf("missing %v, want %v", got.missing, tc.want.missing)
			}
		})
	}
}

// TestSchemaIsListed: the tables and columns expected in the catalogue are those that the
// migrations create.
func TestSchemaIsListed(t *testing.T) {
	onServers(t, func(t *testing.T, d *testenv.Database, at string) {
		s := openStore(t, at)
		want := map[string][]string{}
		var names []string
		for _, of := range serverSchema(s.db.dialect) {
			if want[of.table] == nil {
				names = append(names, of.table)
			}
			want[of.table] = append(want[of.table], of.columns...)
		}
		conn, err := d.Open(t, at).Conn(t.Context())
		check(t, err)
		found, err := s.db.dialect.(catalogued).catalogue(t.Context(), conn, names)
		check(t, errors.Join(err, conn.Close()))
		if diff := cmp.Diff(want, found, cmpopts.SortSlices(strings.Compare)); diff != "" {
			t.Error(diff)
		}
	})
}

// TestOpenedAtOnce: servers that start at the same time with an empty database create one
// schema, and one of them writes.
func TestOpenedAtOnce(t *testing.T) {
	onServers(t, func(t *testing.T, d *testenv.Database, at string) {
		stores := make([]*Store, 5)
		var opening sync.WaitGroup
		for i := range stores {
			opening.Go(func() {
				s, err := open(t, at, func(s *Store) { s.claimant.patience, s.patience = time.Hour, time.Hour })
				if err != nil {
					t.Error(err)
					return
				}
				// The store may have lost its claim before it was open.
				if err := s.problem(); err != nil && !errors.Is(err, errClaimed) {
					t.Errorf("store %d: %v", i, err)
				}
				stores[i] = s
			})
		}
		opening.Wait()
		writers := 0
		for _, s := range stores {
			if s == nil {
				continue
			}
			switch err := s.Write(t.Context(), []Change{{Row: numbered(0, 1)[0]}}); {
			case err == nil:
				writers++
			case !errors.Is(err, errClaimed):
				t.Error(err)
			}
			check(t, s.Close())
		}
		if writers != 1 {
			t.Errorf("%d servers write, want one", writers)
		}
		consistent(t, d.Open(t, at), 1)
	})
}

// TestKilledWhileItMadeTables: if the first start was killed at any statement of the first
// migration, the next start continues.
func TestKilledWhileItMadeTables(t *testing.T) {
	onServers(t, func(t *testing.T, d *testenv.Database, _ string) {
		first := mysqlDialect{}.migrations()[0]
		for n := range len(first) + 1 {
			if d == testenv.PostgreSQL && n > 0 {
				break // each migration is one transaction
			}
			at := d.Create(t)
			server, err := parseDSN(at)
			check(t, err)
			db := d.Open(t, at)
			_, err = server.dialect.version(t.Context(), db)
			check(t, err)
			for _, statement := range first[:n] {
				if d == testenv.MariaDB {
					_, err := db.ExecContext(t.Context(), statement)
					check(t, err)
				}
			}
			s := openStore(t, at)
			write(t, s, numbered(0, 2)...)
			consistent(t, db, 2)
			if aside := asideTables(t, d, db); len(aside) > 0 {
				t.Errorf("after %d statements %v is set aside", n, aside)
			}
		}
	})
}

// asideTables returns the tables that were set aside.
func asideTables(t *testing.T, d *testenv.Database, db *sql.DB) (out []string) {
	t.Helper()
	for _, name := range allTables(t, d, db) {
		if strings.Contains(name, "_aside_") {
			out = append(out, name)
		}
	}
	return out
}

func allTables(t *testing.T, d *testenv.Database, db *sql.DB) (out []string) {
	t.Helper()
	query := "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() ORDER BY 1"
	if d == testenv.PostgreSQL {
		query = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public' ORDER BY 1"
	}
	check(t, each(t.Context(), db, query, func(rows *sql.Rows) error {
		var name string
		err := rows.Scan(&name)
		out = append(out, name)
		return err
	}))
	return out
}

// TestSchemaIsNotWhole: a schema with a missing part is set aside by renaming, with its
// content, at a start or under a running server. A new one is created. Tables of other programs
// do not change.
func TestSchemaIsNotWhole(t *testing.T) {
	for name, damage := range map[string]string{
		"Table": "DROP TABLE label", "Column": "ALTER TABLE object DROP COLUMN owner", "Epoch": "DELETE FROM epoch", "Versions": "DROP TABLE schema_version",
	} {
		t.Run(name, func(t *testing.T) {
			onServers(t, func(t *testing.T, d *testenv.Database, at string) {
				db := d.Open(t, at)
				for _, statement := range []string{"CREATE TABLE users (id integer, name varchar(20))", "INSERT INTO users VALUES (1, 'ann')"} {
					_, err := db.ExecContext(t.Context(), statement)
					check(t, err)
				}
				s := openStore(t, at)
				write(t, s, numbered(0, 5)...)
				running := name == "Table" // the next start finds the other cases
				if !running {
					check(t, s.Close())
				}
				_, err := db.ExecContext(t.Context(), damage)
				check(t, err)
				if !running {
					s = openStore(t, at)
				}
				persist(t, s, numbered(10, 3)...)
				consistent(t, db, 3)
				var object string
				for _, table := range asideTables(t, d, db) {
					if strings.HasPrefix(table, "object_aside_") {
						object = table
					}
				}
				var old, users int
				check(t, db.QueryRowContext(t.Context(), "SELECT count(*) FROM "+object).Scan(&old))
				check(t, db.QueryRowContext(t.Context(), "SELECT count(*) FROM users").Scan(&users))
				if old != 5 || users != 1 {
					t.Errorf("%d rows are set aside and %d users are there, want 5 and 1", old, users)
				}
				if running && s.Losses() != 1 {
					t.Errorf("%d losses, want one", s.Losses())
				}
			})
		})
	}
}

// TestTablesOfAnotherProgram: a database in which another program has tables with the mirror's
// names is refused, with the names, and not changed. This also holds if these replaced the
// mirror's tables.
func TestTablesOfAnotherProgram(t *testing.T) {
	for table, columns := range map[string]string{
		"label": "id integer, name varchar(20)", "type": "id integer, title varchar(20)", "schema_version": "version integer, installed_by varchar(20)", "epoch": "id integer",
	} {
		for _, used := range []bool{false, true} {
			t.Run(fmt.Sprint(table, "/", used), func(t *testing.T) {
				onServers(t, func(t *testing.T, d *testenv.Database, at string) {
					db := d.Open(t, at)
					if used {
						check(t, openStore(t, at).Close())
						_, err := db.ExecContext(t.Context(), "DROP TABLE "+table)
						check(t, err)
					}
					_, err := db.ExecContext(t.Context(), "CREATE TABLE "+table+" ("+columns+")")
					check(t, err)
					before := allTables(t, d, db)
					s, err := open(t, at)
					if err == nil {
						check(t, s.Close())
					}
					if !errors.Is(err, errUnfit) || !strings.Contains(err.Error(), table) || !strings.Contains(err.Error(), "of its own") {
						t.Errorf("%v, want that %s is another program's, and the way out", err, table)
					}
					if diff := cmp.Diff(before, allTables(t, d, db)); diff != "" {
						t.Errorf("tables before and after:\n%s", diff)
					}
				})
			})
		}
	}
}

// TestNoDamage: settings and missing rights that keep the mirror from its tables are reported.
// No table is set aside, and no row is lost once the tables are accessible again.
func TestNoDamage(t *testing.T) {
	t.Run("PostgreSQL", func(t *testing.T) {
		for name, tc := range map[string]struct{ set, says, reset string }{
			"ReadOnly":           {"ALTER DATABASE %s SET default_transaction_read_only = on", "takes no writes", "ALTER DATABASE %s RESET default_transaction_read_only"},
			"NoSuchSchema":       {"ALTER DATABASE %s SET search_path = nowhere", "search_path is nowhere", "ALTER DATABASE %s RESET search_path"},
			"TheSchemaOfAnother": {"CREATE SCHEMA other; ALTER DATABASE %s SET search_path = other", "the mirror's tables are in schema public", "ALTER DATABASE %s RESET search_path"},
		} {
			t.Run(name, func(t *testing.T) {
				d := testenv.PostgreSQL
				at := d.Create(t)
				u, err := url.Parse(at)
				check(t, err)
				database := strings.TrimPrefix(u.Path, "/")
				s := openStore(t, at)
				write(t, s, numbered(0, 5)...)
				admin, err := d.Open(t, at).Conn(t.Context())
				check(t, err)
				defer admin.Close()
				before := allTables(t, d, d.Open(t, at))
				for statement := range strings.SplitSeq(tc.set, "; ") {
					if strings.Contains(statement, "%s") {
						statement = fmt.Sprintf(statement, database)
					}
					_, err := admin.ExecContext(t.Context(), statement)
					check(t, err)
				}
				disconnect := func() {
					_, err := admin.ExecContext(t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'orrery'")
					check(t, err)
				}
				disconnect()
				said := ""
				for range 4 { // the cut connection fails first, and then the new one
					again(s)
					if err := s.Write(t.Context(), []Change{{Row: numbered(5, 1)[0]}}); err != nil {
						said += err.Error() + "\n"
					}
				}
				other, err := open(t, at) // like a restart
				check(t, err)
				said += fmt.Sprint(other.problem())
				if name != "TheSchemaOfAnother" && !strings.Contains(fmt.Sprint(other.problem()), tc.says) {
					t.Errorf("a start says %v", other.problem())
				}
				check(t, other.Close())
				if !strings.Contains(said, tc.says) && name != "ReadOnly" {
					t.Errorf("it says %s", said)
				}
				_, err = admin.ExecContext(t.Context(), fmt.Sprintf(tc.reset, database))
				check(t, err)
				if diff := cmp.Diff(before, allTables(t, d, d.Open(t, at))); diff != "" {
					t.Errorf("tables before and after:\n%s", diff)
				}
				disconnect()
				persist(t, s, numbered(5, 1)...)
				consistent(t, d.Open(t, at), 6)
				if s.Losses() != 0 {
					t.Errorf("%d losses: nothing was lost", s.Losses())
				}
			})
		}
	})
	onServers(t, func(t *testing.T, d *testenv.Database, at string) { // missing rights
		db := d.Open(t, at)
		check(t, openStore(t, at).Close())
		user := "orrery_denied"
		var limited string
		if d == testenv.PostgreSQL {
			limited = strings.Replace(at, "orrery@", user+"@", 1)
			for _, statement := range []string{"CREATE ROLE " + user + " LOGIN", "GRANT SELECT ON schema_version TO " + user} {
				_, err := db.ExecContext(t.Context(), statement)
				check(t, err)
			}
			t.Cleanup(func() {
				for _, statement := range []string{"DROP OWNED BY " + user, "DROP ROLE " + user} {
					_, err := db.ExecContext(context.Background(), statement)
					check(t, err)
				}
			})
		} else {
			limited = strings.Replace(at, "root@", user+"@", 1)
			for _, statement := range []string{"CREATE USER " + user + "@localhost", "GRANT SELECT ON schema_version TO " + user + "@localhost"} {
				_, err := db.ExecContext(t.Context(), statement)
				check(t, err)
			}
			t.Cleanup(func() {
				_, err := db.ExecContext(context.Background(), "DROP USER "+user+"@localhost")
				check(t, err)
			})
		}
		before := allTables(t, d, db)
		s, err := open(t, limited)
		check(t, err)
		said := fmt.Sprint(s.problem())
		check(t, s.Close())
		if !strings.Contains(said, "denied") || !strings.Contains(said, "this is no damage") {
			t.Errorf("it says %s, want that rights are missing", said)
		}
		if diff := cmp.Diff(before, allTables(t, d, db)); diff != "" {
			t.Errorf("tables before and after:\n%s", diff)
		}
	})
}
