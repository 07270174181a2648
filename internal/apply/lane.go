package apply

import (
	"context"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/workqueue"

	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/member"
)

const (
	// workers is the most that is done in one cluster at once; the member's transport
	// allows less when the cluster struggles.
	workers = 16

	soonest, soonAtMost = time.Second, 30 * time.Second
	latest, lateAtMost  = 2 * time.Second, 5 * time.Minute
)

// item is something to look at in one cluster: a binding, or else a namespace.
type item struct {
	binding   types.NamespacedName
	namespace string
}

// again says when to look at an item again unless something happens before.
type again int

const (
	settled again = iota // nothing is left to do, or an event will tell when there is
	soon                 // what stands in the way may pass: seconds
	queued               // it is in the queue for later already
)

// lane does what there is to do in one cluster.
type lane struct {
	applier *Applier
	member  *member.Member
	client  caller
	queue   workqueue.TypedDelayingInterface[item]
	soon    workqueue.TypedRateLimiter[item]
	late    workqueue.TypedRateLimiter[item]

	// working is held for reading while something is done and for writing by Leave, which
	// must not be overtaken.
	working sync.RWMutex
	// creating keeps workers from creating the same namespace at once.
	creating sync.Mutex

	mu      sync.Mutex
	waiting map[schema.GroupResource]sets.Set[item] // until the mirror has listed the type
	seen    bool                                    // the cluster answered at least once
	last    traits
}

// traits are what manifests and decisions depend on beside bindings and templates.
type traits struct {
	reachable bool
	leaving   bool
	apis      *member.APIs
	// generation and labels stand for what overrides select clusters by.
	generation int64
	labels     string
}

func newLane(a *Applier, m *member.Member) (*lane, error) {
	c, err := newCaller(m.Config())
	if err != nil {
		return nil, err
	}
	return &lane{
		applier: a, member: m, client: c,
		queue:   workqueue.NewTypedDelayingQueue[item](),
		soon:    workqueue.NewTypedItemExponentialFailureRateLimiter[item](soonest, soonAtMost),
		late:    workqueue.NewTypedItemExponentialFailureRateLimiter[item](latest, lateAtMost),
		waiting: map[schema.GroupResource]sets.Set[item]{},
		last:    traitsOf(m),
	}, nil
}

func (l *lane) name() string { return l.member.Name() }

// close ends the lane; what is being done is finished.
func (l *lane) close() { l.queue.ShutDown() }

// run works until the lane is closed.
func (l *lane) run(ctx context.Context) {
	ctx = logr.NewContext(ctx, logr.FromContextOrDiscard(ctx).WithName("apply").WithValues("cluster", l.name()))
	// A goroutine for each item being done, rather than idle workers: a fleet has
	// thousands of lanes and few are busy.
	slots := make(chan struct{}, workers)
	var running sync.WaitGroup
	defer running.Wait()
	for {
		slots <- struct{}{}
		i, closed := l.queue.Get()
		if closed {
			return
		}
		running.Go(func() {
			defer func() { <-slots }()
			defer l.queue.Done(i)
			l.do(ctx, i)
		})
	}
}

func (l *lane) do(ctx context.Context, i item) {
	l.working.RLock()
	defer l.working.RUnlock()
	if ctx.Err() != nil || l.member.Leaving() {
		return // a leaving cluster is Leave's alone
	}
	l.mu.Lock()
	l.seen = l.seen || l.member.Reachable()
	l.mu.Unlock()

	var next again
	if i.namespace != "" {
		next = l.sweep(ctx, i.namespace)
	} else {
		next = l.look(ctx, i.binding)
	}
	switch next {
	case soon:
		l.late.Forget(i)
		l.queue.AddAfter(i, l.soon.When(i))
	case settled:
		l.soon.Forget(i)
		l.late.Forget(i)
	case queued:
	}
}

// lost is true when the cluster is known not to answer. Right after a start it is not
// known yet, and what an earlier process stored decides.
func (l *lane) lost() bool {
	if l.member.Reachable() {
		return false
	}
	l.mu.Lock()
	seen := l.seen
	l.mu.Unlock()
	return seen || !l.member.WasReachable()
}

// await has an item looked at once the mirror has listed a type.
func (l *lane) await(gr schema.GroupResource, i item) {
	l.mu.Lock()
	if l.waiting[gr] == nil {
		l.waiting[gr] = sets.New[item]()
	}
	l.waiting[gr].Insert(i)
	l.mu.Unlock()
	if l.applier.mirror.Synced(l.name(), gr) && l.member.Reachable() {
		l.listed(gr) // it was listed while we asked
	}
}

// listed has what awaited a type looked at.
func (l *lane) listed(gr schema.GroupResource) {
	l.mu.Lock()
	items := l.waiting[gr]
	delete(l.waiting, gr)
	l.mu.Unlock()
	for i := range items {
		l.queue.Add(i)
	}
}

func (l *lane) lookAtEverything() {
	for _, name := range l.applier.bindings.In(l.name()) {
		l.queue.Add(item{binding: name})
	}
	for _, o := range l.applier.mirror.PlacedIn(l.name()) { // what no binding names here any more
		if b, ok := l.applier.bindings.ByUID(o.Binding); ok {
			l.queue.Add(item{binding: binding.Name(b)})
		}
	}
	l.lookAtNamespaces()
}

func (l *lane) lookAtNamespaces() {
	marked, _ := l.applier.mirror.Namespaces(l.name())
	for name, hub := range marked {
		if hub == l.applier.hubID {
			l.queue.Add(item{namespace: name})
		}
	}
}

// memberChanged has everything looked at if anything changed that matters here.
func (l *lane) memberChanged() {
	l.mu.Lock()
	now, before := traitsOf(l.member), l.last
	l.last = now
	l.seen = l.seen || now.reachable
	l.mu.Unlock()
	// What was done in a cluster that is lost stays done, for all we know.
	if now != before && now.reachable {
		l.lookAtEverything()
	}
}
