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
	// ErrUnavailable means that the records cannot be read or written now. The same call may work
	// later.
	ErrUnavailable = errors.New("records are not available")
	// ErrNewer means that a newer version of the program wrote the file of the records.
	ErrNewer = errors.New("records of a newer version")
	// ErrInUse means that another process has the file of the records open.
	ErrInUse = errors.New("records are in use by another process")
)

const (
	batchEvery = 100 * time.Millisecond // how long new records wait for more
	retryEvery = time.Second            // delay between attempts to write
	pruneEvery = time.Hour
	lastWrite  = 3 * time.Second // how long Start and Close write the last records

	keepFor   = 365 * 24 * time.Hour
	keepBytes = 1 << 30
)

// Records stores decisions of placement, results of apply and revisions of workloads in a file. It
// implements Store. The methods of Recorder only queue records in memory, and Start writes them;
// the manager of controller-runtime runs Start. Methods may be called from several goroutines.
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
	flight  *batch     // the batch that is being written or retried; nil: none
	problem error      // see Problem

	wake chan struct{} // signals Start: there are records to write
	kick chan struct{} // signals gather: Flush waits
}

var _ Store = (*Records)(nil)

// Open opens or creates the file dir/records.db and updates its schema. A damaged file is set aside
// and replaced by a new one. The error is ErrNewer, ErrInUse, or that of a directory that is
// missing or not writable. Any other failure, such as a full disk, is no error: Start then tries
// again to open the file, and Problem returns the reason. The caller closes the Records.
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

// reopen opens the file of the records, if it is not open. It sets a damaged file aside, and
// creates a new one. After Close, the error is ErrUnavailable.
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
		return r.startNew(ctx, err)
	}
	return err
}

// replace closes a damaged database, sets its file aside, and opens a new one. reason is the error
// that showed the damage. If another goroutine has already replaced it, replace returns nil. After
// an error no database is open, and Start tries again.
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
	err := r.startNew(ctx, reason)
	if err != nil {
		signal(r.wake) // the writer retries
	}
	return err
}

// startNew sets the damaged file aside, counts and logs that with the reason, and opens a new file.
// The caller holds r.mu.
func (r *Records) startNew(ctx context.Context, reason error) error {
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

// with calls f with the open database, and returns f's error. If f returns a sqlite.ErrDamaged,
// with replaces the database by a new, empty one, and calls f once more. If no database is open,
// the error is ErrUnavailable. f must not use the database after it returns.
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

// public returns an error for callers outside of the package: an ErrUnavailable with the reason, or
// the error of ctx if ctx has ended. what describes the failed operation. If err is nil, public
// returns nil.
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

// Decided queues a decision in memory, and returns. Start writes it, unless its outcome equals that
// of the last decision on the template. If the decisions in memory exceed r.maxPending bytes, the
// oldest of them are dropped. Decided implements Recorder.
func (r *Records) Decided(d Decision) {
	d = canonical(d)
	r.tell(func(b *batch) { b.decided(d, r.maxPending) })
}

// Applied queues results in memory, and returns. Start writes them, and replaces the stored results
// of the same bindings in the same clusters. Applied implements Recorder.
func (r *Records) Applied(results ...Result) {
	r.tell(func(b *batch) {
		for _, result := range results {
			b.applied(result)
		}
	})
}

// ForgetBinding removes the results of a binding from memory, and returns. Start then deletes the
// stored results. Decisions stay. ForgetBinding implements Recorder.
func (r *Records) ForgetBinding(binding types.UID) {
	r.tell(func(b *batch) { b.forgetBinding(binding) })
}

// ForgetCluster removes the results of a cluster from memory, and returns. Start then deletes the
// stored results. Decisions stay. ForgetCluster implements Recorder.
func (r *Records) ForgetCluster(cluster string) {
	r.tell(func(b *batch) { b.forgetCluster(cluster) })
}

// tell calls f with the batch that collects new records, with r.state locked. Then it wakes Start,
// which writes the batch.
func (r *Records) tell(f func(*batch)) {
	r.state.Lock()
	f(r.pending)
	r.state.Unlock()
	signal(r.wake)
}

// signal sends to a channel whose buffer has one place. It sends nothing if the buffer is full,
// because a signal is pending then.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Decisions returns the last decisions on a template, the newest first, at most limit. If limit is
// 0 or negative, it returns all. Decisions that are not written yet are missing. The error is an
// ErrUnavailable, or that of ctx. Decisions implements Reader.
func (r *Records) Decisions(ctx context.Context, template types.UID, limit int) (out []Decision, err error) {
	err = r.with(ctx, func(db *database) (err error) {
		out, err = db.decisions(ctx, template, limit)
		return err
	})
	return out, public(ctx, fmt.Sprintf("read decisions on %s", template), err)
}

// Results returns the results of a binding, sorted by cluster. Results that are not written yet are
// missing. The error is an ErrUnavailable, or that of ctx. Results implements Reader.
func (r *Records) Results(ctx context.Context, binding types.UID) (out []Result, err error) {
	err = r.with(ctx, func(db *database) (err error) {
		out, _, err = db.results(ctx, selectResults+"WHERE r.binding = ? ORDER BY c.name", string(binding))
		return err
	})
	return out, public(ctx, fmt.Sprintf("read results of binding %s", binding), err)
}

// AllResults iterates over all stored results, sorted by binding. After an error it yields an empty
// result with the error, and ends. It reads page by page, so a slow caller blocks no writes. A
// result that changes during the iteration may be returned in its old or new state, or be missing.
// AllResults implements Reader.
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

// PutRevision stores a revision of a workload, and replaces one with the same number. It is written
// when PutRevision returns nil. The error is an ErrUnavailable, or that of ctx. PutRevision
// implements RevisionKeeper.
func (r *Records) PutRevision(ctx context.Context, revision Revision) error {
	err := r.with(ctx, func(db *database) error { return db.putRevision(ctx, revision) })
	return public(ctx, fmt.Sprintf("keep revision %d of %s", revision.Number, revision.Template), err)
}

// Revisions returns the stored revisions of a workload, sorted by number. template is the UID of
// the workload. The error is an ErrUnavailable, or that of ctx. Revisions implements
// RevisionKeeper.
func (r *Records) Revisions(ctx context.Context, template types.UID) (out []Revision, err error) {
	err = r.with(ctx, func(db *database) (err error) {
		out, err = db.revisions(ctx, template)
		return err
	})
	return out, public(ctx, fmt.Sprintf("read revisions of %s", template), err)
}

// DeleteRevisions deletes the revisions of a workload with these numbers, or all of them if there
// are no numbers. template is the UID of the workload. Missing revisions are no error. The
// revisions are deleted when DeleteRevisions returns nil. DeleteRevisions implements
// RevisionKeeper.
func (r *Records) DeleteRevisions(ctx context.Context, template types.UID, numbers ...int64) error {
	err := r.with(ctx, func(db *database) error { return db.deleteRevisions(ctx, template, numbers) })
	return public(ctx, fmt.Sprintf("delete revisions of %s", template), err)
}

// Problem returns an ErrUnavailable with the reason while new records cannot be written. It returns
// nil as soon as a batch was written.
func (r *Records) Problem() error {
	r.state.Lock()
	defer r.state.Unlock()
	return r.problem
}
