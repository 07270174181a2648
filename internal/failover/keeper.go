package failover

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	"orrery.dev/orrery/internal/fleet"
	"orrery.dev/orrery/internal/neutral"
	"orrery.dev/orrery/internal/policy"
	"orrery.dev/orrery/internal/reconciler"
)

const (
	// syncedLook is the interval between checks, after the start, that the fleet cache is synced.
	syncedLook = 100 * time.Millisecond
	// staleLook is the delay before another attempt if the manager's cache is older than the hub.
	staleLook = 50 * time.Millisecond
	// firstRetry and lastRetry are the least and the longest delay before a failed write is repeated.
	firstRetry = 50 * time.Millisecond
	lastRetry  = 30 * time.Second
	// longestNote is the length of an event's note, in bytes, without the mark of neutral.Cut.
	// The API allows 1 kB.
	longestNote = 1024 - len("…")
)

// stateName is the name of the ConfigMap with the State.
var stateName = types.NamespacedName{Namespace: clusterv1alpha1.SecretNamespace, Name: ConfigMapName}

// Options configure Add.
type Options struct {
	// Fleet has the state of the clusters.
	Fleet *fleet.Cache
	// Limits bound the evictions. They do not concern taints.
	Limits Limits
}

// clusters is the part of fleet.Cache that the Keeper uses.
type clusters interface {
	Synced() bool
	Snapshot() *fleet.Snapshot
}

// Keeper keeps the State in its ConfigMap, and the taints of Clusters that ClusterTaintPolicies ask
// for. It also stamps taints with the effect NoExecute with the time at which they were added. It
// writes nothing until the fleet cache is synced, and only what differs. One worker does all of it,
// for one Cluster at a time. Add makes a Keeper.
type Keeper struct {
	client   client.Client
	fleet    clusters
	queue    *Queue
	recorder events.EventRecorder
	now      func() time.Time
	prepared reconciler.Attempt

	mu       sync.Mutex
	requests workqueue.TypedRateLimitingInterface[reconcile.Request] // nil until the controller starts

	// Only the worker uses the following.

	known    bool               // the ConfigMap was read or created; taints are not written before
	state    State              // as it was read last; zero: not yet
	memories map[string]*memory // by the name of the Cluster
}

// memory is what the keeper remembers of a Cluster.
type memory struct {
	uid     types.UID
	times   stamps // of the taints that the Cluster should have had last
	handled bool   // the Cluster has had the taints that it should have
	failed  bool   // the hub refused the last write of taints
}

// Add adds the keeper to the manager, with the queue of evictions, which runs in the manager. The
// manager's cache must have the ConfigMap with the name ConfigMapName.
func Add(mgr ctrl.Manager, o Options) (*Keeper, error) {
	k := newKeeper(mgr.GetClient(), o.Fleet, NewQueue(o.Limits, o.Fleet.Snapshot, time.Now), mgr.GetEventRecorder("orrery"), time.Now)
	o.Fleet.Subscribe(func(change fleet.Change) {
		k.queue.FleetChanged()
		k.enqueue(change.Name)
	})
	options := reconciler.Options[reconcile.Request](1)
	options.RateLimiter = workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry)
	options.SkipNameValidation = new(true) // tests run several managers in one process
	err := ctrl.NewControllerManagedBy(mgr).Named("failover").
		For(&clusterv1alpha1.Cluster{}).
		Watches(&policyv1alpha1.ClusterTaintPolicy{}, handler.EnqueueRequestsFromMapFunc(k.policyChanged)).
		Watches(&corev1.ConfigMap{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(predicate.NewPredicateFuncs(isState))).
		WatchesRawSource(source.Func(k.start)).
		WithOptions(options).
		Complete(k)
	if err != nil {
		return nil, fmt.Errorf("add failover controller: %w", err)
	}
	if err := mgr.Add(manager.RunnableFunc(k.queue.Run)); err != nil {
		return nil, fmt.Errorf("add the queue of evictions: %w", err)
	}
	return k, nil
}

func newKeeper(c client.Client, from clusters, q *Queue, recorder events.EventRecorder, now func() time.Time) *Keeper {
	return &Keeper{client: c, fleet: from, queue: q, recorder: recorder, now: now, memories: map[string]*memory{}}
}

// Queue returns the queue of evictions, which is always the same.
func (k *Keeper) Queue() *Queue { return k.queue }

// Prepared returns a channel that is closed after the first attempt to read the ConfigMap or, if
// there is none, to create it, successful or not. That attempt begins when the manager has started.
func (k *Keeper) Prepared() <-chan struct{} { return k.prepared.Ended() }

// isState reports whether an object is the ConfigMap with the State, if it is a ConfigMap.
func isState(o client.Object) bool { return client.ObjectKeyFromObject(o) == stateName }

// start queues the ConfigMap. The controller calls start with its work queue before its worker
// runs.
func (k *Keeper) start(_ context.Context, requests workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	k.mu.Lock()
	k.requests = requests
	k.mu.Unlock()
	requests.Add(reconcile.Request{NamespacedName: stateName})
	return nil
}

// enqueue queues Clusters. Before start it does nothing: the controller queues all Clusters.
func (k *Keeper) enqueue(names ...string) {
	k.mu.Lock()
	requests := k.requests
	k.mu.Unlock()
	if requests == nil {
		return
	}
	for _, name := range names {
		requests.Add(reconcile.Request{NamespacedName: types.NamespacedName{Name: name}})
	}
}

// policyChanged returns a request for each Cluster. It logs if the policy cannot select clusters.
func (k *Keeper) policyChanged(ctx context.Context, o client.Object) []reconcile.Request {
	if p, ok := o.(*policyv1alpha1.ClusterTaintPolicy); ok {
		if _, err := policy.CompileAffinity(p.Spec.TargetClusters); err != nil {
			ctrl.LoggerFrom(ctx).Info("A ClusterTaintPolicy is for no cluster: targetClusters is invalid", "clustertaintpolicy", p.Name, "error", err.Error())
		}
	}
	// A Cluster that the snapshot does not have yet is queued when it gets it.
	all := k.fleet.Snapshot().Clusters()
	requests := make([]reconcile.Request, 0, len(all))
	for _, c := range all {
		requests = append(requests, reconcile.Request{NamespacedName: types.NamespacedName{Name: c.Name}})
	}
	return requests
}

// Reconcile implements reconcile.Reconciler for one Cluster, or the ConfigMap with the State.
func (k *Keeper) Reconcile(ctx context.Context, req reconcile.Request) (ctrl.Result, error) {
	var err error
	switch {
	case req.NamespacedName != stateName:
		err = k.keepTaints(ctx, req.Name)
	case !k.fleet.Synced():
		return ctrl.Result{RequeueAfter: syncedLook}, nil
	default:
		err = k.keepState(ctx)
		k.prepared.End()
	}
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return ctrl.Result{RequeueAfter: staleLook}, nil // the manager's cache is stale
	}
	return ctrl.Result{}, err
}

// keepState gives the queue the state in the ConfigMap. If there is no ConfigMap, it creates it. An
// error AlreadyExists or Conflict means that the manager's cache is stale.
func (k *Keeper) keepState(ctx context.Context) error {
	stored := &corev1.ConfigMap{}
	err := k.client.Get(ctx, stateName, stored)
	if apierrors.IsNotFound(err) {
		k.known = false
		k.queue.SetState(State{}) // nothing is evicted meanwhile
		stored, err = k.createState(ctx)
	}
	if err != nil {
		return fmt.Errorf("keep ConfigMap %s: %w", stateName, err)
	}
	state, err := ParseState(stored.Data)
	if err != nil {
		state.Paused, state.By, state.Why = true, "", fmt.Sprintf("ConfigMap %s is invalid: %v", stateName, err)
	}
	k.queue.SetState(state)
	if state != k.state {
		ctrl.LoggerFrom(ctx).Info("The state of failover is read", "paused", state.Paused, "by", state.By, "why", state.Why, "taintsCountFrom", state.CountFrom)
		k.state = state
	}
	if !k.known {
		k.known = true
		for _, c := range k.fleet.Snapshot().Clusters() {
			k.enqueue(c.Name)
		}
	}
	return nil
}

// createState creates the ConfigMap, so that the taints that exist now evict nothing until a user
// resumes failover. Before that, it stamps those without a time with a time before State.CountFrom.
// In this order a process that is killed in between leaves no taint that a later one would stamp
// with its own time. A taint that the hub refuses to stamp is no error: it is never due. If the
// ConfigMap was lost while this process runs, a pause stays.
func (k *Keeper) createState(ctx context.Context) (*corev1.ConfigMap, error) {
	from := k.now().UTC().Truncate(time.Second) // the API stores seconds
	var all clusterv1alpha1.ClusterList
	if err := k.client.List(ctx, &all); err != nil {
		return nil, fmt.Errorf("list clusters: %w", err)
	}
	for i := range all.Items {
		c := &all.Items[i]
		if !c.DeletionTimestamp.IsZero() {
			continue
		}
		taints := slices.Clone(c.Spec.Taints)
		stamp(taints, k.memory(c).times, unconfirmed(from))
		err := k.write(ctx, c, taints)
		if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
			ctrl.LoggerFrom(ctx).Error(err, "stamp the taints of a cluster", "cluster", c.Name)
			continue
		}
		if err != nil {
			return nil, err
		}
	}
	created := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: stateName.Namespace, Name: stateName.Name},
		Data:       State{Paused: k.state.Paused, By: k.state.By, Why: k.state.Why, At: k.state.At, CountFrom: from}.Data(),
	}
	err := k.client.Create(ctx, created)
	if apierrors.IsNotFound(err) { // the namespace does not exist
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: stateName.Namespace}}
		if err = client.IgnoreAlreadyExists(k.client.Create(ctx, ns)); err == nil {
			err = k.client.Create(ctx, created)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("create it: %w", err)
	}
	return created, nil
}

// keepTaints writes the taints that a Cluster should have, if they differ from those that it has. A
// Cluster that is gone or being deleted is left alone.
func (k *Keeper) keepTaints(ctx context.Context, name string) error {
	o := &clusterv1alpha1.Cluster{}
	if err := k.client.Get(ctx, types.NamespacedName{Name: name}, o); apierrors.IsNotFound(err) {
		delete(k.memories, name)
		return nil
	} else if err != nil {
		return fmt.Errorf("get cluster %s: %w", name, err)
	}
	if !k.known || !o.DeletionTimestamp.IsZero() { // keepState queues all Clusters
		return nil
	}
	var list policyv1alpha1.ClusterTaintPolicyList
	if err := k.client.List(ctx, &list); err != nil {
		return fmt.Errorf("list ClusterTaintPolicies: %w", err)
	}
	policies := make([]*policyv1alpha1.ClusterTaintPolicy, 0, len(list.Items))
	for i := range list.Items {
		policies = append(policies, &list.Items[i])
	}
	stored, m := slices.Clone(o.Spec.Taints), k.memory(o)
	if from := k.state.CountFrom; !m.handled && !from.IsZero() && !o.CreationTimestamp.After(from) {
		// A manifest that was applied while no server ran may have dropped the times.
		stamp(stored, m.times, unconfirmed(from))
	}
	return k.write(ctx, o, Taints(k.observed(o), o.Spec.SyncMode == clusterv1alpha1.Pull, policies, stored, m.times, k.now()))
}

// unconfirmed returns the time of taints that may be older than countFrom, which is not zero. They
// evict nothing until a user resumes failover.
func unconfirmed(countFrom time.Time) metav1.Time { return metav1.NewTime(countFrom.Add(-time.Second)) }

// memory returns what the keeper remembers of the Cluster o. A Cluster with the same name and
// another UID is another one.
func (k *Keeper) memory(o *clusterv1alpha1.Cluster) *memory {
	m := k.memories[o.Name]
	if m == nil || m.uid != o.UID {
		m = &memory{uid: o.UID}
		k.memories[o.Name] = m
	}
	return m
}

// observed returns the state of the cluster of o: whether it answers, from the fleet, and all else
// from o, which may be newer than the snapshot. A cluster that the fleet does not have was not
// probed yet.
func (k *Keeper) observed(o *clusterv1alpha1.Cluster) *fleet.Cluster {
	c := &fleet.Cluster{
		Name: o.Name, UID: o.UID, Labels: labels.Set(o.Labels), Provider: o.Spec.Provider, Region: o.Spec.Region, Zones: o.Spec.Zones,
		Joined: o.Status.ID != "",
	}
	if found, ok := k.fleet.Snapshot().Cluster(o.Name); ok && found.UID == o.UID {
		c.Reachable, c.Lost, c.Probed, c.Since = found.Reachable, found.Lost, found.Probed, found.Since
	}
	return c
}

// write remembers the times of taints, and gives them to the Cluster o if o has others. The error
// is a conflict if o is not the newest version. A Cluster that is gone is no error. If the hub
// refuses the taints, an event says so, once until a write succeeds.
func (k *Keeper) write(ctx context.Context, o *clusterv1alpha1.Cluster, taints []corev1.Taint) error {
	m := k.memory(o)
	m.times = timesOf(taints)
	if slices.EqualFunc(o.Spec.Taints, taints, func(a, b corev1.Taint) bool {
		return a.MatchTaint(&b) && a.Value == b.Value && a.TimeAdded.Equal(b.TimeAdded)
	}) {
		m.handled, m.failed = true, false
		return nil
	}
	updated := o.DeepCopy()
	updated.Spec.Taints = taints
	err := k.client.Patch(ctx, updated, client.MergeFromWithOptions(o, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		if (apierrors.IsInvalid(err) || apierrors.IsForbidden(err)) && !m.failed {
			m.failed = true
			k.report(o, corev1.EventTypeWarning, "TaintFailed", "the hub refuses the taints that the Cluster should have: "+err.Error())
		}
		return fmt.Errorf("write the taints of cluster %s: %w", o.Name, err)
	}
	m.handled, m.failed = true, false
	added, removed := texts(taints, o.Spec.Taints), texts(o.Spec.Taints, taints)
	ctrl.LoggerFrom(ctx).Info("The taints of a cluster are written", "cluster", o.Name, "added", added, "removed", removed)
	if len(added) > 0 {
		k.report(o, corev1.EventTypeWarning, "Tainted", "ClusterTaintPolicies add the taints "+strings.Join(added, ", "))
	}
	if len(removed) > 0 {
		k.report(o, corev1.EventTypeNormal, "Untainted", "ClusterTaintPolicies remove the taints "+strings.Join(removed, ", "))
	}
	return nil
}

// report raises an event about the taints of a Cluster. A long note is cut.
func (k *Keeper) report(o *clusterv1alpha1.Cluster, kind, reason, note string) {
	k.recorder.Eventf(o, nil, kind, reason, "Taint", "%s", neutral.Cut(note, longestNote))
}

// texts returns the taints that others do not have, with their values, as KEY=VALUE:EFFECT. It
// ignores times.
func texts(taints, others []corev1.Taint) []string {
	var all []string
	for _, t := range taints {
		if !slices.ContainsFunc(others, func(o corev1.Taint) bool { return o.MatchTaint(&t) && o.Value == t.Value }) {
			all = append(all, t.ToString())
		}
	}
	return all
}
