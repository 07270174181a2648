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

// ErrExpired means that the changes since a version are no longer known, or that the version
// belongs to another database.
var ErrExpired = errors.New("what changed since that version is not known")

// Version is a state of the store. It consists of a six-digit number for the epoch of the
// database, and the sequence of the last change in the thirteen digits below. So it is a 63-bit
// number, as clients expect of resourceVersions. Of two versions of one epoch, the greater is
// later. Versions of different epochs are not comparable.
type Version int64

const (
	sequences = 10_000_000_000_000
	epochs    = 900_000
)

// versionOf returns the version of a sequence in an epoch.
func versionOf(epoch string, seq int64) Version {
	h := fnv.New64a()
	_, _ = h.Write([]byte(epoch)) // a hash takes everything
	return Version(int64(1+h.Sum64()%epochs)*sequences + seq)
}

// ParseVersion parses the result of String.
func ParseVersion(s string) (Version, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < sequences || n > (epochs+1)*sequences || strconv.FormatInt(n, 10) != s {
		return 0, fmt.Errorf("%q is not a version of the fleet", s)
	}
	return Version(n), nil
}

// String returns the version as a resourceVersion.
func (v Version) String() string { return strconv.FormatInt(int64(v), 10) }

// At returns the version of another sequence in the same epoch.
func (v Version) At(seq int64) Version { return v - v%sequences + Version(seq) }

func (v Version) seq() int64 { return int64(v % sequences) }

// Event is one change of one object. A state without Body has only the key, the UID and the
// labels.
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
	// Waiting readers are notified once for all commits of this interval.
	journalWindow   = 50 * time.Millisecond
	journalOverhead = 500 // bytes of an event besides its bodies
)

// journal keeps the latest changes in memory for watches. It starts with the first request for a
// version, and stops after some time without requests.
type journal struct {
	mu     sync.Mutex
	epoch  string
	last   int64 // sequence of the last commit
	from   int64 // later events are all here, except those of types that have lost some
	used   time.Time
	on     bool
	size   int64
	events []*Event // in the order of the sequence
	types  map[schema.GroupResource]*typeJournal
	limit  int64
	now    func() time.Time
	ringer *time.Timer
	due    bool
}

// typeJournal is the part of a journal for one type.
type typeJournal struct {
	events  []*Event
	lost    int64         // sequence of the last event that was removed
	changed chan struct{} // closed when there are new events
	news    bool
}

func newJournal() *journal {
	j := &journal{types: map[schema.GroupResource]*typeJournal{}, limit: journalBytes, now: time.Now}
	j.ringer = time.AfterFunc(math.MaxInt64, j.ring)
	return j
}

// reset starts with another state of a database. Readers of the previous one get ErrExpired.
func (j *journal) reset(epoch string, seq int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.epoch, j.last = epoch, seq
	j.forget()
}

// forget empties the journal. The caller holds j.mu.
func (j *journal) forget() {
	j.events, j.size, j.from = nil, 0, j.last
	for _, t := range j.types {
		close(t.changed)
	}
	clear(j.types)
}

// recording reports whether the journal needs events.
func (j *journal) recording() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.on
}

// commit adds the events of a transaction. It is called in the order of the sequence. recorded is
// false if the events are unknown.
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

// ring notifies the waiting readers.
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

// typeOf returns the journal of a type. The caller holds j.mu.
func (j *journal) typeOf(gr schema.GroupResource) *typeJournal {
	t := j.types[gr]
	if t == nil {
		t = &typeJournal{changed: make(chan struct{}), lost: j.from}
		j.types[gr] = t
	}
	return t
}

// version returns the version of the last commit, and starts the journal from there.
func (j *journal) version() Version {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.used = j.now(); !j.on {
		j.on, j.from = true, j.last
	}
	return versionOf(j.epoch, j.last)
}

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

// of completes the versions, which are only sequences until the commit.
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

// Version returns the version of the last commit. Since returns the changes after it.
func (s *Store) Version(ctx context.Context) (v Version, err error) {
	err = s.do(ctx, func(*database) error {
		v = s.journal.version()
		return nil
	})
	return v, err
}

// Since returns the changes of a type after a version, in order, and the version that they reach.
// The channel is closed when there are more. The caller must not change the events. ErrExpired:
// some changes are unknown, and the type must be listed again.
func (s *Store) Since(gr schema.GroupResource, after Version) (events []*Event, now Version, more <-chan struct{}, err error) {
	return s.journal.since(gr, after)
}

// tell records an event, which is published after the commit. The caller holds d.mu.
func (w *writer) tell(p place, o *object) {
	if !w.recording || o.row != nil && o.id != 0 && w.repeats(p, o.row) {
		return
	}
	w.outlived(p)
	e := &Event{Version: Version(o.seq)} // the journal adds the epoch
	if o.id != 0 {
		e.Before = w.before(p, o)
		if e.Before.Changed = e.Version; o.replaced {
			e.Before.Changed-- // a reader that has seen only the deletion gets both when it asks again
		}
	}
	if o.row != nil {
		after := *o.row
		after.Changed, after.Note = e.Version, ""
		e.After = &after
	}
	w.told = append(w.told, e)
}

// before returns the known part of the state that a change ends.
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
