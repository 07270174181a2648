package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"orrery.dev/orrery/internal/seal"
)

// Errors that callers can distinguish.
var (
	// ErrFull means that there is no space for a write. Earlier writes are intact, and the same
	// write can be tried again.
	ErrFull = errors.New("no space left for the mirror's database")
	// ErrUnavailable means that the database cannot be used at present, or was damaged and
	// replaced. The same call can be tried again.
	ErrUnavailable = errors.New("the mirror's database cannot be used at present")
	// ErrContinue means that a continue token is damaged, or belongs to another query.
	ErrContinue = errors.New("continue token is not of this query")
	// ErrOtherQuery is an ErrContinue: the token is valid, but belongs to the same query for
	// other clusters.
	ErrOtherQuery = fmt.Errorf("%w: it was returned for other clusters", ErrContinue)
	// ErrNoHistory means that no history is kept, or not that of the requested moment any more.
	ErrNoHistory = errors.New("there is no history of it")
	// ErrSelector means that a selector cannot be evaluated.
	ErrSelector = errors.New("selector is not supported")
)

// TooOldError is an ErrNoHistory: the state at a moment is not completely known.
type TooOldError struct {
	From time.Time // first moment with complete history
}

// Error implements error.
func (e *TooOldError) Error() string {
	return fmt.Sprintf("%v: it is kept from %s on", ErrNoHistory, e.From.Format(time.RFC3339))
}

// Is reports whether target is ErrNoHistory.
func (e *TooOldError) Is(target error) bool { return target == ErrNoHistory }

// RejectedError names a row that the database refused. All other changes of the same Write were
// written.
type RejectedError struct {
	Cluster, Group, Resource, Namespace, Name string
	Stored                                    bool // stored without the refused part
	Err                                       error
}

// Error implements error.
func (e *RejectedError) Error() string {
	return fmt.Sprintf("store %s %s/%s of cluster %s: %v", (types.NamespacedName{Namespace: e.Namespace, Name: e.Name}),
		e.Resource, e.Group, e.Cluster, e.Err)
}

// Unwrap returns the database's error.
func (e *RejectedError) Unwrap() error { return e.Err }

// Row is one object in one cluster.
type Row struct {
	Cluster, Group, Version, Resource, Kind, Namespace, Name string

	UID             types.UID
	OwnerUID        types.UID // the controller, or else the first owner
	ResourceVersion string
	Created         time.Time
	Labels          map[string]string
	Body            []byte // JSON; managedFields without the fields
	// Note is a text that the writer stores with the row, such as a digest of managedFields. Rows
	// returns it; queries do not.
	Note string
	// Changed is the version of the change that made the row's state. Write ignores it. It is 0
	// for states of the past that do not come from a list.
	Changed Version
}

// Change is a row to write or, with Delete, to delete. Then only Cluster, Group, Resource,
// Namespace, Name and UID matter. An object with another UID is not deleted. Without a UID, any
// object of that name is deleted.
type Change struct {
	Row
	Delete bool
}

// Store is a cache in a database: a file, or a database on a server. A damaged file is set aside
// and replaced by a new one. A server's database that was replaced or went back to an earlier
// state is used as if it were new. In both cases the Store reports a loss, and the writer must
// write everything again.
type Store struct {
	path   string  // of the file; "": it is a server's database
	server *server // nil: the database is a file
	log    logr.Logger

	opening sync.Mutex // held while the database is opened or replaced

	mu      sync.RWMutex // read-locked while the database is used
	db      *database    // nil: none is open
	cause   error        // why none is open
	next    time.Time    // time of the next attempt to open it
	closed  bool
	losses  int
	lossFns []func()
	epoch   string // last known epoch of the server's database
	seq     int64

	claimant claimant
	// The server that took the server's database; nil: none. Guarded by opening.
	rival *rival
	// Why the contents of the server's database must not be trusted at the next open; nil: no
	// reason. Guarded by opening.
	rejected error
	renewing sync.WaitGroup

	keeping *keeping
	owed    owed
	sealing atomic.Pointer[seal.Keys]
	journal *journal

	salvaging  sync.WaitGroup
	endSalvage context.CancelFunc // ends the salvage of the open database

	readers  int             // maximum number of concurrent queries
	patience time.Duration   // how long callers wait while a database is being opened
	life     context.Context //nolint:containedctx // of what is opened, until Close
	end      context.CancelFunc
}

// openPatience is how long Open, and callers that find no open database, wait while one is being
// opened.
const openPatience = 30 * time.Second

var errOpening = errors.New("it is being opened, which takes long after an upgrade that indexes its objects anew")

// reopenDelay is the time between two attempts to open a database that cannot be opened.
const reopenDelay = time.Second

// Option changes how a store is opened.
type Option func(*Store)

// Sealed makes the store encrypt with keys, as SealWith does. The keys also apply to data that is
// read during opening: the history in a damaged file.
func Sealed(keys *seal.Keys) Option { return func(s *Store) { s.SealWith(keys) } }

// withReaders sets the maximum number of concurrent queries.
func withReaders(n int) Option { return func(s *Store) { s.readers = n } }

// Open opens or creates dir/mirror.db and updates its schema. A damaged file, or one of a newer
// version, is set aside. While the file is locked by another process, the disk is full, or
// opening takes longer than 30 s, calls return ErrUnavailable and opening is retried. Only an
// unusable directory is an error.
func Open(ctx context.Context, dir string, options ...Option) (*Store, error) {
	s := &Store{path: filepath.Join(dir, "mirror.db"), log: logr.FromContextOrDiscard(ctx), keeping: &keeping{is: DefaultHistory, now: time.Now}, journal: newJournal(), readers: readers, patience: openPatience, claimant: newClaimant()}
	for _, set := range options {
		set(s)
	}
	cause := s.begin(ctx)
	if _, ok := errors.AsType[*fs.PathError](cause); ok && !errors.Is(cause, syscall.ENOSPC) && !errors.Is(cause, syscall.EDQUOT) {
		s.end()
		return nil, fmt.Errorf("%w: the directory of the mirror's database must exist and be writable by this user; "+
			"the file holds only what is read again from the clusters, and may be deleted", cause)
	}
	if cause != nil {
		s.log.Error(cause, "Mirror's database cannot be opened; it is tried again until it can", "file", s.path)
	}
	return s, nil
}

// OpenDSN opens a database of PostgreSQL, MySQL or MariaDB and updates its schema. The database
// must exist, and must be used by the mirror only. The DSN is
// postgres://USER:PASSWORD@HOST:PORT/DATABASE?PARAMETERS, or mysql:// followed by the format of
// github.com/go-sql-driver/mysql: USER:PASSWORD@tcp(HOST:PORT)/DATABASE?PARAMETERS. While the
// server cannot be used, calls return ErrUnavailable and opening is retried. Only a DSN or
// database that can never be used is an error. No error and no log contains the DSN.
func OpenDSN(ctx context.Context, dsn string, options ...Option) (*Store, error) {
	server, err := parseDSN(dsn)
	if err != nil {
		return nil, err
	}
	s := &Store{server: server, log: logr.FromContextOrDiscard(ctx), keeping: &keeping{is: DefaultHistory, now: time.Now}, journal: newJournal(), readers: readers, patience: openPatience, claimant: newClaimant()}
	for _, set := range options {
		set(s)
	}
	cause := s.begin(ctx)
	if errors.Is(cause, errNewer) || errors.Is(cause, errUnfit) {
		s.end()
		return nil, fmt.Errorf("open the mirror's database at %s: %w", server.address, cause)
	}
	if cause != nil {
		s.log.Error(cause, "Mirror's database cannot be opened; it is tried again until it can", "server", server.address)
	}
	s.renewing.Go(s.renewClaims)
	return s, nil
}

// begin opens the database for the first time. It returns why the database is not open; nil: it
// is open, or opening still runs.
func (s *Store) begin(ctx context.Context) (cause error) {
	s.life, s.end = context.WithCancel(context.WithoutCancel(ctx))
	s.mu.Lock()
	s.cause = errOpening
	s.mu.Unlock()
	s.opening.Lock()
	if s.openBeside(ctx, false) {
		return s.problem()
	}
	s.log.Info("Mirror's database takes long to open, as after an upgrade that indexes its objects anew; until it is open nothing can be searched, and all else goes on")
	return nil
}

// openBeside opens the database in a goroutine, reports losses, and releases s.opening, which the
// caller must hold. It returns true when that has ended, and false if it takes longer than ctx or
// s.patience. In that case it continues until it has ended or the Store is closed.
func (s *Store) openBeside(ctx context.Context, again bool) (ended bool) {
	began, losses, done := time.Now(), s.Losses(), make(chan struct{})
	go func() {
		defer close(done)
		defer s.opening.Unlock()
		s.open(s.life)
		took := time.Since(began)
		switch cause := s.problem(); {
		// The store is closed, or Open reports the result.
		case s.life.Err() != nil || !again && took < s.patience:
		case cause == nil:
			s.log.Info("Mirror's database is open", "after", took.Round(time.Millisecond).String())
		case !again:
			s.log.Error(cause, "Mirror's database cannot be opened; it is tried again until it can")
		}
		s.told(losses)
	}()
	select {
	case <-done:
		return true
	case <-ctx.Done():
	case <-time.After(s.patience):
	}
	return false
}

// problem returns why no database is open; nil: one is.
func (s *Store) problem() error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.cause
}

// open opens the database. The caller holds s.opening.
func (s *Store) open(ctx context.Context) {
	db, left, err := s.openOnce(ctx)
	if db != nil {
		db.keeping, db.sealing, db.journal = s.keeping, &s.sealing, s.journal
		s.journal.reset(db.epoch, db.seq)
		db.read.SetMaxOpenConns(s.readers)
		historyBytes.Set(float64(db.history.Load()))
		db.owed = &s.owed
	}
	s.mu.Lock()
	s.db, s.cause, s.next = db, err, time.Now().Add(reopenDelay)
	s.mu.Unlock()
	if db != nil && left != nil {
		s.beginSalvage(db, left) //nolint:contextcheck // it ends when the database is closed
	}
}

// openOnce opens the database. left is the salvage to do from another file; nil: none.
func (s *Store) openOnce(ctx context.Context) (db *database, left *salvage, err error) {
	if s.server != nil {
		db, err = s.openServer(ctx)
		return db, nil, err
	}
	if db, err = openFile(ctx, s.path, s.claimant); unusable(err) {
		if err = s.setAside(err, 0); err == nil {
			db, err = openFile(ctx, s.path, s.claimant)
		}
	}
	if err == nil {
		if left, err = s.claim(ctx, db); err != nil {
			db, err = nil, errors.Join(err, db.close())
		}
	}
	return db, left, classify(sqliteDialect{}, err)
}

// openServer opens the server's database. If that is not as this store left it, earlier writes
// count as lost, and it gets a new epoch.
func (s *Store) openServer(ctx context.Context) (*database, error) {
	if err := s.leave(ctx); err != nil {
		return nil, err
	}
	c := s.claimant
	c.left, c.rejected = standing{epoch: s.epoch, seq: s.seq, owner: s.claimant.owner}, s.rejected
	if s.rival != nil {
		c.granted = s.rival.seen
	}
	db, err := s.server.open(ctx, c)
	if err != nil {
		if errors.Is(err, errClaimed) { // another server has opened it meanwhile
			s.yield(err)
		}
		return nil, err
	}
	s.rival, s.rejected = nil, nil
	s.epoch, s.seq = db.epoch, db.seq
	if db.aside != nil {
		s.log.Error(errDamaged, "Mirror's tables were not whole and are set aside by another name; new ones are filled from the clusters. Drop those that are set aside when nobody needs them",
			"server", s.server.address, "missing", db.aside.missing, "suffix", db.aside.suffix)
	}
	if db.distrusted == nil {
		if db.found.owner != "" && db.found.owner != s.claimant.owner {
			s.log.Info("This server writes to the mirror's database now, and took it over from another, or from an earlier start. If the other still runs, stop one of the two, or give each a database or a schema of its own",
				"server", s.server.address, "owner", s.claimant.owner, "previous", db.found.owner)
		}
		return db, nil
	}
	s.mu.Lock()
	s.losses++
	s.mu.Unlock()
	s.log.Error(db.distrusted, "Mirror's database is not as it was left; it is filled from the clusters", "server", s.server.address)
	return db, nil
}

// setAside renames the files of an unusable database. seq is its sequence; 0: unknown. The caller
// holds s.opening. Older files that were set aside are deleted, because they would fill the disk.
func (s *Store) setAside(why error, seq int64) error {
	old, err := filepath.Glob(globEscape(s.path) + ".damaged-*")
	if err != nil {
		return fmt.Errorf("find older damaged databases: %w", err)
	}
	for _, f := range old {
		if err := os.Remove(f); err != nil {
			return fmt.Errorf("remove older damaged database: %w", err)
		}
	}
	aside := s.path + ".damaged-" + time.Now().UTC().Format("20060102T150405.000Z")
	if err := s.noteAside(predecessor{File: filepath.Base(aside), Seq: seq}); err != nil {
		return err
	}
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if err := os.Rename(s.path+suffix, aside+suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("set damaged database aside: %w", err)
		}
	}
	s.mu.Lock()
	s.losses++
	s.mu.Unlock()
	s.log.Error(why, "Mirror's database cannot be used and is set aside; a new one is filled from the clusters", "setAside", aside)
	return nil
}

// globEscape returns a pattern that matches exactly this path.
func globEscape(path string) string {
	out := make([]rune, 0, len(path))
	for _, r := range path {
		switch r {
		case '*', '?', '[', '\\':
			out = append(out, '\\')
		}
		out = append(out, r)
	}
	return string(out)
}

// Losses returns how many times the contents were lost since Open began.
func (s *Store) Losses() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.losses
}

// OnLoss registers f, which is called after each later loss. Everything that was written before
// is gone.
func (s *Store) OnLoss(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lossFns = append(s.lossFns, f)
}

// do calls f with the open database, and replaces the database if f finds it damaged.
func (s *Store) do(ctx context.Context, f func(*database) error) error {
	s.reopen(ctx)
	s.mu.RLock()
	db, cause := s.db, s.cause
	if db == nil {
		s.mu.RUnlock()
		if errors.Is(cause, ErrUnavailable) {
			return cause
		}
		return fmt.Errorf("%w: %w", ErrUnavailable, cause)
	}
	err := f(db)
	s.mu.RUnlock()
	if err == nil || !errors.Is(err, errOther) && !errors.Is(err, errClaimed) && db.dialect.fault(err) != faultDamaged {
		return classify(db.dialect, err)
	}
	s.replace(db, err)
	if errors.Is(err, errClaimed) {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if s.server != nil {
		return fmt.Errorf("%w: it is not as it was left, and is filled from the clusters: %w", ErrUnavailable, err)
	}
	return fmt.Errorf("%w: it was damaged, and a new one is filled from the clusters: %w", ErrUnavailable, err)
}

// reopen tries to open the database if none is open, at most once per reopenDelay and in one
// goroutine at a time.
func (s *Store) reopen(ctx context.Context) {
	due := func() bool {
		s.mu.RLock()
		defer s.mu.RUnlock()
		return s.db == nil && !s.closed && !time.Now().Before(s.next)
	}
	if !due() || !s.opening.TryLock() {
		return
	}
	if !due() {
		s.opening.Unlock()
		return
	}
	s.openBeside(ctx, true)
}

// replace sets a damaged database aside and opens a new one, unless another goroutine has done
// so.
func (s *Store) replace(db *database, why error) {
	s.opening.Lock()
	defer s.opening.Unlock()
	s.mu.Lock() // the database is in use no longer
	if s.db != db {
		s.mu.Unlock()
		return
	}
	losses := s.losses
	s.db, s.cause = nil, why
	s.mu.Unlock()
	if s.endSalvage != nil {
		s.endSalvage()
	}
	db.mu.Lock()
	seq := db.seq
	db.mu.Unlock()
	if err := db.close(); err != nil {
		s.log.V(1).Info("Damaged database cannot be closed", "error", err.Error())
	}
	if s.server != nil {
		s.epoch, s.seq = db.epoch, seq
		switch {
		case errors.Is(why, errOther):
			s.rejected = why
		case errors.Is(why, errClaimed):
			s.yield(why)
			s.log.Error(why, "Mirror's database was taken by another server", "server", s.server.address)
		}
	} else if err := s.setAside(why, seq); err != nil {
		s.mu.Lock()
		s.cause, s.next = err, time.Now().Add(reopenDelay)
		s.mu.Unlock()
		s.log.Error(err, "Mirror's database is damaged; it is tried again until it can be replaced")
		return
	}
	s.open(s.life)
	s.told(losses)
}

// told calls the OnLoss functions if there were losses beyond the number before.
func (s *Store) told(before int) {
	s.mu.RLock()
	lost, fns := s.losses > before, s.lossFns
	s.mu.RUnlock()
	if !lost {
		return
	}
	for _, f := range fns {
		f()
	}
}

// Close closes the database.
func (s *Store) Close() error {
	s.end()
	s.renewing.Wait()
	s.opening.Lock()
	defer s.opening.Unlock()
	s.mu.Lock()
	db := s.db
	s.db, s.cause, s.closed = nil, errors.New("it is closed"), true
	s.mu.Unlock()
	if s.endSalvage != nil {
		s.endSalvage()
	}
	s.salvaging.Wait()
	if db == nil {
		return nil
	}
	return db.close()
}

// KeepHistory sets how much history is kept from now on.
func (s *Store) KeepHistory(h History) {
	s.keeping.mu.Lock()
	defer s.keeping.mu.Unlock()
	s.keeping.is = h
}

// Write writes the changes in order, in one transaction. It is idempotent. If the database
// refuses rows, Write stores as much of them as possible and returns RejectedErrors, after it has
// written everything else. Any other error means that possibly nothing was written, and the same
// changes can be written again.
func (s *Store) Write(ctx context.Context, changes []Change) error {
	err := s.do(ctx, func(d *database) error {
		return d.apply(ctx, changes)
	})
	if _, rejected := errors.AsType[*RejectedError](err); err == nil || rejected {
		s.trim(ctx)
	}
	return err
}

// trim deletes old history after a write. A failure is only logged, because the write itself
// succeeded.
func (s *Store) trim(ctx context.Context) {
	if err := s.do(ctx, func(d *database) error { return d.trim(ctx) }); err != nil {
		s.log.Error(err, "Old history of the mirror cannot be deleted; it is tried again after the next write")
	}
}

// List returns the next page of a query, in the query's order. Objects that are created or
// deleted between two pages do not move other objects out of them.
func (s *Store) List(ctx context.Context, q Query) (page Page, err error) {
	err = s.do(ctx, func(d *database) (err error) {
		now := s.journal.version()
		page, err = d.list(ctx, q)
		page.Version = now
		for i := range page.Rows {
			page.Rows[i].Changed = now.At(int64(page.Rows[i].Changed))
		}
		return err
	})
	return page, err
}

// Count returns how many objects a query selects, on all pages. With a limit it stops counting
// there, unless the number is in counters.
func (s *Store) Count(ctx context.Context, q Query) (n int64, err error) {
	err = s.do(ctx, func(d *database) (err error) {
		n, err = d.count(ctx, q)
		return err
	})
	return n, err
}

// Revisions returns the known states of all objects that had a name, from the latest on and at
// most limit of them, without bodies. Only states that began before the sequence before are
// returned; 0: all.
func (s *Store) Revisions(ctx context.Context, of Object, before int64, limit int) (out Revisions, err error) {
	err = s.do(ctx, func(d *database) error {
		out, err = d.revisions(ctx, of, before, limit)
		return err
	})
	return out, err
}

// Revision returns one complete state of an object: the one that began with the change of the
// given sequence.
func (s *Store) Revision(ctx context.Context, of Object, seq int64) (out Revision, err error) {
	err = s.do(ctx, func(d *database) error {
		out, err = d.revision(ctx, of, seq)
		return err
	})
	return out, err
}

// Changed returns the changes of a time interval (from exclusive, to inclusive), in the order of
// their sequences, beginning after the sequence after, and at most limit. The query may have a
// type, clusters, namespaces, names and scopes. Other requirements are refused, because an object
// may satisfy them only before or after a change.
func (s *Store) Changed(ctx context.Context, q Query, from, to time.Time, after int64, limit int) (out Changes, err error) {
	err = s.do(ctx, func(d *database) error {
		out, err = d.changed(ctx, q, from, to, after, limit)
		return err
	})
	return out, err
}

// Deleted returns deleted objects whose last states a query selects, the latest deletion first:
// those before a sequence (0: all), and at most limit. hidden excludes objects by key and time of
// deletion, also from Next; nil: none.
func (s *Store) Deleted(ctx context.Context, q Query, hidden func(of *Row, ended time.Time) bool, before int64, limit int) (out Revisions, err error) {
	err = s.do(ctx, func(d *database) error {
		out, err = d.deleted(ctx, q, hidden, before, limit)
		return err
	})
	return out, err
}

// Compare returns the objects that have changed since the moment of a query, were deleted, or
// were created, in the order of the key, up to the query's limit. The query may have the same
// requirements as in Changed.
func (s *Store) Compare(ctx context.Context, q Query) (out Differences, err error) {
	err = s.do(ctx, func(d *database) error {
		out, err = d.compare(ctx, q)
		return err
	})
	return out, err
}

// SaveType records a type of a cluster until the type or the cluster is dropped.
func (s *Store) SaveType(ctx context.Context, t Type) error {
	return s.do(ctx, func(d *database) error { return d.saveType(ctx, t) })
}

// Types returns the recorded types, sorted by cluster, group and resource.
func (s *Store) Types(ctx context.Context) (out []Type, err error) {
	err = s.do(ctx, func(d *database) (err error) {
		out, err = d.served(ctx)
		return err
	})
	return out, err
}

// Keys returns the keys of all stored objects of a type in a cluster.
func (s *Store) Keys(ctx context.Context, cluster string, gr schema.GroupResource) (out []Key, err error) {
	err = s.do(ctx, func(d *database) (err error) {
		out, err = d.keys(ctx, cluster, gr)
		return err
	})
	return out, err
}

// Rows returns the next rows of a type in a cluster, sorted by key, after a key and at most
// limit. The rows have namespace, name, UID, version, labels and note. They have bodies if they
// have a note, or with bodies.
func (s *Store) Rows(ctx context.Context, cluster string, gr schema.GroupResource, bodies bool, after Key, limit int) (out []Row, err error) {
	err = s.do(ctx, func(d *database) error {
		out, err = d.rows(ctx, cluster, gr, bodies, after, limit)
		return err
	})
	return out, err
}

// Epoch returns the ID of the open database. A replacement has another epoch.
func (s *Store) Epoch(ctx context.Context) (epoch string, err error) {
	err = s.do(ctx, func(d *database) error {
		epoch, err = d.readEpoch(ctx)
		return err
	})
	return epoch, err
}

// SaveCheckpoints saves checkpoints in one transaction. It skips checkpoints that cannot cover
// the rows of their type: the rows were written to another database, the type was not saved, or
// the database refused one of its rows.
func (s *Store) SaveCheckpoints(ctx context.Context, checkpoints []Checkpoint) error {
	err := s.do(ctx, func(d *database) error { return d.saveCheckpoints(ctx, checkpoints) })
	if err == nil {
		s.trim(ctx)
	}
	return err
}

// Checkpoint returns the state of the last saved checkpoint of a type in a cluster; nil: none.
func (s *Store) Checkpoint(ctx context.Context, cluster string, gr schema.GroupResource) (state []byte, err error) {
	err = s.do(ctx, func(d *database) error {
		state, err = d.checkpoint(ctx, cluster, gr)
		return err
	})
	return state, err
}

// HideCluster hides the rows of a cluster in this process without deleting them. A later write to
// the cluster deletes them first.
func (s *Store) HideCluster(cluster string) { s.owe(cluster, schema.GroupResource{}) }

// DropCluster deletes all data of a cluster. The rows are invisible at once, even if the deletion
// fails; then call it again. The next Open completes an interrupted deletion, and so does a write
// to the cluster.
func (s *Store) DropCluster(ctx context.Context, cluster string) error {
	s.owe(cluster, schema.GroupResource{})
	return s.do(ctx, func(d *database) error {
		if err := d.forgo(ctx, cluster, schema.GroupResource{}); err != nil {
			return err
		}
		if err := d.dropCluster(ctx, cluster); err != nil {
			return err
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.forgetIncomplete(cluster, 0)
		return nil
	})
}

// DropType deletes all objects of a type in a cluster. They are invisible at once, even if the
// deletion fails; then call it again. A write to the type completes the deletion.
func (s *Store) DropType(ctx context.Context, cluster string, gr schema.GroupResource) error {
	s.owe(cluster, gr)
	return s.do(ctx, func(d *database) error {
		if err := d.forgo(ctx, cluster, gr); err != nil {
			return err
		}
		if err := d.dropType(ctx, cluster, gr); err != nil {
			return err
		}
		if kind := d.kind(groupResource{gr.Group, gr.Resource}); kind != 0 {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.forgetIncomplete(cluster, kind)
		}
		return nil
	})
}
