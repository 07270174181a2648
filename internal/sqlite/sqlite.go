package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// Errors for errors.Is. Any other error means that the file cannot be used at present.
var (
	// ErrDamaged: the file is not a database, or a part of it cannot be read. The readable parts are
	// not reliable.
	ErrDamaged = errors.New("database is damaged")
	// ErrFull: there is no space for a write. Data that was written before is intact, and the
	// write can be retried.
	ErrFull = errors.New("no space left for the database")
	// ErrLocked: another process or connection held the database for longer than the timeout.
	ErrLocked = errors.New("database is locked")
	// ErrNewer: a newer version of the program wrote the database, with a schema that this version
	// does not know.
	ErrNewer = errors.New("database of a newer version")
	// ErrRefused: the database refused a statement or one of its values, for example because of a
	// constraint. A retry does not help.
	ErrRefused = errors.New("database refused the statement")
)

// readers is the maximum number of concurrent queries.
const readers = 4

// DB is an open database. Write has one connection, whose transactions lock the database when they
// begin. Read has several connections, which see a transaction completely or not at all. Errors of
// the methods of Write and Read come from the driver; Classify translates them. A DB may be used
// from several goroutines, except for Check.
type DB struct {
	Write, Read *sql.DB

	path string
	info fs.FileInfo // the file at the last Check, or at Open
}

// Open opens or creates the database file at path, with mode 0600. The directory must exist. Each
// of steps is the SQL of one migration of the schema. Open runs the steps that have not run on the
// file yet, each in a transaction. The file stores their number in user_version, so a released step
// is never edited; a change is another step. Errors are classified as by Classify. The error is
// ErrNewer if more steps ran on the file than there are.
func Open(ctx context.Context, path string, steps []string) (_ *DB, err error) {
	db, err := open(ctx, path, steps)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, Classify(err))
	}
	return db, nil
}

func open(ctx context.Context, path string, steps []string) (_ *DB, err error) {
	if err := private(path); err != nil {
		return nil, err
	}
	db := &DB{path: path}
	if db.Write, err = sql.Open("sqlite", dsn(path, "synchronous(NORMAL)", "journal_size_limit(67108864)")+"&_txlock=immediate"); err != nil {
		return nil, err
	}
	if db.Read, err = sql.Open("sqlite", dsn(path, "query_only(1)")); err != nil {
		return nil, errors.Join(err, db.Write.Close())
	}
	db.Write.SetMaxOpenConns(1)
	db.Read.SetMaxOpenConns(readers)
	db.Read.SetMaxIdleConns(readers)
	if err := migrate(ctx, db.Write, steps); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	if db.info, err = os.Stat(path); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// private creates the file with mode 0600, or sets that mode on an existing file. Open calls it
// before SQLite opens the file, because the journal gets the same mode. private does not open an
// existing file: closing it would release the locks that this process may have on it.
func private(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return os.Chmod(path, 0o600)
	}
	if err != nil {
		return err
	}
	return f.Close()
}

// dsn returns the data source name of the database at path. Each connection executes some common
// pragmas, and then the given ones.
func dsn(path string, pragmas ...string) string {
	q := url.Values{
		"vfs":     {"unix-excl"},
		"_pragma": append([]string{"busy_timeout(1000)", "journal_mode(WAL)", "temp_store(MEMORY)"}, pragmas...),
	}
	return (&url.URL{Scheme: "file", Path: path, RawQuery: q.Encode()}).String()
}

// migrate runs the steps that have not run on the database yet. The error is ErrNewer if more steps
// ran than there are.
func migrate(ctx context.Context, db *sql.DB, steps []string) error {
	var version int
	if err := db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return fmt.Errorf("read schema version: %w", err)
	}
	if version > len(steps) {
		return fmt.Errorf("%w: its schema is %d and this version knows %d", ErrNewer, version, len(steps))
	}
	for i, script := range steps[max(version, 0):] {
		if err := migrateOne(ctx, db, version+i+1, script); err != nil {
			return fmt.Errorf("migrate to schema %d: %w", version+i+1, err)
		}
	}
	return nil
}

// migrateOne runs the SQL of one step and sets user_version to version, in one transaction.
func migrateOne(ctx context.Context, db *sql.DB, version int, script string) error {
	return transact(ctx, db, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, script); err != nil {
			return err
		}
		// PRAGMA accepts no parameters.
		_, err := tx.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version = %d", version))
		return err
	})
}

// Transact runs f in a transaction for writes, and commits it if f returns nil. If f returns an
// error, Transact rolls the transaction back. f is called once. f must not call Transact, which
// would wait forever for the only connection for writes. Errors of the driver are classified as by
// Classify, and f's own errors are returned.
func (db *DB) Transact(ctx context.Context, f func(tx *sql.Tx) error) error {
	return Classify(transact(ctx, db.Write, f))
}

// View runs f in a transaction for reads, in which all queries see the same state of the database.
// f is called once. Errors of the driver are classified as by Classify, and f's own errors are
// returned.
func (db *DB) View(ctx context.Context, f func(tx *sql.Tx) error) error {
	return Classify(transact(ctx, db.Read, f))
}

func transact(ctx context.Context, db *sql.DB, f func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := f(tx); err != nil {
		return errors.Join(err, rollback(tx))
	}
	return tx.Commit()
}

// rollback undoes and ends a failed transaction. If SQLite has already ended the transaction, that
// is no error.
func rollback(tx *sql.Tx) error {
	err := tx.Rollback()
	if errors.Is(err, sql.ErrTxDone) || code(err) == sqlite3.SQLITE_ERROR {
		return nil
	}
	return err
}

// Check returns ErrDamaged if the database's file was removed or replaced since Open, or truncated
// since the last Check. Without Check, SQLite continues with the data in memory until it needs a
// missing part. Any other error means that the file cannot be examined now. Check must not run in
// two goroutines at once.
func (db *DB) Check() error {
	info, err := os.Stat(db.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %s was removed", ErrDamaged, db.path)
	case err != nil:
		return err
	case !os.SameFile(db.info, info):
		return fmt.Errorf("%w: %s was replaced by another file", ErrDamaged, db.path)
	case info.Size() < db.info.Size():
		return fmt.Errorf("%w: %s was truncated from %d bytes to %d", ErrDamaged, db.path, db.info.Size(), info.Size())
	}
	db.info = info
	return nil
}

// Close waits for running queries, and closes the connections for reads and for writes.
func (db *DB) Close() error { return errors.Join(db.Read.Close(), db.Write.Close()) }

// SetAside renames a damaged database file and its journal files to PATH.damaged-TIME, or to
// PATH.damaged-TIME-N if that exists. It returns the new path. now is the time for the name. Files
// that do not exist are skipped. The database must be closed, because SQLite removes the journal by
// name when it closes a database.
func SetAside(path string, now time.Time) (string, error) {
	aside := path + ".damaged-" + now.UTC().Format("20060102T150405Z")
	for n := 2; exists(aside); n++ {
		aside = fmt.Sprintf("%s.damaged-%s-%d", path, now.UTC().Format("20060102T150405Z"), n)
	}
	for _, suffix := range []string{"", "-wal", "-shm", "-journal"} {
		if err := os.Rename(path+suffix, aside+suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("set the damaged %s aside: %w", path+suffix, err)
		}
	}
	return aside, nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// Classify wraps an error of the driver with the error of this package that describes it, such as
// ErrFull, so that errors.Is finds it. Errors that none of them describes, and nil, are returned
// unchanged.
func Classify(err error) error {
	kind := kindOf(err)
	if kind == nil || errors.Is(err, kind) {
		return err
	}
	return fmt.Errorf("%w: %w", kind, err)
}

// kindOf returns the error of this package, such as ErrFull, that describes an error of the driver.
// For any other error it returns nil.
func kindOf(err error) error {
	switch code(err) {
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		return ErrDamaged
	case sqlite3.SQLITE_FULL:
		return ErrFull
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return ErrLocked
	case sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_ERROR:
		return ErrRefused
	default:
		return nil
	}
}

// code returns the primary result code of an error of SQLite; 0 for other errors.
func code(err error) int {
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		return e.Code() & 0xff
	}
	return 0
}
