package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// database is an open database file. One connection writes; several read, and see each
// write whole or not at all.
type database struct {
	write *sql.DB
	read  *sql.DB
	stmts statements

	mu         sync.Mutex // held while writing
	clusters   map[string]int64
	types      map[groupResource]int64
	incomplete map[clusterType]bool // a row was refused: no checkpoint can vouch for the others
}

type groupResource struct{ group, resource string }

// readers is how many queries run at once.
const readers = 4

var (
	errNewer   = errors.New("database of a newer version")
	errDamaged = errors.New("database is damaged")
)

func openDatabase(ctx context.Context, path string) (_ *database, err error) {
	// SQLite gives its journal files the mode of the database, so the database must have
	// the right one from the start.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(f.Chmod(0o600), f.Close()); err != nil {
		return nil, err
	}
	d := &database{clusters: map[string]int64{}, types: map[groupResource]int64{}, incomplete: map[clusterType]bool{}}
	if d.write, err = sql.Open("sqlite", dsn(path, "journal_mode(WAL)", "synchronous(NORMAL)", "journal_size_limit(67108864)")+"&_txlock=immediate"); err != nil {
		return nil, err
	}
	// The journal mode is in the file. A reader must not set it: in a file that somebody
	// truncated it would wait for the writer, and not say that the tables are gone.
	if d.read, err = sql.Open("sqlite", dsn(path, "query_only(1)")); err != nil {
		return nil, errors.Join(err, d.write.Close())
	}
	d.write.SetMaxOpenConns(1)
	d.read.SetMaxOpenConns(readers)
	d.read.SetMaxIdleConns(readers)
	if err := d.prepare(ctx); err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

// prepare makes an open database usable: schema, statements, leftovers of an interrupted
// dropCluster.
func (d *database) prepare(ctx context.Context) error {
	if err := migrate(ctx, d.write); err != nil {
		return err
	}
	if err := d.stmts.prepare(ctx, d.write); err != nil {
		return err
	}
	return d.sweep(ctx)
}

// dsn names the database with the pragmas of each of its connections. The VFS unix-excl
// locks the file for this process and keeps the index of the write-ahead log in its own
// memory: a file that is mapped kills the process when somebody truncates it.
func dsn(path string, pragmas ...string) string {
	q := url.Values{
		"vfs":     {"unix-excl"},
		"_pragma": append([]string{"busy_timeout(2000)", "mmap_size(0)", "temp_store(MEMORY)"}, pragmas...),
	}
	return (&url.URL{Scheme: "file", Path: path, RawQuery: q.Encode()}).String()
}

func (d *database) close() error {
	return errors.Join(d.read.Close(), d.stmts.close(), d.write.Close())
}

// code is the primary result code of an error of SQLite; 0 for other errors.
func code(err error) int {
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		return e.Code() & 0xff
	}
	return 0
}

// damaged says whether an error means that the file is not what was written to it. Its
// contents cannot be trusted, nor mended by trying again.
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
	case sqlite3.SQLITE_ERROR: // tables and columns that were there, and JSON that was valid, are not any more
		return slices.ContainsFunc([]string{"no such table", "no such column", "has no column named", "malformed JSON"},
			func(s string) bool { return strings.Contains(e.Error(), s) })
	default:
		return false
	}
}

// unusable says whether a database that could not be opened never can be: because of what
// is in the file, not of a lock or a full disk.
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

// classify makes errors that callers tell apart out of SQLite's.
func classify(err error) error {
	switch code(err) {
	case 0:
		return err
	case sqlite3.SQLITE_FULL:
		return fmt.Errorf("%w: %w", ErrFull, err)
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return fmt.Errorf("%w: another process has locked it: %w", ErrUnavailable, err)
	case sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_NOMEM:
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	default:
		return err
	}
}
