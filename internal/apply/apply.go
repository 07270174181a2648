// Package apply makes members hold what bindings say: it renders each template for each of its
// clusters, applies what differs, and removes what no longer belongs there.
//
// Deciding is pure: Plan says what is to be done for a binding in one cluster, and Release which
// of the replicas that move have to stay for now. Each cluster has a queue of its own, whose
// workers gather what Plan asks for, do what it says and remember how that ended; a cluster that
// hangs delays nobody else. What is to be done is found by comparing digests with the mirror; a
// member is only called to be changed, or when what is in it has to be known just then.
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

// Decisions says what placement decided.
type Decisions interface {
	// Knows is true when the last decision of this process on a binding is of that generation and
	// knew the Cluster of that name and UID.
	Knows(binding types.UID, generation int64, cluster string, uid types.UID) bool
	// Subscribe calls f after every decision that says something new. f must not block.
	Subscribe(f func(binding types.NamespacedName))
}

// Records keeps results across restarts.
type Records interface {
	records.Recorder
	records.Reader
}

// Options are what the applier works with.
type Options struct {
	Bindings  *binding.Cache
	Registry  *member.Registry // the clusters
	Mirror    *mirror.Mirror   // what they have
	Templates *template.Cache  // what they should have
	Decisions Decisions
	Records   Records
	// HubID marks the namespaces in members that this hub made.
	HubID string
	// PodSecurity is what a namespace of the hub is held to that has no Pod Security label.
	PodSecurity podsecurity.Level
	// Namespaces says in which members the namespaces of the hub are made, and Fences which those may be. Fences are needed
	// for SpreadAll only.
	Namespaces Spread
	Fences     Fences
}

// registry is the part of member.Registry that the applier needs.
type registry interface {
	Member(name string) (*member.Member, bool)
	Members() []*member.Member
	Rediscover(cluster string)
	Subscribe(f func(member.Event))
}

// observer is the part of mirror.Mirror that the applier needs.
type observer interface {
	index
	Observe(cluster string, gvr schema.GroupVersionResource, o *unstructured.Unstructured)
	ObserveDeleted(cluster string, gr schema.GroupResource, namespace, name string, uid types.UID)
	Require(gvk schema.GroupVersionKind)
	Subscribe(f func(mirror.Event))
}

// index is what is known of the clusters.
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

// lists is what is known of how the types of the clusters were listed.
type lists interface {
	Synced(cluster string, gr schema.GroupResource) bool
	SyncedIn(cluster string, gr schema.GroupResource, namespace string) bool
	Version(cluster string, gr schema.GroupResource) string
	Problem(cluster string, gr schema.GroupResource) error
	Failing(cluster string, gr schema.GroupResource) (since time.Time, problem error)
}

// templates is the part of template.Cache that the applier needs.
type templates interface {
	Get(gvk schema.GroupVersionKind, namespace, name string) (*unstructured.Unstructured, presence.Presence)
	Deletion(uid types.UID) metav1.DeletionPropagation
	Subscribe(f func(template.Event))
}

// rooms are what the applier works with, as far as it needs them.
type rooms struct {
	bindings  *binding.Cache
	registry  registry
	mirror    observer
	templates templates
	decisions Decisions
	records   Records
	hubID     string
	// listPatience is how long a leaving cluster is given to list what was placed in it. The default is 30s.
	listPatience time.Duration
	level        podsecurity.Level // of namespaces that say none
	spread       Spread
	fences       Fences

	// now is the clock by which copies are put back. The default is time.Now.
	now func() time.Time
}

// Applier brings placed objects to the members.
type Applier struct {
	rooms

	hub      client.Client
	reader   client.Reader // not cached
	recorder events.EventRecorder
	log      logr.Logger

	overrides  *overrides
	looked     atomic.Int64 // how many templates were looked at because an override policy changed
	renders    *render.Cache
	standard   *podsecurity.Standard
	everywhere *everywhere // nil: no namespace is
	results    *results
	restore    *restore
	keyed      reconciler.Attempt // to have a key of marks
	survey     *survey
	past       *past
	runs       *runs
	finalizing *queue.Queue[types.NamespacedName]
	synced     []toolscache.InformerSynced

	releasing sync.Mutex // one cluster after another decides what it may let go: each counts on what the others keep

	mu      sync.RWMutex
	ctx     context.Context //nolint:containedctx // the lifetime of the queues; nil until Start
	marks   mark.Key
	queues  map[string]*clusterQueue
	running sync.WaitGroup
}

// Add adds the applier to the manager.
func Add(mgr ctrl.Manager, o Options) (*Applier, error) {
	return add(mgr, rooms{
		bindings: o.Bindings, registry: o.Registry, mirror: o.Mirror, templates: o.Templates,
		decisions: o.Decisions, records: o.Records, hubID: o.HubID,
		level: o.PodSecurity, spread: o.Namespaces, fences: o.Fences,
	})
}

func add(mgr ctrl.Manager, r rooms) (*Applier, error) {
	a := &Applier{
		rooms: r, hub: mgr.GetClient(), reader: mgr.GetAPIReader(), recorder: mgr.GetEventRecorder("orrery"),
		log: mgr.GetLogger().WithName("apply"), results: newResults(), renders: render.NewCache(), queues: map[string]*clusterQueue{},
	}
	a.listPatience = cmp.Or(a.listPatience, defaultListPatience)
	if a.now == nil {
		a.now = time.Now
	}
	a.finalizing = queue.New(finalizers, firstFinalize, lastFinalize, a.letGo)
	a.restore = &restore{
		hub: a.hub, reader: a.reader, key: a.key, log: a.log, turned: func() { a.everyQueue((*clusterQueue).addAll) },
		recorded: a.saySuspicion,
	}
	a.runs = newRuns(a.hub, a.reader, a.bindings)
	a.past = &past{applier: a}
	a.survey = &survey{applier: a, now: time.Now, looked: map[types.UID]leftOut{}}
	if a.spread == SpreadAll {
		a.everywhere = &everywhere{fences: a.fences, namespaces: sets.New[string]()}
		a.fences.SubscribeClusters(a.opened)
		a.fences.SubscribeFences(a.fencesChanged)
	}
	ctx := context.Background() // the manager has not started: nothing is waited for
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

// saySuspicion tells every cluster's watchers that the hub seems to be restored.
func (a *Applier) saySuspicion(reason string) {
	for _, m := range a.registry.Members() {
		a.recorder.Eventf(m.Cluster(), nil, corev1.EventTypeWarning, "HubRestored", "Apply", "%s (%s)", restoredMessage, reason)
	}
}

// Result is how the last attempt for a binding and a cluster ended; false while nothing is known.
func (a *Applier) Result(binding types.UID, cluster string) (Result, bool) {
	s, ok := a.results.get(binding, cluster)
	return s.current(), ok && s.known
}

// Recorded is whether a cluster was last seen, by an earlier process too, to have the manifest
// as it was wanted then; false while nothing is known. How the object fared there is not recorded.
func (a *Applier) Recorded(binding types.UID, cluster string) (applied bool, health workv1alpha2.ResourceHealth, ok bool) {
	s, ok := a.results.get(binding, cluster)
	return s.acts.Applied, workv1alpha2.ResourceUnknown, ok && s.cluster != ""
}

// Gone is true when a cluster that a binding does not name is known to hold nothing of it.
func (a *Applier) Gone(binding types.UID, cluster string) bool {
	s, _ := a.results.get(binding, cluster)
	return s.gone
}

// Refused returns the generation of a binding of which a cluster takes no manifest, as far as is
// known; 0: it takes it, or that is not known. What only could not be sent yet is not refused.
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

// Subscribe calls f after a result of a binding changed. f must not block.
func (a *Applier) Subscribe(f func(binding types.NamespacedName)) { a.results.subscribe(f) }

// Prepared returns a channel that is closed once the applier has written what a start writes on the hub, or has failed to once.
func (a *Applier) Prepared() <-chan struct{} { return a.keyed.Ended() }

// start opens a queue for every member once everything that a manifest depends on is known, and
// returns when ctx has ended and the queues are empty.
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

// load takes in what an earlier process recorded. Without it every copy is read once, to see whether others changed it meanwhile, and
// clusters that do not answer have no result.
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

// noteOf is what an earlier process noted of how a cluster has the manifest: of one that refused it since, nothing is known.
func noteOf(r records.Result) string {
	if !r.Applied {
		return ""
	}
	return r.Message
}

func (a *Applier) key() mark.Key {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.marks
}

// knows is true of a binding that the hub has.
func (a *Applier) knows(uid types.UID) bool {
	_, ok := a.bindings.ByUID(uid)
	return ok
}

// open makes sure that a cluster has a queue, and has everything in the cluster reconciled.
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

// queue returns a cluster's queue.
func (a *Applier) queue(cluster string) (*clusterQueue, bool) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	q, ok := a.queues[cluster]
	return q, ok
}

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
