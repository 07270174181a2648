package records

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"orrery.dev/orrery/internal/sqlite"
)

// Errors that callers can distinguish.
var (
	// ErrUnavailable means that the records cannot be read or written now. Later they may be.
	ErrUnavailable = errors.New("records are not available")
	// ErrNewer means that a newer version wrote the file.
	ErrNewer = errors.New("records of a newer version")
	// ErrInUse means that another process has the file open.
	ErrInUse = errors.New("records are in use by another process")
)

const (
	batchEvery = 100 * time.Millisecond // how long new records wait for more
	retryEvery = time.Second            // delay between attempts to write
	pruneEvery = time.Hour
	lastWrite  = 3 * time.Second // how long stopping waits for unwritten records

	keepFor   = 365 * 24 * time.Hour
	keepBytes = 1 << 30
)

// Records are the records in a file. It is a Runnable of controller-runtime's manager: what
// Recorder methods store is written while it runs.
type Records struct {
	path   string
	schema []string
	log    logr.Logger

	maxPending int
	keepFor    time.Duration
	keepBytes  int64

	mu     sync.RWMutex // read-locked during use of the database
	db     *database    // nil: not open
	closed bool

	writing sync.Mutex // held while batches are written

	state   sync.Mutex // guards the fields below; never held during use of the database
	pending *batch     // new records
	flight  *batch     // being written; nil: none
	problem error

	wake chan struct{} // there are records to write
	kick chan struct{} // Flush waits
}

var _ Store = (*Records)(nil)

// Open opens or creates dir/records.db and updates its schema. A damaged file is set aside and
// replaced by a new one. If the disk fails for now, the records are opened without a file: Start
// retries, and Problem says why.
func Open(ctx context.Context, dir string, log logr.Logger) (*Records, error) {
	return open(ctx, dir, log, schema)
}

func open(ctx context.Context, dir string, log logr.Logger, schema []string) (*Records, error) {
	r := &Records{
		path: filepath.Join(dir, "records.db"), schema: schema, log: log,
		maxPending: maxPending, keepFor: keepFor, keepBytes: keepBytes,
		pending: newBatch(), wake: make(chan struct{}, 1), kick: make(chan struct{}, 1),
	}
	err := r.reopen(ctx)
	switch {
	case err == nil:
		return r, nil
	case errors.Is(err, sqlite.ErrNewer):
		return nil, fmt.Errorf("%w: %v: use that version, or move the file away; then the history of decisions, results and the "+
			"revisions of workloads begin anew", ErrNewer, err)
	case errors.Is(err, sqlite.ErrLocked):
		return nil, fmt.Errorf("%w: %v: stop the other one", ErrInUse, err) //nolint:errorlint // callers see no errors of the database
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission), ctx.Err() != nil:
		return nil, err
	}
	r.failed(err)
	signal(r.wake)
	return r, nil
}

// reopen opens the file if it is not open, and sets a damaged one aside.
func (r *Records) reopen(ctx context.Context) (err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.db != nil {
		return nil
	}
	if r.closed {
		return fmt.Errorf("%w: they are closed", ErrUnavailable)
	}
	r.db, err = openDatabase(ctx, r.path, r.schema)
	if errors.Is(err, sqlite.ErrDamaged) {
		return r.beginAnew(ctx, err)
	}
	return err
}

// replace closes a database that is damaged, and starts a new one.
func (r *Records) replace(ctx context.Context, damaged *database, reason error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.db != damaged { // another goroutine replaced it
		return nil
	}
	r.db = nil
	if err := damaged.Close(); err != nil {
		r.log.V(1).Info("The damaged records could not be closed cleanly.", "error", err.Error())
	}
	err := r.beginAnew(ctx, reason)
	if err != nil {
		signal(r.wake) // the writer retries
	}
	return err
}

// beginAnew sets a damaged file aside and opens a new one. The caller holds mu.
func (r *Records) beginAnew(ctx context.Context, reason error) error {
	aside, err := sqlite.SetAside(r.path, time.Now())
	if err != nil {
		return errors.Join(reason, err)
	}
	setAside.Inc()
	r.log.Error(reason, "Records are damaged and begin anew: earlier decisions, results and revisions are lost. The damaged file can be deleted.",
		"setAside", aside)
	r.db, err = openDatabase(ctx, r.path, r.schema)
	return err
}

// with runs f on the database. If the database is damaged, it runs f once more on a new one.
func (r *Records) with(ctx context.Context, f func(*database) error) error {
	for again := true; ; again = false {
		r.mu.RLock()
		db := r.db
		if db == nil {
			r.mu.RUnlock()
			return ErrUnavailable
		}
		err := f(db)
		r.mu.RUnlock()
		if !errors.Is(err, sqlite.ErrDamaged) || ctx.Err() != nil {
			return err
		}
		if replaceErr := r.replace(ctx, db, err); replaceErr != nil || !again {
			return errors.Join(err, replaceErr)
		}
	}
}

// public returns an error for callers, who distinguish only ErrUnavailable and errors of ctx.
func public(ctx context.Context, what string, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", what, ctx.Err())
	case errors.Is(err, ErrUnavailable):
		return fmt.Errorf("%s: %w", what, err)
	}
	return fmt.Errorf("%s: %w: %v", what, ErrUnavailable, err) //nolint:errorlint // callers see no errors of the database
}

// Decided implements Recorder.
func (r *Records) Decided(d Decision) {
	d = canonical(d)
	r.tell(func(b *batch) { b.decided(d, r.maxPending) })
}

// Applied implements Recorder.
func (r *Records) Applied(results ...Result) {
	r.tell(func(b *batch) {
		for _, result := range results {
			b.applied(result)
		}
	})
}

// ForgetBinding implements Recorder.
func (r *Records) ForgetBinding(binding types.UID) {
	r.tell(func(b *batch) { b.forgetBinding(binding) })
}

// ForgetCluster implements Recorder.
func (r *Records) ForgetCluster(cluster string) {
	r.tell(func(b *batch) { b.forgetCluster(cluster) })
}

func (r *Records) tell(f func(*batch)) {
	r.state.Lock()
	f(r.pending)
	r.state.Unlock()
	signal(r.wake)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Decisions implements Reader.
func (r *Records) Decisions(ctx context.Context, template types.UID, limit int) (out []Decision, err error) {
	err = r.with(ctx, func(db *database) (err error) {
		out, err = db.decisions(ctx, template, limit)
		return err
	})
	return out, public(ctx, fmt.Sprintf("read decisions on %s", template), err)
}

// Results implements Reader.
func (r *Records) Results(ctx context.Context, binding types.UID) (out []Result, err error) {
	err = r.with(ctx, func(db *database) (err error) {
		out, _, err = db.results(ctx, selectResults+"WHERE r.binding = ? ORDER BY c.name", string(binding))
		return err
	})
	return out, public(ctx, fmt.Sprintf("read results of binding %s", binding), err)
}

// AllResults implements Reader. It reads page by page, so a slow caller blocks no writes.
func (r *Records) AllResults(ctx context.Context) iter.Seq2[Result, error] {
	return func(yield func(Result, error) bool) {
		var binding types.UID
		var cluster int64
		for {
			var page []Result
			err := r.with(ctx, func(db *database) (err error) {
				var last int64
				page, last, err = db.results(ctx, selectResults+"WHERE (r.binding, r.cluster) > (?, ?) ORDER BY r.binding, r.cluster LIMIT ?",
					string(binding), cluster, chunk)
				if err == nil && len(page) > 0 {
					binding, cluster = page[len(page)-1].Binding, last
				}
				return err
			})
			if err != nil {
				yield(Result{}, public(ctx, "read results", err))
				return
			}
			for _, result := range page {
				if !yield(result, nil) {
					return
				}
			}
			if len(page) < chunk {
				return
			}
		}
	}
}

// PutRevision implements RevisionKeeper.
func (r *Records) PutRevision(ctx context.Context, revision Revision) error {
	err := r.with(ctx, func(db *database) error { return db.putRevision(ctx, revision) })
	return public(ctx, fmt.Sprintf("keep revision %d of %s", revision.Number, revision.Template), err)
}

// Revisions implements RevisionKeeper.
func (r *Records) Revisions(ctx context.Context, template types.UID) (out []Revision, err error) {
	err = r.with(ctx, func(db *database) (err error) {
		out, err = db.revisions(ctx, template)
		return err
	})
	return out, public(ctx, fmt.Sprintf("read revisions of %s", template), err)
}

// DeleteRevisions implements RevisionKeeper.
func (r *Records) DeleteRevisions(ctx context.Context, template types.UID, numbers ...int64) error {
	err := r.with(ctx, func(db *database) error { return db.deleteRevisions(ctx, template, numbers) })
	return public(ctx, fmt.Sprintf("delete revisions of %s", template), err)
}

// Problem returns why new records are not being written; nil if they are.
func (r *Records) Problem() error {
	r.state.Lock()
	defer r.state.Unlock()
	return r.problem
}
