// Package apply makes members hold what bindings say. It renders each template for each of its
// clusters, applies the manifests that differ, and removes copies that no longer belong there.
//
// Decisions are pure functions. Want returns what a binding wants of one cluster, or why it wants
// nothing. Plan returns what to do there. Release returns how many of the replicas that move have
// to stay for now. Each cluster has its own queue, so that a cluster that hangs delays no other.
// The workers of a queue gather the input of Want and Plan, do the actions and remember the
// results. The digests of copies in the mirror are compared with those of the manifests, so a
// member gets requests only for changes, or where its current state must be known.
package apply

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/mark"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/podsecurity"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/queue"
	"orrery.dev/orrery/internal/reconciler"
	"orrery.dev/orrery/internal/records"
	"orrery.dev/orrery/internal/render"
	"orrery.dev/orrery/internal/template"
)

// Decisions gives access to the decisions of placement: which clusters each binding names. The
// controller of the package placement implements it.
type Decisions interface {
	// Knows reports whether the last decision of this process on a binding was for that generation
	// and knew the Cluster with that name and UID.
	Knows(binding types.UID, generation int64, cluster string, uid types.UID) bool
	// Subscribe calls f after every decision that changed something. f must not block.
	Subscribe(f func(binding types.NamespacedName))
}

// Records stores the Result of each binding in each cluster in the records database, and reads them
// after a restart.
type Records interface {
	records.Recorder
	records.Reader
}

// Options are the dependencies and settings of the applier.
type Options struct {
	Bindings  *binding.Cache
	Registry  *member.Registry // the clusters
	Mirror    *mirror.Mirror   // the state of the clusters
	Templates *template.Cache  // the templates on the hub
	Decisions Decisions
	Records   Records
	// HubID is the value of the label on namespaces that this hub created in members.
	HubID string
	// PodSecurity is the level for namespaces of the hub without a Pod Security label.
	PodSecurity podsecurity.Level
	// Namespaces says in which members the namespaces of the hub are created. Fences says which
	// members each namespace may use; it is required for SpreadAll only.
	Namespaces Spread
	Fences     Fences
}

// registry is the part of member.Registry that the applier needs: the clusters of the fleet and
// their changes. Rediscover reads the API list of a cluster again, soon and without blocking.
type registry interface {
	Member(name string) (*member.Member, bool)
	Members() []*member.Member
	Rediscover(cluster string)
	Subscribe(f func(member.Event))
}

// observer is the part of mirror.Mirror that the applier needs. Observe and ObserveDeleted give the
// mirror the answer to a write before its watch reports the change. Require makes the mirror list a
// kind in every cluster.
type observer interface {
	index
	Observe(cluster string, gvr schema.GroupVersionResource, o *unstructured.Unstructured)
	ObserveDeleted(cluster string, gr schema.GroupResource, namespace, name string, uid types.UID)
	Require(gvk schema.GroupVersionKind)
	Subscribe(f func(mirror.Event))
}

// index reads what the mirror last observed in the clusters, without a request. Lookup finds an
// object by name. Placed, PlacedOf and PlacedIn return copies: of a binding, of a binding in one
// cluster, and of all bindings in a cluster. Orphans returns objects that were copies and lost
// their marks. Namespaces returns the namespaces that a hub created, with the ID of that hub;
// NamespaceMark is that ID for one namespace.
type index interface {
	Lookup(cluster string, gr schema.GroupResource, namespace, name string) (presence.Presence, mirror.Object)
	Placed(binding types.UID) []mirror.Object
	PlacedOf(binding types.UID, cluster string) []mirror.Object
	PlacedIn(cluster string) []mirror.Object
	Orphans(cluster string) []mirror.Object
	Namespaces(cluster string) (marked map[string]string, synced bool)
	NamespaceMark(cluster, namespace string) string
	NamespaceLabels(cluster, namespace string) map[string]string
	lists
}

// lists reports how far the mirror has listed a type in a cluster. Synced is true once the list is
// complete, SyncedIn for one namespace. Version is a resourceVersion that the list has reached.
// Problem says why the list fails; Failing also says since when.
type lists interface {
	Synced(cluster string, gr schema.GroupResource) bool
	SyncedIn(cluster string, gr schema.GroupResource, namespace string) bool
	Version(cluster string, gr schema.GroupResource) string
	Problem(cluster string, gr schema.GroupResource) error
	Failing(cluster string, gr schema.GroupResource) (since time.Time, problem error)
}

// templates is the part of template.Cache that the applier needs. Get returns a template. Deletion
// returns the propagation with which a template was deleted; "" if it is unknown or Background.
type templates interface {
	Get(gvk schema.GroupVersionKind, namespace, name string) (*unstructured.Unstructured, presence.Presence)
	Deletion(uid types.UID) metav1.DeletionPropagation
	Subscribe(f func(template.Event))
}

// dependencies has the dependencies and settings of the applier, as narrow interfaces.
type dependencies struct {
	bindings  *binding.Cache
	registry  registry
	mirror    observer
	templates templates
	decisions Decisions
	records   Records
	hubID     string
	// listPatience is how long a leaving cluster may take to list its copies. The default is 30s.
	listPatience time.Duration
	// answerPatience is how long a member may take to answer. The default is callTimeout.
	answerPatience time.Duration
	level          podsecurity.Level // of namespaces without a label
	spread         Spread
	fences         Fences

	// now is the clock for putting copies back. The default is time.Now.
	now func() time.Time
}

// Applier applies the manifests of bindings to the members. Add makes it. Its exported methods
// may be called by several goroutines.
type Applier struct {
	dependencies

	hub      client.Client
	reader   client.Reader // not cached
	recorder events.EventRecorder
	log      logr.Logger

	overrides *overrides
	// looked counts the templates that were checked because an override policy changed. Tests read it.
	looked     atomic.Int64
	renders    *render.Cache
	standard   *podsecurity.Standard
	everywhere *everywhere // nil unless spread is SpreadAll
	results    *results
	restore    *restore
	// keyed ends when the key that signs the marks is on the hub, or the first attempt to write the
	// key failed.
	keyed        reconciler.Attempt
	restoreCheck *restoreCheck
	preservation *preservation
	past         *past
	runs         *runs
	finalizing   *queue.Queue[types.NamespacedName]
	synced       []toolscache.InformerSynced

	// releasing is held while a cluster decides how many replicas to release. The decision relies on
	// the replicas that the other clusters keep.
	releasing sync.Mutex

	mu      sync.RWMutex
	ctx     context.Context //nolint:containedctx // the lifetime of the queues; nil until Start
	marks   mark.Key
	queues  map[string]*clusterQueue
	running sync.WaitGroup
}

// Add creates the applier, subscribes it to its inputs and adds it to the manager, which must not
// have started. The applier writes to no cluster before all its inputs are listed and it has the
// key that signs the marks on copies.
func Add(mgr ctrl.Manager, o Options) (*Applier, error) {
	return add(mgr, dependencies{
		bindings: o.Bindings, registry: o.Registry, mirror: o.Mirror, templates: o.Templates,
		decisions: o.Decisions, records: o.Records, hubID: o.HubID,
		level: o.PodSecurity, spread: o.Namespaces, fences: o.Fences,
	})
}

// add is Add with interfaces instead of packages, for tests.
func add(mgr ctrl.Manager, d dependencies) (*Applier, error) {
	a := &Applier{
		dependencies: d, hub: mgr.GetClient(), reader: mgr.GetAPIReader(), recorder: mgr.GetEventRecorder("orrery"),
		log: mgr.GetLogger().WithName("apply"), results: newResults(), renders: render.NewCache(), queues: map[string]*clusterQueue{},
	}
	a.listPatience, a.answerPatience = cmp.Or(a.listPatience, defaultListPatience), cmp.Or(a.answerPatience, callTimeout)
	if a.now == nil {
		a.now = time.Now
	}
	a.finalizing = queue.New(finalizers, firstFinalize, lastFinalize, a.letGo)
	a.restore = &restore{
		hub: a.hub, reader: a.reader, key: a.key, log: a.log, turned: func() { a.everyQueue((*clusterQueue).addAll) },
		recorded: a.saySuspicion,
	}
	a.runs = newRuns(a.hub, a.reader, a.bindings)
	a.preservation = newPreservation(a.reader)
	a.past = &past{applier: a}
	a.restoreCheck = &restoreCheck{applier: a, now: time.Now, looked: map[types.UID]leftOut{}}
	if a.spread == SpreadAll {
		a.everywhere = &everywhere{fences: a.fences, namespaces: sets.New[string]()}
		a.fences.SubscribeClusters(a.opened)
		a.fences.SubscribeFences(a.fencesChanged)
	}
	ctx := context.Background() // the manager has not started, so nothing here waits
	var err error
	if a.standard, err = podsecurity.New(a.level); err != nil {
		return nil, err
	}
	if a.overrides, err = newOverrides(ctx, mgr.GetCache()); err != nil {
		return nil, err
	}
	namespaces, err := binding.Watch(ctx, mgr.GetCache(), hubNamespace(), func(o any) *metav1.PartialObjectMetadata {
		n, _ := o.(*metav1.PartialObjectMetadata)
		return n
	}, a.namespaceChanged)
	if err != nil {
		return nil, fmt.Errorf("watch the hub's namespaces: %w", err)
	}
	restored, err := a.restore.watch(ctx, mgr.GetCache())
	if err != nil {
		return nil, err
	}
	quotas, err := a.watchQuotas(ctx, mgr.GetCache())
	if err != nil {
		return nil, err
	}
	a.synced = append(slices.Clone(a.overrides.synced), a.bindings.Synced, namespaces, restored, quotas)
	if a.everywhere != nil {
		a.synced = append(a.synced, a.fences.Synced)
	}
	a.bindings.Subscribe(a.bindingChanged)
	a.overrides.retiring = a.stillCounts
	a.overrides.subscribe(a.overrideChanged)
	a.registry.Subscribe(a.memberChanged)
	a.mirror.Subscribe(a.observed)
	a.templates.Subscribe(a.templateChanged)
	a.decisions.Subscribe(a.decided)
	if err := mgr.Add(manager.RunnableFunc(a.start)); err != nil {
		return nil, fmt.Errorf("add applier to the manager: %w", err)
	}
	return a, nil
}

// saySuspicion records a Warning event on every Cluster: the hub seems to be restored from a
// backup. reason names the object that shows the restore. restore.suspect calls it.
func (a *Applier) saySuspicion(reason string) {
	for _, m := range a.registry.Members() {
		a.recorder.Eventf(m.Cluster(), nil, corev1.EventTypeWarning, "HubRestored", "Apply", "%s (%s)", restoredMessage, reason)
	}
}

// Result returns how the last attempt for a binding in a cluster ended. ok is false while this
// process has no result.
func (a *Applier) Result(binding types.UID, cluster string) (Result, bool) {
	s, ok := a.results.get(binding, cluster)
	return s.current(), ok && s.known
}

// Recorded reports whether the cluster had the manifest that was wanted when this or an earlier
// process last saw it. The package status uses it for a cluster that the binding's status does not
// list. ok is false if there is no record. health is always Unknown, because health is not
// recorded.
func (a *Applier) Recorded(binding types.UID, cluster string) (applied bool, health workv1alpha2.ResourceHealth, ok bool) {
	s, ok := a.results.get(binding, cluster)
	return s.acts.Applied, workv1alpha2.ResourceUnknown, ok && s.cluster != ""
}

// Gone reports whether a cluster, in which the binding is not placed or whose binding is being
// deleted, is known to hold nothing of the binding. It is false while that is unknown, also if it
// was known of another Cluster with this name.
func (a *Applier) Gone(binding types.UID, cluster string) bool {
	s, _ := a.results.get(binding, cluster)
	q, open := a.queue(cluster)
	return s.gone && (!open || s.cluster == q.uid)
}

// Refused returns the generation of a binding whose manifest a cluster is known to refuse. A
// conflict with an unmanaged object, a manifest that cannot be rendered and a kind that is not
// served count as refusals. It is 0 if the manifest is applied, was not sent yet, or an input
// changed since. Placement ends its reservation of capacity in a cluster that refuses the present
// generation.
func (a *Applier) Refused(binding types.UID, cluster string) int64 {
	r, ok := a.Result(binding, cluster)
	if !ok || r.Applied || r.Stale {
		return 0
	}
	switch r.Reason {
	case workv1alpha2.ReasonConflict, workv1alpha2.ReasonRejected, workv1alpha2.ReasonRenderFailed,
		workv1alpha2.ReasonPodSecurity, workv1alpha2.ReasonAPINotServed:
		return r.Generation
	}
	return 0
}

// Subscribe calls f with the name of a binding after every change of its Result, Gone, Contest or
// Ended in a cluster. f must not block, and several goroutines may call it at once.
func (a *Applier) Subscribe(f func(binding types.NamespacedName)) { a.results.subscribe(f) }

// Prepared returns a channel that is closed after the first attempt to write the key that signs the
// marks on copies to the hub, even if the attempt failed. The server waits for it at its start.
func (a *Applier) Prepared() <-chan struct{} { return a.keyed.Ended() }

// start opens a queue for every member once all inputs of manifests are known. It blocks until
// ctx has ended and the workers of all queues have stopped; the end of ctx is no error. It
// returns an error if the key of the marks cannot be read or created.
func (a *Applier) start(ctx context.Context) error {
	ctx = logr.NewContext(ctx, a.log)
	marks, err := ensureKey(ctx, a.hub, a.reader)
	a.keyed.End()
	switch {
	case ctx.Err() != nil:
		return nil //nolint:nilerr // the server stops
	case err != nil:
		return fmt.Errorf("start the applier: %w", err)
	case !toolscache.WaitForCacheSync(ctx.Done(), a.synced...):
		return nil // ctx has ended
	}
	a.load(ctx)
	a.runs.started()
	a.mu.Lock()
	a.ctx, a.marks = ctx, marks
	a.mu.Unlock()
	for _, m := range a.registry.Members() {
		a.open(m.Name()) //nolint:contextcheck // a queue lives as long as the applier, whose context it has
	}
	a.running.Go(func() { a.finalizing.Run(ctx) })
	for _, b := range a.bindings.All() {
		a.finalize(b)
	}
	<-ctx.Done()
	a.mu.Lock()
	queues := a.queues
	a.queues = map[string]*clusterQueue{}
	a.mu.Unlock()
	for _, q := range queues {
		q.items.Close()
	}
	a.running.Wait()
	return nil
}

// load reads the results that an earlier process recorded, and compares the hub with them.
// Errors are only logged. Without the results every copy is read once, to find changes by
// others, and clusters that do not answer have no result.
func (a *Applier) load(ctx context.Context) {
	for r, err := range a.records.AllResults(ctx) {
		if err != nil {
			a.log.Error(err, "cannot read earlier results: they are unknown until each cluster was looked at")
			return
		}
		a.past.add(r)
		a.results.load(r.Binding, r.Cluster, state{
			cluster: r.ClusterUID,
			acts:    Known{Digest: r.Digest, Fields: r.Fields, Applied: r.Digest != "", Note: noteOf(r)},
		})
	}
	if _, err := a.past.compared(ctx); err != nil {
		a.log.Error(err, "cannot find out yet whether the hub is older than its records: it is found out before anything is removed")
	}
}

// noteOf returns the recorded note about an applied manifest: the fields that the cluster changed
// or added. It is "" if there are none, or if the cluster refused the manifest since.
func noteOf(r records.Result) string {
	if !r.Applied {
		return ""
	}
	return r.Message
}

// key returns the key that signs and verifies the marks on copies; nil until start has read it.
func (a *Applier) key() mark.Key {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.marks
}

// knows reports whether the cache has a binding with this UID.
func (a *Applier) knows(uid types.UID) bool {
	_, ok := a.bindings.ByUID(uid)
	return ok
}

// open makes sure that a member has a queue, and closes the queue of a former member with this
// name. A new queue reconciles everything in the cluster. open does nothing before start,
// after the end of its ctx, and for a cluster that is not a member. An error is logged, and
// the cluster has no queue.
func (a *Applier) open(cluster string) {
	m, ok := a.registry.Member(cluster)
	if !ok {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ctx == nil || a.ctx.Err() != nil {
		return
	}
	if old, ok := a.queues[cluster]; ok {
		if old.member == m {
			return
		}
		old.items.Close()
	}
	q, err := newClusterQueue(a, m)
	if err != nil {
		a.log.Error(err, "cannot apply to cluster", "cluster", cluster)
		return
	}
	a.queues[cluster] = q
	ctx := a.ctx
	a.running.Go(func() {
		q.addAll()
		q.run(ctx)
	})
}

// queue returns the queue of a cluster; false if it has none.
func (a *Applier) queue(cluster string) (*clusterQueue, bool) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	q, ok := a.queues[cluster]
	return q, ok
}

// everyQueue calls f for each open queue, in no order and without a lock.
func (a *Applier) everyQueue(f func(*clusterQueue)) {
	a.mu.RLock()
	queues := make([]*clusterQueue, 0, len(a.queues))
	for _, q := range a.queues {
		queues = append(queues, q)
	}
	a.mu.RUnlock()
	for _, q := range queues {
		f(q)
	}
}
