package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var steps = []string{"CREATE TABLE t (a INTEGER NOT NULL UNIQUE) STRICT"}

func openDB(t testing.TB, path string) *DB {
	t.Helper()
	db, err := Open(t.Context(), path, steps)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func insert(t testing.TB, db *DB, values ...any) {
	t.Helper()
	for _, v := range values {
		if _, err := db.Write.ExecContext(t.Context(), "INSERT INTO t VALUES (?)", v); err != nil {
			t.Fatal(err)
		}
	}
}

func count(db *DB) (n int, err error) {
	err = db.View(context.Background(), func(tx *sql.Tx) error { return tx.QueryRow("SELECT count(*) FROM t").Scan(&n) })
	return n, err
}

// TestFiles: the files have mode 0600 and may have any path. There is no mapped index file
// beside them, which would cause a SIGBUS if it were truncated.
func TestFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a b?c#d%20")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "x.db")
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	db := openDB(t, path)
	insert(t, db, 1)
	if _, err := count(db); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range files {
		info, err := f.Info()
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprint(info.Mode().Perm(), " ", f.Name()))
	}
	if diff := cmp.Diff([]string{"-rw------- x.db", "-rw------- x.db-wal"}, got); diff != "" {
		t.Error(diff)
	}
}

// TestReadersSeeWholeWrites: connections of one process work concurrently with unix-excl.
// Readers see a transaction completely or not at all.
func TestReadersSeeWholeWrites(t *testing.T) {
	db := openDB(t, filepath.Join(t.TempDir(), "x.db"))
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range readers {
		wg.Go(func() {
			for {
				if n, err := count(db); err != nil || n%2 != 0 {
					t.Errorf("%d rows, %v", n, err)
					return
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	for i := range 200 {
		err := db.Transact(t.Context(), func(tx *sql.Tx) error {
			_, err := tx.Exec("INSERT INTO t VALUES (?), (?)", 2*i, 2*i+1)
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	close(done)
	wg.Wait()
}

func TestErrors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	db := openDB(t, path)
	insert(t, db, 1)
	if err := Classify(nil); err != nil {
		t.Error(err)
	}
	exec := func(query string) error {
		return db.Transact(t.Context(), func(tx *sql.Tx) error {
			_, err := tx.Exec(query)
			return err
		})
	}
	for name, query := range map[string]string{
		"Constraint": "INSERT INTO t VALUES (2), (1)", "Mismatch": "INSERT INTO t VALUES ('x')", "NoTable": "DELETE FROM none",
	} {
		if err := exec(query); !errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v, want ErrRefused", name, err)
		}
	}
	if n, err := count(db); err != nil || n != 1 {
		t.Errorf("%d rows, %v: a transaction that failed must be undone", n, err)
	}
	if err := db.View(t.Context(), func(tx *sql.Tx) error { _, err := tx.Exec("DELETE FROM t"); return err }); err == nil {
		t.Error("a reader can write")
	}
	other := openDB(t, path)
	tx, err := other.Write.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := exec("DELETE FROM t"); !errors.Is(err, ErrLocked) {
		t.Errorf("%v, want ErrLocked", err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	var pages int
	if err := db.Write.QueryRow("PRAGMA max_page_count = 4").Scan(&pages); err != nil {
		t.Fatal(err)
	}
	many := "INSERT INTO t WITH RECURSIVE n(i) AS (SELECT 10 UNION ALL SELECT i + 1 FROM n LIMIT 10000) SELECT i FROM n"
	if err := exec(many); !errors.Is(err, ErrFull) {
		t.Errorf("%v, want ErrFull", err)
	}
}

func TestOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	db := openDB(t, path)
	insert(t, db, 1)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	bad := slices.Concat(steps[:1], []string{"CREATE TABLE u (a); CREATE TABLE u (a)"})
	if _, err := Open(t.Context(), path, bad); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "migrate to schema 2") {
		t.Errorf("%v, want the step that failed", err)
	}
	good := slices.Concat(steps[:1], []string{"CREATE TABLE u (a)"})
	db, err := Open(t.Context(), path, good)
	if err != nil {
		t.Fatal("after a step that failed and was undone:", err)
	}
	if n, err := count(db); err != nil || n != 1 {
		t.Errorf("%d rows, %v", n, err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), path, steps); !errors.Is(err, ErrNewer) {
		t.Errorf("%v, want ErrNewer", err)
	}
	if err := os.WriteFile(path, []byte(strings.Repeat("noise", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), path, steps); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), path) {
		t.Errorf("%v, want ErrDamaged with the path", err)
	}
}

func TestCheck(t *testing.T) {
	cases := map[string]struct {
		change func(path string) error
		want   error
	}{
		"Nothing":   {func(string) error { return nil }, nil},
		"Removed":   {os.Remove, ErrDamaged},
		"Truncated": {func(path string) error { return os.Truncate(path, 5000) }, ErrDamaged},
		"Replaced": {func(path string) error {
			return errors.Join(os.WriteFile(path+"2", make([]byte, 1<<20), 0o600), os.Rename(path+"2", path))
		}, ErrDamaged},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "x.db")
			db := openDB(t, path)
			insert(t, db, 1)
			if _, err := db.Write.Exec("PRAGMA wal_checkpoint(TRUNCATE)"); err != nil {
				t.Fatal(err)
			}
			if err := db.Check(); err != nil {
				t.Fatal(err)
			}
			if err := tc.change(path); err != nil {
				t.Fatal(err)
			}
			if err := db.Check(); !errors.Is(err, tc.want) {
				t.Errorf("%v, want %v", err, tc.want)
			}
		})
	}
}

func TestSetAside(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x.db")
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.FixedZone("", 3600))
	var got []string
	for range 2 { // twice within a second
		for _, suffix := range []string{"", "-wal"} {
			if err := os.WriteFile(path+suffix, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		aside, err := SetAside(path, now)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, aside)
	}
	if diff := cmp.Diff([]string{path + ".damaged-20260301T110000Z", path + ".damaged-20260301T110000Z-2"}, got); diff != "" {
		t.Error(diff)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) != 4 {
		t.Errorf("%v, %v", files, err)
	}
}
