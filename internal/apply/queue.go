package apply

import (
	"context"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/manifest"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/queue"
)

const (
	// workers is the maximum number of items that are done at once in one cluster. The transport
	// of the member allows less while the cluster is overloaded.
	workers = 16

	// firstRetry and lastRetry bound the exponential backoff of an item.
	firstRetry, lastRetry = time.Second, 30 * time.Second

	// callTimeout is how long a member may take to answer, except in tests.
	callTimeout = 15 * time.Second
)

// calls counts the requests to members by verb. It does not grow while nothing changes.
var calls = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "orrery_apply_calls_total",
	Help: "Requests to member clusters to change or read what is placed there.",
}, []string{"verb"})

func init() { metrics.Registry.MustRegister(calls) } //nolint:gochecknoinits // where controller-runtime's own metrics register

// item is what a clusterQueue reconciles in its cluster: a binding or, if namespace is not "", a
// namespace.
type item struct {
	binding   types.NamespacedName
	namespace string
}

// clusterQueue reconciles bindings and namespaces in one cluster, with several workers.
type clusterQueue struct {
	applier *Applier
	member  *member.Member
	uid     types.UID // of the Cluster
	client  manifest.Client
	items   *queue.Queue[item]

	// working is held for reading while a worker does an item. Applier.Leave takes it for writing, to
	// wait for all items that began earlier.
	working sync.RWMutex
	// creating keeps workers from creating the same namespace at once. Workers for other
	// namespaces do not wait.
	creating singleflight.Group
	labelled labelWrites

	said sync.Map // by name of a namespace: the reason in the last event why it is not deleted

	mu sync.Mutex
	// waiting has the items that wait until the mirror has listed a type.
	waiting map[schema.GroupResource]sets.Set[item]
	last    traits
	// emptied counts the workers that may be deleting a namespace, by its name; see empties.
	emptied map[string]int
	// deferred is true if items were skipped because it was not known whether the cluster answers.
	deferred bool

	unlistedSince time.Time // when Leave, its only user, first found a type that is not listed
}

// traits are properties of a member on which manifests and decisions depend.
type traits struct {
	reachable, lost bool
	leaving         bool
	apis            *member.APIs
	// generation and labels represent the fields by which overrides select clusters.
	generation int64
	labels     string
}

// newClusterQueue returns a queue for a member, without starting it. It returns an error if no
// client can be made from the member's configuration.
func newClusterQueue(a *Applier, m *member.Member) (*clusterQueue, error) {
	c, err := manifest.NewClient(m.Config(), manifest.Options{
		FieldManager: workv1alpha2.FieldManager, Timeout: a.answerPatience,
		Called: func(verb string) { calls.WithLabelValues(verb).Inc() },
	})
	if err != nil {
		return nil, err
	}
	q := &clusterQueue{
		applier: a, member: m, uid: m.Cluster().UID, client: c,
		waiting:  map[schema.GroupResource]sets.Set[item]{},
		emptied:  map[string]int{},
		labelled: labelWrites{written: map[string]labelWrite{}},
		last:     traitsOf(m),
	}
	q.items = queue.New(workers, firstRetry, lastRetry, q.do)
	return q, nil
}

func (q *clusterQueue) name() string { return q.member.Name() }

// run works until ctx ends or the queue is closed.
func (q *clusterQueue) run(ctx context.Context) {
	log := logr.FromContextOrDiscard(ctx).WithValues("cluster", q.name())
	q.items.Run(logr.NewContext(ctx, log))
}

// do reconciles an item. It skips the item if the cluster leaves, if this queue was replaced or
// removed, or while it is unknown whether the cluster answers.
func (q *clusterQueue) do(ctx context.Context, i item) queue.Next {
	q.working.RLock()
	defer q.working.RUnlock()
	if ctx.Err() != nil || q.member.Leaving() || q.closed() {
		return queue.Next{} // Leave decides what a leaving cluster keeps
	}
	if q.asking() {
		return queue.Next{}
	}
	if i.namespace != "" {
		return q.reconcileNamespace(ctx, i.namespace)
	}
	return q.reconcile(ctx, i.binding)
}

// asking reports whether it is unknown whether the cluster answers, as right after a start. It then
// also records that an item was skipped, so that memberChanged adds all items again.
func (q *clusterQueue) asking() bool {
	unknown := func() bool { return !q.member.Reachable() && !q.member.Lost() }
	if !unknown() {
		return false
	}
	q.mu.Lock()
	q.deferred = true
	q.mu.Unlock()
	return unknown() // the member may have changed before deferred was set
}

// closed reports whether this queue was replaced or removed, because the cluster left or joined
// again.
func (q *clusterQueue) closed() bool {
	now, ok := q.applier.queue(q.name())
	return !ok || now != q
}

// await queues an item once the mirror has listed a type, or has failed to list it. If the type is
// listed already, it queues the item at once.
func (q *clusterQueue) await(gr schema.GroupResource, i item) {
	q.mu.Lock()
	if q.waiting[gr] == nil {
		q.waiting[gr] = sets.New[item]()
	}
	q.waiting[gr].Insert(i)
	q.mu.Unlock()
	if q.applier.mirror.Synced(q.name(), gr) {
		q.listed(gr) // the type was listed meanwhile
	}
}

// listed queues the items that wait for the list of a type.
func (q *clusterQueue) listed(gr schema.GroupResource) {
	q.mu.Lock()
	items := q.waiting[gr]
	delete(q.waiting, gr)
	q.mu.Unlock()
	for i := range items {
		q.items.Add(i)
	}
}

// addAll queues everything in the cluster: the bindings that name it or may have a copy in it, and
// the namespaces that addNamespaces queues.
func (q *clusterQueue) addAll() {
	for _, name := range q.applier.bindings.In(q.name()) {
		q.items.Add(item{binding: name})
	}
	// Copies of bindings that do not name the cluster any more.
	for _, o := range q.applier.mirror.PlacedIn(q.name()) {
		if b, ok := q.applier.bindings.ByUID(o.Binding); ok {
			q.items.Add(item{binding: binding.Name(b)})
		}
	}
	// The results also have the records of an earlier process.
	for _, uid := range q.applier.results.heldIn(q.name()) {
		if b, ok := q.applier.bindings.ByUID(uid); ok {
			q.items.Add(item{binding: binding.Name(b)})
		}
	}
	q.addNamespaces()
}

// addNamespaces queues the namespaces that this hub created in the cluster. With SpreadAll it also
// queues every namespace that is to be in all members.
func (q *clusterQueue) addNamespaces() {
	marked, _ := q.applier.mirror.Namespaces(q.name())
	for name, hub := range marked {
		if hub == q.applier.hubID {
			q.items.Add(item{namespace: name})
		}
	}
	for _, name := range q.applier.everywhere.all() {
		q.items.Add(item{namespace: name})
	}
}

// memberChanged handles a change of the member. If a trait changed or items were skipped, it queues
// everything in the cluster, unless the cluster is unreachable. If the labels or the generation of
// the Cluster changed, it makes earlier results stale.
func (q *clusterQueue) memberChanged() {
	q.mu.Lock()
	now, before, deferred := traitsOf(q.member), q.last, q.deferred
	q.last = now
	q.deferred = deferred && !now.reachable && !now.lost
	resumes := deferred && !q.deferred
	q.mu.Unlock()
	if now == before && !resumes {
		return
	}
	if now.generation != before.generation || now.labels != before.labels {
		for _, name := range q.applier.bindings.In(q.name()) {
			if b, ok := q.applier.bindings.Get(name); ok {
				q.applier.results.changed(name, b.UID, q.name())
			}
		}
	}
	// What was applied counts as applied while a cluster is lost, so a lost cluster is not planned
	// again.
	if now.reachable || resumes {
		q.addAll()
	}
}
