package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// Errors that callers tell apart.
var (
	// ErrFull: there is no room for a write. What was written before is intact, and the
	// same write can be tried again.
	ErrFull = errors.New("no space left for the mirror's database")
	// ErrNewer: the database was written by a newer version.
	ErrNewer = errors.New("database of a newer version")
	// ErrContinue: a continue token is damaged, or belongs to another query.
	ErrContinue = errors.New("continue token is not of this query")
	// ErrSelector: a selector says something that cannot be answered.
	ErrSelector = errors.New("selector is not supported")
)

// RejectedError names a row that the database refused; every other change of the same
// Write was written.
type RejectedError struct {
	Cluster, Group, Resource, Namespace, Name string
	Err                                       error
}

// Error implements error.
func (e *RejectedError) Error() string {
	return fmt.Sprintf("store %s %s/%s of cluster %s: %v", (types.NamespacedName{Namespace: e.Namespace, Name: e.Name}),
		e.Resource, e.Group, e.Cluster, e.Err)
}

// Unwrap returns the database's error.
func (e *RejectedError) Unwrap() error { return e.Err }

// Row is one object of one cluster.
type Row struct {
	Cluster, Group, Version, Resource, Kind, Namespace, Name string

	UID             types.UID
	OwnerUID        types.UID // the controller's, or else the first owner's
	ResourceVersion string
	Created         time.Time
	Labels          map[string]string
	Body            []byte // JSON, without managedFields
}

// Change is a row to be written or, when Delete is set, to be deleted: then only Cluster,
// Group, Resource, Namespace and Name matter.
type Change struct {
	Row
	Delete bool
}

// Store is the database. One connection writes; several read, and see each write whole or
// not at all.
type Store struct {
	write *sql.DB
	read  *sql.DB
	stmts statements

	mu       sync.Mutex // held while writing
	clusters map[string]int64
	types    map[groupResource]int64
}

type groupResource struct{ group, resource string }

// readers is how many queries run at once.
const readers = 4

// Open opens or creates dir/mirror.db and brings its schema up to date.
func Open(ctx context.Context, dir string) (*Store, error) {
	path := filepath.Join(dir, "mirror.db")
	s, err := open(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return s, nil
}

func open(ctx context.Context, path string) (_ *Store, err error) {
	// SQLite gives its journal files the mode of the database, so the database must have
	// the right one from the start.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600) //nolint:gosec // the operator says where
	if err != nil {
		return nil, err
	}
	if err := errors.Join(f.Chmod(0o600), f.Close()); err != nil {
		return nil, err
	}
	s := &Store{clusters: map[string]int64{}, types: map[groupResource]int64{}}
	if s.write, err = sql.Open("sqlite", dsn(path, "synchronous(NORMAL)", "journal_size_limit(67108864)")+"&_txlock=immediate"); err != nil {
		return nil, err
	}
	if s.read, err = sql.Open("sqlite", dsn(path, "query_only(1)")); err != nil {
		return nil, errors.Join(err, s.write.Close())
	}
	s.write.SetMaxOpenConns(1)
	s.read.SetMaxOpenConns(readers)
	s.read.SetMaxIdleConns(readers)
	if err := s.prepare(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// prepare makes an open database usable: schema, statements, leftovers of an interrupted
// DropCluster.
func (s *Store) prepare(ctx context.Context) error {
	if err := migrate(ctx, s.write); err != nil {
		if code(err) == sqlite3.SQLITE_NOTADB || code(err) == sqlite3.SQLITE_CORRUPT {
			return fmt.Errorf("%w: delete the file; it is filled again from the clusters", err)
		}
		return err
	}
	if err := s.stmts.prepare(ctx, s.write); err != nil {
		return err
	}
	return s.sweep(ctx)
}

// dsn names the database with the pragmas of each of its connections.
func dsn(path string, pragmas ...string) string {
	q := url.Values{"_pragma": append([]string{"busy_timeout(10000)", "journal_mode(WAL)", "temp_store(MEMORY)"}, pragmas...)}
	return (&url.URL{Scheme: "file", Path: path, RawQuery: q.Encode()}).String()
}

// Close closes the database.
func (s *Store) Close() error {
	return errors.Join(s.read.Close(), s.stmts.close(), s.write.Close())
}

// code is the primary result code of an error of SQLite; 0 for other errors.
func code(err error) int {
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		return e.Code() & 0xff
	}
	return 0
}

// classify makes errors that callers tell apart out of SQLite's.
func classify(err error) error {
	if code(err) == sqlite3.SQLITE_FULL {
		return fmt.Errorf("%w: %w", ErrFull, err)
	}
	return err
}
