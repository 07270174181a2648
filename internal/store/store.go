package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
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
	// ErrUnavailable means that the database cannot be used at present, was taken by another server,
	// or was damaged and replaced. The same call can be tried again.
	ErrUnavailable = errors.New("the mirror's database cannot be used at present")
	// ErrContinue means that the continue token of a query is damaged, or belongs to a query with
	// other parameters. The client must list again without it.
	ErrContinue = errors.New("continue token is not of this query")
	// ErrOtherQuery is an ErrContinue. The token is valid, but was returned for the same query with
	// other clusters or versions.
	ErrOtherQuery = fmt.Errorf("%w: it was returned for other clusters", ErrContinue)
	// ErrNoHistory means that no history is kept of the type, or that a requested past state is not
	// kept any more.
	ErrNoHistory = errors.New("there is no history of it")
	// ErrSelector means that a query is invalid, or has a requirement that the store cannot evaluate.
	ErrSelector = errors.New("selector is not supported")
)

// TooOldError is an ErrNoHistory: the states at the requested time are not completely known any
// more. From is the first time at which they are.
type TooOldError struct {
	From time.Time // first moment with complete history
}

// Error implements error.
func (e *TooOldError) Error() string {
	return fmt.Sprintf("%v: it is kept from %s on", ErrNoHistory, e.From.Format(time.RFC3339))
}

// Is reports whether target is ErrNoHistory.
func (e *TooOldError) Is(target error) bool { return target == ErrNoHistory }

// RejectedError is an error of Write about one row, which the database refused for the reason Err.
// Stored reports whether the row is stored without the refused part. All other changes of the same
// Write were written.
type RejectedError struct {
	Cluster, Group, Resource, Namespace, Name string
	Stored                                    bool // stored without the refused part
	Err                                       error
}

// Error implements error.
func (e *RejectedError) Error() string {
	return fmt.Sprintf("store %s %s of cluster %s: %v", schema.GroupResource{Group: e.Group, Resource: e.Resource},
		strings.TrimPrefix(types.NamespacedName{Namespace: e.Namespace, Name: e.Name}.String(), "/"), e.Cluster, e.Err)
}

// Unwrap returns Err, the reason of the database.
func (e *RejectedError) Unwrap() error { return e.Err }

// Row is one object in one cluster, as it is stored. Its key consists of cluster, group, resource,
// namespace and name.
type Row struct {
	Cluster, Group, Version, Resource, Kind, Namespace, Name string

	UID             types.UID
	OwnerUID        types.UID // the controller, or else the first owner
	ResourceVersion string
	Created         time.Time
	Labels          map[string]string
	Body            []byte // JSON; of managedFields without the lists of fields
	// Note is a text that the writer stores with the row, such as a digest of managedFields. Rows
	// returns it; queries do not.
	Note string
	// Changed is the version of the change after which the object is in this state, in results of List
	// and in events. Elsewhere it is 0. Write ignores it.
	Changed Version
}

// Change is one element of a Write: a row to write or, with Delete, an object to delete. For a
// deletion only Cluster, Group, Resource, Namespace, Name and UID are used. It is skipped if the
// stored object has another UID. If UID is "", any object of that name is deleted.
type Change struct {
	Row
	Delete bool
}

// Store keeps the observed objects of all clusters in a database: a file, or a database on a
// server. The mirror writes it, and search reads it. Open and OpenDSN return one. It may be used
// from several goroutines. A damaged file is set aside and replaced by a new one. If a server's
// database was replaced or went back to an earlier state, its rows are not trusted. In both cases
// the Store reports a loss (see OnLoss), and the writer must write everything again.
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
	losses  int      // see Losses
	lossFns []func() // see OnLoss
	epoch   string   // last known epoch of the server's database
	seq     int64    // last known sequence of the server's database

	claimant claimant
	// The server that took the server's database; nil: none. Guarded by opening.
	otherServer *otherServer
	// Why the contents of the server's database must not be trusted at the next open; nil: no
	// reason. Guarded by opening.
	rejected error
	renewing sync.WaitGroup

	keeping          *keeping
	pendingDeletions pendingDeletions
	sealing          atomic.Pointer[seal.Keys]
	journal          *journal

	salvaging  sync.WaitGroup
	endSalvage context.CancelFunc // ends the salvage of the open database

	readers  int                // maximum number of concurrent queries
	patience time.Duration      // how long callers wait while a database is being opened
	life     context.Context    //nolint:containedctx // ends with Close
	end      context.CancelFunc // ends life
}

// openPatience is how long Open, and a call that begins to open the database again, wait for the
// result. Opening then continues in the background.
const openPatience = 30 * time.Second

// errOpening is the cause of ErrUnavailable while the database is being opened for the first time.
var errOpening = errors.New("it is being opened, which takes long after an upgrade that indexes its objects anew")

// reopenDelay is the minimum time between two attempts to open a database.
const reopenDelay = time.Second

// Option is an argument of Open and OpenDSN that changes a setting before the database is opened.
type Option func(*Store)

// Sealed is an option that sets the keys for the data of Secrets, as SealWith does. The keys are
// then also used while the database is opened, for the history in a damaged file.
func Sealed(keys *seal.Keys) Option { return func(s *Store) { s.SealWith(keys) } }

// withReaders is an option that sets the maximum number of concurrent queries.
func withReaders(n int) Option { return func(s *Store) { s.readers = n } }

// Open opens or creates the file dir/mirror.db and updates its schema. A damaged file, or one of a
// newer version, is set aside and replaced. Only an unusable directory is an error. If the file is
// locked by another process, or the disk is full, the Store is returned without an open database.
// The same happens if opening takes longer than 30 s, or ctx ends. Calls then return
// ErrUnavailable, and opening continues or is tried again. The caller must call Close; the end of
// ctx does not close the Store.
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
// github.com/go-sql-driver/mysql: USER:PASSWORD@tcp(HOST:PORT)/DATABASE?PARAMETERS. Only a DSN or
// database that can never be used is an error. While the server cannot be used, calls return
// ErrUnavailable, and opening is tried again. One server at a time writes to the database: it
// claims the database, and renews the claim until Close. No error and no log contains the DSN.
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

// begin sets s.life and s.end, and opens the database for the first time, for Open and OpenDSN. It
// returns why the database could not be opened. nil means that it is open, or that opening still
// runs after s.patience or the end of ctx.
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

// openBeside opens the database in a goroutine, calls the functions of OnLoss after a loss, and
// unlocks s.opening, which the caller must have locked. It returns true when the goroutine has
// ended, also if the database could not be opened. It returns false if ctx or s.patience ends
// first; the goroutine then continues. again means that this is not the first attempt.
func (s *Store) openBeside(ctx context.Context, again bool) (ended bool) {
	began, losses, done := time.Now(), s.Losses(), make(chan struct{})
	go func() {
		defer close(done)
		defer s.opening.Unlock()
		s.open(s.life)
		took := time.Since(began)
		switch cause := s.problem(); {
		// Nothing is logged if the store is closed, or Open itself reports the result.
		case s.life.Err() != nil || !again && took < s.patience:
		case cause == nil:
			s.log.Info("Mirror's database is open", "after", took.Round(time.Millisecond).String())
		case !again:
			s.log.Error(cause, "Mirror's database cannot be opened; it is tried again until it can")
		}
		s.notifyLosses(losses)
	}()
	select {
	case <-done:
		return true
	case <-ctx.Done():
	case <-time.After(s.patience):
	}
	return false
}

// problem returns the reason why no database is open; nil: a database is open.
func (s *Store) problem() error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.cause
}

// open tries once to open the database. It sets s.db or, after a failure, s.cause, and starts the
// salvage of a damaged file's history that is not finished. The caller holds s.opening.
func (s *Store) open(ctx context.Context) {
	db, left, err := s.openOnce(ctx)
	if db != nil {
		db.keeping, db.sealing, db.journal = s.keeping, &s.sealing, s.journal
		s.journal.reset(db.epoch, db.seq)
		db.read.SetMaxOpenConns(s.readers)
		historyBytes.Set(float64(db.history.Load()))
		db.pendingDeletions = &s.pendingDeletions
	}
	s.mu.Lock()
	s.db, s.cause, s.next = db, err, time.Now().Add(reopenDelay)
	s.mu.Unlock()
	if db != nil && left != nil {
		s.beginSalvage(db, left) //nolint:contextcheck // it ends when the database is closed
	}
}

// openOnce opens the database and returns it. If a file is unusable, openOnce sets it aside,
// creates a new file and opens that. left is the salvage of a damaged file's history that is to be
// done; nil: none. The caller holds s.opening.
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

// openServer opens the database of the server, and stores its epoch (ID) and sequence in s. If the
// database is not as this store left it, openServer counts a loss, and the database gets a new
// epoch. The error wraps errClaimed if another server owns the database. The caller holds
// s.opening.
func (s *Store) openServer(ctx context.Context) (*database, error) {
	if err := s.leave(ctx); err != nil {
		return nil, err
	}
	c := s.claimant
	c.left, c.rejected = epochRow{epoch: s.epoch, seq: s.seq, owner: s.claimant.owner}, s.rejected
	if s.otherServer != nil {
		c.granted = s.otherServer.seen
	}
	db, err := s.server.open(ctx, c)
	if err != nil {
		if errors.Is(err, errClaimed) { // another server has opened it meanwhile
			s.yield(err)
		}
		return nil, err
	}
	s.otherServer, s.rejected = nil, nil
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

// setAside renames the files of an unusable database to ….damaged-TIME, and counts a loss. It
// stores a note with the name, so that the history is salvaged from there. why is the reason, for
// the log. seq is the last sequence of the database; 0: unknown. Earlier files that were set aside
// are deleted, because they would fill the disk. The caller holds s.opening.
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

// globEscape returns a pattern for filepath.Glob that matches only this path.
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

// Losses returns how many times the stored objects were lost since Open began. If the number has
// grown, the writer must write everything again.
func (s *Store) Losses() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.losses
}

// OnLoss registers f, which is called after each later loss of the stored objects. Everything that
// was written before is gone, and must be written again. All registered functions are called one
// after another. A call of the Store that finds the loss may wait for f, so f must not call the
// Store.
func (s *Store) OnLoss(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lossFns = append(s.lossFns, f)
}

// do calls f with the open database and returns f's error, classified as by classify. If no
// database is open, do first tries to open one. If that fails, it returns ErrUnavailable without a
// call of f. If the error of f shows that the database is damaged, replaced or claimed by another
// server, do replaces it and returns ErrUnavailable. s.mu is read-locked while f runs, so f must
// not call do.
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

// reopen tries to open the database if none is open, at most once per reopenDelay. If another
// goroutine is opening it, reopen returns at once. After a failure, s.cause has the reason.
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

// replace closes db, which do found damaged, replaced or claimed by another server, for the reason
// why. It then opens a database again. A file is set aside before. If db is no longer the open
// database, another goroutine has replaced it, and replace does nothing. A failure is logged, and
// s.cause has the reason.
func (s *Store) replace(db *database, why error) {
	s.opening.Lock()
	defer s.opening.Unlock()
	// With this lock, no call uses the database any more.
	s.mu.Lock()
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
	s.notifyLosses(losses)
}

// notifyLosses calls each function of OnLoss once if Losses has grown since it was before.
func (s *Store) notifyLosses(before int) {
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

// Close waits for the calls that use the database, ends the background work, and closes the
// database. Later calls return ErrUnavailable.
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

// KeepHistory sets how much history is kept from now on. The next writes delete history that is too
// old, or too much, for the new setting.
func (s *Store) KeepHistory(h History) {
	s.keeping.mu.Lock()
	defer s.keeping.mu.Unlock()
	s.keeping.is = h
}

// Write writes the changes in order, in one transaction. It is idempotent. If the database refuses
// rows, Write stores as much of each as possible. After it has written everything else, it returns
// the RejectedErrors of these rows, joined. Any other error means that possibly nothing was
// written, and the same changes can be written again. Before, Write completes pending deletions of
// the clusters and types of the changes. Afterwards it deletes history that is too old.
func (s *Store) Write(ctx context.Context, changes []Change) error {
	err := s.do(ctx, func(d *database) error {
		return d.apply(ctx, changes)
	})
	if _, rejected := errors.AsType[*RejectedError](err); err == nil || rejected {
		s.trim(ctx)
	}
	return err
}

// trim deletes history that is too old or too much, after a write. A failure is only logged,
// because the write itself succeeded.
func (s *Store) trim(ctx context.Context) {
	if err := s.do(ctx, func(d *database) error { return d.trim(ctx) }); err != nil {
		s.log.Error(err, "Old history of the mirror cannot be deleted; it is tried again after the next write")
	}
}

// List returns the next page of a query, in the order of the query. It returns an empty page if the
// type, or every cluster of the query, is unknown. Objects that are created or deleted between two
// pages do not move other objects out of the pages. The error is an ErrSelector or ErrContinue for
// a query that cannot be answered. With q.At, the error may be an ErrNoHistory. List starts the
// journal of changes, so that Since can continue from Page.Version.
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

// Count returns how many objects a query selects, on all pages together. It ignores Order, Offset
// and Continue. If q.Limit is greater than 0, it stops counting at that number. The result may
// still be greater if it comes from stored counters, or q.At is set.
func (s *Store) Count(ctx context.Context, q Query) (n int64, err error) {
	err = s.do(ctx, func(d *database) (err error) {
		n, err = d.count(ctx, q)
		return err
	})
	return n, err
}

// Revisions returns the known states of all objects that had a name, the latest first and without
// bodies. before is 0, or Revisions.Next of the previous page: only states are returned that began
// before that sequence. limit is the maximum number, which must be positive. An unknown name has no
// states, and is no error. The error is an ErrNoHistory if no history is kept of the type.
func (s *Store) Revisions(ctx context.Context, of Object, before int64, limit int) (out Revisions, err error) {
	err = s.do(ctx, func(d *database) error {
		out, err = d.revisions(ctx, of, before, limit)
		return err
	})
	return out, err
}

// Revision returns one state of an object with its body: the state that began with the change of
// the sequence seq. It may be the present state. If the state is not kept, the error is an
// ErrNoHistory.
func (s *Store) Revision(ctx context.Context, of Object, seq int64) (out Revision, err error) {
	err = s.do(ctx, func(d *database) error {
		out, err = d.revision(ctx, of, seq)
		return err
	})
	return out, err
}

// Changed returns the changes of objects after the time from and up to the time to, in the order of
// their sequences. after is 0, or Changes.Next of the previous page. limit is the maximum number of
// changes, which must be positive. A page may have one more, because a deletion and a creation can
// share a sequence. The query may have a type, clusters, namespaces, names, parts of names and
// scopes. Version, OwnerUID, Labels and Fields are refused with ErrSelector, because an object may
// satisfy them only before or after a change. All other requirements are ignored. The error is a
// TooOldError if from is too long ago, and an ErrNoHistory if no history is kept of the type.
func (s *Store) Changed(ctx context.Context, q Query, from, to time.Time, after int64, limit int) (out Changes, err error) {
	err = s.do(ctx, func(d *database) error {
		out, err = d.changed(ctx, q, from, to, after, limit)
		return err
	})
	return out, err
}

// Deleted returns deleted objects whose last states a query selects, with bodies, the latest
// deletion first. before is 0, or Revisions.Next of the previous page: only deletions with a
// smaller sequence are returned. limit is the maximum number, which must be positive. If hidden is
// not nil, objects for which it returns true, by key and time of deletion, are left out and not
// counted. Deleted ignores the owner's name, OwnerSteps, At, Order, Limit, Offset and Continue. The
// error is an ErrNoHistory if no history is kept of the type, and an ErrSelector for an invalid
// query.
func (s *Store) Deleted(ctx context.Context, q Query, hidden func(of *Row, ended time.Time) bool, before int64, limit int) (out Revisions, err error) {
	err = s.do(ctx, func(d *database) error {
		out, err = d.deleted(ctx, q, hidden, before, limit)
		return err
	})
	return out, err
}

// Compare returns the objects that were created, changed or deleted since q.At, sorted by cluster,
// namespace and name. The query may have a type, clusters, namespaces, names, parts of names,
// scopes, Limit and Continue. Other requirements are refused with ErrSelector, except those of
// Slim, which apply only to the past states. The error is a TooOldError if q.At is too long ago,
// and an ErrNoHistory if no history is kept of the type.
func (s *Store) Compare(ctx context.Context, q Query) (out Differences, err error) {
	err = s.do(ctx, func(d *database) error {
		out, err = d.compare(ctx, q)
		return err
	})
	return out, err
}

// SaveType records that a cluster has a type, with the description of the type, until DropType or
// DropCluster. A second call replaces the description. If a deletion of the type or the cluster is
// pending, SaveType completes it first.
func (s *Store) SaveType(ctx context.Context, t Type) error {
	return s.do(ctx, func(d *database) error { return d.saveType(ctx, t) })
}

// Types returns the types that SaveType recorded, sorted by cluster, group and resource. Types and
// clusters with a pending deletion are left out.
func (s *Store) Types(ctx context.Context) (out []Type, err error) {
	err = s.do(ctx, func(d *database) (err error) {
		out, err = d.served(ctx)
		return err
	})
	return out, err
}

// Keys returns the keys of all stored objects of a type in a cluster, in no order. It returns none
// while the deletion of the cluster or the type is pending.
func (s *Store) Keys(ctx context.Context, cluster string, gr schema.GroupResource) (out []Key, err error) {
	err = s.do(ctx, func(d *database) (err error) {
		out, err = d.keys(ctx, cluster, gr)
		return err
	})
	return out, err
}

// Rows returns the rows of a type in a cluster, sorted by namespace and name. It returns those
// after the key after, at most limit. The rows have cluster, group, resource, namespace, name, UID,
// resourceVersion, labels and note. They have a body if they have a note, or if bodies is true.
// While the deletion of the cluster or the type is pending, there are none.
func (s *Store) Rows(ctx context.Context, cluster string, gr schema.GroupResource, bodies bool, after Key, limit int) (out []Row, err error) {
	err = s.do(ctx, func(d *database) error {
		out, err = d.rows(ctx, cluster, gr, bodies, after, limit)
		return err
	})
	return out, err
}

// Epoch returns the ID of the open database, for Checkpoint.Epoch. A database that replaces it has
// another ID, and so has one that went back to an earlier state.
func (s *Store) Epoch(ctx context.Context) (epoch string, err error) {
	err = s.do(ctx, func(d *database) error {
		epoch, err = d.readEpoch(ctx)
		return err
	})
	return epoch, err
}

// SaveCheckpoints saves checkpoints in one transaction. It silently skips a checkpoint that cannot
// cover the rows of its type. The reason is that the rows were written to another database, the
// type was not saved, or the database refused one of its rows. Afterwards it deletes history that
// is too old.
func (s *Store) SaveCheckpoints(ctx context.Context, checkpoints []Checkpoint) error {
	err := s.do(ctx, func(d *database) error { return d.saveCheckpoints(ctx, checkpoints) })
	if err == nil {
		s.trim(ctx)
	}
	return err
}

// Checkpoint returns Checkpoint.State of the last saved checkpoint of a type in a cluster. nil
// means that none is saved, or that the deletion of the cluster or the type is pending.
func (s *Store) Checkpoint(ctx context.Context, cluster string, gr schema.GroupResource) (state []byte, err error) {
	err = s.do(ctx, func(d *database) error {
		state, err = d.checkpoint(ctx, cluster, gr)
		return err
	})
	return state, err
}

// HideCluster makes queries of this process leave out all rows of a cluster, without deleting the
// rows now. It cannot be undone. A later write to the cluster, or DropCluster, deletes the rows.
func (s *Store) HideCluster(cluster string) { s.addPendingDeletion(cluster, schema.GroupResource{}) }

// DropCluster deletes all data of a cluster, with its history. The rows are invisible at once, even
// if the deletion fails. After a failure, the caller calls it again. The next Open, or a write to
// the cluster, also completes the deletion. An unknown cluster is no error.
func (s *Store) DropCluster(ctx context.Context, cluster string) error {
	s.addPendingDeletion(cluster, schema.GroupResource{})
	return s.do(ctx, func(d *database) error {
		if err := d.stopSalvage(ctx, cluster, groupResource{}, d.locked); err != nil {
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

// DropType deletes all objects of a type in a cluster, with their history, the record of SaveType
// and the checkpoint. The objects are invisible at once, even if the deletion fails. After a
// failure, the caller calls it again. A write to the type also completes the deletion. An unknown
// type is no error.
func (s *Store) DropType(ctx context.Context, cluster string, gr schema.GroupResource) error {
	s.addPendingDeletion(cluster, gr)
	return s.do(ctx, func(d *database) error {
		if err := d.stopSalvage(ctx, cluster, groupResource{gr.Group, gr.Resource}, d.locked); err != nil {
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
