package member

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/reconciler"
)

const (
	// workers is the number of concurrent reconciles. A reconcile mostly reads memory and Secrets.
	workers = 8
	// summaryInterval is the least time between two writes of a cluster's resource summary (capacity
	// and use) into its status.
	summaryInterval = 30 * time.Second
	// mirrorGrace is how long after a restart of the hub a cluster keeps the condition Mirrored. In
	// that time the mirror, which copies the objects of clusters to a database, lists them again.
	mirrorGrace = 5 * time.Minute
	// leaveRetry is the delay before the cleanup of a cluster that leaves is tried again or continued.
	leaveRetry = 2 * time.Second
	// staleLook is the delay until a Cluster is reconciled again, because the cached object is older
	// than an update by this process.
	staleLook = 50 * time.Millisecond
)

// clusters is the reconciler of Clusters. Each cluster has its own goroutines for probes and for
// reading its API list. The reconciler mostly reads their results, so a slow cluster does not delay
// other clusters. Only the trial of new credentials waits for the cluster.
type clusters struct {
	registry   *Registry
	admission  sync.Mutex
	departures *departures
	loop       *reconciler.Loop[*clusterv1alpha1.Cluster]
	recorder   events.EventRecorder
}

// Add adds the controller of Clusters to mgr and returns its registry. The registry has no members
// until mgr has started. Add appends a phase to a copy of o.Departures: it removes the rights of
// the hub's administrators in a cluster that leaves.
func Add(mgr ctrl.Manager, o Options) (*Registry, error) {
	r := &Registry{
		options: o.withDefaults(), client: mgr.GetClient(), reader: mgr.GetAPIReader(),
		members: map[string]*Member{}, trials: map[string]*trial{}, counted: map[string]time.Time{}, began: time.Now(),
	}
	r.options.Departures = append(slices.Clone(r.options.Departures), Departure{
		Name: "the hub's administrators have no rights in it any more", Reason: clusterv1alpha1.ReasonUnjoining, Inside: dismissAdmins,
	})
	r.events = mgr.GetEventRecorder("orrery")
	c := &clusters{registry: r, departures: newDepartures(r), recorder: r.events}
	c.loop = &reconciler.Loop[*clusterv1alpha1.Cluster]{
		Client:     mgr.GetClient(),
		Ready:      clusterv1alpha1.ConditionReady,
		Finalizer:  clusterv1alpha1.Finalizer,
		Finalize:   c.leave,
		Conditions: func(o *clusterv1alpha1.Cluster) *[]metav1.Condition { return &o.Status.Conditions },
		Steps: []reconciler.Step[*clusterv1alpha1.Cluster]{
			{
				Condition: clusterv1alpha1.ConditionProvisioned, Warnings: []string{clusterv1alpha1.ConditionCertificatesExpiring},
				Run: r.options.Provision, Applies: provisioned, NonBlocking: true,
			},
			{Condition: clusterv1alpha1.ConditionReachable, Warnings: []string{clusterv1alpha1.ConditionCredentialsExpiring}, Run: c.reach},
			{Condition: clusterv1alpha1.ConditionJoined, Run: c.join},
			{Condition: clusterv1alpha1.ConditionAPIsComplete, Run: c.discover, NonBlocking: true},
			{Condition: clusterv1alpha1.ConditionMirrored, Run: c.mirror},
		},
	}
	err := ctrl.NewControllerManagedBy(mgr).Named("cluster").
		For(&clusterv1alpha1.Cluster{}).
		WatchesMetadata(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(r.using)).
		WatchesRawSource(source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.ctx, r.queue = ctrl.LoggerInto(ctx, mgr.GetLogger().WithName("member")), queue
			return nil
		})).
		WithOptions(reconciler.Options[reconcile.Request](workers)).
		Complete(c)
	if err != nil {
		return nil, fmt.Errorf("add cluster controller: %w", err)
	}
	if err := mgr.Add(manager.RunnableFunc(r.bindStoredOnStart)); err != nil {
		return nil, fmt.Errorf("bind stored credentials: %w", err)
	}
	return r, nil
}

// Reconcile implements reconcile.Reconciler. It creates, updates or removes the Member of the
// Cluster in the registry. Then it runs the reconcile steps, which write the conditions of the
// Cluster. It runs no step until the first probes (health checks) have shown the state of the
// cluster.
func (c *clusters) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if err := c.registry.bindStored(ctx); err != nil {
		return ctrl.Result{}, err
	}
	cluster := &clusterv1alpha1.Cluster{}
	err := c.registry.client.Get(ctx, req.NamespacedName, cluster)
	if apierrors.IsNotFound(err) {
		c.registry.remove(req.Name)
		c.registry.tried(req.Name)
		return ctrl.Result{}, nil
	}
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("get cluster %s: %w", req.Name, err)
	}
	if absent(cluster) {
		c.registry.remove(req.Name)
		if awaitsAgent(cluster) {
			if err := c.registry.tryOffered(ctx, cluster); err != nil {
				return ctrl.Result{}, err
			}
		}
		return c.loop.Reconcile(ctx, req)
	}
	if m, ok := c.registry.Member(req.Name); ok && m.Cluster().UID == cluster.UID && m.Cluster().Generation > cluster.Generation {
		// The cached Cluster is older than an update by this process, and has the old address.
		return ctrl.Result{RequeueAfter: staleLook}, nil
	}
	m := c.registry.ensure(cluster)
	if err := c.registry.connect(ctx, m, cluster); err != nil {
		return ctrl.Result{}, err
	}
	if !m.settled() {
		// Nothing is known about the cluster yet, so the status stays: after a restart it is the last
		// known one. The probes enqueue the Cluster again.
		return ctrl.Result{}, nil
	}
	return c.loop.Reconcile(ctx, req)
}

// provisioned reports whether Orrery builds the cluster.
func provisioned(o *clusterv1alpha1.Cluster) bool { return o.Spec.Provision != nil }

// Built reports whether the Cluster has an API server that the hub can connect to. Only such a
// Cluster has a Member. Built is false before Orrery has built the cluster, or before its first
// agent has connected. It is also false for a cluster that Orrery built and that is being deleted,
// after the cleanup in it or if it never joined.
func Built(o *clusterv1alpha1.Cluster) bool { return !absent(o) }

// absent reports whether the Cluster has no API server to connect to, which is one of three cases.
// Its first agent has not connected yet. Orrery builds the cluster and is not done. Or Orrery
// built the cluster, and it is being deleted and was cleaned up or never joined.
func absent(o *clusterv1alpha1.Cluster) bool {
	return awaitsAgent(o) || provisioned(o) && (o.Spec.APIEndpoint == "" || !o.DeletionTimestamp.IsZero() && (o.Status.ID == "" || emptied(o)))
}

// settled reports whether the probes know enough about the cluster to write its status. It takes
// m.mu.
func (m *Member) settled() bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.contact.settled(m.discovered)
}

// settled reports whether the probes have a result: the cluster is silent, or it refuses the hub,
// or its identity is known and its API list was requested. discovered means that the API list was
// requested.
func (c contact) settled(discovered bool) bool {
	switch c.state {
	case silent:
		return true
	case answering:
		return c.refused || c.proxied || len(c.missing) > 0 || (c.id != "" && discovered)
	case undecided:
	}
	return false
}

// member returns the member of a Cluster that is being reconciled, and the last result of its
// probes. It is an error if the registry has no member of that name, or a member with another UID.
func (c *clusters) member(o *clusterv1alpha1.Cluster) (*Member, contact, error) {
	m, ok := c.registry.Member(o.Name)
	if !ok || m.Cluster().UID != o.UID {
		// The Cluster was deleted and created again between two reads of the cache.
		return nil, contact{}, fmt.Errorf("cluster %s is not in the registry", o.Name)
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m, m.contact, nil
}

// reach is the reconcile step that writes the condition Reachable. It also writes the state of the
// agents and the condition CredentialsExpiring into the status of o. It records an Event when the
// cluster stops answering or answers again.
func (c *clusters) reach(_ context.Context, o *clusterv1alpha1.Cluster) error {
	c.showAgents(o)
	switch {
	case !absent(o):
	case provisioned(o) && o.Spec.APIEndpoint == "" && !pulls(o):
		return reconciler.Unknown(clusterv1alpha1.ReasonProvisioning, 0, "the cluster is not built yet")
	case awaitsAgent(o):
		if c.registry.options.Tunnel == nil {
			return reconciler.Unknown(clusterv1alpha1.ReasonWaitingForAgent, 0, "%v", errNoTunnel)
		}
		if t := c.registry.trialOf(o.Name); t.why != "" {
			return reconciler.Unknown(clusterv1alpha1.ReasonWaitingForAgent, 0, "the credentials that the agent sent do not work yet; the hub tries again: %s", t.why)
		}
		return reconciler.Unknown(clusterv1alpha1.ReasonWaitingForAgent, 0, "%s", waitsForAgent(o.Name))
	default:
		return reconciler.Unknown(clusterv1alpha1.ReasonProvisioning, 0, "the cluster is not built any more")
	}
	m, found, err := c.member(o)
	if err != nil {
		return err
	}
	c.credentialsExpiring(o, m)
	if problem := m.current().problem; problem != nil {
		return reconciler.Unknown(reasonOf(problem), 0, "%v", problem)
	}
	said := meta.FindStatusCondition(o.Status.Conditions, clusterv1alpha1.ConditionReachable)
	if found.state != answering {
		if said != nil && said.Status == metav1.ConditionTrue {
			c.recorder.Eventf(o, nil, corev1.EventTypeWarning, clusterv1alpha1.ReasonUnreachable, "Probe", "%s", found.problem)
		}
		return reconciler.Unknown(clusterv1alpha1.ReasonUnreachable, 0, "%s", found.problem)
	}
	if said != nil && said.Reason == clusterv1alpha1.ReasonUnreachable {
		c.recorder.Eventf(o, nil, corev1.EventTypeNormal, "Recovered", "Probe", "the API server answers again")
	}
	return reconciler.Done(clusterv1alpha1.ReasonAPIServerReady, "")
}

// discover is the reconcile step that writes the condition APIsComplete. It writes the number of
// served types, a hash of them and their completeness into the status of o. It sends no request.
func (c *clusters) discover(_ context.Context, o *clusterv1alpha1.Cluster) error {
	m, _, err := c.member(o)
	if err != nil {
		return err
	}
	apis := m.APIs()
	completeness := clusterv1alpha1.APIsComplete
	if !apis.Complete() {
		completeness = clusterv1alpha1.APIsPartial
	}
	o.Status.APIs = &clusterv1alpha1.APISummary{
		Count: int32(len(apis.all)), Hash: apis.hash, Completeness: completeness, //nolint:gosec // a cluster serves hundreds
	}
	if !apis.Complete() {
		return reconciler.Waiting(clusterv1alpha1.ReasonPartial, 0,
			"types that are not listed are unknown, because these do not answer: %s", apis.unanswered())
	}
	return reconciler.Done(clusterv1alpha1.ReasonComplete, "")
}

// mirror is the reconcile step that writes the condition Mirrored: whether the hub's mirror has a
// complete copy of the cluster's objects. It also writes the mirror's summary of nodes and
// resources into the status of o. For mirrorGrace after a start, a cluster that was mirrored keeps
// its condition.
func (c *clusters) mirror(_ context.Context, o *clusterv1alpha1.Cluster) error {
	m, _, err := c.member(o)
	if err != nil {
		return err
	}
	seen := c.registry.options.Observe(o.Name)
	if seen.Nodes != nil {
		o.Status.NodeSummary = seen.Nodes
	}
	c.summarise(m, o, seen.Resources)

	m.mu.Lock()
	m.mirrored = m.mirrored || seen.Synced
	grace := mirrorGrace - time.Since(m.since)
	again := !m.mirrored && grace > 0
	m.mu.Unlock()

	said := meta.FindStatusCondition(o.Status.Conditions, clusterv1alpha1.ConditionMirrored)
	switch {
	case seen.Synced:
		return reconciler.Done(clusterv1alpha1.ReasonMirrored, "%s", seen.Notice)
	case seen.NotStored:
		if said == nil || said.Reason != clusterv1alpha1.ReasonNotStored {
			c.recorder.Eventf(o, nil, corev1.EventTypeWarning, clusterv1alpha1.ReasonNotStored, "Mirror", "%s; placement goes on", seen.Message)
		}
		return reconciler.Waiting(clusterv1alpha1.ReasonNotStored, 0, "%s", seen.Message)
	case again && said != nil && said.Status == metav1.ConditionTrue:
		// After a restart, the first lists of this process mean nothing about the cluster yet.
		c.registry.enqueue(o.Name, grace)
		return reconciler.Done(said.Reason, "%s", said.Message)
	default:
		return reconciler.Waiting(clusterv1alpha1.ReasonMirroring, 0, "%s", seen.Message)
	}
}

// summarise writes the resource summary now into the status of o at most every summaryInterval,
// because the summary changes with every pod. If it is too early, it enqueues the Cluster for
// later. It does nothing if now is nil.
func (c *clusters) summarise(m *Member, o *clusterv1alpha1.Cluster, now *clusterv1alpha1.ResourceSummary) {
	if now == nil || equality.Semantic.DeepEqual(now, o.Status.ResourceSummary) {
		return
	}
	m.mu.Lock()
	wait := summaryInterval - time.Since(m.summarised)
	due := wait <= 0 || o.Status.ResourceSummary == nil
	if due {
		m.summarised = time.Now()
	}
	m.mu.Unlock()
	if !due {
		c.registry.enqueue(o.Name, wait)
		return
	}
	o.Status.ResourceSummary = now
}

// using returns reconcile requests for the Clusters that use a Secret, when that Secret changed.
// These are the members that reference the Secret. A Cluster that is no member yet has no
// reference; if the Secret has new credentials for it, that Cluster is returned, too.
func (r *Registry) using(_ context.Context, secret client.Object) []reconcile.Request {
	var requests []reconcile.Request
	ref := clusterv1alpha1.SecretReference{Namespace: secret.GetNamespace(), Name: secret.GetName()}
	for _, m := range r.Members() {
		spec := m.Cluster().Spec
		if spec.SecretRef == ref || (spec.ImpersonatorSecretRef != nil && *spec.ImpersonatorSecretRef == ref) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKey{Name: m.name}})
		}
	}
	// A Cluster that is no member yet has its offered credentials in the Secret that it will use.
	if name := secret.GetName(); secret.GetNamespace() == clusterv1alpha1.SecretNamespace && secret.GetAnnotations()[clusterv1alpha1.AnnotationForCluster] == name {
		if _, ok := r.Member(name); !ok {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKey{Name: name}})
		}
	}
	return requests
}
