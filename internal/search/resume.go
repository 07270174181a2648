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

// A version that a client gets is bound to what the client may see: a watch that goes on from it tells the changes of what is
// selected by the rights of now, and a client whose rights were others would keep what it lost and miss what it gained. So the
// versions of whoever does not see everything have a tag of their rights (docs/design/0010-watch.md). A version with another tag
// has expired.

// predecessors makes tags, and knows since when namespaces are the hub's.
type predecessors struct {
	seed maphash.Seed // of this process: no tag of an earlier one is right by chance

	mu    sync.RWMutex
	begun map[string]begun
}

// begun is when a namespace of the hub was first seen as it is: what the journal has of before may be of another one of the name.
type begun struct {
	generation uint64
	made       time.Time // by the hub's clock, which is compared with itself only
	since      store.Version
}

// mostBegun bounds the namespaces that are remembered. A namespace that is forgotten begins anew.
const mostBegun = 100_000

func newPredecessors() *predecessors {
	return &predecessors{seed: maphash.MakeSeed(), begun: map[string]begun{}}
}

// right is that to a namespace. It changes when the namespace may use other clusters, or is made anew, and not with the clusters that
// there are: objects of a cluster that joins or leaves are events.
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

// tagOf returns the tag of rights, in whatever order they are.
func (s *Search) tagOf(rights []right) int64 {
	var sum uint64
	for _, r := range rights {
		sum += maphash.Comparable(s.predecessors.seed, r)
	}
	return 1 + int64(maphash.Comparable(s.predecessors.seed, sum)%(store.Tags-1)) // 0 is the tag of those who see everything
}

// unsettled returns a tag that no right has: of versions from which nobody can go on.
func (s *Search) unsettled() int64 {
	return 1 + int64(maphash.Comparable(s.predecessors.seed, rand.Uint64())%(store.Tags-1)) //nolint:gosec // it need not be secret
}

// fenced returns what a caller may see who may see some namespaces, in the clusters that these may use. The rights are of before the
// fence is read: a fence that is newer than its tag has its watches list again, and an older one would not.
func (s *Search) fenced(ctx context.Context, namespaces []string, refused error) (seen scope, err error) {
	rights := s.rightsTo(namespaces)
	seen = scope{namespaces: namespaces, tag: s.tagOf(rights), refused: refused}
	if seen.fence, err = s.Fence(); err != nil {
		return scope{}, err
	}
	return seen, s.begin(ctx, rights)
}

// begin notes namespaces of the hub that were not seen before as they are. All versions that are given out afterwards, for rights to
// them, are of later states.
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
			since = was.since // it may use other clusters, and is the same
		}
		p.begun[r.namespace] = begun{r.generation, made, since}
	}
	return nil
}

// precedes reports whether a change of an object may be of a time before the hub made its namespace, for whoever does not see
// everything: what there is now is listed, and what was is not for them.
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
	return !noted || e.Version.At(0) == was.since.At(0) && e.Version <= was.since // the journal of another database began later
}

// resumed returns the version from which a watch of a view goes on. It may come from a watch, a list or a read of the same path, or
// from one of all namespaces of which the path names some.
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

// tagged returns a row with the version that the client gets.
func (e encoder) tagged(row store.Row) store.Row {
	if row.Changed != 0 { // else it is not of the store
		row.Changed = row.Changed.Tagged(e.tag)
	}
	return row
}

// reviewPause is the time after which a watch asks for the rights of its caller again.
func (s *Search) reviewPause() time.Duration {
	if s.UntoldRights {
		return reviewUntold
	}
	return reviewEvery
}
