package search

import (
	"context"
	"hash/maphash"
	"math/rand/v2"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"orrery.dev/orrery/internal/store"
)

// A resourceVersion is only valid for the rights with which a client got it. A watch that continues
// from it sends changes by the present rights. If the rights were others before, the client would
// keep objects that it may not see any more, and miss objects that it may see now. Therefore
// versions for callers that do not see everything contain a tag, a hash of their rights
// (docs/design/0010-watch.md). For a caller with another tag the version has expired.

// predecessors makes the tags of rights, which versions contain. It also records since when the hub
// has its present namespaces: a namespace may have had a predecessor of the same name. It may be
// used from several goroutines.
type predecessors struct {
	seed maphash.Seed // new in each process, so that no earlier tag is valid by chance

	mu    sync.RWMutex
	begun map[string]begun // by namespace
}

// begun records when a namespace of the hub was first seen in its present state. Changes in the
// store up to the version since may belong to an earlier namespace of that name.
type begun struct {
	generation uint64    // result of Options.Generation
	made       time.Time // creation time, by the hub's clock; compared only with itself
	since      store.Version
}

// mostBegun is the maximum number of namespaces that predecessors remembers. Beyond that, all are
// forgotten, and recorded again at their next use.
const mostBegun = 100_000

func newPredecessors() *predecessors {
	return &predecessors{seed: maphash.MakeSeed(), begun: map[string]begun{}}
}

// right is the right of a caller to one namespace, as the tag of a version contains it. It changes
// when the namespace may use other clusters or is created again. It does not change when a cluster
// joins or leaves the fleet, because a watch reports the objects of that cluster as events.
type right struct {
	namespace  string
	generation uint64
}

// rightsTo returns the rights to some namespaces in their present state, for tagOf.
func (s *Search) rightsTo(namespaces []string) []right {
	rights := make([]right, len(namespaces))
	for i, namespace := range namespaces {
		rights[i].namespace = namespace
		if s.Generation != nil {
			rights[i].generation = s.Generation(namespace)
		}
	}
	return rights
}

// tagOf returns the tag of some rights for versions, in any order of the rights. It is never 0,
// which is the tag of callers that see everything.
func (s *Search) tagOf(rights []right) int64 {
	var sum uint64
	for _, r := range rights {
		sum += maphash.Comparable(s.predecessors.seed, r)
	}
	// The tag is at least 1: callers that see everything have the tag 0.
	return 1 + int64(maphash.Comparable(s.predecessors.seed, sum)%(store.Tags-1))
}

// unsettled returns a random tag, which belongs to no rights. A client cannot continue from a
// version with it, because the client has objects by two different rights.
func (s *Search) unsettled() int64 {
	return 1 + int64(maphash.Comparable(s.predecessors.seed, rand.Uint64())%(store.Tags-1)) //nolint:gosec // it need not be secret
}

// fenced returns the scope of a caller that may see the given namespaces, each in the clusters that
// the namespace may use. refused is stored in the scope. It records the namespaces with begin. The
// rights for the tag are read before the fence: if the fence is newer, watches only list again.
func (s *Search) fenced(ctx context.Context, namespaces []string, refused error) (seen scope, err error) {
	rights := s.rightsTo(namespaces)
	seen = scope{namespaces: namespaces, tag: s.tagOf(rights), refused: refused}
	if seen.fence, err = s.Fence(); err != nil {
		return scope{}, err
	}
	return seen, s.begin(ctx, rights)
}

// begin records the namespaces of rights that were not seen before in their present state, with the
// current version of the store. Later versions for these rights are not older than that. A
// namespace with unknown creation time is not recorded. The error is that of reading the version.
func (s *Search) begin(ctx context.Context, rights []right) error {
	p := s.predecessors
	var news []right
	p.mu.RLock()
	for _, r := range rights {
		if was, seen := p.begun[r.namespace]; !seen || was.generation != r.generation {
			news = append(news, r)
		}
	}
	p.mu.RUnlock()
	if len(news) == 0 {
		return nil
	}
	now, err := s.now(ctx)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.begun)+len(news) > mostBegun {
		clear(p.begun)
	}
	for _, r := range news {
		made, known := s.Made(r.namespace)
		if !known {
			continue
		}
		since := now
		if was, seen := p.begun[r.namespace]; seen && was.made.Equal(made) {
			since = was.since // the same namespace, which may now use other clusters
		}
		p.begun[r.namespace] = begun{r.generation, made, since}
	}
	return nil
}

// precedes reports whether the change e may be from a time before the hub created the namespace of
// the object in row. Callers with a fence must not see such changes. It is also true for a
// namespace that is not on the hub, or that begin has not recorded. It is always false if seen has
// no fence.
func (s *Search) precedes(seen scope, gr schema.GroupResource, e *store.Event, row *store.Row) bool {
	if seen.fence == nil {
		return false
	}
	namespace := row.Namespace
	if gr == (schema.GroupResource{Resource: "namespaces"}) {
		namespace = row.Name
	}
	if _, known := s.Made(namespace); !known {
		return true
	}
	p := s.predecessors
	p.mu.RLock()
	defer p.mu.RUnlock()
	was, noted := p.begun[namespace]
	// If e and was.since come from different databases, that of e is newer, and so is e.
	return !noted || e.Version.At(0) == was.since.At(0) && e.Version <= was.since
}

// resumed returns the version from which a watch of the view v continues; 0: any. The version must
// have the tag of the caller's present rights: for a watch, list or get of the same path, or of all
// namespaces if the request names namespaces. Any other version is an Expired error.
func (s *Search) resumed(ctx context.Context, at location, p params, v view) (store.Version, error) {
	version, err := s.asked(ctx, p, v.seen.tag)
	if !apierrors.IsResourceExpired(err) {
		return version, err
	}
	tried := map[int64]bool{v.seen.tag: true}
	for _, verb := range []string{"watch", "list", "get"} {
		for _, everywhere := range []bool{false, true} {
			at, p := at, p
			if everywhere {
				at.namespace, p.namespaces = "", nil
			} else if p.namespaces == nil && at.namespace == "" {
				p.namespaces = p.asked.namespaces() // as look does
			}
			seen, refused := s.authorize(ctx, at, p, verb)
			if refused != nil || tried[seen.tag] {
				continue
			}
			tried[seen.tag] = true
			if version, err := s.asked(ctx, p, seen.tag); !apierrors.IsResourceExpired(err) {
				return version, err
			}
		}
	}
	return 0, err
}

// tagged returns the row with the tag of the caller's rights in its version. A row that is not from
// the store, which has no version, stays as it is.
func (e encoder) tagged(row store.Row) store.Row {
	if row.Changed != 0 { // rows of metrics are not from the store, and have no version
		row.Changed = row.Changed.Tagged(e.tag)
	}
	return row
}

// reviewPause returns the interval at which a watch reads the rights of its caller again. It is
// shorter if the hub does not signal all changes of rights.
func (s *Search) reviewPause() time.Duration {
	if s.UntoldRights {
		return reviewUntold
	}
	return reviewEvery
}
