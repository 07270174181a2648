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
	// ErrDamaged: the file is no database, or a part of it cannot be read. The readable parts
	// are not reliable.
	ErrDamaged = errors.New("database is damaged")
	// ErrFull: there is no space for a write. Data that was written before is intact, and the
	// write can be retried.
	ErrFull = errors.New("no space left for the database")
	// ErrLocked: another process or connection held the database for longer than the timeout.
	ErrLocked = errors.New("database is locked")
	// ErrNewer: the database was written by a newer version.
	ErrNewer = errors.New("database of a newer version")
	// ErrRefused: the database refused a statement or one of its values. A retry does not help.
	ErrRefused = errors.New("database refused the statement")
)

// readers is the number of concurrent queries.
const readers = 4

// DB is an open database. Write has one connection with immediate transactions. Read has
// several connections, which see a transaction completely or not at all. The methods of both
// return the driver's errors, see Classify.
type DB struct {
	Write, Read *sql.DB

	path string
	info fs.FileInfo // of the file at the last Check
}

// Open opens or creates the file, with mode 0600, and runs the migration steps that have not
// run yet. The file's user_version is the number of steps that ran. Therefore a released step
// is never edited; a change is another step.
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

// private sets the mode of the file before SQLite opens it, because the journal gets the same
// mode. An existing file is not opened here: closing it would release the locks that this
// process may have on it.
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

// dsn returns the data source name of the database, with the pragmas of each connection.
func dsn(path string, pragmas ...string) string {
	q := url.Values{
		"vfs":     {"unix-excl"},
		"_pragma": append([]string{"busy_timeout(1000)", "journal_mode(WAL)", "temp_store(MEMORY)"}, pragmas...),
	}
	return (&url.URL{Scheme: "file", Path: path, RawQuery: q.Encode()}).String()
}

// migrate runs the steps that have not run on the database.
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

// Transact runs f in a transaction for writes, and rolls it back if f fails. Its error is
// classified.
func (db *DB) Transact(ctx context.Context, f func(tx *sql.Tx) error) error {
	return Classify(transact(ctx, db.Write, f))
}

// View runs f in a transaction for reads, which sees one state of the database. Its error is
// classified.
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

// rollback ends a failed transaction. SQLite has often ended it already, which is no error.
func rollback(tx *sql.Tx) error {
	err := tx.Rollback()
	if errors.Is(err, sql.ErrTxDone) || code(err) == sqlite3.SQLITE_ERROR {
		return nil
	}
	return err
}

// Check returns ErrDamaged if the file was removed, replaced or truncated since the last Check.
// SQLite itself continues with the data in memory until it needs a missing part. Check is not
// safe for concurrent use.
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

// Close closes the database.
func (db *DB) Close() error { return errors.Join(db.Read.Close(), db.Write.Close()) }

// SetAside renames the file and its journal to PATH.damaged-TIME and returns that path. The
// database must be closed, because SQLite removes the journal by name when it closes a
// database.
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

// Classify wraps errors of the driver in the errors above. It returns all others unchanged.
func Classify(err error) error {
	kind := kindOf(err)
	if kind == nil || errors.Is(err, kind) {
		return err
	}
	return fmt.Errorf("%w: %w", kind, err)
}

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
