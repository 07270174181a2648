package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ErrExpired is the error of Since: the changes since a version are no longer known, or the version
// belongs to another database. The caller must list again.
var ErrExpired = errors.New("what changed since that version is not known")

// Version is a state of the store, as a number that clients see as resourceVersion. The upper six
// digits are a hash of the epoch, the ID of the database. The thirteen digits below are the
// sequence of the last change. Of two versions of one epoch, the greater is later. Versions of
// different epochs are not comparable.
type Version int64

const (
	sequences = 10_000_000_000_000 // factor of the epoch's hash in a Version
	epochs    = 900_000            // number of different hashes
)

// versionOf returns the version of the sequence seq in an epoch, the ID of the database. It
// contains a hash of the epoch, so two epochs have the same versions only by chance.
func versionOf(epoch string, seq int64) Version {
	h := fnv.New64a()
	_, _ = h.Write([]byte(epoch)) // a hash takes everything
	return Version(int64(1+h.Sum64()%epochs)*sequences + seq)
}

// ParseVersion parses the result of Version.String. Any other text is an error, also the same
// number in another form. It does not check whether the version belongs to the present database.
func ParseVersion(s string) (Version, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < sequences || n > (epochs+1)*sequences || strconv.FormatInt(n, 10) != s {
		return 0, fmt.Errorf("%q is not a version of the fleet", s)
	}
	return Version(n), nil
}

// String returns the version as clients see it in resourceVersion: a decimal number, which
// ParseVersion parses.
func (v Version) String() string { return strconv.FormatInt(int64(v), 10) }

// At returns the version of the sequence seq in the same epoch (database) as v.
func (v Version) At(seq int64) Version { return v - v%sequences + Version(seq) }

func (v Version) seq() int64 { return int64(v % sequences) }

// Event is one change of one object. Before and After are its states; nil: the object did not
// exist. A state whose body is empty has only the key, the UID and the labels. Several goroutines
// may read an event, and none may change it.
type Event struct {
	Version       Version
	Before, After *Row      // nil: the object did not exist before, or does not exist after
	Time          time.Time // time of the commit

	size int64
}

// Limits on the journal's memory, and on its life without readers.
const (
	journalBytes = 32 << 20
	journalIdle  = 10 * time.Minute
	// journalWindow is the time in which all commits cause only one notification of the readers that
	// wait for changes.
	journalWindow   = 50 * time.Millisecond
	journalOverhead = 500 // bytes of an event besides its bodies
)

// journal keeps the latest changes of objects in memory, for watches. It keeps up to limit bytes,
// and drops the oldest ones. It is on from the first request for a version until the first commit
// after journalIdle without requests. It may be used from several goroutines.
type journal struct {
	mu     sync.Mutex
	epoch  string
	last   int64     // sequence of the last commit
	from   int64     // it has all events after this sequence, except those that a type has lost
	used   time.Time // time of the last request
	on     bool      // the journal records events
	size   int64     // of the events, in bytes
	events []*Event  // in the order of the sequence
	types  map[schema.GroupResource]*typeJournal
	limit  int64
	now    func() time.Time
	ringer *time.Timer // calls ring
	due    bool        // ringer is set to call ring
}

// typeJournal is the part of the journal for one type: its events, and the channel on which readers
// wait for new ones.
type typeJournal struct {
	events  []*Event
	lost    int64         // sequence of the last event that was removed
	changed chan struct{} // closed when there are new events
	news    bool          // there are events that changed does not report yet
}

func newJournal() *journal {
	j := &journal{types: map[schema.GroupResource]*typeJournal{}, limit: journalBytes, now: time.Now}
	j.ringer = time.AfterFunc(math.MaxInt64, j.ring)
	return j
}

// reset empties the journal, for a database with this epoch (ID) and this last sequence. Store.open
// calls it, because the database may be another one, or in another state. Readers that wait for
// changes wake up and get ErrExpired.
func (j *journal) reset(epoch string, seq int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.epoch, j.last = epoch, seq
	j.forget()
}

// forget removes all events and wakes the readers that wait for changes. Their next call of since
// returns ErrExpired, because changes are missing. The caller holds j.mu.
func (j *journal) forget() {
	j.events, j.size, j.from = nil, 0, j.last
	for _, t := range j.types {
		close(t.changed)
	}
	clear(j.types)
}

// recording reports whether the journal is on, so that writers must record events.
func (j *journal) recording() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.on
}

// commit adds the events of a committed transaction, sets their versions and times, and notifies
// readers within journalWindow. seq is the last sequence of the transaction. It is called in the
// order of the sequences, also for transactions without events. recorded is false if the events are
// not known; then the journal is emptied. If the journal exceeds its limit, it drops the oldest
// events.
func (j *journal) commit(seq int64, recorded bool, events []*Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.last = seq
	switch {
	case !j.on:
		return
	case j.now().Sub(j.used) > journalIdle:
		j.on = false
		j.forget()
		return
	case !recorded:
		j.forget()
		return
	}
	slices.SortStableFunc(events, func(a, b *Event) int { return int(a.Version - b.Version) })
	for _, e := range events {
		e.of(j.epoch)
		e.Time = j.now()
		t := j.typeOf(e.gr())
		t.events, t.news = append(t.events, e), true
		e.size = e.bytes()
		j.size += e.size
		j.events = append(j.events, e)
	}
	for j.size > j.limit {
		e := j.events[0]
		j.events[0] = nil
		j.events, j.size = j.events[1:], j.size-e.size
		t := j.types[e.gr()]
		t.events[0] = nil
		t.events, t.lost = t.events[1:], e.Version.seq()
	}
	if len(events) > 0 && !j.due {
		j.due = true
		j.ringer.Reset(journalWindow)
	}
}

// ring wakes the readers that wait for types with new events. The timer ringer calls it.
func (j *journal) ring() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.due = false
	for _, t := range j.types {
		if t.news {
			close(t.changed)
			t.changed, t.news = make(chan struct{}), false
		}
	}
}

// typeOf returns the part of the journal for a type, and creates it if it does not exist. The
// caller holds j.mu.
func (j *journal) typeOf(gr schema.GroupResource) *typeJournal {
	t := j.types[gr]
	if t == nil {
		t = &typeJournal{changed: make(chan struct{}), lost: j.from}
		j.types[gr] = t
	}
	return t
}

// version returns the version of the last commit. If the journal is off, it starts, and then has
// all events after that version.
func (j *journal) version() Version {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.used = j.now(); !j.on {
		j.on, j.from = true, j.last
	}
	return versionOf(j.epoch, j.last)
}

// since returns the events of a type after a version, and the version for the next call. The
// channel is closed when there are more events. With the error ErrExpired, the version is that of
// the last commit, and the channel is nil. Store.Since calls it.
func (j *journal) since(gr schema.GroupResource, after Version) ([]*Event, Version, <-chan struct{}, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	now := versionOf(j.epoch, j.last)
	if !j.on || now.At(0) != after.At(0) || after > now || after.seq() < j.from {
		return nil, now, nil, ErrExpired
	}
	j.used = j.now()
	t := j.typeOf(gr)
	if after.seq() < t.lost {
		return nil, now, nil, ErrExpired
	}
	i, _ := slices.BinarySearchFunc(t.events, after+1, func(e *Event, v Version) int { return int(e.Version - v) })
	return slices.Clone(t.events[i:]), now, t.changed, nil
}

func (e *Event) row() *Row {
	if e.After != nil {
		return e.After
	}
	return e.Before
}

// of sets the complete versions of an event and of its rows. Until the commit they are only
// sequences, without the epoch of the database.
func (e *Event) of(epoch string) {
	e.Version = versionOf(epoch, int64(e.Version))
	for _, r := range []*Row{e.Before, e.After} {
		if r != nil {
			r.Changed = versionOf(epoch, int64(r.Changed))
		}
	}
}

func (e *Event) gr() schema.GroupResource {
	return schema.GroupResource{Group: e.row().Group, Resource: e.row().Resource}
}

func (e *Event) bytes() int64 {
	n := int64(journalOverhead)
	for _, r := range []*Row{e.Before, e.After} {
		if r != nil {
			n += int64(len(r.Body))
		}
	}
	return n
}

// Version returns the version of the last commit, from which Since continues. If the journal of
// changes is off, Version starts it; changes before that are unknown. The journal stops after ten
// minutes without a call of Version, List or Since. The error is an ErrUnavailable if no database
// is open.
func (s *Store) Version(ctx context.Context) (v Version, err error) {
	err = s.do(ctx, func(*database) error {
		v = s.journal.version()
		return nil
	})
	return v, err
}

// Since returns the changes of a type after a version, in all clusters and in order. It returns at
// once, also without changes. now is the version for the next call. The channel more is closed when
// there are further changes, or when they are no longer known. The caller must not change the
// events. The error is ErrExpired if some of the changes are unknown. The caller must then list the
// type again.
func (s *Store) Since(gr schema.GroupResource, after Version) (events []*Event, now Version, more <-chan struct{}, err error) {
	return s.journal.since(gr, after)
}

// tell records the event of a change of the object o at the place p. The event reaches readers of
// the journal after the commit. tell records nothing while the journal is off, or if the row only
// repeats the state that the journal published last. The caller holds d.mu.
func (w *writer) tell(p place, o *object) {
	if !w.recording || o.row != nil && o.id != 0 && w.repeats(p, o.row) {
		return
	}
	w.outlived(p)
	e := &Event{Version: Version(o.seq)} // the journal adds the epoch
	if o.id != 0 {
		e.Before = w.before(p, o)
		if e.Before.Changed = e.Version; o.replaced {
			// Both events of the change have the same sequence. A reader that has seen only the deletion
			// gets both when it asks again.
			e.Before.Changed--
		}
	}
	if o.row != nil {
		after := *o.row
		after.Changed, after.Note = e.Version, ""
		e.After = &after
	}
	w.events = append(w.events, e)
}

// before returns the state of an object before a change, for Event.Before. p is the key of the
// object. If the writer has not read the state (o.state is nil), the row has only the key, the UID
// and the labels. The row is never nil.
func (w *writer) before(p place, o *object) *Row {
	gr := w.gr(p.kind)
	r := &Row{Cluster: p.cluster, Group: gr.Group, Resource: gr.Resource, Namespace: p.namespace, Name: p.name, UID: o.stored, Labels: o.labels}
	if o.state == nil {
		return r
	}
	h := &o.state.header
	r.Version, r.Kind, r.OwnerUID, r.ResourceVersion = h.Version, h.Kind, h.Owner, h.RV
	if h.Created != 0 {
		r.Created = time.Unix(h.Created, 0).UTC()
	}
	_, r.Body, _ = bytes.Cut(o.state.record, []byte("\n"))
	return r
}
