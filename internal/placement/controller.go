// Package placement keeps one ResourceBinding or ClusterResourceBinding for every template, an
// object on the hub that a policy claims. The spec of the binding stores which clusters the
// template is placed in. One write of it claims and schedules the template. The package also writes
// the status of the policies. It does not write the status of bindings: package status does, and
// reads Outcome for it.
package placement

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/source"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/failover"
	"orrery.dev/orrery/internal/fleet"
	"orrery.dev/orrery/internal/interpreter"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/policy"
	"orrery.dev/orrery/internal/queue"
	"orrery.dev/orrery/internal/reconciler"
	"orrery.dev/orrery/internal/records"
	"orrery.dev/orrery/internal/template"
)

const (
	workers = 16 // templates that are reconciled at the same time
	// firstRetry is the delay before a failed write is retried. The delay doubles up to lastRetry.
	firstRetry = 50 * time.Millisecond
	lastRetry  = 30 * time.Second
	// burst is how long changes of clusters are collected before the templates that they concern are
	// decided again.
	burst = 100 * time.Millisecond
)

// Options are the arguments of Add: the packages and callbacks that placement uses.
type Options struct {
	Bindings  *binding.Cache
	Templates *template.Cache
	Fleet     *fleet.Cache
	Registry  *member.Registry
	Mirror    *mirror.Mirror
	// Hub describes how the API server of the hub treats some kinds of templates, for messages about
	// effects on the hub.
	Hub interpreter.Hub
	// Records stores the decisions; nil: decisions are not recorded.
	Records interface{ Decided(d records.Decision) }
	// Overrides returns the override policies that select a template, in the order in which they
	// apply, for the records; nil: the records name none.
	Overrides func(o *unstructured.Unstructured) []records.Policy
	// Refused returns the generation of the binding for which the cluster last refused the rendered
	// object; 0: it refused none. A nil Refused counts as always 0. The caller of Add calls
	// Controller.Answered when the result changes.
	Refused func(binding types.UID, cluster string) (generation int64)
	// Evictions grants the evictions that are due; nil: no taint evicts.
	Evictions *failover.Queue
}

// Outcome is the outcome of the last decision on a binding: the fields of its condition Scheduled,
// which package status writes.
type Outcome struct {
	Status          metav1.ConditionStatus
	Reason, Message string
	// Generation of the binding that stores the decision.
	Generation int64
}

// Controller keeps one binding for every template that a policy claims, and the status of the
// policies. Its exported methods may be called from several goroutines.
type Controller struct {
	client     client.Client
	reader     client.Reader // not cached
	templates  *template.Cache
	fleet      *fleet.Cache
	copies     copies
	hub        interpreter.Hub
	policies   *policy.Index
	placements placements
	bindings   *binding.Cache
	reporter   *reporter
	records    interface{ Decided(d records.Decision) }
	overrides  func(o *unstructured.Unstructured) []records.Policy
	synced     []toolscache.InformerSynced
	// settling is how long after a start new workloads wait for clusters that were ready before the
	// start. Their replicas are then divided once, among all clusters.
	settling time.Duration
	// capacityRetry is the delay before a workload for which capacity is lacking is decided again. It
	// is capacityLook, except in tests.
	capacityRetry time.Duration
	// waitPatience is how long the deletion of a binding may wait for the bindings of its dependencies
	// before DeletionWait returns a message about it. It is the constant waitPatience, except in
	// tests.
	waitPatience time.Duration

	decisions       *decisions
	evictions       *failover.Queue // nil: no taint evicts
	intended        *intended
	dependencyIndex *dependencyIndex
	reservations    *reservations
	peers           *peers
	classes         *classes
	dispatchOrder   *dispatchOrder
	retryQueue      *retryQueue
	barrier         *barrier
	waits           *orphanWaits

	mu          sync.RWMutex
	queue       workqueue.TypedRateLimitingInterface[binding.Template] // nil before start
	started     time.Time
	subscribers []func(types.NamespacedName) // see Subscribe

	fleetChanged chan struct{} // signals that changes.collected is not empty
	changes      struct {
		sync.Mutex
		collected []fleet.Change
	}
}

// Add creates the controller, subscribes it to its inputs and adds it to the manager, which must
// not have started.
func Add(mgr ctrl.Manager, o Options) (*Controller, error) {
	return add(mgr, o, mirrored{registry: o.Registry, mirror: o.Mirror, bindings: o.Bindings})
}

// add does the work of Add. It reads the state of copies in clusters through copies, which tests
// replace.
func add(mgr ctrl.Manager, o Options, copies copies) (*Controller, error) {
	index := policy.NewIndex()
	c := &Controller{
		client: mgr.GetClient(), reader: mgr.GetAPIReader(), templates: o.Templates, fleet: o.Fleet, copies: copies, hub: o.Hub, policies: index, bindings: o.Bindings,
		reporter: newReporter(mgr.GetClient(), mgr.GetEventRecorder("orrery"), index, o.Templates, o.Bindings), records: o.Records, overrides: o.Overrides,
		settling: 10 * time.Second, capacityRetry: capacityLook, waitPatience: waitPatience, waits: newOrphanWaits(), decisions: newDecisions(), intended: newIntended(), dependencyIndex: newDependencyIndex(),
		fleetChanged: make(chan struct{}, 1), reservations: newReservations(o.Fleet, copies, o.Refused), peers: newPeers(), classes: newClasses(), dispatchOrder: newDispatchOrder(),
	}
	if c.evictions = o.Evictions; c.evictions != nil {
		c.evictions.Requeue(c.enqueue)
	}
	c.retryQueue = newRetryQueue(c.enqueue)
	c.barrier = &barrier{every: settlingLook, known: c.known, look: c.enqueue}
	c.reporter.classes = c.classes
	c.reporter.clusters = c.clustersOf
	ctx := context.Background() // the manager has not started: no call blocks
	for _, kind := range []client.Object{&policyv1alpha1.PropagationPolicy{}, &policyv1alpha1.ClusterPropagationPolicy{}} {
		synced, err := binding.Watch(ctx, mgr.GetCache(), kind, asPolicy, c.policyChanged)
		if err != nil {
			return nil, err
		}
		c.synced = append(c.synced, synced)
	}
	synced, err := binding.Watch(ctx, mgr.GetCache(), &schedulingv1.PriorityClass{}, asClass, c.classChanged)
	if err != nil {
		return nil, err
	}
	c.synced = append(c.synced, synced, o.Bindings.Synced, o.Fleet.Synced)
	o.Bindings.Subscribe(c.bindingChanged)
	o.Templates.Subscribe(c.templateChanged)
	o.Fleet.Subscribe(func(change fleet.Change) {
		c.changes.Lock()
		c.changes.collected = append(c.changes.collected, change)
		c.changes.Unlock()
		select {
		case c.fleetChanged <- struct{}{}:
		default: // the pending signal covers this change
		}
	})
	names := newNamesWriter(mgr.GetClient(), mgr.GetAPIReader(), o.Fleet.Synced, func() ([]string, bool) {
		all, _, known := c.clustersOf("")
		return all, known
	})
	o.Fleet.Subscribe(func(change fleet.Change) {
		if (change.Before == nil) != (change.After == nil) {
			names.changed()
		}
	})
	o.Fleet.SubscribeFences(c.fencesChanged)
	copies.Subscribe(c.reservations.observed)
	copies.Subscribe(c.copyChanged)

	options := reconciler.Options[binding.Template](workers)
	options.Reconciler = c
	options.RateLimiter = workqueue.NewTypedItemExponentialFailureRateLimiter[binding.Template](firstRetry, lastRetry)
	options.NewQueue = func(name string, limiter workqueue.TypedRateLimiter[binding.Template]) workqueue.TypedRateLimitingInterface[binding.Template] {
		return queue.NewOrdered(name, limiter, c.priority, c.dispatchOrder.take)
	}
	options.SkipNameValidation = new(true) // tests run several managers in one process
	placer, err := controller.NewTyped("placement", mgr, options)
	if err != nil {
		return nil, fmt.Errorf("create placement controller: %w", err)
	}
	if err := placer.Watch(source.TypedFunc[binding.Template](c.start)); err != nil {
		return nil, fmt.Errorf("watch for placements: %w", err)
	}
	if err := mgr.Add(c.reporter); err != nil {
		return nil, fmt.Errorf("add the writer of policy status: %w", err)
	}
	if err := mgr.Add(names); err != nil {
		return nil, fmt.Errorf("add the writer of the clusters' names: %w", err)
	}
	return c, nil
}

// asPolicy returns a PropagationPolicy, or a ClusterPropagationPolicy converted to one; nil for any
// other object.
func asPolicy(o any) *policyv1alpha1.PropagationPolicy {
	if p, ok := o.(interface {
		Propagation() *policyv1alpha1.PropagationPolicy
	}); ok {
		return p.Propagation()
	}
	return nil
}

// start queues all templates, once the existing policies and bindings are listed, so that no second
// binding is created for a template. It returns the error of ctx if ctx ends first. The controller
// calls start with its work queue before its workers run.
func (c *Controller) start(ctx context.Context, queue workqueue.TypedRateLimitingInterface[binding.Template]) error {
	if !toolscache.WaitForCacheSync(ctx.Done(), c.synced...) {
		return ctx.Err()
	}
	c.mu.Lock()
	c.queue, c.started = queue, time.Now()
	c.mu.Unlock()
	for _, p := range c.policies.All() {
		c.reevaluate(p)
		c.reporter.changed(policy.Name(p))
	}
	c.watchKinds(c.bindings.Kinds()...)
	c.enqueue(slices.Concat(c.bindings.Templates(), c.dependencyIndex.all(), c.dependencyIndex.retired())...)
	go c.followFleet(ctx)
	return nil
}

// followFleet requeues the templates that changes of clusters concern, until ctx ends. It collects
// changes for the time burst, and handles them together.
func (c *Controller) followFleet(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.fleetChanged:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(burst):
		}
		c.changes.Lock()
		changes := c.changes.collected
		c.changes.collected = nil
		c.changes.Unlock()
		var concerned []binding.Template
		for _, change := range changes {
			concerned = append(concerned, c.decisions.concerned(change, c.bindings)...)
			if change.What&(fleet.Membership|fleet.Labels) != 0 {
				c.reporter.clusterChanged(change.Name)
			}
		}
		c.enqueue(concerned...)
	}
}

// clustersOf returns the names of the clusters that a namespace of the hub may use, sorted; for "",
// all clusters. fenced is true if ClusterAccesses restrict the namespace. known is false until all
// Clusters and ClusterAccesses are listed; the other results are incomplete then.
func (c *Controller) clustersOf(namespace string) (names []string, fenced, known bool) {
	s := c.fleet.Snapshot()
	fence := s.Fence(namespace)
	for _, cluster := range s.Clusters() {
		if fence.Allows(cluster) {
			names = append(names, cluster.Name)
		}
	}
	return names, fence != nil, c.fleet.Synced() && fence.Known()
}

// enqueue adds templates to the work queue, highest priority first. Before start it does nothing,
// since start queues all templates.
func (c *Controller) enqueue(keys ...binding.Template) {
	c.mu.RLock()
	queue := c.queue
	c.mu.RUnlock()
	if queue == nil {
		return
	}
	for _, k := range c.ordered(keys) {
		queue.Add(k)
	}
}

// working reports whether start has listed the existing policies and bindings, so that the
// controller decides.
func (c *Controller) working() bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.queue != nil
}

// watchKinds starts to watch kinds on the hub, and to mirror them from the members. Errors are
// ignored: the status of a policy reports kinds that the hub does not serve.
func (c *Controller) watchKinds(kinds ...schema.GroupVersionKind) {
	for _, gvk := range kinds {
		_ = c.templates.Watch(gvk)
		c.copies.Require(gvk)
	}
}

// policyChanged records a policy that was added (old is nil), changed, or deleted (p is nil).
// Unless only its status changed, it requeues the templates that the old or the new policy selects,
// and queues the status of the policy.
func (c *Controller) policyChanged(old, p *policyv1alpha1.PropagationPolicy) {
	name := policy.Name(cmp.Or(p, old))
	c.classes.set(name, p)
	if p == nil {
		c.policies.Delete(name)
		c.placements.forget(name)
	} else {
		c.policies.Set(p)
	}
	if !c.working() || old != nil && p != nil && old.UID == p.UID && old.Generation == p.Generation {
		return // start requeues all templates; or only the status changed
	}
	c.reporter.changed(name)
	for _, either := range []*policyv1alpha1.PropagationPolicy{old, p} {
		if either != nil {
			c.reevaluate(either)
		}
	}
}

// reevaluate watches the kinds of a policy and requeues the templates that it selects.
func (c *Controller) reevaluate(p *policyv1alpha1.PropagationPolicy) {
	c.watchKinds(policy.Kinds(p)...)
	c.enqueue(slices.Collect(maps.Keys(selected(c.templates, p)))...)
}

// bindingChanged records a binding that was added (old is nil), changed, or deleted (b is nil). It
// requeues its template, the templates on which that depends, and the other members of its workload
// affinity groups.
func (c *Controller) bindingChanged(old, b *workv1alpha2.ResourceBinding) {
	if b != nil {
		c.enqueue(c.peers.set(b)...)
	} else {
		c.enqueue(c.peers.forget(old)...)
	}
	if old != nil && b != nil && old.UID == b.UID && old.Generation == b.Generation &&
		old.DeletionTimestamp.IsZero() == b.DeletionTimestamp.IsZero() {
		return // only the status of the binding changed
	}
	if b != nil {
		c.enqueue(c.dependencyIndex.set(b)...) // dependencies are placed in the same clusters
	} else {
		c.dependencyIndex.retire(old) // its template, which is requeued below, settles its dependencies
	}
	if old != nil {
		c.enqueue(binding.TemplateOf(old))
		if b == nil || b.UID != old.UID {
			c.decisions.forget(old.UID)
			c.reservations.forget(old.UID)
			c.waits.forget(old)
		}
	}
	if b != nil && !b.DeletionTimestamp.IsZero() {
		c.reservations.forget(b.UID)
	}
	if b != nil && c.working() {
		c.watchKinds(binding.Kind(b))
		c.enqueue(binding.TemplateOf(b))
	}
}

// known reports whether decisions by free capacity have all their inputs after a start: every
// selected template was reconciled once, and every cluster that was ready before the start has
// reported its capacity. It is also true when the settling time is over, and before start.
func (c *Controller) known() bool {
	if !c.starting() {
		return true
	}
	for _, p := range c.policies.All() {
		for _, gvk := range policy.Kinds(p) {
			if !c.templates.Notified(gvk) && c.templates.Watch(gvk) == nil {
				return false
			}
		}
	}
	c.mu.RLock()
	waiting := c.queue.Len()
	c.mu.RUnlock()
	if waiting > 0 || c.dispatchOrder.any() {
		return false
	}
	return !slices.ContainsFunc(c.fleet.Measured().Clusters(), func(cluster *fleet.Cluster) bool {
		return cluster.Expected && (!cluster.Reachable || cluster.FreeCapacity == nil)
	})
}

// templateChanged requeues the template of an event. An event without a name means that a kind was
// listed: then it requeues the templates of that kind that have a binding, and queues the status of
// the policies that name the kind.
func (c *Controller) templateChanged(e template.Event) {
	if e.Name != "" {
		c.enqueue(binding.Template{GroupKind: e.GVK.GroupKind(), Namespace: e.Namespace, Name: e.Name})
		return
	}
	// The kind was listed. Only now it is known which templates of the kind no longer exist.
	c.enqueue(slices.DeleteFunc(append(c.bindings.Templates(), c.dependencyIndex.retired()...), func(k binding.Template) bool { return k.GroupKind != e.GVK.GroupKind() })...)
	for _, p := range c.policies.All() {
		if slices.Contains(policy.Kinds(p), e.GVK) {
			// The hub does not serve this version. Templates that waited for it are placed in
			// another version.
			if meta.IsNoMatchError(c.templates.Watch(e.GVK)) {
				c.enqueue(slices.Collect(maps.Keys(selected(c.templates, p)))...)
			}
			c.reporter.changed(policy.Name(p))
		}
	}
}

// fencesChanged requeues the placed templates of namespaces that may use other clusters than
// before, and queues the status of the policies in these namespaces.
func (c *Controller) fencesChanged(namespaces sets.Set[string]) {
	if !c.working() {
		return // start requeues all templates
	}
	c.reporter.fencesChanged(namespaces)
	c.enqueue(slices.DeleteFunc(c.bindings.Templates(), func(k binding.Template) bool {
		return k.Namespace == "" || !namespaces.Has(k.Namespace)
	})...)
}

// copyChanged requeues templates that move out of a cluster, because a copy in it changed: the
// template of the binding with this UID or, if uid is "", all such templates. An eviction from the
// cluster ends when the copy there is as small as its target.
func (c *Controller) copyChanged(cluster string, uid types.UID) {
	c.enqueue(c.decisions.evicting(cluster, uid)...)
}

// Answered releases the capacity that is reserved for a binding in clusters that refused its
// present manifest, because its pods will not appear there. The applier calls it when the result of
// Options.Refused for the binding may have changed. An unknown binding is ignored.
func (c *Controller) Answered(name types.NamespacedName) {
	if b, ok := c.bindings.Get(name); ok {
		c.reservations.answered(b.UID)
	}
}

// Outcome returns the outcome of the last decision that this process made on the binding with this
// UID; false if it has made none yet.
func (c *Controller) Outcome(binding types.UID) (Outcome, bool) {
	made, ok := c.decisions.of(binding)
	return made.outcome, ok
}

// Knows reports whether the binding at that generation stores a decision of this process, made when
// the fleet had the Cluster with that name and UID. Then a cluster that the binding does not name
// is certainly not to have the template. The result is true as soon as the hub has stored the
// binding, even if the response to the write has not arrived.
func (c *Controller) Knows(binding types.UID, generation int64, cluster string, clusterUID types.UID) bool {
	made, ok := c.decisions.of(binding)
	if ok && made.outcome.Generation == generation && made.identities.Has(cluster, clusterUID) {
		return true
	}
	b, ok := c.bindings.ByUID(binding)
	return ok && b.Generation == generation && c.intended.knows(b, cluster, clusterUID)
}

// Subscribe registers f to be called with the name of a binding after every change of the result of
// Outcome, Knows or DeletionWait for it. f must not block, and several goroutines may call it at
// once. A name without a namespace is that of a ClusterResourceBinding.
func (c *Controller) Subscribe(f func(binding types.NamespacedName)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.subscribers = append(c.subscribers, f)
}

// decided remembers and records the decision d on the template t, which the binding b stores. It
// notifies the subscribers if the decision differs from the last one. It requeues the template if
// the fleet has changed since the snapshot s in a way that concerns it. seen is the result of
// decisions.seen before s was taken.
func (c *Controller) decided(b *workv1alpha2.ResourceBinding, t Template, d Decision, s *fleet.Snapshot, seen uint64) {
	d.Outcome.Generation = b.Generation
	var evicting []string
	for _, e := range d.Spec.GracefulEvictionTasks {
		evicting = append(evicting, e.FromCluster)
	}
	evicting = append(evicting, d.runs...) // a change of the copy may end the wait
	news, again := c.decisions.made(decision{
		uid: b.UID, binding: binding.Name(b), template: binding.TemplateOf(b),
		group:    group{placement: t.Placement, kind: t.Object.GroupVersionKind(), fence: s.Fence(t.Object.GetNamespace())},
		evicting: evicting, outcome: d.Outcome, cut: t.Cut, identities: s.Identities(),
	}, seen, c.bindings)
	if again {
		c.enqueue(binding.TemplateOf(b))
	}
	if c.records != nil {
		d.Record.Binding = b.UID
		c.records.Decided(d.Record)
	}
	if news {
		c.publish(b)
	}
}

// publish calls the functions of Subscribe with the name of the binding.
func (c *Controller) publish(b *workv1alpha2.ResourceBinding) {
	c.mu.RLock()
	subscribers := c.subscribers
	c.mu.RUnlock()
	for _, f := range subscribers {
		f(binding.Name(b))
	}
}
