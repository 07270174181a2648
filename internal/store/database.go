package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"orrery.dev/orrery/internal/seal"
)

// database is an open database of any dialect: a file, or a database on a server. Queries may run
// in several goroutines. Only one goroutine writes at a time, with mu locked.
type database struct {
	dialect  dialect
	write    *sql.DB
	read     *sql.DB
	batches  batches
	patience time.Duration // how long a write may take; 0: no limit
	nearby   int           // the constant nearby, except in tests

	claim      int64     // claim of this writer
	found      epochRow  // row of the epoch that the claim found
	distrusted error     // why the contents were not trusted; nil: they were
	aside      *leftover // what was set aside of an incomplete schema; nil: nothing

	mu sync.Mutex // held while writing
	// Objects that the database refused and that are not stored at all. While there are any of a type,
	// no checkpoint can cover the type.
	incomplete map[clusterType]map[Key]bool
	// Number of objects that are stored without a part; nil: they must be counted.
	counted    map[clusterType]int
	epoch      string
	seq        int64     // last committed sequence
	trimmed    time.Time // when no old history was left
	recording  bool      // the transaction records events
	events     []*Event  // of the transaction
	unanswered *unanswered
	answered   *answered
	compressor compressor

	keeping *keeping                   // how much history is kept
	sealing *atomic.Pointer[seal.Keys] // for the data of Secrets
	journal *journal                   // nil while the database is being opened
	history atomic.Int64               // approximate size of the history, in bytes
	// The history of a damaged file is being copied to this file.
	salvaging atomic.Bool

	pendingDeletions *pendingDeletions

	known sync.RWMutex // guards identities
	identities
}

type groupResource struct{ group, resource string }

// readers is the maximum number of concurrent queries, unless withReaders sets another.
const readers = 4

var (
	errNewer   = errors.New("database of a newer version")
	errDamaged = errors.New("database is damaged")
	// errOther means that the database is not the one that this store used: it was replaced, or went
	// back to an earlier state, such as a backup.
	errOther = errors.New("database was replaced, or went back to an earlier state")
)

// openDatabase makes the connections write and read of a database usable. It updates the schema,
// prepares the statements, claims the database for the store that c describes, and completes an
// interrupted dropCluster. After an error, it has closed both connections. The caller then replaces
// keeping, sealing, journal and pendingDeletions by those of the Store.
func openDatabase(ctx context.Context, dialect dialect, write, read *sql.DB, c claimant) (*database, error) {
	d := &database{
		dialect: dialect, write: write, read: read, nearby: nearby, keeping: &keeping{is: DefaultHistory, now: time.Now}, sealing: &atomic.Pointer[seal.Keys]{},
		incomplete: map[clusterType]map[Key]bool{},
	}
	d.pendingDeletions = &pendingDeletions{}
	d.read.SetMaxOpenConns(readers)
	d.read.SetMaxIdleConns(readers)
	if err := d.prepare(ctx, c); err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

func (d *database) prepare(ctx context.Context, c claimant) error {
	if err := d.upgrade(ctx, c); err != nil {
		return err
	}
	if err := d.prepareBatches(ctx); err != nil {
		return err
	}
	if err := d.acquire(ctx, c); err != nil {
		return err
	}
	var history int64
	if err := d.write.QueryRowContext(ctx, "SELECT history_bytes FROM epoch").Scan(&history); err != nil {
		return fmt.Errorf("read the size of the history: %w", err)
	}
	d.history.Store(history)
	if err := d.learn(ctx); err != nil {
		return err
	}
	if err := d.reindex(ctx); err != nil {
		return err
	}
	return d.sweep(ctx)
}

// learn reads which clusters and types are in the database, into d.identities, over a connection
// for reading. So such a connection is open from the start, and stays with the file even if the
// name of the file is removed. After an error, d.identities has those that could be read.
func (d *database) learn(ctx context.Context) (err error) {
	d.identities, err = readIdentities(ctx, d.read) // partly, if the file is damaged
	return err
}

// querier is anything that runs a query: a database, a connection or a transaction.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// each runs a query and calls f with each row of its result. An error of f ends the loop and is
// returned.
func each(ctx context.Context, db querier, query string, f func(*sql.Rows) error, args ...any) error {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close() //nolint:errcheck // rows.Err says it
	for rows.Next() {
		if err := f(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// names returns the clusters in the database, each list sorted: dropped are those that are being
// deleted, and known all others. Clusters with a pending deletion are in known; leaveOut moves
// them.
func (d *database) names() (known, dropped []string) {
	d.known.RLock()
	defer d.known.RUnlock()
	for name, gone := range d.clusters {
		if gone {
			dropped = append(dropped, name)
		} else {
			known = append(known, name)
		}
	}
	slices.Sort(known)
	slices.Sort(dropped)
	return known, dropped
}

// kind returns the number of a type in the database; 0: nothing of the type was ever written.
func (d *database) kind(gr groupResource) int64 {
	d.known.RLock()
	defer d.known.RUnlock()
	return d.types[gr]
}

// gr returns the type with this number in the database. For an unknown number, it returns the empty
// type.
func (d *database) gr(kind int64) schema.GroupResource {
	d.known.RLock()
	defer d.known.RUnlock()
	return d.kinds[kind]
}

func (d *database) close() error {
	return errors.Join(append(d.batches.close(), d.read.Close(), d.write.Close())...)
}

// classify wraps an error of the database's driver with ErrFull if there is no space. It wraps the
// error with ErrUnavailable if the database is locked or cannot be reached. Other errors, also
// those about a row or damage, and nil are returned unchanged.
func classify(d dialect, err error) error {
	if err == nil {
		return nil
	}
	switch d.fault(err) {
	case faultFull:
		return fmt.Errorf("%w: %w", ErrFull, err)
	case faultLocked:
		return fmt.Errorf("%w: another process has locked it: %w", ErrUnavailable, err)
	case faultUnavailable:
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	default:
		return err
	}
}
