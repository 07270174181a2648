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
	patience time.Duration // how long a write may take; 0: for ever
	nearby   int           // rows that are passed over rather than counted

	claim      int64     // this writer's
	found      standing  // what was found when it was claimed
	distrusted error     // why nothing vouched for what was found; nil: it was trusted
	aside      *leftover // of a schema that was not whole; nil: nothing

	mu         sync.Mutex                   // held while writing
	incomplete map[clusterType]map[Key]bool // objects of which not even the name is stored: no checkpoint can vouch for the others
	counted    map[clusterType]int          // objects that are stored without a part; nil: they are to be counted
	epoch      string
	seq        int64 // the last that was committed
	trimmed    time.Time
	recording  bool     // the transaction tells what it does
	told       []*Event // what it has told
	unanswered *unanswered
	answered   *answered
	compressor compressor

	keeping   *keeping
	sealing   *atomic.Pointer[seal.Keys] // of the data of Secrets
	journal   *journal                   // nil while the database is being opened
	history   atomic.Int64               // about how many bytes
	salvaging atomic.Bool                // what a damaged file had of the past is being read into this one

	owed *owed

	known sync.RWMutex // of what follows
	identities
}

type groupResource struct{ group, resource string }

// readers is how many queries run at once.
const readers = 4

var (
	errNewer   = errors.New("database of a newer version")
	errDamaged = errors.New("database is damaged")
	// errOther: the database is another one, or went back to an earlier state.
	errOther = errors.New("database was replaced, or went back to an earlier state")
)

// openDatabase makes an open database usable: schema, statements, leftovers of an interrupted dropCluster.
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

// learn reads which clusters and types there are, as readers do: one of their connections is open from the start, and stays
// with the file when somebody removes its name.
func (d *database) learn(ctx context.Context) (err error) {
	d.identities, err = readIdentities(ctx, d.read) // of a damaged file, in part
	return err
}

// querier is a database or a transaction.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// each calls f with each row of an answer.
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

// names returns the clusters that are known, in order, and those that are being dropped.
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

// kind is the number of a type; 0: nothing was ever stored of it.
func (d *database) kind(gr groupResource) int64 {
	d.known.RLock()
	defer d.known.RUnlock()
	return d.types[gr]
}

// gr is the type of a number.
func (d *database) gr(kind int64) schema.GroupResource {
	d.known.RLock()
	defer d.known.RUnlock()
	return d.kinds[kind]
}

func (d *database) close() error {
	return errors.Join(append(d.batches.close(), d.read.Close(), d.write.Close())...)
}

// classify makes errors that callers tell apart out of a driver's.
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
