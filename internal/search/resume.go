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

// A version that a client gets is bound to what the client may see. A watch that continues from
// the version sends changes by the present rights. A client with other rights before would keep
// objects that it may not see any more, and miss objects that it may see now. Therefore versions
// for callers that do not see everything have a tag of their rights (docs/design/0010-watch.md).
// A version with another tag has expired.

// predecessors makes tags, and records since when the hub has its present namespaces.
type predecessors struct {
	seed maphash.Seed // new in each process, so that no earlier tag is valid by chance

	mu    sync.RWMutex
	begun map[string]begun
}

// begun is when a namespace of the hub was first seen in its present state. Earlier entries of
// the journal may belong to an earlier namespace of the name.
type begun struct {
	generation uint64
	made       time.Time // by the clock of the hub; compared only with itself
	since      store.Version
}

// mostBegun is the maximum number of remembered namespaces. A namespace that was forgotten is
// recorded again at its next use.
const mostBegun = 100_000

func newPredecessors() *predecessors {
	return &predecessors{seed: maphash.MakeSeed(), begun: map[string]begun{}}
}

// right is the right to a namespace. It changes when the namespace may use other clusters or is
// created again. It does not change when a cluster joins or leaves the fleet: the objects of the
// cluster are events.
type right struct {
	namespace  string
	generation uint64
}

// rightsTo returns the rights to some namespaces.
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

// tagOf returns the tag of rights, which does not depend on their order.
func (s *Search) tagOf(rights []right) int64 {
	var sum uint64
	for _, r := range rights {
		sum += maphash.Comparable(s.predecessors.seed, r)
	}
	// 0 is the tag of callers that see everything
	return 1 + int64(maphash.Comparable(s.predecessors.seed, sum)%(store.Tags-1))
}

// unsettled returns a random tag, which no rights have. Clients cannot continue from versions
// with it.
func (s *Search) unsettled() int64 {
	return 1 + int64(maphash.Comparable(s.predecessors.seed, rand.Uint64())%(store.Tags-1)) //nolint:gosec // it need not be secret
}

// fenced returns the scope of a caller that may see some namespaces, in the clusters that these
// may use. The rights are read before the fence. With a fence newer than its tag, watches list
// again, which is safe; with an older fence they would not.
func (s *Search) fenced(ctx context.Context, namespaces []string, refused error) (seen scope, err error) {
	rights := s.rightsTo(namespaces)
	seen = scope{namespaces: namespaces, tag: s.tagOf(rights), refused: refused}
	if seen.fence, err = s.Fence(); err != nil {
		return scope{}, err
	}
	return seen, s.begin(ctx, rights)
}

// begin records namespaces of the hub that were not seen before in their present state. All
// versions that are later returned for rights to these namespaces are of later states.
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

// precedes reports whether a change of an object may be from a time before the hub created its
// namespace. It is always false for callers that see everything. Other callers may see the
// present objects of the namespace, and not earlier ones.
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
	// the journal of another database began later
	return !noted || e.Version.At(0) == was.since.At(0) && e.Version <= was.since
}

// resumed returns the version from which a watch of a view continues. The version may come from
// a watch, a list or a read of the same path, or from one of all namespaces if the path names
// some.
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

// tagged returns a row with the version for the client.
func (e encoder) tagged(row store.Row) store.Row {
	if row.Changed != 0 { // else the row is not from the store
		row.Changed = row.Changed.Tagged(e.tag)
	}
	return row
}

// reviewPause returns the interval after which a watch reads the rights of its caller again.
func (s *Search) reviewPause() time.Duration {
	if s.UntoldRights {
		return reviewUntold
	}
	return reviewEvery
}
