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

// database is an open database of any dialect.
type database struct {
	dialect  dialect
	write    *sql.DB
	read     *sql.DB
	batches  batches
	patience time.Duration // how long a write may take; 0: no limit
	nearby   int           // number of rows that are skipped rather than counted

	claim      int64     // claim of this writer
	found      standing  // row of the epoch before the claim
	distrusted error     // why the contents were not trusted; nil: they were
	aside      *leftover // what was set aside of an incomplete schema; nil: nothing

	mu sync.Mutex // held while writing
	// Objects that are not stored at all. While there are any, no checkpoint can cover the
	// others.
	incomplete map[clusterType]map[Key]bool
	// Number of objects that are stored without a part; nil: they must be counted.
	counted    map[clusterType]int
	epoch      string
	seq        int64 // last committed sequence
	trimmed    time.Time
	recording  bool     // the transaction records events
	told       []*Event // events of the transaction
	unanswered *unanswered
	answered   *answered
	compressor compressor

	keeping *keeping
	sealing *atomic.Pointer[seal.Keys] // for the data of Secrets
	journal *journal                   // nil while the database is being opened
	history atomic.Int64               // approximate size in bytes
	// The history of a damaged file is being copied to this file.
	salvaging atomic.Bool

	owed *owed

	known sync.RWMutex // guards identities
	identities
}

type groupResource struct{ group, resource string }

// readers is the maximum number of concurrent queries.
const readers = 4

var (
	errNewer   = errors.New("database of a newer version")
	errDamaged = errors.New("database is damaged")
	// errOther means that the database is another one, or went back to an earlier state.
	errOther = errors.New("database was replaced, or went back to an earlier state")
)

// openDatabase prepares an open database: the schema, the statements, and the rest of an
// interrupted dropCluster.
func openDatabase(ctx context.Context, dialect dialect, write, read *sql.DB, c claimant) (*database, error) {
	d := &database{
		dialect: dialect, write: write, read: read, nearby: nearby, keeping: &keeping{is: DefaultHistory, now: time.Now}, sealing: &atomic.Pointer[seal.Keys]{},
		incomplete: map[clusterType]map[Key]bool{},
	}
	d.owed = &owed{}
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

// learn reads the known clusters and types over a reading connection. So one of these is open
// from the start, and stays with the file even if its name is removed.
func (d *database) learn(ctx context.Context) (err error) {
	d.identities, err = readIdentities(ctx, d.read) // partly, if the file is damaged
	return err
}

// querier is a database or a transaction.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// each calls f with each row of a result.
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

// names returns the known clusters, sorted, and those that are being dropped.
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

// kind returns the number of a type; 0: no object of the type was ever stored.
func (d *database) kind(gr groupResource) int64 {
	d.known.RLock()
	defer d.known.RUnlock()
	return d.types[gr]
}

// gr returns the type of a number.
func (d *database) gr(kind int64) schema.GroupResource {
	d.known.RLock()
	defer d.known.RUnlock()
	return d.kinds[kind]
}

func (d *database) close() error {
	return errors.Join(append(d.batches.close(), d.read.Close(), d.write.Close())...)
}

// classify wraps a driver's error with the error that callers can distinguish.
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
