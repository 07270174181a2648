// Package placement keeps one binding for every template that a policy claims. One write of the
// binding's spec claims and schedules the template. The package also writes the status of the
// policies. It does not write the status of bindings: package status does, and reads Outcome for
// it.
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
	workers = 16
	// firstRetry and lastRetry bound the delay before a failed write is retried.
	firstRetry = 50 * time.Millisecond
	lastRetry  = 30 * time.Second
	// burst is how long fleet changes are collected before the placements that they concern are
	// decided again.
	burst = 100 * time.Millisecond
)

// Options are the packages and callbacks that placement uses.
type Options struct {
	Bindings  *binding.Cache
	Templates *template.Cache
	Fleet     *fleet.Cache
	Registry  *member.Registry
	Mirror    *mirror.Mirror
	// Hub describes what the hub itself does with some templates.
	Hub interpreter.Hub
	// Records stores the decisions; nil: decisions are not recorded.
	Records interface{ Decided(d records.Decision) }
	// Overrides returns the override policies that select a template, in order, for the records;
	// nil: none are recorded.
	Overrides func(o *unstructured.Unstructured) []records.Policy
	// Refused returns the generation of the binding whose manifest the cluster refused last; 0 if
	// it refused none. nil: no manifest is ever refused. The caller of Add calls
	// Controller.Answered when the result changes.
	Refused func(binding types.UID, cluster string) (generation int64)
}

// Outcome is the outcome of the last decision on a binding: the content of its condition Scheduled.
type Outcome struct {
	Status          metav1.ConditionStatus
	Reason, Message string
	// Generation of the binding that the outcome is about.
	Generation int64
}

// Controller keeps one binding for every template that a policy claims.
type Controller struct {
	client     client.Client
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
	// settling is how long new workloads wait after a start for clusters that answered before it.
	// Their replicas are then divided once, among all of these clusters.
	settling time.Duration
	// capacityRetry is the delay before a workload that does not fit is tried again. It is
	// capacityLook, except in tests.
	capacityRetry time.Duration
	// waitPatience is how long a deletion waits for the bindings of dependencies before its
	// binding reports it.
	waitPatience time.Duration

	decisions    *decisions
	intended     *intended
	needs        *needs
	reservations *reservations
	peers        *peers
	classes      *classes
	turns        *turns
	rounds       *rounds
	gate         *gate
	waits        *orphanWaits

	mu          sync.RWMutex
	queue       workqueue.TypedRateLimitingInterface[binding.Template] // nil before start
	started     time.Time
	subscribers []func(types.NamespacedName)

	fleetChanged chan struct{}
	changes      struct {
		sync.Mutex
		collected []fleet.Change
	}
}

// Add creates the controller and adds it to the manager.
func Add(mgr ctrl.Manager, o Options) (*Controller, error) {
	return add(mgr, o, mirrored{registry: o.Registry, mirror: o.Mirror, bindings: o.Bindings})
}

func add(mgr ctrl.Manager, o Options, copies copies) (*Controller, error) {
	index := policy.NewIndex()
	c := &Controller{
		client: mgr.GetClient(), templates: o.Templates, fleet: o.Fleet, copies: copies, hub: o.Hub, policies: index, bindings: o.Bindings,
		reporter: newReporter(mgr.GetClient(), mgr.GetEventRecorder("orrery"), index, o.Templates, o.Bindings), records: o.Records, overrides: o.Overrides,
		settling: 10 * time.Second, capacityRetry: capacityLook, waitPatience: waitPatience, waits: newOrphanWaits(), decisions: newDecisions(), intended: newIntended(), needs: newNeeds(), fleetChanged: make(chan struct{}, 1),
		reservations: newReservations(o.Fleet, copies, o.Refused), peers: newPeers(), classes: newClasses(), turns: newTurns(),
	}
	c.rounds = newRounds(c.enqueue)
	c.gate = &gate{every: settlingLook, known: c.known, look: c.enqueue}
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
		return queue.NewOrdered(name, limiter, c.priority, c.turns.take)
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

func asPolicy(o any) *policyv1alpha1.PropagationPolicy {
	if p, ok := o.(interface {
		Propagation() *policyv1alpha1.PropagationPolicy
	}); ok {
		return p.Propagation()
	}
	return nil
}

// start starts the work once the existing policies and bindings are listed, so that nothing is
// created twice. The controller calls start before its workers run.
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
	c.enqueue(append(c.bindings.Templates(), c.needs.all()...)...)
	go c.followFleet(ctx)
	return nil
}

// followFleet requeues the templates that changes of the fleet concern.
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

// clustersOf returns the names of the clusters that a namespace may use ("": all). fenced reports
// whether ClusterAccesses restrict the namespace; known is false until all are listed.
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

// enqueue adds templates to the queue, highest priority first. Before start, it does nothing.
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

func (c *Controller) working() bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.queue != nil
}

// watchKinds watches kinds on the hub and mirrors them from the members. Errors are ignored: the
// policy's status reports kinds that the hub does not serve.
func (c *Controller) watchKinds(kinds ...schema.GroupVersionKind) {
	for _, gvk := range kinds {
		_ = c.templates.Watch(gvk)
		c.copies.Require(gvk)
	}
}

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

// reevaluate requeues the templates that a policy selects.
func (c *Controller) reevaluate(p *policyv1alpha1.PropagationPolicy) {
	c.watchKinds(policy.Kinds(p)...)
	c.enqueue(slices.Collect(maps.Keys(selected(c.templates, p)))...)
}

func (c *Controller) bindingChanged(old, b *workv1alpha2.ResourceBinding) {
	if b != nil {
		c.enqueue(c.peers.set(b)...)
	} else {
		c.enqueue(c.peers.forget(old)...)
	}
	if old != nil && b != nil && old.UID == b.UID && old.Generation == b.Generation &&
		old.DeletionTimestamp.IsZero() == b.DeletionTimestamp.IsZero() {
		return // only the status changed
	}
	if b != nil {
		c.enqueue(c.needs.set(b)...) // dependencies follow the binding
	} else {
		c.enqueue(c.needs.forget(old)...)
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

// known reports whether the inputs of decisions by free capacity are complete after a start. Every
// selected template was reconciled once, and every expected cluster reported its capacity. It is
// also true once the settling time is over.
func (c *Controller) known() bool {
	if !c.young() {
		return true
	}
	for _, p := range c.policies.All() {
		for _, gvk := range policy.Kinds(p) {
			if !c.templates.Told(gvk) && c.templates.Watch(gvk) == nil {
				return false
			}
		}
	}
	c.mu.RLock()
	waiting := c.queue.Len()
	c.mu.RUnlock()
	if waiting > 0 || c.turns.any() {
		return false
	}
	return !slices.ContainsFunc(c.fleet.Measured().Clusters(), func(cluster *fleet.Cluster) bool {
		return cluster.Expected && (!cluster.Reachable || cluster.Room == nil)
	})
}

func (c *Controller) templateChanged(e template.Event) {
	if e.Name != "" {
		c.enqueue(binding.Template{GroupKind: e.GVK.GroupKind(), Namespace: e.Namespace, Name: e.Name})
		return
	}
	// The kind was listed: only now the hub can see that templates are gone.
	c.enqueue(slices.DeleteFunc(c.bindings.Templates(), func(k binding.Template) bool { return k.GroupKind != e.GVK.GroupKind() })...)
	for _, p := range c.policies.All() {
		if slices.Contains(policy.Kinds(p), e.GVK) {
			// Templates that waited for this version are placed in another.
			if meta.IsNoMatchError(c.templates.Watch(e.GVK)) {
				c.enqueue(slices.Collect(maps.Keys(selected(c.templates, p)))...)
			}
			c.reporter.changed(policy.Name(p))
		}
	}
}

// fencesChanged requeues the placed templates of namespaces whose allowed clusters changed, and the
// status of their policies.
func (c *Controller) fencesChanged(namespaces sets.Set[string]) {
	if !c.working() {
		return // start requeues all templates
	}
	c.reporter.fencesChanged(namespaces)
	c.enqueue(slices.DeleteFunc(c.bindings.Templates(), func(k binding.Template) bool {
		return k.Namespace == "" || !namespaces.Has(k.Namespace)
	})...)
}

// copyChanged requeues templates that move out of the cluster. An eviction ends when the copy there
// is as small as its target.
func (c *Controller) copyChanged(cluster string, uid types.UID) {
	c.enqueue(c.decisions.evicting(cluster, uid)...)
}

// Answered must be called when the result of Options.Refused for the binding may have changed.
func (c *Controller) Answered(name types.NamespacedName) {
	if b, ok := c.bindings.Get(name); ok {
		c.reservations.answered(b.UID)
	}
}

// Outcome returns the outcome of the last decision on a binding; false if there is none yet.
func (c *Controller) Outcome(binding types.UID) (Outcome, bool) {
	made, ok := c.decisions.of(binding)
	return made.outcome, ok
}

// Knows reports whether this process made the last decision on a binding, the hub has the
// binding with its result at that generation, and the decision knew the Cluster with that name
// and UID. Then the template is not wanted in a cluster that the binding does not name. It is
// enough that the hub stored the binding: the response to the write may still be on its way.
func (c *Controller) Knows(binding types.UID, generation int64, cluster string, clusterUID types.UID) bool {
	made, ok := c.decisions.of(binding)
	if ok && made.outcome.Generation == generation && made.identities.Has(cluster, clusterUID) {
		return true
	}
	b, ok := c.bindings.ByUID(binding)
	return ok && b.Generation == generation && c.intended.knows(b, cluster, clusterUID)
}

// Subscribe registers f to be called after every change of the result of Outcome or Knows. f must
// not block. A binding without a namespace is a ClusterResourceBinding.
func (c *Controller) Subscribe(f func(binding types.NamespacedName)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.subscribers = append(c.subscribers, f)
}

// decided remembers and records a decision, and notifies the subscribers if it differs from the
// last one. seen is the result of decisions.seen before the snapshot.
func (c *Controller) decided(b *workv1alpha2.ResourceBinding, t Template, d Decision, s *fleet.Snapshot, seen uint64) {
	d.Outcome.Generation = b.Generation
	var evicting []string
	for _, e := range d.Spec.GracefulEvictionTasks {
		evicting = append(evicting, e.FromCluster)
	}
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

// publish notifies the subscribers of a change of a binding.
func (c *Controller) publish(b *workv1alpha2.ResourceBinding) {
	c.mu.RLock()
	subscribers := c.subscribers
	c.mu.RUnlock()
	for _, f := range subscribers {
		f(binding.Name(b))
	}
}
